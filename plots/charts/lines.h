/**
 * Line charts: throughput against GPUs or sequence length (Figures 13, 14), operational intensity
 * (Figure 17), the simulator's cost against a plan's size, a loss curve.
 */
#pragma once

#include "plots/figure.h"
#include "plots/palette.h"

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

/**
 * rp_line_chart_from_csv:
 * @name: base name of the figure
 * @csv_text: first line: titles of the columns; first column x, each further one a series, whose
 *   line passes over empty fields. Both axes become logarithmic (base 10), with tics as 1k or 10M.
 * @y_title: the series' title, with unit
 *
 * The simulator's and the partitioner's cost against size: the benchmarks write such tables.
 *
 * Errors: RP_PLOT_ERROR_DATA naming the line
 */
RpFigure *rp_line_chart_from_csv(const char *name, const char *title, const char *y_title,
                                 const char *csv_text, GError **error) G_GNUC_WARN_UNUSED_RESULT;
