/* Tensors of adapters. */
#include "exec/adapter/adapter.h"

#include <string.h>

#include "core/base/quote.h"

#define PREFIX "base_model.model."

G_DEFINE_QUARK(rp_adapter_error, rp_adapter_error)

/* Whether the layer of @weight, of experts' gate and up, has adapters of down as well: peft nests
 * the wrappers of two parameters of one module. */
static gboolean
is_nested(const RpWeights *weights, const RpWeight *weight)
{
    return (weight->kind - RP_WEIGHT_GATE_UP) % RP_N_BASE_KINDS == 0 &&
           rp_weights_find(weights, weight->layer,
                           rp_weight_adapter(RP_WEIGHT_DOWN, RP_ADAPTER_A)) >= 0;
}

char *
rp_adapter_tensor_name(const RpWeights *weights, guint index)
{
    const RpWeight *weight = rp_weights_nth(weights, index);
    const char *side = strstr(weight->name, ".lora_");

    if (weight->rank < RP_WEIGHT_MAX_RANK || side == NULL)
        return g_strconcat(PREFIX, weight->name, NULL);
    /* "model.layers.3.mlp.experts", without the parameter's name */
    const char *dot = g_strrstr_len(weight->name, side - weight->name, ".");
    g_autofree char *module = g_strndup(weight->name, (gsize)(dot - weight->name));

    return g_strconcat(PREFIX, module, is_nested(weights, weight) ? ".base_layer" : "", side, NULL);
}

guint
rp_adapter_tensor_shape(const RpWeight *weight, guint64 *shape)
{
    const gboolean stack = rp_weight_is_adapter(weight->kind) && weight->rank == RP_WEIGHT_MAX_RANK;
    const gboolean b = weight->kind >= rp_weight_adapter(0, RP_ADAPTER_B);

    memcpy(shape, weight->shape, sizeof weight->shape);
    if (!stack)
        return weight->rank;
    shape[0] = b ? weight->shape[1] : weight->shape[0] * weight->shape[1];
    shape[1] = b ? weight->shape[0] * weight->shape[2] : weight->shape[2];
    shape[2] = 1;
    return 2;
}

gboolean
rp_adapter_is_transposed(const RpWeight *weight)
{
    return weight->rank == RP_WEIGHT_MAX_RANK && weight->kind >= rp_weight_adapter(0, RP_ADAPTER_B);
}

const float *
rp_adapter_to_file(const RpWeight *weight, RpDtype dtype, const void *values, guint64 first,
                   gsize n, float *buffer)
{
    const guint64 E = weight->shape[0], out = weight->shape[1], r = weight->shape[2];

    if (!rp_adapter_is_transposed(weight)) {
        const char *from = (const char *)values + first * rp_dtype_size(dtype);

        if (dtype == RP_DTYPE_FP32)
            return (const float *)(const void *)from;
        rp_dtype_to_float(dtype, from, buffer, n);
        return buffer;
    }
    for (gsize k = 0; k < n; k++) {
        const guint64 at = first + k, row = at / (E * r), column = at % (E * r);

        buffer[k] = rp_dtype_get(dtype, values, (column % E * out + row) * r + column / E);
    }
    return buffer;
}

static gboolean
fail(GError **error, const RpSafetensors *file, const char *tensor, const char *expected,
     const char *found)
{
    g_autofree char *quoted = rp_quote(tensor);

    return rp_fail_in(error, rp_safetensors_path(file), RP_ADAPTER_ERROR, RP_ADAPTER_ERROR_TENSOR,
                      "tensor %s: expected %s, found %s", quoted, expected, found);
}

/* Whether @tensor is [@rows,@columns], fp32 as peft keeps them, or as the base is stored. */
static gboolean
has_shape(const RpWeights *weights, const RpSafetensor *tensor, const guint64 *shape, guint rank)
{
    return tensor != NULL && tensor->supported && tensor->rank == rank &&
           memcmp(tensor->shape, shape, rank * sizeof *shape) == 0 &&
           (tensor->dtype == RP_DTYPE_FP32 || tensor->dtype == rp_weights_dtype(weights));
}

static gboolean
check(const RpWeights *weights, const guint64 *wanted, guint rank, const RpSafetensors *file,
      const RpSafetensor *tensor, const char *name, GError **error)
{
    const RpDtype dtype = rp_weights_dtype(weights);

    if (has_shape(weights, tensor, wanted, rank))
        return TRUE;
    g_autofree char *shape =
        rp_safetensor_describe(rp_dtype_safetensors_name(RP_DTYPE_FP32), wanted, rank);
    g_autofree char *expected =
        g_strdup_printf("%s%s%s, as the base has it", shape, dtype != RP_DTYPE_FP32 ? " or " : "",
                        dtype != RP_DTYPE_FP32 ? rp_dtype_safetensors_name(dtype) : "");
    g_autofree char *found =
        tensor != NULL ? rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank)
                       : g_strdup("no such tensor");

    return fail(error, file, name, expected, found);
}

/* ---- binding ---- */

/* Adapters being bound, with the tensor, or the map, that each weight will have. */
typedef struct {
    const RpWeights *weights;
    const RpSafetensors *file;
    GHashTable *names; /* names of its tensors that are read */
    RpWeightOrigin *origins;
} Binding;

static const RpSafetensor *
find(const Binding *binding, const char *name)
{
    g_hash_table_add(binding->names, g_strdup(name));
    return rp_safetensors_find(binding->file, name);
}

static RpAdapterMap *
map_new(guint n)
{
    return g_malloc0(sizeof(RpAdapterMap) + n * sizeof(const RpSafetensor *));
}

/*
 * One tensor of experts' adapters, of two dimensions. Matrices [E,in,out], and all of peft from 0.19 on:
 *
 *   lora_A [r E,in]: expert e has rows e r ..      lora_B [out,r E]: and columns e, e + E, e + 2 E ..
 *
 * peft 0.17 and 0.18 took the rows of [E,out,in] for inputs: lora_A [r E,out] is then B, and lora_B
 * [in,r E] is A. Shapes distinguish them; where in = out, the config's peft_version does.
 */
static gboolean
bind_stack(Binding *binding, guint index, gboolean *found, GError **error)
{
    const RpWeights *weights = binding->weights;
    const RpWeight *weight = rp_weights_nth(weights, index);
    const gboolean b = weight->kind >= rp_weight_adapter(0, RP_ADAPTER_B);
    const RpWeight *other = rp_weights_nth(weights, b ? index - 1 : index + 1);
    const RpWeight *A = b ? other : weight, *B = b ? weight : other;
    const guint64 E = A->shape[0], r = A->shape[1], in = A->shape[2], out = B->shape[1];
    const guint64 swapped_a[] = {E * r, out}, swapped_b[] = {in, E * r};
    g_autofree char *name_a = rp_adapter_tensor_name(weights, b ? index - 1 : index);
    g_autofree char *name_b = rp_adapter_tensor_name(weights, b ? index : index + 1);
    const RpSafetensor *a_tensor = rp_safetensors_find(binding->file, name_a);
    const RpSafetensor *b_tensor = rp_safetensors_find(binding->file, name_b);
    const int base =
        rp_weights_find(weights, weight->layer, (RpWeightKind)(weight->kind % RP_N_BASE_KINDS));
    const gboolean may_swap = base >= 0 && !rp_weights_nth(weights, (guint)base)->transposed;
    const gboolean swapped = may_swap && has_shape(weights, a_tensor, swapped_a, 2) &&
                             has_shape(weights, b_tensor, swapped_b, 2) &&
                             (in != out || rp_weights_lora(weights)->swapped_experts);
    guint64 shape[RP_WEIGHT_MAX_RANK];
    RpAdapterMap *map;

    *found = a_tensor != NULL || b_tensor != NULL;
    if (!*found)
        return TRUE;
    g_hash_table_add(binding->names, g_strdup(b ? name_b : name_a));
    rp_adapter_tensor_shape(weight, shape);
    if (!swapped && !check(weights, shape, 2, binding->file, b ? b_tensor : a_tensor,
                           b ? name_b : name_a, error))
        return FALSE;
    binding->origins[index].map = map = map_new(1);
    /* a tensor whose rows are experts', or whose columns are */
    map->tensors[0] = b != swapped ? b_tensor : a_tensor;
    if (b != swapped)
        memcpy(map->stride, b ? (guint64[]){1, r * E, E} : (guint64[]){1, E, r * E},
               sizeof map->stride);
    else
        memcpy(map->stride, b ? (guint64[]){r * out, 1, out} : (guint64[]){r * in, in, 1},
               sizeof map->stride);
    return TRUE;
}

/* Tensors of each expert's matrices, as peft wrote them with transformers 4. */
static gboolean
bind_experts(Binding *binding, guint index, GError **error)
{
    const RpWeights *weights = binding->weights;
    const RpWeight *weight = rp_weights_nth(weights, index);
    const gboolean b = weight->kind >= rp_weight_adapter(0, RP_ADAPTER_B);
    const RpWeightKind kind = (RpWeightKind)(weight->kind % RP_N_BASE_KINDS);
    const guint64 E = weight->shape[0];
    guint first, parts = 0;
    const guint n = rp_weights_layer(weights, weight->layer, &first);

    for (guint i = first; i < first + n; i++)
        parts += rp_weights_nth(weights, i)->kind == kind;
    parts /= (guint)E;
    if (parts == 0) { /* one tensor holds them all in the base, too */
        g_autofree char *name = rp_adapter_tensor_name(weights, index);
        guint64 shape[RP_WEIGHT_MAX_RANK];

        rp_adapter_tensor_shape(weight, shape);
        return check(weights, shape, 2, binding->file, NULL, name, error);
    }
    const guint64 rank = weight->shape[b ? 2 : 1] / parts;
    const guint64 shape[] = {b ? weight->shape[1] / parts : rank, b ? rank : weight->shape[2]};
    RpAdapterMap *map = binding->origins[index].map = map_new((guint)E * parts);

    map->parts = parts;
    map->side = b ? RP_ADAPTER_B : RP_ADAPTER_A;
    for (guint i = first, at = 0; i < first + n; i++) {
        const RpWeight *matrix = rp_weights_nth(weights, i);

        if (matrix->kind != kind)
            continue;
        g_autofree char *name =
            g_strdup_printf(PREFIX "%.*s%s", (int)(strlen(matrix->name) - strlen(".weight")),
                            matrix->name, b ? RP_LORA_B : RP_LORA_A);
        const RpSafetensor *tensor = find(binding, name);

        if (!check(weights, shape, 2, binding->file, tensor, name, error))
            return FALSE;
        map->tensors[at++] = tensor;
    }
    return TRUE;
}

static gboolean
bind_weight(Binding *binding, guint index, GError **error)
{
    const RpWeights *weights = binding->weights;
    const RpWeight *weight = rp_weights_nth(weights, index);
    gboolean found;

    if (rp_weight_is_adapter(weight->kind) && weight->rank == RP_WEIGHT_MAX_RANK)
        return bind_stack(binding, index, &found, error) &&
               (found || bind_experts(binding, index, error));
    g_autofree char *name = rp_adapter_tensor_name(weights, index);
    const RpSafetensor *tensor = find(binding, name);

    binding->origins[index].tensor = tensor;
    return !rp_weight_has_state(weight) ||
           check(weights, weight->shape, weight->rank, binding->file, tensor, name, error);
}

static gboolean
check_extra(const Binding *binding, GError **error)
{
    for (guint i = 0; i < rp_safetensors_count(binding->file); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(binding->file, i);

        if (g_hash_table_contains(binding->names, tensor->name))
            continue;
        g_autofree char *found =
            rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);

        return fail(error, binding->file, tensor->name,
                    "no such tensor for this base and its config", found);
    }
    return TRUE;
}

gboolean
rp_adapter_bind(RpWeights *weights, const RpSafetensors *file, GError **error)
{
    g_return_val_if_fail(weights && rp_weights_lora(weights) && file, FALSE);

    const guint n = rp_weights_count(weights);
    g_autoptr(GHashTable) names = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    g_autofree RpWeightOrigin *origins = g_new0(RpWeightOrigin, n);
    Binding binding = {weights, file, names, origins};
    gboolean good = TRUE;

    for (guint i = 0; i < n && good; i++)
        good = bind_weight(&binding, i, error);
    good = good && check_extra(&binding, error);
    for (guint i = 0; i < n; i++)
        if (!good)
            g_free(origins[i].map);
        else if (origins[i].map != NULL || rp_weight_has_state(rp_weights_nth(weights, i)))
            rp_weights_set_tensor(weights, i, origins[i].tensor, origins[i].map);
    return good && rp_weights_check_finite_trained(weights, error);
}
