/*
 * Attention of a block, forward and backward.
 *
 *   forward    n = norm(x);  q, k, v = n Wq, n Wk, n Wv;  q', k' = rope([norm] q), rope([norm] k)
 *              out = attention(q', k', v);  s = x + out Wo
 *              of a block without rope q' = q, k' = k; sinks join out and its lse
 *   kept       q [T,H,D], k, v [T,K,D] before norm and rope; out [T,H,D], lse [H,T]. n, q' and k'
 *              are made anew.
 */
#include "exec/network/block.h"

/* Queries and keys as attention sees them. */
typedef struct {
    void *q, *k;
    float *q_rstd, *k_rstd; /* of q/k norm; [T,H], [T,K] */
} Heads;

RpBlockAttention
rp_block_attention_take(RpPass *pass, RpRoom *room, const RpBlockShape *z)
{
    RpRoom *qkv = rp_pass_room(pass, room, RP_SAVED_QKV);
    RpRoom *made = rp_pass_room(pass, room, RP_SAVED_ATTENTION);
    RpBlockAttention a;

    a.q = rp_pass_take(pass, qkv, z->T * z->queries);
    a.k = rp_pass_take(pass, qkv, z->T * z->keys);
    a.v = rp_pass_take(pass, qkv, z->T * z->keys);
    a.out = rp_pass_take(pass, made, z->T * z->queries);
    a.lse = rp_pass_take_floats(made, z->T * z->H);
    return a;
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

/* In place: @d of y becomes that of x. Returns: its cell, where it was noted; else %NULL */
static float *
turn_back(RpPass *pass, RpWeightKind norm, size_t heads, const void *x, float *rstd, void *d)
{
    float *noted;

    if (!rp_pass_has(pass, norm)) {
        rp_pass_rope_backward(pass, heads, d);
        return NULL;
    }
    noted = rp_pass_cell(pass);
    rp_pass_norm_rope_backward(
        pass, norm,
        (RpNormRopeArgs){.heads = heads, .x = x, .rstd = rstd, .dy = d, .dx = d, .largest = noted});
    return noted;
}

static Heads
make_heads(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a)
{
    Heads heads = {.q = a->q, .k = a->k};

    if (!z->rope)
        return heads;
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

static void
make_qkv(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a, const void *x,
         void *normed, float *rstd)
{
    const gsize before = pass->scratch.used;
    float *noted = rp_pass_cell(pass);

    rp_pass_norm(pass, RP_WEIGHT_INPUT_NORM,
                 (RpRmsnormArgs){.rows = z->T,
                                 .n = z->C,
                                 .x = x,
                                 .y = normed,
                                 .rstd = pass->kept.used ? pass->kept.rstd : rstd,
                                 .largest = noted});

    const RpOperand n =
        rp_pass_kept_input(pass, RP_WEIGHT_Q, z->T, normed, noted, &pass->kept.normed);

    rp_pass_linear(pass, RP_WEIGHT_Q, &n, a->q);
    rp_pass_linear(pass, RP_WEIGHT_K, &n, a->k);
    rp_pass_linear(pass, RP_WEIGHT_V, &n, a->v);
    pass->scratch.used = before;
}

static void
make_residual(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a, const void *x,
              void *s)
{
    const RpOperand out =
        rp_pass_kept_input(pass, RP_WEIGHT_O, z->T, a->out, NULL, &pass->kept.out);

    rp_pass_linear_onto(pass, RP_WEIGHT_O, &out, x, s);
}

static void
make_out(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a)
{
    const Heads heads = make_heads(pass, z, a);

    rp_block_attend(pass, z,
                    (RpAttentionArgs){.window = z->window,
                                      .q = heads.q,
                                      .k = heads.k,
                                      .v = a->v,
                                      .out = a->out,
                                      .lse = a->lse});
}

void
rp_block_attention_forward(RpPass *pass, const RpBlockShape *z, const void *x, RpRoom *keep,
                           void *s, void *normed, float *rstd)
{
    const RpBlockAttention a = rp_block_attention_take(pass, keep, z);

    if (rp_pass_makes(pass, RP_SAVED_QKV))
        make_qkv(pass, z, &a, x, normed, rstd);
    if (rp_pass_makes(pass, RP_SAVED_ATTENTION))
        make_out(pass, z, &a);
    if (!rp_pass_makes(pass, RP_SAVED_RESIDUAL) && !rp_pass_makes(pass, RP_SAVED_MLP))
        return;
    if (rp_pass_makes(pass, RP_SAVED_RESIDUAL))
        make_residual(pass, z, &a, x, s);
    pass->noted = rp_pass_cell(pass);
    rp_pass_norm(pass, RP_WEIGHT_POST_NORM,
                 (RpRmsnormArgs){.rows = z->T,
                                 .n = z->C,
                                 .x = s,
                                 .y = normed,
                                 .rstd = pass->kept.used ? pass->kept.post_rstd : rstd,
                                 .largest = pass->noted});
}

void
rp_block_attention_backward(RpPass *pass, const RpBlockShape *z, const void *x,
                            const RpBlockAttention *a, const void *ds, void *normed, float *rstd,
                            void *dx)
{
    RpRoom *scratch = &pass->scratch;
    void *d_out = rp_pass_take(pass, scratch, z->T * z->queries);
    void *dq = rp_pass_take(pass, scratch, z->T * z->queries);
    void *dk = rp_pass_take(pass, scratch, z->T * z->keys);
    void *dv = rp_pass_take(pass, scratch, z->T * z->keys);
    const Heads heads = make_heads(pass, z, a);
    const gsize before = scratch->used;
    RpOperand n = pass->kept.used
                      ? rp_pass_kept_sums(z->T, &pass->kept.out)
                      : rp_pass_operand(pass, RP_WEIGHT_O, z->T, a->out, RP_OPERAND_SUMS, NULL);
    RpOperand d = rp_pass_operand(pass, RP_WEIGHT_O, z->T, ds, RP_OPERAND_GRADIENT, pass->noted);

    rp_pass_linear_backward(pass, RP_WEIGHT_O, &n, &d, d_out, FALSE);
    scratch->used = before;
    if (rp_pass_has(pass, RP_WEIGHT_SINKS))
        rp_pass_sink_backward(pass, a->out, a->lse, d_out);
    rp_pass_attention_backward(pass, (RpAttentionArgs){.window = z->window,
                                                       .q = heads.q,
                                                       .k = heads.k,
                                                       .v = a->v,
                                                       .out = a->out,
                                                       .lse = a->lse,
                                                       .d_out = d_out,
                                                       .dq = dq,
                                                       .dk = dk,
                                                       .dv = dv});

    float *q_noted = NULL, *k_noted = NULL, *noted = rp_pass_cell(pass);

    if (z->rope) {
        q_noted = turn_back(pass, RP_WEIGHT_Q_NORM, z->H, a->q, heads.q_rstd, dq);
        k_noted = turn_back(pass, RP_WEIGHT_K_NORM, z->K, a->k, heads.k_rstd, dk);
    }
    if (pass->kept.used) {
        rstd = pass->kept.rstd;
        n = rp_pass_kept_sums(z->T, &pass->kept.normed);
    } else {
        rp_pass_norm(
            pass, RP_WEIGHT_INPUT_NORM,
            (RpRmsnormArgs){
                .rows = z->T, .n = z->C, .x = x, .y = normed, .rstd = rstd, .largest = noted});
        n = rp_pass_operand(pass, RP_WEIGHT_Q, z->T, normed, RP_OPERAND_SUMS, noted);
    }

    const RpOperand q = rp_pass_operand(pass, RP_WEIGHT_Q, z->T, dq, RP_OPERAND_GRADIENT, q_noted);
    const RpOperand k = rp_pass_operand(pass, RP_WEIGHT_K, z->T, dk, RP_OPERAND_GRADIENT, k_noted);
    const RpOperand v = rp_pass_operand(pass, RP_WEIGHT_V, z->T, dv, RP_OPERAND_GRADIENT, NULL);

    if (pass->lowest && !rp_pass_trains(pass, RP_WEIGHT_INPUT_NORM)) {
        rp_pass_linear_sums(pass, RP_WEIGHT_Q, &n, &q);
        rp_pass_linear_sums(pass, RP_WEIGHT_K, &n, &k);
        rp_pass_linear_sums(pass, RP_WEIGHT_V, &n, &v);
        return;
    }
    rp_pass_linear_backward(pass, RP_WEIGHT_Q, &n, &q, dx, FALSE);
    rp_pass_linear_backward(pass, RP_WEIGHT_K, &n, &k, dx, TRUE);
    rp_pass_linear_backward(pass, RP_WEIGHT_V, &n, &v, dx, TRUE);
    rp_pass_norm_backward(
        pass, RP_WEIGHT_INPUT_NORM,
        (RpRmsnormArgs){
            .rows = z->T, .n = z->C, .x = x, .rstd = rstd, .dy = dx, .d_residual = ds, .dx = dx});
}
