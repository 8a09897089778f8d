#include "sim/scored.h"

#include <math.h>

#include "sim/simulate.h"

static void
scale_head(RpLayer *head, double share)
{
    head->forward_ns = llround(share * (double)head->forward_ns);
    head->forward_spread_ns = llround(share * (double)head->forward_spread_ns);
    head->recompute_ns = llround(share * (double)head->recompute_ns);
    head->recompute_spread_ns = llround(share * (double)head->recompute_spread_ns);
    head->backward_ns = llround(share * (double)head->backward_ns);
    head->backward_spread_ns = llround(share * (double)head->backward_spread_ns);
}

void
rp_place_head(RpProfile *profile, gboolean dispatched, double share, guint chunk)
{
    RpLayer *head = &profile->layers[profile->n_layers - 1];

    for (guint c = 0; c < profile->n_cards; c++)
        rp_place_head(profile->cards[c], dispatched, share, chunk);
    if (head->kind != RP_LAYER_HEAD)
        return;
    if (share < 1)
        scale_head(head, share);
    if (chunk > 0 && share * (double)rp_profile_micro_batch_tokens(profile) > chunk) {
        head->backward_ns += head->forward_ns;
        head->backward_spread_ns += head->forward_spread_ns;
    }
    if (dispatched)
        return;
    head->backward_ns += head->forward_ns;
    head->backward_spread_ns += head->forward_spread_ns;
    head->forward_ns = 0;
    head->forward_spread_ns = 0;
}

guint
rp_scored_together(guint calls)
{
    return MAX(1, RP_SCORED_BATCHES / MAX(1, calls));
}

/* @iterations, from empty devices to empty devices. @plan: (out): freed after the trace */
static RpTrace *
simulate(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
         guint iterations, RpPlan **plan, GError **error)
{
    const RpMachine machine = rp_machine_from_profile(profile);

    *plan = rp_plan_make(profile, partition, options, iterations, error);
    return *plan != NULL ? rp_simulate(*plan, &machine, error) : NULL;
}

gboolean
rp_simulate_scored(const RpProfile *profile, const RpProfile *forwards,
                   const RpPartition *partition, const RpPlanOptions *options,
                   RpPlan **forwards_plan, RpSteady *scored, GError **error)
{
    const guint calls = MAX(1, options->calls), together = rp_scored_together(calls);
    RpPlanOptions scoring = *options;
    g_autoptr(RpPlan) first = NULL;
    g_autoptr(RpPlan) second = NULL;

    scoring.forward_only = TRUE;
    g_autoptr(RpTrace) scores =
        simulate(forwards, partition, &scoring, together * calls, &first, error);
    if (scores == NULL)
        return FALSE;
    g_autoptr(RpTrace) steps = simulate(profile, partition, options, together, &second, error);
    if (steps == NULL)
        return FALSE;
    const double scored_ns = (double)rp_trace_end_ns(scores) / together;
    const double step_ns = (double)rp_trace_end_ns(steps) / together;

    scored->iteration_ns = (gint64)(scored_ns + step_ns);
    scored->ratio =
        (scored_ns * rp_report_bubble(scores).ratio + step_ns * rp_report_bubble(steps).ratio) /
        (scored_ns + step_ns);
    if (forwards_plan != NULL)
        *forwards_plan = g_steal_pointer(&first);
    return TRUE;
}
