/* Decides which weights are packed, and their shapes. */
#include "core/catalogue/model.h"

static gboolean
is_linear(RpWeightKind kind)
{
    switch (kind) {
    case RP_WEIGHT_Q:
    case RP_WEIGHT_K:
    case RP_WEIGHT_V:
    case RP_WEIGHT_O:
    case RP_WEIGHT_GATE:
    case RP_WEIGHT_UP:
    case RP_WEIGHT_GATE_UP:
    case RP_WEIGHT_DOWN:
        return TRUE;
    default:
        return FALSE;
    }
}

RpLowbitShape
rp_weight_lowbit_shape(const RpWeight *weight)
{
    const guint64 *shape = weight->stack[0] > 0 ? weight->stack : weight->shape;

    if (weight->stack[0] > 0 || weight->rank == 3)
        return (RpLowbitShape){shape[0], shape[1], shape[2]};
    return (RpLowbitShape){1, shape[0], shape[1]};
}

gboolean
rp_weight_packs(const RpModel *model, const RpWeight *weight, RpLowbit format)
{
    const guint inputs = weight->transposed ? weight->rank - 2 : weight->rank - 1;

    if (!is_linear(weight->kind) || weight->rank < 2)
        return FALSE;
    if (format != RP_LOWBIT_MXFP4)
        return TRUE;
    return (model->experts <= 1 || weight->rank == 3 || weight->stack[0] > 0) &&
           weight->shape[inputs] % RP_MXFP4_BLOCK == 0;
}

void
rp_weight_pack(RpWeight *weight, RpLowbit format)
{
    weight->is_packed = TRUE;
    weight->format = format;
    if (format == RP_LOWBIT_MXFP4 && weight->transposed) {
        const guint64 inputs = weight->shape[1];

        weight->shape[1] = weight->shape[2];
        weight->shape[2] = inputs;
        weight->transposed = FALSE;
    }
}
