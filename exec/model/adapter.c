/* Tensors of adapters. */
#include "exec/model/adapter.h"

#include <string.h>

#include "core/base/quote.h"

#define PREFIX "base_model.model."

G_DEFINE_QUARK(rp_adapter_error, rp_adapter_error)

char *
rp_adapter_tensor_name(const RpWeight *weight)
{
    return g_strconcat(PREFIX, weight->name, NULL);
}

static gboolean
fail(GError **error, const RpSafetensors *file, const char *tensor, const char *expected,
     const char *found)
{
    g_autofree char *shown = rp_display_name(rp_safetensors_path(file));
    g_autofree char *quoted = rp_quote(tensor);

    g_set_error(error, RP_ADAPTER_ERROR, RP_ADAPTER_ERROR_TENSOR,
                "%s: tensor %s: expected %s, found %s", shown, quoted, expected, found);
    return FALSE;
}

/* fp32, as peft keeps them, or as the base is stored. */
static gboolean
check(const RpWeights *weights, const RpWeight *weight, const RpSafetensors *file,
      const RpSafetensor *tensor, const char *name, GError **error)
{
    const RpDtype dtype = rp_weights_dtype(weights);
    const gboolean good =
        tensor != NULL && tensor->supported && tensor->rank == weight->rank &&
        memcmp(tensor->shape, weight->shape, weight->rank * sizeof(guint64)) == 0 &&
        (tensor->dtype == RP_DTYPE_FP32 || tensor->dtype == dtype);

    if (good)
        return TRUE;
    g_autofree char *shape = rp_safetensor_describe(rp_dtype_safetensors_name(RP_DTYPE_FP32),
                                                    weight->shape, weight->rank);
    g_autofree char *expected =
        g_strdup_printf("%s%s%s, as the base has it", shape, dtype != RP_DTYPE_FP32 ? " or " : "",
                        dtype != RP_DTYPE_FP32 ? rp_dtype_safetensors_name(dtype) : "");
    g_autofree char *found =
        tensor != NULL ? rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank)
                       : g_strdup("no such tensor");

    return fail(error, file, name, expected, found);
}

gboolean
rp_adapter_bind(RpWeights *weights, const RpSafetensors *file, GError **error)
{
    g_autoptr(GHashTable) names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);

    g_return_val_if_fail(weights && rp_weights_lora(weights) && file, FALSE);
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        char *name = rp_adapter_tensor_name(weight);
        const RpSafetensor *tensor = rp_safetensors_find(file, name);

        g_hash_table_add(names, name);
        if (!rp_weight_has_state(weight))
            continue;
        if (!check(weights, weight, file, tensor, name, error))
            return FALSE;
    }
    for (guint i = 0; i < rp_safetensors_count(file); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(file, i);

        if (g_hash_table_contains(names, tensor->name))
            continue;
        g_autofree char *found =
            rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);

        return fail(error, file, tensor->name, "no such tensor for this base and its config",
                    found);
    }
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        g_autofree char *name = rp_adapter_tensor_name(weight);

        if (rp_weight_has_state(weight))
            rp_weights_set_source(weights, i, rp_safetensors_find(file, name));
    }
    return TRUE;
}
