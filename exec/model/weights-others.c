/*
 * Tensors of a larger model's other parts: what sees, or predicts several tokens. They are not bound; a file with all
 * weights has them as the base has them, behind those of the text part.
 */
#include "exec/model/weights.h"

gboolean
rp_weights_is_other(const RpModel *model, const char *name)
{
    g_return_val_if_fail(model && name, FALSE);

    const RpArchitectureRow *row = &rp_architectures[model->architecture];

    if (model->outer)
        return !g_str_has_prefix(name, RP_OUTER_PREFIX) && !g_str_has_prefix(name, "lm_head.");
    return row->outer_name != NULL &&
           (g_str_has_prefix(name, "mtp.") || g_str_has_prefix(name, "model.visual."));
}

guint
rp_weights_add_others(const RpModel *model, const RpSafetensors *base, RpSafetensorsWriter *writer)
{
    guint first = G_MAXUINT;

    for (guint i = 0; base != NULL && i < rp_safetensors_count(base); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(base, i);

        if (!rp_weights_is_other(model, tensor->name))
            continue;
        const guint number = rp_safetensors_writer_add_type(
            writer, tensor->name, tensor->dtype_name, tensor->shape, tensor->rank);

        first = MIN(first, number);
    }
    return first;
}

gboolean
rp_weights_write_others(const RpModel *model, const RpSafetensors *base, guint first,
                        RpSafetensorsWriter *writer, GError **error)
{
    for (guint i = 0; base != NULL && i < rp_safetensors_count(base); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(base, i);

        if (rp_weights_is_other(model, tensor->name) &&
            !rp_safetensors_writer_write(writer, first++, tensor->data, (gsize)tensor->bytes,
                                         error))
            return FALSE;
    }
    return TRUE;
}
