#include "core/plan/job/check.h"

#include "core/profile/cards.h"
#include "core/schedules/given.h"

G_DEFINE_QUARK(rp_planner_error, rp_planner_error)

/* Weights and activations that move are those of layers, and buffers are taken in turns. */
static gboolean
check_full_stages(const RpPlanJob *job, GError **error)
{
    const RpScheduleOps *schedule = job->options.schedule;

    if (job->options.slices > 1) {
        g_set_error(
            error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
            "schedule %s runs slices of sequences: full fidelity plans whole ones; expected "
            "compute fidelity",
            schedule->name);
        return FALSE;
    }
    if (schedule->given != NULL && schedule->dispatched && !schedule->given->in_turns) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                    "schedule %s gives a slot to another GPU than the next in turn: full fidelity "
                    "plans buffers by turns; expected compute fidelity",
                    schedule->name);
        return FALSE;
    }
    if (!rp_planner_has_full(&job->options)) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                    "schedule %s holds two %s: full fidelity has one; expected compute fidelity",
                    schedule->name,
                    schedule->mirrored ? "copies of each stage's weights, on two GPUs"
                                       : "versions of weights on a GPU at once");
        return FALSE;
    }
    for (guint s = 0; s < job->partition->n_forward; s++)
        if (job->partition->forward[s].count == 0) {
            g_set_error(
                error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                "stage %u of %u holds no layer: full fidelity moves weights and activations "
                "of layers; expected compute fidelity, or a layer in each stage",
                s, job->partition->n_forward);
            return FALSE;
        }
    return TRUE;
}

/* A file has its own GPUs, and a bound stage one. */
gboolean
rp_job_check_dispatch(const RpPlanOptions *options, GError **error)
{
    const RpScheduleOps *schedule = options->schedule;

    if (options->replicas > 1 && !rp_schedule_is_rotated(schedule)) {
        g_set_error(
            error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
            "schedule %s says itself on which GPU a stage runs: expected 1 replica, found %u",
            schedule->name, options->replicas);
        return FALSE;
    }
    if (options->replicas > 1 && options->dispatch == RP_DISPATCH_FREE) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                    "dispatch free knows one group of GPUs: expected 1 replica beside it, found %u",
                    options->replicas);
        return FALSE;
    }
    if (options->dispatch == RP_DISPATCH_FREE && rp_plan_slices(options) > 1) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                    "dispatch free deals out slots of whole sequences: expected 1 slice beside it, "
                    "found %u",
                    options->slices);
        return FALSE;
    }
    if (options->dispatch == RP_DISPATCH_ROTATION || rp_schedule_is_rotated(schedule))
        return TRUE;
    g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                "schedule %s says itself on which GPU a stage runs: expected dispatch rotation",
                schedule->name);
    return FALSE;
}

gboolean
rp_job_check_partition(const RpPlanJob *job, GError **error)
{
    const RpScheduleOps *schedule = job->options.schedule;

    if (job->partition->dispatched != schedule->dispatched) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                    schedule->dispatched
                        ? "schedule %s needs forward and backward stages, found one stage list"
                        : "schedule %s needs one stage list, found forward and backward stages",
                    schedule->name);
        return FALSE;
    }
    g_return_val_if_fail(!job->options.forward_only || job->options.fidelity == RP_FIDELITY_FULL,
                         FALSE);
    if (job->options.replicas > 1 && rp_profile_is_mixed(job->profile)) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                    "cards of several kinds are one group: expected 1 replica, found %u",
                    job->options.replicas);
        return FALSE;
    }
    if (job->options.fidelity != RP_FIDELITY_FULL)
        return TRUE;
    if (!check_full_stages(job, error))
        return FALSE;
    if (job->options.fused_forward == RP_FUSED_PUBLISHED) {
        g_set_error(error, RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION,
                    "fused forward \"published\" exists in compute fidelity only: a machine "
                    "cannot run the fused stage before its input has arrived");
        return FALSE;
    }
    return rp_profile_check_full(job->profile, error);
}

gboolean
rp_job_check_calls(const RpPlanJob *job, GError **error)
{
    const RpScheduleOps *schedule = job->options.schedule;

    if (job->options.calls == 1 || schedule->dispatched ||
        (!schedule->offloads_weights && rp_planner_has_full(&job->options)))
        return TRUE;
    g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                "schedule %s sums gradients over one call: found %u calls a step", schedule->name,
                job->options.calls);
    return FALSE;
}
