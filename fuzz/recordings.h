/**
 * Checks of any recording, whichever reader it is of: two ranks are joined, figures and boxes are of each moment once,
 * and a trace of actions is one.
 */
#pragma once

#include "core/recording/recording.h"
#include "core/trace/report.h"
#include "fuzz/harness.h"

/* rp_kineto_parse(), rp_nsight_parse() */
typedef RpRecording *(*RecordingReader)(const char *name, const char *text, gsize length,
                                        const RpWorkPatterns *patterns, GError **error);

static inline void
check_device(const RpRecording *recording, const RpRecordedDevice *device,
             const RpRecordedWindow *window)
{
    const RpRecordedFigures f = rp_recorded_figures(device, window);

    g_assert(f.window_ns == f.busy_ns + f.only_collectives_ns + f.only_copies_ns + f.both_ns +
                                f.idle_start_ns + f.idle_between_ns + f.idle_end_ns);
    g_assert(f.busy_ns == f.total_ns[RP_WORK_COMPUTE] && f.idle_start_ns >= 0 &&
             f.idle_between_ns >= 0 && f.idle_end_ns >= 0);
    for (guint kind = 0; kind < RP_N_WORK_KINDS; kind++) {
        g_autoptr(GArray) boxes = rp_recorded_boxes(device, (RpWorkKind)kind, window);
        gint64 end_ns = window->start_ns, total_ns = 0;

        for (guint i = 0; i < boxes->len; i++) {
            const RpRecordedBox *box = &g_array_index(boxes, RpRecordedBox, i);

            g_assert(box->start_ns >= end_ns && box->end_ns > box->start_ns);
            g_assert(box->name < recording->names->len && box->count > 0);
            total_ns += box->end_ns - box->start_ns;
            end_ns = box->end_ns;
        }
        g_assert(end_ns <= window->end_ns && total_ns == f.total_ns[kind]);
    }
}

static inline void
check_trace(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        g_assert(records[i].end_ns >= records[i].start_ns && records[i].task == i);
        g_assert(i == 0 || records[i].start_ns >= records[i - 1].start_ns);
        g_assert(rp_trace_lane_device(trace, records[i].lane) < rp_trace_gpus(trace));
    }
    rp_report_bubble(trace);
}

/* Reads the bytes as two ranks, of which one begins later. */
static inline void
check_recordings(RecordingReader read, const char *text, gsize length)
{
    g_autoptr(GPtrArray) recordings =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_recording_free);
    g_autoptr(RpWorkPatterns) patterns = rp_work_patterns_new();
    g_autoptr(GError) error = NULL;
    RpRecordedWindow window;
    RpRecordedClock clock;
    guint64 step;

    for (guint rank = 0; rank < 2; rank++) {
        RpRecording *recording = read("fuzz", text, length, patterns, &error);

        if (!was_taken(recording != NULL, error))
            return;
        recording->has_rank = recording->has_rank && rank == 0;
        recording->origin_ns += rank;
        g_ptr_array_add(recordings, recording);
    }
    const gboolean joined = rp_recordings_join(recordings, &clock, &step, &error);

    if (!was_taken(joined, error))
        return;
    const gboolean found = rp_recorded_window(recordings, 0, 0, &window, &error);

    for (guint i = 0; was_taken(found, error) && i < recordings->len; i++) {
        const RpRecording *recording = g_ptr_array_index(recordings, i);

        for (guint d = 0; d < recording->devices->len; d++)
            check_device(recording, &g_array_index(recording->devices, RpRecordedDevice, d),
                         &window);
    }
    g_clear_error(&error);
    g_autoptr(RpTrace) trace = rp_recordings_trace(recordings, &error);

    if (was_taken(trace != NULL, error))
        check_trace(trace);
}
