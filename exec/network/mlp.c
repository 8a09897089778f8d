/*
 * The MLP of a dense block: gate, up = n Wg, n Wu;  y = s + swiglu(gate, up) Wd, n = norm(s).
 * gate, up [T,m] are kept, and turn into their gradients where they stand.
 */
#include "exec/network/block.h"

typedef struct {
    void *gate, *up;
} Mlp;

static Mlp
take_mlp(const RpPass *pass, RpRoom *room, const RpBlockShape *z)
{
    Mlp mlp;

    mlp.gate = rp_pass_take(pass, room, z->T * z->m);
    mlp.up = rp_pass_take(pass, room, z->T * z->m);
    return mlp;
}

static void
mlp_forward(RpPass *pass, const RpBlockShape *z, const void *s, const void *normed, RpRoom *kept,
            void *y)
{
    RpRoom *scratch = &pass->scratch;
    const Mlp mlp = take_mlp(pass, kept != NULL ? kept : scratch, z);
    void *product;

    rp_pass_linear(pass, RP_WEIGHT_GATE, z->T, normed, mlp.gate);
    rp_pass_linear(pass, RP_WEIGHT_UP, z->T, normed, mlp.up);
    if (y == NULL)
        return;
    product = kept != NULL ? rp_pass_take(pass, scratch, z->T * z->m) : mlp.gate;
    rp_pass_swiglu(pass, mlp.gate, mlp.up, product);
    rp_pass_linear(pass, RP_WEIGHT_DOWN, z->T, product, y);
    rp_pass_add(pass, s, y);
}

static void
mlp_backward(RpPass *pass, const RpBlockShape *z, const void *s, RpRoom *kept, const void *dy,
             void *normed, float *rstd, void *ds)
{
    const Mlp mlp = take_mlp(pass, kept, z);
    void *product = rp_pass_take(pass, &pass->scratch, z->T * z->m); /* its gradient first */

    rp_pass_linear_input(pass, RP_WEIGHT_DOWN, z->T, dy, product, FALSE);
    rp_pass_swiglu_backward(pass, mlp.gate, mlp.up, product);
    rp_pass_linear_sums(pass, RP_WEIGHT_DOWN, z->T, product, dy);
    rp_pass_norm(pass, RP_WEIGHT_POST_NORM,
                 (RpRmsnormArgs){.rows = z->T, .n = z->C, .x = s, .y = normed, .rstd = rstd});
    rp_pass_linear_backward(pass, RP_WEIGHT_UP, z->T, normed, mlp.up, ds, FALSE);
    rp_pass_linear_backward(pass, RP_WEIGHT_GATE, z->T, normed, mlp.gate, ds, TRUE);
    rp_pass_norm_backward(
        pass, RP_WEIGHT_POST_NORM,
        (RpRmsnormArgs){
            .rows = z->T, .n = z->C, .x = s, .rstd = rstd, .dy = ds, .d_residual = dy, .dx = ds});
}

const RpMlpOps rp_dense_mlp_ops = {.forward = mlp_forward, .backward = mlp_backward};
