/* Layers of a model: kinds, classes, and attention of blocks. */
#include "core/catalogue/model.h"

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

guint
rp_model_layer_class(const RpModel *model, guint layer)
{
    guint first = 1;

    if (rp_model_layer_kind(model, layer) != RP_LAYER_BLOCK)
        return layer;
    while (rp_model_block_slides(model, first - 1) != rp_model_block_slides(model, layer - 1) ||
           rp_model_block_has_rope(model, first - 1) != rp_model_block_has_rope(model, layer - 1))
        first++;
    return first;
}

RpProfile *
rp_model_profile(const RpModel *model, guint sequences, guint tokens, gsize element_bytes)
{
    static const char *const names[] = {"embed", "block", "head"};
    const guint64 n_tokens = (guint64)sequences * tokens;
    const guint64 hidden = n_tokens * model->hidden * element_bytes;
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
