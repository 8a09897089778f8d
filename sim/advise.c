/* What to recommend. */
#include "sim/advise-private.h"

G_DEFINE_QUARK(rp - advise - error - quark, rp_advise_error)

void
rp_advice_free(RpAdvice *advice)
{
    if (advice == NULL)
        return;
    rp_profile_free(advice->profile);
    g_clear_pointer(&advice->candidates, g_ptr_array_unref);
    g_clear_pointer(&advice->schedules, g_ptr_array_unref);
    g_clear_pointer(&advice->remedies, g_ptr_array_unref);
    rp_advise_run_free(advice->nearest);
    rp_advise_longest_clear(&advice->longest);
    g_free(advice);
}

RpAdvice *
rp_advise(const RpAdviseQuery *query, const RpScheduleOps *const *schedules, GError **error)
{
    g_autoptr(RpAdvice) advice = g_new0(RpAdvice, 1);

    advice->query = *query;
    advice->gpus_asked = query->gpus;
    if (!rp_advise_resolve(&advice->query, error))
        return NULL;
    if (!rp_advise_choose(advice, error) || !rp_advise_compare(advice, schedules, error) ||
        !rp_advise_longest(&advice->query, &advice->longest, error))
        return NULL;
    advice->remedies = advice->best == NULL ? rp_advise_find_remedies(query) : g_ptr_array_new();
    return g_steal_pointer(&advice);
}
