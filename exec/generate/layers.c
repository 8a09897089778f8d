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
#include "exec/system/memory-limit.h"

G_DEFINE_QUARK(rp_generate_error, rp_generate_error)

#define BUFFERS RP_PROBE_BUFFERS

/* ---- loading ---- */

/* All tensors that are packed as one. */
static void
expand(const RpWeights *weights, guint index, const RpWeightPlace *place, guint8 *at)
{
    const guint64 n = rp_lowbit_elements(place->packed_shape);
    const gsize bytes = rp_lowbit_layout(place->format, place->packed_shape).total;
    void *packed = g_aligned_alloc(1, bytes, RP_LOWBIT_ALIGNMENT);

    rp_lowbit_source_load(rp_weights_packed(weights, index), packed, NULL);
    rp_lowbit_expand(place->format, place->packed_shape, packed, place->storage, 0, n, at);
    g_aligned_free(packed);
}

/* Each weight to its place: a tied head has a copy of its own. Adapters may be stored in a wider type than they run in. */
static void
load(const RpNetwork *network, const RpWeights *weights, guint layer, guint8 *to)
{
    const RpLayerLayout *layout = rp_network_layout(network, layer);
    guint first;
    const guint n = rp_weights_layer(weights, layer, &first);

    memset(to, 0, layout->bytes);
    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const RpWeightPlace place = rp_layout_place(layout, weight);

        if (!place.is_packed)
            rp_weights_read_as(weights, i, place.storage, 0, to + place.byte, weight->elements);
        else if (weight->offset == 0) /* in a stack the first stands for all */
            expand(weights, i, &place, to + place.byte);
    }
}

/* ---- memory ---- */

/* Whether a layer is resident where @n are: the head and the embedding come first, as they are the largest. */
static gboolean
is_resident(const RpNetwork *network, guint layer, guint n)
{
    return (layer + 1) % rp_network_n_layers(network) < n;
}

guint64
rp_layers_bytes(const RpNetwork *network, guint n_resident, guint64 *streamed)
{
    guint64 resident = 0, largest = 0, others = 0;

    for (guint l = 0; l < rp_network_n_layers(network); l++) {
        const guint64 bytes = rp_network_layout(network, l)->bytes;

        if (is_resident(network, l, n_resident)) {
            resident += bytes;
        } else {
            others += bytes;
            largest = MAX(largest, bytes);
        }
    }
    if (streamed != NULL)
        *streamed = others;
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
    const guint64 bytes = rp_layers_bytes(network, rp_network_n_layers(network), NULL);
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);
    RpHostLayers *host;

    if (bytes >= limit.bytes) {
        (void)rp_layers_refuse("all layers", bytes, limit.bytes, NULL, error);
        return NULL;
    }
    host = g_atomic_rc_box_new0(RpHostLayers);
    host->ops = probe->ops;
    host->memory = probe->ops->take_pinned(probe, bytes, error);
    if (host->memory == NULL) {
        host_unref(host);
        return NULL;
    }
    for (guint l = 0; l < rp_network_n_layers(network); l++)
        load(network, weights, l, host->memory + rp_network_layout(network, l)->first_byte);
    return host;
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

/* A resident layer, from the host's copy if there is one, else by way of @scratch. */
static gboolean
upload(const RpLayers *layers, const RpWeights *weights, RpProbe *probe, guint layer,
       guint8 *scratch, GError **error)
{
    const RpLayerLayout *layout = rp_network_layout(layers->network, layer);

    if (layers->host == NULL)
        load(layers->network, weights, layer, scratch);
    return probe->ops->upload(probe, layers->places[layer],
                              layers->host == NULL ? scratch
                                                   : layers->host->memory + layout->first_byte,
                              layout->bytes, error);
}

static gsize
largest_layer(const RpNetwork *network)
{
    gsize largest = 0;

    for (guint l = 0; l < rp_network_n_layers(network); l++)
        largest = MAX(largest, rp_network_layout(network, l)->bytes);
    return largest;
}

gboolean
rp_layers_open(RpLayers *layers, const RpNetwork *network, const RpWeights *weights, RpProbe *probe,
               guint n_resident, RpHostLayers *host, GError **error)
{
    const guint n = rp_network_n_layers(network);
    gboolean good;

    layers->network = network;
    layers->places = g_new0(guint8 *, n);
    layers->streamed = g_new(guint, n);
    layers->host = host != NULL     ? g_atomic_rc_box_acquire(host)
                   : n_resident < n ? host_new(network, weights, probe, error)
                                    : NULL;
    good = (layers->host != NULL || n_resident == n) &&
           (layers->memory =
                probe->ops->take(probe, rp_layers_bytes(network, n_resident, NULL), error)) != NULL;
    layers->buffers = layers->memory;
    g_autofree guint8 *scratch =
        good && layers->host == NULL ? g_malloc(largest_layer(network)) : NULL;

    for (guint l = 0; l < n && good; l++) {
        const guint64 bytes = rp_network_layout(network, l)->bytes;

        if (is_resident(network, l, n_resident)) {
            layers->places[l] = layers->buffers;
            layers->buffers += bytes; /* behind all of them */
            good = upload(layers, weights, probe, l, scratch, error);
        } else {
            layers->streamed[layers->n_streamed++] = l;
            layers->buffer_bytes = MAX(layers->buffer_bytes, bytes);
        }
    }
    for (guint b = 0; b < BUFFERS && layers->n_streamed > 0 && good; b++)
        good = fetch(layers, probe, b, error);
    return good;
}

void
rp_layers_close(RpLayers *layers, RpProbe *probe)
{
    guint8 byte;

    if (layers->n_streamed > 0) { /* waits for copies that nothing needs any more */
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
