/*
 * The MLP of a dense block: gate, up = n Wg, n Wu;  y = s + swiglu(gate, up) Wd, n = norm(s).
 * gate, up [T,m] are kept, and turn into their gradients where they stand. Where their matrices are one,
 * so are they, [T,2m]: one matmul makes both, and one each the gradients of both and of their input.
 */
#include "exec/network/block.h"

typedef struct {
    void *gate, *up;
    size_t row; /* 0: apart; else m */
} Mlp;

static const RpWeightKind gate_up[] = {RP_WEIGHT_GATE, RP_WEIGHT_UP};
static const RpJoint joint = {gate_up, G_N_ELEMENTS(gate_up)};

/* A pass over rows of m takes eight values at a time. Adapters of down read a product without gaps. */
static gboolean
are_one(const RpPass *pass, const RpBlockShape *z)
{
    return z->m % 8 == 0 && rp_pass_joins(pass, joint) &&
           rp_pass_adapters(pass, RP_WEIGHT_DOWN, 0).rank == 0;
}

static Mlp
take_mlp(RpPass *pass, RpRoom *room, const RpBlockShape *z)
{
    RpRoom *made = rp_pass_room(pass, room, RP_SAVED_MLP);
    Mlp mlp = {.row = are_one(pass, z) ? z->m : 0};

    if (mlp.row > 0) {
        mlp.gate = rp_pass_take(pass, made, 2 * z->T * z->m);
        mlp.up = (guint8 *)mlp.gate + z->m * rp_dtype_size(pass->network->options.dtype);
        return mlp;
    }
    mlp.gate = rp_pass_take(pass, made, z->T * z->m);
    mlp.up = rp_pass_take(pass, made, z->T * z->m);
    return mlp;
}

static void
mlp_forward(RpPass *pass, const RpBlockShape *z, const void *s, const void *normed, RpRoom *kept,
            void *y)
{
    RpRoom *scratch = &pass->scratch;
    const Mlp mlp = take_mlp(pass, kept != NULL ? kept : scratch, z);
    const gboolean stays = kept != NULL || (pass->saved & RP_SAVED(MLP)) != 0;
    const gsize before = scratch->used;
    void *product;

    if (rp_pass_makes(pass, RP_SAVED_MLP)) {
        const RpOperand n =
            rp_pass_kept_input(pass, RP_WEIGHT_GATE, z->T, normed, pass->noted, &pass->kept.post);

        if (mlp.row > 0) {
            rp_pass_joined(pass, joint, &n, mlp.gate);
        } else {
            rp_pass_linear(pass, RP_WEIGHT_GATE, &n, mlp.gate);
            rp_pass_linear(pass, RP_WEIGHT_UP, &n, mlp.up);
        }
        scratch->used = before;
    }
    if (y == NULL && !pass->kept.used)
        return;
    product = stays ? rp_pass_take(pass, scratch, z->T * z->m) : mlp.gate;

    float *noted = rp_pass_cell(pass);

    rp_pass_swiglu(pass, mlp.row, mlp.gate, mlp.up, product, noted);
    RpOperand x =
        rp_pass_kept_input(pass, RP_WEIGHT_DOWN, z->T, product, noted, &pass->kept.product);

    if (y == NULL)
        return;
    if (product == mlp.gate)
        x.stride = 2 * mlp.row;
    rp_pass_linear_onto(pass, RP_WEIGHT_DOWN, &x, s, y);
}

/* Of gate and up, where their gradients stand. @x: their input; @ds: (out): its gradient */
static void
differentiate_layers(RpPass *pass, const RpBlockShape *z, const Mlp *mlp, const RpOperand *x,
                     float *const noted[3], void *ds)
{
    const gsize behind = pass->scratch.used;
    RpOperand d = rp_pass_plain(z->T, mlp->gate);

    if (mlp->row > 0) {
        rp_pass_joined_backward(pass, joint, x, &d, ds);
        return;
    }
    d = rp_pass_operand(pass, RP_WEIGHT_UP, z->T, mlp->up, RP_OPERAND_GRADIENT, noted[1]);
    rp_pass_linear_backward(pass, RP_WEIGHT_UP, x, &d, ds, FALSE);
    pass->scratch.used = behind;
    d = rp_pass_operand(pass, RP_WEIGHT_GATE, z->T, mlp->gate, RP_OPERAND_GRADIENT, noted[0]);
    rp_pass_linear_backward(pass, RP_WEIGHT_GATE, x, &d, ds, TRUE);
}

static void
mlp_backward(RpPass *pass, const RpBlockShape *z, const void *s, RpRoom *kept, const void *dy,
             void *normed, float *rstd, void *ds)
{
    const Mlp mlp = take_mlp(pass, kept, z);
    void *product = rp_pass_take(pass, &pass->scratch, z->T * z->m); /* its gradient first */
    const gsize before = pass->scratch.used;

    RpOperand d = rp_pass_operand(pass, RP_WEIGHT_DOWN, z->T, dy, RP_OPERAND_GRADIENT, NULL);
    float *const noted[] = {rp_pass_cell(pass), rp_pass_cell(pass), rp_pass_cell(pass)};
    float *norm = rp_pass_cell(pass);

    rp_pass_linear_input(pass, RP_WEIGHT_DOWN, &d, product, FALSE);
    rp_pass_swiglu_backward(pass, mlp.row, mlp.gate, mlp.up, product, noted);

    RpOperand x = pass->kept.used ? rp_pass_kept_sums(z->T, &pass->kept.product)
                                  : rp_pass_operand(pass, RP_WEIGHT_DOWN, z->T, product,
                                                    RP_OPERAND_SUMS, noted[2]);

    rp_pass_linear_sums(pass, RP_WEIGHT_DOWN, &x, &d);
    pass->scratch.used = before;
    if (pass->kept.used) {
        rstd = pass->kept.post_rstd;
        x = rp_pass_kept_sums(z->T, &pass->kept.post);
    } else {
        rp_pass_norm(
            pass, RP_WEIGHT_POST_NORM,
            (RpRmsnormArgs){
                .rows = z->T, .n = z->C, .x = s, .y = normed, .rstd = rstd, .largest = norm});
        x = rp_pass_operand(pass, RP_WEIGHT_UP, z->T, normed, RP_OPERAND_SUMS, norm);
    }

    differentiate_layers(pass, z, &mlp, &x, noted, ds);
    pass->scratch.used = before;
    pass->noted = rp_pass_cell(pass);
    rp_pass_norm_backward(pass, RP_WEIGHT_POST_NORM,
                          (RpRmsnormArgs){.rows = z->T,
                                          .n = z->C,
                                          .x = s,
                                          .rstd = rstd,
                                          .dy = ds,
                                          .d_residual = dy,
                                          .dx = ds,
                                          .largest = pass->noted});
}

const RpMlpOps rp_dense_mlp_ops = {.forward = mlp_forward, .backward = mlp_backward};
