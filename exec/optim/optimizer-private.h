/**
 * Shared by the files of the optimizer.
 *
 *   optimizer.c        life of it and of layers, state out and in, weights out
 *   optimizer-step.c   sums of squares, steps
 */
#pragma once

#include "exec/optim/optimizer.h"

/* Weights that are widened at a time, to be published. */
#define RP_OPTIMIZER_PUBLISHED ((gsize)(4 * RP_MOMENT_BLOCK))

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
    gsize n_applied;   /* in the step under way */
    guint32 number;    /* in the model */
    gsize first_block; /* block of the layer's moments at which this part of it begins */
    RpStateFormat form;
    guint n_moments;
    guint8 *weight;
    guint8 *written; /* shared: weights of the step under way, from the first parameter on */
    guint8 *moment[RP_OPTIMIZER_MOST_MOMENTS]; /* [1]: NULL of Lion */
    float *scale[RP_OPTIMIZER_MOST_MOMENTS];   /* NULL: none */
    GArray *runs;                              /* RpOptimizerRun */
};

static inline guint8 *
rp_optimizer_weight(const RpOptimizerLayer *layer, gsize first)
{
    return layer->weight + first * rp_moment_bytes(layer->form.master);
}

static inline guint8 *
rp_optimizer_moment(const RpOptimizerLayer *layer, guint moment, gsize first)
{
    return layer->moment[moment] + first * rp_moment_bytes(layer->form.moments);
}

static inline float *
rp_optimizer_scale(const RpOptimizerLayer *layer, guint moment, gsize first)
{
    return layer->scale[moment] != NULL ? layer->scale[moment] + first / RP_MOMENT_BLOCK : NULL;
}

/* Publishes @n weights, kept as @master says. */
static inline void
rp_optimizer_publish(const RpAdamwOps *ops, RpMoments master, const void *weights, void *published,
                     RpDtype dtype, gsize n)
{
    float wide[RP_OPTIMIZER_PUBLISHED];

    if (master == RP_MOMENTS_FP32) {
        ops->publish(weights, published, dtype, n);
        return;
    }
    for (gsize i = 0; i < n; i += G_N_ELEMENTS(wide)) {
        const gsize length = MIN(n - i, G_N_ELEMENTS(wide));

        ops->unpack(master, FALSE, (const guint8 *)weights + i * rp_moment_bytes(master), NULL,
                    wide, length);
        ops->publish(wide, (char *)published + i * rp_dtype_size(dtype), dtype, length);
    }
}

/* Whether [@first, @first + @n) lies within @layer. */
static inline gboolean
rp_optimizer_holds(const RpOptimizerLayer *layer, gsize first, gsize n)
{
    return first <= layer->n_parameters && n <= layer->n_parameters - first;
}
