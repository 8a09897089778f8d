/**
 * Learning rates over the steps of a run: constant, linear, cosine, and constant with a fall at the
 * end (WSD: warm-up, stable, decay), each with a linear warm-up, all but the first down to a minimum.
 *
 *   peak     __________      _            __           ________
 *           /               / \          /  `.        /        \
 *   min    /               /    \_      /     `-_    /          \_
 *   0     /               /            /            /
 *         constant        linear       cosine       stable
 */
#pragma once

#include <glib.h>

typedef enum {
    RP_LEARNING_RATE_CONSTANT,
    RP_LEARNING_RATE_LINEAR,
    RP_LEARNING_RATE_COSINE,
    RP_LEARNING_RATE_STABLE,
    RP_LEARNING_RATE_ROOT /* as `decay` only: 1 - the root of the progress */
} RpLearningRateKind;

typedef struct {
    RpLearningRateKind kind;
    double peak;              /* reached at the end of the warm-up */
    guint64 warmup_steps;     /* 0: none */
    guint64 total_steps;      /* warm-up included; where all but constant reach their minimum */
    double min_ratio;         /* share of the peak */
    guint64 decay_steps;      /* stable: of the fall; none before the warm-up is over */
    RpLearningRateKind decay; /* stable: its shape, linear, cosine or root */
} RpLearningRate;

/**
 * rp_learning_rate_at:
 * @rate: the schedule
 * @step: steps done before; the first step of a run is 0, and with a warm-up its rate is 0
 *
 * Returns: the learning rate of the step
 * Source: transformers, get_constant_schedule_with_warmup, get_linear_schedule_with_warmup,
 * get_cosine_with_min_lr_schedule_with_warmup (num_cycles 0.5), get_wsd_schedule (whose warm-up begins
 * at the minimum), get_polynomial_decay_schedule_with_warmup (power 1: linear with a minimum)
 */
double rp_learning_rate_at(const RpLearningRate *rate, guint64 step);
