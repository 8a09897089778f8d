/* Weaves the devices' orders of actions into one stream that can run from first to last. */
#include "core/plan/planner-private.h"

/* Bound: whether everything that the action reads has been appended. */
static gboolean
forward_ready(const RpPlanner *planner, guint32 stage, guint32 m)
{
    return stage == 0 ||
           planner->forward_task[(gsize)(stage - 1) * planner->shape.micro_batches + m] !=
               RP_TASK_NONE;
}

static gboolean
backward_ready(const RpPlanner *planner, guint32 stage, guint32 m)
{
    gsize micro_batches = planner->shape.micro_batches;

    return planner->forward_task[stage * micro_batches + m] != RP_TASK_NONE &&
           (stage + 1 == planner->n_stages ||
            planner->backward_task[(stage + 1) * micro_batches + m] != RP_TASK_NONE);
}

static gboolean
action_ready(const RpPlanner *planner, const RpAction *action)
{
    switch ((RpActionKind)action->kind) {
    case RP_ACTION_FORWARD:
    case RP_ACTION_FUSED:
        return forward_ready(planner, action->stage, action->micro_batch);
    case RP_ACTION_BACKWARD:
    case RP_ACTION_INPUT_GRADIENT:
        return backward_ready(planner, action->stage, action->micro_batch);
    case RP_ACTION_WEIGHT_GRADIENT:
        return planner->backward_task[(gsize)action->stage * planner->shape.micro_batches +
                                      action->micro_batch] != RP_TASK_NONE;
    case RP_ACTION_OVERLAP:
        return forward_ready(planner, action->stage, action->micro_batch) &&
               backward_ready(planner, action->backward_stage, action->backward_micro_batch);
    }
    return FALSE;
}

static void
note_done(RpPlanner *planner, const RpAction *action, RpTaskId id)
{
    gsize m = planner->shape.micro_batches;
    gsize at = action->stage * m + action->micro_batch;

    switch ((RpActionKind)action->kind) {
    case RP_ACTION_FORWARD:
        planner->forward_task[at] = id;
        break;
    case RP_ACTION_FUSED:
        planner->forward_task[at] = id;
        planner->backward_task[at] = id;
        break;
    case RP_ACTION_BACKWARD:
    case RP_ACTION_INPUT_GRADIENT:
        planner->backward_task[at] = id;
        break;
    case RP_ACTION_WEIGHT_GRADIENT:
        break;
    case RP_ACTION_OVERLAP:
        planner->forward_task[at] = id;
        planner->backward_task[action->backward_stage * m + action->backward_micro_batch] = id;
        break;
    }
}

static void
append_action(RpPlanner *planner, guint gpu, const RpAction *action)
{
    RpTaskId id = planner->options.fidelity == RP_FIDELITY_FULL
                      ? rp_planner_full_action(planner, gpu, action)
                      : rp_planner_compute_action(planner, gpu, action);

    planner->last_compute[gpu] = id;
    note_done(planner, action, id);
}

static void
set_deadlock_error(const RpPlanner *planner, GError **error)
{
    for (guint g = 0; g < planner->options.gpus; g++) {
        if (planner->cursors[g] >= planner->orders[g]->len)
            continue;
        const RpAction *action = &g_array_index(planner->orders[g], RpAction, planner->cursors[g]);

        g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                    "schedule %s cannot run with %u gpus and %u micro-batches: gpu %u waits before "
                    "stage %u, micro-batch %u for an action that comes later on another gpu",
                    planner->options.schedule->name, planner->options.gpus,
                    planner->shape.micro_batches, g, action->stage, action->micro_batch);
        return;
    }
}

/* Dispatched: slot after slot, the order in which §3.2 dispatches them. Buffers are taken in turns
 * by slot and round, so no later round may be appended before an earlier one. */
static void
append_slots(RpPlanner *planner)
{
    for (guint round = 0; round < planner->rounds; round++) {
        for (guint slot = 0; slot < planner->n_stages; slot++) {
            guint gpu = rp_schedule_gpu(planner->options.schedule, &planner->shape, slot, round);

            for (guint k = 0; k < planner->shape.round; k++)
                append_action(
                    planner, gpu,
                    &g_array_index(planner->orders[gpu], RpAction, planner->cursors[gpu]++));
        }
    }
}

/* Bound: merges the devices' orders into one in which everything comes after what it needs. */
static gboolean
weave(RpPlanner *planner, GError **error)
{
    gsize left = 0;

    for (guint g = 0; g < planner->options.gpus; g++)
        left += planner->orders[g]->len;
    while (left > 0) {
        gsize before = left;

        for (guint g = 0; g < planner->options.gpus; g++) {
            const GArray *order = planner->orders[g];

            while (planner->cursors[g] < order->len) {
                const RpAction *action = &g_array_index(order, RpAction, planner->cursors[g]);

                if (!action_ready(planner, action))
                    break;
                append_action(planner, g, action);
                planner->cursors[g]++;
                left--;
            }
        }
        if (left == before) {
            set_deadlock_error(planner, error);
            return FALSE;
        }
    }
    return TRUE;
}

gboolean
rp_planner_append_actions(RpPlanner *planner, GError **error)
{
    if (!planner->options.schedule->dispatched)
        return weave(planner, error);
    append_slots(planner);
    return TRUE;
}
