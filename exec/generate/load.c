#include "exec/generate/load.h"

#include <string.h>

#include "core/base/units.h"
#include "exec/generate/generator.h"
#include "exec/system/memory-limit.h"

G_DEFINE_QUARK(rp_generate_error, rp_generate_error)

#define ALIGNMENT 256

/* Elements that are read at a time. */
#define PIECE ((guint64)1 << 20)

/* Adapters may be stored in a wider type than they run in, and experts packed. */
static gboolean
store(RpProbe *probe, const RpWeights *weights, guint index, RpDtype storage, guint8 *at,
      GError **error)
{
    const guint64 n = rp_weights_nth(weights, index)->elements;
    g_autofree float *wide = g_new(float, PIECE);
    g_autofree guint8 *stored = g_malloc(PIECE * rp_dtype_size(storage));

    for (guint64 first = 0; first < n; first += PIECE) {
        const gsize some = (gsize)MIN(PIECE, n - first);

        rp_weights_read(weights, index, first, wide, some);
        rp_dtype_from_float(storage, wide, stored, some);
        if (!probe->ops->upload(probe, at + first * rp_dtype_size(storage), stored,
                                some * rp_dtype_size(storage), error))
            return FALSE;
    }
    return TRUE;
}

/* All tensors that are packed as one: in a stack the first stands for all. */
static gboolean
expand(RpProbe *probe, const RpWeights *weights, guint index, const RpWeightPlace *place,
       guint8 *at, GError **error)
{
    const guint64 n = rp_lowbit_elements(place->packed_shape);
    const gsize packed_bytes = rp_lowbit_layout(place->format, place->packed_shape).total;
    const gsize bytes = n * rp_dtype_size(place->storage);
    void *packed = g_aligned_alloc(1, packed_bytes, RP_LOWBIT_ALIGNMENT);
    g_autofree guint8 *expanded = g_malloc(bytes);

    rp_lowbit_source_load(rp_weights_packed(weights, index), packed, NULL);
    rp_lowbit_expand(place->format, place->packed_shape, packed, place->storage, 0, n, expanded);
    g_aligned_free(packed);
    return probe->ops->upload(probe, at, expanded, bytes, error);
}

/* Each weight to its place: a tied head has a copy of its own. */
static gboolean
load(const RpNetwork *network, const RpWeights *weights, RpProbe *probe, guint8 *parameters,
     GError **error)
{
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const RpLayerLayout *layout = rp_network_layout(network, weight->layer);
        const RpWeightPlace place = rp_layout_place(layout, weight);
        guint8 *at = parameters + layout->first_byte + place.byte;

        if (!place.is_packed && !store(probe, weights, i, place.storage, at, error))
            return FALSE;
        if (place.is_packed && weight->offset == 0 && !expand(probe, weights, i, &place, at, error))
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_load_check_memory(const RpProbe *probe, guint64 bytes, GError **error)
{
    if (strcmp(probe->ops->name, "host") != 0)
        return TRUE;
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    if (bytes < limit.bytes)
        return TRUE;
    g_autofree char *what = rp_memory_limit_describe(&limit);

    g_set_error(error, RP_GENERATE_ERROR, RP_GENERATE_ERROR_MEMORY,
                "host memory: the model and its workspace need %" G_GUINT64_FORMAT
                " bytes, there are %" G_GUINT64_FORMAT
                ": use a machine with more memory; the limit is %s",
                bytes, limit.bytes, what);
    return FALSE;
}

void *
rp_load_weights(const RpNetwork *network, const RpWeights *weights, RpProbe *probe, GError **error)
{
    const RpInterval all = {0, rp_network_n_layers(network)};
    const guint64 bytes = rp_network_weight_bytes(network, all);
    void *parameters =
        rp_load_check_memory(probe, bytes, error) ? probe->ops->take(probe, bytes, error) : NULL;

    if (parameters == NULL || load(network, weights, probe, parameters, error))
        return parameters;
    probe->ops->give(probe, parameters);
    return NULL;
}

guint64
rp_load_workspace_bytes(const RpNetwork *network)
{
    g_autoptr(RpProfile) sizes = rp_network_profile(network);
    guint64 scratch = 0;

    for (guint l = 0; l < sizes->n_layers; l++)
        scratch = MAX(scratch, sizes->layers[l].forward_workspace_bytes);
    return scratch + 2 * rp_align_up(rp_network_hidden_bytes(network), ALIGNMENT);
}
