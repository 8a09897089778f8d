/**
 * Layers that contradict one another: each alone is within its limits.
 */
#include "core/base/units.h"
#include "core/profile/private.h"

/* Input of the checks below. */
typedef struct {
    RpJsonPull *pull;
    const RpProfile *profile;
    const char *layers; /* in the text */
    const RpProfileEntry *entries;
} Check;

/* "x.json: line 9, column 5: layers[2].tied_bytes: expected at most parameter_bytes, 4096, found
 * 5000" */
static gboolean
refuse(const Check *check, guint l, const char *key, const char *expected, guint64 number,
       guint64 found)
{
    const RpProfileEntry *entry = &check->entries[l];
    g_autofree char *place = g_strdup_printf("layers[%u].%s", entry->index, key);
    g_autofree char *wanted = g_strdup_printf("%s, %" G_GUINT64_FORMAT, expected, number);
    g_autofree char *shown = g_strdup_printf("%" G_GUINT64_FORMAT, found);

    return rp_json_pull_refuse(check->pull, entry->at, place, wanted, shown);
}

static gboolean
refuse_all(const Check *check, const char *expected, const char *found)
{
    return rp_json_pull_refuse(check->pull, check->layers, "layers", expected, found);
}

static gboolean
check_gradients(const Check *check, guint l)
{
    const RpLayer *layer = &check->profile->layers[l];
    const guint element = rp_profile_element_bytes(check->profile);

    if (layer->gradient_bytes > layer->parameter_bytes)
        return refuse(check, l, "gradient_bytes", "at most parameter_bytes", layer->parameter_bytes,
                      layer->gradient_bytes);
    return layer->gradient_bytes % element == 0 ||
           refuse(check, l, "gradient_bytes", "a multiple of the bytes of an element", element,
                  layer->gradient_bytes);
}

/* Uploaded bytes become parameters, and trained weights are never packed. */
static gboolean
check_upload(const Check *check, guint l)
{
    const RpLayer *layer = &check->profile->layers[l];

    if (layer->upload_bytes > 0 && layer->parameter_bytes == 0)
        return refuse(check, l, "upload_bytes", "0 of a layer without parameter_bytes", 0,
                      layer->upload_bytes);
    return layer->upload_bytes == 0 ||
           layer->upload_bytes >= MAX(layer->gradient_bytes, layer->tied_bytes) ||
           refuse(check, l, "upload_bytes", "0 or at least gradient_bytes and tied_bytes",
                  MAX(layer->gradient_bytes, layer->tied_bytes), layer->upload_bytes);
}

/* Tied bytes are the embedding's, and a part of the layer's own. */
static gboolean
check_tied(const Check *check, guint l)
{
    const RpLayer *layer = &check->profile->layers[l], *embedding = &check->profile->layers[0];
    const guint element = rp_profile_element_bytes(check->profile);
    const guint64 tied = layer->tied_bytes;

    if (tied == 0)
        return layer->tied_gradient_bytes == 0 ||
               refuse(check, l, "tied_gradient_bytes", "0 of a layer without tied_bytes", 0,
                      layer->tied_gradient_bytes);
    if (layer->kind != RP_LAYER_HEAD || embedding->kind != RP_LAYER_EMBEDDING)
        return refuse(check, l, "tied_bytes", "weights of a head tied to an embedding, else none",
                      0, tied);
    if (tied % element != 0)
        return refuse(check, l, "tied_bytes", "a multiple of the bytes of an element", element,
                      tied);
    if (tied >= layer->parameter_bytes)
        return refuse(check, l, "tied_bytes", "less than parameter_bytes", layer->parameter_bytes,
                      tied);
    if (tied > embedding->parameter_bytes)
        return refuse(check, l, "tied_bytes", "at most parameter_bytes of layers[0]",
                      embedding->parameter_bytes, tied);
    if (layer->tied_gradient_bytes != 0 && layer->tied_gradient_bytes != tied)
        return refuse(check, l, "tied_gradient_bytes", "0 or tied_bytes", tied,
                      layer->tied_gradient_bytes);
    if (layer->gradient_bytes < layer->tied_gradient_bytes)
        return refuse(check, l, "gradient_bytes", "at least tied_gradient_bytes", tied,
                      layer->gradient_bytes);
    if (rp_layer_own_gradient_bytes(layer) > layer->parameter_bytes - tied)
        return refuse(check, l, "gradient_bytes",
                      "no more than parameter_bytes less tied_bytes of its own",
                      layer->parameter_bytes - tied, rp_layer_own_gradient_bytes(layer));
    if (embedding->gradient_bytes < layer->tied_gradient_bytes)
        return refuse(check, 0, "gradient_bytes", "at least tied_gradient_bytes of the head", tied,
                      embedding->gradient_bytes);
    return TRUE;
}

static gboolean
check_border(const Check *check, guint l)
{
    const RpLayer *layer = &check->profile->layers[l];

    if (l == 0)
        return TRUE;
    if (layer->input_bytes != layer[-1].output_bytes)
        return refuse(check, l, "input_bytes", "output_bytes of the layer before",
                      layer[-1].output_bytes, layer->input_bytes);
    return layer->input_bytes > 0 ||
           refuse(check, l, "input_bytes", "what the layer before passes on, at least", 1, 0);
}

/* So that a sum over all layers, a few times over, is far from the end of 64 bits. */
static gboolean
check_sums(const Check *check)
{
    guint64 bytes = 0;
    double ms = 0;

    for (guint l = 0; l < check->profile->n_layers; l++) {
        const RpLayer *layer = &check->profile->layers[l];

        ms += rp_ms_from_ns(layer->forward_ns) + rp_ms_from_ns(layer->backward_ns) +
              rp_ms_from_ns(layer->recompute_ns) + rp_ms_from_ns(layer->expand_ns);
        bytes += layer->parameter_bytes + layer->upload_bytes + layer->gradient_bytes +
                 layer->input_bytes + layer->output_bytes + layer->forward_workspace_bytes +
                 layer->backward_workspace_bytes + layer->activation_bytes; /* each <= 2^50 */
        if (bytes > RP_PROFILE_MAX_SUM_BYTES)
            return refuse_all(check, "sizes of at most 2^53 bytes, all layers together", "more");
    }
    return ms <= RP_PROFILE_MAX_MS ||
           refuse_all(check, "times of at most 1e9 ms, all layers together", "more");
}

gboolean
rp_profile_check_layers(RpJsonPull *pull, const RpProfile *profile, const char *layers,
                        const RpProfileEntry *entries)
{
    const Check check = {pull, profile, layers, entries};

    if (rp_profile_n_blocks(profile) == 0)
        return refuse_all(&check, "at least one block", "none");
    if (!check_sums(&check))
        return FALSE;
    for (guint l = 0; profile->has_sizes && l < profile->n_layers; l++)
        if (!check_gradients(&check, l) || !check_upload(&check, l) || !check_tied(&check, l) ||
            !check_border(&check, l))
            return FALSE;
    return TRUE;
}
