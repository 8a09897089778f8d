#include "core/catalogue/cost-weights.h"

#include "core/catalogue/lora.h"

#define BYTES_16BIT 2

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

/* Also of all experts, [E, out]. */
static gboolean
is_bias(RpWeightKind kind)
{
    return kind == RP_WEIGHT_GATE_BIAS || kind == RP_WEIGHT_UP_BIAS ||
           kind == RP_WEIGHT_GATE_UP_BIAS || kind == RP_WEIGHT_DOWN_BIAS;
}

/* Adapters of an expert are those of its rows alone. */
static void
add_adapter(const RpModel *model, const RpWeight *weight, guint rank, RpCostWeights *costs)
{
    const RpWeightKind base = (RpWeightKind)((guint)weight->kind % RP_N_BASE_KINDS);
    const double elements = (double)weight->elements;
    const double share = (double)model->active_experts / model->experts;

    if (!is_of_experts(model, base)) {
        costs->adapter_elements += elements;
        return;
    }
    costs->adapter_elements += share * elements;
    costs->adapter_bytes += BYTES_16BIT * share * elements / rank *
                            (weight->kind == rp_weight_adapter(base, RP_ADAPTER_A) ? 1 : 2);
}

/* Matrices of blocks, but for the router's, as bitsandbytes packs them. In MXFP4 those of experts
 * alone, where there are any, as GPT-OSS is published. */
static gboolean
is_packed(const RpModel *model, const RpWeight *weight, RpLowbit format)
{
    return !weight->trained && weight->rank > 1 && weight->kind != RP_WEIGHT_ROUTER &&
           rp_model_layer_kind(model, weight->layer) == RP_LAYER_BLOCK &&
           (format != RP_LOWBIT_MXFP4 || model->experts == 1 ||
            is_of_experts(model, weight->kind)) &&
           !is_bias(weight->kind);
}

/* Bytes of a weight that is packed; of a stack's pieces the first stands for all. */
static guint64
packed_bytes(const RpWeight *weight, RpLowbit format)
{
    const gboolean stacked = weight->stack[0] > 0;
    const guint64 *shape = stacked ? weight->stack : weight->shape;
    const gboolean matrices = stacked || weight->rank == 3;
    const RpLowbitShape whole = {
        .matrices = matrices ? shape[0] : 1,
        .rows = shape[matrices ? 1 : 0],
        .columns = shape[matrices ? 2 : 1],
    };

    return stacked && weight->offset > 0 ? 0 : rp_lowbit_layout(format, whole).total;
}

RpCostWeights
rp_cost_weights(const RpModel *model, const RpWorkload *workload, RpProfile *profile, guint index)
{
    const RpLora lora = {
        .rank = workload->lora_rank, .alpha = RP_LORA_ALPHA, .targets = workload->lora_targets};
    g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(RpWeight));
    RpLayer *layer = &profile->layers[index];
    RpCostWeights costs = {0};
    RpLowbit format;
    const gboolean packs = rp_cost_base_is_packed(workload->base, &format);
    guint64 trained = 0, uploaded = 0;
    gboolean any = FALSE;

    rp_model_add_weights(model, index, &lora, NULL, weights);
    g_autofree guint64 *bytes = g_new(guint64, weights->len);
    for (guint i = 0; i < weights->len; i++) {
        const RpWeight *weight = &g_array_index(weights, RpWeight, i);
        const gboolean packed = packs && is_packed(model, weight, format);
        const guint64 up = packed ? packed_bytes(weight, format) : BYTES_16BIT * weight->elements;

        bytes[i] = BYTES_16BIT * weight->elements;
        trained += weight->trained ? weight->elements : 0;
        uploaded += up;
        any = any || packed;
        if (packed)
            costs.expand_bytes += (double)(up + bytes[i]);
        if (rp_weight_is_adapter(weight->kind))
            add_adapter(model, weight, lora.rank, &costs);
    }
    rp_profile_set_tensors(profile, index, bytes, weights->len);
    layer->gradient_bytes = BYTES_16BIT * trained;
    layer->upload_bytes = any ? uploaded : 0;
    return costs;
}
