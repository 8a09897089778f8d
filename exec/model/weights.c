#include "exec/model/weights.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-pull.h"
#include "exec/lowbit/lowbit-file.h"

#define HASHED_BYTES ((gsize)4096) /* of each sample */

G_DEFINE_QUARK(rp_weights_error, rp_weights_error)

struct _RpWeights {
    RpModel model;
    GStringChunk *names;
    GArray *list;                /* (element-type RpWeight) */
    GArray *firsts;              /* (element-type guint): first weight of each layer, and the end */
    const RpSafetensor **source; /* as long as @list; NULL before binding */
    RpDtype dtype;
    RpLora lora;     /* rank 0: no adapters */
    char *base_hash; /* or NULL */
};

RpWeights *
rp_weights_new(const RpModel *model)
{
    return rp_weights_new_adapted(model, NULL);
}

RpWeights *
rp_weights_new_adapted(const RpModel *model, const RpLora *lora)
{
    g_return_val_if_fail(model, NULL);

    RpWeights *weights = g_new0(RpWeights, 1);
    weights->model = *model;
    if (lora != NULL)
        weights->lora = rp_lora_copy(lora);
    weights->names = g_string_chunk_new(4096);
    weights->list = g_array_new(FALSE, FALSE, sizeof(RpWeight));
    weights->firsts = g_array_new(FALSE, FALSE, sizeof(guint));
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
    g_return_val_if_fail(weights, NULL);

    RpWeights *copy = rp_weights_new_adapted(&weights->model, &weights->lora);
    for (guint i = 0; i < copy->list->len; i++) {
        g_array_index(copy->list, RpWeight, i).trained = rp_weights_nth(weights, i)->trained;
        g_array_index(copy->list, RpWeight, i).storage = rp_weights_nth(weights, i)->storage;
    }
    copy->base_hash = g_strdup(weights->base_hash);
    return copy;
}

void
rp_weights_free(RpWeights *weights)
{
    if (weights == NULL)
        return;
    g_free(weights->base_hash);
    rp_lora_clear(&weights->lora);
    g_free(weights->source);
    g_array_unref(weights->firsts);
    g_array_unref(weights->list);
    g_string_chunk_free(weights->names);
    g_free(weights);
}

guint
rp_weights_count(const RpWeights *weights)
{
    g_return_val_if_fail(weights, 0);
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
    g_return_val_if_fail(weights, NULL);
    return &weights->model;
}

guint
rp_weights_n_layers(const RpWeights *weights)
{
    g_return_val_if_fail(weights, 0);
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

    const guint last = weights->model.tied && index == 0 ? rp_weights_n_layers(weights) - 1 : 0;

    for (guint i = 0; i < weights->list->len; i++) {
        RpWeight *weight = &g_array_index(weights->list, RpWeight, i);

        if (i != index && (last == 0 || weight->layer != last))
            continue;
        weight->trained = FALSE;
        weight->storage = storage;
    }
}

void
rp_weights_store_base(RpWeights *weights, RpDtype storage)
{
    g_return_if_fail(weights);
    for (guint i = 0; i < weights->list->len; i++)
        if (!rp_weights_nth(weights, i)->trained)
            g_array_index(weights->list, RpWeight, i).storage = storage;
}

guint64
rp_weights_elements(const RpWeights *weights)
{
    guint64 sum = 0;

    g_return_val_if_fail(weights, 0);

    for (guint i = 0; i < weights->list->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        sum += weight->tied ? 0 : weight->elements;
    }
    return sum;
}

static gboolean
fail(GError **error, RpWeightsError code, const char *file, const char *tensor,
     const char *expected, const char *found)
{
    g_autofree char *shown = rp_display_name(file);
    g_autofree char *quoted = rp_quote(tensor);

    g_set_error(error, RP_WEIGHTS_ERROR, (gint)code, "%s: tensor %s: expected %s, found %s", shown,
                quoted, expected, found);
    return FALSE;
}

/* Whether @tensor has the shape of @weight and the type @dtype. */
static gboolean
check_tensor(const RpWeight *weight, const RpSafetensor *tensor, RpDtype dtype, GError **error)
{
    const char *dtype_name = rp_dtype_safetensors_name(dtype);
    gboolean same_shape = tensor->rank == weight->rank &&
                          memcmp(tensor->shape, weight->shape, weight->rank * sizeof(guint64)) == 0;

    if (same_shape && tensor->supported && tensor->dtype == dtype)
        return TRUE;
    g_autofree char *shape = rp_safetensor_describe(dtype_name, weight->shape, weight->rank);
    g_autofree char *expected = g_strdup_printf("%s, as config.json has it", shape);
    g_autofree char *found =
        rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
    return fail(error, same_shape ? RP_WEIGHTS_ERROR_DTYPE : RP_WEIGHTS_ERROR_SHAPE, tensor->file,
                tensor->name, expected, found);
}

/* Refuses a weight that is packed; TRUE: it is not, or not there at all. */
static gboolean
refuse_packed(const RpSafetensors *checkpoint, const RpWeight *weight, RpDtype dtype,
              GError **error)
{
    const char *format = rp_lowbit_source_format(checkpoint, weight->name);

    if (format == NULL)
        return TRUE;
    g_autofree char *shape =
        rp_safetensor_describe(rp_dtype_safetensors_name(dtype), weight->shape, weight->rank);
    g_autofree char *found = g_strdup_printf("it packed as %s, which is not trained on", format);
    return fail(error, RP_WEIGHTS_ERROR_DTYPE, rp_safetensors_path(checkpoint), weight->name, shape,
                found);
}

/* The type that all tensors must have. */
static gboolean
pick_dtype(const RpWeights *weights, const RpSafetensors *checkpoint, RpDtype *dtype,
           GError **error)
{
    const RpSafetensor *first = rp_safetensors_find(checkpoint, rp_weights_nth(weights, 0)->name);

    *dtype = weights->model.dtype;
    if (weights->model.has_dtype || first == NULL)
        return TRUE; /* a missing tensor is reported as such */
    if (!first->supported)
        return fail(error, RP_WEIGHTS_ERROR_DTYPE, first->file, first->name, "BF16, F16 or F32",
                    first->dtype_name);
    *dtype = first->dtype;
    return TRUE;
}

static gboolean
check_tied(const RpWeight *weight, const RpSafetensor *own, const RpSafetensor *embedding_tensor,
           RpDtype dtype, GError **error)
{
    if (!check_tensor(weight, own, dtype, error))
        return FALSE;
    /* same type and shape as the embedding */
    return memcmp(own->data, embedding_tensor->data, own->bytes) == 0 ||
           fail(error, RP_WEIGHTS_ERROR_TIED, own->file, own->name,
                "the bytes of model.embed_tokens.weight, since config.json has "
                "tie_word_embeddings",
                "others");
}

static gboolean
is_ignored(const char *name)
{
    return g_str_has_prefix(name, "model.layers.") &&
           g_str_has_suffix(name, ".self_attn.rotary_emb.inv_freq");
}

static gboolean
check_extra(const RpWeights *weights, const RpSafetensors *checkpoint, GError **error)
{
    g_autoptr(GHashTable) names = g_hash_table_new(g_str_hash, g_str_equal);

    for (guint i = 0; i < weights->list->len; i++)
        if (!rp_weight_is_adapter(rp_weights_nth(weights, i)->kind))
            g_hash_table_add(names, (gpointer)rp_weights_nth(weights, i)->name);
    for (guint i = 0; i < rp_safetensors_count(checkpoint); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(checkpoint, i);
        if (g_hash_table_contains(names, tensor->name) || is_ignored(tensor->name))
            continue;
        g_autofree char *found =
            rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
        return fail(error, RP_WEIGHTS_ERROR_EXTRA, tensor->file, tensor->name,
                    "no such tensor for this config.json", found);
    }
    return TRUE;
}

/* Three samples of a tensor, not all of it: a base may be of hundreds of GB. */
static void
hash_tensor(GChecksum *checksum, const RpSafetensor *tensor)
{
    const gsize n = MIN(HASHED_BYTES, tensor->bytes);
    const gsize places[] = {0, (tensor->bytes - n) / 2, tensor->bytes - n};
    g_autofree char *shape =
        rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);

    g_checksum_update(checksum, (const guchar *)tensor->name, (gssize)strlen(tensor->name) + 1);
    g_checksum_update(checksum, (const guchar *)shape, (gssize)strlen(shape) + 1);
    for (guint i = 0; i < G_N_ELEMENTS(places); i++)
        g_checksum_update(checksum, (const guchar *)tensor->data + places[i], (gssize)n);
}

static char *
hash_base(const RpWeights *weights)
{
    g_autoptr(GChecksum) checksum = g_checksum_new(G_CHECKSUM_SHA256);

    for (guint i = 0; i < weights->list->len; i++)
        if (weights->source[i] != NULL && !rp_weights_nth(weights, i)->tied)
            hash_tensor(checksum, weights->source[i]);
    return g_strdup(g_checksum_get_string(checksum));
}

const char *
rp_weights_base_hash(const RpWeights *weights)
{
    g_return_val_if_fail(weights, NULL);
    return weights->base_hash;
}

gboolean
rp_weights_bind(RpWeights *weights, const RpSafetensors *checkpoint, GError **error)
{
    RpDtype dtype;

    g_return_val_if_fail(weights && checkpoint, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    if (!pick_dtype(weights, checkpoint, &dtype, error))
        return FALSE;
    g_autofree const RpSafetensor **source = g_new0(const RpSafetensor *, weights->list->len);
    for (guint i = 0; i < weights->list->len; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const RpSafetensor *tensor = rp_safetensors_find(checkpoint, weight->name);
        if (rp_weight_is_adapter(weight->kind))
            continue;
        if (!weight->tied && (tensor == NULL || !tensor->supported) &&
            !refuse_packed(checkpoint, weight, dtype, error))
            return FALSE;
        if (tensor == NULL && !weight->tied) {
            g_autofree char *shape = rp_safetensor_describe(rp_dtype_safetensors_name(dtype),
                                                            weight->shape, weight->rank);
            return fail(error, RP_WEIGHTS_ERROR_MISSING, rp_safetensors_path(checkpoint),
                        weight->name, shape, "no such tensor");
        }
        if (weight->tied && tensor != NULL && !check_tied(weight, tensor, source[0], dtype, error))
            return FALSE;
        if (!weight->tied && !check_tensor(weight, tensor, dtype, error))
            return FALSE;
        source[i] = weight->tied ? source[0] : tensor;
    }
    if (!check_extra(weights, checkpoint, error))
        return FALSE;
    g_free(weights->source);
    weights->source = g_steal_pointer(&source);
    weights->dtype = dtype;
    g_free(weights->base_hash);
    weights->base_hash = weights->lora.rank > 0 ? hash_base(weights) : NULL;
    return TRUE;
}

const RpLora *
rp_weights_lora(const RpWeights *weights)
{
    g_return_val_if_fail(weights, NULL);
    return weights->lora.rank > 0 ? &weights->lora : NULL;
}

const RpSafetensor *
rp_weights_source(const RpWeights *weights, guint index)
{
    g_return_val_if_fail(weights && index < weights->list->len, NULL);
    return weights->source != NULL ? weights->source[index] : NULL;
}

void
rp_weights_set_source(RpWeights *weights, guint index, const RpSafetensor *source)
{
    g_return_if_fail(weights && weights->source && index < weights->list->len && source);
    weights->source[index] = source;
}

RpDtype
rp_weights_dtype(const RpWeights *weights)
{
    g_return_val_if_fail(weights && weights->source, RP_DTYPE_FP32);
    return weights->dtype;
}
