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
