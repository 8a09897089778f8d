/*
 * Attention of a block, forward and backward.
 *
 *   forward    n = norm(x);  q, k, v = n Wq, n Wk, n Wv;  q', k' = rope([norm] q), rope([norm] k)
 *              out = attention(q', k', v);  s = x + out Wo
 *              of a block without rope q' = q, k' = k; sinks join out and its lse
 *   kept       q [T,H,D], k, v [T,K,D] before norm and rope; out [T,H,D], lse [H,T]. n, q' and k'
 *              are made anew.
 *
 * Where matrices of q, k and v are one, so are q, k and v, [T,(H + 2 K) D], and so are their gradients:
 * one matmul makes them, and one each the gradients of the matrices and of n.
 */
#include "exec/network/private.h"

/*
 * Attention of a block, to the keys of its own call, or to those that calls before have left:
 *
 *   sequences that begin   q, k, v [T]    k, v -> rows of the cache; attention as ever
 *   one token more         q, k, v [B]    k, v -> rows of the cache; each query sees the keys of its table
 *
 * A gated block has a gate behind each head of q, [T,H,2 D]: s = x + (out sigmoid(gate)) Wo.
 */

/* Elements from a token of v to the next. */
static size_t
value_stride(const RpPass *pass, const RpBlockShape *z, const RpAttentionArgs *args)
{
    return args->row_heads > 0 ? args->row_heads * pass->network->model->head_dim : z->keys;
}

static void
attend_cached(RpPass *pass, const RpAttentionArgs *args)
{
    rp_pass_attention_cached(pass, (RpCachedAttentionArgs){.window = args->window,
                                                           .q = args->q,
                                                           .keys = rp_block_cache(pass, 0),
                                                           .values = rp_block_cache(pass, 1),
                                                           .out = args->out,
                                                           .lse = args->lse});
}

void
rp_block_attend(RpPass *pass, const RpBlockShape *z, RpAttentionArgs args)
{
    if (rp_pass_has_cache(pass))
        rp_pass_cache_rows(pass, (RpCacheRowsArgs){.width = z->keys,
                                                   .k_stride = z->keys,
                                                   .v_stride = value_stride(pass, z, &args),
                                                   .k = args.k,
                                                   .v = args.v,
                                                   .keys = rp_block_cache(pass, 0),
                                                   .values = rp_block_cache(pass, 1)});
    if (rp_pass_has_cache(pass) && pass->network->options.tokens == 1)
        attend_cached(pass, &args);
    else
        rp_pass_attention(pass, args);
    if (rp_pass_has(pass, RP_WEIGHT_SINKS))
        rp_pass_sink(pass, z->T, args.out, args.lse);
}

/* Queries and keys as attention sees them. */
typedef struct {
    void *q, *k;
    const void *plain;      /* q before norm and rope */
    float *q_rstd, *k_rstd; /* q/k norm's; [T,H], [T,K] */
} Heads;

static const RpWeightKind qkv[] = {RP_WEIGHT_Q, RP_WEIGHT_K, RP_WEIGHT_V};
static const RpJoint joint = {qkv, G_N_ELEMENTS(qkv)};

/* Attention and rope's kernels read and write columns, the latter of heads that are not too large; the input of attention
 * without rope has no gaps. */
static gboolean
may_be_columns(const RpPass *pass, const RpBlockShape *z)
{
    const guint head_dim = pass->network->model->head_dim;

    return z->rope && !z->gated && head_dim % 8 == 0 && head_dim <= 256;
}

static gboolean
are_one(const RpPass *pass, const RpBlockShape *z)
{
    return may_be_columns(pass, z) && rp_pass_joins(pass, joint);
}

void
rp_block_attention_fuse_fp8(const RpPass *pass, const RpBlockShape *z, RpLayerLayout *layout)
{
    if (layout->place[RP_WEIGHT_Q].has_fp8 && may_be_columns(pass, z) &&
        rp_pass_may_join(pass, joint))
        rp_layout_fuse_fp8(layout, joint.kinds, joint.n);
}

static gpointer
behind(const RpPass *pass, gpointer array, size_t n)
{
    return (guint8 *)array + n * rp_dtype_size(pass->network->options.dtype);
}

/* q, k and v, or their gradients. */
static void
take_qkv(RpPass *pass, RpSpace *space, const RpBlockShape *z, RpBlockAttention *a)
{
    a->row_heads = are_one(pass, z) ? z->H + 2 * z->K : 0;
    if (a->row_heads > 0) {
        a->q = rp_pass_take(pass, space, z->T * (z->queries + 2 * z->keys));
        a->k = behind(pass, a->q, z->queries);
        a->v = behind(pass, a->k, z->keys);
        return;
    }
    a->q = rp_pass_take(pass, space, z->T * z->queries * (z->gated ? 2 : 1));
    a->k = rp_pass_take(pass, space, z->T * z->keys);
    a->v = rp_pass_take(pass, space, z->T * z->keys);
}

RpBlockAttention
rp_block_attention_take(RpPass *pass, RpSpace *space, const RpBlockShape *z)
{
    RpSpace *made = rp_pass_saved_space(pass, space, RP_SAVED_ATTENTION);
    RpBlockAttention a;

    take_qkv(pass, rp_pass_saved_space(pass, space, RP_SAVED_QKV), z, &a);
    a.out = rp_pass_take(pass, made, z->T * z->queries);
    a.lse = rp_pass_take_floats(made, z->T * z->H);
    return a;
}

/* y = rope([norm] x) of each head. @row: from a token of x to the next, heads; 0: without gaps */
static void
turn(RpPass *pass, RpWeightKind norm, size_t heads, size_t row, const void *x, void *y, float *rstd)
{
    if (rp_pass_has(pass, norm))
        rp_pass_norm_rope(
            pass, norm,
            (RpNormRopeArgs){.heads = heads, .row_heads = row, .x = x, .y = y, .rstd = rstd});
    else
        rp_pass_rope(pass, norm, (RpRopeArgs){.heads = heads, .row_heads = row, .x = x, .y = y});
}

/* In place: @d of y becomes that of x. Returns: its scale slot, where its amax was recorded; else %NULL: the columns
 * share a scale with those of v, whose amax no kernel records */
static float *
turn_back(RpPass *pass, RpWeightKind norm, size_t heads, size_t row, const void *x, float *rstd,
          void *d)
{
    float *amax;

    if (!rp_pass_has(pass, norm)) {
        rp_pass_rope_backward(pass, norm,
                              (RpRopeArgs){.heads = heads, .row_heads = row, .x = d, .y = d});
        return NULL;
    }
    amax = row == 0 ? rp_pass_scale_slot(pass) : NULL;
    rp_pass_norm_rope_backward(pass, norm,
                               (RpNormRopeArgs){.heads = heads,
                                                .row_heads = row,
                                                .x = x,
                                                .rstd = rstd,
                                                .dy = d,
                                                .dx = d,
                                                .largest = amax});
    return amax;
}

/* Elements of a head's queries, and of its gate behind them. */
static size_t
head_size(const RpBlockShape *z)
{
    return z->queries / z->H;
}

/* Between [T,H,2 D] and [T,H,D]. @out: from the former */
static void
copy_queries(RpPass *pass, const RpBlockShape *z, const void *x, void *y, gboolean out)
{
    const size_t D = head_size(z);

    rp_pass_columns(pass, (RpColumnsArgs){.rows = z->T * z->H,
                                          .n = D,
                                          .x_stride = out ? 2 * D : D,
                                          .y_stride = out ? D : 2 * D,
                                          .x = x,
                                          .y = y});
}

/* The input of o: attention's output, or with its gates, in scratch. */
static void *
gate_out(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a)
{
    if (!z->gated)
        return a->out;
    void *gated = rp_pass_take(pass, &pass->scratch, z->T * z->queries);

    rp_pass_head_gate(
        pass, (RpHeadGateArgs){.x = a->out, .gate = behind(pass, a->q, head_size(z)), .y = gated});
    return gated;
}

static Heads
make_heads(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a)
{
    Heads heads = {.q = a->q, .k = a->k, .plain = a->q};

    if (z->gated) {
        heads.q = rp_pass_take(pass, &pass->scratch, z->T * z->queries);
        heads.plain = heads.q;
        copy_queries(pass, z, a->q, heads.q, TRUE);
    }
    if (!z->rope)
        return heads;
    heads.q = rp_pass_take(pass, &pass->scratch, z->T * z->queries);
    heads.k = rp_pass_take(pass, &pass->scratch, z->T * z->keys);
    if (rp_pass_has(pass, RP_WEIGHT_Q_NORM)) {
        heads.q_rstd = rp_pass_take_floats(&pass->scratch, z->T * z->H);
        heads.k_rstd = rp_pass_take_floats(&pass->scratch, z->T * z->K);
    }
    turn(pass, RP_WEIGHT_Q_NORM, z->H, a->row_heads, heads.plain, heads.q, heads.q_rstd);
    turn(pass, RP_WEIGHT_K_NORM, z->K, a->row_heads, a->k, heads.k, heads.k_rstd);
    return heads;
}

static void
make_qkv(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a, const void *x,
         void *normed, float *rstd)
{
    const gsize before = pass->scratch.used;
    float *amax = rp_pass_block_norm(pass, RP_WEIGHT_INPUT_NORM, z->T, x, normed,
                                     pass->kept.normed.used ? pass->kept.rstd : rstd);
    const RpMatmulOperand n =
        rp_pass_kept_input(pass, RP_WEIGHT_Q, z->T, normed, amax, &pass->kept.normed);

    if (a->row_heads > 0)
        rp_pass_fused(pass, joint, &n, a->q);
    else
        rp_pass_beside(pass, joint, &n, (void *[]){a->q, a->k, a->v});
    pass->scratch.used = before;
}

static void
make_residual(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a, const void *x,
              void *s)
{
    const gsize before = pass->scratch.used;
    const RpMatmulOperand out =
        rp_pass_kept_input(pass, RP_WEIGHT_O, z->T, gate_out(pass, z, a), NULL, &pass->kept.out);

    rp_pass_linear_onto(pass, RP_WEIGHT_O, &out, x, s);
    pass->scratch.used = before;
}

static void
make_out(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *a)
{
    const Heads heads = make_heads(pass, z, a);

    rp_block_attend(pass, z,
                    (RpAttentionArgs){.window = z->window,
                                      .row_heads = a->row_heads,
                                      .q = heads.q,
                                      .k = heads.k,
                                      .v = a->v,
                                      .out = a->out,
                                      .lse = a->lse});
}

void
rp_block_attention_forward(RpPass *pass, const RpBlockShape *z, const void *x, RpSpace *keep,
                           void *s, void *normed, float *rstd)
{
    const RpBlockAttention a = rp_block_attention_take(pass, keep, z);

    if (rp_pass_makes(pass, RP_SAVED_QKV))
        make_qkv(pass, z, &a, x, normed, rstd);
    if (rp_pass_makes(pass, RP_SAVED_ATTENTION))
        make_out(pass, z, &a);
    if (rp_pass_makes(pass, RP_SAVED_RESIDUAL))
        make_residual(pass, z, &a, x, s);
}

/* Backward of the layers of q, k and v; their gradients stand in @d. @n: their input; @dx: its
 * gradient, if it is @wanted */
static void
differentiate_layers(RpPass *pass, const RpBlockShape *z, const RpBlockAttention *d,
                     const RpMatmulOperand *n, float *q_amax, float *k_amax, gboolean wanted,
                     void *dx)
{
    if (d->row_heads > 0) {
        const RpMatmulOperand all =
            rp_pass_operand(pass, RP_WEIGHT_Q, z->T, d->q, RP_OPERAND_GRADIENT, NULL);

        rp_pass_fused_backward(pass, joint, n, &all, wanted, dx, FALSE);
        return;
    }
    rp_pass_beside_backward(pass, joint, n, (const void *[]){d->q, d->k, d->v},
                            (float *[]){q_amax, k_amax, NULL}, wanted, dx, FALSE);
}

void
rp_block_attention_backward(RpPass *pass, const RpBlockShape *z, const void *x,
                            const RpBlockAttention *a, const void *ds, void *normed, float *rstd,
                            void *dx)
{
    RpSpace *scratch = &pass->scratch;
    void *d_out = normed; /* is over when the input is normed again */
    RpBlockAttention d;

    take_qkv(pass, scratch, z, &d);

    const Heads heads = make_heads(pass, z, a);
    void *dq = z->gated ? rp_pass_take(pass, scratch, z->T * z->queries) : d.q;
    const gsize before = scratch->used;
    RpMatmulOperand n =
        pass->kept.out.used
            ? rp_pass_kept_sums(z->T, &pass->kept.out)
            : rp_pass_operand(pass, RP_WEIGHT_O, z->T, gate_out(pass, z, a), RP_OPERAND_SUMS, NULL);
    const RpMatmulOperand o =
        rp_pass_operand(pass, RP_WEIGHT_O, z->T, ds, RP_OPERAND_GRADIENT, pass->amax);

    rp_pass_linear_backward(pass, RP_WEIGHT_O, &n, &o, d_out, FALSE);
    scratch->used = before;
    if (z->gated)
        rp_pass_head_gate_backward(pass,
                                   (RpHeadGateArgs){.x = a->out,
                                                    .gate = behind(pass, a->q, head_size(z)),
                                                    .dy = d_out,
                                                    .dx = d_out,
                                                    .d_gate = behind(pass, d.q, head_size(z))});
    if (rp_pass_has(pass, RP_WEIGHT_SINKS))
        rp_pass_sink_backward(pass, a->out, a->lse, d_out);
    rp_pass_attention_backward(pass, (RpAttentionArgs){.window = z->window,
                                                       .row_heads = a->row_heads,
                                                       .q = heads.q,
                                                       .k = heads.k,
                                                       .v = a->v,
                                                       .out = a->out,
                                                       .lse = a->lse,
                                                       .d_out = d_out,
                                                       .dq = dq,
                                                       .dk = d.k,
                                                       .dv = d.v});

    float *q_amax = NULL, *k_amax = NULL;

    if (z->rope) {
        q_amax =
            turn_back(pass, RP_WEIGHT_Q_NORM, z->H, a->row_heads, heads.plain, heads.q_rstd, dq);
        k_amax = turn_back(pass, RP_WEIGHT_K_NORM, z->K, a->row_heads, a->k, heads.k_rstd, d.k);
    }
    if (z->gated) {
        copy_queries(pass, z, dq, d.q, FALSE);
        q_amax = NULL; /* gates have none */
    }
    if (pass->kept.normed.used) {
        rstd = pass->kept.rstd;
        n = rp_pass_kept_sums(z->T, &pass->kept.normed);
    } else {
        float *amax = rp_pass_block_norm(pass, RP_WEIGHT_INPUT_NORM, z->T, x, normed, rstd);

        n = rp_pass_operand(pass, RP_WEIGHT_Q, z->T, normed, RP_OPERAND_SUMS, amax);
    }

    const gboolean wanted = !pass->lowest || rp_pass_trains(pass, RP_WEIGHT_INPUT_NORM);

    differentiate_layers(pass, z, &d, &n, q_amax, k_amax, wanted, dx);
    if (wanted)
        rp_pass_block_norm_backward(pass, RP_WEIGHT_INPUT_NORM, z->T, x, rstd, ds, dx, NULL);
}
