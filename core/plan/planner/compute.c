/* `compute` fidelity: actions and hops. One task an action. */
#include "core/plan/planner/interleave.h"
#include "core/profile/cards.h"

typedef struct {
    const RpPlanJob *job;
    const RpInterleave *interleave;
    guint32
        *input_maker; /* [layer] dispatched: the slot that sends on the layer's input; RP_NONE */
    guint32 *weight_maker;      /* [layer] dispatched: the backward slot that makes its gradients */
    guint last;                 /* backwards of a stage that weights wait for */
    RpTaskId *last_backward[2]; /* [stage * last] of iterations T-1, T-2 */
} Compute;

static gpointer
create(const RpPlanJob *job, const RpInterleave *interleave)
{
    Compute *self = RP_JOB_NEW(job, Compute, 1);

    self->job = job;
    self->interleave = interleave;
    self->input_maker = RP_JOB_NONE(job, guint32, job->profile->n_layers + 1);
    self->weight_maker = RP_JOB_NONE(job, guint32, job->profile->n_layers);
    /* in rotation the last round's backward is the last; else each round ends when its GPU is
     * through, and no round's W waits for another's */
    self->last = job->options.dispatch == RP_DISPATCH_FREE ||
                         job->options.schedule->split_backward || job->n_stages < job->shape.gpus ||
                         job->shape.replicas > 1
                     ? job->rounds
                     : 1;
    for (guint i = 0; i < 2; i++)
        self->last_backward[i] = RP_JOB_NONE(job, RpTaskId, (gsize)job->n_stages * self->last);
    for (guint32 s = 0; job->partition->dispatched && s < job->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(job->plan, s);

        for (guint l = stage->layers.first; l < stage->layers.first + stage->layers.count; l++)
            if (stage->runs_backward)
                self->weight_maker[l] = s;
            else
                self->input_maker[l + 1] = s;
    }
    return self;
}

/* Synchronous: the flush between two iterations. */
static void
begin_call(gpointer data)
{
    const RpPlanJob *job = ((Compute *)data)->job;

    if (job->iteration > 0 && job->call == 0 && job->modes->staleness == 0)
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
    const guint32 from = rp_plan_lane_device(job->plan, lane);
    const gint64 hop_ns = from != device ? MAX(rp_profile_of(job->profile, from)->links.hop_ns,
                                               rp_profile_of(job->profile, device)->links.hop_ns)
                                         : 0;

    rp_builder_wait(job->builder, producer, lane,
                    (guint32)MIN(hop_ns / job->shape.slices, G_MAXUINT32 - 1), phase);
}

/* All rounds' backwards of @maker, two iterations ago. */
static void
wait_for_maker(const Compute *self, guint32 maker)
{
    const RpPlanJob *job = self->job;

    for (guint i = 0; i < self->last; i++) {
        const RpTaskId last = self->last_backward[1][maker * self->last + i];

        if (last != RP_TASK_NONE && last >= rp_plan_first_id(job->plan))
            rp_builder_wait(job->builder, last, rp_plan_task(job->plan, last)->lane, 0, 0);
    }
}

/* Staleness 1: the weights that a forward slot of T reads come from the gradients of T-2. */
static void
wait_for_weights(const Compute *self, guint32 stage)
{
    const RpPlanJob *job = self->job;
    const RpInterval *layers = &rp_plan_stage(job->plan, stage)->layers;
    /* backward runs from the last layer to the first: the first layer's gradient is the last; split:
     * no slot's W waits for another's */
    const guint n = job->options.schedule->split_backward ? layers->count : 1;
    guint32 before = RP_NONE;

    if (job->modes->staleness == 0 || job->iteration < 2)
        return;
    for (guint l = layers->first; l < layers->first + n; l++) {
        const guint32 maker = self->weight_maker[l];

        if (maker != before && maker != RP_NONE)
            wait_for_maker(self, maker);
        before = maker;
    }
}

static RpTaskId
append(gpointer data, guint device, const RpAction *action)
{
    const Compute *self = data;
    const RpPlanJob *job = self->job;
    const RpActionProducts *products = rp_action_products((RpActionKind)action->kind);
    const gboolean fused = rp_job_is_fused(job, action->stage);

    rp_job_begin_action(job, device, action);
    /* the first action of a device in a synchronous iteration: all devices have ended the last */
    rp_builder_wait_barrier(job->builder, TRUE);
    if (products->output) {
        wait_for(
            self, device,
            rp_interleave_tasks(self->interleave, action->stage - 1, action->micro_batch).forward,
            action->kind == RP_ACTION_FUSED && job->modes->published ? 1 : 0);
        wait_for_weights(self, action->stage);
    }
    if (products->input_gradient && !fused) { /* bound: its F stands before it in its lane */
        const guint32 stage = rp_action_backward_stage(action);
        const guint32 m = rp_action_backward_micro_batch(action);
        const guint32 phase = rp_job_leads(job, action) ? 1 : 0;
        const guint32 input = self->input_maker[rp_plan_stage(job->plan, stage)->layers.first];

        wait_for(
            self, device,
            rp_interleave_tasks(self->interleave, rp_job_gradient_maker(job, stage), m).backward,
            phase);
        if (phase == 1)
            wait_for(self, device, rp_interleave_tasks(self->interleave, input, m).forward, 0);
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
        for (guint i = 0; i < self->last; i++)
            oldest[s * self->last + i] =
                rp_interleave_tasks(self->interleave, s,
                                    self->job->shape.micro_batches - self->job->shape.slices -
                                        i * self->job->shape.round)
                    .weights;
}

const RpFidelityOps rp_fidelity_compute = {
    .create = create,
    .begin_call = begin_call,
    .append = append,
    .end_iteration = end_iteration,
};
