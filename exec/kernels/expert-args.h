/**
 * Rows and arguments of the kernels between router and output of a mixture of experts, but for the
 * matmuls. exec/kernels/args.h includes this file and has the rules common to all kernels.
 *
 * T tokens choose k of E experts each: an assignment a = t k + j, and as many rows, R = T k. Rows
 * are sorted by expert, within an expert by assignment; none is padding. Sizes come from shapes
 * alone: which row is whose is device data that no host reads.
 *
 *   token     0      1      2            expert    0  1    2
 *   chosen   2 0    2 1    0 2           offsets   0  2    3       6       T = 3, k = 2, E = 3
 *   a        0 1    2 3    4 5           row       0  1  2  3  4  5
 *   rows     3 0    4 2    1 5           assigned  1  4  3  0  2  5
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/dtype.h"

/* clang-format off */
#define RP_EXPERT_KERNELS(K, W)                                                                    \
    K(route_forward, RpRouteArgs, "router forward")                                                \
    K(route_backward, RpRouteArgs, "router backward")                                              \
    W(sort_rows, RpSortRowsArgs, "sorting rows by expert")                                         \
    K(gather_rows, RpGatherRowsArgs, "gathering rows of experts")                                  \
    K(combine_rows, RpCombineRowsArgs, "combining rows of experts")                                \
    K(expert_glu_forward, RpExpertGluArgs, "activation of experts forward")                        \
    K(expert_glu_backward, RpExpertGluArgs, "activation of experts backward")                      \
    W(expert_bias_backward, RpExpertBiasArgs, "bias of experts backward")                          \
    W(balance_forward, RpBalanceArgs, "counting choices of experts")                               \
    K(balance_loss, RpBalanceLossArgs, "auxiliary loss of routers")
/* clang-format on */

/* Limits of a router. */
#define RP_MOST_EXPERTS 512
#define RP_MOST_CHOICES 16

/*
 * For a token, with l its logits and c the k largest, largest first:
 * forward:   chosen[t,j] = c_j;  weights[t,j] = p_j
 *            p_j = exp l[c_j] / sum_i exp l[c_i],  the softmax of the chosen (@among_chosen),
 *            or exp l[c_j] / sum_e exp l[e], their part of the softmax over all
 * backward:  g = sum_i p_i d_weights[t,i];  d_logits[t,c_j] = p_j (d_weights[t,j] - g);
 *            other e: 0, or -exp l[e] / sum g without @among_chosen
 *            with @d_sums, of a token that is no padding: += q_e (d_sums[e] - sum_i q_i d_sums[i]),
 *            q the softmax over all (RpBalanceArgs)
 * Among equal logits the lowest expert comes first; -0 = +0; NaN is larger than all numbers, and
 * makes the weights NaN. fp32, from logits as stored: where transformers computes a softmax over
 * all and divides by the sum of the chosen (norm_topk_prob), that is @among_chosen.
 * torch.topk has the same order but among equal values, where it has none: docs/experts.md.
 * Source: transformers 5.23 Qwen3MoeTopKRouter, GptOssTopKRouter
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, experts, choices; /* experts <= 512; choices <= 16, experts */
    bool among_chosen;
    const void *logits;     /* [T,E] */
    int32_t *chosen;        /* [T,k]; forward: out, backward: in */
    void *weights;          /* forward: [T,k] */
    const float *d_weights; /* backward: [T,k] */
    void *d_logits;         /* backward: [T,E]; may be logits */
    const float *d_sums;    /* backward: [E] or NULL */
    size_t sequence;        /* backward, with d_sums; and */
    const int32_t *lengths; /* this: of RpBalanceArgs */
} RpRouteArgs;

/* offsets[e] = first row of expert e, offsets[E] = R; rows[a] = the row of assignment a, and
 * assigned[r] = the assignment of row r. Integers: the same in every backend. */
typedef struct {
    size_t tokens, experts, choices;
    const int32_t *chosen; /* [T,k] */
    int32_t *offsets;      /* [E+1] */
    int32_t *rows;         /* [T,k] */
    int32_t *assigned;     /* [R] */
    void *workspace;
} RpSortRowsArgs;

/* y[rows[t,j]] = x[t]: each token is read once and written k times. */
typedef struct {
    RpDtype dtype;
    size_t tokens, choices, n;
    const int32_t *rows; /* [T,k] */
    const void *x;       /* [T,n] */
    void *y;             /* [R,n] */
} RpGatherRowsArgs;

/* y[t] = residual[t] + sum_j weights[t,j] x[rows[t,j]], j ascending, fp32, rounded once. Without
 * weights they are 1: the backward of gather_rows. */
typedef struct {
    RpDtype dtype;
    size_t tokens, choices, n;
    const int32_t *rows;  /* [T,k] */
    const void *x;        /* [R,n] */
    const void *weights;  /* [T,k] or NULL */
    const void *residual; /* [T,n] or NULL: 0 */
    void *y;              /* [T,n]; may be residual */
} RpCombineRowsArgs;

/* Layout of gate and up in z = x W_gate_up + bias, and the activation. */
typedef enum {
    RP_EXPERT_SILU,   /* halves: gate z[r,i], up z[r,m+i] */
    RP_EXPERT_CLAMPED /* neighbours: gate z[r,2i], up z[r,2i+1]; GPT-OSS */
} RpExpertGlu;

/*
 * With a gate, b up, s = 1 / (1 + exp(-alpha a)):
 * SILU:      alpha = 1;  act = a s b;  act_a = s (1 + a (1 - s)) b,  act_b = a s
 * CLAMPED:   first a = min(a, limit), b = min(max(b, -limit), limit);  act = a s (b + 1)
 *            act_a = s (1 + alpha a (1 - s)) (b + 1),  act_b = a s, each 0 beyond its limit
 * forward:   act[r,i]
 * backward:  with w = weights[assigned[r]], t the token of row r, e its expert:
 *            dz = w g act_a, w g act_b;  product[r,i] = w act[r,i], for the gradient of W_down
 *            d_weights[assigned[r]] = sum_i act[r,i] g[r,i] + sum_c bias[e,c] dy[t,c]
 * g[r] = dy[t] W_down is act's gradient if the row had weight 1. So the output of W_down is needed
 * by no gradient, and is not kept. Sums fp32.
 * Source: Shazeer 2020, equation 6; transformers 5.23 Qwen3MoeExperts, GptOssExperts
 */
typedef struct {
    RpDtype dtype;
    size_t rows, m; /* R */
    RpExpertGlu form;
    float alpha, limit; /* CLAMPED: 1.702, 7 as a rule */
    const void *z;      /* [R,2m] */
    void *act;          /* forward: [R,m] */

    size_t choices, n;       /* backward; n: of bias and dy */
    const int32_t *assigned; /* backward: [R] */
    const void *weights;     /* backward: [T,k] */
    const void *g;           /* backward: [R,m] */
    const int32_t *chosen;   /* backward, with bias: [T,k] */
    const void *bias;        /* backward: of W_down, [E,n]; or NULL */
    const void *dy;          /* backward, with bias: [T,n] */
    void *dz;                /* backward: [R,2m]; may be z */
    void *product;           /* backward: [R,m] or NULL; may be g */
    float *d_weights;        /* backward: [T,k] */
} RpExpertGluArgs;

/* d_bias[e] += sum over the rows r of e of weights[assigned[r]] dy[r], r ascending; fp32. Without
 * weights they are 1. */
typedef struct {
    RpDtype dtype;
    size_t rows, experts, n;
    const int32_t *offsets;  /* [E+1] */
    const void *dy;          /* [R,n] */
    const void *weights;     /* [T,k] or NULL */
    const int32_t *assigned; /* with weights: [R] */
    float *d_bias;           /* [E,n], += */
    void *workspace;
} RpExpertBiasArgs;

/*
 * Numbers of a layer for the routers' auxiliary loss, on top of those of the layers before it:
 *   counts[e] = counts_before[e] + how often the tokens chose e
 *   sums[e] = sums_before[e] + sum_t p[t,e],  p the softmax of a token's logits over all E
 * of the tokens that are no padding: token t mod S of sequence t / S is none below lengths[t / S].
 */
typedef struct {
    RpDtype dtype;
    size_t tokens, experts, choices;
    size_t sequence;              /* S */
    const int32_t *lengths;       /* [T/S] */
    const void *logits;           /* [T,E] */
    const int32_t *chosen;        /* [T,k] */
    const int32_t *counts_before; /* [E] */
    const float *sums_before;     /* [E] */
    int32_t *counts;              /* [E] */
    float *sums;                  /* [E] */
    void *workspace;
} RpBalanceArgs;

/*
 * The loss of all layers, and the gradient of their sums. With N = layers x sum of lengths:
 *   loss = E sum_e (counts[e] / N) (sums[e] / N);  d_sums[e] = scale E counts[e] / N^2
 * in double; both are 0 if N is.
 * Source: transformers 5.23 load_balancing_loss_func; Fedus 2021, equations 4 to 6
 */
typedef struct {
    size_t experts, layers, sequences;
    const int32_t *lengths; /* [sequences] */
    const int32_t *counts;  /* [E] */
    const float *sums;      /* [E] */
    float scale;
    double *loss;  /* [1] */
    float *d_sums; /* [E] */
} RpBalanceLossArgs;
