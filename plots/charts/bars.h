/**
 * Horizontal bar charts: rows in groups, each bar of one value or stacked from parts. The bubble
 * charts (Figures 3 and 15) and `roundpipe compare` are drawn so.
 *
 *   Qwen3-1.7B
 *             GPipe |#####::::::::///| 36.1 %
 *   RoundPipe async |## <> 4.0 %                  <> = another source's figure
 */
#pragma once

#include "core/trace/report.h"
#include "plots/figure.h"
#include "plots/palette.h"

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
/* The same with its own colour (charts of one part). */
void rp_bar_chart_add_coloured(RpBarChart *chart, const RpBarRow *row, RpColour colour);

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
