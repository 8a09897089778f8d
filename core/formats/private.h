/**
 * What the files export-*.c and import-chrome.c share.
 */
#pragma once

#include "core/formats/export.h"
#include "core/json/json-write.h"

/* Text on its way to a stream. After an error what is written is dropped. */
typedef struct {
    GOutputStream *stream;
    RpJsonWriter *json; /* compact; write to this, or append to @text, then rp_sink_step() */
    GString *text;
    GError *error;
} RpSink;

void rp_sink_init(RpSink *sink, GOutputStream *stream);
/* Writes the text out if there is enough of it. Returns: FALSE after an error */
gboolean rp_sink_step(RpSink *sink);
/* Writes the rest and frees what the sink holds; does not close the stream. */
gboolean rp_sink_finish(RpSink *sink, GError **error);

#define RP_CHROME_FORMAT "roundpipe-trace/1"
/* By RpTraceOrigin, %NULL behind the last. */
extern const char *const rp_chrome_origins[];
