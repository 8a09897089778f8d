#include "exec/optim/learning-rate.h"

#include <math.h>

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
