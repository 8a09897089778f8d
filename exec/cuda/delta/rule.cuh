/*
 * Shared by the kernels of the delta rule: chunks, their gates, and rows of q and k in shared memory.
 */
#pragma once

#include "exec/cuda/base/common.cuh"

#define CHUNK RP_DELTA_CHUNK
#define DELTA_THREADS 256
#define WARPS (DELTA_THREADS / 32)
#define WARP_ROWS (CHUNK / WARPS) /* of a warp */
#define COLUMNS 32           /* of a slice */
#define MOST_DIM 128         /* Dk; and of a group of columns in finish */
#define GROUPS (MOST_DIM / 32)
#define KEY_STRIDE (MOST_DIM + 4)
#define PAIR_STRIDE (CHUNK + 4)
#define SLICE_STRIDE (COLUMNS + 4)
#define FACTORS 7            /* of a token and value head (heads.cuh) */
#define PASS_BYTES ((size_t)512 << 20) /* of a pass's workspace, unless one key head needs more */

template <typename T> struct Rule {
    RpDeltaArgs args;
    size_t first_key, keys; /* of the pass */
    size_t heads;           /* its value heads */
    size_t columns;         /* of qkv */
    float *pairs, *inverse; /* [T,heads,64]: P, 1 / (1 + A) */
    float *u, *right;       /* [T,heads,Dv]: u, dR */
    float *states, *d_states; /* [T / 64 + 1,heads,Dk,Dv] */
    float *factors;           /* [FACTORS,heads,T] */
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
    if (i < 32) {
        const double own = (double)gates->g[2 * i];
        double sum = own + (double)gates->g[2 * i + 1];

#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, sum, step);

            sum += i >= step ? other : 0.0;
        }
        const double earlier = __shfl_up_sync(0xffffffffu, sum, 1);

        gates->c[2 * i] = (i > 0 ? earlier : 0.0) + own;
        gates->c[2 * i + 1] = sum;
        if (i == 31)
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

/* Gradients of a chunk's gates, in shared memory. */
struct GateSums {
    double c[CHUNK];
    float beta[CHUNK], log[CHUNK], bias[CHUNK];
    float q_scale[CHUNK], k_scale[CHUNK];
    float warps[WARPS];
};

/* Writes db and da of a head, and its partial sums. */
template <typename T>
__device__ __forceinline__ void
write_gates(const Rule<T> &rule, size_t head, const Piece &piece, const Gates &gates,
            GateSums *sums)
{
    const RpDeltaArgs &args = rule.args;
    float *partials = rule.partials + (size_t)blockIdx.x * 2 * args.value_heads;
    const int i = threadIdx.x;

    __syncthreads();
    if (i < 32) { /* sums from the last token on */
        const double later = 2 * i + 1 < piece.n ? sums->c[2 * i + 1] : 0.0;
        double sum = later + (2 * i < piece.n ? sums->c[2 * i] : 0.0);

#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_down_sync(0xffffffffu, sum, step);

            sum += i + step < 32 ? other : 0.0;
        }
        const double behind = __shfl_down_sync(0xffffffffu, sum, 1);

        sums->c[2 * i] = sum;
        sums->c[2 * i + 1] = (i < 31 ? behind : 0.0) + later;
    }
    __syncthreads();
    if (i < piece.n) {
        const size_t at = (piece.first + i) * args.value_heads + head;
        const float rate = expf(to_float(((const T *)args.log)[head]));
        const float x =
            to_float(((const T *)args.a)[at]) + to_float(((const T *)args.bias)[head]);
        const float sum = (float)sums->c[i], da = -sum * rate / (1.0f + expf(-x));

        sums->log[i] = sum * gates.g[i];
        sums->bias[i] = da;
        ((T *)args.d_a)[at] = from_float<T>(da);
        ((T *)args.d_b)[at] = from_float<T>(sums->beta[i] * (1.0f - gates.beta[i]));
    }
    __syncthreads();
    if (i < 32) {
        const bool own = i < piece.n, more = i + 32 < piece.n;
        const float log = sum_lanes<32>((own ? sums->log[i] : 0.0f) + (more ? sums->log[i + 32] : 0.0f));
        const float bias = sum_lanes<32>((own ? sums->bias[i] : 0.0f) + (more ? sums->bias[i + 32] : 0.0f));

        if (i == 0) {
            partials[head] = log;
            partials[args.value_heads + head] = bias;
        }
    }
    __syncthreads();
}

/* One launch, with the shared memory that it needs. */
template <typename T>
static cudaError_t
delta_launch(void (*kernel)(const Rule<T>), dim3 grid, unsigned threads, size_t bytes, const Rule<T> &rule,
             cudaStream_t stream)
{
    const cudaError_t status = cudaFuncSetAttribute(
        (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

    if (status != cudaSuccess)
        return status;
    void *pointers[] = {(void *)&rule};

    return cudaLaunchKernel((const void *)kernel, grid, dim3(threads), pointers, bytes, stream);
}

/* The kernels of heads.cu: whether they have that shape, and a pass of them. */
bool delta_is_of_heads(const RpDeltaArgs *args);
cudaError_t delta_run_heads(const Rule<__nv_bfloat16> &rule, unsigned chunks, cudaStream_t stream);
