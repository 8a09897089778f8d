/**
 * Shared by diff.c (matching, ranking) and diff-slip.c (predecessors).
 */
#pragma once

#include "core/trace/diff.h"

struct _RpTraceDiff {
    RpTrace *traces[RP_N_TRACE_SIDES]; /* the compared parts */
    guint32 first_iteration;
    guint32 end_iteration;
    double scale;
    guint64 only[RP_N_TRACE_SIDES][RP_N_TASK_KINDS];
    GArray *pairs;   /* RpTaskPair, in the order of the first trace */
    gsize reordered; /* index of a pair, or G_MAXSIZE */
};

/* Fills in slip_ns of all pairs. */
void rp_trace_diff_find_slips(RpTraceDiff *diff);
