/**
 * The text of a report, for report.c and report-text.c.
 */
#pragma once

#include "cli/report.h"

typedef struct {
    RpNodeKind kind;
    gboolean hidden; /* from JSON */
    guint end;       /* of what rp_report_end() ends: the node that does */
    guint most;      /* rows of a table; 0: all */
    char *key;
    char *label; /* of a table: columns that it may lose; of columns: heading of the labels */
    char *text;
    char *csv;
    guint label_width;
} RpNode;

static inline RpNode *
rp_report_node(const RpReport *report, guint i)
{
    return &g_array_index(report->nodes, RpNode, i);
}

/* Prints nodes from the first that is not printed. */
void rp_report_print_text(RpReport *report);
