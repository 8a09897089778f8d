/*
 * AdamW in plain C: it runs where nothing better is known, and the other variants must equal it bit
 * for bit. Loops are written so that a compiler can vectorise them.
 */
#include "exec/optim/adamw/adamw-private.h"

static gboolean
supported(void)
{
    return TRUE;
}

/* Callers pass constants for @gradient_dtype, @publish, @published_dtype and @rule. */
G_ALWAYS_INLINE static inline void
step_loop(RpDtype published_dtype, gboolean publish, RpDtype gradient_dtype, RpUpdateRule rule,
          const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    const RpAdamwFactors f = *factors;
    float *restrict weight = arrays->weight;
    float *restrict moment1 = arrays->moment1;
    float *restrict moment2 = arrays->moment2;
    const void *restrict gradient = arrays->gradient;
    void *restrict published = arrays->published;

    for (gsize i = 0; i < n; i++) {
        const float g = rp_dtype_get(gradient_dtype, gradient, i);
        const float w = rule == RP_UPDATE_LION
                            ? rp_lion_update_one(&f, g, &weight[i], &moment1[i])
                            : rp_adamw_update_one(&f, g, &weight[i], &moment1[i], &moment2[i]);
        if (publish)
            rp_dtype_set(published_dtype, published, i, w);
    }
}

G_ALWAYS_INLINE static inline void
publish_loop(RpDtype dtype, const float *restrict weight, void *restrict published, gsize n)
{
    uint16_t *restrict half = published;

    if (dtype == RP_DTYPE_FP32)
        memcpy(published, weight, n * sizeof *weight);
    else if (dtype == RP_DTYPE_BF16)
        for (gsize i = 0; i < n; i++)
            half[i] = rp_bf16_from_float(weight[i]);
    else
        for (gsize i = 0; i < n; i++)
            half[i] = rp_fp16_from_float(weight[i]);
}

G_ALWAYS_INLINE static inline void
add_squares_loop(RpDtype dtype, double *restrict lanes, const void *values, gsize n)
{
    gsize i = 0;

    for (; i + RP_SUM_LANES <= n; i += RP_SUM_LANES)
        for (gsize lane = 0; lane < RP_SUM_LANES; lane++) {
            const double value = rp_dtype_get(dtype, values, i + lane);
            lanes[lane] += value * value;
        }
    for (gsize lane = 0; i + lane < n; lane++) {
        const double value = rp_dtype_get(dtype, values, i + lane);
        lanes[lane] += value * value;
    }
}

#include "exec/optim/adamw/moment-plain.h"

static void
round_blocks(const RpDraw *draw, guint64 block, const float *values, guint16 *rounded, gsize n)
{
    for (gsize i = 0; i < n; i++)
        plain_round_block(draw, block + i, values + i * BLOCK, rounded + i * BLOCK);
}

#define widen_block plain_widen_block
#define encode_block plain_encode_block
#define decode_block plain_decode_block

#include "exec/optim/adamw/adamw-dispatch.h"
RP_ADAMW_VARIANT(plain, NULL);
