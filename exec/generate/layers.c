/*
 * A model's layers on a device: in its memory, or copied there while those before them run. Copies go through two
 * buffers, in the order of the layers and from call to call, so that the link never waits for a call to begin:
 *
 *   memory   |head|embedding|block 1|block 2|buffer 0|buffer 1|        blocks 3 to 6 are streamed
 *
 *   copies   |3 to buffer 0|4 to buffer 1|5 to buffer 0|6 to buffer 1|3 to buffer 0| ...
 *   stream                 |3|           |4|           |5|           |6|head|0|1|2|3| ...
 *
 * Streamed ones are copied from pinned memory of the host, where the whole model stands once for all devices, as devices
 * compute with it.
 */
#include "exec/generate/private.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "exec/system/memory-limit.h"

G_DEFINE_QUARK(rp_generate_error, rp_generate_error)

#define ALIGNMENT 256
#define BUFFERS RP_PROBE_BUFFERS

/* ---- loading ---- */

/* Elements that are read at a time. */
#define PIECE ((guint64)1 << 20)

/* @probe: (nullable): %NULL: into memory of the host */
static gboolean
put(RpProbe *probe, guint8 *to, const guint8 *from, gsize bytes, GError **error)
{
    if (probe != NULL)
        return probe->ops->upload(probe, to, from, bytes, error);
    memcpy(to, from, bytes);
    return TRUE;
}

/* Adapters may be stored in a wider type than they run in, and experts packed. */
static gboolean
store(RpProbe *probe, const RpWeights *weights, guint index, RpDtype storage, guint8 *at,
      GError **error)
{
    const guint64 n = rp_weights_nth(weights, index)->elements, most = MIN(n, PIECE);
    g_autofree float *wide = g_new(float, most);
    g_autofree guint8 *stored = g_malloc(most * rp_dtype_size(storage));

    for (guint64 first = 0; first < n; first += most) {
        const gsize some = (gsize)MIN(most, n - first);

        rp_weights_read(weights, index, first, wide, some);
        rp_dtype_from_float(storage, wide, stored, some);
        if (!put(probe, at + first * rp_dtype_size(storage), stored, some * rp_dtype_size(storage),
                 error))
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
    return put(probe, at, expanded, bytes, error);
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

/* ---- memory ---- */

/* Whether a layer is resident where @n are: the head and the embedding come first, as they are the largest. */
static gboolean
is_resident(const RpNetwork *network, guint layer, guint n)
{
    return (layer + 1) % rp_network_n_layers(network) < n;
}

static guint64
layer_bytes(const RpNetwork *network, guint layer)
{
    return rp_align_up(rp_network_layout(network, layer)->bytes, ALIGNMENT);
}

guint64
rp_layers_bytes(const RpNetwork *network, guint n_resident)
{
    const guint n = rp_network_n_layers(network);
    guint64 resident = 0, largest = 0;

    if (n_resident >= n)
        return rp_network_weight_bytes(network, (RpInterval){0, n});
    for (guint l = 0; l < n; l++)
        if (is_resident(network, l, n_resident))
            resident += layer_bytes(network, l);
        else
            largest = MAX(largest, layer_bytes(network, l));
    return resident + BUFFERS * largest;
}

gboolean
rp_layers_refuse(const char *what, guint64 bytes, guint64 left, const char *remedy, GError **error)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);
    g_autofree char *described = rp_memory_limit_describe(&limit);

    return rp_fail(error, RP_GENERATE_ERROR, RP_GENERATE_ERROR_MEMORY,
                   "%s memory: %s need %" G_GUINT64_FORMAT " bytes, there are %" G_GUINT64_FORMAT
                   ": %s%s",
                   remedy != NULL ? "device" : "host", what, bytes, left,
                   remedy != NULL ? remedy : "use a machine with more memory; the limit is ",
                   remedy != NULL ? "" : described);
}

static void
host_clear(gpointer data)
{
    RpHostLayers *host = data;

    if (host->memory != NULL)
        host->ops->give_pinned(host->memory);
}

static void
host_unref(RpHostLayers *host)
{
    if (host != NULL)
        g_atomic_rc_box_release_full(host, host_clear);
}

static RpHostLayers *
host_new(const RpNetwork *network, const RpWeights *weights, RpProbe *probe, GError **error)
{
    const guint64 bytes = rp_layers_bytes(network, rp_network_n_layers(network));
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);
    RpHostLayers *host;

    if (bytes >= limit.bytes) {
        (void)rp_layers_refuse("all layers", bytes, limit.bytes, NULL, error);
        return NULL;
    }
    host = g_atomic_rc_box_new0(RpHostLayers);
    host->ops = probe->ops;
    host->memory = probe->ops->take_pinned(probe, bytes, error);
    if (host->memory != NULL && load(network, weights, NULL, host->memory, error))
        return host;
    host_unref(host);
    return NULL;
}

/* Begins a copy, counted from the first call on, into the buffer that it comes to. */
static gboolean
fetch(RpLayers *layers, RpProbe *probe, guint64 copy, GError **error)
{
    const RpLayerLayout *layout =
        rp_network_layout(layers->network, layers->streamed[copy % layers->n_streamed]);

    return probe->ops->fetch(probe, copy % BUFFERS,
                             layers->buffers + copy % BUFFERS * layers->buffer_bytes,
                             layers->host->memory + layout->first_byte, layout->bytes, error);
}

/* Resident layers, buffers, and the first copies. */
static gboolean
fill(RpLayers *layers, RpProbe *probe, guint n_resident, GError **error)
{
    const RpNetwork *network = layers->network;
    const guint n = rp_network_n_layers(network);
    guint8 *at = layers->memory;

    layers->places = g_new0(guint8 *, n);
    layers->streamed = g_new(guint, n);
    for (guint l = 0; l < n; l++) {
        const RpLayerLayout *layout = rp_network_layout(network, l);

        if (!is_resident(network, l, n_resident)) {
            layers->streamed[layers->n_streamed++] = l;
            layers->buffer_bytes = MAX(layers->buffer_bytes, layer_bytes(network, l));
            continue;
        }
        layers->places[l] = at;
        if (!probe->ops->upload(probe, at, layers->host->memory + layout->first_byte, layout->bytes,
                                error))
            return FALSE;
        at += layer_bytes(network, l);
    }
    layers->buffers = at;
    for (guint b = 0; b < BUFFERS; b++)
        if (!fetch(layers, probe, b, error))
            return FALSE;
    return TRUE;
}

gboolean
rp_layers_open(RpLayers *layers, const RpNetwork *network, const RpWeights *weights, RpProbe *probe,
               guint n_resident, RpHostLayers *host, GError **error)
{
    layers->network = network;
    layers->host = host != NULL ? g_atomic_rc_box_acquire(host) : NULL;
    layers->memory = probe->ops->take(probe, rp_layers_bytes(network, n_resident), error);
    if (layers->memory == NULL)
        return FALSE;
    if (n_resident >= rp_network_n_layers(network))
        return load(network, weights, probe, layers->memory, error);
    if (layers->host == NULL)
        layers->host = host_new(network, weights, probe, error);
    return layers->host != NULL && fill(layers, probe, n_resident, error);
}

void
rp_layers_close(RpLayers *layers, RpProbe *probe)
{
    guint8 byte;

    if (layers->buffers != NULL) { /* waits for copies that nothing needs any more */
        for (guint b = 0; b < BUFFERS; b++)
            (void)probe->ops->await(probe, b, NULL);
        (void)probe->ops->download(probe, &byte, layers->buffers, 1, NULL);
    }
    if (layers->memory != NULL)
        probe->ops->give(probe, layers->memory);
    host_unref(layers->host);
    g_free(layers->places);
    g_free(layers->streamed);
}

/* ---- calls ---- */

const void *
rp_layers_begin(RpLayers *layers, RpProbe *probe, guint layer, GError **error)
{
    if (layers->places[layer] != NULL)
        return layers->places[layer];
    /* a call that failed has left some out */
    while (layers->streamed[layers->used % layers->n_streamed] != layer)
        if (!rp_layers_end(layers, probe, layers->streamed[layers->used % layers->n_streamed],
                           error))
            return NULL;
    return probe->ops->await(probe, layers->used % BUFFERS, error)
               ? layers->buffers + layers->used % BUFFERS * layers->buffer_bytes
               : NULL;
}

gboolean
rp_layers_end(RpLayers *layers, RpProbe *probe, guint layer, GError **error)
{
    return layers->places[layer] != NULL || fetch(layers, probe, layers->used++ + BUFFERS, error);
}
