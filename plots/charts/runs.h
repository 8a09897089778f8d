/**
 * Training runs beside each other: loss, validation loss, learning rate, gradient norm, tokens/s and
 * bubble ratio over the steps.
 */
#pragma once

#include "plots/figure.h"

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
 * themselves, thin.
 * @logarithmic: losses and norms, where they are above 0
 *
 * Errors: RP_PLOT_ERROR_DATA where no run has a finite number
 */
RpFigure *rp_runs_figure(const char *name, const char *title, const RpRunCurve *runs, guint n,
                         gboolean logarithmic, const RpFigureStyle *style,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
