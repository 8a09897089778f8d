/**
 * What the files export-*.c and import-chrome.c share.
 */
#pragma once

#include "core/formats/export.h"

/* Text on its way to a stream. After an error what is written is dropped. */
typedef struct {
    GOutputStream *stream;
    GString *text; /* append to this, then rp_sink_step() */
    GError *error;
} RpSink;

void rp_sink_init(RpSink *sink, GOutputStream *stream);
/* Writes the text out if there is enough of it. Returns: FALSE after an error */
gboolean rp_sink_step(RpSink *sink);
/* Writes the rest and frees what the sink holds; does not close the stream. */
gboolean rp_sink_finish(RpSink *sink, GError **error);

/* What the first line of a Chrome trace says. */
typedef struct {
    guint gpus;
    RpTraceOrigin origin;
    gboolean dispatched;
    guint64 n_records;
} RpChromeHeader;

/* The first line and the names of processes and threads. */
void rp_chrome_format_header(GString *text, const RpChromeHeader *header);
/* The line of one task, with its newline. */
void rp_chrome_format_record(GString *text, const RpTraceRecord *record);
