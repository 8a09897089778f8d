#include "exec/model/weights-private.h"

#include <string.h>

G_DEFINE_QUARK(rp_weights_error, rp_weights_error)

RpWeights *
rp_weights_new(const RpModel *model)
{
    return rp_weights_new_adapted(model, NULL);
}

RpWeights *
rp_weights_new_adapted(const RpModel *model, const RpLora *lora)
{
    g_return_val_if_fail(model != NULL, NULL);

    RpWeights *weights = g_new0(RpWeights, 1);
    weights->model = *model;
    if (lora != NULL)
        weights->lora = rp_lora_copy(lora);
    weights->names = g_string_chunk_new(4096);
    weights->list = g_array_new(FALSE, FALSE, sizeof(RpWeight));
    weights->firsts = g_array_new(FALSE, FALSE, sizeof(guint));
    g_mutex_init(&weights->base_lock);
    weights->own = g_ptr_array_new_with_free_func(g_free);
    for (guint layer = 0; layer < rp_model_n_layers(model); layer++) {
        g_array_append_val(weights->firsts, weights->list->len);
        rp_model_add_weights(model, layer, lora, weights->names, weights->list);
    }
    g_array_append_val(weights->firsts, weights->list->len);
    return weights;
}

RpWeights *
rp_weights_copy(const RpWeights *weights)
{
    g_return_val_if_fail(weights != NULL, NULL);

    RpWeights *copy = rp_weights_new_adapted(&weights->model, &weights->lora);
    for (guint i = 0; i < copy->list->len; i++) {
        const char *const name = rp_weights_nth(copy, i)->name;
        const char *const stack_name = rp_weights_nth(copy, i)->stack_name;
        RpWeight *weight = &g_array_index(copy->list, RpWeight, i);

        *weight = *rp_weights_nth(weights, i);
        weight->name = name;
        weight->stack_name = stack_name;
    }
    copy->base_hash = g_strdup(weights->base_hash);
    copy->base_values = g_strdup(weights->base_values);
    copy->base_format = weights->base_format;
    return copy;
}

void
rp_weights_free(RpWeights *weights)
{
    if (weights == NULL)
        return;
    g_mutex_clear(&weights->base_lock);
    g_free(weights->base_hash);
    g_free(weights->base_values);
    rp_lora_clear(&weights->lora);
    g_free(weights->origins);
    g_ptr_array_unref(weights->own);
    g_array_unref(weights->firsts);
    g_array_unref(weights->list);
    g_string_chunk_free(weights->names);
    g_free(weights);
}

guint
rp_weights_count(const RpWeights *weights)
{
    g_return_val_if_fail(weights != NULL, 0);
    return weights->list->len;
}

const RpWeight *
rp_weights_nth(const RpWeights *weights, guint index)
{
    g_return_val_if_fail(weights && index < weights->list->len, NULL);
    return &g_array_index(weights->list, RpWeight, index);
}

const RpModel *
rp_weights_model(const RpWeights *weights)
{
    g_return_val_if_fail(weights != NULL, NULL);
    return &weights->model;
}

guint
rp_weights_n_layers(const RpWeights *weights)
{
    g_return_val_if_fail(weights != NULL, 0);
    return weights->firsts->len - 1;
}

guint
rp_weights_layer(const RpWeights *weights, guint layer, guint *first)
{
    g_return_val_if_fail(weights && layer < rp_weights_n_layers(weights) && first, 0);
    *first = g_array_index(weights->firsts, guint, layer);
    return g_array_index(weights->firsts, guint, layer + 1) - *first;
}

int
rp_weights_find(const RpWeights *weights, guint layer, RpWeightKind kind)
{
    guint first;
    guint n = rp_weights_layer(weights, layer, &first);

    for (guint i = first; i < first + n; i++)
        if (rp_weights_nth(weights, i)->kind == kind)
            return (int)i;
    return -1;
}

void
rp_weights_freeze(RpWeights *weights, guint index, RpDtype storage)
{
    g_return_if_fail(weights && index < weights->list->len);

    for (guint i = 0; i < weights->list->len; i++) {
        RpWeight *weight = &g_array_index(weights->list, RpWeight, i);

        if (i != index && !(weight->tied && index == 0))
            continue;
        weight->trained = FALSE;
        weight->storage = storage;
    }
}

/* Its own, that of its module, or that of the tensor that holds it. */
static gboolean
is_named(const RpWeight *weight, const char *name)
{
    char *const names[] = {(char *)name, NULL};
    const char *const tensors[] = {weight->name, weight->stack_name};

    for (guint i = 0; i < G_N_ELEMENTS(tensors); i++) {
        const char *dot = tensors[i] != NULL ? strrchr(tensors[i], '.') : NULL;
        g_autofree char *module =
            dot != NULL ? g_strndup(tensors[i], (gsize)(dot - tensors[i])) : NULL;

        if (tensors[i] != NULL && (rp_lora_names_module(names, tensors[i]) ||
                                   (module != NULL && rp_lora_names_module(names, module))))
            return TRUE;
    }
    return FALSE;
}

guint
rp_weights_freeze_named(RpWeights *weights, const char *name, RpDtype storage)
{
    guint n = 0;

    for (guint i = 0; i < weights->list->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (!is_named(weight, name))
            continue;
        rp_weights_freeze(weights, weight->tied ? 0 : i, storage);
        n++;
    }
    return n;
}

void
rp_weights_store_base(RpWeights *weights, RpDtype storage)
{
    g_return_if_fail(weights != NULL);
    for (guint i = 0; i < weights->list->len; i++)
        if (!rp_weights_nth(weights, i)->trained)
            g_array_index(weights->list, RpWeight, i).storage = storage;
}

void
rp_weights_pack_base(RpWeights *weights, RpLowbit format)
{
    g_return_if_fail(weights != NULL);
    weights->base_format = rp_lowbit_name(format);
    for (guint i = 0; i < weights->list->len; i++) {
        RpWeight *weight = &g_array_index(weights->list, RpWeight, i);

        if (!weight->trained && !weight->is_packed &&
            rp_weight_packs(&weights->model, weight, format))
            rp_weight_pack(weight, format);
    }
}

const char *
rp_weights_base_format(const RpWeights *weights)
{
    g_return_val_if_fail(weights != NULL, NULL);
    return weights->base_format != NULL ? weights->base_format : "bf16";
}

gboolean
rp_weights_is_packed(const RpWeights *weights)
{
    g_return_val_if_fail(weights != NULL, FALSE);
    for (guint i = 0; i < weights->list->len; i++)
        if (rp_weights_nth(weights, i)->is_packed)
            return TRUE;
    return FALSE;
}

guint64
rp_weights_elements(const RpWeights *weights)
{
    guint64 sum = 0;

    g_return_val_if_fail(weights != NULL, 0);

    for (guint i = 0; i < weights->list->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        sum += weight->tied ? 0 : weight->elements;
    }
    return sum;
}

void
rp_weights_set_base_hash(RpWeights *weights, const char *base_hash, const char *base_values)
{
    g_return_if_fail(weights != NULL);
    g_free(weights->base_hash);
    g_free(weights->base_values);
    weights->base_hash = g_strdup(base_hash);
    weights->base_values = g_strdup(base_values);
    weights->keeps_hash = TRUE;
}

const RpLora *
rp_weights_lora(const RpWeights *weights)
{
    g_return_val_if_fail(weights != NULL, NULL);
    return weights->lora.rank > 0 ? &weights->lora : NULL;
}

RpWeightOrigin
rp_weights_origin(const RpWeights *weights, guint index)
{
    g_return_val_if_fail(weights && index < weights->list->len, (RpWeightOrigin){0});
    return weights->origins != NULL ? weights->origins[index] : (RpWeightOrigin){0};
}

const RpSafetensor *
rp_weights_source(const RpWeights *weights, guint index)
{
    return rp_weights_origin(weights, index).tensor;
}

const RpLowbitSource *
rp_weights_packed(const RpWeights *weights, guint index)
{
    return rp_weights_origin(weights, index).packed;
}

void
rp_weights_set_tensor(RpWeights *weights, guint index, const RpSafetensor *tensor,
                      RpAdapterMap *map)
{
    g_return_if_fail(weights && weights->origins && index < weights->list->len && (tensor || map));
    if (map != NULL)
        g_ptr_array_add(weights->own, map);
    weights->origins[index].tensor = map != NULL ? map->tensors[0] : tensor;
    weights->origins[index].map = map;
}

RpDtype
rp_weights_dtype(const RpWeights *weights)
{
    g_return_val_if_fail(weights && weights->origins, RP_DTYPE_FP32);
    return weights->dtype;
}
