/**
 * The loss curve of a training run.
 */
#pragma once

#include "plots/figure.h"

typedef struct {
    double step;
    double loss; /* NAN = a gap */
    double learning_rate;
} RpLossPoint;

/**
 * rp_loss_figure:
 * @name: base name of the figure
 * @title: the model that is trained
 * @subtitle: (nullable): a second line, such as the data
 * @points: (array length=n): finished steps, in their order
 * @evaluations: (array length=n_evaluations): likewise; their learning rates are not looked at
 *
 *   thin    the loss of every step; where there are more steps than pixels, the least and the
 *           greatest of each column
 *   thick   the mean over a window centred on each step, a fiftieth of the run wide
 *   dots    @evaluations: the validation loss, if there is any
 *   dashed  the learning rate, on an axis of its own
 *
 * Errors: RP_PLOT_ERROR_DATA without a step of finite loss
 */
RpFigure *rp_loss_figure(const char *name, const char *title, const char *subtitle,
                         const RpLossPoint *points, guint n, const RpLossPoint *evaluations,
                         guint n_evaluations, GError **error) G_GNUC_WARN_UNUSED_RESULT;
