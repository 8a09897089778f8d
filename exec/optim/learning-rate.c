#include "exec/optim/learning-rate.h"

#include <math.h>

gboolean
rp_learning_rate_kind_from_name(const char *name, RpLearningRateKind *kind)
{
    static const char *const names[] = {"constant", "linear", "cosine"};

    for (guint i = 0; i < G_N_ELEMENTS(names); i++)
        if (g_strcmp0(name, names[i]) == 0) {
            *kind = (RpLearningRateKind)i;
            return TRUE;
        }
    return FALSE;
}

double
rp_learning_rate_at(const RpLearningRate *rate, guint64 step)
{
    if (step < rate->warmup_steps)
        return rate->peak * ((double)step / (double)rate->warmup_steps);
    if (rate->kind == RP_LEARNING_RATE_CONSTANT)
        return rate->peak;
    if (step >= rate->total_steps) /* also when the warm-up is longer than the run */
        return 0;

    const double decay_steps = (double)(rate->total_steps - rate->warmup_steps);
    if (rate->kind == RP_LEARNING_RATE_LINEAR)
        return rate->peak * ((double)(rate->total_steps - step) / decay_steps);
    const double progress = (double)(step - rate->warmup_steps) / decay_steps;
    return rate->peak * (0.5 * (1 + cos(G_PI * progress)));
}
