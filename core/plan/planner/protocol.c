/* Asynchronous, events, one pass (two weight buffers, version T in buffer T mod 2):
 *
 *   gpus   |-- T reads v(T-2) --|-- T+1 reads v(T-1) --|-- T+2 reads v(T) --|
 *   host             ...step T-1|  |step T: writes v(T)|
 *
 * Lean keeps one buffer: the copy of v(T-1) into it waits until T has uploaded its last stage.
 *
 * Where neither clipping nor skipping needs the norm first, a layer steps as soon as its gradient
 * is on the host, beside the devices' work on other layers:
 *
 *   gradient-down  |--layers 6, 7--|--layers 4, 5--|
 *   gated                                           |norm|step 0|step 1| ... |step 7|
 *   at once                        |step 7|step 6|  |step 5|step 4| ... |norm|
 *
 * Early: squares of a layer are summed at once, and the weights of some are written as they are if
 * nothing is clipped, and nothing else is (early.c). Then their steps have nothing to do, or write
 * weights and state as if no early step had been. Where they had nothing to do, the state follows
 * while the next iteration computes:
 *
 *   gradient-down  |--layers 6, 7--|--layers 4, 5--| ...
 *   early             |early 6|early 7|squares 4| ... |squares 0|norm|step 0|step 1| ... |late 6|late 7|
 *   parameter-up                                                            |0|    |1| ... |6|7|
 */
#include "core/plan/planner/protocol.h"

#include "core/plan/job/exchange.h"

/* A protocol. */
typedef struct {
    /* Called when all gradients of @layers are on the host; may be %NULL. */
    void (*home)(RpProtocol *self, RpInterval layers, guint32 iteration);
    /* All actions of the iteration stand. */
    void (*end)(RpProtocol *self, guint32 iteration);
} Ops;

/* When the 16-bit weights are written that a step does not write itself. */
typedef enum { COPIES_NONE, COPIES_WITH_STEP, COPIES_LATE } Copies;

struct _RpProtocol {
    const RpPlanJob *job;
    const Ops *protocol;
    Copies copies;
    guint trained;        /* layers */
    guint layers_left[2]; /* [iteration % 2] of them, whose gradients are not all appended */
    guint *layer_left[2]; /* [iteration % 2][layer] departures that are not */
    gboolean *early;      /* [layer] its early step writes weights; at once: it is not deferred */
    guint32 *next_copy;   /* [layer] first iteration whose parameter copy is not appended */
};

static const RpPlanLayer *
place_of(const RpProtocol *self, guint layer)
{
    return rp_plan_layer(self->job->plan, layer);
}

/* A head whose tied matrix alone is trained has gradients, and nothing of its own to step. */
static gboolean
is_stepped(const RpProtocol *self, guint layer)
{
    return place_of(self, layer)->weights[0] != RP_NONE;
}

/* The layer whose gradients of a tied matrix are added to those of @layer; RP_NONE. */
static guint
tied_layer(const RpProtocol *self, guint layer)
{
    return rp_plan_tied_from(self->job->plan, layer);
}

/* All rounds' gradients; with several servers, their sum. @copied: their copies. */
static void
read_gradients(const RpProtocol *self, guint layer, gboolean copied)
{
    const RpPlanLayer *place = place_of(self, layer);

    if (self->job->modes->servers > 1) {
        rp_builder_read(self->job->builder, place->reduced, RP_ROLE_HOST);
        return;
    }
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
    if (!is_stepped(self, layer) || iteration + 1 < rp_plan_first_iteration(job->plan) ||
        iteration < self->next_copy[layer])
        return;
    self->next_copy[layer] = iteration + 1;
    rp_job_begin_layer_task(self->job, RP_TASK_PARAMETER_COPY, layer, iteration)->bytes =
        rp_traffic_parameter_copy(job, layer);
    rp_builder_read(job->builder, place_of(self, layer)->optimizer, RP_ROLE_HOST);
    rp_builder_write(job->builder, place_of(self, layer)->weights[0], RP_ROLE_HOST);
    rp_builder_end(job->builder);
    rp_exchange_append_gather(job, layer, place_of(self, layer)->weights[0], iteration);
}

/* Asynchronous without a second buffer: v(T-1) goes into the one buffer once T has uploaded the
 * version before. Layers stand in the order in which backward is through with them. */
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
        if (!rp_job_is_trained(self->job, l))
            continue;
        rp_job_begin_layer_task(self->job, RP_TASK_GRADIENT_COPY, l, iteration)->bytes =
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
    RpTask *task = rp_job_begin_layer_task(self->job, RP_TASK_NORM, RP_NONE, iteration);

    for (guint l = 0; l < job->profile->n_layers; l++) {
        if (!rp_modes_wait_for_norm(job->modes) || job->modes->step == RP_STEP_EARLY ||
            !rp_job_is_trained(self->job, l))
            continue;
        task->bytes += rp_traffic_squares(job, l);
        read_gradients(self, l, FALSE);
    }
    if (job->modes->servers > 1)
        rp_builder_access(job->builder, rp_plan_exchange(job->plan).squares,
                          rp_modes_wait_for_norm(job->modes) ? RP_ACCESS_WRITE
                                                             : RP_ACCESS_READ | RP_ACCESS_WRITE,
                          RP_ROLE_HOST, 0);
    rp_builder_update(job->builder, rp_plan_decision(job->plan, iteration), RP_ROLE_DECISION);
    rp_builder_end(job->builder);
    rp_exchange_append_agree(job, iteration);
}

/* Begins a task that reads the layer's gradients, and those of a tied matrix. */
static RpTask *
begin_update(const RpProtocol *self, RpTaskKind kind, guint layer, guint32 iteration)
{
    const gboolean copied = self->job->modes->copies == RP_COPIES_BLOCKING;
    RpTask *task = rp_job_begin_layer_task(self->job, kind, layer, iteration);

    read_gradients(self, layer, copied);
    if (tied_layer(self, layer) != RP_NONE)
        read_gradients(self, tied_layer(self, layer), copied);
    return task;
}

static void
append_early_step(RpProtocol *self, guint layer, guint32 iteration)
{
    const RpPlanJob *job = self->job;
    const RpPlanLayer *place = place_of(self, layer);

    if (!is_stepped(self, layer))
        return;
    RpTask *task = begin_update(self, RP_TASK_EARLY_STEP, layer, iteration);
    task->bytes = rp_traffic_squares(job, layer);
    if (place->early) {
        task->bytes += rp_traffic_early_step(job, layer);
        rp_builder_read(job->builder, place->optimizer, RP_ROLE_HOST);
        rp_builder_write(job->builder, place->weights[0], RP_ROLE_HOST);
    }
    rp_builder_update(job->builder, rp_plan_decision(job->plan, iteration), RP_ROLE_DECISION);
    rp_builder_end(job->builder);
}

static void
append_late_step(RpProtocol *self, guint layer, guint32 iteration)
{
    const RpPlanJob *job = self->job;

    if (!place_of(self, layer)->early)
        return;
    begin_update(self, RP_TASK_LATE_STEP, layer, iteration)->bytes =
        rp_traffic_late_step(job, layer);
    rp_builder_update(job->builder, place_of(self, layer)->optimizer, RP_ROLE_HOST);
    rp_builder_read(job->builder, rp_plan_decision(job->plan, iteration), RP_ROLE_DECISION);
    rp_builder_end(job->builder);
}

/* Where the early step has written weights it is expected to find nothing to do. */
static void
append_step(RpProtocol *self, guint layer, guint32 iteration)
{
    const RpPlanJob *job = self->job;
    const RpPlanModes *modes = job->modes;
    const RpPlanLayer *place = place_of(self, layer);
    const guint32 weights = place->weights[rp_modes_versions(modes) == 2 ? iteration % 2 : 0];

    if (!is_stepped(self, layer))
        return;
    begin_update(self, RP_TASK_OPTIMIZER_STEP, layer, iteration)->bytes =
        place->early ? 0 : rp_traffic_step(job, layer, tied_layer(self, layer));
    rp_builder_update(job->builder, place->optimizer, RP_ROLE_HOST);
    if (place->early)
        rp_builder_update(job->builder, weights, RP_ROLE_HOST);
    else if (self->copies == COPIES_NONE)
        rp_builder_write(job->builder, weights, RP_ROLE_HOST);
    if (modes->servers > 1 && !rp_modes_wait_for_norm(modes))
        rp_builder_update(job->builder, rp_plan_exchange(job->plan).squares, RP_ROLE_HOST);
    rp_builder_access(job->builder, rp_plan_decision(job->plan, iteration),
                      rp_modes_wait_for_norm(modes) ? RP_ACCESS_READ
                                                    : RP_ACCESS_READ | RP_ACCESS_WRITE,
                      RP_ROLE_DECISION, 0);
    rp_builder_end(job->builder);
    if (self->copies == COPIES_NONE)
        rp_exchange_append_gather(job, layer, weights, iteration);
    if (self->copies == COPIES_WITH_STEP)
        append_parameter_copy(self, layer, iteration);
}

/* The @i-th layer to step. Synchronous: the first layer first, which the next forward needs first.
 * Asynchronous: the last layer first, since its gradients are the first that the running iteration
 * overwrites; a layer that it is tied to comes right after it, for the same reason. One stage has
 * no gradient on the host before all of the iteration is computed, and uploads from the first layer
 * on. */
static guint
step_order(const RpProtocol *self, guint i)
{
    const guint n = self->job->profile->n_layers;

    if (self->job->modes->staleness == 0 || self->job->n_stages == 1)
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

static gboolean
all_home(const RpProtocol *self, guint32 iteration)
{
    return self->layers_left[iteration % 2] == 0;
}

static void
home_gated(RpProtocol *self, RpInterval layers, guint32 iteration)
{
    (void)layers;
    if (!all_home(self, iteration))
        return;
    append_norm(self, iteration);
    /* the step overwrites the full-precision weights that the copy reads */
    append_late_copies(self, iteration);
    append_steps(self, iteration);
}

/* The step of a layer and the copy before it. */
static void
step_at_once(RpProtocol *self, guint layer, guint32 iteration)
{
    /* all of the iteration's uploads of the layer stand before its gradients */
    if (self->copies == COPIES_LATE && iteration > 0)
        append_parameter_copy(self, layer, iteration - 1);
    append_step(self, layer, iteration);
}

/* Calls @append once all gradients that the layer's update reads are on the host. */
static void
append_if_home(RpProtocol *self, guint layer, guint32 iteration,
               void (*append)(RpProtocol *self, guint layer, guint32 iteration))
{
    const guint *left = self->layer_left[iteration % 2];
    const guint tied = tied_layer(self, layer);

    if (left[layer] == 0 && (tied == RP_NONE || left[tied] == 0))
        append(self, layer, iteration);
}

/* The @i-th of layers whose gradients have arrived together. */
static guint
layer_home(const RpProtocol *self, RpInterval layers, guint i)
{
    return layers.first + (self->job->modes->staleness > 0 ? layers.count - 1 - i : i);
}

/* The same of layers whose gradients have arrived together, and of those that they are tied to. */
static void
append_all_home(RpProtocol *self, RpInterval layers, guint32 iteration,
                void (*append)(RpProtocol *self, guint layer, guint32 iteration))
{
    for (guint i = 0; i < layers.count; i++) {
        const guint layer = layer_home(self, layers, i);
        const guint tied = place_of(self, layer)->tied_to;

        append_if_home(self, layer, iteration, append);
        if (tied != RP_NONE && (tied < layers.first || tied >= layers.first + layers.count))
            append_if_home(self, tied, iteration, append);
    }
}

static void
step_unless_deferred(RpProtocol *self, guint layer, guint32 iteration)
{
    if (self->early[layer])
        step_at_once(self, layer, iteration);
}

static void
home_at_once(RpProtocol *self, RpInterval layers, guint32 iteration)
{
    append_all_home(self, layers, iteration, step_unless_deferred);
    if (!all_home(self, iteration))
        return;
    for (guint l = 0; l < self->job->profile->n_layers; l++)
        if (!self->early[l])
            step_at_once(self, l, iteration);
    append_norm(self, iteration);
}

static void
home_early(RpProtocol *self, RpInterval layers, guint32 iteration)
{
    append_all_home(self, layers, iteration, append_early_step);
    if (!all_home(self, iteration))
        return;
    append_norm(self, iteration);
    append_steps(self, iteration);
    for (guint l = 0; l < self->job->profile->n_layers; l++)
        append_late_step(self, l, iteration);
}

static void
end_events(RpProtocol *self, guint32 iteration)
{
    if (self->trained == 0)
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

static void
choose_early(RpProtocol *self)
{
    const RpPlanJob *job = self->job;

    rp_early_choose(job, rp_traffic_squares, rp_traffic_early_step, self->early);
    for (guint l = 0; l < job->profile->n_layers; l++) {
        self->early[l] = self->early[l] && !job->storage->form.shared;
        rp_plan_tables(job->plan)->layers[l].early = self->early[l] && is_stepped(self, l);
    }
}

static guint64
no_traffic(const RpPlanJob *job, guint layer)
{
    (void)job;
    (void)layer;
    return 0;
}

static guint64
step_traffic(const RpPlanJob *job, guint layer)
{
    return rp_traffic_step(job, layer, RP_NONE);
}

RpProtocol *
rp_protocol_new(const RpPlanJob *job)
{
    static const Ops blocking = {NULL, end_blocking};
    static const Ops by_events[] = {[RP_STEP_AT_ONCE] = {home_at_once, end_events},
                                    [RP_STEP_AFTER_NORM] = {home_gated, end_events},
                                    [RP_STEP_EARLY] = {home_early, end_events}};
    const RpPlanModes *modes = job->modes;
    RpProtocol *self = RP_JOB_NEW(job, RpProtocol, 1);

    self->job = job;
    self->protocol = modes->copies == RP_COPIES_BLOCKING ? &blocking : &by_events[modes->step];
    self->copies = modes->copies == RP_COPIES_FUSED ? COPIES_NONE
                   : modes->staleness > 0           ? COPIES_LATE
                                                    : COPIES_WITH_STEP;
    self->next_copy = RP_JOB_NEW(job, guint32, job->profile->n_layers);
    for (guint i = 0; i < 2; i++)
        self->layer_left[i] = RP_JOB_NEW(job, guint, job->profile->n_layers);
    for (guint l = 0; l < job->profile->n_layers; l++)
        self->trained += rp_job_is_trained(self->job, l);
    self->early = RP_JOB_NEW(job, gboolean, job->profile->n_layers);
    if (modes->step == RP_STEP_EARLY)
        choose_early(self);
    else if (modes->weights == RP_WEIGHTS_PER_LAYER)
        rp_early_choose(job, no_traffic, step_traffic, self->early);
    else
        for (guint l = 0; l < job->profile->n_layers; l++)
            self->early[l] = TRUE;
    return self;
}

void
rp_protocol_begin_iteration(RpProtocol *self)
{
    const RpPlanJob *job = self->job;
    guint *left = self->layer_left[job->iteration % 2];

    self->layers_left[job->iteration % 2] = self->trained;
    for (guint l = 0; l < job->profile->n_layers; l++)
        left[l] = rp_job_is_trained(self->job, l) ? rp_modes_departures(job->modes) : 0;
}

gboolean
rp_protocol_record_host_copy(RpProtocol *self, RpInterval layers, guint32 iteration)
{
    guint *left = self->layer_left[iteration % 2];
    const guint before = self->layers_left[iteration % 2];

    for (guint l = layers.first; l < layers.first + layers.count; l++)
        if (rp_job_is_trained(self->job, l) && --left[l] == 0)
            self->layers_left[iteration % 2]--;
    return self->layers_left[iteration % 2] < before;
}

void
rp_protocol_append_host_copy(RpProtocol *self, RpInterval layers, guint32 iteration)
{
    for (guint i = 0; i < layers.count; i++)
        rp_exchange_append_reduce(self->job, layer_home(self, layers, i), iteration);
    if (self->protocol->home != NULL)
        self->protocol->home(self, layers, iteration);
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
