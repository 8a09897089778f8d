/**
 * What the files of the optimizer share.
 *
 *   optimizer.c        life of it and of layers, state out and in, weights out
 *   optimizer-step.c   sums of squares, steps
 */
#pragma once

#include "exec/optim/optimizer.h"

/* Pieces end at so many parameters: whole pages, and enough work to wake a thread for. */
#define RP_OPTIMIZER_GRANULE ((gsize)16384)

struct _RpOptimizer {
    RpAdamwOptions options;
    const RpAdamwOps *ops;
    RpPool *pool; /* not owned; or NULL */
    GArray *sums; /* double, one a block */
};

/* Parameters up to @end that are treated alike. */
typedef struct {
    gsize end;
    gboolean decays;
} RpOptimizerRun;

struct _RpOptimizerLayer {
    guint64 n_steps;
    gsize n_parameters;
    gsize n_applied; /* in the step under way */
    guint32 number;  /* in the model */
    RpMoments moments;
    float *weight;
    guint8 *moment[2];
    float *scale[2]; /* NULL: none */
    GArray *runs;    /* RpOptimizerRun */
};

static inline guint8 *
rp_optimizer_moment(const RpOptimizerLayer *layer, guint moment, gsize first)
{
    return layer->moment[moment] + first * rp_moment_bytes(layer->moments);
}

static inline float *
rp_optimizer_scale(const RpOptimizerLayer *layer, guint moment, gsize first)
{
    return layer->scale[moment] != NULL ? layer->scale[moment] + first / RP_MOMENT_BLOCK : NULL;
}

/* Whether [@first, @first + @n) lies within @layer. */
static inline gboolean
rp_optimizer_holds(const RpOptimizerLayer *layer, gsize first, gsize n)
{
    return first <= layer->n_parameters && n <= layer->n_parameters - first;
}
