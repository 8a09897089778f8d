/**
 * The rules of a step beside its arithmetic: learning rate, loss scale, clipping, which weights decay.
 *
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

/*
 * Dynamic loss scaling for fp16 gradients: doubled after many good steps, halved after a bad one.
 *
 *   scale  65536 ------------> 131072 ---> 65536 ------>
 *          |-- 2000 good steps --|    bad step, skipped
 */

typedef struct {
    double growth_factor;
    double backoff_factor;
    guint growth_interval; /* good steps in a row until the scale grows */
    guint max_skipped;     /* bad steps in a row that end the run; 0: never */
} RpLossScaleOptions;

/* torch.amp.GradScaler's defaults; it never gives up. 32 steps halve the largest initial scale,
 * 2^24, to 2^-8: an overflow there is not the scale's fault. */
#define RP_LOSS_SCALE_OPTIONS_INIT                                                                 \
    {                                                                                              \
        .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 2000, .max_skipped = 32      \
    }
#define RP_LOSS_SCALE_INITIAL 65536.0f

/* State that a checkpoint keeps. */
typedef struct {
    float scale;      /* factor of the loss */
    guint good_steps; /* in a row, since the scale last changed */
} RpLossScale;

#define RP_LOSS_SCALE_INIT                                                                         \
    {                                                                                              \
        .scale = RP_LOSS_SCALE_INITIAL                                                             \
    }

/**
 * rp_loss_scale_update:
 * @loss_scale: moved on by one step
 * @options: factors and interval
 * @finite: whether all gradients of the step are finite
 *
 * Returns: whether to apply the step; if not, weights and optimizer state must stay as they are
 * Source: torch.amp.GradScaler, _amp_update_scale_: the scale is an fp32, and does not grow when it
 * would become infinite
 */
gboolean rp_loss_scale_update(RpLossScale *loss_scale, const RpLossScaleOptions *options,
                              gboolean finite);

/*
 * Clipping by the global norm of the gradients, from each layer's sum of squares.
 */

typedef struct {
    double norm;        /* norm of all gradients, unscaled, before clipping */
    double coefficient; /* factor of gradients besides the unscaling; <= 1 */
    gboolean finite;    /* FALSE: a gradient is infinite or NaN; do not step */
} RpClip;

/**
 * rp_clip_by_norm:
 * @sum_squares: each layer's sum of squares of its gradients as stored; added in this order
 * @n_layers: number of sums
 * @unscale: factor from stored gradients to true ones: 1 / (loss scale * tokens)
 * @max_norm: the norm to clip to; 0: no clipping
 *
 * Returns: norm and coefficient
 * Source: torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6))
 */
RpClip rp_clip_by_norm(const double *sum_squares, gsize n_layers, double unscale, double max_norm);

/*
 * Weight decay applies to weights, not to norms and biases.
 */

/* Consecutive parameters of a layer that are treated alike, one tensor say. */
typedef struct {
    gsize n_parameters;
    gboolean decays; /* weight decay applies */
} RpParameterSpan;

/**
 * rp_parameter_decays:
 * @name: Hugging Face name, e.g. "model.layers.0.self_attn.q_norm.weight"
 * @n_dims: dimensions of the tensor
 *
 * Returns: %FALSE for tensors of one dimension, biases, and parts of a norm
 * Source: transformers, Trainer.get_decay_parameter_names, which lets attention sinks decay, though they
 *   are of one dimension
 */
gboolean rp_parameter_decays(const char *name, guint n_dims);
