/**
 * Rows and boxes of a timeline: timeline-rows.c collects them, timeline.c draws and labels
 * them.
 */
#pragma once

#include "plots/charts/charts.h"
#include "plots/figure.h"

typedef struct {
    double from_ms;
    double end_ms;
    const RpTraceRecord *record;
} RpTimelineBox;

typedef struct {
    double y;
    GArray *boxes; /* RpTimelineBox; NULL = the lane has no row */
} RpTimelineRow;

/* One figure in the making. */
typedef struct {
    RpFigure *figure;
    GString *boxes;
    GString *labels;
    GString *tics;
    RpTimeUnit unit; /* unit of written times; everything else is in ms */
    double pixels_per_ms;
    double y;
    guint most_narrow_boxes; /* in a row */
    double narrowest_pixels; /* mean width of the boxes of the panel with the narrowest ones */
    guint n_legend;
    RpTaskKind legend[RP_N_TASK_KINDS]; /* kinds that look different */
} RpTimelineDrawing;

/* A box is four of these high: overlapped actions share it. */
#define RP_TIMELINE_HALF 0.21
/* Pixels of a letter, and around a label. */
#define RP_TIMELINE_CHARACTER 6.5
#define RP_TIMELINE_MARGIN 1.5

gboolean rp_timeline_shows(const RpTimelinePanel *panel, guint32 lane);
guint rp_timeline_n_lanes(const RpTrace *trace);
gint64 rp_timeline_end_ns(const RpTimelinePanel *panel);

/* By lane. Lanes of devices that are shown have a row, those of the host only if it has boxes. */
RpTimelineRow *rp_timeline_rows(const RpTimelinePanel *panel);
void rp_timeline_rows_free(RpTimelineRow *rows, guint count);

/* The lanes from top to bottom. */
guint32 rp_timeline_lane_in_order(const RpTimelinePanel *panel, guint32 position);
char *rp_timeline_lane_title(const RpTimelinePanel *panel, guint32 lane);

gboolean rp_timeline_same_slot(const RpTraceRecord *a, const RpTraceRecord *b);
/* Whether both are of one kind and iteration, where neither slots nor layers matter. */
gboolean rp_timeline_same_part(const RpTraceRecord *a, const RpTraceRecord *b);
/* The longest part of one kind without a gap among boxes [@first, @end). */
RpTimelineBox rp_timeline_longest_part(const RpTimelineRow *row, guint first, guint end);

/* Three shades of each colour; neighbours differ. */
RpColour rp_timeline_shade(const RpTimelinePanel *panel, const RpTraceRecord *record,
                           RpTaskKind kind);
