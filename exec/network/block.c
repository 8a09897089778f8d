/*
 * One transformer block, forward and backward: attention (attention.c), then an MLP (mlp.c). Kept:
 * x, s [T,C], and the values kept by the parts; saved values stand elsewhere
 * (core/profile/saved.h). Values that cost only a pass over memory are computed again. Backward
 * takes the same steps in reverse.
 */
#include "exec/network/block.h"

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
                          .rope = rp_model_block_has_rope(model, pass->layer - 1)};
}

static const RpMlpOps *
mlp_of(const RpPass *pass)
{
    return pass->network->model->experts > 1 ? &rp_experts_mlp_ops : &rp_dense_mlp_ops;
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

    rp_block_attention_forward(pass, &z, x, keep, s, normed, rstd);
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
        pass->kept.used = FALSE;

    const void *s =
        rp_pass_take(pass, rp_pass_saved_space(pass, kept, RP_SAVED_RESIDUAL), z.T * z.C);
    const RpBlockAttention a = rp_block_attention_take(pass, kept, &z);

    rp_pass_begin_fp8(pass);

    void *ds = rp_pass_take(pass, scratch, z.T * z.C);
    void *normed = rp_pass_take(pass, scratch, z.T * MAX(z.C, z.queries));
    float *rstd = rp_pass_take_floats(scratch, z.T);
    const gsize before = scratch->used;

    mlp_of(pass)->backward(pass, &z, s, kept, dy, normed, rstd, ds);
    scratch->used = before;
    rp_balance_pass_on(pass, dy, dx);
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
