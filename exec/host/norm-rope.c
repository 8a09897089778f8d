/*
 * q/k norm and rope: rmsnorm.c and rope.c, one after the other, in place.
 * x, y: [T,H,D]; rows of the norm are heads. Tokens of x, dy and dx may stand apart. Formulas: exec/kernels/kernels.h.
 */
#include "exec/host/host-private.h"

static RpRmsnormArgs
norm_of(const RpNormRopeArgs *args)
{
    return (RpRmsnormArgs){.dtype = args->dtype,
                           .rows = args->tokens * args->heads,
                           .n = args->head_size,
                           .epsilon = args->epsilon,
                           .x = args->x,
                           .weight = args->weight,
                           .y = args->y,
                           .rstd = args->rstd,
                           .dy = args->dx, /* rotated back there */
                           .dx = args->dx,
                           .d_weight = args->d_weight,
                           .workspace = args->workspace,
                           .largest = args->largest};
}

static RpHostHeads
heads_of(const RpNormRopeArgs *args)
{
    return (RpHostHeads){args->heads, args->row_heads > 0 ? args->row_heads : args->heads};
}

static RpRopeArgs
rope_of(const RpNormRopeArgs *args, const void *x, void *y)
{
    return (RpRopeArgs){.dtype = args->dtype,
                        .tokens = args->tokens,
                        .heads = args->heads,
                        .head_size = args->head_size,
                        .positions = args->positions,
                        .cosines = args->cosines,
                        .sines = args->sines,
                        .x = x,
                        .y = y};
}

void
rp_host_norm_rope_forward(RpKernelStream *stream, const RpNormRopeArgs *args)
{
    RpRmsnormArgs norm = norm_of(args);
    const RpRopeArgs rope = rope_of(args, args->y, args->y);

    norm.largest = NULL;

    rp_host_norm_heads(&norm, heads_of(args));
    rp_host_rope_forward(stream, &rope);
}

size_t
rp_host_norm_rope_backward_workspace(const RpNormRopeArgs *args)
{
    const RpRmsnormArgs norm = norm_of(args);

    return rp_host_rmsnorm_backward_workspace(&norm);
}

void
rp_host_norm_rope_backward(RpKernelStream *stream, const RpNormRopeArgs *args)
{
    const RpRmsnormArgs norm = norm_of(args);
    RpRopeArgs rope = rope_of(args, args->dy, args->dx);

    rope.row_heads = args->row_heads;
    g_assert(args->row_heads == 0 || args->largest == NULL);
    rp_host_rope_backward(stream, &rope);
    rp_host_norm_heads_backward(&norm, heads_of(args));
}
