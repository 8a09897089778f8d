#include "exec/optim/adamw/adamw-private.h"

#include <math.h>

/*
 * AdamW in plain C: it runs where nothing better is known, and the other variants must equal it bit
 * for bit. Loops are written so that a compiler can vectorise them.
 */

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

const RpAdamwOps *const *
rp_adamw_variants(void)
{
    static const RpAdamwOps *const variants[] = {RP_ADAMW_VARIANTS NULL};

    return variants;
}

const RpAdamwOps *
rp_adamw_best(void)
{
    const RpAdamwOps *const *variant = rp_adamw_variants();
    while (!(*variant)->supported()) /* the last one, plain, always is */
        variant++;
    return *variant;
}

const RpAdamwOps *
rp_adamw_find(const char *name)
{
    for (const RpAdamwOps *const *variant = rp_adamw_variants(); *variant != NULL; variant++)
        if (g_str_equal((*variant)->name, name) && (*variant)->supported())
            return *variant;
    return NULL;
}

RpAdamwFactors
rp_adamw_prepare(const RpAdamwOptions *options, double learning_rate, double gradient_scale,
                 guint64 step)
{
    const double correction1 = 1 - pow(options->beta1, (double)step);
    const double correction2 = 1 - pow(options->beta2, (double)step);
    const gboolean lion = options->form.rule == RP_UPDATE_LION;
    return (RpAdamwFactors){
        .rule = options->form.rule,
        .gradient_scale = (float)gradient_scale,
        .beta1 = (float)options->beta1,
        .one_minus_beta1 = (float)(1 - options->beta1),
        .beta2 = (float)options->beta2,
        .one_minus_beta2 = (float)(1 - options->beta2),
        .decay = (float)(1 - learning_rate * options->weight_decay),
        .step_size = (float)(lion ? learning_rate : learning_rate / correction1),
        .root_correction = (float)(1 / sqrt(correction2)),
        .epsilon = (float)options->epsilon,
    };
}

double
rp_adamw_add_lanes(const double lanes[RP_SUM_LANES])
{
    double sum = 0;

    for (guint lane = 0; lane < RP_SUM_LANES; lane++)
        sum += lanes[lane];
    return sum;
}

double
rp_adamw_sum_squares(const RpAdamwOps *ops, const void *values, RpDtype dtype, gsize n)
{
    const char *bytes = values;
    double sum = 0;

    for (gsize i = 0; i < n; i += RP_SUM_SQUARES_BLOCK) {
        double lanes[RP_SUM_LANES] = {0};

        ops->add_squares(lanes, bytes + i * rp_dtype_size(dtype), dtype,
                         MIN(n - i, RP_SUM_SQUARES_BLOCK));
        sum += rp_adamw_add_lanes(lanes);
    }
    return sum;
}
