#include <gio/gio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "exec/measure/measure.h"
#include "exec/system/clock.h"
#include "exec/system/memory-limit.h"

#define LEAST_RUNS 5
#define LEAST_PRECISE_RUNS 3 /* fewer have no percentiles to speak of */
#define PRECISE_SHARE 0.2    /* of RpMeasureOptions.seconds: within less, runs agree by accident */
#define LEAST_LONG_RUNS 2    /* runs so long that clocks swing within one */
#define LONG_SECONDS 5
#define SWING 5.0       /* times RpMeasureOptions.seconds, at most */
#define SWING_RUNS 2000 /* enough: no layer that takes less makes clocks swing */
#define BATCHES 8       /* batches that a measurement is divided into, where runs are repeated */
#define ALIGNMENT 256
#define HUGE_PAGE ((gsize)2 << 20)
#define MARGIN 16 /* a part of it is left for matmuls, tiles and page tables beside it */

/* Percentile of sorted values, interpolated between neighbours. */
static double
percentile(const gint64 *values, guint n, double p)
{
    const double at = p * (n - 1);
    const guint below = (guint)at;
    const double low = (double)values[below];

    return below + 1 < n ? low + (at - below) * ((double)values[below + 1] - low) : low;
}

RpTimes
rp_times_of(gint64 *values, guint n)
{
    g_assert(n > 0);
    qsort(values, n, sizeof *values, rp_compare_int64);

    const double q1 = percentile(values, n, 0.25), q3 = percentile(values, n, 0.75);
    const double most = q3 + 1.5 * (q3 - q1);
    double sum = 0;

    while ((double)values[n - 1] > most)
        n--;
    for (guint i = 0; i < n; i++)
        sum += (double)values[i];
    return (RpTimes){
        .median_ns = llround(percentile(values, n, 0.5)),
        .mean_ns = llround(sum / n),
        .spread_ns = llround((percentile(values, n, 0.9) - percentile(values, n, 0.1)) / 2),
        .n = n,
    };
}

double
rp_times_rate(const RpTimes *times, double amount)
{
    return amount / (double)MAX(times->median_ns, 1) * (double)RP_NS_PER_S;
}

void
rp_time_on_host(const RpProbePart *parts, guint n_parts, guint repeats, gpointer data, gint64 *ns)
{
    gint64 last_ns = rp_clock_ns();

    for (guint r = 0; r < repeats; r++) {
        for (guint p = 0; p < n_parts; p++) {
            parts[p](data);
            const gint64 end_ns = rp_clock_ns();

            *ns++ = end_ns - last_ns;
            last_ns = end_ns;
        }
    }
}

/* Reports the progress of the measurement, @share from 0 to 1. Returns: whether to continue */
static gboolean
report(const RpMeasurer *measurer, double share, GError **error)
{
    const RpMeasureOptions *options = measurer->options;
    const guint each = options->max_runs;
    const guint done = measurer->measure * each + (guint)(MIN(share, 1.0) * each);

    if (options->progress == NULL ||
        options->progress(done, measurer->n_measures * each, options->user_data))
        return TRUE;
    return rp_fail(error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "the measurement was cancelled");
}

/* The parts to run, and their data. */
typedef struct {
    RpProbe *probe;
    const RpProbePart *parts;
    guint n_parts;
    gpointer data;
} Subject;

static gboolean
time_runs(const Subject *subject, guint repeats, gint64 *ns, GError **error)
{
    RpProbe *probe = subject->probe;

    if (probe != NULL)
        return probe->ops->time(probe, subject->parts, subject->n_parts, repeats, subject->data, ns,
                                error);
    rp_time_on_host(subject->parts, subject->n_parts, repeats, subject->data, ns);
    return TRUE;
}

/* @repeats: (out): that are worth one go */
static gboolean
warm_up(const Subject *subject, double seconds, double budget_ns, guint *repeats, gint64 *ns,
        GError **error)
{
    const RpProbeOps *ops = subject->probe != NULL ? subject->probe->ops : NULL;
    const double most_ns =
        ops != NULL ? MIN(ops->warm_up_seconds, seconds) * (double)RP_NS_PER_S : 0;
    const gint64 begin_ns = rp_clock_ns();
    gint64 last_ns;

    *repeats = 1;
    do {
        last_ns = rp_clock_ns();
        if (!time_runs(subject, 1, ns, error))
            return FALSE;
    } while ((double)(rp_clock_ns() - begin_ns) < most_ns);
    if (ops != NULL && ops->most_repeats > 1) {
        const double run_ns = (double)MAX(rp_clock_ns() - last_ns, 1);

        *repeats = (guint)CLAMP(budget_ns / BATCHES / run_ns, 1.0, (double)ops->most_repeats);
    }
    return TRUE;
}

/* Whether the median of every part is known well enough. The standard error of a median is 1.25 standard
 * deviations over the root of n, and half the range from the 10th to the 90th percentile is 1.28 of these, of a
 * normal distribution: so one over the root of n is about the other. */
static gboolean
is_precise(const gint64 *values, guint runs, guint most, guint n_parts, double precision)
{
    g_autofree gint64 *sorted = g_new(gint64, most);

    if (!(precision > 0) || runs < LEAST_PRECISE_RUNS)
        return FALSE;
    for (guint p = 0; p < n_parts; p++) {
        memcpy(sorted, values + (gsize)p * most, runs * sizeof *sorted);
        const RpTimes times = rp_times_of(sorted, runs);

        if ((double)times.spread_ns > precision * sqrt(runs) * (double)times.median_ns)
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_measurer_run(RpMeasurer *measurer, RpProbe *probe, const RpProbePart *parts, guint n_parts,
                gpointer data, RpTimes *times, GError **error)
{
    g_assert(n_parts <= RP_PROBE_MAX_PARTS);

    const RpMeasureOptions *options = measurer->options;
    const Subject subject = {probe, parts, n_parts, data};
    const double swing_seconds = probe != NULL && measurer->over_swings
                                     ? MIN(probe->ops->swing_seconds, SWING * options->seconds)
                                     : 0;
    const guint most = MAX(options->max_runs, swing_seconds > 0 ? SWING_RUNS : LEAST_RUNS);
    const double precision = swing_seconds > 0 ? 0 : options->precision;
    const double budget_ns = MAX(options->seconds * n_parts, swing_seconds) * (double)RP_NS_PER_S;
    g_autofree gint64 *values = g_new(gint64, (gsize)most * n_parts);
    gint64 batch[RP_PROBE_MAX_REPEATS * RP_PROBE_MAX_PARTS];
    guint runs = 0, repeats;

    if (!warm_up(&subject, measurer->settle * options->seconds, budget_ns, &repeats, batch, error))
        return FALSE;
    measurer->settle = 0;

    const gint64 begin_ns = rp_clock_ns();
    double spent_ns = 0;

    while (!(spent_ns >= PRECISE_SHARE * options->seconds * (double)RP_NS_PER_S &&
             is_precise(values, runs, most, n_parts, precision)) &&
           (runs < LEAST_LONG_RUNS ||
            (runs < LEAST_RUNS && spent_ns < LONG_SECONDS * (double)RP_NS_PER_S) ||
            (runs < most && spent_ns < budget_ns))) {
        const guint n = MIN(repeats, most - runs);

        if (!report(measurer, MAX(spent_ns / budget_ns, (double)runs / most), error) ||
            !time_runs(&subject, n, batch, error))
            return FALSE;
        for (guint r = 0; r < n; r++)
            for (guint p = 0; p < n_parts; p++)
                values[(gsize)p * most + runs + r] = batch[r * n_parts + p];
        runs += n;
        spent_ns = (double)(rp_clock_ns() - begin_ns);
    }
    for (guint p = 0; p < n_parts; p++)
        times[p] = rp_times_of(values + (gsize)p * most, runs);
    measurer->measure++;
    return report(measurer, 0, error);
}

void
rp_measurer_skip(RpMeasurer *measurer, guint n)
{
    measurer->measure += n;
}

static void
zero(gsize first, gsize n, gpointer data)
{
    memset((guint8 *)data + first, 0, n);
}

/* Large memory gets the alignment of huge pages, any other that of vectors. */
static gsize
alignment_of(gsize bytes)
{
    return bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
}

gboolean
rp_measure_check_memory(guint64 bytes, GError **error)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    if (bytes < limit.bytes && bytes / MARGIN < limit.bytes - bytes)
        return TRUE;
    g_autofree char *what = rp_memory_limit_describe(&limit);

    return rp_fail(
        error, G_IO_ERROR, G_IO_ERROR_NO_SPACE,
        "host memory: %" G_GUINT64_FORMAT
        " bytes to measure in, and a sixteenth beside them, do not fit: there are "
        "%" G_GUINT64_FORMAT
        ", the limit is %s; use smaller micro-batches, or a timing file that was measured "
        "elsewhere",
        bytes, limit.bytes, what);
}

void *
rp_measure_reserve(gsize bytes, GError **error)
{
    const gsize alignment = alignment_of(bytes);
    const gsize whole = rp_align_up(MAX(bytes, 1), alignment);

    if (!rp_measure_check_memory(bytes, error))
        return NULL;
    void *memory = aligned_alloc(alignment, whole);

    if (memory == NULL)
        return rp_null(rp_fail(error, G_IO_ERROR, G_IO_ERROR_NO_SPACE,
                               "cannot take %" G_GSIZE_FORMAT " bytes of memory to measure in",
                               bytes));
    if (alignment == HUGE_PAGE)
        (void)madvise(memory, whole, MADV_HUGEPAGE); /* a system without them works as well */
    return memory;
}

void *
rp_measure_take(RpPool *pool, gsize bytes, GError **error)
{
    void *memory = rp_measure_reserve(bytes, error);

    if (memory != NULL)
        rp_pool_run(pool, 0, rp_align_up(MAX(bytes, 1), alignment_of(bytes)), HUGE_PAGE, zero,
                    memory);
    return memory;
}

gint64
rp_probe_typical_ns(const RpProbe *probe, const RpTimes *times)
{
    return probe->ops->swing_seconds > 0 ? times->mean_ns : times->median_ns;
}

/*
 * The host's memory: copies of its processors.
 */

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
