/**
 * AdamW and Lion on flat arrays: the updates, and their variants for the processors they may run on.
 *
 * Every variant gives the same bits: each value is computed by the same fp32 operations in the same
 * order, each rounded (no fused multiply-add, no flushing of subnormals), and no value depends on
 * its neighbours, so neither the variant, nor the split over threads, nor the alignment shows in
 * the result. The exception is a NaN's payload.
 */
#pragma once

#include <glib.h>

#include "core/base/dtype.h"
#include "core/base/moments.h"

/* Values summed at a time: a longer sum is the sum, in order, over blocks of this size. */
#define RP_SUM_SQUARES_BLOCK ((gsize)65536)
#define RP_SUM_LANES 32

typedef struct {
    double beta1;        /* decay of the first moment, [0, 1) */
    double beta2;        /* decay of the second moment, [0, 1) */
    double epsilon;      /* added to the root of the second moment, >= 0 */
    double weight_decay; /* decoupled, >= 0 */
    RpStateFormat form;  /* update rule, and format of weights and moments between steps */
    guint64 seed;        /* seed of stochastic rounding */
} RpAdamwOptions;

/* torch.optim.AdamW's defaults. */
#define RP_ADAMW_OPTIONS_INIT                                                                      \
    {                                                                                              \
        .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01                        \
    }

/* Factors of one step, rounded to fp32 once. rp_adamw_prepare() makes them. */
typedef struct {
    RpUpdateRule rule;
    float gradient_scale;
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float decay;           /* 1 - learning rate * weight decay */
    float step_size;       /* learning rate / (1 - beta1^step); Lion: learning rate */
    float root_correction; /* 1 / sqrt(1 - beta2^step) */
    float epsilon;
} RpAdamwFactors;

/* The arrays of one step, each of the same length and aligned to its type. */
typedef struct {
    float *weight;        /* updated */
    float *moment1;       /* updated */
    float *moment2;       /* updated; Lion: NULL */
    const void *gradient; /* read */
    void *published;      /* written: the new weight, rounded; or NULL */
    RpDtype gradient_dtype;
    RpDtype published_dtype;
} RpAdamwArrays;

#define RP_DRAW_MASTER 0x80000000u

/* Source of the random bits of stochastic rounding: a parameter, a moment and a step have the same bits, on any thread
 * and machine. */
typedef struct {
    guint64 seed;
    guint64 step; /* step of the layer; the first is 1 */
    guint32 layer;
    guint32 moment; /* 0: the first, 1: the second, that of squares; RP_DRAW_MASTER: the weight */
} RpDraw;

/* Operands of a step with moments that are kept in fewer bits: whole blocks. */
typedef struct {
    RpMoments moments; /* not fp32 */
    RpDtype gradient_dtype;
    float *weight;        /* updated */
    const void *gradient; /* read */
    void *kept[2];        /* updated: moments; Lion has one, here and below */
    float *scale[2];      /* updated: of their blocks, int8 */
    RpDraw draw[2];
    guint64 block; /* number of the first in its layer */
} RpAdamwPacked;

/* One variant. */
typedef struct {
    const char *name; /* "avx512", "avx2" or "plain" */

    /* Whether this processor can run it. */
    gboolean (*supported)(void);

    /* Updates @n values:
     *   g = gradient * gradient_scale
     *   m = beta1 * m + (1 - beta1) * g
     *   v = beta2 * v + ((1 - beta2) * g) * g
     *   w = w * decay - (step_size * m) / (sqrt(v) * root_correction + epsilon)
     *   published = round(w)
     * Source: torch.optim.AdamW, _single_tensor_adamw
     * Lion, whose moment is one:
     *   c = beta1 * m + (1 - beta1) * g
     *   w = w * decay - step_size * sign(c)
     *   m = beta2 * m + (1 - beta2) * g
     * Source: Chen et al., Symbolic Discovery of Optimization Algorithms, algorithm 2 */
    void (*step)(const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n);

    /* @published[i] = round(@weight[i]), i < @n. */
    void (*publish)(const float *weight, void *published, RpDtype dtype, gsize n);

    /* Adds the squares of @n values in double, value i to lane i % 32: lanes have the sum of all
     * that they were given, as long as @n was a multiple of 32 but for the last. */
    void (*add_squares)(double lanes[RP_SUM_LANES], const void *values, RpDtype dtype, gsize n);

    /* @sum[i] = @a[i] + @b[i], in fp32. The arrays do not overlap, here and below. */
    void (*add)(const void *a, const void *b, RpDtype dtype, float *sum, gsize n);

    /* @sum[i] += @values[i]. */
    void (*accumulate)(float *sum, const void *values, RpDtype dtype, gsize n);

    /* @wide[i] = @values[i]. */
    void (*widen)(const void *values, RpDtype dtype, float *wide, gsize n);

    /* Converts a moment of @n parameters, from a block on, to and from the format kept between
     * steps; not fp32. @scales: of its blocks, int8. @block: number of the first in its layer */
    void (*unpack)(RpMoments moments, gboolean squares, const void *packed, const float *scales,
                   float *values, gsize n);
    void (*pack)(RpMoments moments, const RpDraw *draw, guint64 block, const float *values,
                 void *packed, float *scales, gsize n);

    /* unpack(), step() and pack() of @n parameters, a multiple of RP_MOMENT_BLOCK, in one pass; publishes
     * nothing. NULL: they are as fast one by one. */
    void (*step_packed)(const RpAdamwFactors *factors, const RpAdamwPacked *packed, gsize n);
} RpAdamwOps;

/* Every variant built in, the fastest first, then NULL; ask supported() before use. */
const RpAdamwOps *const *rp_adamw_variants(void);

/* The first variant that this processor supports. */
const RpAdamwOps *rp_adamw_best(void);

/* The variant called @name, or NULL if there is none or this processor lacks it. */
const RpAdamwOps *rp_adamw_find(const char *name);

/**
 * rp_adamw_prepare:
 * @options: of the optimizer
 * @learning_rate: of this step
 * @gradient_scale: factor of gradients: 1 / (loss scale * tokens) * clip coefficient
 * @step: of the layer; the first is 1
 *
 * Computes the step's factors in double.
 *
 * Source: torch.optim.AdamW; Kingma and Ba, Adam, section 2 (bias correction); Loshchilov and
 * Hutter, Decoupled weight decay regularization, algorithm 2
 */
RpAdamwFactors rp_adamw_prepare(const RpAdamwOptions *options, double learning_rate,
                                double gradient_scale, guint64 step);

/* Adds the lanes of a sum of squares in order. */
double rp_adamw_add_lanes(const double lanes[RP_SUM_LANES]);

/* Sum of squares of @n values of any length: blocks of RP_SUM_SQUARES_BLOCK, added in order; the
 * lanes of a block are added in order. Infinite or NaN if and only if a value is. */
double rp_adamw_sum_squares(const RpAdamwOps *ops, const void *values, RpDtype dtype, gsize n);
