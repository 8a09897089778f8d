#include <gio/gio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/units.h"
#include "exec/host/profile-private.h"

#define LEAST_RUNS 5
#define ALIGNMENT 64

static int
compare(const void *a, const void *b)
{
    const gint64 x = *(const gint64 *)a, y = *(const gint64 *)b;

    return (x > y) - (x < y);
}

/* Of sorted values, interpolated between neighbours. */
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
    qsort(values, n, sizeof *values, compare);

    const double q1 = percentile(values, n, 0.25), q3 = percentile(values, n, 0.75);
    const double most = q3 + 1.5 * (q3 - q1);

    while ((double)values[n - 1] > most)
        n--;
    return (RpTimes){
        .median_ns = llround(percentile(values, n, 0.5)),
        .spread_ns = llround((percentile(values, n, 0.9) - percentile(values, n, 0.1)) / 2),
        .n = n,
    };
}

static gint64
now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * RP_NS_PER_S + now.tv_nsec;
}

/* Tells how far the measurement is, of @share from 0 to 1. Returns: whether to go on */
static gboolean
report(const RpMeasurer *measurer, double share, GError **error)
{
    const RpHostProfileOptions *options = measurer->options;
    const guint each = options->max_runs;
    const guint done = measurer->measure * each + (guint)(MIN(share, 1.0) * each);

    if (options->progress == NULL ||
        options->progress(done, measurer->n_measures * each, options->user_data))
        return TRUE;
    g_set_error_literal(error, G_IO_ERROR, G_IO_ERROR_CANCELLED, "the measurement was cancelled");
    return FALSE;
}

gboolean
rp_measurer_run(RpMeasurer *measurer, const RpMeasuredPart *parts, guint n_parts, gpointer data,
                RpTimes *times, GError **error)
{
    const RpHostProfileOptions *options = measurer->options;
    const guint most = MAX(options->max_runs, LEAST_RUNS);
    const double budget_ns = options->seconds * n_parts * (double)RP_NS_PER_S;
    g_autofree gint64 *values = g_new(gint64, (gsize)most * n_parts);
    guint runs = 0;

    for (guint p = 0; p < n_parts; p++)
        parts[p](data);

    const gint64 begin_ns = now_ns();
    gint64 last_ns = begin_ns;

    while (runs < LEAST_RUNS || (runs < most && (double)(last_ns - begin_ns) < budget_ns)) {
        const double share = MAX((double)(last_ns - begin_ns) / budget_ns, (double)runs / most);

        if (!report(measurer, share, error))
            return FALSE;
        last_ns = now_ns();
        for (guint p = 0; p < n_parts; p++) {
            parts[p](data);
            const gint64 end_ns = now_ns();

            values[(gsize)p * most + runs] = end_ns - last_ns;
            last_ns = end_ns;
        }
        runs++;
    }
    for (guint p = 0; p < n_parts; p++)
        times[p] = rp_times_of(values + (gsize)p * most, runs);
    measurer->measure++;
    return report(measurer, 0, error);
}

void *
rp_measurer_take(gsize bytes, GError **error)
{
    void *memory = aligned_alloc(ALIGNMENT, rp_align_up(MAX(bytes, 1), ALIGNMENT));

    if (memory == NULL) {
        g_set_error(error, G_IO_ERROR, G_IO_ERROR_NO_SPACE,
                    "cannot take %" G_GSIZE_FORMAT " bytes of memory to measure in", bytes);
        return NULL;
    }
    memset(memory, 0, rp_align_up(MAX(bytes, 1), ALIGNMENT));
    return memory;
}
