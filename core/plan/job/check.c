#include "core/base/quote.h"
#include "core/plan/job/job.h"
#include "core/profile/cards.h"
#include "core/schedules/given.h"

G_DEFINE_QUARK(rp_planner_error, rp_planner_error)

/* Returns: %FALSE */
static gboolean G_GNUC_PRINTF(2, 3) refuse(GError **error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_propagate_error(
        error, g_error_new_valist(RP_PLANNER_ERROR, RP_PLANNER_ERROR_PARTITION, format, arguments));
    va_end(arguments);
    return FALSE;
}

/* Weights and activations that move are those of layers, and buffers are taken in turns. */
static gboolean
check_full_stages(const RpPlanJob *job, GError **error)
{
    const RpScheduleOps *schedule = job->options.schedule;

    if (job->options.slices > 1)
        return refuse(error,
                      "schedule %s runs slices of sequences: full fidelity plans whole ones; "
                      "expected compute fidelity",
                      schedule->name);
    if (schedule->given != NULL && schedule->dispatched && !schedule->given->in_turns)
        return refuse(error,
                      "schedule %s gives a slot to another GPU than the next in turn: full "
                      "fidelity plans buffers by turns; expected compute fidelity",
                      schedule->name);
    if (!rp_planner_has_full(&job->options))
        return refuse(error,
                      "schedule %s holds two %s: full fidelity has one; expected compute fidelity",
                      schedule->name,
                      schedule->mirrored ? "copies of each stage's weights, on two GPUs"
                                         : "versions of weights on a GPU at once");
    for (guint s = 0; s < job->partition->n_forward; s++)
        if (job->partition->forward[s].count == 0)
            return refuse(error,
                          "stage %u of %u holds no layer: full fidelity moves weights and "
                          "activations of layers; expected compute fidelity, or a layer in each "
                          "stage",
                          s, job->partition->n_forward);
    return TRUE;
}

/* A file has its own GPUs, and a bound stage one. */
gboolean
rp_job_check_dispatch(const RpPlanOptions *options, GError **error)
{
    const RpScheduleOps *schedule = options->schedule;
    const gboolean rotated = rp_schedule_is_rotated(schedule);

    if (options->replicas > 1 && !rotated)
        return refuse(
            error,
            "schedule %s says itself on which GPU a stage runs: expected 1 replica, found %u",
            schedule->name, options->replicas);
    if (options->dispatch == RP_DISPATCH_ROTATION)
        return TRUE;
    if (options->replicas > 1)
        return refuse(
            error, "dispatch free knows one group of GPUs: expected 1 replica beside it, found %u",
            options->replicas);
    if (rp_plan_slices(options) > 1)
        return refuse(error,
                      "dispatch free deals out slots of whole sequences: expected 1 slice beside "
                      "it, found %u",
                      options->slices);
    return rotated ||
           refuse(error,
                  "schedule %s says itself on which GPU a stage runs: expected dispatch rotation",
                  schedule->name);
}

gboolean
rp_job_check_partition(const RpPlanJob *job, GError **error)
{
    const RpScheduleOps *schedule = job->options.schedule;

    if (job->partition->dispatched != schedule->dispatched)
        return refuse(error, "schedule %s needs %s", schedule->name,
                      schedule->dispatched ? "forward and backward stages, found one stage list"
                                           : "one stage list, found forward and backward stages");
    g_return_val_if_fail(!job->options.forward_only || job->options.fidelity == RP_FIDELITY_FULL,
                         FALSE);
    if (job->options.replicas > 1 && rp_profile_is_mixed(job->profile))
        return refuse(error, "cards of several kinds are one group: expected 1 replica, found %u",
                      job->options.replicas);
    if (job->options.fidelity != RP_FIDELITY_FULL)
        return TRUE;
    if (!check_full_stages(job, error))
        return FALSE;
    if (job->options.fused_forward == RP_FUSED_PUBLISHED)
        return refuse(error,
                      "fused forward \"published\" exists in compute fidelity only: a machine "
                      "cannot run the fused stage before its input has arrived");
    return rp_profile_check_full(job->profile, error);
}

gboolean
rp_job_check_calls(const RpPlanJob *job, GError **error)
{
    const RpScheduleOps *schedule = job->options.schedule;

    if (job->options.calls == 1 || schedule->dispatched ||
        (!schedule->offloads_weights && rp_planner_has_full(&job->options)))
        return TRUE;
    return rp_fail(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_SHAPE,
                   "schedule %s sums gradients over one call: found %u calls a step",
                   schedule->name, job->options.calls);
}
