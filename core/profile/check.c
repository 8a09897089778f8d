/**
 * Sizes of layers that contradict one another: each alone is within its limits.
 */
#include "core/profile/private.h"

/* Sets "x.json: layers[2].tied_bytes: expected at most parameter_bytes, 4096, found 5000". */
static gboolean
refuse(const RpSection *top, guint entry, const char *key, const char *expected, guint64 number,
       guint64 found)
{
    g_autofree char *place = g_strdup_printf("layers[%u].%s", entry, key);
    g_autofree char *wanted = g_strdup_printf("%s, %" G_GUINT64_FORMAT, expected, number);
    g_autofree char *shown = g_strdup_printf("%" G_GUINT64_FORMAT, found);

    return rp_section_fail(top, RP_PROFILE_ERROR_VALUE, place, wanted, shown);
}

static gboolean
check_gradients(const RpSection *top, const RpProfile *profile, guint l, guint entry)
{
    const RpLayer *layer = &profile->layers[l];
    const guint element = rp_profile_element_bytes(profile);

    if (layer->gradient_bytes > layer->parameter_bytes)
        return refuse(top, entry, "gradient_bytes", "at most parameter_bytes",
                      layer->parameter_bytes, layer->gradient_bytes);
    return layer->gradient_bytes % element == 0 ||
           refuse(top, entry, "gradient_bytes", "a multiple of the bytes of an element", element,
                  layer->gradient_bytes);
}

/* What is tied is the embedding's, and a part of the layer's own bytes. */
static gboolean
check_tied(const RpSection *top, const RpProfile *profile, guint l, guint entry)
{
    const RpLayer *layer = &profile->layers[l], *embedding = &profile->layers[0];
    const guint element = rp_profile_element_bytes(profile);
    const guint64 tied = layer->tied_bytes;

    if (tied == 0)
        return TRUE;
    if (layer->kind != RP_LAYER_HEAD || embedding->kind != RP_LAYER_EMBEDDING)
        return refuse(top, entry, "tied_bytes", "weights of a head tied to an embedding, else none",
                      0, tied);
    if (tied % element != 0)
        return refuse(top, entry, "tied_bytes", "a multiple of the bytes of an element", element,
                      tied);
    if (tied >= layer->parameter_bytes)
        return refuse(top, entry, "tied_bytes", "less than parameter_bytes", layer->parameter_bytes,
                      tied);
    if (tied > embedding->parameter_bytes)
        return refuse(top, entry, "tied_bytes", "at most parameter_bytes of layers[0]",
                      embedding->parameter_bytes, tied);
    if (layer->gradient_bytes > 0 && layer->gradient_bytes < tied)
        return refuse(top, entry, "gradient_bytes", "0 or at least tied_bytes", tied,
                      layer->gradient_bytes);
    if (layer->gradient_bytes > 0 && embedding->gradient_bytes < tied)
        return refuse(top, 0, "gradient_bytes", "at least tied_bytes of the head, which is trained",
                      tied, embedding->gradient_bytes);
    return TRUE;
}

static gboolean
check_border(const RpSection *top, const RpProfile *profile, guint l, guint entry)
{
    const RpLayer *layer = &profile->layers[l];

    if (l == 0)
        return TRUE;
    if (layer->input_bytes != layer[-1].output_bytes)
        return refuse(top, entry, "input_bytes", "output_bytes of the layer before",
                      layer[-1].output_bytes, layer->input_bytes);
    return layer->input_bytes > 0 ||
           refuse(top, entry, "input_bytes", "what the layer before passes on, at least", 1, 0);
}

/* So that a sum over all layers, a few times over, is far from the end of 64 bits. */
static gboolean
check_sum(const RpSection *top, const RpProfile *profile)
{
    guint64 sum = 0;

    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        sum += layer->parameter_bytes + layer->gradient_bytes + layer->input_bytes +
               layer->output_bytes + layer->forward_workspace_bytes +
               layer->backward_workspace_bytes + layer->activation_bytes; /* each <= 2^50 */
        if (sum > RP_PROFILE_MAX_SUM_BYTES)
            return rp_section_fail(top, RP_PROFILE_ERROR_VALUE, "layers",
                                   "sizes of at most 2^53 bytes, all layers together", "more");
    }
    return TRUE;
}

gboolean
rp_profile_check_sizes(const RpSection *top, const RpProfile *profile, const guint *entries)
{
    if (!check_sum(top, profile))
        return FALSE;
    for (guint l = 0; profile->has_sizes && l < profile->n_layers; l++)
        if (!check_gradients(top, profile, l, entries[l]) ||
            !check_tied(top, profile, l, entries[l]) || !check_border(top, profile, l, entries[l]))
            return FALSE;
    return TRUE;
}
