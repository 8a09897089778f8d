/*
 * The inverse of a chunk's 1 + A in shared memory. Its products are made by mma.m16n8k8 of tf32 (PTX ISA, sm_80 and
 * later). Fragments, with g = lane / 4, t = lane % 4:
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

#define PREPARE_THREADS 256
#define PAIR_STRIDE (CHUNK + 4) /* floats from a row of pairs to the next */

/* Which half of a chunk's tokens the warp has. */
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

/* A number in tf32, and the rest of it. */
template <int N> struct Halves {
    uint32_t high[N], low[N];

    __device__ __forceinline__ void set(int i, float x)
    {
        high[i] = to_tf32(x);
        low[i] = to_tf32(x - __uint_as_float(high[i]));
    }
};

/* c += a b, of squares of 16 x 16 within rows of PAIR_STRIDE */
__device__ __forceinline__ void
multiply(const float *a, const float *b, float (&c)[2][4])
{
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;

    for (int k = 0; k < 16; k += 8) {
        Halves<4> left;

#pragma unroll
        for (int i = 0; i < 4; i++)
            left.set(i, a[(g + i % 2 * 8) * PAIR_STRIDE + k + t + i / 2 * 4]);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            Halves<2> right;

#pragma unroll
            for (int i = 0; i < 2; i++)
                right.set(i, b[(k + t + i * 4) * PAIR_STRIDE + j * 8 + g]);
            multiply_add_tf32(c[j], left.low, right.high);
            multiply_add_tf32(c[j], left.high, right.low);
            multiply_add_tf32(c[j], left.high, right.high);
        }
    }
}

/* inverse = 1 / (1 + A), of A below the diagonal, both [64,PAIR_STRIDE]. Squares of 16 x 16 on the diagonal by
 * substitution, then those beside them, a warp a square: X[i,j] = -X[i,i] sum_k A[i,k] X[k,j], whose sum stands at
 * [j,i] meanwhile. */
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
                multiply(a + i * PAIR_STRIDE + k, inverse + k * PAIR_STRIDE + j, sum);
#pragma unroll
            for (int e = 0; e < 8; e++)
                inverse[(j + row_within(e)) * PAIR_STRIDE + i + column_within(e)] = sum[e / 4][e % 4];
            __syncwarp();
            multiply(inverse + i * PAIR_STRIDE + i, inverse + j * PAIR_STRIDE + i, x);
#pragma unroll
            for (int e = 0; e < 8; e++)
                inverse[(i + row_within(e)) * PAIR_STRIDE + j + column_within(e)] = -x[e / 4][e % 4];
        }
        __syncthreads();
    }
    for (int e = (int)threadIdx.x; e < CHUNK * CHUNK; e += PREPARE_THREADS)
        if (e % CHUNK / 16 > e / CHUNK / 16)
            inverse[e / CHUNK * PAIR_STRIDE + e % CHUNK] = 0;
    __syncthreads();
}
