/*
 * Shared by the kernels of the delta rule: gates of tokens; and for those in chunks (heads.cu), chunks and their gates.
 */
#pragma once

#include "exec/cuda/base/common.cuh"

#define CHUNK RP_DELTA_CHUNK
#define DIM 128              /* Dk and Dv of heads.cu; the most Dk that there is */
#define FACTORS 7            /* of a token and value head (heads.cuh) */

typedef __nv_bfloat16 bf16;

/* A pass over value heads in chunks. */
struct Heads {
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

__device__ __forceinline__ float
length_of_queries(const RpDeltaArgs &args)
{
    return 1.0f / sqrtf((float)args.key_dim);
}

/* The key head of a value head. */
__device__ __forceinline__ size_t
key_of(const RpDeltaArgs &args, size_t head)
{
    return head / (args.value_heads / args.key_heads);
}

/* The gates of a token: beta; g = -rate softplus(x) */
struct Gate {
    float beta, g, rate, x;
};

template <typename T>
__device__ __forceinline__ Gate
gate_of(const RpDeltaArgs &args, size_t token, size_t head)
{
    const size_t at = token * args.gate_row + head;
    Gate gate;

    gate.rate = expf(to_float(((const T *)args.log)[head]));
    gate.x = to_float(((const T *)args.a)[at]) + to_float(((const T *)args.bias)[head]);
    gate.beta = 1.0f / (1.0f + expf(-to_float(((const T *)args.b)[at])));
    gate.g = -gate.rate * (fmaxf(gate.x, 0.0f) + log1pf(expf(-fabsf(gate.x))));
    return gate;
}

/* Writes da and db of a token, and its parts of d_log and d_bias. @dg: g's gradient; @rate: beta's, times beta */
template <typename T>
__device__ __forceinline__ void
write_gate(const RpDeltaArgs &args, size_t token, size_t head, const Gate &gate, float dg, float rate, float *log,
           float *bias)
{
    const size_t at = token * args.gate_row + head;
    const float da = -dg * gate.rate / (1.0f + expf(-gate.x));

    *log = dg * gate.g;
    *bias = da;
    ((T *)args.d_a)[at] = from_float<T>(da);
    ((T *)args.d_b)[at] = from_float<T>(rate * (1.0f - gate.beta));
}

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
__device__ __forceinline__ void
load_gates(const Heads &rule, size_t head, const Piece &piece, Gates *gates)
{
    const int i = threadIdx.x;

    __syncthreads();
    if (i < CHUNK) {
        gates->beta[i] = gates->g[i] = 0;
        if (i < piece.n) {
            const Gate gate = gate_of<bf16>(rule.args, piece.first + i, head);

            gates->beta[i] = gate.beta;
            gates->g[i] = gate.g;
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

/* Gradients of a chunk's gates, in shared memory. */
struct GateSums {
    double c[CHUNK];
    float beta[CHUNK], log[CHUNK], bias[CHUNK];
    float q_scale[CHUNK], k_scale[CHUNK];
};

/* Writes db and da of a head, and its partial sums. */
__device__ __forceinline__ void
write_gates(const Heads &rule, size_t head, const Piece &piece, const Gates &gates, GateSums *sums)
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
        Gate gate = gate_of<bf16>(args, piece.first + i, head);

        gate.beta = gates.beta[i];
        gate.g = gates.g[i];
        write_gate<bf16>(args, piece.first + i, head, gate, (float)sums->c[i], sums->beta[i], &sums->log[i],
                         &sums->bias[i]);
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

/* The kernels of heads.cu: whether they have that shape, whether they have these arrays, too, and a pass of them. */
static inline bool
delta_has_shape_of_heads(const RpDeltaArgs *args)
{
    return args->dtype == RP_DTYPE_BF16 && args->key_dim == DIM && args->value_dim == DIM;
}

bool delta_is_of_heads(const RpDeltaArgs *args);
cudaError_t delta_run_heads(const Heads &rule, unsigned chunks, cudaStream_t stream);
