/**
 * Shared by page.c (words) and traces.c (numbers).
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
