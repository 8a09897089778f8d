/**
 * Shared by export-*.c and import-chrome.c.
 */
#pragma once

#include "core/formats/export.h"
#include "core/json/json-write.h"

/* Text to be written to a stream. After an error further text is dropped. */
typedef struct {
    GOutputStream *stream;
    RpJsonWriter *json; /* compact; write to this, or append to @text, then rp_sink_step() */
    GString *text;
    GError *error;
} RpSink;

void rp_sink_init(RpSink *sink, GOutputStream *stream);
/* Writes the text out if there is enough of it. Returns: FALSE after an error */
gboolean rp_sink_step(RpSink *sink);
/* Writes the rest and frees all that the sink holds; does not close the stream. */
gboolean rp_sink_finish(RpSink *sink, GError **error);

#define RP_CHROME_FORMAT "roundpipe-trace/1"
/* By RpTraceOrigin, %NULL behind the last. */
extern const char *const rp_chrome_origins[];
