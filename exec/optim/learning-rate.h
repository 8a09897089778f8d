/**
 * Learning rates over the steps of a run: constant, linear and cosine, each with a linear warm-up.
 *
 *   peak     ___________        ____             ___
 *           /                  /    \           /   `.
 *          /                  /       \        /      `-_
 *   0     /                  /          \     /          ``--
 *         warm-up            constant: flat   linear      cosine
 */
#pragma once

#include <glib.h>

typedef enum {
    RP_LEARNING_RATE_CONSTANT,
    RP_LEARNING_RATE_LINEAR,
    RP_LEARNING_RATE_COSINE
} RpLearningRateKind;

typedef struct {
    RpLearningRateKind kind;
    double peak;          /* reached at the end of the warm-up */
    guint64 warmup_steps; /* 0: none */
    guint64 total_steps;  /* warm-up included; where linear and cosine reach 0 */
} RpLearningRate;

/**
 * rp_learning_rate_at:
 * @rate: the schedule
 * @step: steps done before; the first step of a run is 0, and with a warm-up its rate is 0
 *
 * Returns: the learning rate of the step
 * Source: transformers, get_constant_schedule_with_warmup, get_linear_schedule_with_warmup,
 * get_cosine_schedule_with_warmup (num_cycles 0.5)
 */
double rp_learning_rate_at(const RpLearningRate *rate, guint64 step);
