/**
 * Arguments of the kernels of gated DeltaNet and gated attention (exec/network/delta.c), as exec/kernels/args.h has the
 * others.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/dtype.h"

/* clang-format off */
#define RP_DELTA_KERNELS(K, W)                                                                     \
    K(conv_forward, RpConvArgs, "convolution forward")                                             \
    W(conv_backward, RpConvArgs, "convolution backward")                                           \
    W(delta_forward, RpDeltaArgs, "delta rule forward")                                            \
    W(delta_backward, RpDeltaArgs, "delta rule backward")                                          \
    K(gated_norm_forward, RpGatedNormArgs, "gated norm forward")                                   \
    W(gated_norm_backward, RpGatedNormArgs, "gated norm backward")                                 \
    K(head_gate_forward, RpHeadGateArgs, "gate of heads forward")                                  \
    K(head_gate_backward, RpHeadGateArgs, "gate of heads backward")                                \
    K(row_gate_forward, RpRowGateArgs, "gate of rows forward")                                     \
    K(row_gate_backward, RpRowGateArgs, "gate of rows backward")                                   \
    K(columns, RpColumnsArgs, "copying columns")
/* clang-format on */

/*
 * A causal convolution of each column by itself, then SiLU; x is 0 before a sequence's first token, u is the next.
 * forward:   z[t,c] = sum_k weight[c,k] x[t - K + 1 + k,c];  y[t,c] = z s,  s = 1 / (1 + exp(-z))
 * backward:  e[t,c] = dy[t,c] s (1 + z (1 - s));  dx[t,c] = sum_k weight[c,k] e[t + K - 1 - k,c]
 *            d_weight[c,k] += sum_t e[t,c] x[t - K + 1 + k,c]
 * Source: transformers qwen3_5, causal_conv1d_fn
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, sequences, n;
    size_t kernel;         /* K, at most RP_MOST_CONV */
    const int32_t *starts; /* [sequences+1]: first tokens; the last is T */
    const void *x;         /* [T,n] */
    const void *weight;    /* [n,K] */
    void *y;               /* forward: [T,n] */
    const void *dy;        /* backward: [T,n] */
    void *dx;              /* backward: [T,n] */
    float *d_weight;       /* backward: [n,K], +=, or NULL */
    void *workspace;       /* backward */
} RpConvArgs;

#define RP_MOST_CONV 16

/*
 * The gated delta rule. With state S [Dk,Dv] of each value head and sequence, 0 at its first token, and the key head
 * value head / (Hv / Hk), in fp32:
 *   q' = q / |q| / sqrt(Dk);  k' = k / |k|, where |x| = sqrt(sum x^2 + 1e-6)
 *   beta = 1 / (1 + exp(-b));  g = -exp(log) softplus(a + bias)
 *   S = exp(g) S + k' (beta (v - exp(g) S^T k'))^T;   out = S^T q'
 * The same in chunks of RP_DELTA_CHUNK tokens. c: g's sums from the chunk's first token on; S: before it:
 *   A[i,j] = beta[i] (k'[i] . k'[j]) exp(c[i] - c[j]), j < i;   P[i,j] = (q'[i] . k'[j]) exp(c[i] - c[j]), j <= i
 *   (1 + A) u = beta (v - exp(c) k' S);   out = exp(c) q' S + P u
 *   S of the next = exp(c[last]) S + sum_i exp(c[last] - c[i]) k'[i] u[i]^T
 * backward: of everything, last to first, with states made anew; += only of d_log and d_bias.
 * Source: Yang et al. 2024 (Gated Delta Networks), section 3.3; transformers qwen3_5, torch_chunk_gated_delta_rule
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, sequences, max_length; /* max_length >= each sequence's */
    size_t key_heads, value_heads;        /* the former divides the latter */
    size_t key_dim, value_dim;            /* Dk, Dv */
    const int32_t *starts;                /* [sequences+1]: first tokens; the last is T */
    const void *qkv;                      /* [T,2 Hk Dk + Hv Dv]: q, k and v of a token */
    size_t gate_row;        /* elements from a token of b, a, d_b and d_a to the next */
    const void *b, *a;      /* [T,Hv] */
    const void *log, *bias; /* [Hv] */
    void *out;              /* forward: [T,Hv,Dv] */
    const void *d_out;      /* backward: [T,Hv,Dv] */
    void *d_qkv;            /* backward: as qkv */
    void *d_b, *d_a;        /* backward: [T,Hv] */
    float *d_log, *d_bias;  /* backward: [Hv], +=, or NULL */
    void *workspace;
} RpDeltaArgs;

#define RP_DELTA_CHUNK 64
#define RP_DELTA_EPSILON 1e-6f

static inline size_t
rp_delta_columns(const RpDeltaArgs *args)
{
    return 2 * args->key_heads * args->key_dim + args->value_heads * args->value_dim;
}

/*
 * RMSNorm, then a gate; h = x rstd, s = silu(gate) as in RpSwigluArgs.
 * forward:   y[r,i] = weight[i] h[r,i] s[r,i]
 * backward:  f = dy weight s;  dx = rstd (f - h mean_j f h);  d_gate = dy weight h silu'(gate)
 *            d_weight[i] += sum_r dy h s
 */
typedef struct {
    RpDtype dtype;
    size_t rows, n;
    float epsilon;
    const void *x, *gate; /* [rows,n] */
    const void *weight;   /* [n] */
    void *y;              /* forward: [rows,n]; may be x or gate */
    const void *dy;       /* backward: [rows,n] */
    void *dx, *d_gate;    /* backward: [rows,n]; dx may be dy */
    float *d_weight;      /* backward: [n], +=, or NULL */
    void *workspace;      /* backward */
} RpGatedNormArgs;

/*
 * forward:   y[r,i] = x[r,i] s[r,i], s = 1 / (1 + exp(-gate))
 * backward:  dx = dy s;  d_gate = dy x s (1 - s)
 */
typedef struct {
    RpDtype dtype;
    size_t rows, n;
    size_t gate_stride; /* elements from a row of gate and d_gate to the next */
    const void *x;      /* [rows,n] */
    const void *gate;
    void *y;        /* forward: [rows,n]; may be x */
    const void *dy; /* backward: [rows,n] */
    void *dx;       /* backward: [rows,n]; may be dy */
    void *d_gate;   /* backward */
} RpHeadGateArgs;

/*
 * One gate a row: s[r] = 1 / (1 + exp(-gate[r])).
 * forward:   y[r,i] = x[r,i] s[r]
 * backward:  y as forward;  dx = dy s;  d_gate[r] = s (1 - s) sum_i dy[r,i] x[r,i]
 */
typedef struct {
    RpDtype dtype;
    size_t rows, n;
    const void *x;    /* [rows,n] */
    const void *gate; /* [rows] */
    void *y;          /* [rows,n]; may be x */
    const void *dy;   /* backward: [rows,n] */
    void *dx;         /* backward: [rows,n]; may be dy */
    void *d_gate;     /* backward: [rows] */
} RpRowGateArgs;

/* y[r,i] = x[r,i], i < n: rows stand so many elements apart. */
typedef struct {
    RpDtype dtype;
    size_t rows, n;
    size_t x_stride, y_stride;
    const void *x;
    void *y;
} RpColumnsArgs;
