/*
 * AdamW in plain C: what runs where nothing better is known, and what the other variants must
 * equal bit for bit. Loops are written so that a compiler can vectorise them.
 */
#include "exec/optim/adamw/adamw-private.h"

static gboolean
supported(void)
{
    return TRUE;
}

/* With a constant @gradient_number, @publish and @published_number. */
G_ALWAYS_INLINE static inline void
step_loop(const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n,
          RpNumber gradient_number, gboolean publish, RpNumber published_number)
{
    const RpAdamwFactors f = *factors;
    float *restrict weight = arrays->weight;
    float *restrict moment1 = arrays->moment1;
    float *restrict moment2 = arrays->moment2;
    const void *restrict gradient = arrays->gradient;
    void *restrict published = arrays->published;

    for (gsize i = 0; i < n; i++) {
        const float w = rp_adamw_update_one(&f, rp_number_get(gradient_number, gradient, i),
                                            &weight[i], &moment1[i], &moment2[i]);
        if (publish)
            rp_number_set(published_number, published, i, w);
    }
}

G_ALWAYS_INLINE static inline void
publish_loop(const float *restrict weight, void *restrict published, RpNumber number, gsize n)
{
    uint16_t *restrict half = published;

    if (number == RP_NUMBER_FP32)
        memcpy(published, weight, n * sizeof *weight);
    else if (number == RP_NUMBER_BF16)
        for (gsize i = 0; i < n; i++)
            half[i] = rp_number_to_bf16(weight[i]);
    else
        for (gsize i = 0; i < n; i++)
            half[i] = rp_number_to_fp16(weight[i]);
}

G_ALWAYS_INLINE static inline void
add_squares_loop(double *restrict lanes, const void *values, RpNumber number, gsize n)
{
    gsize i = 0;

    for (; i + RP_SUM_LANES <= n; i += RP_SUM_LANES)
        for (gsize lane = 0; lane < RP_SUM_LANES; lane++) {
            const double value = rp_number_get(number, values, i + lane);
            lanes[lane] += value * value;
        }
    for (gsize lane = 0; i + lane < n; lane++) {
        const double value = rp_number_get(number, values, i + lane);
        lanes[lane] += value * value;
    }
}

#include "exec/optim/adamw/adamw-dispatch.h"

const RpAdamwOps rp_adamw_plain = {
    .name = "plain",
    .supported = supported,
    .step = step,
    .publish = publish,
    .sum_squares = sum_squares,
    .add_squares = add_squares,
    .add = add,
    .accumulate = accumulate,
    .widen = widen,
};
