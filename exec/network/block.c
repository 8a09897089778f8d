/*
 * One transformer block of Qwen3 or Llama, forward and backward. T tokens, C hidden size, H heads,
 * K kv heads, D head size, m intermediate size.
 *
 *   forward    n = norm(x);  q, k, v = n Wq, n Wk, n Wv;  q', k' = rope([norm] q), rope([norm] k)
 *              out = attention(q', k', v);  s = x + out Wo
 *              n = norm(s);  gate, up = n Wg, n Wu;  y = s + swiglu(gate, up) Wd
 *
 *   kept       x, s [T,C]; q [T,H,D], k, v [T,K,D] before norm and rope; out [T,H,D], lse [H,T];
 *              gate, up [T,m]. What only takes a pass over memory is made anew: n, q', k', the
 *              product of swiglu.
 *
 * Backward goes the same way back; gate and up turn into their gradients where they stand.
 */
#include "exec/network/private.h"

typedef struct {
    void *q, *k, *v, *out;
    float *lse;
} Attention;

typedef struct {
    void *gate, *up;
} Mlp;

/* Queries and keys as attention sees them. */
typedef struct {
    void *q, *k;
    float *q_rstd, *k_rstd; /* of q/k norm; [T,H], [T,K] */
} Heads;

typedef struct {
    size_t T, C, H, K, m;
    size_t queries, keys; /* H D, K D */
} Shape;

static Shape
shape_of(const RpPass *pass)
{
    const RpModel *model = pass->network->model;

    return (Shape){.T = pass->network->tokens,
                   .C = model->hidden,
                   .H = model->heads,
                   .K = model->kv_heads,
                   .m = model->intermediate,
                   .queries = (size_t)model->heads * model->head_dim,
                   .keys = (size_t)model->kv_heads * model->head_dim};
}

static Attention
take_attention(const RpPass *pass, RpRoom *room, const Shape *z)
{
    Attention a;

    a.q = rp_pass_take(pass, room, z->T * z->queries);
    a.k = rp_pass_take(pass, room, z->T * z->keys);
    a.v = rp_pass_take(pass, room, z->T * z->keys);
    a.out = rp_pass_take(pass, room, z->T * z->queries);
    a.lse = rp_pass_take_floats(room, z->T * z->H);
    return a;
}

static Mlp
take_mlp(const RpPass *pass, RpRoom *room, const Shape *z)
{
    Mlp mlp;

    mlp.gate = rp_pass_take(pass, room, z->T * z->m);
    mlp.up = rp_pass_take(pass, room, z->T * z->m);
    return mlp;
}

/* y = rope([norm] x) of each head. */
static void
turn(RpPass *pass, RpWeightKind norm, size_t heads, const void *x, void *y, float *rstd)
{
    if (rp_pass_has(pass, norm))
        rp_pass_norm_rope(pass, norm,
                          (RpNormRopeArgs){.heads = heads, .x = x, .y = y, .rstd = rstd});
    else
        rp_pass_rope(pass, heads, x, y);
}

/* In place: @d of y becomes that of x. */
static void
turn_back(RpPass *pass, RpWeightKind norm, size_t heads, const void *x, float *rstd, void *d)
{
    if (rp_pass_has(pass, norm))
        rp_pass_norm_rope_backward(
            pass, norm, (RpNormRopeArgs){.heads = heads, .x = x, .rstd = rstd, .dy = d, .dx = d});
    else
        rp_pass_rope_backward(pass, heads, d);
}

static Heads
make_heads(RpPass *pass, const Shape *z, const Attention *a)
{
    Heads heads = {0};

    heads.q = rp_pass_take(pass, &pass->scratch, z->T * z->queries);
    heads.k = rp_pass_take(pass, &pass->scratch, z->T * z->keys);
    if (rp_pass_has(pass, RP_WEIGHT_Q_NORM)) {
        heads.q_rstd = rp_pass_take_floats(&pass->scratch, z->T * z->H);
        heads.k_rstd = rp_pass_take_floats(&pass->scratch, z->T * z->K);
    }
    turn(pass, RP_WEIGHT_Q_NORM, z->H, a->q, heads.q, heads.q_rstd);
    turn(pass, RP_WEIGHT_K_NORM, z->K, a->k, heads.k, heads.k_rstd);
    return heads;
}

/* s = x + attention(norm(x)) Wo, and @normed = norm(s) */
static void
attention_forward(RpPass *pass, const Shape *z, const void *x, RpRoom *keep, void *s, void *normed,
                  float *rstd)
{
    const Attention a = take_attention(pass, keep, z);
    Heads heads;

    rp_pass_norm(pass, RP_WEIGHT_INPUT_NORM,
                 (RpRmsnormArgs){.rows = z->T, .n = z->C, .x = x, .y = normed, .rstd = rstd});
    rp_pass_linear(pass, RP_WEIGHT_Q, z->T, normed, a.q);
    rp_pass_linear(pass, RP_WEIGHT_K, z->T, normed, a.k);
    rp_pass_linear(pass, RP_WEIGHT_V, z->T, normed, a.v);
    heads = make_heads(pass, z, &a);
    rp_pass_attention(
        pass, (RpAttentionArgs){.q = heads.q, .k = heads.k, .v = a.v, .out = a.out, .lse = a.lse});
    rp_pass_linear(pass, RP_WEIGHT_O, z->T, a.out, s);
    rp_pass_norm(
        pass, RP_WEIGHT_POST_NORM,
        (RpRmsnormArgs){
            .rows = z->T, .n = z->C, .x = s, .residual = x, .sum = s, .y = normed, .rstd = rstd});
}

static void
block_forward(RpPass *pass, const void *x, RpRoom *kept, void *y)
{
    const Shape shape = shape_of(pass);
    const Shape *z = &shape;
    RpRoom *scratch = &pass->scratch;
    RpRoom *keep = kept != NULL ? kept : scratch;
    void *s = rp_pass_take(pass, keep, z->T * z->C);
    void *normed = rp_pass_take(pass, scratch, z->T * z->C);
    float *rstd = rp_pass_take_floats(scratch, z->T);
    const gsize before = scratch->used;
    void *product;
    Mlp mlp;

    attention_forward(pass, z, x, keep, s, normed, rstd);
    scratch->used = before;
    mlp = take_mlp(pass, keep, z);
    rp_pass_linear(pass, RP_WEIGHT_GATE, z->T, normed, mlp.gate);
    rp_pass_linear(pass, RP_WEIGHT_UP, z->T, normed, mlp.up);
    if (y == NULL)
        return;
    product = kept != NULL ? rp_pass_take(pass, scratch, z->T * z->m) : mlp.gate;
    rp_pass_swiglu(pass, mlp.gate, mlp.up, product);
    rp_pass_linear(pass, RP_WEIGHT_DOWN, z->T, product, y);
    rp_pass_add(pass, s, y);
}

/* ds = dy + (gradient that reaches s through the MLP); @normed is scratch. */
static void
mlp_backward(RpPass *pass, const Shape *z, const void *s, const Mlp *mlp, const void *dy,
             void *normed, float *rstd, void *ds)
{
    void *product = rp_pass_take(pass, &pass->scratch, z->T * z->m); /* its gradient first */

    rp_pass_linear_input(pass, RP_WEIGHT_DOWN, z->T, dy, product, FALSE);
    rp_pass_swiglu_backward(pass, mlp->gate, mlp->up, product);
    rp_pass_linear_sums(pass, RP_WEIGHT_DOWN, z->T, product, dy);
    rp_pass_norm(pass, RP_WEIGHT_POST_NORM,
                 (RpRmsnormArgs){.rows = z->T, .n = z->C, .x = s, .y = normed, .rstd = rstd});
    rp_pass_linear_backward(pass, RP_WEIGHT_UP, z->T, normed, mlp->up, ds, FALSE);
    rp_pass_linear_backward(pass, RP_WEIGHT_GATE, z->T, normed, mlp->gate, ds, TRUE);
    rp_pass_norm_backward(
        pass, RP_WEIGHT_POST_NORM,
        (RpRmsnormArgs){
            .rows = z->T, .n = z->C, .x = s, .rstd = rstd, .dy = ds, .d_residual = dy, .dx = ds});
}

/* dx = ds + (gradient that reaches x through attention); @normed is scratch. */
static void
attention_backward(RpPass *pass, const Shape *z, const void *x, const Attention *a, const void *ds,
                   void *normed, float *rstd, void *dx)
{
    RpRoom *scratch = &pass->scratch;
    void *d_out = rp_pass_take(pass, scratch, z->T * z->queries);
    void *dq = rp_pass_take(pass, scratch, z->T * z->queries);
    void *dk = rp_pass_take(pass, scratch, z->T * z->keys);
    void *dv = rp_pass_take(pass, scratch, z->T * z->keys);
    const Heads heads = make_heads(pass, z, a);

    rp_pass_linear_backward(pass, RP_WEIGHT_O, z->T, a->out, ds, d_out, FALSE);
    rp_pass_attention_backward(pass, (RpAttentionArgs){.q = heads.q,
                                                       .k = heads.k,
                                                       .v = a->v,
                                                       .out = a->out,
                                                       .lse = a->lse,
                                                       .d_out = d_out,
                                                       .dq = dq,
                                                       .dk = dk,
                                                       .dv = dv});
    turn_back(pass, RP_WEIGHT_Q_NORM, z->H, a->q, heads.q_rstd, dq);
    turn_back(pass, RP_WEIGHT_K_NORM, z->K, a->k, heads.k_rstd, dk);
    rp_pass_norm(pass, RP_WEIGHT_INPUT_NORM,
                 (RpRmsnormArgs){.rows = z->T, .n = z->C, .x = x, .y = normed, .rstd = rstd});
    rp_pass_linear_backward(pass, RP_WEIGHT_Q, z->T, normed, dq, dx, FALSE);
    rp_pass_linear_backward(pass, RP_WEIGHT_K, z->T, normed, dk, dx, TRUE);
    rp_pass_linear_backward(pass, RP_WEIGHT_V, z->T, normed, dv, dx, TRUE);
    rp_pass_norm_backward(
        pass, RP_WEIGHT_INPUT_NORM,
        (RpRmsnormArgs){
            .rows = z->T, .n = z->C, .x = x, .rstd = rstd, .dy = dx, .d_residual = ds, .dx = dx});
}

static void
block_backward(RpPass *pass, const void *x, RpRoom *kept, const void *dy, void *dx)
{
    const Shape shape = shape_of(pass);
    const Shape *z = &shape;
    RpRoom *scratch = &pass->scratch;
    const void *s = rp_pass_take(pass, kept, z->T * z->C);
    const Attention a = take_attention(pass, kept, z);
    const Mlp mlp = take_mlp(pass, kept, z);
    void *ds = rp_pass_take(pass, scratch, z->T * z->C);
    void *normed = rp_pass_take(pass, scratch, z->T * z->C);
    float *rstd = rp_pass_take_floats(scratch, z->T);
    const gsize before = scratch->used;

    mlp_backward(pass, z, s, &mlp, dy, normed, rstd, ds);
    scratch->used = before;
    attention_backward(pass, z, x, &a, ds, normed, rstd, dx);
}

const RpLayerOps rp_block_ops = {
    .keeps_input = TRUE, .forward = block_forward, .backward = block_backward};
