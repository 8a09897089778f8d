/**
 * The charts.
 *
 * Horizontal bar charts: rows in groups, each bar of one value or stacked from parts. The bubble
 * charts (Figures 3 and 15) and `roundpipe compare` are drawn so.
 *
 *   Qwen3-1.7B
 *             GPipe |#####::::::::///| 36.1 %
 *   RoundPipe async |## <> 4.0 %                  <> = another source's figure
 */
#pragma once

#include "core/partition/partition.h"
#include "core/plan/plan.h"
#include "core/trace/report.h"
#include "core/trace/trace.h"
#include "plots/figure.h"

#define RP_BAR_MAX_PARTS 8

typedef struct {
    const char *title; /* in the legend; %NULL = none */
    RpColour colour;
} RpBarPart;

/* One bar. Strings are copied. */
typedef struct {
    const char *group; /* heading; a new one starts a new group; %NULL = none */
    const char *label;
    double values[RP_BAR_MAX_PARTS]; /* one for each part */
    double hatched;                  /* a slice at the bar's end; 0 = none */
    double marker;                   /* another source's figure for the same; NAN = none */
    const char *text; /* behind the bar; %NULL = its length. If space is short, up to its first
                         semicolon or parenthesis */
    RpColour colour;  /* charts of one part; 0 = the part's */
} RpBarRow;

typedef struct _RpBarChart RpBarChart;

/* @axis: the values' title, with unit; @decimals: digits of the figure behind a bar */
RpBarChart *rp_bar_chart_new(const char *name, const char *title, const char *axis, guint decimals,
                             const RpBarPart *parts, guint n_parts);
void rp_bar_chart_free(RpBarChart *chart);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpBarChart, rp_bar_chart_free)

/* Second line under the title. */
void rp_bar_chart_set_subtitle(RpBarChart *chart, const char *subtitle);
void rp_bar_chart_set_style(RpBarChart *chart, const RpFigureStyle *style);
/* Name of the markers in the legend. */
void rp_bar_chart_set_marker_title(RpBarChart *chart, const char *title);
/* Name of the hatched ends of bars in the legend. */
void rp_bar_chart_set_hatched_title(RpBarChart *chart, const char *title);

void rp_bar_chart_add(RpBarChart *chart, const RpBarRow *row);

/* (transfer full); its height follows from the rows */
RpFigure *rp_bar_chart_figure(const RpBarChart *chart);

/* A chart of bubble ratios in percent, stacked from fill, switch, drain and intra with the exposed
 * communication hatched. */
RpBarChart *rp_bubble_chart_new(const char *name, const char *title);
/* @published: in percent; NAN = none */
void rp_bubble_chart_add(RpBarChart *chart, const char *group, const char *label,
                         const RpBubble *bubble, double published);
/* Steady state has neither fill nor drain, and the rest is not divided further. */
void rp_bubble_chart_add_steady(RpBarChart *chart, const char *group, const char *label,
                                const RpSteady *steady, double published);

/*
 * How even a partition is: the time of every slot, with the longest one as a line.
 */

typedef struct {
    const RpPartition *partition;
    const char *title;
} RpBalancePanel;

/* @panels: (array length=n_panels): drawn below each other on a common axis. @style: (nullable) */
RpFigure *rp_balance_figure(const char *name, const char *title, const RpProfile *profile,
                            const RpBalancePanel *panels, guint n_panels,
                            const RpFigureStyle *style);

/*
 * Line charts: throughput against GPUs or sequence length (Figures 13, 14), operational intensity
 * (Figure 17).
 */

typedef enum {
    RP_LINE_SOLID,
    RP_LINE_DASHED,
    RP_LINE_DOTTED,
    RP_LINE_POINTS,
    RP_LINE_CROSSES,
    RP_LINE_WITH_POINTS
} RpLineStyle;

typedef struct _RpLineChart RpLineChart;

RpLineChart *rp_line_chart_new(const char *name, const char *title, const char *x_title,
                               const char *y_title);
void rp_line_chart_free(RpLineChart *chart);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpLineChart, rp_line_chart_free)

void rp_line_chart_set_subtitle(RpLineChart *chart, const char *subtitle);
/* Narrower than usual the legend is below. */
void rp_line_chart_set_style(RpLineChart *chart, const RpFigureStyle *style);
/* Logarithmic axes: base 2 or 10; 0 = linear. */
void rp_line_chart_set_log(RpLineChart *chart, guint x_base, guint y_base);
/* The x axis has tics where the first series has points, and nowhere else. */
void rp_line_chart_set_tics_at_points(RpLineChart *chart);
/* The x axis has tics at @x (array length=n), and nowhere else. */
void rp_line_chart_set_tics(RpLineChart *chart, const double *x, guint n);
/* Both 0: as the data need. */
void rp_line_chart_set_x_range(RpLineChart *chart, double low, double high);
void rp_line_chart_set_y_range(RpLineChart *chart, double low, double high);

/**
 * rp_line_chart_add:
 * @title: in the legend; %NULL = not there
 * @x: (array length=n)
 * @y: (array length=n): NAN = a gap
 */
void rp_line_chart_add(RpLineChart *chart, const char *title, RpColour colour, RpLineStyle style,
                       const double *x, const double *y, guint n);
/* An entry of the legend without data: the meaning of a style. */
void rp_line_chart_explain(RpLineChart *chart, const char *title, RpLineStyle style);
/* A dashed horizontal line across the chart, named at its right end; the legend is then below, and
 * names it where the chart is narrow. */
void rp_line_chart_add_level(RpLineChart *chart, const char *title, double y);

/* (transfer full) */
RpFigure *rp_line_chart_figure(const RpLineChart *chart);

/*
 * Memory: bytes in use over time on every device and the host, by purpose.
 */

/**
 * rp_memory_figure:
 * @plan: has `full` fidelity
 * @trace: that plan's
 * @gpu_bytes: memory of a device, drawn as a line if the arena is close to it; 0 = unknown
 *
 * One step curve per arena above each other, the size of the arena dashed.
 */
RpFigure *rp_memory_figure(const char *name, const char *title, const RpPlan *plan,
                           const RpTrace *trace, guint64 gpu_bytes, gint64 from_ns, gint64 end_ns,
                           const RpFigureStyle *style);

/* Arenas by buffer category, stacked. */
RpFigure *rp_memory_categories_figure(const char *name, const char *title, const RpPlan *plan,
                                      const RpFigureStyle *style);

/*
 * Training runs beside each other: loss, validation loss, learning rate, gradient norm, tokens/s and
 * bubble ratio over the steps.
 */

/* A step, or an evaluation after it; NAN: not known. */
typedef struct {
    double step;
    double loss;
    double learning_rate;
    double grad_norm;
    double tokens_per_s;
    double bubble_ratio;
    double eval_loss;
} RpRunPoint;

typedef struct {
    const char *title;
    const RpRunPoint *points; /* in the order of steps */
    guint n;
} RpRunCurve;

/**
 * rp_runs_figure:
 *
 * A panel for each number that some run has, a colour for each run. The loss of steps is drawn as
 * the mean over a window centred on each, a fiftieth of the run wide; with one run the steps
 * themselves, thin. Where there are more steps than pixels, the least and the greatest of each column
 * are drawn.
 * @logarithmic: losses and norms, where they are above 0
 *
 * Errors: RP_PLOT_ERROR_DATA where no run has a finite number
 */
RpFigure *rp_runs_figure(const char *name, const char *title, const RpRunCurve *runs, guint n,
                         gboolean logarithmic, const RpFigureStyle *style,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * Timelines: the tasks of every lane over time, from one trace or several above each other on a
 * common time axis (Figures 1, 4, 6, 7; `roundpipe timeline`).
 *
 *   1F1B, N = 2, M = 2                 a bubble stays white
 *   GPU 0 |F0|F1|     | B0  | B1  |
 *   GPU 1 |  |F0| B0  |F1| B1  |
 *   0     10     20    30   ms
 */

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
