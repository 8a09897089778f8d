/* Recordings of several ranks on one clock, and the part of them that is looked at. */
#include "core/recording/recording.h"

#include "core/base/quote.h"

static RpRecording *
nth(const GPtrArray *recordings, guint i)
{
    return g_ptr_array_index(recordings, i);
}

/* (nullable) */
static const RpRecordedStep *
find_step(const RpRecording *recording, guint64 number)
{
    guint low = 0, high = recording->steps->len;

    while (low < high) {
        const guint middle = low + (high - low) / 2;
        const RpRecordedStep *step = &g_array_index(recording->steps, RpRecordedStep, middle);

        if (step->number == number)
            return step;
        if (step->number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Whether there is a step that all have; the first. */
static gboolean
find_common_step(const GPtrArray *recordings, guint64 *number)
{
    const GArray *steps = nth(recordings, 0)->steps;

    for (guint s = 0; s < steps->len; s++) {
        guint n = 0;

        *number = g_array_index(steps, RpRecordedStep, s).number;
        while (n < recordings->len && find_step(nth(recordings, n), *number) != NULL)
            n++;
        if (n == recordings->len)
            return TRUE;
    }
    return FALSE;
}

/* From the start of the first work on a device to the end of the last, by the recording's times. */
static RpRecordedWindow
extent_of(const RpRecording *recording)
{
    RpRecordedWindow extent = {G_MAXINT64, G_MININT64};

    for (guint d = 0; d < recording->devices->len; d++) {
        const GArray *spans = g_array_index(recording->devices, RpRecordedDevice, d).spans;

        for (guint i = 0; i < spans->len; i++) {
            const RpWorkSpan *span = &g_array_index(spans, RpWorkSpan, i);

            extent.start_ns = MIN(extent.start_ns, span->start_ns);
            extent.end_ns = MAX(extent.end_ns, span->end_ns);
        }
    }
    return extent;
}

static void
shift_steps(GArray *steps, gint64 by_ns)
{
    for (guint i = 0; i < steps->len; i++) {
        g_array_index(steps, RpRecordedStep, i).start_ns += by_ns;
        g_array_index(steps, RpRecordedStep, i).end_ns += by_ns;
    }
}

static void
shift(RpRecording *recording, gint64 by_ns)
{
    recording->origin_ns -= by_ns;
    for (guint d = 0; d < recording->devices->len; d++) {
        const RpRecordedDevice *device = &g_array_index(recording->devices, RpRecordedDevice, d);

        for (guint i = 0; i < device->spans->len; i++) {
            g_array_index(device->spans, RpWorkSpan, i).start_ns += by_ns;
            g_array_index(device->spans, RpWorkSpan, i).end_ns += by_ns;
        }
        for (guint i = 0; i < device->actions->len; i++) {
            g_array_index(device->actions, RpRecordedAction, i).start_ns += by_ns;
            g_array_index(device->actions, RpRecordedAction, i).end_ns += by_ns;
        }
    }
    shift_steps(recording->steps, by_ns);
    shift_steps(recording->device_steps, by_ns);
}

static gboolean
check_ranks(const GPtrArray *recordings, GError **error)
{
    g_autoptr(GHashTable) files = g_hash_table_new(g_int64_hash, g_int64_equal);

    for (guint i = 0; i < recordings->len; i++) {
        RpRecording *recording = nth(recordings, i);
        const RpRecording *other =
            recording->has_rank ? g_hash_table_lookup(files, &recording->rank) : NULL;

        if (other != NULL)
            return rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_CLOCK,
                           "%s: expected recordings of different ranks, found rank "
                           "%" G_GUINT64_FORMAT " in %s, too",
                           recording->file, recording->rank, other->file);
        if (recording->has_rank)
            g_hash_table_insert(files, &recording->rank, recording);
    }
    return TRUE;
}

/* Ranks of a training are in a step, or at work, at the same time: the last to begin does so before the first has
 * ended. @number: (nullable): of a step that all have */
static gboolean
check_clocks(const GPtrArray *recordings, const guint64 *number, GError **error)
{
    const RpRecording *late = NULL, *early = NULL;
    gint64 start_ns = 0, end_ns = 0;

    for (guint i = 0; i < recordings->len; i++) {
        const RpRecording *recording = nth(recordings, i);
        const RpRecordedStep *step = number != NULL ? find_step(recording, *number) : NULL;
        RpRecordedWindow extent =
            step != NULL ? (RpRecordedWindow){step->start_ns, step->end_ns} : extent_of(recording);

        extent.start_ns += recording->origin_ns;
        extent.end_ns += recording->origin_ns;
        if (late == NULL || extent.start_ns > start_ns) {
            late = recording;
            start_ns = extent.start_ns;
        }
        if (early == NULL || extent.end_ns < end_ns) {
            early = recording;
            end_ns = extent.end_ns;
        }
    }
    if (start_ns <= end_ns)
        return TRUE;
    g_autofree char *when = number != NULL ? g_strdup_printf("step %" G_GUINT64_FORMAT, *number)
                                           : g_strdup("its first work");

    return rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_CLOCK,
                   "%s: its clock contradicts that of %s: %s begins %.3f ms after that has ended "
                   "there; expected ranks of one training that were recorded at the same time",
                   late->file, early->file, when, (double)(start_ns - end_ns) / 1e6);
}

gboolean
rp_recordings_join(GPtrArray *recordings, RpRecordedClock *clock, guint64 *step, GError **error)
{
    gboolean clocks = TRUE;

    g_return_val_if_fail(recordings->len > 0, FALSE);
    if (!check_ranks(recordings, error))
        return FALSE;
    for (guint i = 0; i < recordings->len; i++)
        clocks &= nth(recordings, i)->has_clock;
    const gboolean common = find_common_step(recordings, step);
    const RpRecording *first = nth(recordings, 0);

    *clock = recordings->len == 1 ? RP_CLOCK_OWN : clocks ? RP_CLOCK_COMMON : RP_CLOCK_STEP;
    if (*clock == RP_CLOCK_STEP && !common)
        return rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_CLOCK,
                       "%s: expected a clock (baseTimeNanoseconds, utcEpochNs) in every file, or a "
                       "ProfilerStep that all files have, to join %u files by; report each alone",
                       first->file, recordings->len);
    if (*clock == RP_CLOCK_COMMON && !check_clocks(recordings, common ? step : NULL, error))
        return FALSE;
    for (guint i = 1; i < recordings->len; i++)
        shift(nth(recordings, i), *clock == RP_CLOCK_COMMON
                                      ? nth(recordings, i)->origin_ns - first->origin_ns
                                      : find_step(first, *step)->start_ns -
                                            find_step(nth(recordings, i), *step)->start_ns);
    return TRUE;
}

gboolean
rp_recorded_window(const GPtrArray *recordings, guint64 first, guint64 end,
                   RpRecordedWindow *window, GError **error)
{
    RpRecordedWindow found = {G_MAXINT64, G_MININT64};
    const char *const file = nth(recordings, 0)->file;

    for (guint i = 0; i < recordings->len; i++) {
        const RpRecording *recording = nth(recordings, i);
        const RpRecordedWindow extent = extent_of(recording);
        const GArray *steps =
            recording->device_steps->len > 0 ? recording->device_steps : recording->steps;

        for (guint s = 0; s < steps->len && end > 0; s++) {
            const RpRecordedStep *step = &g_array_index(steps, RpRecordedStep, s);

            if (step->number < first || step->number >= end)
                continue;
            found.start_ns = MIN(found.start_ns, step->start_ns);
            found.end_ns = MAX(found.end_ns, step->end_ns);
        }
        if (end == 0) {
            found.start_ns = MIN(found.start_ns, extent.start_ns);
            found.end_ns = MAX(found.end_ns, extent.end_ns);
        }
    }
    if (found.start_ns > found.end_ns)
        return rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_STEPS,
                       "expected steps of the recording, found no ProfilerStep from "
                       "%" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT " in %s%s",
                       first, end - 1, file, recordings->len > 1 ? " and the others" : "");
    if (found.start_ns == found.end_ns)
        return rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE,
                       "%s: expected work that takes time, found none", file);
    *window = found;
    return TRUE;
}
