/**
 * Dynamic loss scaling for fp16 gradients: doubled after many good steps, halved after a bad one.
 *
 *   scale  65536 ------------> 131072 ---> 65536 ------>
 *          |-- 2000 good steps --|    bad step, skipped
 */
#pragma once

#include <glib.h>

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
