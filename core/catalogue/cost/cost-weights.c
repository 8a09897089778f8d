#include "core/catalogue/cost/cost-weights.h"

#include "core/catalogue/lora.h"

#define BYTES_16BIT 2
/* Bytes of a weight that becomes fp8 values, as it is and transposed: read for its amax, read
 * again, written twice. */
#define FP8_BYTES (2 * BYTES_16BIT + 2)

gboolean
rp_cost_base_is_packed(const char *base, RpLowbit *format)
{
    return base != NULL && rp_lowbit_from_name(base, format);
}

static gboolean
is_of_experts(const RpModel *model, RpWeightKind base)
{
    return model->experts > 1 && base >= RP_WEIGHT_GATE && base <= RP_WEIGHT_DOWN_BIAS;
}

/* A [..., r, in], B [..., out, r]; a token has rows of its experts' adapters alone. */
static void
add_adapter(const RpModel *model, const RpWeight *weight, RpCostWeights *costs)
{
    const RpWeightKind base = (RpWeightKind)((guint)weight->kind % RP_N_BASE_KINDS);
    const gboolean is_a = weight->kind == rp_weight_adapter(base, RP_ADAPTER_A);
    const double rank = (double)weight->shape[weight->rank - (is_a ? 2 : 1)];
    const double elements =
        (double)weight->elements *
        (is_of_experts(model, base) ? (double)model->active_experts / model->experts : 1);

    costs->mlp_apart = costs->mlp_apart || (base >= RP_WEIGHT_GATE && base <= RP_WEIGHT_DOWN);
    costs->adapter_elements += elements;
    if (is_a)
        costs->adapter_in += elements / rank;
    else
        costs->adapter_out += elements / rank;
}

/* Bytes of a weight that is packed; the first of a stack's pieces counts for all. */
static guint64
packed_bytes(const RpWeight *weight, RpLowbit format)
{
    RpWeight packed = *weight;

    rp_weight_pack(&packed, format);
    return weight->offset > 0 ? 0 : rp_lowbit_layout(format, rp_weight_lowbit_shape(&packed)).total;
}

/* A matrix that is read as fp8 values: experts' are not. */
static gboolean
has_fp8(const RpModel *model, const RpWeight *weight)
{
    const gboolean of_mlp = weight->kind == RP_WEIGHT_GATE_UP || weight->kind == RP_WEIGHT_GATE ||
                            weight->kind == RP_WEIGHT_UP || weight->kind == RP_WEIGHT_DOWN;

    return weight->kind == RP_WEIGHT_HEAD ||
           (rp_weight_packs(model, weight, RP_LOWBIT_FP8) && !(of_mlp && model->experts > 1));
}

RpCostWeights
rp_cost_weights(const RpModel *model, const RpWorkload *workload, RpProfile *profile, guint index)
{
    const RpLora lora = {
        .rank = workload->lora_rank, .alpha = RP_LORA_ALPHA, .targets = workload->lora_targets};
    g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(RpWeight));
    RpLayer *layer = &profile->layers[index];
    RpCostWeights costs = {.mlp_apart = model->experts > 1 || model->mlp_bias};
    RpLowbit format;
    const gboolean coded = (workload->fp8 && layer->kind == RP_LAYER_BLOCK) ||
                           (workload->fp8_head && layer->kind == RP_LAYER_HEAD);
    const gboolean packs = rp_cost_base_is_packed(workload->base, &format);
    guint64 trained = 0, uploaded = 0;
    gboolean any = FALSE;

    rp_model_add_weights(model, index, &lora, NULL, weights);
    g_autofree guint64 *bytes = g_new(guint64, weights->len);
    for (guint i = 0; i < weights->len; i++) {
        const RpWeight *weight = &g_array_index(weights, RpWeight, i);
        const gboolean packed = packs && !weight->trained && rp_weight_packs(model, weight, format);
        const guint64 up = packed ? packed_bytes(weight, format) : BYTES_16BIT * weight->elements;

        bytes[i] = BYTES_16BIT * weight->elements;
        trained += weight->trained ? weight->elements : 0;
        uploaded += up;
        any = any || packed || coded;
        if (packed)
            costs.expand_bytes += (double)(up + bytes[i]);
        if (coded)
            costs.expand_bytes += has_fp8(model, weight) ? FP8_BYTES * (double)weight->elements
                                                         : (double)(up + bytes[i]);
        if (rp_weight_is_adapter(weight->kind))
            add_adapter(model, weight, &costs);
    }
    rp_profile_set_tensors(profile, index, bytes, weights->len);
    layer->gradient_bytes = BYTES_16BIT * trained;
    layer->upload_bytes = any ? uploaded : 0;
    return costs;
}
