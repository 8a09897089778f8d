/*
 * Inputs of linear layers, quantized to fp8 where their weights are (core/base/fp8.h). Each tensor has one scale, from
 * its amax in this very micro-batch. It is quantized once for all layers that read it, in the orientation in which a
 * matmul NT adds up along rows of both:
 *
 *   y = x W^T      x [rows,in]     W [out,in]      e4m3
 *   dx = dy W      dy [rows,out]   W [in,out]      dy e5m2, or as the run has it
 *   dW = dy^T x    dy [out,rows]   x [in,rows]
 *
 * Each amax is recorded in a scale slot; all slots of a layer are cleared at once. A forward that keeps values for its
 * backward transposes fp8 values at once: it writes a byte more, and the backward neither norms, multiplies gate and
 * up, nor reads their products again.
 */
#include "exec/network/private.h"

/* Scale slots of a part: attention's backward has six tensors, DeltaNet's and an MLP's five. A scale stands behind its
 * amax, where a matmul takes it. */
#define SCALE_SLOTS 16

void
rp_pass_begin_fp8(RpPass *pass)
{
    if (!pass->layout->has_fp8)
        return;
    pass->scale_slots = rp_pass_take_floats(&pass->scratch, SCALE_SLOTS * RP_SCALE_SLOT_FLOATS);
    pass->n_scale_slots = 0;

    const RpFillArgs clear = {
        .dtype = RP_DTYPE_FP32, .n = SCALE_SLOTS * RP_SCALE_SLOT_FLOATS, .x = pass->scale_slots};

    RUN(pass, fill, &clear);
}

float *
rp_pass_scale_slot(RpPass *pass)
{
    if (!pass->layout->has_fp8)
        return NULL;
    g_assert(pass->n_scale_slots < SCALE_SLOTS);
    return pass->scale_slots + pass->n_scale_slots++ * RP_SCALE_SLOT_FLOATS;
}

RpMatmulOperand
rp_pass_plain(size_t rows, const void *x)
{
    return (RpMatmulOperand){.x = x, .rows = rows};
}

/* @keep: (nullable): place of transposed fp8 values and the scale, if they must outlive the scratch
 * buffer */
static RpMatmulOperand
make_operand(RpPass *pass, RpWeightKind kind, size_t rows, const void *x, RpOperandUse use,
             float *amax, const RpSavedFp8 *keep)
{
    const RpNetworkOptions *options = &pass->network->options;
    const RpWeightPlace *place = &pass->layout->place[kind];
    const size_t n = use == RP_OPERAND_GRADIENT ? place->code_rows : place->shape[1];
    const gboolean in_rows = use != RP_OPERAND_SUMS;
    const gboolean transposed = keep == NULL && use != RP_OPERAND_INPUT && pass->layout->trains_fp8;
    RpMatmulOperand operand = rp_pass_plain(rows, x);

    if (!place->has_fp8 || !(in_rows || transposed))
        return operand;

    float *scale_slot = amax != NULL ? amax : rp_pass_scale_slot(pass);
    guint8 *quantized = in_rows ? rp_pass_take_bytes(&pass->scratch, rows * n) : NULL;
    guint8 *back = keep != NULL ? keep->transposed
                   : transposed ? rp_pass_take_bytes(&pass->scratch, rows * n)
                                : NULL;
    const RpLargestArgs largest = {
        .dtype = options->dtype, .n = rows * n, .x = x, .largest = scale_slot};
    const RpQuantiseArgs quantise = {
        .dtype = options->dtype,
        .code = use == RP_OPERAND_GRADIENT ? options->fp8.gradients : RP_DTYPE_E4M3,
        .rows = rows,
        .columns = n,
        .x = x,
        .largest = scale_slot,
        .quantized = quantized,
        .transposed = back,
        .scale = keep != NULL ? keep->scale : scale_slot + RP_SCALE_SLOT_SCALE};

    if (amax == NULL)
        RUN(pass, largest, &largest);
    RUN(pass, quantise, &quantise);
    operand.code = quantise.code;
    operand.quantized = quantized;
    operand.transposed = back;
    operand.scale = quantise.scale;
    return operand;
}

RpMatmulOperand
rp_pass_operand(RpPass *pass, RpWeightKind kind, size_t rows, const void *x, RpOperandUse use,
                float *amax)
{
    return make_operand(pass, kind, rows, x, use, amax, NULL);
}

RpMatmulOperand
rp_pass_kept_input(RpPass *pass, RpWeightKind kind, size_t rows, const void *x, float *amax,
                   const RpSavedFp8 *keep)
{
    return make_operand(pass, kind, rows, x, RP_OPERAND_INPUT, amax, keep->used ? keep : NULL);
}

RpMatmulOperand
rp_pass_kept_sums(size_t rows, const RpSavedFp8 *kept)
{
    return (RpMatmulOperand){
        .rows = rows, .code = RP_DTYPE_E4M3, .transposed = kept->transposed, .scale = kept->scale};
}

/* @output: group of the layer's output: it is computed, and so its input, unless the forward has saved it */
static RpSavedFp8
take_kept_fp8(RpPass *pass, RpSpace *space, RpWeightKind kind, RpSavedGroup output, size_t rows)
{
    const RpWeightPlace *place = &pass->layout->place[kind];
    RpSavedFp8 kept = {0};

    if (!place->has_fp8)
        return kept;
    kept.used = (pass->saved >> output & 1) == 0;
    kept.transposed = rp_pass_take_bytes(space, rows * place->shape[1]);
    kept.scale = rp_pass_take_floats(space, RP_SCALE_SLOT_FLOATS);
    return kept;
}

void
rp_pass_take_kept(RpPass *pass, RpSpace *space, size_t rows)
{
    if (space == NULL || !pass->layout->trains_fp8 ||
        rp_weights_lora(pass->network->weights) != NULL)
        return;
    const RpWeightKind out = rp_pass_has(pass, RP_WEIGHT_O) ? RP_WEIGHT_O : RP_WEIGHT_DELTA_OUT;

    pass->kept = (RpBlockKept){
        .normed = take_kept_fp8(pass, space, RP_WEIGHT_Q, RP_SAVED_QKV, rows),
        .out = take_kept_fp8(pass, space, out, RP_SAVED_RESIDUAL, rows),
        .post = take_kept_fp8(pass, space, RP_WEIGHT_GATE, RP_SAVED_MLP, rows),
        .product = take_kept_fp8(pass, space, RP_WEIGHT_DOWN, RP_N_SAVED_GROUPS, rows)};
    pass->kept.rstd = rp_pass_take_floats(space, rows);
    pass->kept.post_rstd = rp_pass_take_floats(space, rows);
}

gboolean
rp_fp8_is_wanted(const RpNetwork *network, guint layer)
{
    const RpNetworkFp8 *quantized = &network->options.fp8;
    const guint head = network->n_layers - 1;

    return quantized->used &&
           (layer == head ? quantized->head
                          : layer > quantized->plain_first && layer + quantized->plain_last < head);
}

gsize
rp_fp8_transposed_byte(const RpWeightPlace *place)
{
    return (gsize)(place->code_rows * place->shape[1]);
}

gsize
rp_fp8_scales_byte(const RpWeightPlace *place)
{
    return 2 * rp_fp8_transposed_byte(place);
}

float *
rp_pass_block_norm(RpPass *pass, RpWeightKind kind, size_t rows, const void *x, void *y,
                   float *rstd)
{
    float *amax = rp_pass_scale_slot(pass);

    rp_pass_norm(pass, kind,
                 (RpRmsnormArgs){.rows = rows,
                                 .n = pass->network->model->hidden,
                                 .x = x,
                                 .y = y,
                                 .rstd = rstd,
                                 .largest = amax});
    return amax;
}

void
rp_pass_block_norm_backward(RpPass *pass, RpWeightKind kind, size_t rows, const void *x,
                            float *rstd, const void *d_residual, void *d, float *amax)
{
    rp_pass_norm_backward(pass, kind,
                          (RpRmsnormArgs){.rows = rows,
                                          .n = pass->network->model->hidden,
                                          .x = x,
                                          .rstd = rstd,
                                          .dy = d,
                                          .d_residual = d_residual,
                                          .dx = d,
                                          .largest = amax});
}
