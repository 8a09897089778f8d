/*
 * A virtual device's memory is the host's, so both directions of its link are one measurement, and
 * all copies together are limited by the processors' rate.
 *
 * The buffers are larger than the caches: pieces as large as a block's weights walk through them.
 *
 *   from   |piece|piece|piece|piece| ... and again      to   |piece|piece| ...
 */
#include "exec/host/kernels.h"

#include <gio/gio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "exec/measure/measure.h"

#define LEAST_PIECE_BYTES 65536
#define MOST_BUFFER_BYTES (256 * RP_MIB)
#define SMALL_BYTES 64

typedef struct {
    guint8 *from, *to;
    gsize buffer_bytes;
    gsize piece_bytes;
    gsize at;
} Copies;

static void
copy_piece(gpointer data)
{
    Copies *copies = data;

    memcpy(copies->to + copies->at, copies->from + copies->at, copies->piece_bytes);
    copies->at += copies->piece_bytes;
    if (copies->at + copies->piece_bytes > copies->buffer_bytes)
        copies->at = 0;
}

static void
copy_little(gpointer data)
{
    Copies *copies = data;

    memcpy(copies->to, copies->from, SMALL_BYTES);
}

static gboolean
measure_alone(RpMeasurer *measurer, Copies *copies, RpLinks *links, GError **error)
{
    static const RpProbePart piece[] = {copy_piece}, little[] = {copy_little};
    RpTimes times;

    if (!rp_measurer_run(measurer, NULL, piece, 1, copies, &times, error))
        return FALSE;
    links->h2d_bytes_per_s = rp_times_rate(&times, (double)copies->piece_bytes);
    links->d2h_bytes_per_s = links->h2d_bytes_per_s;
    if (!rp_measurer_run(measurer, NULL, little, 1, copies, &times, error))
        return FALSE;
    links->copy_latency_ns = times.median_ns;
    return TRUE;
}

static gboolean
measure_links(RpProbe *probe, RpMeasurer *measurer, RpProfile *profile, GError **error)
{
    const guint block = MIN(rp_profile_first_block(profile), profile->n_layers - 1);
    Copies copies = {.buffer_bytes = rp_measure_buffer_bytes(MOST_BUFFER_BYTES)};
    gboolean measured = FALSE;

    copies.piece_bytes = (gsize)CLAMP(profile->layers[block].parameter_bytes, LEAST_PIECE_BYTES,
                                      copies.buffer_bytes);
    copies.from = rp_measure_take(NULL, copies.buffer_bytes, error);
    copies.to = copies.from != NULL ? rp_measure_take(NULL, copies.buffer_bytes, error) : NULL;
    if (copies.to != NULL)
        measured = measure_alone(measurer, &copies, &profile->links, error);
    free(copies.from);
    free(copies.to);
    return measured && rp_measure_host_copies(measurer, copies.buffer_bytes, profile->processors,
                                              &profile->links.host_bytes_per_s, error);
}

static void
describe(RpProbe *probe, RpProfile *profile)
{
    rp_profile_take(&profile->device, g_strdup("host"));
    profile->processors = rp_usable_processors();
}

static void
probe_free(RpProbe *probe)
{
    g_free(probe);
}

static void *
take(RpProbe *probe, gsize bytes, GError **error)
{
    return rp_measure_take(NULL, bytes, error);
}

static void
give(RpProbe *probe, void *memory)
{
    free(memory);
}

static gboolean
copy(RpProbe *probe, void *to, const void *from, gsize bytes, GError **error)
{
    memcpy(to, from, bytes);
    return TRUE;
}

/* Operations are done when they are issued. */
static gboolean
fetch(RpProbe *probe, guint buffer, void *to, const void *from, gsize bytes, GError **error)
{
    memcpy(to, from, bytes);
    return TRUE;
}

static gboolean
await(RpProbe *probe, guint buffer, GError **error)
{
    return TRUE;
}

static RpKernelStream *
stream(RpProbe *probe)
{
    return NULL;
}

static gboolean
time_parts(RpProbe *probe, const RpProbePart *parts, guint n_parts, guint repeats, gpointer data,
           gint64 *ns, GError **error)
{
    rp_time_on_host(parts, n_parts, repeats, data, ns);
    return TRUE;
}

static const RpProbeOps ops = {
    .name = "host",
    .is_host = TRUE,
    .most_repeats = 1,
    .n_link_measures = 3,
    .free = probe_free,
    .take = take,
    .give = give,
    .upload = copy,
    .download = copy,
    .stream = stream,
    .time = time_parts,
    .describe = describe,
    .measure_links = measure_links,
    .take_pinned = take,
    .give_pinned = free,
    .fetch = fetch,
    .await = await,
};

RpProbe *
rp_host_probe_new(guint device, GError **error)
{
    guint n;

    if (!rp_host_reserve_matmul(1, &n, error))
        return NULL;
    if (n == 0)
        return rp_null(
            rp_fail(error, G_IO_ERROR, G_IO_ERROR_NO_SPACE,
                    "matmuls need %zu bytes of address space, which there are not: raise the limit "
                    "(ulimit -v) or free some memory",
                    RP_HOST_MATMUL_BUFFER_BYTES));
    RpProbe *probe = g_new0(RpProbe, 1);
    probe->ops = &ops;
    return probe;
}
