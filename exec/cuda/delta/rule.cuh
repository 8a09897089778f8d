/*
 * Shared by the kernels of the delta rule: chunks, their gates, and rows of q and k in shared memory.
 */
#pragma once

#include "exec/cuda/base/common.cuh"

#define CHUNK RP_DELTA_CHUNK
#define DELTA_THREADS 256
#define WARPS (DELTA_THREADS / 32)
#define ROWS (CHUNK / WARPS) /* of a warp */
#define COLUMNS 32           /* of a slice */
#define MOST_DIM 128         /* Dk; and of a group of columns in finish */
#define GROUPS (MOST_DIM / 32)
#define KEY_STRIDE (MOST_DIM + 4)
#define PAIR_STRIDE (CHUNK + 4)
#define SLICE_STRIDE (COLUMNS + 4)
#define PASS_BYTES ((size_t)256 << 20) /* of a pass's workspace, unless one key head needs more */

template <typename T> struct Rule {
    RpDeltaArgs args;
    size_t first_key, keys; /* of the pass */
    size_t heads;           /* its value heads */
    size_t columns;         /* of qkv */
    float *pairs, *inverse; /* [T,heads,64]: P, 1 / (1 + A) */
    float *u, *right;       /* [T,heads,Dv]: u, dR */
    float *states, *d_states; /* [T / 64 + 1,heads,Dk,Dv] */
    float *partials;          /* [chunks,2 Hv] */
    bool trains;              /* states: backward */
};

/* A chunk of a sequence. */
struct Piece {
    size_t first;
    int n;              /* tokens; 0: there is none */
    bool begins, ends;  /* the sequence */
};

__device__ __forceinline__ Piece
find_piece(const RpDeltaArgs &args, size_t index)
{
    for (size_t s = 0; s < args.sequences; s++) {
        const size_t begin = (size_t)args.starts[s], end = (size_t)args.starts[s + 1];
        const size_t chunks = (end - begin + CHUNK - 1) / CHUNK;

        if (index < chunks) {
            const size_t first = begin + index * CHUNK;

            return {first, (int)min((size_t)CHUNK, end - first), index == 0, index + 1 == chunks};
        }
        index -= chunks;
    }
    return {0, 0, false, false};
}

/* Values that are made of a chunk's gates. */
struct Gates {
    double c[CHUNK];
    float g[CHUNK], beta[CHUNK], before[CHUNK], left[CHUNK]; /* exp(c), exp(c[last] - c) */
    float all;                                               /* exp(c[last]) */
};

/* Tokens behind the last have no rate, and forget nothing. */
template <typename T>
__device__ __forceinline__ void
load_gates(const Rule<T> &rule, size_t head, const Piece &piece, Gates *gates)
{
    const RpDeltaArgs &args = rule.args;
    const int i = threadIdx.x;

    __syncthreads();
    if (i < CHUNK) {
        const size_t at = (piece.first + i) * args.value_heads + head;
        const float rate = expf(to_float(((const T *)args.log)[head]));
        const float bias = to_float(((const T *)args.bias)[head]);

        gates->beta[i] = gates->g[i] = 0;
        if (i < piece.n) {
            const float x = to_float(((const T *)args.a)[at]) + bias;

            gates->beta[i] = 1.0f / (1.0f + expf(-to_float(((const T *)args.b)[at])));
            gates->g[i] = -rate * (fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))));
        }
    }
    __syncthreads();
    if (i == 0) {
        double sum = 0;

        for (int t = 0; t < CHUNK; t++)
            gates->c[t] = sum += (double)gates->g[t];
        gates->all = expf((float)sum);
    }
    __syncthreads();
    if (i < CHUNK) {
        gates->before[i] = expf((float)gates->c[i]);
        gates->left[i] = expf((float)(gates->c[CHUNK - 1] - gates->c[i]));
    }
    __syncthreads();
}

__device__ __forceinline__ float
length_of_queries(const RpDeltaArgs &args)
{
    return 1.0f / sqrtf((float)args.key_dim);
}

/* Rows of q or k, normed, [64,KEY_STRIDE]; zeros beyond. @scales: (nullable): [64]: length / |x| */
template <typename T>
__device__ __forceinline__ void
load_keys(const Rule<T> &rule, const Piece &piece, size_t column, float length, float *rows,
          float *scales)
{
    const int lane = threadIdx.x % 32, D = (int)rule.args.key_dim;

    for (int i = threadIdx.x / 32; i < CHUNK; i += WARPS) {
        const T *x = (const T *)rule.args.qkv + (piece.first + i) * rule.columns + column;
        float values[GROUPS], squares = 0;

#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            const int d = lane + 32 * g;

            values[g] = i < piece.n && d < D ? to_float(x[d]) : 0.0f;
            squares = fmaf(values[g], values[g], squares);
        }
        const float scale = length / sqrtf(sum_lanes<32>(squares) + RP_DELTA_EPSILON);

#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            rows[i * KEY_STRIDE + lane + 32 * g] = values[g] * scale;
        if (scales && lane == 0)
            scales[i] = scale;
    }
}

template <typename T>
__device__ __forceinline__ size_t
key_of(const Rule<T> &rule, size_t head)
{
    return head / (rule.args.value_heads / rule.args.key_heads);
}

template <typename T>
__device__ __forceinline__ void
load_queries_of(const Rule<T> &rule, const Piece &piece, size_t key, float *rows, float *scales)
{
    load_keys(rule, piece, key * rule.args.key_dim, length_of_queries(rule.args), rows, scales);
}

template <typename T>
__device__ __forceinline__ void
load_keys_of(const Rule<T> &rule, const Piece &piece, size_t key, float *rows, float *scales)
{
    load_keys(rule, piece, (rule.args.key_heads + key) * rule.args.key_dim, 1.0f, rows, scales);
}
