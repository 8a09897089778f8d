/*
 * Gated DeltaNet of a block, forward and backward, where other blocks have attention.
 *
 *   forward    n = norm(x);  qkv, z, b, a = n Wqkv, n Wz, n Wb, n Wa
 *              u = silu(conv(qkv));  out = delta rule(u, b, a);  s = x + (norm(out) silu(z)) Wo
 *   kept       qkv [T,2 Hk Dk + Hv Dv], z and out [T,Hv Dv], b and a [T,Hv], or both [T,2 Hv], where their matrices are
 *              one. n, u and the product are made anew, and so are the states of the delta rule.
 *
 * With fp8 (operand.c) qkv, z and the last layer read fp8 values; b and a are too narrow. These read n in 16 bits, so that
 * the backward norms it again in any case, and its fp8 values are not kept.
 *
 * Packed samples begin with a state of zeros, and the convolution sees none before their first tokens.
 *
 * With a cache, the rule runs token by token from a state that calls leave there, and so does the convolution from its
 * last inputs: a token costs the same however long its sequence is.
 */
#include "exec/network/private.h"

static const RpWeightKind inputs[] = {RP_WEIGHT_DELTA_QKV, RP_WEIGHT_DELTA_Z};
static const RpWeightKind gates[] = {RP_WEIGHT_DELTA_B, RP_WEIGHT_DELTA_A};
static const RpJoint wide = {inputs, G_N_ELEMENTS(inputs)}, narrow = {gates, G_N_ELEMENTS(gates)};

/* qkv, z, b and a, or their gradients. */
static RpBlockDelta
take_inputs(RpPass *pass, RpSpace *space, const RpBlockShape *z)
{
    RpBlockDelta a = {.qkv = rp_pass_take(pass, space, z->T * z->columns),
                      .z = rp_pass_take(pass, space, z->T * z->values),
                      .b = rp_pass_take(pass, space, 2 * z->T * z->gates)};
    const gboolean joins = !rp_pass_has_cache(pass) && rp_pass_joins(pass, narrow);

    a.gate_row = joins ? 2 * z->gates : z->gates;
    a.a =
        (guint8 *)a.b + (joins ? 1 : z->T) * z->gates * rp_dtype_size(pass->network->options.dtype);
    return a;
}

RpBlockDelta
rp_block_delta_take(RpPass *pass, RpSpace *space, const RpBlockShape *z)
{
    RpBlockDelta a = take_inputs(pass, rp_pass_saved_space(pass, space, RP_SAVED_QKV), z);

    a.out =
        rp_pass_take(pass, rp_pass_saved_space(pass, space, RP_SAVED_ATTENTION), z->T * z->values);
    return a;
}

/* The input of the first linear layers. */
static RpMatmulOperand
norm_input(RpPass *pass, const RpBlockShape *z, const void *x, void *normed, float *rstd,
           RpOperandUse use)
{
    float *amax = rp_pass_block_norm(pass, RP_WEIGHT_INPUT_NORM, z->T, x, normed, rstd);

    return rp_pass_operand(pass, RP_WEIGHT_DELTA_QKV, z->T, normed, use, amax);
}

static void
make_inputs(RpPass *pass, const RpBlockShape *z, const RpBlockDelta *a, const void *x, void *normed,
            float *rstd)
{
    const gsize before = pass->scratch.used;
    const RpMatmulOperand n = norm_input(pass, z, x, normed, rstd, RP_OPERAND_INPUT);

    rp_pass_beside(pass, wide, &n, (void *[]){a->qkv, a->z});
    if (a->gate_row > z->gates)
        rp_pass_fused(pass, narrow, &n, a->b);
    else
        rp_pass_beside(pass, narrow, &n, (void *[]){a->b, a->a});
    pass->scratch.used = before;
}

static void
make_out(RpPass *pass, const RpBlockShape *z, const RpBlockDelta *a)
{
    const gsize before = pass->scratch.used;
    void *u = rp_pass_take(pass, &pass->scratch, z->T * z->columns);

    if (rp_pass_has_cache(pass)) {
        rp_pass_conv_step(pass, a->qkv, u, rp_block_cache(pass, 0));
        rp_pass_delta_step(
            pass,
            (RpDeltaStepArgs){
                .qkv = u, .b = a->b, .a = a->a, .out = a->out, .states = rp_block_cache(pass, 1)});
    } else {
        rp_pass_conv(pass, a->qkv, u);
        rp_pass_delta(
            pass,
            (RpDeltaArgs){.qkv = u, .gate_row = a->gate_row, .b = a->b, .a = a->a, .out = a->out});
    }
    pass->scratch.used = before;
}

/* The input of the last linear layer, in scratch. */
static void *
gate_out(RpPass *pass, const RpBlockShape *z, const RpBlockDelta *a)
{
    void *product = rp_pass_take(pass, &pass->scratch, z->T * z->values);

    rp_pass_gated_norm(pass, (RpGatedNormArgs){.x = a->out, .gate = a->z, .y = product});
    return product;
}

void
rp_block_delta_forward(RpPass *pass, const RpBlockShape *z, const void *x, RpSpace *keep, void *s,
                       void *normed, float *rstd)
{
    const RpBlockDelta a = rp_block_delta_take(pass, keep, z);
    const gsize before = pass->scratch.used;

    if (rp_pass_makes(pass, RP_SAVED_QKV))
        make_inputs(pass, z, &a, x, normed, rstd);
    if (rp_pass_makes(pass, RP_SAVED_ATTENTION))
        make_out(pass, z, &a);
    if (rp_pass_makes(pass, RP_SAVED_RESIDUAL)) {
        const RpMatmulOperand product = rp_pass_kept_input(
            pass, RP_WEIGHT_DELTA_OUT, z->T, gate_out(pass, z, &a), NULL, &pass->kept.out);

        rp_pass_linear_onto(pass, RP_WEIGHT_DELTA_OUT, &product, x, s);
    }
    pass->scratch.used = before;
}

/* Gradients of the linear layers' outputs. */
static RpBlockDelta
differentiate_rule(RpPass *pass, const RpBlockShape *z, const RpBlockDelta *a, void *d_out)
{
    RpSpace *scratch = &pass->scratch;
    const RpBlockDelta d = take_inputs(pass, scratch, z);
    const gsize before = scratch->used;
    void *du = rp_pass_take(pass, scratch, z->T * z->columns);

    rp_pass_gated_norm_backward(
        pass,
        (RpGatedNormArgs){.x = a->out, .gate = a->z, .dy = d_out, .dx = d_out, .d_gate = d.z});
    rp_pass_conv(pass, a->qkv, d.qkv); /* u, which is over when its gradient is there */
    rp_pass_delta_backward(pass, (RpDeltaArgs){.qkv = d.qkv,
                                               .gate_row = a->gate_row,
                                               .b = a->b,
                                               .a = a->a,
                                               .d_out = d_out,
                                               .d_qkv = du,
                                               .d_b = d.b,
                                               .d_a = d.a});
    rp_pass_conv_backward(pass, a->qkv, du, d.qkv);
    scratch->used = before;
    return d;
}

void
rp_block_delta_backward(RpPass *pass, const RpBlockShape *z, const void *x, const RpBlockDelta *a,
                        const void *ds, void *normed, float *rstd, void *dx)
{
    const gboolean wanted = !pass->lowest || rp_pass_trains(pass, RP_WEIGHT_INPUT_NORM);
    const gsize before = pass->scratch.used;
    const RpMatmulOperand product =
        pass->kept.out.used ? rp_pass_kept_sums(z->T, &pass->kept.out)
                            : rp_pass_operand(pass, RP_WEIGHT_DELTA_OUT, z->T, gate_out(pass, z, a),
                                              RP_OPERAND_SUMS, NULL);
    const RpMatmulOperand out =
        rp_pass_operand(pass, RP_WEIGHT_DELTA_OUT, z->T, ds, RP_OPERAND_GRADIENT, pass->amax);
    void *d_out = normed; /* is over when the input is normed again */

    rp_pass_linear_backward(pass, RP_WEIGHT_DELTA_OUT, &product, &out, d_out, FALSE);
    pass->scratch.used = before;
    const RpBlockDelta d = differentiate_rule(pass, z, a, d_out);
    const RpMatmulOperand n = norm_input(pass, z, x, normed, rstd, RP_OPERAND_SUMS);

    const RpMatmulOperand both = rp_pass_plain(z->T, d.b);

    rp_pass_beside_backward(pass, wide, &n, (const void *[]){d.qkv, d.z}, NULL, wanted, dx, FALSE);
    if (d.gate_row > z->gates)
        rp_pass_fused_backward(pass, narrow, &n, &both, wanted, dx, TRUE);
    else
        rp_pass_beside_backward(pass, narrow, &n, (const void *[]){d.b, d.a}, NULL, wanted, dx,
                                TRUE);
    if (wanted)
        rp_pass_block_norm_backward(pass, RP_WEIGHT_INPUT_NORM, z->T, x, rstd, ds, dx, NULL);
}
