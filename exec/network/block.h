/**
 * The parts of a transformer block. Private to exec/network.
 *
 *   block.c       the block: one part after the other
 *   attention.c   s = x + attention(norm(x)) Wo
 *   cache.c       attention, with its sinks, to this call's keys or to those of calls before
 *   mlp.c         y = s + MLP(norm(s)) of a dense model
 *   experts.c     the same of a mixture of experts
 *
 * T tokens, C hidden size, H heads, K kv heads, D head size, m intermediate size.
 */
#pragma once

#include "exec/network/private.h"

typedef struct {
    size_t T, C, H, K, m;
    size_t queries, keys; /* H D, K D */
    size_t window;        /* keys that a query sees; 0 = all */
    gboolean rope;
} RpBlockShape;

/* ---- attention.c ---- */

/* Values that attention keeps: q, k, v as its linear layers made them. */
typedef struct {
    void *q, *k, *v, *out;
    size_t row_heads; /* q, k and v are columns of one matrix: heads of a token in it; 0: apart */
    float *lse;
} RpBlockAttention;

/* Quantizes the matrices of q, k and v as one, where they are fused. */
void rp_block_attention_fuse_fp8(const RpPass *pass, const RpBlockShape *z, RpLayerLayout *layout);
RpBlockAttention rp_block_attention_take(RpPass *pass, RpSpace *space, const RpBlockShape *z);
/* @s = x + attention(norm(x)) Wo, and @normed = norm(s) unless nobody needs it */
void rp_block_attention_forward(RpPass *pass, const RpBlockShape *z, const void *x, RpSpace *keep,
                                void *s, void *normed, float *rstd);
/* dx = ds + (gradient that reaches x through attention); @normed is scratch, [T,max(C, H D)]. */
void rp_block_attention_backward(RpPass *pass, const RpBlockShape *z, const void *x,
                                 const RpBlockAttention *a, const void *ds, void *normed,
                                 float *rstd, void *dx);

/* ---- cache.c ---- */

/* out = attention(q, k, v), with sinks. Where there is a cache, k and v go into it. */
void rp_block_attend(RpPass *pass, const RpBlockShape *z, RpAttentionArgs args);

/* ---- mlp.c ---- */

/* A kind of MLP. [T,C]: s, y, normed = norm(s), and their gradients. */
typedef struct {
    /**
     * forward:
     * @kept: (nullable): space in which values for the backward are kept
     * @y: (nullable): s + MLP(normed), if it is wanted
     */
    void (*forward)(RpPass *pass, const RpBlockShape *z, const void *s, const void *normed,
                    RpSpace *kept, void *y);
    /* ds = dy + (gradient that reaches s through the MLP). @kept: as the forward left it; is
     * overwritten. @normed is scratch */
    void (*backward)(RpPass *pass, const RpBlockShape *z, const void *s, RpSpace *kept,
                     const void *dy, void *normed, float *rstd, void *ds);
} RpMlpOps;

extern const RpMlpOps rp_dense_mlp_ops;

/* ---- experts.c ---- */

extern const RpMlpOps rp_experts_mlp_ops;
