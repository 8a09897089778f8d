/**
 * The update of one value, which every variant must equal bit for bit, and code that variants
 * share.
 */
#pragma once

#include "exec/optim/adamw/adamw.h"

#include <math.h>

#define RP_WIDEN_PIECE ((gsize)2048)

extern const RpAdamwOps rp_adamw_plain;
extern const RpAdamwOps rp_adamw_avx2;
extern const RpAdamwOps rp_adamw_avx512;

/* RpAdamwOps.step for one value; @gradient is as stored, not yet scaled. Returns the weight. */
G_ALWAYS_INLINE static inline float
rp_adamw_update_one(const RpAdamwFactors *f, float gradient, float *weight, float *moment1,
                    float *moment2)
{
    const float g = gradient * f->gradient_scale;
    const float m = f->beta1 * *moment1 + f->one_minus_beta1 * g;
    const float v = f->beta2 * *moment2 + f->one_minus_beta2 * g * g;
    const float w =
        *weight * f->decay - f->step_size * m / (sqrtf(v) * f->root_correction + f->epsilon);
    *moment1 = m;
    *moment2 = v;
    *weight = w;
    return w;
}

G_ALWAYS_INLINE static inline float
rp_lion_update_one(const RpAdamwFactors *f, float gradient, float *weight, float *moment)
{
    const float g = gradient * f->gradient_scale;
    const float c = f->beta1 * *moment + f->one_minus_beta1 * g;
    const float down = c < 0 ? -f->step_size : 0.0f;
    const float step = c > 0 ? f->step_size : down;
    const float w = *weight * f->decay - step;

    *moment = f->beta2 * *moment + f->one_minus_beta2 * g;
    *weight = w;
    return w;
}
