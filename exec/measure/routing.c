/*
 * Hidden states and a router that choose given experts: expert e's row of the router is dimension e,
 * and a token's state is large in the dimensions of the experts that it is to have. The norm before
 * the router scales a row as a whole, and attention's output is small beside it.
 *
 *   state   | 9.1 -0.3 8.7 0.2 | ... |      router   | 1 0 0 0 | 0 ...
 *             |         |                            | 0 1 0 0 | 0 ...
 *           expert 0   expert 2                      | 0 0 1 0 | 0 ...
 */
#include "exec/measure/measure.h"

#define CHOSEN 12.0f /* beside states of variance 1 */

gboolean
rp_measure_can_route(const RpModel *model, double skew)
{
    return model->experts > 1 && model->hidden >= model->experts && skew >= 1 &&
           skew * model->active_experts <= model->experts && model->active_experts < model->experts;
}

/* Number of the first @n tokens that choose the fullest expert; they are spread evenly. */
static guint64
n_full(const RpModel *model, double skew, guint64 n)
{
    return (guint64)((double)n * (skew * model->active_experts / model->experts) + 1e-9);
}

void
rp_measure_choices(const RpModel *model, double skew, guint64 token, guint *choices)
{
    const guint64 before = n_full(model, skew, token);
    const gboolean full = n_full(model, skew, token + 1) > before;
    /* the others go round, each token from where the one before it left off */
    guint64 next = token * model->active_experts - before;

    for (guint j = 0; j < model->active_experts; j++)
        choices[j] = j == 0 && full ? 0 : 1 + (guint)(next++ % (model->experts - 1));
}

void
rp_measure_route_state(const RpModel *model, double skew, guint64 token, float *state)
{
    g_autofree guint *choices = g_new(guint, model->active_experts);

    rp_measure_choices(model, skew, token, choices);
    for (guint j = 0; j < model->active_experts; j++)
        state[choices[j]] = CHOSEN - 0.1f * (float)j / (float)model->active_experts;
}

void
rp_measure_route_weight(const RpModel *model, guint expert, float *row)
{
    for (guint i = 0; i < model->hidden; i++)
        row[i] = i == expert ? 1 : 0;
}
