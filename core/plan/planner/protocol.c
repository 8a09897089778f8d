/* Asynchronous, events, one pass (two weight buffers, version T in buffer T mod 2):
 *
 *   gpus   |-- T reads v(T-2) --|-- T+1 reads v(T-1) --|-- T+2 reads v(T) --|
 *   host             ...step T-1|  |step T: writes v(T)|
 *
 * Lean keeps one buffer: the copy of v(T-1) into it waits until T has uploaded its last stage.
 *
 * Where neither clipping nor skipping needs the norm first, a layer steps as soon as its gradient
 * is home, beside the devices' work on other layers:
 *
 *   gradient-down  |--layers 6, 7--|--layers 4, 5--|
 *   gated                                           |norm|step 0|step 1| ... |step 7|
 *   at once                        |step 7|step 6|  |step 5|step 4| ... |norm|
 */
#include "core/plan/planner/protocol.h"

/* A protocol. */
typedef struct {
    /* All gradients of @stage are home; may be %NULL. */
    void (*home)(RpProtocol *self, guint32 stage, guint32 iteration);
    /* All actions of the iteration stand. */
    void (*end)(RpProtocol *self, guint32 iteration);
} Ops;

/* When the 16-bit weights are written that a step does not write itself. */
typedef enum { COPIES_NONE, COPIES_WITH_STEP, COPIES_LATE } Copies;

struct _RpProtocol {
    const RpPlanJob *job;
    const Ops *protocol;
    Copies copies;
    guint departures;        /* of all stages, one iteration */
    guint gradients_left[2]; /* [iteration % 2] departures that are not all appended */
    guint *layer_left[2];    /* [iteration % 2][layer] the same of one layer */
    guint32 *next_copy;      /* [layer] first iteration whose parameter copy is not appended */
};

static const RpPlanLayer *
place_of(const RpProtocol *self, guint layer)
{
    return rp_plan_layer(self->job->plan, layer);
}

static gboolean
is_trained(const RpProtocol *self, guint layer)
{
    return place_of(self, layer)->gradients[0] != RP_NONE;
}

/* The layer whose gradients of a tied matrix are added to those of @layer; RP_NONE. */
static guint
tied_layer(const RpProtocol *self, guint layer)
{
    const guint last = self->job->profile->n_layers - 1;

    return last > layer && place_of(self, last)->tied_to == layer && is_trained(self, last)
               ? last
               : RP_NONE;
}

static RpTask *
begin_task(const RpProtocol *self, RpTaskKind kind, guint32 layer, guint32 iteration)
{
    RpTask *task = rp_builder_begin(self->job->builder, kind, 0, RP_NONE, iteration);

    task->layer = layer;
    return task;
}

/* All rounds of them; @copied: their copies. */
static void
read_gradients(const RpProtocol *self, guint layer, gboolean copied)
{
    const RpPlanLayer *place = place_of(self, layer);

    if (copied)
        rp_builder_read(self->job->builder, place->copied, RP_ROLE_HOST);
    for (guint i = 0; !copied && i < RP_MOST_ROUNDS_APART; i++)
        rp_builder_read(self->job->builder, place->gradients[i], RP_ROLE_HOST);
}

static void
append_parameter_copy(RpProtocol *self, guint layer, guint32 iteration)
{
    const RpPlanJob *job = self->job;

    /* a run that is resumed begins with copies of the iteration before it */
    if (!is_trained(self, layer) || iteration + 1 < job->promises->first_iteration ||
        iteration < self->next_copy[layer])
        return;
    self->next_copy[layer] = iteration + 1;
    begin_task(self, RP_TASK_PARAMETER_COPY, layer, iteration)->bytes =
        rp_traffic_parameter_copy(job, layer);
    rp_builder_read(job->builder, place_of(self, layer)->optimizer, RP_ROLE_HOST);
    rp_builder_write(job->builder, place_of(self, layer)->weights[0], RP_ROLE_HOST);
    rp_builder_end(job->builder);
}

/* Asynchronous without a second buffer: v(T-1) goes into the one buffer once T has uploaded what it
 * reads. Layers in the order in which backward is through with them. */
static void
append_late_copies(RpProtocol *self, guint32 iteration)
{
    if (self->copies != COPIES_LATE || iteration == 0)
        return;
    for (guint l = self->job->profile->n_layers; l-- > 0;)
        append_parameter_copy(self, l, iteration - 1);
}

static void
append_gradient_copies(RpProtocol *self, guint32 iteration)
{
    const RpPlanJob *job = self->job;

    for (guint l = 0; l < job->profile->n_layers; l++) {
        if (!is_trained(self, l))
            continue;
        begin_task(self, RP_TASK_GRADIENT_COPY, l, iteration)->bytes =
            rp_traffic_gradient_copy(job, l);
        read_gradients(self, l, FALSE);
        rp_builder_write(job->builder, place_of(self, l)->copied, RP_ROLE_HOST);
        rp_builder_end(job->builder);
    }
}

/* Gated: the decision on the iteration, before its steps. Otherwise its end. */
static void
append_norm(RpProtocol *self, guint32 iteration)
{
    const RpPlanJob *job = self->job;
    RpTask *task = begin_task(self, RP_TASK_NORM, RP_NONE, iteration);

    for (guint l = 0; job->promises->gated && l < job->profile->n_layers; l++) {
        if (!is_trained(self, l))
            continue;
        task->bytes += rp_traffic_norm(job, l);
        read_gradients(self, l, FALSE);
    }
    rp_builder_update(job->builder, rp_plan_decision(job->plan, iteration), RP_ROLE_DECISION);
    rp_builder_end(job->builder);
}

static void
append_step(RpProtocol *self, guint layer, guint32 iteration)
{
    const RpPlanJob *job = self->job;
    const RpPlanPromises *promises = job->promises;
    const RpPlanLayer *place = place_of(self, layer);
    const guint tied = tied_layer(self, layer);

    if (!is_trained(self, layer))
        return;
    begin_task(self, RP_TASK_OPTIMIZER_STEP, layer, iteration)->bytes =
        rp_traffic_step(job, layer, tied);
    read_gradients(self, layer, promises->gradient_copies);
    if (tied != RP_NONE)
        read_gradients(self, tied, promises->gradient_copies);
    rp_builder_update(job->builder, place->optimizer, RP_ROLE_HOST);
    if (self->copies == COPIES_NONE)
        rp_builder_write(job->builder, place->weights[promises->double_weights ? iteration % 2 : 0],
                         RP_ROLE_HOST);
    rp_builder_access(job->builder, rp_plan_decision(job->plan, iteration),
                      promises->gated ? RP_ACCESS_READ : RP_ACCESS_READ | RP_ACCESS_WRITE,
                      RP_ROLE_DECISION, 0);
    rp_builder_end(job->builder);
    if (self->copies == COPIES_WITH_STEP)
        append_parameter_copy(self, layer, iteration);
}

/* The @i-th layer to step. Synchronous: the first layer first, which the next forward needs first.
 * Asynchronous: the last layer first, since its gradients are the first that the running iteration
 * overwrites; a layer that it is tied to comes right after it, for the same reason. One stage has
 * no gradient home before all of the iteration is computed, and uploads from the first layer on. */
static guint
step_order(const RpProtocol *self, guint i)
{
    const guint n = self->job->profile->n_layers;

    if (!self->job->options.async || self->job->n_stages == 1)
        return i;
    if (tied_layer(self, 0) == RP_NONE || i == 0)
        return n - 1 - i;
    return i == 1 ? 0 : n - i;
}

static void
append_steps(RpProtocol *self, guint32 iteration)
{
    for (guint i = 0; i < self->job->profile->n_layers; i++)
        append_step(self, step_order(self, i), iteration);
}

static void
home_gated(RpProtocol *self, guint32 stage, guint32 iteration)
{
    (void)stage;
    if (self->gradients_left[iteration % 2] > 0)
        return;
    append_norm(self, iteration);
    /* the step overwrites the full-precision weights that the copy reads */
    append_late_copies(self, iteration);
    append_steps(self, iteration);
}

/* The step of a layer and the copy before it, once all gradients that it reads are home. */
static void
step_if_home(RpProtocol *self, guint layer, guint32 iteration)
{
    const guint *left = self->layer_left[iteration % 2];
    const guint tied = tied_layer(self, layer);

    if (left[layer] > 0 || (tied != RP_NONE && left[tied] > 0))
        return;
    /* all of the iteration's uploads of the layer stand before its gradients */
    if (self->copies == COPIES_LATE && iteration > 0)
        append_parameter_copy(self, layer, iteration - 1);
    append_step(self, layer, iteration);
}

static void
home_at_once(RpProtocol *self, guint32 stage, guint32 iteration)
{
    const RpInterval layers = rp_plan_stage(self->job->plan, stage)->layers;

    for (guint i = 0; i < layers.count; i++) {
        const guint layer = layers.first + (self->job->options.async ? layers.count - 1 - i : i);
        const guint tied = place_of(self, layer)->tied_to;

        step_if_home(self, layer, iteration);
        if (tied != RP_NONE && (tied < layers.first || tied >= layers.first + layers.count))
            step_if_home(self, tied, iteration);
    }
    if (self->gradients_left[iteration % 2] == 0)
        append_norm(self, iteration);
}

static void
end_events(RpProtocol *self, guint32 iteration)
{
    if (self->departures == 0)
        append_norm(self, iteration);
    append_late_copies(self, iteration);
}

static void
end_blocking(RpProtocol *self, guint32 iteration)
{
    append_norm(self, iteration);
    append_late_copies(self, iteration);
    append_gradient_copies(self, iteration);
    if (self->copies == COPIES_WITH_STEP)
        append_steps(self, iteration);
    rp_builder_barrier(self->job->builder, iteration);
    if (self->copies == COPIES_LATE)
        append_steps(self, iteration);
}

RpProtocol *
rp_protocol_new(const RpPlanJob *job)
{
    static const Ops gated = {home_gated, end_events}, at_once = {home_at_once, end_events},
                     blocking = {NULL, end_blocking};
    const RpPlanPromises *promises = job->promises;
    RpProtocol *self = RP_JOB_NEW(job, RpProtocol, 1);

    self->job = job;
    self->protocol = promises->gradient_copies ? &blocking : promises->gated ? &gated : &at_once;
    self->copies = !promises->parameter_copies ? COPIES_NONE
                   : promises->async           ? COPIES_LATE
                                               : COPIES_WITH_STEP;
    self->next_copy = RP_JOB_NEW(job, guint32, job->profile->n_layers);
    for (guint i = 0; i < 2; i++)
        self->layer_left[i] = RP_JOB_NEW(job, guint, job->profile->n_layers);
    for (guint s = 0; s < job->n_stages; s++)
        if (rp_plan_stage(job->plan, s)->gradients.n_chunks > 0)
            self->departures += job->departures;
    return self;
}

void
rp_protocol_begin_iteration(RpProtocol *self)
{
    const RpPlanJob *job = self->job;
    guint *left = self->layer_left[job->iteration % 2];

    self->gradients_left[job->iteration % 2] = self->departures;
    for (guint s = 0; s < job->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(job->plan, s);

        for (guint l = 0; stage->gradients.n_chunks > 0 && l < stage->layers.count; l++)
            left[stage->layers.first + l] = job->departures;
    }
}

gboolean
rp_protocol_note_home(RpProtocol *self, guint32 stage, guint32 iteration)
{
    const RpInterval layers = rp_plan_stage(self->job->plan, stage)->layers;
    guint *left = self->layer_left[iteration % 2];

    self->gradients_left[iteration % 2]--;
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        left[l]--;
    return left[layers.first] == 0;
}

void
rp_protocol_append_home(RpProtocol *self, guint32 stage, guint32 iteration)
{
    if (self->protocol->home != NULL)
        self->protocol->home(self, stage, iteration);
}

void
rp_protocol_end_iteration(RpProtocol *self)
{
    self->protocol->end(self, self->job->iteration);
}

void
rp_protocol_finish(RpProtocol *self)
{
    append_late_copies(self, self->job->iteration);
}
