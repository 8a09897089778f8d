#include "core/plan/planner/interleave.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/plan/planner/pace.h"

struct _RpInterleave {
    const RpPlanJob *job;
    GArray **orders;      /* [device] RpAction */
    guint *next;          /* [device] in its order */
    RpActionTasks *tasks; /* [stage * M + m] of the call */
    RpActionTasks *late;  /* the call's before; unflushed, else %NULL */
    gboolean at_late;     /* whether the action that is looked at is one of @late */
    RpPace *pace;         /* RP_DISPATCH_FREE; else NULL */
    GArray *slot;         /* RpAction: the one that is dispatched */
};

RpInterleave *
rp_interleave_new(const RpPlanJob *job)
{
    const gsize actions = (gsize)job->n_stages * job->shape.micro_batches;
    RpInterleave *interleave = RP_JOB_NEW(job, RpInterleave, 1);

    interleave->job = job;
    interleave->orders = RP_JOB_NEW(job, GArray *, job->shape.gpus);
    for (guint g = 0; g < job->shape.gpus; g++)
        interleave->orders[g] = rp_job_array(job, sizeof(RpAction));
    interleave->next = RP_JOB_NEW(job, guint, job->shape.gpus);
    interleave->tasks = RP_JOB_NONE(job, RpActionTasks, actions);
    if (job->options.schedule->unflushed)
        interleave->late = RP_JOB_NONE(job, RpActionTasks, actions);
    if (job->options.dispatch == RP_DISPATCH_FREE && !job->options.forward_only)
        interleave->pace = rp_pace_new(job);
    interleave->slot = rp_job_array(job, sizeof(RpAction));
    return interleave;
}

void
rp_interleave_catch_up(RpInterleave *interleave)
{
    if (interleave->pace != NULL)
        rp_pace_catch_up(interleave->pace);
}

double
rp_interleave_time_ns(const RpInterleave *interleave)
{
    return rp_pace_time_ns(interleave->pace);
}

static RpActionTasks *
tasks_of(const RpInterleave *interleave, guint32 stage, guint32 micro_batch)
{
    RpActionTasks *tasks = interleave->at_late ? interleave->late : interleave->tasks;

    return &tasks[(gsize)stage * interleave->job->shape.micro_batches + micro_batch];
}

RpActionTasks
rp_interleave_tasks(const RpInterleave *interleave, guint32 stage, guint32 micro_batch)
{
    const RpActionTasks none = {RP_TASK_NONE, RP_TASK_NONE, RP_TASK_NONE};

    return stage < interleave->job->n_stages ? *tasks_of(interleave, stage, micro_batch) : none;
}

/* Bound: whether everything that the action reads has been appended. */
static gboolean
is_ready(const RpInterleave *interleave, const RpAction *action)
{
    const RpActionProducts *products = rp_action_products((RpActionKind)action->kind);
    const guint32 stage = rp_action_backward_stage(action);
    const guint32 m = rp_action_backward_micro_batch(action);

    const RpActionTasks own = rp_interleave_tasks(interleave, stage, m);

    if (products->output && action->stage > 0 &&
        rp_interleave_tasks(interleave, action->stage - 1, action->micro_batch).forward ==
            RP_TASK_NONE)
        return FALSE;
    if (products->input_gradient)
        return own.forward != RP_TASK_NONE &&
               (stage + 1 == interleave->job->n_stages ||
                rp_interleave_tasks(interleave, stage + 1, m).backward != RP_TASK_NONE);
    return products->output || own.backward != RP_TASK_NONE;
}

static const RpAction *
next_action(RpInterleave *interleave, guint g)
{
    const RpAction *action =
        interleave->next[g] < interleave->orders[g]->len
            ? &g_array_index(interleave->orders[g], RpAction, interleave->next[g])
            : NULL;

    interleave->at_late = action != NULL && action->late != 0;
    return action;
}

static void
append_next(RpInterleave *interleave, guint g, const RpFidelityOps *fidelity, gpointer self)
{
    const RpAction *action = next_action(interleave, g);
    const RpActionProducts *products = rp_action_products((RpActionKind)action->kind);
    const RpTaskId id = fidelity->append(self, g, action);

    if (products->output)
        tasks_of(interleave, action->stage, action->micro_batch)->forward = id;
    RpActionTasks *backward = tasks_of(interleave, rp_action_backward_stage(action),
                                       rp_action_backward_micro_batch(action));

    if (products->input_gradient)
        backward->backward = id;
    if (products->weight_gradient)
        backward->weights = id;
    interleave->next[g]++;
}

/* The device of a dispatched slot, which runs next there. */
static guint
dispatch(RpInterleave *interleave, guint slot, guint round)
{
    const RpPlanJob *job = interleave->job;

    if (interleave->pace == NULL)
        return rp_schedule_gpu(job->options.schedule, &job->shape, slot, round);
    g_array_set_size(interleave->slot, 0);
    rp_schedule_append_slot(&job->shape, slot, round, job->options.schedule->split_backward,
                            interleave->slot);
    const guint g =
        rp_pace_dispatch(interleave->pace, (const RpAction *)(void *)interleave->slot->data);

    g_array_append_vals(interleave->orders[g], interleave->slot->data, interleave->slot->len);
    return g;
}

/* Its actions, which are next on its device. */
static void
append_slot(RpInterleave *interleave, guint slot, guint round, const RpFidelityOps *fidelity,
            gpointer self)
{
    const guint g = dispatch(interleave, slot, round);
    const RpAction *action;

    while ((action = next_action(interleave, g)) != NULL && action->stage == slot &&
           action->micro_batch / interleave->job->shape.round == round)
        append_next(interleave, g, fidelity, self);
}

/* Dispatched: slot after slot, the order in which §3.2 dispatches them. Buffers alternate by slot
 * and round, so no later round of a group of GPUs may be appended before an earlier one. Groups
 * alternate, slot by slot: lanes of the host work for all. */
static void
append_slots(RpInterleave *interleave, const RpFidelityOps *fidelity, gpointer self)
{
    const RpPlanJob *job = interleave->job;
    const guint replicas = MAX(1, job->shape.replicas);

    for (guint round = 0; round < job->rounds; round += replicas)
        for (guint slot = 0; slot < job->shape.stages; slot++)
            for (guint k = 0; k < replicas; k++)
                append_slot(interleave, slot, round + k, fidelity, self);
}

/* Bound: merges the devices' orders into one in which everything comes after all that it needs.
 * Returns: %RP_NONE, or a device whose next action never comes to be ready */
static guint32
merge_orders(RpInterleave *interleave, const RpFidelityOps *fidelity, gpointer self)
{
    const guint gpus = interleave->job->shape.gpus;
    guint32 waiting = 0; /* the first device that is not through */

    for (gboolean moved = TRUE; moved && waiting != RP_NONE;) {
        moved = FALSE;
        waiting = RP_NONE;
        for (guint g = 0; g < gpus; g++) {
            const RpAction *action;

            while ((action = next_action(interleave, g)) != NULL && is_ready(interleave, action)) {
                append_next(interleave, g, fidelity, self);
                moved = TRUE;
            }
            if (action != NULL)
                waiting = MIN(waiting, g);
        }
    }
    return waiting;
}

gboolean
rp_interleave_append(RpInterleave *interleave, const RpFidelityOps *fidelity, gpointer self,
                     GError **error)
{
    const RpPlanJob *job = interleave->job;

    if (interleave->late != NULL) {
        RpActionTasks *late = interleave->late;

        interleave->late = interleave->tasks;
        interleave->tasks = late;
    }
    memset(interleave->tasks, 0xff,
           (gsize)job->n_stages * job->shape.micro_batches * sizeof(RpActionTasks));
    for (guint g = 0; g < job->shape.gpus; g++) {
        g_array_set_size(interleave->orders[g], 0);
        if (job->options.forward_only)
            rp_schedule_order_forward(job->options.schedule, &job->shape, g, interleave->orders[g]);
        else if (interleave->pace == NULL) /* else slots are appended as they are dispatched */
            rp_schedule_append_order(job->options.schedule, &job->shape, g, interleave->orders[g]);
        interleave->next[g] = 0;
    }
    if (job->partition->dispatched) {
        append_slots(interleave, fidelity, self);
        return TRUE;
    }
    guint32 waiting = merge_orders(interleave, fidelity, self);
    interleave->at_late = FALSE;
    if (waiting == RP_NONE)
        return TRUE;
    return rp_fail(error, RP_SCHEDULE_ERROR, RP_SCHEDULE_ERROR_DEADLOCK,
                   "schedule %s cannot run with %u gpus and %u micro-batches: gpu %u waits before "
                   "stage %u, micro-batch %u for an action that comes later on another gpu",
                   job->options.schedule->name, job->shape.gpus, job->shape.micro_batches, waiting,
                   next_action(interleave, waiting)->stage,
                   next_action(interleave, waiting)->micro_batch);
}
