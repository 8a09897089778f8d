/**
 * `roundpipe diff`: its words and its picture.
 */
#pragma once

#include "core/trace/diff.h"
#include "plots/figure.h"

/* "predicted" and "measured", or where both traces are of one origin "first" and "second". */
const char *rp_diff_label(const RpTraceDiff *diff, RpTraceSide side);

/* Each device's two timelines one above the other, the first trace's on top. @style: (nullable). (transfer full) */
RpFigure *rp_diff_figure(const RpTraceDiff *diff, const RpFigureStyle *style);
