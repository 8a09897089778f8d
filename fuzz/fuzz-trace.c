/**
 * Reading a Chrome trace neither crashes nor leaks, whatever the bytes; a refusal is one line; an
 * accepted trace is written and read back the same. The same bytes are read as a recording of
 * torch.profiler, whose figures are of each moment once.
 */
#include "fuzz/harness.h"

#include <gio/gio.h>

#include "core/formats/export.h"
#include "core/recording/recording.h"
#include "core/trace/report.h"

static void
check_figures(const GPtrArray *recordings, const RpRecordedWindow *window)
{
    for (guint i = 0; i < recordings->len; i++) {
        const RpRecording *recording = g_ptr_array_index(recordings, i);

        for (guint d = 0; d < recording->devices->len; d++) {
            const RpRecordedFigures f = rp_recorded_figures(
                &g_array_index(recording->devices, RpRecordedDevice, d), window);

            g_assert(f.window_ns == f.busy_ns + f.only_collectives_ns + f.only_copies_ns +
                                        f.both_ns + f.idle_start_ns + f.idle_between_ns +
                                        f.idle_end_ns);
            g_assert(f.busy_ns == f.total_ns[RP_WORK_COMPUTE] && f.idle_start_ns >= 0 &&
                     f.idle_between_ns >= 0 && f.idle_end_ns >= 0);
        }
    }
}

/* Reads the bytes as two ranks, of which one begins later. */
static void
read_recordings(const uint8_t *data, size_t size)
{
    g_autoptr(GPtrArray) recordings =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_recording_free);
    g_autoptr(RpWorkPatterns) patterns = rp_work_patterns_new();
    g_autoptr(GError) error = NULL;
    RpRecordedWindow window;
    RpRecordedClock clock;
    guint64 step;

    (void)rp_kineto_is((const char *)data, size);
    for (guint rank = 0; rank < 2; rank++) {
        RpRecording *recording =
            rp_kineto_parse("fuzz", (const char *)data, size, patterns, &error);

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

    if (was_taken(found, error))
        check_figures(recordings, &window);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_recordings(data, size);

    g_autoptr(GError) error = NULL;
    g_autoptr(RpTrace) trace = rp_trace_parse_chrome("fuzz", (const char *)data, size, &error);

    if (!was_taken(trace != NULL, error))
        return 0;
    g_autoptr(GOutputStream) stream = g_memory_output_stream_new_resizable();
    gboolean written = rp_export_chrome(trace, NULL, 0, stream, &error);
    g_assert_no_error(error);
    g_assert(written);
    GMemoryOutputStream *memory = G_MEMORY_OUTPUT_STREAM(stream);
    g_autoptr(RpTrace) again =
        rp_trace_parse_chrome("again", g_memory_output_stream_get_data(memory),
                              g_memory_output_stream_get_data_size(memory), &error);
    g_assert_no_error(error);
    g_assert(rp_trace_n_records(again) == rp_trace_n_records(trace));
    g_assert(rp_trace_n_records(trace) == 0 ||
             memcmp(rp_trace_records(again), rp_trace_records(trace),
                    rp_trace_n_records(trace) * sizeof(RpTraceRecord)) == 0);

    /* reports take any trace */
    rp_report_bubble(trace);
    rp_report_bubble_of_iteration(trace, 0);
    g_autoptr(GArray) uses = rp_report_device_use(trace);
    g_autoptr(RpOrders) orders = rp_orders_from_trace(trace, 0);
    g_assert(uses->len == rp_trace_gpus(trace) && orders->n_ranks == rp_trace_gpus(trace));
    return 0;
}
