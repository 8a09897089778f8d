/*
 * One transformer block, forward and backward: attention (attention.c), then an MLP. Kept:
 * x, s [T,C], and the values kept by the parts; saved values stand elsewhere
 * (core/profile/profile.h). Values that cost only a pass over memory are computed again. Backward
 * takes the same steps in reverse.
 */
#include "exec/network/private.h"

/*
 * The MLP of a dense block: gate, up = n Wg, n Wu;  y = s + swiglu(gate, up) Wd, n = norm(s).
 * gate, up [T,m] are kept, and turn into their gradients where they stand. Where their matrices are one,
 * so are they, [T,2m]: one matmul makes both, and one each the gradients of both and of their input.
 *
 * Long micro-batches go through in tiles of rows, and only one tile has gate and up at a time. Nothing of
 * the MLP is kept then: the backward of a tile makes its gate and up again.
 *
 *   rows      |--- tile ---|--- tile ---|- rest -|
 *   forward    gate, up, y  gate, up, y   ...
 *   backward   gate, up, their gradients, ds;  the same of the next tile: sums += its part
 */

typedef struct {
    void *gate, *up;
    size_t row; /* 0: apart; else m */
} Mlp;

static const RpWeightKind gate_up[] = {RP_WEIGHT_GATE, RP_WEIGHT_UP};
static const RpJoint joint = {gate_up, G_N_ELEMENTS(gate_up)};

/* A pass over rows of m takes eight values at a time. Dropout reads a product without gaps. */
static gboolean
are_one(const RpPass *pass, const RpBlockShape *z)
{
    return z->m % 8 == 0 && rp_pass_joins(pass, joint) &&
           (rp_pass_adapters(pass, RP_WEIGHT_DOWN, 0).rank == 0 || pass->network->dropout == 0);
}

static Mlp
take_mlp(RpPass *pass, RpSpace *space, const RpBlockShape *z)
{
    Mlp mlp = {.row = are_one(pass, z) ? z->m : 0};

    if (mlp.row > 0) {
        mlp.gate = rp_pass_take(pass, space, 2 * z->T * z->m);
        mlp.up = (guint8 *)mlp.gate + z->m * rp_dtype_size(pass->network->options.dtype);
        return mlp;
    }
    mlp.gate = rp_pass_take(pass, space, z->T * z->m);
    mlp.up = rp_pass_take(pass, space, z->T * z->m);
    return mlp;
}

/* Rows of a tile: z->T, if there is one. In fp8 all rows have one scale. */
static size_t
tile_rows(const RpPass *pass, const RpBlockShape *z)
{
    const size_t asked = pass->network->options.mlp_tile;
    const size_t rows = asked > 0 ? asked : z->T > RP_MLP_MOST_ROWS ? RP_MLP_TILE_ROWS : z->T;

    return pass->layout->has_fp8 ? z->T : MIN(rows, z->T);
}

/* Rows of @z from @first on, @rows of them at most. */
static RpBlockShape
begin_tile(RpPass *pass, const RpBlockShape *z, size_t first, size_t rows)
{
    RpBlockShape tile = *z;

    tile.T = MIN(rows, z->T - first);
    pass->first_row = first;
    pass->sums_begun = first > 0;
    return tile;
}

static void
end_tiles(RpPass *pass)
{
    pass->first_row = 0;
    pass->sums_begun = FALSE;
}

static void
make_mlp(RpPass *pass, const RpBlockShape *z, const void *normed, const Mlp *mlp)
{
    const gsize before = pass->scratch.used;
    const RpMatmulOperand n =
        rp_pass_kept_input(pass, RP_WEIGHT_GATE, z->T, normed, pass->amax, &pass->kept.post);

    if (mlp->row > 0)
        rp_pass_fused(pass, joint, &n, mlp->gate);
    else
        rp_pass_beside(pass, joint, &n, (void *[]){mlp->gate, mlp->up});
    pass->scratch.used = before;
}

/* @stays: gate and up are read once more; else the product takes their place */
static void
finish_mlp(RpPass *pass, const RpBlockShape *z, const Mlp *mlp, gboolean stays, const void *s,
           void *y)
{
    void *product = stays ? rp_pass_take(pass, &pass->scratch, z->T * z->m) : mlp->gate;
    float *amax = rp_pass_scale_slot(pass);

    rp_pass_swiglu(pass, z->T * z->m, mlp->row, mlp->gate, mlp->up, product, amax);
    RpMatmulOperand x =
        rp_pass_kept_input(pass, RP_WEIGHT_DOWN, z->T, product, amax, &pass->kept.product);

    if (y == NULL)
        return;
    if (product == mlp->gate)
        x.stride = 2 * mlp->row;
    rp_pass_linear_onto(pass, RP_WEIGHT_DOWN, &x, s, y);
}

static void
mlp_forward(RpPass *pass, const RpBlockShape *z, const void *s, const void *normed, RpSpace *kept,
            void *y)
{
    const size_t rows = tile_rows(pass, z);
    const gsize before = pass->scratch.used;
    const gboolean stays = kept != NULL || (pass->saved & RP_SAVED(MLP)) != 0;

    if (rows == z->T) {
        RpSpace *space = kept != NULL ? kept : &pass->scratch;
        const Mlp mlp = take_mlp(pass, rp_pass_saved_space(pass, space, RP_SAVED_MLP), z);

        if (rp_pass_makes(pass, RP_SAVED_MLP))
            make_mlp(pass, z, normed, &mlp);
        if (y != NULL || pass->kept.product.used)
            finish_mlp(pass, z, &mlp, stays, s, y);
        return;
    }
    for (size_t first = 0; first < z->T && y != NULL; first += rows) {
        const RpBlockShape tile = begin_tile(pass, z, first, rows);
        const Mlp mlp = take_mlp(pass, &pass->scratch, &tile);

        make_mlp(pass, &tile, rp_pass_row(pass, normed, first), &mlp);
        finish_mlp(pass, &tile, &mlp, FALSE, rp_pass_row(pass, s, first),
                   rp_pass_row(pass, y, first));
        pass->scratch.used = before;
    }
    end_tiles(pass);
}

/* Backward of the layers of gate and up, whose gradients stand in @mlp. @x: their input; @ds:
 * (out): its gradient */
static void
differentiate_layers(RpPass *pass, const RpBlockShape *z, const Mlp *mlp, const RpMatmulOperand *x,
                     float *const amax[3], void *ds)
{
    const RpMatmulOperand both = rp_pass_plain(z->T, mlp->gate);

    if (mlp->row > 0)
        rp_pass_fused_backward(pass, joint, x, &both, TRUE, ds, FALSE);
    else
        rp_pass_beside_backward(pass, joint, x, (const void *[]){mlp->gate, mlp->up}, amax, TRUE,
                                ds, FALSE);
}

/* gate and up become their gradients. @amax: their scale slots, and the product's */
static void
differentiate_product(RpPass *pass, const RpBlockShape *z, const Mlp *mlp, const void *dy,
                      float *const amax[3])
{
    const gsize before = pass->scratch.used;
    void *product = rp_pass_take(pass, &pass->scratch, z->T * z->m); /* its gradient first */
    const RpMatmulOperand d =
        rp_pass_operand(pass, RP_WEIGHT_DOWN, z->T, dy, RP_OPERAND_GRADIENT, NULL);

    rp_pass_linear_input(pass, RP_WEIGHT_DOWN, &d, product, FALSE);
    rp_pass_swiglu_backward(pass, z->T * z->m, mlp->row, mlp->gate, mlp->up, product, amax);

    const RpMatmulOperand x =
        pass->kept.product.used
            ? rp_pass_kept_sums(z->T, &pass->kept.product)
            : rp_pass_operand(pass, RP_WEIGHT_DOWN, z->T, product, RP_OPERAND_SUMS, amax[2]);

    rp_pass_linear_sums(pass, RP_WEIGHT_DOWN, &x, &d);
    pass->scratch.used = before;
}

/* The input of gate and up, normed anew unless its fp8 values are kept. */
static RpMatmulOperand
norm_again(RpPass *pass, const RpBlockShape *z, const void *s, void *normed, float *rstd)
{
    if (pass->kept.post.used)
        return rp_pass_kept_sums(z->T, &pass->kept.post);
    float *amax = rp_pass_block_norm(pass, RP_WEIGHT_POST_NORM, z->T, s, normed, rstd);

    return rp_pass_operand(pass, RP_WEIGHT_UP, z->T, normed, RP_OPERAND_SUMS, amax);
}

/* Computes ds up to the norm, and all sums but the norm's. */
static void
backward_tiles(RpPass *pass, const RpBlockShape *z, size_t rows, const void *s, const void *dy,
               void *normed, float *rstd, void *ds)
{
    float *const none[] = {NULL, NULL, NULL};
    const gsize before = pass->scratch.used;

    norm_again(pass, z, s, normed, rstd);
    for (size_t first = 0; first < z->T; first += rows) {
        const RpBlockShape tile = begin_tile(pass, z, first, rows);
        const Mlp mlp = take_mlp(pass, &pass->scratch, &tile);
        const void *n = rp_pass_row(pass, normed, first);
        const RpMatmulOperand x = rp_pass_plain(tile.T, n);

        make_mlp(pass, &tile, n, &mlp);
        differentiate_product(pass, &tile, &mlp, rp_pass_row(pass, dy, first), none);
        differentiate_layers(pass, &tile, &mlp, &x, none, rp_pass_row(pass, ds, first));
        pass->scratch.used = before;
    }
    end_tiles(pass);
}

static void
mlp_backward(RpPass *pass, const RpBlockShape *z, const void *s, RpSpace *kept, const void *dy,
             void *normed, float *rstd, void *ds)
{
    const size_t rows = tile_rows(pass, z);
    const gsize before = pass->scratch.used;

    if (rows < z->T) {
        backward_tiles(pass, z, rows, s, dy, normed, rstd, ds);
    } else {
        const Mlp mlp = take_mlp(pass, rp_pass_saved_space(pass, kept, RP_SAVED_MLP), z);
        float *const amax[] = {rp_pass_scale_slot(pass), rp_pass_scale_slot(pass),
                               rp_pass_scale_slot(pass)};

        differentiate_product(pass, z, &mlp, dy, amax);
        const RpMatmulOperand x = norm_again(pass, z, s, normed, rstd);

        differentiate_layers(pass, z, &mlp, &x, amax, ds);
        pass->scratch.used = before;
    }
    if (pass->kept.post.used)
        rstd = pass->kept.post_rstd;
    pass->amax = rp_pass_scale_slot(pass);
    rp_pass_block_norm_backward(pass, RP_WEIGHT_POST_NORM, z->T, s, rstd, dy, ds, pass->amax);
}

const RpMlpOps rp_dense_mlp_ops = {.forward = mlp_forward, .backward = mlp_backward};

static RpBlockShape
shape_of(const RpPass *pass)
{
    const RpModel *model = pass->network->model;

    return (RpBlockShape){.T = pass->network->tokens,
                          .C = model->hidden,
                          .H = model->heads,
                          .K = model->kv_heads,
                          .m = model->intermediate,
                          .queries = (size_t)model->heads * model->head_dim,
                          .keys = (size_t)model->kv_heads * model->head_dim,
                          .window = rp_model_block_window(model, pass->layer - 1),
                          .rope = rp_model_block_has_rope(model, pass->layer - 1),
                          .gated = rp_architectures[model->architecture].gated_attention,
                          .delta = rp_model_block_is_delta(model, pass->layer - 1),
                          .columns = rp_model_delta_columns(model),
                          .values = (size_t)model->delta_value_heads * model->delta_value_dim,
                          .gates = model->delta_value_heads};
}

static const RpMlpOps *
mlp_of(const RpPass *pass)
{
    return pass->network->model->experts > 1 ? &rp_experts_mlp_ops : &rp_dense_mlp_ops;
}

/* The MLP's input. */
static void
norm_residual(RpPass *pass, const RpBlockShape *z, const void *s, void *normed, float *rstd)
{
    pass->amax = rp_pass_block_norm(pass, RP_WEIGHT_POST_NORM, z->T, s, normed,
                                    pass->kept.post.used ? pass->kept.post_rstd : rstd);
}

static void
block_forward(RpPass *pass, const void *x, RpSpace *kept, void *y)
{
    const RpBlockShape z = shape_of(pass);
    RpSpace *scratch = &pass->scratch;
    RpSpace *keep = kept != NULL ? kept : scratch;

    rp_pass_begin_fp8(pass);
    rp_pass_take_kept(pass, kept, z.T);

    void *s = rp_pass_take(pass, rp_pass_saved_space(pass, keep, RP_SAVED_RESIDUAL), z.T * z.C);
    void *normed = rp_pass_take(pass, scratch, z.T * z.C);
    float *rstd = rp_pass_take_floats(scratch, z.T);
    const gsize before = scratch->used;

    if (z.delta)
        rp_block_delta_forward(pass, &z, x, keep, s, normed, rstd);
    else
        rp_block_attention_forward(pass, &z, x, keep, s, normed, rstd);
    if (rp_pass_makes(pass, RP_SAVED_RESIDUAL) || rp_pass_makes(pass, RP_SAVED_MLP))
        norm_residual(pass, &z, s, normed, rstd);
    scratch->used = before;
    mlp_of(pass)->forward(pass, &z, s, normed, kept, y);
}

static void
block_backward(RpPass *pass, const void *x, RpSpace *kept, const void *dy, void *dx)
{
    const RpBlockShape z = shape_of(pass);
    RpSpace *scratch = &pass->scratch;

    rp_pass_take_kept(pass, kept, z.T);
    if (pass->measuring) /* with the forward's saved values it takes more */
        pass->kept = (RpBlockKept){0};

    const void *s =
        rp_pass_take(pass, rp_pass_saved_space(pass, kept, RP_SAVED_RESIDUAL), z.T * z.C);
    RpBlockAttention a = {0};
    RpBlockDelta delta = {0};

    if (z.delta)
        delta = rp_block_delta_take(pass, kept, &z);
    else
        a = rp_block_attention_take(pass, kept, &z);

    rp_pass_begin_fp8(pass);

    void *ds = rp_pass_take(pass, scratch, z.T * z.C);
    void *normed = rp_pass_take(pass, scratch, z.T * MAX(z.C, z.delta ? z.values : z.queries));
    float *rstd = rp_pass_take_floats(scratch, z.T);
    const gsize before = scratch->used;

    mlp_of(pass)->backward(pass, &z, s, kept, dy, normed, rstd, ds);
    scratch->used = before;
    rp_balance_pass_on(pass, dy, dx);
    if (z.delta)
        rp_block_delta_backward(pass, &z, x, &delta, ds, normed, rstd, dx);
    else
        rp_block_attention_backward(pass, &z, x, &a, ds, normed, rstd, dx);
}

static void
join_fp8(const RpPass *pass, RpLayerLayout *layout)
{
    const RpBlockShape z = shape_of(pass);

    rp_block_attention_fuse_fp8(pass, &z, layout);
}

const RpLayerOps rp_block_ops = {.keeps_input = TRUE,
                                 .join_fp8 = join_fp8,
                                 .forward = block_forward,
                                 .backward = block_backward};
