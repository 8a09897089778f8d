/**
 * Shared by page.c (words), traces.c and pack.c (numbers).
 */
#pragma once

#include "core/json/json-write.h"
#include "plots/page/page.h"

struct _RpPage {
    char *title;
    GString *body;        /* HTML */
    gboolean titles;      /* the next row of the table has them */
    gboolean more;        /* the table is hidden behind a summary */
    GString *traces;      /* JSON, an object each with commas between */
    gboolean servers;     /* one of them has tasks of the network */
    RpJsonWriter *curves; /* the open array of curves; %NULL: none yet */
};

/* @text escaped for HTML; invalid UTF-8 is replaced. (transfer full) */
char *rp_page_escape(const char *text);

/**
 * rp_page_pack_trace:
 * @places: (array): by index of a record its place in the packed trace
 * @twins: (nullable) (array): by index of a record one more than the place of the same task in the
 *   other trace; 0: it has none
 *
 * Appends the trace's JSON (decode.js reads it).
 */
void rp_page_pack_trace(RpPage *page, const RpPageTrace *trace, const guint32 *places,
                        const guint32 *twins);
/* Where each record stands when they lie lane by lane. (transfer full) */
guint32 *rp_page_places(const RpTrace *trace);
/* A curve of memory, for the JSON of its trace. */
void rp_page_pack_memory(RpJsonWriter *json, guint arena, const GArray *steps);
