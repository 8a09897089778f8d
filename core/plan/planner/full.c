/* `full` fidelity: an action with the transfers around it.
 *
 * One micro-batch of a forward slot, and the window that it opens for the next slot's parameters
 * and the last slot's gradients (§4.2, Figure 7):
 *
 *   activation-up    |up m+1|
 *   parameter-up            |--chunk m--|
 *   compute          |------ F m -------|
 *   activation-down  |dn m-1|
 *   gradient-down           |--chunk m--|
 */
#include "core/plan/planner/gradients.h"
#include "core/plan/planner/host-arena.h"
#include "core/plan/planner/interleave.h"

typedef struct {
    const RpPlanJob *job;
    RpHostArena *host;
    RpPlacement *placement;
    RpProtocol *protocol;
    RpGradients *gradients;
    guint *backwards_left; /* [stage] until the slot's (bound: iteration's) sum is complete */
} Full;

static gpointer
create(const RpPlanJob *job, const RpInterleave *interleave)
{
    Full *self = RP_JOB_NEW(job, Full, 1);

    (void)interleave;
    self->job = job;
    self->host = rp_host_arena_new(job);
    self->placement = rp_placement_new(job);
    self->protocol = rp_protocol_new(job);
    self->gradients = rp_gradients_new(job, self->placement, self->protocol);
    self->backwards_left = RP_JOB_NEW(job, guint, job->n_stages);
    return self;
}

static void
begin_call(gpointer data)
{
    Full *self = data;

    rp_placement_begin_call(self->placement);
    if (self->job->call > 0)
        return;
    for (guint s = 0; s < self->job->n_stages; s++)
        self->backwards_left[s] = self->job->backwards;
    rp_protocol_begin_iteration(self->protocol);
}

/* The value that crosses the boundary before @layer, or its gradient, if it travels. */
static void
append_transfer(const Full *self, RpTaskKind kind, RpPart *part, guint32 layer, RpOperand operand)
{
    const RpPlanJob *job = self->job;
    RpBuilder *builder = job->builder;
    guint32 host;

    if (!operand.travels)
        return;
    RpTask *task = rp_job_begin_task(job, kind, part->device, part->stage, part->micro_batch);

    task->layer = layer;
    task->bytes = job->profile->layers[layer].input_bytes;
    if (kind == RP_TASK_ACTGRAD_DOWNLOAD)
        host = rp_host_arena_gradient(self->host, part->stage, part->micro_batch);
    else if (kind == RP_TASK_ACTGRAD_UPLOAD)
        host = rp_host_arena_gradient(self->host, rp_job_gradient_maker(job, part->stage),
                                      part->micro_batch);
    else
        host = rp_host_arena_activation(self->host, layer, part->micro_batch);
    if (kind == RP_TASK_ACTIVATION_DOWNLOAD || kind == RP_TASK_ACTGRAD_DOWNLOAD) {
        rp_builder_read(builder, operand.buffer, RP_ROLE_OUTPUT);
        rp_builder_write(builder, host, RP_ROLE_HOST);
        rp_builder_end(builder);
    } else {
        rp_builder_read(builder, host, RP_ROLE_HOST);
        rp_builder_write(builder, operand.buffer,
                         kind == RP_TASK_ACTGRAD_UPLOAD ? RP_ROLE_GRADIENT : RP_ROLE_INPUT);
        part->gate = rp_builder_end(builder);
    }
}

/* Appends downloads of the tensors that the part's layers have saved, or (@up) uploads of those
 * that it reads. */
static void
append_saved(const Full *self, RpPart *part, gboolean up)
{
    const RpPlanJob *job = self->job;
    const RpInterval *layers = &part->at->layers;
    guint n = 0;

    for (guint l = layers->first; l < layers->first + layers->count && part->saved != NULL; l++) {
        const guint64 bytes = rp_plan_layer(job->plan, l)->saved_bytes;
        const guint32 host = rp_host_arena_saved(self->host, l, part->micro_batch);

        if (bytes == 0)
            continue;
        RpTask *task = rp_job_begin_task(job, up ? RP_TASK_SAVED_UPLOAD : RP_TASK_SAVED_DOWNLOAD,
                                         part->device, part->stage, part->micro_batch);

        task->layer = l;
        task->bytes = bytes;
        rp_builder_read(job->builder, up ? host : part->saved[n],
                        up ? RP_ROLE_HOST : RP_ROLE_SAVED);
        rp_builder_write(job->builder, up ? part->saved[n] : host,
                         up ? RP_ROLE_SAVED : RP_ROLE_HOST);
        n++;
        if (up)
            part->gate = rp_builder_end(job->builder);
        else
            rp_builder_end(job->builder);
    }
}

/* Brings the action's inputs to the device and takes buffers for its outputs. */
static void
prepare(const Full *self, const RpAction *action, RpPart *forward, RpPart *backward)
{
    const RpActionProducts *makes = rp_action_products((RpActionKind)action->kind);
    const RpInterval *layers = &backward->at->layers;
    const gboolean fused = action->kind == RP_ACTION_FUSED;
    const gboolean keeps = self->job->modes->keeps;

    if (makes->output) {
        rp_placement_take_input(self->placement, forward);
        append_transfer(self, RP_TASK_ACTIVATION_UPLOAD, forward, forward->at->layers.first,
                        forward->input);
        if (forward->at->n_boundaries > 0) /* the head keeps its output */
            rp_placement_take_output(self->placement, forward);
        if (!fused && !self->job->options.forward_only)
            rp_placement_take_saved(self->placement, forward, FALSE);
        if (keeps)
            rp_placement_take_kept(self->placement, forward);
    }
    if (!fused && (makes->input_gradient || makes->weight_gradient)) {
        rp_placement_take_input(self->placement, backward);
        append_transfer(self, RP_TASK_STASH_UPLOAD, backward, layers->first, backward->input);
        rp_placement_take_saved(self->placement, backward, !makes->input_gradient);
        if (makes->input_gradient)
            append_saved(self, backward, TRUE);
    }
    if (makes->input_gradient) {
        rp_placement_take_gradient(self->placement, backward);
        append_transfer(self, RP_TASK_ACTGRAD_UPLOAD, backward, layers->first + layers->count,
                        backward->gradient);
        rp_placement_take_input_gradient(self->placement, backward);
    }
    if (makes->input_gradient != makes->weight_gradient || (keeps && makes->weight_gradient))
        rp_placement_take_kept(self->placement, backward);
}

/* Sums the stage's gradients; the last action of the sum turns it into leaving gradients, or adds
 * it to the sum of the rounds before. */
static void
access_sum(const Full *self, const RpPart *part)
{
    const RpPlanJob *job = self->job;
    const guint left = self->backwards_left[part->stage];
    const gboolean adds =
        job->modes->gradients == RP_GRADIENTS_KEPT && rp_job_round(job, part->micro_batch) > 0;

    if (part->at->gradient_bytes == 0)
        return;
    rp_builder_access(job->builder, rp_placement_sums(self->placement, part),
                      left == job->backwards ? RP_ACCESS_WRITE : RP_ACCESS_READ | RP_ACCESS_WRITE,
                      RP_ROLE_SUM, 0);
    if (left == 1)
        rp_builder_access(job->builder, self->placement->devices[part->device].leaving,
                          adds ? RP_ACCESS_READ | RP_ACCESS_WRITE : RP_ACCESS_WRITE,
                          RP_ROLE_LEAVING, 0);
}

/* @kept: access mode of kept values */
static void
access_operands(const Full *self, const RpPart *part, guint16 kept, guint32 gradient_phase)
{
    RpBuilder *builder = self->job->builder;

    rp_builder_read(builder, part->input.buffer, RP_ROLE_INPUT);
    rp_builder_write(builder, part->output.buffer, RP_ROLE_OUTPUT);
    rp_builder_access(builder, part->kept, kept, RP_ROLE_KEPT, 0);
    rp_builder_access(builder, part->gradient.buffer, RP_ACCESS_READ, RP_ROLE_GRADIENT,
                      gradient_phase);
}

/* Layers of either, which touch each other. */
static RpInterval
both(RpInterval up, RpInterval down)
{
    const guint first = MIN(up.first, down.first);

    if (up.count == 0 || down.count == 0)
        return up.count > 0 ? up : down;
    return (RpInterval){first, MAX(up.first + up.count, down.first + down.count) - first};
}

/* Steps of a fused action, of a layerwise plan: it whole, or a piece. */
static RpTaskId
append_piece(const Full *self, const RpAction *action, const RpPart *part, guint first, guint end)
{
    const RpPlanJob *job = self->job;
    const guint n = part->at->layers.count;
    const guint left = self->backwards_left[part->stage];
    const RpTask steps = {.kind = RP_TASK_FUSED, .first_step = first, .end_step = end};
    const RpInterval up = rp_task_upward(&steps, part->at->layers);
    const RpInterval down = rp_task_downward(&steps, part->at->layers);
    RpBuilder *builder = job->builder;

    if (first == 0 && end == 2 * n)
        rp_job_begin_action(job, part->device, action);
    else
        rp_job_begin_piece(job, part->device, action, first, end);
    rp_placement_read_layers(self->placement, part->device, both(up, down));
    rp_placement_read_resident(self->placement, part);
    rp_builder_access(builder, rp_placement_workspace(self->placement, part),
                      first == 0 ? RP_ACCESS_WRITE : RP_ACCESS_READ | RP_ACCESS_WRITE,
                      RP_ROLE_WORKSPACE, 0);
    rp_builder_read(builder, part->input.buffer, RP_ROLE_INPUT);
    if (down.count > 0 && part->at->gradient_bytes > 0)
        rp_builder_access(builder, rp_placement_sums(self->placement, part),
                          left == job->backwards && first <= n ? RP_ACCESS_WRITE
                                                               : RP_ACCESS_READ | RP_ACCESS_WRITE,
                          RP_ROLE_SUM, 0);
    if (left == 1)
        rp_placement_leave_layers(self->placement, part->device, down);
    if (first <= n && end > n && rp_modes_wait_for_norm(job->modes))
        rp_builder_read(builder, rp_plan_decision(job->plan, job->iteration), RP_ROLE_DECISION);
    return rp_builder_end(builder);
}

/* The gradients of @layers, which have come to be complete. */
static void
send_layers(const Full *self, guint device, RpInterval layers)
{
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        if (self->job->profile->layers[l].gradient_bytes > 0)
            rp_gradients_send(self->gradients, device, FALSE);
}

/* The first action of the slot has pieces in its forward, as weights arrive, the last one in its
 * backward, as gradients are complete. The top layer, the head, runs forward and backward at
 * once. */
static RpTaskId
append_pieces(Full *self, const RpAction *action, const RpPart *part, gboolean first)
{
    const guint n = part->at->layers.count;
    const gboolean last = self->backwards_left[part->stage] == 1;
    RpTaskId id = RP_TASK_NONE;
    guint end;

    if (last)
        rp_gradients_leave(self->gradients, part->device, part->stage,
                           rp_job_round(self->job, part->micro_batch));
    for (guint step = 0; step < 2 * n; step = end) {
        end = first && step + 1 < n ? step + 1 : last ? MAX(n, step) + 1 : 2 * n;
        id = append_piece(self, action, part, step, end);
        if (last && end > n)
            send_layers(self, part->device,
                        (RpInterval){part->at->layers.first + 2 * n - end, end - MAX(n, step)});
    }
    return id;
}

static RpTaskId
append_compute(const Full *self, const RpAction *action, const RpPart *forward,
               const RpPart *backward)
{
    const RpPlanJob *job = self->job;
    const RpActionProducts *makes = rp_action_products((RpActionKind)action->kind);
    const RpInterval *layers = &backward->at->layers;
    RpBuilder *builder = job->builder;

    rp_job_begin_action(job, forward->device, action);
    rp_builder_read(builder, rp_placement_parameters(self->placement, forward), RP_ROLE_PARAMETERS);
    if (!rp_modes_pack(job->modes)) /* else expanded */
        rp_placement_read_resident(self->placement, forward);
    if (!rp_modes_pack(job->modes) && backward->stage != forward->stage)
        rp_placement_read_resident(self->placement, backward);
    rp_builder_write(builder, rp_placement_workspace(self->placement, forward), RP_ROLE_WORKSPACE);
    if (backward->stage != forward->stage)
        rp_builder_read(builder, rp_placement_parameters(self->placement, backward),
                        RP_ROLE_PARAMETERS);
    if (action->kind == RP_ACTION_WEIGHT_GRADIENT) {
        rp_builder_read(builder, backward->kept, RP_ROLE_KEPT);
        rp_builder_read(builder, backward->input.buffer, RP_ROLE_INPUT);
        rp_placement_access_saved(self->placement, backward, TRUE);
    } else {
        access_operands(self, forward, RP_ACCESS_WRITE, 0);
        access_operands(self, backward,
                        !job->modes->keeps       ? RP_ACCESS_WRITE
                        : makes->weight_gradient ? RP_ACCESS_READ
                                                 : RP_ACCESS_READ | RP_ACCESS_WRITE,
                        rp_job_leads(job, action) ? 1 : 0);
        rp_placement_access_saved(self->placement, forward, FALSE);
        rp_placement_access_saved(self->placement, backward, TRUE);
    }
    if (makes->weight_gradient)
        access_sum(self, backward);
    /* the head makes the loss, scaled as the newest decision has it */
    if (makes->input_gradient && rp_modes_wait_for_norm(job->modes) &&
        layers->first + layers->count == job->profile->n_layers)
        rp_builder_read(builder, rp_plan_decision(job->plan, job->iteration), RP_ROLE_DECISION);
    return rp_builder_end(builder);
}

static void
count_gradient(Full *self, const RpPart *part)
{
    if (--self->backwards_left[part->stage] > 0)
        return;
    self->backwards_left[part->stage] = self->job->backwards;
    if (self->job->modes->weights == RP_WEIGHTS_PER_LAYER)
        return; /* they have left, layer by layer */
    rp_gradients_leave(self->gradients, part->device, part->stage,
                       rp_job_round(self->job, part->micro_batch));
    if (rp_modes_upload_once(self->job->modes))
        rp_gradients_send(self->gradients, part->device, TRUE);
}

/* @device comes to the action: switches to its slot if that is another, with its transfers.
 * Returns: whether it is */
static gboolean
enter(const Full *self, guint device, const RpAction *action)
{
    const gboolean turns = rp_placement_next_slot(self->placement, device, action) != NULL;

    if (turns) {
        /* the next slot of one of several devices may begin much later, and the optimizer waits */
        if (rp_plan_group_gpus(&self->job->options) > 1)
            rp_gradients_send(self->gradients, device, TRUE);
        rp_placement_turn(self->placement, device);
    }
    /* the chunk of this window; the first leaves with the slot's first action */
    if (action->kind != RP_ACTION_WEIGHT_GRADIENT)
        rp_gradients_send(self->gradients, device, FALSE);
    return turns;
}

static RpTaskId
append(gpointer data, guint device, const RpAction *action)
{
    Full *self = data;
    const RpActionProducts *makes = rp_action_products((RpActionKind)action->kind);
    RpPart forward = rp_part(self->job, device, action->stage, action->micro_batch);
    RpPart backward = rp_part(self->job, device, rp_action_backward_stage(action),
                              rp_action_backward_micro_batch(action));
    const gboolean turns = enter(self, device, action);

    prepare(self, action, &forward, &backward);
    RpTaskId id = self->job->modes->weights == RP_WEIGHTS_PER_LAYER
                      ? append_pieces(self, action, &forward, turns)
                      : append_compute(self, action, &forward, &backward);
    /* boundaries inside the stage are for backwards */
    for (guint i = 0; i < (self->job->options.forward_only ? MIN(1, forward.at->n_boundaries)
                                                           : forward.at->n_boundaries);
         i++)
        append_transfer(self, RP_TASK_ACTIVATION_DOWNLOAD, &forward, forward.at->boundaries[i],
                        forward.output);
    append_saved(self, &forward, FALSE);
    append_transfer(self, RP_TASK_ACTGRAD_DOWNLOAD, &backward, backward.at->layers.first,
                    backward.output);
    rp_placement_release(self->placement, &forward, &backward, makes);
    if (makes->weight_gradient)
        count_gradient(self, &backward);
    return id;
}

static void
end_iteration(gpointer data)
{
    Full *self = data;
    const RpPlanModes *modes = self->job->modes;

    rp_placement_upload_all_resident(self->placement);
    if (self->job->options.forward_only)
        return;
    rp_gradients_send_all(self->gradients,
                          modes->staleness > 0 && modes->copies != RP_COPIES_BLOCKING);
    rp_protocol_end_iteration(self->protocol);
}

static void
flush(gpointer data)
{
    rp_gradients_send_all(((Full *)data)->gradients, FALSE);
}

static void
finish(gpointer data)
{
    Full *self = data;

    if (self->job->iteration == rp_plan_first_iteration(self->job->plan) ||
        self->job->options.forward_only)
        return;
    flush(self);
    rp_protocol_finish(self->protocol);
}

const RpFidelityOps rp_fidelity_full = {
    .create = create,
    .begin_call = begin_call,
    .append = append,
    .end_iteration = end_iteration,
    .flush = flush,
    .finish = finish,
};
