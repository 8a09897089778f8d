/*
 * Products of the delta rule in shared memory, by mma.m16n8k8 of tf32 (PTX ISA, sm_80 and later). Fragments, with g = lane
 * / 4, t = lane % 4:
 *
 *   A 16x8  a0 (g, t)  a1 (g+8, t)  a2 (g, t+4)  a3 (g+8, t+4)      B 8x8  b0 (t, g)  b1 (t+4, g)
 *   C 16x8  c0 (g, 2t)  c1 (g, 2t+1)  c2 (g+8, 2t)  c3 (g+8, 2t+1)  fp32
 *
 * Operands are fp32 numbers, each the sum of two in tf32 of 11 bits; three of their four products are made, so that a
 * product is as exact as one of fp32. With one of the four, errors were twice what the tests of bf16 allow.
 */
#pragma once

#include "exec/cuda/attention/mma.cuh"
#include "exec/cuda/delta/rule.cuh"

/* First row of the warp's tile of [64,.], and which half of the columns it has. */
__device__ __forceinline__ int
tile_row()
{
    return (int)threadIdx.x / 32 % 4 * 16;
}

__device__ __forceinline__ int
tile_half()
{
    return (int)threadIdx.x / 128;
}

/* Row and column, within the tile, of a thread's element @e of [N][4]. */
__device__ __forceinline__ int
row_within(int e)
{
    return e % 4 / 2 * 8 + (int)threadIdx.x % 32 / 4;
}

__device__ __forceinline__ int
column_within(int e)
{
    return e / 4 * 8 + (int)threadIdx.x % 4 * 2 + e % 2;
}

/* Dk, and zeros up to a multiple of 8. */
template <typename T>
__device__ __forceinline__ int
depth_of(const Rule<T> &rule)
{
    return (int)(rule.args.key_dim + 7) / 8 * 8;
}

/* A number in tf32, and the rest of it. */
template <int N> struct Halves {
    uint32_t high[N], low[N];

    __device__ __forceinline__ void set(int i, float x)
    {
        high[i] = to_tf32(x);
        low[i] = to_tf32(x - __uint_as_float(high[i]));
    }
};

/* c[16,8 N] += a b over n, a multiple of 8; a(i,k): @a[i stride + k], or A_ACROSS @a[k stride + i]; b(k,j): @b[k stride +
 * j], or B_ACROSS @b[j stride + k] */
template <bool A_ACROSS, bool B_ACROSS, int N>
__device__ __forceinline__ void
multiply(const float *a, int a_stride, const float *b, int b_stride, int n, float (&c)[N][4])
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;

    for (int k = 0; k < n; k += 8) {
        Halves<4> left;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8, depth = k + t + i / 2 * 4;

            left.set(i, A_ACROSS ? a[depth * a_stride + row] : a[row * a_stride + depth]);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            Halves<2> right;

#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = j * 8 + g, depth = k + t + i * 4;

                right.set(i, B_ACROSS ? b[column * b_stride + depth] : b[depth * b_stride + column]);
            }
            multiply_add_tf32(c[j], left.low, right.high);
            multiply_add_tf32(c[j], left.high, right.low);
            multiply_add_tf32(c[j], left.high, right.high);
        }
    }
}

/* inverse = 1 / (1 + A), of A below the diagonal, both [64,PAIR_STRIDE]. Squares of 16 x 16 on the diagonal by substitution,
 * then those beside them, a warp a square: X[i,j] = -X[i,i] sum_k A[i,k] X[k,j], whose sum stands at [j,i] meanwhile. */
__device__ __forceinline__ void
invert(const float *a, float *inverse)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;

    if (warp < 4 && lane < 16) {
        const int at = warp * 16 * (PAIR_STRIDE + 1);
        float x[16];

#pragma unroll
        for (int i = 0; i < 16; i++) {
            x[i] = i == lane ? 1.0f : 0.0f;
#pragma unroll
            for (int k = 0; k < i; k++)
                x[i] = fmaf(-a[at + i * PAIR_STRIDE + k], x[k], x[i]);
            inverse[at + i * PAIR_STRIDE + lane] = x[i];
        }
    }
    __syncthreads();
    for (int d = 1; d < 4; d++) {
        if (warp < 4 - d) {
            const int i = (warp + d) * 16, j = warp * 16;
            float sum[2][4] = {}, x[2][4] = {};

            for (int k = j; k < i; k += 16)
                multiply<false, false>(a + i * PAIR_STRIDE + k, PAIR_STRIDE, inverse + k * PAIR_STRIDE + j,
                                       PAIR_STRIDE, 16, sum);
#pragma unroll
            for (int e = 0; e < 8; e++)
                inverse[(j + row_within(e)) * PAIR_STRIDE + i + column_within(e)] = sum[e / 4][e % 4];
            __syncwarp();
            multiply<false, false>(inverse + i * PAIR_STRIDE + i, PAIR_STRIDE, inverse + j * PAIR_STRIDE + i,
                                   PAIR_STRIDE, 16, x);
#pragma unroll
            for (int e = 0; e < 8; e++)
                inverse[(i + row_within(e)) * PAIR_STRIDE + j + column_within(e)] = -x[e / 4][e % 4];
        }
        __syncthreads();
    }
    for (int e = (int)threadIdx.x; e < CHUNK * CHUNK; e += DELTA_THREADS)
        if (e % CHUNK / 16 > e / CHUNK / 16)
            inverse[e / CHUNK * PAIR_STRIDE + e % CHUNK] = 0;
    __syncthreads();
}
