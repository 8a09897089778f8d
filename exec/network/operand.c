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

/* Scale slots of a part: attention's backward has six tensors, an MLP's five. A scale stands behind its amax, where a
 * matmul takes it. */
#define CELLS 16

void
rp_pass_begin_codes(RpPass *pass)
{
    if (!pass->layout->has_codes)
        return;
    pass->cells = rp_pass_take_floats(&pass->scratch, CELLS * RP_CELL_FLOATS);
    pass->n_cells = 0;

    const RpFillArgs clear = {
        .dtype = RP_DTYPE_FP32, .n = CELLS * RP_CELL_FLOATS, .x = pass->cells};

    RUN(pass, fill, &clear);
}

float *
rp_pass_cell(RpPass *pass)
{
    if (!pass->layout->has_codes)
        return NULL;
    g_assert(pass->n_cells < CELLS);
    return pass->cells + pass->n_cells++ * RP_CELL_FLOATS;
}

RpOperand
rp_pass_plain(size_t rows, const void *x)
{
    return (RpOperand){.x = x, .rows = rows};
}

/* @keep: (nullable): place of transposed fp8 values and the scale, if they must outlive the scratch
 * buffer */
static RpOperand
make_operand(RpPass *pass, RpWeightKind kind, size_t rows, const void *x, RpOperandUse use,
             float *noted, const RpKeptCodes *keep)
{
    const RpNetworkOptions *options = &pass->network->options;
    const RpWeightPlace *place = &pass->layout->place[kind];
    const size_t n = use == RP_OPERAND_GRADIENT ? place->code_rows : place->shape[1];
    const gboolean in_rows = use != RP_OPERAND_SUMS;
    const gboolean turned = keep == NULL && use != RP_OPERAND_INPUT && pass->layout->trains_codes;
    RpOperand operand = rp_pass_plain(rows, x);

    if (!place->has_codes || !(in_rows || turned))
        return operand;

    float *cell = noted != NULL ? noted : rp_pass_cell(pass);
    guint8 *codes = in_rows ? rp_pass_take_bytes(&pass->scratch, rows * n) : NULL;
    guint8 *back = keep != NULL ? keep->turned
                   : turned     ? rp_pass_take_bytes(&pass->scratch, rows * n)
                                : NULL;
    const RpLargestArgs largest = {.dtype = options->dtype, .n = rows * n, .x = x, .largest = cell};
    const RpQuantiseArgs quantise = {.dtype = options->dtype,
                                     .code = use == RP_OPERAND_GRADIENT ? options->codes.gradients
                                                                        : RP_DTYPE_E4M3,
                                     .rows = rows,
                                     .columns = n,
                                     .x = x,
                                     .largest = cell,
                                     .codes = codes,
                                     .turned = back,
                                     .scale = keep != NULL ? keep->scale : cell + RP_CELL_SCALE};

    if (noted == NULL)
        RUN(pass, largest, &largest);
    RUN(pass, quantise, &quantise);
    operand.code = quantise.code;
    operand.codes = codes;
    operand.turned = back;
    operand.scale = quantise.scale;
    return operand;
}

RpOperand
rp_pass_operand(RpPass *pass, RpWeightKind kind, size_t rows, const void *x, RpOperandUse use,
                float *noted)
{
    return make_operand(pass, kind, rows, x, use, noted, NULL);
}

RpOperand
rp_pass_kept_input(RpPass *pass, RpWeightKind kind, size_t rows, const void *x, float *noted,
                   const RpKeptCodes *keep)
{
    return make_operand(pass, kind, rows, x, RP_OPERAND_INPUT, noted,
                        pass->kept.used ? keep : NULL);
}

RpOperand
rp_pass_kept_sums(size_t rows, const RpKeptCodes *kept)
{
    return (RpOperand){
        .rows = rows, .code = RP_DTYPE_E4M3, .turned = kept->turned, .scale = kept->scale};
}

static RpKeptCodes
take_kept_codes(RpPass *pass, RpRoom *room, RpWeightKind kind, size_t rows)
{
    const RpWeightPlace *place = &pass->layout->place[kind];
    RpKeptCodes kept = {0};

    if (!place->has_codes)
        return kept;
    kept.turned = rp_pass_take_bytes(room, rows * place->shape[1]);
    kept.scale = rp_pass_take_floats(room, RP_CELL_FLOATS);
    return kept;
}

void
rp_pass_take_kept(RpPass *pass, RpRoom *room, size_t rows)
{
    if (room == NULL || !pass->layout->trains_codes ||
        rp_weights_lora(pass->network->weights) != NULL)
        return;
    pass->kept = (RpBlockKept){.used = pass->saved == 0,
                               .normed = take_kept_codes(pass, room, RP_WEIGHT_Q, rows),
                               .out = take_kept_codes(pass, room, RP_WEIGHT_O, rows),
                               .post = take_kept_codes(pass, room, RP_WEIGHT_GATE, rows),
                               .product = take_kept_codes(pass, room, RP_WEIGHT_DOWN, rows)};
    pass->kept.rstd = rp_pass_take_floats(room, rows);
    pass->kept.post_rstd = rp_pass_take_floats(room, rows);
}

gboolean
rp_codes_are_wanted(const RpNetwork *network, guint layer)
{
    const RpNetworkCodes *codes = &network->options.codes;
    const guint head = network->n_layers - 1;

    return codes->used &&
           (layer == head ? codes->head
                          : layer > codes->plain_first && layer + codes->plain_last < head);
}

gsize
rp_codes_turned_byte(const RpWeightPlace *place)
{
    return (gsize)(place->code_rows * place->shape[1]);
}

gsize
rp_codes_cells_byte(const RpWeightPlace *place)
{
    return 2 * rp_codes_turned_byte(place);
}
