#include "exec/optim/rules.h"

#include <math.h>
#include <string.h>

/* Share of the distance from the peak to the minimum that is left. @progress: of the fall, 0 to 1 */
static double
left_of(RpLearningRateKind shape, double progress)
{
    switch (shape) {
    case RP_LEARNING_RATE_LINEAR:
        return 1 - progress;
    case RP_LEARNING_RATE_ROOT:
        return 1 - sqrt(progress);
    default:
        return 0.5 * (1 + cos(G_PI * progress));
    }
}

static double
above_minimum(const RpLearningRate *rate, double factor)
{
    return rate->peak * (factor * (1 - rate->min_ratio) + rate->min_ratio);
}

/* Warm-up, then the peak until the last steps. */
static double
stable_at(const RpLearningRate *rate, guint64 step)
{
    const guint64 fall = MIN(rate->decay_steps, rate->total_steps);
    const guint64 first = MAX(rate->total_steps - fall, rate->warmup_steps);

    if (step < first)
        return rate->peak;
    if (step >= first + fall || step >= rate->total_steps)
        return rate->peak * rate->min_ratio;
    return above_minimum(rate, left_of(rate->decay, (double)(step - first) / (double)fall));
}

double
rp_learning_rate_at(const RpLearningRate *rate, guint64 step)
{
    if (step < rate->warmup_steps) {
        const double factor = (double)step / (double)rate->warmup_steps;

        return rate->kind == RP_LEARNING_RATE_STABLE ? above_minimum(rate, factor)
                                                     : rate->peak * factor;
    }
    if (rate->kind == RP_LEARNING_RATE_CONSTANT)
        return rate->peak;
    if (rate->kind == RP_LEARNING_RATE_STABLE)
        return stable_at(rate, step);
    if (step >= rate->total_steps) /* also when the warm-up is longer than the run */
        return rate->peak * rate->min_ratio;

    const double decay_steps = (double)(rate->total_steps - rate->warmup_steps);
    if (rate->kind == RP_LEARNING_RATE_LINEAR) /* rounded as it always was */
        return above_minimum(rate, (double)(rate->total_steps - step) / decay_steps);
    return above_minimum(rate,
                         left_of(rate->kind, (double)(step - rate->warmup_steps) / decay_steps));
}

gboolean
rp_loss_scale_update(RpLossScale *loss_scale, const RpLossScaleOptions *options, gboolean finite)
{
    if (!finite) {
        loss_scale->scale = (float)(loss_scale->scale * options->backoff_factor);
        loss_scale->good_steps = 0;
    } else if (++loss_scale->good_steps == options->growth_interval) {
        const float grown = (float)(loss_scale->scale * options->growth_factor);
        if (isfinite(grown))
            loss_scale->scale = grown;
        loss_scale->good_steps = 0;
    }
    return finite;
}

RpClip
rp_clip_by_norm(const double *sum_squares, gsize n_layers, double unscale, double max_norm)
{
    RpClip clip = {.coefficient = 1};
    double sum = 0;

    for (gsize i = 0; i < n_layers; i++)
        sum += sum_squares[i];
    clip.norm = sqrt(sum) * unscale;
    clip.finite = isfinite(clip.norm);
    if (max_norm > 0)
        clip.coefficient = fmin(1, max_norm / (clip.norm + 1e-6));
    return clip;
}

gboolean
rp_parameter_decays(const char *name, guint n_dims)
{
    g_autofree char *lower = g_ascii_strdown(name, -1);

    if (n_dims <= 1 || strstr(lower, "bias") != NULL)
        return FALSE;
    g_auto(GStrv) parts = g_strsplit(lower, ".", -1);
    for (char **part = parts; *part != NULL; part++)
        if (g_str_has_suffix(*part, "norm"))
            return FALSE;
    return TRUE;
}
