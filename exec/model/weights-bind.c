/* Finds the weights in a checkpoint. */
#include "exec/model/weights-private.h"

#include <string.h>

#include "core/base/quote.h"

/* A tensor that OpenAI's own files of GPT-OSS have, and nobody else's. */
#define OPENAI_NAME "block.0.attn.norm.scale"

static gboolean
fail(GError **error, RpWeightsError code, const char *file, const char *tensor,
     const char *expected, const char *found)
{
    g_autofree char *quoted = rp_quote(tensor);

    return rp_fail_in(error, file, RP_WEIGHTS_ERROR, (gint)code, "tensor %s: expected %s, found %s",
                      quoted, expected, found);
}

/* Whether @tensor has the shape and the type @dtype. */
static gboolean
check_shape(const guint64 *wanted, guint rank, const RpSafetensor *tensor, RpDtype dtype,
            GError **error)
{
    const char *dtype_name = rp_dtype_safetensors_name(dtype);
    gboolean same_shape =
        tensor->rank == rank && memcmp(tensor->shape, wanted, rank * sizeof(guint64)) == 0;

    if (same_shape && tensor->supported && tensor->dtype == dtype)
        return TRUE;
    g_autofree char *shape = rp_safetensor_describe(dtype_name, wanted, rank);
    g_autofree char *expected = g_strdup_printf("%s, as config.json has it", shape);
    g_autofree char *found =
        rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
    return fail(error, same_shape ? RP_WEIGHTS_ERROR_DTYPE : RP_WEIGHTS_ERROR_SHAPE, tensor->file,
                tensor->name, expected, found);
}

static gboolean
check_tensor(const RpWeight *weight, const RpSafetensor *tensor, RpDtype dtype, GError **error)
{
    return check_shape(weight->shape, weight->rank, tensor, dtype, error);
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
    RpLowbit known;
    g_autofree char *found =
        g_strdup_printf(rp_lowbit_from_name(format, &known)
                            ? "it packed as %s, which is read of matrices of blocks alone"
                            : "it packed as %s, which is not read",
                        format);
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
    g_autofree char *expected = g_strdup_printf(
        "the bytes of %s, since config.json has tie_word_embeddings", embedding_tensor->name);

    /* same type and shape as the embedding */
    return memcmp(own->data, embedding_tensor->data, own->bytes) == 0 ||
           fail(error, RP_WEIGHTS_ERROR_TIED, own->file, own->name, expected, "others");
}

/* Tensors that no weight is made of: tables of ropes, scales for products of 8 bits (training measures its own), and
 * heads for further tokens. */
static gboolean
is_ignored(const RpModel *model, const char *name)
{
    return g_str_has_prefix(name, "mtp.") ||
           (g_str_has_prefix(name, "model.layers.") &&
            (g_str_has_suffix(name, ".self_attn.rotary_emb.inv_freq") ||
             g_str_has_suffix(name, "_proj.activation_scale"))) ||
           rp_weights_is_other(model, name);
}

/* @names: of tensors that were found */
static gboolean
check_extra(const RpModel *model, GHashTable *names, const RpSafetensors *checkpoint,
            GError **error)
{
    for (guint i = 0; i < rp_safetensors_count(checkpoint); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(checkpoint, i);
        if (g_hash_table_contains(names, tensor->name) || is_ignored(model, tensor->name))
            continue;
        g_autofree char *found =
            rp_safetensor_describe(tensor->dtype_name, tensor->shape, tensor->rank);
        return fail(error, RP_WEIGHTS_ERROR_EXTRA, tensor->file, tensor->name,
                    "no such tensor for this config.json", found);
    }
    return TRUE;
}

/* A checkpoint being bound. */
typedef struct {
    const RpWeights *weights;
    const RpSafetensors *checkpoint;
    RpDtype dtype;
    GHashTable *names; /* names of its tensors that were found */
    RpWeightOrigin *origins;
    GPtrArray *own;
} Binding;

static gboolean
fail_missing(const Binding *binding, const RpWeight *weight, GError **error)
{
    g_autofree char *shape = rp_safetensor_describe(rp_dtype_safetensors_name(binding->dtype),
                                                    weight->shape, weight->rank);
    const gboolean other = rp_safetensors_find(binding->checkpoint, OPENAI_NAME) != NULL;

    return fail(error, RP_WEIGHTS_ERROR_MISSING, rp_safetensors_path(binding->checkpoint),
                weight->name, shape,
                other ? "names of OpenAI's own files (" OPENAI_NAME "), which are not read"
                      : "no such tensor");
}

/* Binds @index to its part of @all, the tensor with all experts' matrices. */
static gboolean
bind_part(Binding *binding, guint index, const RpSafetensor *all, GError **error)
{
    const RpWeight *weight = rp_weights_nth(binding->weights, index);

    if (!check_shape(weight->stack, RP_WEIGHT_MAX_RANK, all, binding->dtype, error))
        return FALSE;
    RpSafetensor *part = g_memdup2(all, sizeof *all);
    g_ptr_array_add(binding->own, part);
    part->rank = weight->rank;
    memcpy(part->shape, weight->shape, weight->rank * sizeof *part->shape);
    part->elements = weight->elements;
    part->bytes = weight->elements * rp_dtype_size(part->dtype);
    part->data = (const guint8 *)all->data + weight->offset * rp_dtype_size(part->dtype);
    binding->origins[index].tensor = part;
    g_hash_table_add(binding->names, (gpointer)all->name);
    return TRUE;
}

static gboolean
has_blocks(const RpSafetensors *checkpoint, const RpWeight *weight)
{
    g_autofree char *blocks = g_strconcat(weight->name, "_blocks", NULL);

    return rp_safetensors_find(checkpoint, blocks) != NULL;
}

/* Name of its packed tensor: its stack's, or its own. */
static const char *
packed_name(const RpWeight *weight)
{
    return weight->stack_name != NULL ? weight->stack_name : weight->name;
}

static void
note_parts(Binding *binding, const RpLowbitSource *source)
{
    static const char *const others[] = {".quant_map", ".quant_state.bitsandbytes__nf4"};

    for (guint part = 0; part < RP_N_LOWBIT_PARTS; part++)
        if (source->parts[part] != NULL)
            g_hash_table_add(binding->names, (gpointer)source->parts[part]->name);
    for (guint i = 0; i < G_N_ELEMENTS(others); i++) {
        g_autofree char *name = g_strconcat(source->name, others[i], NULL);
        const RpSafetensor *tensor = rp_safetensors_find(binding->checkpoint, name);

        if (tensor != NULL)
            g_hash_table_add(binding->names, (gpointer)tensor->name);
    }
}

static gboolean
check_source(const RpLowbitSource *source, RpLowbit format, const guint64 *shape, guint rank,
             GError **error)
{
    if (source->is_packed && source->format == format && source->rank == rank &&
        memcmp(source->shape, shape, rank * sizeof *shape) == 0)
        return TRUE;
    g_autofree char *expected = rp_safetensor_describe(rp_lowbit_name(format), shape, rank);
    g_autofree char *found = rp_safetensor_describe(
        source->is_packed ? rp_lowbit_name(source->format) : source->tensor->dtype_name,
        source->shape, source->rank);

    return fail(error, RP_WEIGHTS_ERROR_SHAPE, source->tensor->file, source->tensor->name, expected,
                found);
}

/* Binds the stack that begins with weight @index, one matrix after the other. */
static gboolean
find_pieces(Binding *binding, guint index, RpLowbitSource *stack, GError **error)
{
    const RpWeight *weight = rp_weights_nth(binding->weights, index);
    const guint n = (guint)(rp_weight_stack_elements(weight) / weight->elements);
    RpLowbitSource *pieces = g_new0(RpLowbitSource, n);

    g_ptr_array_add(binding->own, pieces);
    *stack = (RpLowbitSource){
        .name = weight->stack_name, .rank = RP_WEIGHT_MAX_RANK, .pieces = pieces, .n_pieces = n};
    memcpy(stack->shape, weight->stack, sizeof weight->stack);
    for (guint found = 0; found < n; index++) {
        const RpWeight *one = rp_weights_nth(binding->weights, index);

        if (one->kind != weight->kind)
            continue;
        RpLowbitSource *piece = &pieces[found++];

        if (!rp_lowbit_source_find(binding->checkpoint, one->name, piece, error))
            return FALSE;
        const gboolean stacks =
            piece->is_packed &&
            (!weight->is_packed || rp_lowbit_stacked_format(piece->format) == weight->format);

        if (!check_source(piece, stacks ? piece->format : weight->format, one->shape, one->rank,
                          error))
            return FALSE;
        note_parts(binding, piece);
    }
    return rp_lowbit_source_stack(stack, error);
}

/* The stack's source: its first weight has found the tensors that hold all. */
static gboolean
share_stack(Binding *binding, guint index, GError **error)
{
    const RpWeight *weight = rp_weights_nth(binding->weights, index);
    guint first = index;

    do
        first--;
    while (rp_weights_nth(binding->weights, first)->kind != weight->kind ||
           rp_weights_nth(binding->weights, first)->offset > 0);
    binding->origins[index].packed = binding->origins[first].packed;
    return binding->origins[index].packed != NULL ||
           fail(error, RP_WEIGHTS_ERROR_DTYPE, rp_safetensors_path(binding->checkpoint),
                weight->name, "it in 16 or 32 bits, as the first of its stack is",
                rp_lowbit_name(weight->format));
}

/* Binds a weight that stays packed, or is expanded as it is read; those of a stack share the first one's source. */
static gboolean
bind_packed(Binding *binding, guint index, GError **error)
{
    const RpWeight *weight = rp_weights_nth(binding->weights, index);
    const gboolean stack = weight->stack[0] > 0;
    RpWeight wanted = *weight;

    if (weight->offset > 0)
        return share_stack(binding, index, error);
    RpLowbitSource *source = g_new0(RpLowbitSource, 1);
    g_ptr_array_add(binding->own, source);
    binding->origins[index].packed = source;
    if (stack && rp_safetensors_find(binding->checkpoint, weight->name) != NULL)
        return find_pieces(binding, index, source, error);
    if (!rp_lowbit_source_find(binding->checkpoint, packed_name(weight), source, error))
        return FALSE;
    if (!weight->is_packed)
        rp_weight_pack(&wanted, source->format);
    if (!check_source(source, wanted.format, stack ? wanted.stack : wanted.shape,
                      stack ? RP_WEIGHT_MAX_RANK : wanted.rank, error))
        return FALSE;
    note_parts(binding, source);
    return TRUE;
}

/* Whether the file has @name in a type that nothing is computed in, or only parts of it. */
static gboolean
may_be_packed(const RpSafetensors *checkpoint, const char *name)
{
    const RpSafetensor *plain = rp_safetensors_find(checkpoint, name);

    return plain == NULL || !plain->supported;
}

/* @source: (out): not packed: nothing else is set. Returns: %FALSE: the format is not supported */
static gboolean
find_format(const RpSafetensors *checkpoint, const char *name, RpLowbitSource *source,
            GError **error)
{
    g_autoptr(GError) problem = NULL;

    *source = (RpLowbitSource){0};
    if (!may_be_packed(checkpoint, name))
        return TRUE;
    if (!rp_lowbit_source_find(checkpoint, name, source, &problem)) {
        if (g_error_matches(problem, RP_LOWBIT_ERROR, RP_LOWBIT_ERROR_MISSING) &&
            rp_safetensors_find(checkpoint, name) == NULL)
            return TRUE; /* there is none: binding reports it */
        return rp_propagate_error(error, g_steal_pointer(&problem));
    }
    return TRUE;
}

gboolean
rp_weights_adopt(RpWeights *weights, const RpSafetensors *checkpoint, GError **error)
{
    g_return_val_if_fail(weights && checkpoint, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    for (guint i = 0; i < weights->list->len; i++) {
        RpWeight *weight = &g_array_index(weights->list, RpWeight, i);
        RpLowbitSource source;
        gboolean stacked = FALSE;

        if (weight->trained || weight->tied || rp_weight_is_adapter(weight->kind) ||
            !rp_weight_packs(&weights->model, weight, RP_LOWBIT_NF4))
            continue; /* refused where it is packed, when it is bound */
        if (!find_format(checkpoint, packed_name(weight), &source, error))
            return FALSE;
        if (!source.is_packed && weight->stack_name != NULL) {
            if (!find_format(checkpoint, weight->name, &source, error))
                return FALSE;
            stacked = TRUE;
        }
        if (source.is_packed)
            rp_weight_pack(weight,
                           stacked ? rp_lowbit_stacked_format(source.format) : source.format);
        weight->one_scale = source.one_scale && source.parts[RP_LOWBIT_SCALES]->rank < 2;
    }
    return TRUE;
}

/* Whether the file has the weight, or its stack, in a packed form that is read. */
static gboolean
is_expanded(const RpSafetensors *checkpoint, const RpWeight *weight, const RpModel *model)
{
    RpLowbit format;
    const char *name = NULL;

    if (!may_be_packed(checkpoint, weight->name) || !rp_weight_packs(model, weight, RP_LOWBIT_NF4))
        return FALSE;
    if (weight->stack_name != NULL)
        name = rp_lowbit_source_format(checkpoint, weight->stack_name);
    if (name == NULL)
        name = rp_lowbit_source_format(checkpoint, weight->name);
    return name != NULL && rp_lowbit_from_name(name, &format);
}

/* Whether @tensor would be a weight in fp8 if its scales were right. */
static gboolean
is_fp8(const Binding *binding, const RpWeight *weight, const RpSafetensor *tensor)
{
    return tensor != NULL && strcmp(tensor->dtype_name, "F8_E4M3") == 0 &&
           rp_weight_packs(rp_weights_model(binding->weights), weight, RP_LOWBIT_FP8);
}

static gboolean
bind_weight(Binding *binding, guint index, GError **error)
{
    const RpSafetensors *checkpoint = binding->checkpoint;
    const RpWeight *weight = rp_weights_nth(binding->weights, index);
    const RpSafetensor *tensor = rp_safetensors_find(checkpoint, weight->name);
    const RpSafetensor *all =
        weight->stack_name != NULL ? rp_safetensors_find(checkpoint, weight->stack_name) : NULL;

    if (rp_weight_is_adapter(weight->kind))
        return TRUE;
    if (weight->is_packed)
        return bind_packed(binding, index, error);
    if (weight->tied) {
        binding->origins[index].tensor = binding->origins[0].tensor;
        g_hash_table_add(binding->names, (gpointer)weight->name);
        return tensor == NULL ||
               check_tied(weight, tensor, binding->origins[0].tensor, binding->dtype, error);
    }
    if (is_expanded(checkpoint, weight, rp_weights_model(binding->weights)))
        return bind_packed(binding, index, error);
    if (all != NULL)
        return bind_part(binding, index, all, error);
    if ((weight->transposed && tensor == NULL && has_blocks(checkpoint, weight)) ||
        is_fp8(binding, weight, tensor))
        return bind_packed(binding, index, error); /* which says what is wrong with them */
    if ((tensor == NULL || !tensor->supported) &&
        !refuse_packed(checkpoint, weight, binding->dtype, error))
        return FALSE;
    if (tensor == NULL)
        return fail_missing(binding, weight, error);
    binding->origins[index].tensor = tensor;
    g_hash_table_add(binding->names, (gpointer)weight->name);
    return check_tensor(weight, tensor, binding->dtype, error);
}

void
rp_weights_take(RpWeights *weights, RpWeightOrigin *origins, GPtrArray *own, RpDtype dtype)
{
    g_free(weights->origins);
    g_ptr_array_unref(weights->own);
    weights->origins = origins;
    weights->own = own;
    weights->dtype = dtype;
    if (!weights->keeps_hash) {
        g_clear_pointer(&weights->base_hash, g_free);
        g_clear_pointer(&weights->base_values, g_free);
    }
}

gboolean
rp_weights_bind(RpWeights *weights, const RpSafetensors *checkpoint, GError **error)
{
    g_return_val_if_fail(weights && checkpoint, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    g_autoptr(GHashTable) names = g_hash_table_new(g_str_hash, g_str_equal);
    g_autofree RpWeightOrigin *origins = g_new0(RpWeightOrigin, weights->list->len);
    g_autoptr(GPtrArray) own = g_ptr_array_new_with_free_func(g_free);
    Binding binding = {.weights = weights,
                       .checkpoint = checkpoint,
                       .names = names,
                       .origins = origins,
                       .own = own};

    if (!pick_dtype(weights, checkpoint, &binding.dtype, error))
        return FALSE;
    for (guint i = 0; i < weights->list->len; i++) {
        if (!bind_weight(&binding, i, error))
            return FALSE;
        origins[i].base = origins[i].tensor;
    }
    if (!check_extra(&weights->model, names, checkpoint, error))
        return FALSE;
    rp_weights_take(weights, g_steal_pointer(&origins), g_steal_pointer(&own), binding.dtype);
    return TRUE;
}
