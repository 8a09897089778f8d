/* The advisor's recommendation. */
#include "sim/advise/private.h"

/* From this share of idle time on, half as many GPUs may be as fast. */
#define IDLE_BUBBLE 0.4

/* Half as many GPUs, and half of those, while they are as fast: with too few stages and
 * micro-batches for all of them most are idle. (Those that wait for the optimizer need a larger
 * batch, not fewer GPUs, unless each has one micro-batch only.) */
static gboolean
try_fewer_gpus(const RpAdviseQuery *query, RpAdvice *advice, GError **error)
{
    while (advice->best != NULL && advice->best->bubble_ratio > IDLE_BUBBLE &&
           (advice->best->waits != RP_ADVISE_WAITS_OPTIMIZER ||
            advice->query.batch < 2 * advice->query.gpus) &&
           advice->query.gpus > 1) {
        g_autoptr(RpAdvice) fewer = g_new0(RpAdvice, 1);

        fewer->query = *query;
        fewer->query.gpus = advice->query.gpus / 2;
        if (!rp_advise_resolve(&fewer->query, NULL))
            return TRUE;
        if (!rp_advise_choose(fewer, error))
            return FALSE;
        if (fewer->best == NULL ||
            fewer->best->tokens_per_s < RP_ADVISE_AS_FAST * advice->best->tokens_per_s)
            return TRUE;
        advice->query = fewer->query;
        advice->fewer_faster = TRUE;
        rp_advice_take(advice, fewer);
    }
    return TRUE;
}

static const RpAdviseRun *
fastest_schedule(const RpAdvice *advice)
{
    const RpAdviseRun *fastest = NULL;

    for (guint i = 0; i < advice->schedules->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(advice->schedules, i);

        if (run->problem == NULL && run->simulated &&
            (fastest == NULL || run->tokens_per_s > fastest->tokens_per_s))
            fastest = run;
    }
    return fastest;
}

RpAdvice *
rp_advise(const RpAdviseQuery *query, const RpScheduleOps *const *schedules, GError **error)
{
    g_autoptr(RpAdvice) advice = g_new0(RpAdvice, 1);

    advice->query = *query;
    advice->gpus_asked = query->gpus;
    if (!rp_advise_resolve(&advice->query, error))
        return NULL;
    advice->batch_asked = query->batch != 0 ? query->batch : advice->query.batch;
    if (!rp_advise_choose(advice, error) || !try_fewer_gpus(query, advice, error) ||
        !rp_advise_compare(advice, schedules, error) ||
        !rp_advise_longest(&advice->query, &advice->longest, error))
        return NULL;
    advice->instead = advice->best == NULL ? fastest_schedule(advice) : NULL;
    advice->remedies = advice->best == NULL ? rp_advise_find_remedies(query) : g_ptr_array_new();
    return g_steal_pointer(&advice);
}
