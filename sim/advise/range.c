/* The range of a prediction: its plan with layer times of a slow and of a fast estimate. */
#include "sim/advise/private.h"

/* Tokens/s of @given, its times replaced. */
static gboolean
simulate_estimate(const RpAdviseQuery *given, const RpAdviseRun *run, RpCostEstimate estimate,
                  double *tokens_per_s, GError **error)
{
    RpAdviseQuery query = *given;
    g_autoptr(RpAdviseRun) copy = rp_advise_run_copy(run);
    guint64 constant_bytes;

    query.estimate = estimate;
    g_autoptr(RpProfile) profile =
        rp_advise_profile(&query, run->sequences, &constant_bytes, error);
    if (profile == NULL || !rp_advise_simulate(profile, copy, FALSE, error))
        return FALSE;
    *tokens_per_s = copy->tokens_per_s;
    return TRUE;
}

gboolean
rp_advise_range(const RpAdviseQuery *query, const RpAdviseRun *run, double *slow, double *fast,
                GError **error)
{
    g_return_val_if_fail(query->gpu != NULL && run->simulated, FALSE);

    double ends[2];

    if (!simulate_estimate(query, run, RP_COST_SLOW, &ends[0], error) ||
        !simulate_estimate(query, run, RP_COST_FAST, &ends[1], error))
        return FALSE;
    /* where the host binds, faster layers may make a plan some 0.1 % slower */
    *slow = MIN(run->tokens_per_s, MIN(ends[0], ends[1]));
    *fast = MAX(run->tokens_per_s, MAX(ends[0], ends[1]));
    return TRUE;
}
