/**
 * The kernels: one row an operation, and the arguments of each. Plain C that C++ reads as well, so
 * that hosts and GPUs share it. A row is (operation, arguments, its words in messages); rows of the
 * second kind, W, have a function that returns the bytes of their workspace.
 *
 * The tables of a backend (exec/kernels/kernels.h) are made of these rows, and so are the
 * declarations of exec/host's and exec/cuda's functions: docs/how-to.md.
 *
 * Common to all:
 *  - Arrays are row-major without gaps, last index fastest; T tokens, H heads, D head size. All
 *    pointers are of the backend's memory, workspaces at multiples of 64 bytes, arrays at
 *    multiples of their element.
 *  - `dtype`: storage of all arrays that are not declared float, int32_t or double: activations,
 *    their gradients, and weights. Arithmetic and sums are fp32 (double where said so); values
 *    stored as bf16 or fp16 are rounded once, at the end.
 *  - Gradients of weights are fp32 and `+=`, so that they add up over micro-batches; everything
 *    else is `=` unless said otherwise.
 *  - The order of every sum depends on shapes only: the same arguments give the same bits.
 *  - Outputs may not overlap inputs, except where "may be" names the input.
 *  - A function of a workspace reads sizes only (no pointer) and returns bytes; 0: `workspace` may
 *    be NULL. A workspace is free again for the next operation of the stream.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/dtype.h"
#include "core/lowbit/lowbit.h"
#include "exec/kernels/decode-args.h"
#include "exec/kernels/delta-args.h"
#include "exec/kernels/expert-args.h"
#include "exec/kernels/preference-args.h"

/* clang-format off */
/* Kernels that a vendor's library may do: a backend's function gets the stream that holds it. */
#define RP_LIBRARY_KERNELS(K, W)                                                                   \
    W(matmul, RpMatmulArgs, "matmul")                                                              \
    W(attention_forward, RpAttentionArgs, "attention forward")                                     \
    W(attention_backward, RpAttentionArgs, "attention backward")

/* Kernels that are launched. */
#define RP_LAUNCHED_KERNELS(K, W)                                                                  \
    W(grouped_matmul, RpGroupedMatmulArgs, "grouped matmul")                                       \
    RP_EXPERT_KERNELS(K, W)                                                                        \
    RP_DELTA_KERNELS(K, W)                                                                         \
    RP_DECODE_KERNELS(K, W)                                                                        \
    RP_PREFERENCE_KERNELS(K, W)                                                                    \
    K(bias_forward, RpBiasArgs, "bias forward")                                                    \
    W(bias_backward, RpBiasArgs, "bias backward")                                                  \
    K(rmsnorm_forward, RpRmsnormArgs, "rmsnorm forward")                                           \
    W(rmsnorm_backward, RpRmsnormArgs, "rmsnorm backward")                                         \
    K(rope_forward, RpRopeArgs, "rope forward")                                                    \
    K(rope_backward, RpRopeArgs, "rope backward")                                                  \
    K(norm_rope_forward, RpNormRopeArgs, "norm and rope forward")                                  \
    W(norm_rope_backward, RpNormRopeArgs, "norm and rope backward")                                \
    K(sink_forward, RpSinkArgs, "sink forward")                                                    \
    W(sink_backward, RpSinkArgs, "sink backward")                                                  \
    K(swiglu_forward, RpSwigluArgs, "swiglu forward")                                              \
    K(swiglu_backward, RpSwigluArgs, "swiglu backward")                                            \
    K(embedding_forward, RpEmbeddingArgs, "embedding forward")                                     \
    W(embedding_backward, RpEmbeddingArgs, "embedding backward")                                   \
    W(cross_entropy, RpCrossEntropyArgs, "cross entropy")                                          \
    W(sum_squares, RpSumSquaresArgs, "sum of squares")                                             \
    K(convert, RpElementsArgs, "convert") /* y = x; a plain copy if the storages are the same */   \
    K(expand, RpExpandArgs, "expand")     /* packed weights */                                     \
    K(largest, RpLargestArgs, "largest magnitude")                                                 \
    K(quantise, RpQuantiseArgs, "quantise")                                                        \
    K(add, RpElementsArgs, "add")         /* y = x + b */                                          \
    K(gather, RpGatherArgs, "gather")     /* sums of rounds */                                     \
    K(scatter, RpScatterArgs, "scatter")                                                           \
    K(fill, RpFillArgs, "fill")                                                                    \
    K(dropout, RpDropoutArgs, "dropout")                                                           \
    K(noise, RpNoiseArgs, "noise")                                                                 \
    K(find_broken, RpFindBrokenArgs, "looking at a layer's output")                                \
    K(break_sum, RpBreakSumArgs, "looking at the loss")                                            \
    K(fetch, RpFetchArgs, "fetching targets")                                                      \
    K(custom_layer, RpCustomLayerArgs, "a layer of the program")                                   \
    K(custom_loss, RpCustomLossArgs, "a loss of the program")
/* clang-format on */

#define RP_KERNELS(K, W) RP_LIBRARY_KERNELS(K, W) RP_LAUNCHED_KERNELS(K, W)

/* Layout of a matmul's operands in memory; always C[m,n] = sum over k. */
typedef enum {
    RP_MATMUL_NT, /* A[m,k] B[n,k]: Y = X W^T, forward with W[out,in] as Hugging Face has it */
    RP_MATMUL_NN, /* A[m,k] B[k,n]: dX = dY W, input gradient */
    RP_MATMUL_TN  /* A[k,m] B[k,n]: dW = dY^T X, weight gradient */
} RpMatmulLayout;

/* C = A B, or C += A B if @accumulate, or C = @residual + A B. Storage of each may differ; fp32 sums, but fp16 ones
 * allowed with @half_sums where A, B and C are fp16 (GeForce cards are faster so). With @bias: C[i,j] = sum over k +
 * bias[j], added in fp32 before C is rounded; so is a residual, or the C that it adds to. With @scale, not with @bias:
 * the sum over k times it, before anything is added. A and B may both be fp8, NT alone, m, n and k multiples of 16,
 * without @scale: sums are those of fp8 values, times a_scale[0] b_scale[0]. With @half_sums a GPU's may be less exact
 * than fp32's. A, B and C may be columns of wider matrices, C without @bias; a residual has gaps as C does. */
typedef struct {
    RpMatmulLayout form;
    size_t m, n, k;
    const void *a, *b;
    void *c;
    const void *bias;     /* [n], stored as C is; or NULL */
    const void *residual; /* [m,n], the same, not with @accumulate; or NULL */
    RpDtype a_dtype, b_dtype, c_dtype;
    bool accumulate;
    bool half_sums; /* not with @scale */
    /* NT: each row of C is the same whatever m is, as generating needs it; made for few rows */
    bool alone;
    /* kernel variant among the backend's for such a shape; 0, or none such: the first */
    uint8_t variant;
    float scale;                         /* 0: none */
    size_t a_stride, b_stride, c_stride; /* elements from a row to the next; 0: no gaps between */
    const float *a_scale, *b_scale;      /* [1], for fp8, at multiples of 16 bytes; else not read */
    void *workspace;
} RpMatmulArgs;

static inline size_t
rp_matmul_a_stride(const RpMatmulArgs *args)
{
    return args->a_stride > 0 ? args->a_stride : args->form == RP_MATMUL_TN ? args->m : args->k;
}

static inline size_t
rp_matmul_b_stride(const RpMatmulArgs *args)
{
    return args->b_stride > 0 ? args->b_stride : args->form == RP_MATMUL_NT ? args->k : args->n;
}

static inline size_t
rp_matmul_c_stride(const RpMatmulArgs *args)
{
    return args->c_stride > 0 ? args->c_stride : args->n;
}

/*
 * A matrix for each of E experts. Rows are sorted by expert: expert e has those from offsets[e] to
 * offsets[e+1]. Only the backend's kernels read offsets; a launch depends on sizes alone.
 *   NT:  C[r,n] = A[r,k] B[e]^T, B[E,n,k]      NN:  C[r,n] = A[r,k] B[e], B[E,k,n]
 *   TN:  C[e] = sum over e's rows of A[r,m]^T B[r,n], C[E,m,n]
 * bias, scale, accumulate, half_sums and storages as in RpMatmulArgs, with a bias for each expert
 * and none in form TN nor with @accumulate. C[e] of an expert without rows is 0, or stays if
 * @accumulate.
 */
typedef struct {
    RpMatmulLayout form;
    size_t rows, experts;
    size_t m; /* TN only */
    size_t n;
    size_t k;               /* NT and NN only */
    const int32_t *offsets; /* [E+1], ascending from 0 to rows */
    const void *a, *b;
    void *c;
    const void *bias; /* [E,n], stored as C is; or NULL */
    RpDtype a_dtype, b_dtype, c_dtype;
    bool accumulate;
    bool half_sums; /* not with @scale */
    bool alone;     /* NT, NN: each row of C is the same whatever other rows there are */
    float scale;    /* 0: none */
    void *workspace;
} RpGroupedMatmulArgs;

/* forward:  y[t,o] += bias[o], for stored values: a matmul adds its own bias;
 * backward:  d_bias[o] += sum_t dy[t,o] */
typedef struct {
    RpDtype dtype;
    size_t tokens, n;
    const void *bias; /* forward: [n] */
    void *y;          /* forward: [tokens,n] */
    const void *dy;   /* backward: [tokens,n] */
    float *d_bias;    /* backward: [n], += */
    void *workspace;  /* backward */
} RpBiasArgs;

/*
 * forward:   rstd[r] = 1 / sqrt(mean_i x[r,i]^2 + epsilon);  y[r,i] = weight[i] x[r,i] rstd[r]
 * backward:  h[r,i] = x[r,i] rstd[r],  g[r,i] = dy[r,i] weight[i]
 *            dx[r,i] = rstd[r] (g[r,i] - h[r,i] mean_j g[r,j] h[r,j]) + d_residual[r,i]
 *            d_weight[i] += sum_r dy[r,i] h[r,i]
 * For q/k norm: rows = T H, n = D. With @shift weight[i] + shift stands for weight[i].
 * Source: Zhang & Sennrich 2019, equation 4; transformers Qwen3RMSNorm, LlamaRMSNorm
 */
typedef struct {
    RpDtype dtype;
    size_t rows, n;
    float epsilon;
    float shift;        /* 1 where norms are zero-centred, else 0 */
    const void *x;      /* [rows,n] */
    const void *weight; /* [n] */
    void *y;            /* forward: [rows,n]; may be x */
    float *rstd;        /* [rows]; forward: out, backward: in */

    const void *dy;         /* backward: [rows,n] */
    const void *d_residual; /* backward: [rows,n] or NULL: gradient that reaches x directly */
    void *dx;               /* backward: [rows,n]; may be dy or d_residual */
    float *d_weight;        /* backward: [n], +=, or NULL */
    void *workspace;        /* backward */
    float *largest;         /* NULL, or as RpLargestArgs has it: of y, backward of dx */
} RpRmsnormArgs;

/*
 * With c, s = table[positions[t]], h = R/2, for i < h (halves of R elements of a head, not neighbours); others stay:
 * forward:   y[i] = x[i] c[i] - x[i+h] s[i];   y[i+h] = x[i+h] c[i] + x[i] s[i]
 * backward:  the transpose, which turns by the opposite angle: x = dy in, y = dx out.
 * Source: Su et al. 2021, §3.4.2; transformers apply_rotary_pos_emb
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, heads, head_size;
    size_t rotary;                /* R, even: the first elements of a head; 0: all */
    const int32_t *positions;     /* [tokens], each a row of the tables */
    const float *cosines, *sines; /* [positions,R/2]: rp_rope_table() */
    size_t row_heads; /* from a token of x, backward of y as well, to the next; 0: heads */
    const void *x;    /* [T,H,D] */
    void *y;          /* [T,H,D]; may be x, whose rows are then its own */
} RpRopeArgs;

/*
 * q/k norm, then rope, in one pass over memory: a head is a row of the norm, n = D.
 * forward:   rmsnorm_forward, then rope_forward
 * backward:  rope_backward, then rmsnorm_backward
 * Values between the two are rounded to the storage, as if they ran one after the other.
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, heads, head_size;
    size_t rotary; /* as in RpRopeArgs */
    float epsilon;
    float shift;                  /* as in RpRmsnormArgs */
    const int32_t *positions;     /* [tokens], each a row of the tables */
    const float *cosines, *sines; /* [positions,R/2]: rp_rope_table() */
    size_t
        row_heads; /* from a token of x, dy and dx to the next, not of y; 0: heads. Else D <= 256 */
    const void *x; /* [T,H,D] */
    const void *weight; /* [D] */
    void *y;            /* forward: [T,H,D]; may be x, without row_heads */
    float *rstd;        /* [T,H]; forward: out, backward: in */
    const void *dy;     /* backward: [T,H,D] */
    void *dx;           /* backward: [T,H,D]; may be dy */
    float *d_weight;    /* backward: [D], +=, or NULL */
    void *workspace;    /* backward */
    float *largest;     /* NULL, or as RpLargestArgs has it: backward, of dx */
} RpNormRopeArgs;

/* Owner of the attention kernels that run: the backend itself, or a library; each has a row of
 * attentions[] (exec/kernels/kernels.c). */
typedef enum {
    RP_ATTENTION_BUILTIN,
    RP_ATTENTION_CUDNN, /* forward; backward is the backend's own */
    RP_N_ATTENTIONS
} RpAttentionChoice;

/*
 * Per sequence and query head, query i of its length L, key j, kv head = h / (heads / kv_heads):
 * i sees j if i - window < j <= i (window 0: all j <= i); behind a gap of keys, if i >= its end, no j within it.
 * forward:   S = scale q k^T;  lse[i] = log sum_j exp S[i,j]
 *            out[i] = sum_j exp(S[i,j] - lse[i]) v[j]
 * backward:  P = exp(S - lse);  delta[i] = d_out[i] . out[i]
 *            Z[i,j] = scale P[i,j] (d_out[i] . v[j] - delta[i]);  dq[i] = sum_j Z[i,j] k[j]
 *            dk[j] = sum_i Z[i,j] q[i];  dv[j] = sum_i P[i,j] d_out[i]   (over the group's heads)
 * Nothing of size L x L is stored. A sequence gives the same bits alone and packed.
 * Source: Dao 2023 (FlashAttention-2), algorithms 1 and 2
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, sequences, max_length; /* max_length >= each L */
    size_t heads, kv_heads, head_size;    /* kv_heads divides heads */
    size_t window;                        /* keys that a query sees, itself included; 0 = all */
    float scale;                          /* 1 / sqrt(D) as a rule */
    /* shapes that it cannot do are left to the built-in one */
    RpAttentionChoice choice;
    const int32_t *starts; /* [sequences+1]: first tokens; the last is T */
    /* NULL, or [sequences][2]: first key of a gap, > 0, and its end; both 0: none. A window then has all keys */
    const int32_t *gaps;
    const void *q;      /* [T,heads,D] */
    const void *k, *v;  /* [T,kv_heads,D] */
    void *out;          /* [T,heads,D]; backward: in */
    float *lse;         /* [heads,T]; forward: out, backward: in */
    const void *d_out;  /* backward: [T,heads,D] */
    void *dq, *dk, *dv; /* backward: as q, k, v */
    /* 0, or heads from a token to the next: v, dq, dk and dv are columns of matrices */
    size_t row_heads;
    void *workspace;
} RpAttentionArgs;

/*
 * A learned logit of each head, which every query sees and behind which no value stands: after an
 * attention without it, and before that one's backward, which is then exact for q, k and v.
 * forward:   l = log(exp(lse[h,t]) + exp(sinks[h]));  out[t,h] *= exp(lse[h,t] - l);  lse[h,t] = l
 * backward:  d_sinks[h] -= sum_t exp(sinks[h] - lse[h,t]) (d_out[t,h] . out[t,h]), sum_t in double
 * Source: transformers gpt_oss eager_attention_forward, whose softmax has the sink as one more key
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, heads, head_size;
    const void *sinks; /* [heads] */
    void *out;         /* [T,heads,D]; forward: in and out, backward: in */
    float *lse;        /* [heads,T]; likewise */
    const void *d_out; /* backward: [T,heads,D] */
    float *d_sinks;    /* backward: [heads], += */
    void *workspace;   /* backward */
} RpSinkArgs;

/*
 * forward:   y = silu(gate) up,  silu(a) = a s,  s = 1 / (1 + exp(-a))
 * backward:  d_gate = dy up s (1 + a (1 - s));  d_up = dy silu(gate);  product = y again
 * Source: Shazeer 2020, equation 6
 */
typedef struct {
    RpDtype dtype;
    size_t n;
    const void *gate, *up;
    void *y; /* forward; may be gate or up */
    const void *dy;
    void *d_gate, *d_up; /* backward; may be any of gate, up, dy */
    void *product;       /* backward, or NULL: y, the same bits; may be any of gate, up, dy */
    /* NULL, or as RpLargestArgs has it: of y, backward of the product; backward, both or none */
    float *largest, *d_gate_largest, *d_up_largest;
    /* 0, or a multiple of 8: gate and up are columns of one matrix, [n / row, 2 row], and so are d_gate
     * and d_up, and a y that is gate; then no amax is recorded */
    size_t row;
} RpSwigluArgs;

/*
 * forward:   y[t] = weight[ids[t]];   backward:  d_weight[ids[t]] += dy[t], t ascending,
 * except ids[t] = padding_id. The caller has checked that 0 <= ids[t] < vocabulary.
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, n, vocabulary;
    const int32_t *ids; /* [tokens] */
    const void *weight; /* forward: [vocabulary,n] */
    void *y;            /* forward: [tokens,n] */
    const void *dy;     /* backward: [tokens,n] */
    float *d_weight;    /* backward: [vocabulary,n], += */
    int32_t padding_id; /* its row gets no gradient (nn.Embedding padding_idx); -1 = none */
    void *workspace;    /* backward */
} RpEmbeddingArgs;

#define RP_LABEL_MASKED (-100)

/*
 * The loss of one chunk of tokens, between the LM head's matmuls:
 *   logits = x W^T (NT);  cross_entropy;  dx = d_logits W (NN);  dW += d_logits^T x (TN)
 * loss[0] += sum over labels[t] != -100 of  log sum_v exp(logits[t,v]) - logits[t,labels[t]]
 * and if @gradient, in place:
 *   logits[t,v] = scale (exp(logits[t,v]) / sum_w exp(logits[t,w]) - [v = labels[t]]), masked t: 0
 * scale: loss scale / unmasked tokens of the iteration; the loss is not multiplied by it.
 * With @smoothing e, (1 - e) [v = labels[t]] + e / vocabulary stands for [v = labels[t]], also in the
 * loss: PyTorch's label_smoothing. labels[t] is the token after t: the caller has shifted. Sums over
 * v are fp32 in lanes, over t double. A logit that is not finite makes the loss not finite.
 * With @weights, scale weights[t] stands for scale.
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, vocabulary;
    void *logits;          /* [tokens,vocabulary]; in and out */
    const int32_t *labels; /* [tokens] */
    float scale;
    bool gradient;
    double *loss;  /* [1], +=; or NULL */
    float *losses; /* [tokens], each token's, masked 0; or NULL */
    void *workspace;
    float smoothing;      /* e; 0: the label alone */
    const float *weights; /* [tokens], or NULL: all are 1 */
} RpCrossEntropyArgs;

/* sum[0] += sum_i x[i]^2, in double; not finite exactly if an x is not. Blocks of RP_SQUARES_BLOCK
 * values have a sum for each of RP_SQUARES_LANES lanes, value i in lane i % RP_SQUARES_LANES; lanes are
 * added in order, then blocks: the same bits in every backend, and in exec/optim. */
#define RP_SQUARES_BLOCK ((size_t)65536)
#define RP_SQUARES_LANES 32
typedef struct {
    RpDtype dtype;
    size_t n;
    const void *x;
    double *sum;     /* [1], += */
    int32_t *broken; /* [1]: set to 1 if an x is infinite or NaN, else left alone; or NULL */
    void *workspace;
} RpSumSquaresArgs;

/* y[i] = x[i], or with @b y[i] = x[i] + b[i], in three storages. y may be x or b of its dtype. */
typedef struct {
    size_t n;
    const void *x, *b;
    void *y;
    RpDtype x_dtype, b_dtype, y_dtype;
} RpElementsArgs;

/* y[i] = round(value(code[i]) scale[block of i]): weights in few bits (core/lowbit/lowbit.h), bit for
 * bit the same in every backend. */
typedef struct {
    RpLowbit format;
    RpDtype dtype; /* type of y */
    RpLowbitShape shape;
    const void *packed; /* rp_lowbit_layout().total bytes, at a multiple of RP_LOWBIT_ALIGNMENT */
    void *y;            /* [matrices,rows,columns] */
} RpExpandArgs;

/* largest[0] = max(largest[0], max_i |x[i]|); infinite if one is, NaN if one is. */
typedef struct {
    RpDtype dtype;
    size_t n;
    const void *x;
    float *largest; /* [1]; 0 or more */
} RpLargestArgs;

/* codes[r,c] = turned[c,r] = x[r,c] / scale[0], rounded, and the scale (core/base/fp8.h). Bit for bit
 * the same in every backend. Of x in e4m3, which @code is then, too, the values are taken as they are. */
typedef struct {
    RpDtype dtype; /* type of x, or e4m3 */
    RpDtype code;  /* RP_DTYPE_E4M3, RP_DTYPE_E5M2 */
    size_t rows, columns;
    const void *x;        /* [rows,columns] */
    const float *largest; /* [1]: of x; of x in e4m3 the scale */
    uint8_t *quantized;   /* [rows,columns], or NULL */
    uint8_t *transposed;  /* [columns,rows], or NULL */
    float *scale;         /* [1], = */
} RpQuantiseArgs;

/* y[i] += round(x[i]), rounded to @dtype; with @begin y[i] = round(x[i]). In fp32. y is not x. */
typedef struct {
    RpDtype dtype;
    size_t n;
    bool begin;
    const float *x;
    float *y;
} RpGatherArgs;

/* y[rows[i]] = x[i], i < n: rows of @columns elements. No row twice; other rows of y stay. */
typedef struct {
    RpDtype dtype;
    size_t n, columns;
    const int32_t *rows; /* [n] */
    const void *x;       /* [n,columns] */
    void *y;
} RpScatterArgs;

/* x[i] = value, i < n. */
typedef struct {
    RpDtype dtype;
    size_t n;
    void *x;
    float value;
} RpFillArgs;

/* y[r,i] = scale x[r,i] where word i % 4 of Philox4x32-10 (exec/kernels/philox.h) of the counter (i
 * / 4, row + r, step, 0) is @threshold or more, else 0; or += with @accumulate. Dropped elements
 * are not recorded: the same arguments drop them again. Bit for bit the same in every backend. */
typedef struct {
    RpDtype dtype;
    size_t rows, n; /* shape of an array [rows,n] */
    uint64_t key;
    uint32_t step, row;
    uint32_t threshold; /* p 2^32 */
    float scale;        /* 1 / (1 - p) */
    bool accumulate;
    const void *x;
    void *y; /* may be x */
} RpDropoutArgs;

/* y[r,i] += magnitude u, where u is word i % 4 of Philox4x32-10 of the counter (i / 4, row + r, step,
 * 1), as a signed number, times 2^-31: uniform in [-1, 1). Bit for bit the same in every backend. */
typedef struct {
    RpDtype dtype;
    size_t rows, n; /* shape of an array [rows,n] */
    uint64_t key;
    uint32_t step, row;
    float magnitude;
    void *y;
} RpNoiseArgs;

/* For n values in rows of @columns, the last perhaps shorter: left[0] = max(left[0], rows - r),
 * where r is the first row with a value that is infinite or NaN (all bits of its exponent are set);
 * left[0] is unchanged if there is none. */
typedef struct {
    RpDtype dtype;
    size_t n, columns;
    const void *x;
    uint32_t *left; /* in the device's memory, or pinned memory of the host */
} RpFindBrokenArgs;

/* sum[0] = NaN if loss[0] is infinite or NaN, else it stays. */
typedef struct {
    const double *loss;
    float *sum;
} RpBreakSumArgs;

/* to[i] = from[i], i < n. Needs no copy engine, which may be busy with parameters for a while. */
typedef struct {
    size_t n;
    const int32_t *from; /* pinned memory of the host */
    int32_t *to;
} RpFetchArgs;

/* Functions of the caller's program (core/catalogue/custom.h). */
struct _RpCustomCall;
struct _RpLossCall;
typedef struct {
    void (*host)(const struct _RpCustomCall *call);
    int (*cuda)(const struct _RpCustomCall *call, void *stream); /* returns a cudaError_t */
    const struct _RpCustomCall *call;
} RpCustomLayerArgs;
typedef struct {
    void (*host)(const struct _RpLossCall *call);
    int (*cuda)(const struct _RpLossCall *call, void *stream);
    const struct _RpLossCall *call;
} RpCustomLossArgs;
