#include "exec/optim/adamw/adamw-private.h"

#include <math.h>

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
