/*
 * Shared by the kernels of the delta rule: gates of tokens; and for those in chunks (heads.cu), passes and chunks.
 */
#pragma once

#include "exec/cuda/base/common.cuh"

#define CHUNK RP_DELTA_CHUNK
#define DIM 128              /* Dk and Dv of heads.cu; the most Dk that there is */
#define FACTORS 8            /* of a token and value head (heads.cuh) */

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

/* The kernels of heads.cu: whether they have that shape, whether they have these arrays, too, and a pass of them. */
static inline bool
delta_has_shape_of_heads(const RpDeltaArgs *args)
{
    return args->dtype == RP_DTYPE_BF16 && args->key_dim == DIM && args->value_dim == DIM;
}

bool delta_is_of_heads(const RpDeltaArgs *args);
cudaError_t delta_run_heads(const Heads &rule, unsigned chunks, cudaStream_t stream);
