/* Layers of a model: kinds, classes, and attention of blocks. */
#include "core/catalogue/custom.h"

guint
rp_model_n_layers(const RpModel *model)
{
    g_return_val_if_fail(model != NULL, 0);
    return model->blocks + 2;
}

RpLayerKind
rp_model_layer_kind(const RpModel *model, guint layer)
{
    g_return_val_if_fail(model && layer < model->blocks + 2, RP_LAYER_BLOCK);
    return layer == 0                   ? RP_LAYER_EMBEDDING
           : layer == model->blocks + 1 ? RP_LAYER_HEAD
                                        : RP_LAYER_BLOCK;
}

gboolean
rp_model_block_slides(const RpModel *model, guint block)
{
    g_return_val_if_fail(model && block < model->blocks, FALSE);
    return model->sliding_window > 0 && block >= model->sliding_from &&
           (model->sliding_period == 0 ||
            (block - model->sliding_from + 1) % model->sliding_period != 0);
}

guint
rp_model_block_window(const RpModel *model, guint block)
{
    return rp_model_block_slides(model, block) ? model->sliding_window : 0;
}

gboolean
rp_model_block_has_rope(const RpModel *model, guint block)
{
    g_return_val_if_fail(model && block < model->blocks, FALSE);
    return model->no_rope_period == 0 || (block + 1) % model->no_rope_period != 0;
}

gboolean
rp_model_block_is_delta(const RpModel *model, guint block)
{
    g_return_val_if_fail(model && block < model->blocks, FALSE);
    return model->full_period > 0 && (block + 1) % model->full_period != 0;
}

guint
rp_model_rotary_dim(const RpModel *model)
{
    return model->rotary_dim > 0 ? model->rotary_dim : model->head_dim;
}

guint64
rp_model_delta_columns(const RpModel *model)
{
    return 2 * (guint64)model->delta_key_heads * model->delta_key_dim +
           (guint64)model->delta_value_heads * model->delta_value_dim;
}

/* Tables of a rope. */
static guint
tables_of_rope(const RpModel *model)
{
    return model->rope.query_beta > 0 ? 2 : 1;
}

guint
rp_model_n_rope_tables(const RpModel *model)
{
    return tables_of_rope(model) * (model->has_sliding_rope ? 2 : 1);
}

guint
rp_model_rope_table(const RpModel *model, guint block, gboolean queries)
{
    const gboolean own = model->has_sliding_rope && rp_model_block_slides(model, block);

    return tables_of_rope(model) * (own ? 1 : 0) + (queries ? tables_of_rope(model) - 1 : 0);
}

const RpRope *
rp_model_nth_rope(const RpModel *model, guint table, gboolean *queries)
{
    g_return_val_if_fail(table < rp_model_n_rope_tables(model), NULL);
    *queries = table % tables_of_rope(model) > 0;
    return table < tables_of_rope(model) ? &model->rope : &model->sliding_rope;
}

guint
rp_model_layer_class(const RpModel *model, guint layer)
{
    guint first = 1;

    if (rp_model_layer_kind(model, layer) != RP_LAYER_BLOCK)
        return layer;
    if (model->custom != NULL)
        return rp_custom_class(model, layer);
    while (rp_model_block_is_delta(model, first - 1) != rp_model_block_is_delta(model, layer - 1) ||
           rp_model_block_slides(model, first - 1) != rp_model_block_slides(model, layer - 1) ||
           rp_model_block_has_rope(model, first - 1) != rp_model_block_has_rope(model, layer - 1))
        first++;
    return first;
}

RpProfile *
rp_model_profile(const RpModel *model, guint sequences, guint tokens, gsize element_bytes)
{
    static const char *const names[] = {"embed", "block", "head"};
    const guint64 n_tokens = (guint64)sequences * tokens;
    const guint64 hidden = rp_model_rows(model, sequences, tokens) * model->hidden * element_bytes;
    RpProfile *profile = rp_profile_new(rp_model_n_layers(model));

    profile->sequences = sequences;
    profile->tokens_per_sequence = tokens;
    profile->has_sizes = TRUE;
    for (guint l = 0; l < profile->n_layers; l++) {
        RpLayer *layer = &profile->layers[l];

        layer->kind = rp_model_layer_kind(model, l);
        layer->name = names[layer->kind];
        layer->input_bytes = layer->kind == RP_LAYER_EMBEDDING ? n_tokens * sizeof(gint32) : hidden;
        layer->output_bytes = layer->kind == RP_LAYER_HEAD ? 0 : hidden;
    }
    return profile;
}

/* Decides which weights are packed, and their shapes. */

static gboolean
is_linear(RpWeightKind kind)
{
    switch (kind) {
    case RP_WEIGHT_Q:
    case RP_WEIGHT_K:
    case RP_WEIGHT_V:
    case RP_WEIGHT_O:
    case RP_WEIGHT_DELTA_QKV:
    case RP_WEIGHT_DELTA_Z:
    case RP_WEIGHT_DELTA_B:
    case RP_WEIGHT_DELTA_A:
    case RP_WEIGHT_DELTA_OUT:
    case RP_WEIGHT_GATE:
    case RP_WEIGHT_UP:
    case RP_WEIGHT_GATE_UP:
    case RP_WEIGHT_DOWN:
    case RP_WEIGHT_SHARED_GATE:
    case RP_WEIGHT_SHARED_UP:
    case RP_WEIGHT_SHARED_DOWN:
    case RP_WEIGHT_SHARED_SCORE:
        return TRUE;
    default:
        return FALSE;
    }
}

/* Whether its matrix has a row for each head, or one. */
static gboolean
is_narrow(RpWeightKind kind)
{
    return kind == RP_WEIGHT_DELTA_B || kind == RP_WEIGHT_DELTA_A || kind == RP_WEIGHT_SHARED_SCORE;
}

gboolean
rp_weight_multiplies_fp8(const RpWeight *weight)
{
    const RpWeightKind kind = weight->kind;

    return (is_linear(kind) || kind == RP_WEIGHT_HEAD) && !is_narrow(kind) &&
           !rp_weight_is_shared(kind) && weight->rank == 2 && weight->stack[0] == 0;
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
        return format != RP_LOWBIT_FP8 || !is_narrow(weight->kind);
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
