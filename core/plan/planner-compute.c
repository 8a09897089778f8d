/* `compute` fidelity: actions and hops. One task an action. */
#include "core/plan/planner-private.h"

/* The end of a producer's action, one hop away if it ran on another device. */
static void
depend_on_action(RpPlanner *planner, RpTaskId producer, guint32 phase)
{
    if (producer == RP_TASK_NONE)
        return;

    guint32 lane = rp_plan_task(planner->plan, producer)->lane;
    gboolean far = lane != planner->task.lane;
    gint64 hop_ns = far ? planner->profile->links.hop_ns : 0;

    rp_planner_depend(planner, producer, lane, (guint32)MIN(hop_ns, G_MAXUINT32 - 1), phase);
}

/* First action of a device in a synchronous iteration: all devices have ended the last one. */
static void
depend_on_flush(RpPlanner *planner, guint device)
{
    RpTaskId last = planner->last_compute[device];

    if (planner->barrier == RP_TASK_NONE)
        return;
    if (last == RP_TASK_NONE || last < planner->barrier)
        rp_planner_depend(planner, planner->barrier,
                          rp_plan_host_lane(planner->plan, RP_HOST_LANE_OPTIMIZER), 0, 0);
}

/* Staleness 1: the weights that a forward slot of T reads come from the gradients of T-2. */
static void
depend_on_weights(RpPlanner *planner, guint32 stage)
{
    guint32 maker = planner->stages[stage].weight_stage;

    if (!planner->options.async || planner->iteration < 2 || maker == RP_NONE)
        return;

    RpTaskId last = planner->previous_last_backward[1][maker];
    if (last != RP_TASK_NONE && last >= rp_plan_first_id(planner->plan))
        rp_planner_depend(planner, last, rp_plan_task(planner->plan, last)->lane, 0, 0);
}

static void
forward_part(RpPlanner *planner, guint32 stage, guint32 micro_batch, guint32 phase)
{
    if (stage > 0)
        depend_on_action(
            planner,
            planner->forward_task[(gsize)(stage - 1) * planner->shape.micro_batches + micro_batch],
            phase);
}

/* What a backward of @stage waits for: the next stage's gradient and its own stashed input. */
static void
backward_part(RpPlanner *planner, guint32 stage, guint32 micro_batch)
{
    const RpStageInfo *info = &planner->stages[stage];
    gsize m = planner->shape.micro_batches;
    guint32 phase = planner->early ? 1 : 0;

    if (!planner->partition->dispatched) {
        if (stage + 1 < planner->n_stages)
            depend_on_action(planner, planner->backward_task[(stage + 1) * m + micro_batch], phase);
        return; /* its own forward stands before it in its lane */
    }
    depend_on_action(planner, planner->backward_task[(stage - 1) * m + micro_batch], phase);
    if (phase == 1 && info->stash_stage != RP_NONE)
        depend_on_action(planner, planner->forward_task[info->stash_stage * m + micro_batch], 0);
}

static void
set_cost(RpPlanner *planner, gint64 duration_ns, gint64 lead_ns)
{
    planner->task.duration_ns = duration_ns;
    planner->task.lead_ns = lead_ns;
}

RpTaskId
rp_planner_compute_action(RpPlanner *planner, guint device, const RpAction *action)
{
    const RpStageInfo *info = &planner->stages[action->stage];
    guint32 lane = rp_plan_lane(planner->plan, device, RP_LANE_COMPUTE);
    gint64 lead_ns = planner->early ? info->lead_ns : 0;

    rp_planner_begin_task(planner, (RpTaskKind)action->kind, lane, action->stage,
                          action->micro_batch);
    planner->task.round = (guint16)rp_planner_round(planner, action->micro_batch);
    depend_on_flush(planner, device);
    switch ((RpActionKind)action->kind) {
    case RP_ACTION_FORWARD:
        forward_part(planner, action->stage, action->micro_batch, 0);
        depend_on_weights(planner, action->stage);
        set_cost(planner, info->forward_ns, 0);
        break;
    case RP_ACTION_FUSED:
        forward_part(planner, action->stage, action->micro_batch, planner->early_fused ? 1 : 0);
        depend_on_weights(planner, action->stage);
        set_cost(planner, info->backward_ns, planner->early_fused ? info->forward_ns : 0);
        break;
    case RP_ACTION_BACKWARD:
        backward_part(planner, action->stage, action->micro_batch);
        set_cost(planner, info->backward_ns, lead_ns);
        break;
    case RP_ACTION_INPUT_GRADIENT:
        backward_part(planner, action->stage, action->micro_batch);
        set_cost(planner, info->backward_ns - info->weight_ns, lead_ns);
        break;
    case RP_ACTION_WEIGHT_GRADIENT: /* its I stands before it in its lane */
        set_cost(planner, info->weight_ns, 0);
        break;
    case RP_ACTION_OVERLAP:
        planner->task.backward_stage = action->backward_stage;
        planner->task.backward_micro_batch =
            rp_planner_global_micro_batch(planner, action->backward_micro_batch);
        forward_part(planner, action->stage, action->micro_batch, 0);
        if (action->backward_stage + 1 < planner->n_stages)
            depend_on_action(planner,
                             planner->backward_task[(gsize)(action->backward_stage + 1) *
                                                        planner->shape.micro_batches +
                                                    action->backward_micro_batch],
                             0);
        set_cost(planner, info->forward_ns + planner->stages[action->backward_stage].backward_ns,
                 0);
        break;
    }
    return rp_planner_end_task(planner);
}

void
rp_planner_compute_flush(RpPlanner *planner)
{
    rp_planner_begin_task(planner, RP_TASK_BARRIER,
                          rp_plan_host_lane(planner->plan, RP_HOST_LANE_OPTIMIZER), RP_NONE,
                          RP_NONE);
    for (guint g = 0; g < planner->options.gpus; g++)
        rp_planner_depend(planner, planner->last_compute[g],
                          rp_plan_lane(planner->plan, g, RP_LANE_COMPUTE), 0, 0);
    planner->barrier = rp_planner_end_task(planner);
}
