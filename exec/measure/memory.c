/*
 * The host's memory: copies of its processors.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/units.h"
#include "exec/measure/measure.h"
#include "exec/system/available-memory.h"

#define CACHES 4 /* how much larger than the largest cache a buffer is */
#define LEAST_BUFFER_BYTES (64 * RP_MIB)
#define LEAST_SCARCE_BYTES 65536 /* in a small container: what a link is measured with at least */
#define MEMORY_SHARE 8           /* of what is available */
#define GRANULE_BYTES 4096

gsize
rp_measure_buffer_bytes(gsize most)
{
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    const gsize bytes =
        (gsize)CLAMP(cache > 0 ? CACHES * (guint64)cache : 0, LEAST_BUFFER_BYTES, most);
    const guint64 available = rp_available_memory(); /* 0: nobody knows */
    const guint64 share = available / MEMORY_SHARE / GRANULE_BYTES * GRANULE_BYTES;

    return available == 0 ? bytes : (gsize)CLAMP(share, LEAST_SCARCE_BYTES, bytes);
}

typedef struct {
    guint8 *from, *to;
    gsize bytes;
    RpPool *pool;
} Copies;

static void
copy_range(gsize first, gsize n, gpointer data)
{
    const Copies *copies = data;

    memcpy(copies->to + first, copies->from + first, n);
}

/* The buffer, divided among the threads of the pool. */
static void
copy_together(gpointer data)
{
    Copies *copies = data;

    rp_pool_run(copies->pool, 0, copies->bytes, GRANULE_BYTES, copy_range, copies);
}

gboolean
rp_measure_host_copies(RpMeasurer *measurer, gsize bytes, guint threads, double *bytes_per_s,
                       GError **error)
{
    static const RpProbePart part[] = {copy_together};
    const RpPoolOptions options = {.n_threads = threads};
    g_autoptr(RpPool) pool = rp_pool_new(&options, error);
    Copies copies = {.bytes = bytes, .pool = pool};
    RpTimes times;
    gboolean measured = FALSE;

    if (pool == NULL)
        return FALSE;
    copies.from = rp_measure_take(pool, bytes, error);
    copies.to = copies.from != NULL ? rp_measure_take(pool, bytes, error) : NULL;
    if (copies.to != NULL)
        measured = rp_measurer_run(measurer, NULL, part, 1, &copies, &times, error);
    if (measured)
        *bytes_per_s = rp_times_rate(&times, (double)bytes);
    free(copies.from);
    free(copies.to);
    return measured;
}
