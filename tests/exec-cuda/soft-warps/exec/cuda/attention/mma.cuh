/*
 * In place of exec/cuda/attention/mma.cuh: the same functions, done by threads of soft-warps.cu. For operations of a
 * whole warp, each thread hands over its words, which the others read after a barrier.
 */
#pragma once

#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tests/exec-cuda/soft-warps.h"

using std::max;
using std::min;

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __global__
#define __global__

#define threadIdx (soft_thread())
#define blockIdx (soft_block())
#define __syncthreads soft_meet_block
#define __syncwarp soft_meet_warp

#undef __shared__
#define __shared__ static

/* The value of @lane */
template <typename T>
static inline T
soft_shuffle(T x, int lane)
{
    memcpy(soft_words()[soft_lane()], &x, sizeof x);
    soft_meet_warp();
    memcpy(&x, soft_words()[lane], sizeof x);
    soft_words_end();
    return x;
}

template <typename T>
static inline T
__shfl_sync(unsigned lanes, T x, int lane)
{
    return soft_shuffle(x, lane);
}

template <typename T>
static inline T
__shfl_up_sync(unsigned lanes, T x, int step)
{
    return soft_shuffle(x, max(soft_lane() - step, 0));
}

template <typename T>
static inline T
__shfl_down_sync(unsigned lanes, T x, int step)
{
    return soft_shuffle(x, min(soft_lane() + step, 31));
}

static inline float
__shfl_xor_sync(unsigned lanes, float x, int bits)
{
    return soft_shuffle(x, soft_lane() ^ bits);
}

static inline bool
__any_sync(unsigned lanes, bool x)
{
    memcpy(soft_words()[soft_lane()], &x, sizeof x);
    soft_meet_warp();
    for (int lane = 0; lane < 32; lane++)
        x = x || *(const bool *)soft_words()[lane];
    soft_words_end();
    return x;
}

static inline unsigned
atomicAdd(unsigned *target, unsigned n)
{
    const unsigned before = *target;

    *target += n;
    return before;
}

static inline uint32_t
dynamic_shared()
{
    return 0;
}

static inline float2
load_shared_pair(uint32_t address)
{
    float2 pair;

    memcpy(&pair, soft_shared(address, sizeof pair), sizeof pair);
    return pair;
}

static inline void
copy_async_16(uint32_t target, const void *source, bool valid)
{
    soft_copy(target, source, 16, valid);
}

static inline void
copy_async_4(uint32_t target, const void *source, bool valid)
{
    soft_copy(target, source, 4, valid);
}

static inline void
copy_async_wait()
{
    soft_copies_end();
}

/* Row @row of matrix @i, as the lane that names it has handed it over. */
static inline uint16_t
soft_element(const uint32_t (*words)[8], int i, int row, int column)
{
    return ((const uint16_t *)words[8 * i + row])[column];
}

static inline void
soft_load_matrices(uint32_t (&r)[4], uint32_t address, bool transposed)
{
    const int g = soft_lane() / 4, t = soft_lane() % 4;

    uint32_t(*const words)[8] = soft_words();

    memcpy(words[soft_lane()], soft_shared(address, 16), 16);
    soft_meet_warp();
    for (int i = 0; i < 4; i++) {
        const uint16_t low =
            transposed ? soft_element(words, i, 2 * t, g) : soft_element(words, i, g, 2 * t);
        const uint16_t high =
            transposed ? soft_element(words, i, 2 * t + 1, g) : soft_element(words, i, g, 2 * t + 1);

        r[i] = low | (uint32_t)high << 16;
    }
    soft_words_end();
}

static inline void
load_matrices(uint32_t (&r)[4], uint32_t address)
{
    soft_load_matrices(r, address, false);
}

static inline void
load_matrices_transposed(uint32_t (&r)[4], uint32_t address)
{
    soft_load_matrices(r, address, true);
}

static inline float
soft_float(__nv_bfloat16, uint32_t pair, int upper)
{
    const uint32_t bits = upper ? pair & 0xffff0000 : pair << 16;
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float
soft_float(__half, uint32_t pair, int upper)
{
    return __half2float(__ushort_as_half((unsigned short)(upper ? pair >> 16 : pair)));
}

/* c += a b: lane 4 g + t has of A rows g and g + 8, of B column g (exec/cuda/attention/mma.cuh). */
template <typename T>
static inline void
multiply_add(T tag, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const int own = soft_lane();
    uint32_t(*const words)[8] = soft_words();
    uint32_t *mine = words[own];

    memcpy(mine, a, sizeof a);
    mine[4] = b0;
    mine[5] = b1;
    soft_meet_warp();
    for (int e = 0; e < 4; e++) {
        const int row = own / 4 + e / 2 * 8, column = own % 4 * 2 + e % 2;

        for (int k = 0; k < 16; k++) {
            const uint32_t x = words[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8];
            const uint32_t y = words[column * 4 + k % 8 / 2][4 + k / 8];

            c[e] = fmaf(soft_float(tag, x, k % 2), soft_float(tag, y, k % 2), c[e]);
        }
    }
    soft_words_end();
}

static inline float
__uint_as_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t
to_tf32(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (bits + 0x1000) & 0xffffe000;
}

static inline void
multiply_add_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    const int own = soft_lane();
    uint32_t(*const words)[8] = soft_words();

    memcpy(words[own], a, sizeof a);
    memcpy(words[own] + 4, b, sizeof b);
    soft_meet_warp();
    for (int e = 0; e < 4; e++)
        for (int k = 0; k < 8; k++) {
            const uint32_t x = words[own / 4 * 4 + k % 4][k / 4 * 2 + e / 2];
            const uint32_t y = words[(own % 4 * 2 + e % 2) * 4 + k % 4][4 + k / 4];

            c[e] = fmaf(__uint_as_float(x), __uint_as_float(y), c[e]);
        }
    soft_words_end();
}

static inline uint32_t
transpose_matrix(uint32_t rows)
{
    const int g = soft_lane() / 4, t = soft_lane() % 4;
    uint32_t(*const words)[8] = soft_words();
    uint16_t pair[2];

    words[soft_lane()][0] = rows;
    soft_meet_warp();
    for (int i = 0; i < 2; i++)
        pair[i] = ((const uint16_t *)words[(2 * t + i) * 4 + g / 2])[g % 2];
    soft_words_end();
    memcpy(&rows, pair, sizeof rows);
    return rows;
}

static inline uint4
load_shared_words(uint32_t address)
{
    uint4 four;

    memcpy(&four, soft_shared(address, sizeof four), sizeof four);
    return four;
}

static inline float *
shared_floats(uint32_t address)
{
    return (float *)(void *)soft_shared(address, sizeof(float));
}

static inline float
fast_exp2(float x)
{
    return exp2f(x);
}

static inline void
store_shared(uint32_t address, uint32_t value)
{
    memcpy(soft_shared(address, sizeof value), &value, sizeof value);
}

static inline uint32_t
load_shared(uint32_t address)
{
    uint32_t value;

    memcpy(&value, soft_shared(address, sizeof value), sizeof value);
    return value;
}

static inline void
store_shared_words(uint32_t address, const float (&four)[4])
{
    memcpy(soft_shared(address, sizeof four), four, sizeof four);
}

static inline void
meet_some(int barrier, int threads)
{
    soft_meet_some(barrier, threads, true);
}

static inline void
announce(int barrier, int threads)
{
    soft_meet_some(barrier, threads, false);
}
