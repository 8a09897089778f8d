/* `compute` fidelity: actions and hops. One task an action. */
#include "core/plan/planner/weave.h"

typedef struct {
    const RpPlanJob *job;
    const RpWeave *weave;
    guint32 *input_stage;  /* [stage] dispatched backward: the forward slot that makes its input */
    guint32 *weight_stage; /* [stage] dispatched: the backward slot that is the last to make
                              gradients of its layers */
    RpTaskId *last_backward[2]; /* [stage] of iterations T-1, T-2 */
} Compute;

/* Forward slot whose last layer is the one before @layer; RP_NONE for the first layer. */
static guint32
slot_making_input(const RpPartition *partition, guint layer)
{
    guint32 s = 0;

    while (s < partition->n_forward &&
           layer > partition->forward[s].first + partition->forward[s].count)
        s++;
    return layer > 0 && s < partition->n_forward ? s : RP_NONE;
}

static guint32
backward_slot_of_layer(const RpPartition *partition, guint layer)
{
    for (guint b = 0; b < partition->n_backward; b++)
        if (layer >= partition->backward[b].first)
            return partition->n_forward + b;
    return RP_NONE;
}

static gpointer
create(const RpPlanJob *job, const RpWeave *weave)
{
    Compute *self = RP_JOB_NEW(job, Compute, 1);

    self->job = job;
    self->weave = weave;
    self->input_stage = RP_JOB_NONE(job, guint32, job->n_stages);
    self->weight_stage = RP_JOB_NONE(job, guint32, job->n_stages);
    for (guint i = 0; i < 2; i++)
        self->last_backward[i] = RP_JOB_NONE(job, RpTaskId, job->n_stages);
    for (guint32 s = 0; job->partition->dispatched && s < job->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(job->plan, s);

        if (stage->runs_backward)
            self->input_stage[s] = slot_making_input(job->partition, stage->layers.first);
        /* backward runs from the last layer to the first: the first layer's gradient is the last */
        if (stage->runs_forward)
            self->weight_stage[s] = backward_slot_of_layer(job->partition, stage->layers.first);
    }
    return self;
}

/* Synchronous: the flush between two iterations. */
static void
begin_call(gpointer data)
{
    const RpPlanJob *job = ((Compute *)data)->job;

    if (job->iteration > 0 && job->call == 0 && !job->options.async)
        rp_builder_barrier(job->builder, job->iteration);
}

/* The end of a producer's action, one hop away if it ran on another device. */
static void
wait_for(const Compute *self, guint device, RpTaskId producer, guint32 phase)
{
    const RpPlanJob *job = self->job;

    if (producer == RP_TASK_NONE)
        return;

    const guint32 lane = rp_plan_task(job->plan, producer)->lane;
    const gboolean far = lane != rp_plan_lane(job->plan, device, RP_LANE_COMPUTE);

    rp_builder_wait(job->builder, producer, lane,
                    far ? (guint32)MIN(job->profile->links.hop_ns, G_MAXUINT32 - 1) : 0, phase);
}

/* Staleness 1: the weights that a forward slot of T reads come from the gradients of T-2. */
static void
wait_for_weights(const Compute *self, guint32 stage)
{
    const RpPlanJob *job = self->job;
    const guint32 maker = self->weight_stage[stage];

    if (!job->options.async || job->iteration < 2 || maker == RP_NONE)
        return;

    const RpTaskId last = self->last_backward[1][maker];
    if (last != RP_TASK_NONE && last >= rp_plan_first_id(job->plan))
        rp_builder_wait(job->builder, last, rp_plan_task(job->plan, last)->lane, 0, 0);
}

static RpTaskId
append(gpointer data, guint device, const RpAction *action)
{
    const Compute *self = data;
    const RpPlanJob *job = self->job;
    const RpActionProducts *products = rp_action_products(action);
    const gboolean fused = action->kind == RP_ACTION_FUSED;

    rp_job_begin_action(job, device, action);
    /* the first action of a device in a synchronous iteration: all devices have ended the last */
    rp_builder_wait_barrier(job->builder, TRUE);
    if (products->output) {
        wait_for(self, device,
                 rp_weave_tasks(self->weave, action->stage - 1, action->micro_batch).forward,
                 fused && job->promises->early_fused ? 1 : 0);
        wait_for_weights(self, action->stage);
    }
    if (products->input_gradient && !fused) { /* bound: its F stands before it in its lane */
        const guint32 stage = rp_action_backward_stage(action);
        const guint32 m = rp_action_backward_micro_batch(action);
        const guint32 phase = rp_job_leads(job, action) ? 1 : 0;

        wait_for(self, device,
                 rp_weave_tasks(self->weave, rp_job_gradient_maker(job, stage), m).backward, phase);
        if (phase == 1)
            wait_for(self, device, rp_weave_tasks(self->weave, self->input_stage[stage], m).forward,
                     0);
    }
    return rp_builder_end(job->builder);
}

static void
end_iteration(gpointer data)
{
    Compute *self = data;
    RpTaskId *oldest = self->last_backward[1];

    self->last_backward[1] = self->last_backward[0];
    self->last_backward[0] = oldest;
    for (guint32 s = 0; s < self->job->n_stages; s++)
        oldest[s] = rp_weave_tasks(self->weave, s, self->job->shape.micro_batches - 1).backward;
}

const RpFidelityOps rp_fidelity_compute = {
    .create = create,
    .begin_call = begin_call,
    .append = append,
    .end_iteration = end_iteration,
};
