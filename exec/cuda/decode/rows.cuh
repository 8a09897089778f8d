/*
 * Shared by the kernels of rows.cu, which has the formula: parts of k, instructions, and how sums are stored.
 */
#pragma once

#include "exec/cuda/attention/private.h"
#include "exec/cuda/base/common.cuh"
#include "exec/cuda/grouped/mma.cuh"

#define ROW_WARPS 8
#define ROW_THREADS (ROW_WARPS * 32)
#define ROW_PARTS 8
#define ROW_DEPTH 32 /* of k that a step has */
#define ROW_UNIT 2   /* steps: a part of k has whole units */

/* A block's shared memory, 16 bytes a place. */
extern __shared__ __align__(1024) uint4 row_shared[];

__device__ __forceinline__ uint32_t
shared_address()
{
    return (uint32_t)__cvta_generic_to_shared(row_shared);
}

/* Not .nc: ptxas moves such loads behind the wait for the kernel before, as nobody can write what they read. */
__device__ __forceinline__ uint4
load_weights(const void *at)
{
    uint4 value;

    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at));
    return value;
}

/* sums += one step of M x 16 rows of W, @low g and @high g + 8 of each, and N x 8 tokens, from fragment @first on. The
 * second instruction of a sum comes after the first ones of all, for it waits for its own. @zero: unknown to the compiler,
 * which would copy W to neighbouring registers for each instruction anew */
template <typename T, int M, int N, int ALL>
__device__ __forceinline__ void
multiply_step(float (&sums)[M][ALL][4], int first, const uint4 (&low)[M], const uint4 (&high)[M],
              const uint4 (&x)[N], uint32_t zero)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t w[M][4];

#pragma unroll
        for (int i = 0; i < M; i++) {
            w[i][0] = (half ? low[i].z : low[i].x) ^ zero;
            w[i][1] = (half ? high[i].z : high[i].x) ^ zero;
            w[i][2] = (half ? low[i].w : low[i].y) ^ zero;
            w[i][3] = (half ? high[i].w : high[i].y) ^ zero;
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
#pragma unroll
            for (int i = 0; i < M; i++)
                multiply_add(T(), sums[i][first + j], w[i], half ? x[j].z : x[j].x,
                             half ? x[j].w : x[j].y);
        }
    }
}

__device__ __forceinline__ int
units_of(const RpMatmulArgs &args)
{
    return ((int)args.k + ROW_UNIT * ROW_DEPTH - 1) / (ROW_UNIT * ROW_DEPTH);
}

/* The first unit of a part. */
__device__ __forceinline__ int
first_unit(int units, int part)
{
    return part * units / ROW_PARTS;
}

__device__ __forceinline__ size_t
stride_of(const RpMatmulArgs &args)
{
    return args.a_stride > 0 ? args.a_stride : args.k;
}

__device__ __forceinline__ uint32_t
zero_of(const RpMatmulArgs &args)
{
    return !args.alone;
}

template <typename T>
__device__ __forceinline__ void
add_pack(float (&sums)[RP_PACK], const T *at, size_t count, bool wide)
{
    if (wide && count >= RP_PACK) {
        const Pack<T> pack = *reinterpret_cast<const Pack<T> *>(at);

#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            sums[i] += to_float(pack.at[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        if ((size_t)i < count)
            sums[i] += to_float(at[i]);
}

/* @sums: over k, of @count rows of W from @row on. Stores C[token,row]. */
template <typename T>
__device__ __forceinline__ void
store_sums(const RpMatmulArgs &args, size_t token, size_t row, float (&sums)[RP_PACK], size_t count,
           bool wide)
{
    const size_t at = token * (args.c_stride > 0 ? args.c_stride : args.n) + row;
    T *place = (T *)args.c + at;
    Pack<T> pack;

#pragma unroll
    for (int i = 0; args.scale != 0 && i < RP_PACK; i++)
        sums[i] *= args.scale;
    if (args.accumulate)
        add_pack(sums, place, count, wide);
    if (args.residual)
        add_pack(sums, (const T *)args.residual + at, count, wide);
    if (args.bias)
        add_pack(sums, (const T *)args.bias + row, count, wide);
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        pack.at[i] = from_float<T>(sums[i]);
    store_pack(place, pack, count, wide);
}
