#include "core/plan/planner/weave.h"

#include <string.h>

#include "core/plan/planner/pace.h"

struct _RpWeave {
    const RpPlanJob *job;
    GArray **orders;      /* [device] RpAction */
    guint *next;          /* [device] in its order */
    RpActionTasks *tasks; /* [stage * M + m] of the call */
    RpActionTasks *late;  /* the call's before; unflushed, else %NULL */
    gboolean at_late;     /* whether the action that is looked at is one of @late */
    RpPace *pace;         /* RP_DISPATCH_FREE; else NULL */
    GArray *slot;         /* RpAction: the one that is dispatched */
};

RpWeave *
rp_weave_new(const RpPlanJob *job)
{
    const gsize actions = (gsize)job->n_stages * job->shape.micro_batches;
    RpWeave *weave = RP_JOB_NEW(job, RpWeave, 1);

    weave->job = job;
    weave->orders = RP_JOB_NEW(job, GArray *, job->shape.gpus);
    for (guint g = 0; g < job->shape.gpus; g++)
        weave->orders[g] = rp_job_array(job, sizeof(RpAction));
    weave->next = RP_JOB_NEW(job, guint, job->shape.gpus);
    weave->tasks = RP_JOB_NONE(job, RpActionTasks, actions);
    if (job->options.schedule->unflushed)
        weave->late = RP_JOB_NONE(job, RpActionTasks, actions);
    if (job->options.dispatch == RP_DISPATCH_FREE && !job->options.forward_only)
        weave->pace = rp_pace_new(job);
    weave->slot = rp_job_array(job, sizeof(RpAction));
    return weave;
}

void
rp_weave_catch_up(RpWeave *weave)
{
    if (weave->pace != NULL)
        rp_pace_catch_up(weave->pace);
}

double
rp_weave_time_ns(const RpWeave *weave)
{
    return rp_pace_time_ns(weave->pace);
}

static RpActionTasks *
tasks_of(const RpWeave *weave, guint32 stage, guint32 micro_batch)
{
    RpActionTasks *tasks = weave->at_late ? weave->late : weave->tasks;

    return &tasks[(gsize)stage * weave->job->shape.micro_batches + micro_batch];
}

RpActionTasks
rp_weave_tasks(const RpWeave *weave, guint32 stage, guint32 micro_batch)
{
    const RpActionTasks none = {RP_TASK_NONE, RP_TASK_NONE, RP_TASK_NONE};

    return stage < weave->job->n_stages ? *tasks_of(weave, stage, micro_batch) : none;
}

/* Bound: whether everything that the action reads has been appended. */
static gboolean
is_ready(const RpWeave *weave, const RpAction *action)
{
    const RpActionProducts *products = rp_action_products((RpActionKind)action->kind);
    const guint32 stage = rp_action_backward_stage(action);
    const guint32 m = rp_action_backward_micro_batch(action);

    const RpActionTasks own = rp_weave_tasks(weave, stage, m);

    if (products->output && action->stage > 0 &&
        rp_weave_tasks(weave, action->stage - 1, action->micro_batch).forward == RP_TASK_NONE)
        return FALSE;
    if (products->input_gradient)
        return own.forward != RP_TASK_NONE &&
               (stage + 1 == weave->job->n_stages ||
                rp_weave_tasks(weave, stage + 1, m).backward != RP_TASK_NONE);
    return products->output || own.backward != RP_TASK_NONE;
}

static const RpAction *
next_action(RpWeave *weave, guint g)
{
    const RpAction *action = weave->next[g] < weave->orders[g]->len
                                 ? &g_array_index(weave->orders[g], RpAction, weave->next[g])
                                 : NULL;

    weave->at_late = action != NULL && action->late != 0;
    return action;
}

static void
append_next(RpWeave *weave, guint g, const RpFidelityOps *fidelity, gpointer self)
{
    const RpAction *action = next_action(weave, g);
    const RpActionProducts *products = rp_action_products((RpActionKind)action->kind);
    const RpTaskId id = fidelity->append(self, g, action);

    if (products->output)
        tasks_of(weave, action->stage, action->micro_batch)->forward = id;
    RpActionTasks *backward =
        tasks_of(weave, rp_action_backward_stage(action), rp_action_backward_micro_batch(action));

    if (products->input_gradient)
        backward->backward = id;
    if (products->weight_gradient)
        backward->weights = id;
    weave->next[g]++;
}

/* The device of a dispatched slot, which runs next there. */
static guint
dispatch(RpWeave *weave, guint slot, guint round)
{
    const RpPlanJob *job = weave->job;

    if (weave->pace == NULL)
        return rp_schedule_gpu(job->options.schedule, &job->shape, slot, round);
    g_array_set_size(weave->slot, 0);
    rp_schedule_append_slot(&job->shape, slot, round, job->options.schedule->split_backward,
                            weave->slot);
    const guint g = rp_pace_dispatch(weave->pace, (const RpAction *)(void *)weave->slot->data);

    g_array_append_vals(weave->orders[g], weave->slot->data, weave->slot->len);
    return g;
}

/* Its actions, which are next on its device. */
static void
append_slot(RpWeave *weave, guint slot, guint round, const RpFidelityOps *fidelity, gpointer self)
{
    const guint g = dispatch(weave, slot, round);
    const RpAction *action;

    while ((action = next_action(weave, g)) != NULL && action->stage == slot &&
           action->micro_batch / weave->job->shape.round == round)
        append_next(weave, g, fidelity, self);
}

/* Dispatched: slot after slot, the order in which §3.2 dispatches them. Buffers alternate by slot
 * and round, so no later round of a group of GPUs may be appended before an earlier one. Groups
 * alternate, slot by slot: lanes of the host work for all. */
static void
append_slots(RpWeave *weave, const RpFidelityOps *fidelity, gpointer self)
{
    const RpPlanJob *job = weave->job;
    const guint replicas = MAX(1, job->shape.replicas);

    for (guint round = 0; round < job->rounds; round += replicas)
        for (guint slot = 0; slot < job->shape.stages; slot++)
            for (guint k = 0; k < replicas; k++)
                append_slot(weave, slot, round + k, fidelity, self);
}

/* Bound: merges the devices' orders into one in which everything comes after all that it needs.
 * Returns: %RP_NONE, or a device whose next action never comes to be ready */
static guint32
merge_orders(RpWeave *weave, const RpFidelityOps *fidelity, gpointer self)
{
    const guint gpus = weave->job->shape.gpus;
    guint32 waiting = 0; /* the first device that is not through */

    for (gboolean moved = TRUE; moved && waiting != RP_NONE;) {
        moved = FALSE;
        waiting = RP_NONE;
        for (guint g = 0; g < gpus; g++) {
            const RpAction *action;

            while ((action = next_action(weave, g)) != NULL && is_ready(weave, action)) {
                append_next(weave, g, fidelity, self);
                moved = TRUE;
            }
            if (action != NULL)
                waiting = MIN(waiting, g);
        }
    }
    return waiting;
}

gboolean
rp_weave_append(RpWeave *weave, const RpFidelityOps *fidelity, gpointer self, GError **error)
{
    const RpPlanJob *job = weave->job;
    guint32 waiting;

    if (weave->late != NULL) {
        RpActionTasks *late = weave->late;

        weave->late = weave->tasks;
        weave->tasks = late;
    }
    memset(weave->tasks, 0xff,
           (gsize)job->n_stages * job->shape.micro_batches * sizeof(RpActionTasks));
    for (guint g = 0; g < job->shape.gpus; g++) {
        g_array_set_size(weave->orders[g], 0);
        if (job->options.forward_only)
            rp_schedule_order_forward(job->options.schedule, &job->shape, g, weave->orders[g]);
        else if (weave->pace == NULL) /* else slots are appended as they are dispatched */
            rp_schedule_append_order(job->options.schedule, &job->shape, g, weave->orders[g]);
        weave->next[g] = 0;
    }
    if (job->partition->dispatched) {
        append_slots(weave, fidelity, self);
        return TRUE;
    }
    waiting = merge_orders(weave, fidelity, self);
    weave->at_late = FALSE;
    if (waiting == RP_NONE)
        return TRUE;
    g_set_error(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                "schedule %s cannot run with %u gpus and %u micro-batches: gpu %u waits before "
                "stage %u, micro-batch %u for an action that comes later on another gpu",
                job->options.schedule->name, job->shape.gpus, job->shape.micro_batches, waiting,
                next_action(weave, waiting)->stage, next_action(weave, waiting)->micro_batch);
    return FALSE;
}
