#include "core/formats/private.h"

#define SINK_BYTES 65536

G_DEFINE_QUARK(rp_export_error, rp_export_error)

void
rp_sink_init(RpSink *sink, GOutputStream *stream)
{
    *sink = (RpSink){.stream = stream, .json = rp_json_writer_new(RP_JSON_COMPACT)};
    sink->text = rp_json_writer_text(sink->json);
}

static void
flush(RpSink *sink)
{
    if (sink->error == NULL)
        g_output_stream_write_all(sink->stream, sink->text->str, sink->text->len, NULL, NULL,
                                  &sink->error);
    g_string_truncate(sink->text, 0);
}

gboolean
rp_sink_step(RpSink *sink)
{
    if (sink->text->len >= SINK_BYTES)
        flush(sink);
    return sink->error == NULL;
}

gboolean
rp_sink_finish(RpSink *sink, GError **error)
{
    flush(sink);
    rp_json_writer_free(g_steal_pointer(&sink->json));
    if (sink->error == NULL)
        return TRUE;
    g_propagate_error(error, g_steal_pointer(&sink->error));
    return FALSE;
}

/* An index, or nothing; then a comma. */
static void
append_cell(GString *text, guint32 value)
{
    if (value == RP_NONE)
        g_string_append_c(text, ',');
    else
        g_string_append_printf(text, "%u,", value);
}

static void
append_record(GString *text, const RpTrace *trace, const RpTraceRecord *record)
{
    guint32 device = rp_trace_lane_device(trace, record->lane);

    g_string_append_printf(text, "%" G_GUINT64_FORMAT ",%s,", record->task,
                           rp_task_kind_name((RpTaskKind)record->kind));
    if (device == RP_NONE)
        g_string_append(text, "host,");
    else
        append_cell(text, device);
    g_string_append_printf(text, "%s,%u,%u,", rp_lane_name(rp_trace_lane_kind(trace, record->lane)),
                           record->iteration, record->round);
    append_cell(text, record->stage);
    append_cell(text, record->micro_batch);
    append_cell(text, record->layer);
    append_cell(text, record->chunk);
    g_string_append_printf(text,
                           "%" G_GINT64_FORMAT ",%" G_GINT64_FORMAT ",%" G_GUINT64_FORMAT "\n",
                           record->start_ns, record->end_ns, record->bytes);
}

gboolean
rp_export_csv(const RpTrace *trace, GOutputStream *stream, GError **error)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n_records = rp_trace_n_records(trace);
    RpSink sink;

    rp_sink_init(&sink, stream);
    g_string_append(sink.text,
                    "task,kind,device,lane,iteration,round,stage,micro_batch,layer,chunk,start_ns,"
                    "end_ns,bytes\n");
    for (gsize i = 0; i < n_records; i++) {
        append_record(sink.text, trace, &records[i]);
        if (!rp_sink_step(&sink))
            break;
    }
    return rp_sink_finish(&sink, error);
}
