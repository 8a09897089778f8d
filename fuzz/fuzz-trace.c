/**
 * Reading a Chrome trace neither crashes nor leaks, whatever the bytes; a refusal is one line; an
 * accepted trace is written and read back the same.
 */
#include "fuzz/harness.h"

#include <gio/gio.h>

#include "core/formats/export.h"
#include "core/trace/report.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
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
