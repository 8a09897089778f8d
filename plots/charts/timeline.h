/**
 * Timelines: the tasks of every lane over time, from one trace or several above each other on a
 * common time axis (Figures 1, 4, 6, 7; `roundpipe timeline`).
 *
 *   1F1B, N = 2, M = 2                 a bubble stays white
 *   GPU 0 |F0|F1|     | B0  | B1  |
 *   GPU 1 |  |F0| B0  |F1| B1  |
 *   0     10     20    30   ms
 */
#pragma once

#include "core/trace/report.h"
#include "core/trace/trace.h"
#include "plots/figure.h"

/* Lanes that become rows. Flags. */
typedef enum {
    RP_TIMELINE_COMPUTE = 1,
    RP_TIMELINE_TRANSFERS = 2, /* the four copy lanes of each device */
    RP_TIMELINE_HOST = 4,      /* optimizer and gradient sums */
    RP_TIMELINE_ALL = 7,
    RP_TIMELINE_ENGINES = 8 /* compute, and one row for each direction of copies (as Figure 6) */
} RpTimelineLanes;

/* The colour is that of the task's kind; its shade varies with this. */
typedef enum { RP_SHADE_STAGE, RP_SHADE_MICRO_BATCH, RP_SHADE_ITERATION } RpTimelineShade;

/* Labels of the boxes, where they fit. */
typedef enum {
    RP_LABEL_AUTO, /* stage and micro-batch if their boxes are wide enough, else slots */
    RP_LABEL_NONE,
    RP_LABEL_MICRO_BATCH,
    RP_LABEL_STAGE,    /* in each box */
    RP_LABEL_BOTH,     /* stage·micro-batch */
    RP_LABEL_SLOT,     /* the stage, once for all micro-batches of the slot */
    RP_LABEL_ITERATION /* once for all that a lane does for an iteration without a break */
} RpTimelineLabel;

typedef struct {
    const RpTrace *trace;
    const char *title;
    guint lanes; /* RpTimelineLanes; 0 = compute only */
    RpTimelineShade shade;
    RpTimelineLabel label;
    /* (nullable): by stage index, instead of numbers; F, B ... is put before them */
    const char *const *stage_names;
    /* the part to show; both 0 = all of it */
    gint64 from_ns;
    gint64 end_ns;
    /* devices shown; 0 = all */
    guint gpus;
    /* (nullable): by device, instead of "GPU n" */
    const char *const *device_names;
    /* devices after which a gap stands; 0 = none between rows of compute */
    guint group;
    gboolean mark_end; /* the makespan, as a line */
    /* (nullable): the figure's; else its first panel's */
    const RpFigureStyle *style;
} RpTimelinePanel;

/**
 * rp_timeline_figure:
 * @title: text behind a line's end stands below, smaller
 * @panels: (array length=n_panels): drawn from top to bottom, times counted from each one's from_ns
 *
 * Boxes narrower than three pixels are merged within their slot and have no border; they are drawn
 * at least a pixel wide where they are few.
 */
RpFigure *rp_timeline_figure(const char *name, const char *title, const RpTimelinePanel *panels,
                             guint n_panels);

/* "RoundPipe: N = 8, M = 16, M_R = 8, makespan 2286.0 ms, bubble ratio 19.1 % (predicted)".
 * @round: 0 = not said. (transfer full) */
char *rp_timeline_title(const char *schedule, const RpTrace *trace, guint micro_batches,
                        guint round);
