/**
 * `roundpipe diff`: its report and its picture.
 */
#pragma once

#include "cli/cli.h"
#include "core/trace/diff.h"
#include "plots/figure.h"

typedef struct {
    const RpTraceDiff *diff;
    const char *files[RP_N_TRACE_SIDES];
    gboolean scaled; /* a scale was asked for */
    guint top;       /* tasks of each list */
} RpDiffReport;

/* "predicted" and "measured", or where both traces are of one origin "first" and "second". */
const char *rp_diff_label(const RpTraceDiff *diff, RpTraceSide side);

void rp_diff_print(const RpDiffReport *report);
void rp_diff_print_json(const RpDiffReport *report);

/* Each device's two timelines one above the other, the first trace's on top. (transfer full) */
RpFigure *rp_diff_figure(const RpTraceDiff *diff);
