#include "core/plan/planner/placement.h"

#include <string.h>

static RpBufferPool
new_pool(const RpPlanJob *job, guint32 arena, RpBufferCategory category, guint64 bytes)
{
    return (RpBufferPool){arena, category, bytes, rp_job_array(job, sizeof(guint32))};
}

/* One of a kind. A pool keeps one @spare back, so that the next user need not wait for the one that
 * has only just given its buffer back. */
static guint32
pool_take(const RpPlanJob *job, RpBufferPool *pool, gboolean spare)
{
    if (pool->free->len <= (spare ? 1 : 0))
        return rp_job_add_buffer(job, pool->arena, pool->category, pool->bytes);
    guint32 buffer = g_array_index(pool->free, guint32, 0);
    g_array_remove_index(pool->free, 0);
    return buffer;
}

static void
pool_return(RpBufferPool *pool, guint32 buffer)
{
    if (buffer != RP_NONE)
        g_array_append_val(pool->free, buffer);
}

static RpHeld *
held_of(const RpPlacement *placement, const RpPart *part)
{
    return &placement->held[(gsize)part->stage * placement->job->shape.micro_batches +
                            part->micro_batch];
}

static guint32
ring_next(RpRing *ring)
{
    ring->turn ^= 1;
    return ring->buffers[ring->turn];
}

static RpLargest
largest_of_device(const RpPlanJob *job, guint g)
{
    RpLargest largest = rp_largest_new(job->profile);

    largest.keeps = job->modes->keeps;
    if (job->partition->dispatched)
        return rp_largest_dispatched(job->profile, job->partition,
                                     rp_plan_slot_step(job->profile, &job->options));
    for (guint s = 0; s < job->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(job->plan, s);

        if (stage->device == g)
            rp_largest_note(&largest, job->profile, job->partition, stage->layers, TRUE, TRUE);
    }
    return largest;
}

static void
lay_out_device(RpPlacement *placement, guint g)
{
    const RpPlanJob *job = placement->job;
    const RpLargest largest = largest_of_device(job, g);
    const guint64 leaving_bytes = rp_job_leaving_bytes(job, largest.gradients);
    RpDevice *device = &placement->devices[g];

    /* first: plans that only run forward have other slots, and the same constants */
    rp_plan_tables(job->plan)->constants[g] =
        rp_job_add_buffer(job, g, RP_BUFFER_WORKSPACE, job->profile->constant_bytes);
    device->turn = device->input.turn = device->gradient.turn = device->output.turn = 0;
    device->ends = NULL;
    for (guint i = 0; i < 2; i++) {
        device->input.buffers[i] = rp_job_add_buffer(
            job, g, RP_BUFFER_ACTIVATIONS, job->partition->dispatched ? largest.input : 0);
        device->gradient.buffers[i] =
            rp_job_add_buffer(job, g, RP_BUFFER_ACTIVATIONS, largest.gradient);
        device->output.buffers[i] =
            rp_job_add_buffer(job, g, RP_BUFFER_ACTIVATIONS, largest.output);
    }
    rp_placement_lay_out_saved(placement, g, &largest);
    placement->ops->lay_out(placement, g, &largest);
    if (job->modes->weights == RP_WEIGHTS_PER_LAYER)
        rp_placement_lay_out_leaving(placement, g);
    else
        device->leaving = rp_job_add_buffer(job, g, RP_BUFFER_GRADIENTS, leaving_bytes);
    device->staging =
        rp_job_add_buffer(job, job->shape.gpus, RP_BUFFER_STAGING,
                          job->modes->gradients == RP_GRADIENTS_SUMMED ? leaving_bytes : 0);
    device->stash = new_pool(job, g, RP_BUFFER_STASH, largest.input);
    device->kept = new_pool(job, g, RP_BUFFER_WORKSPACE, largest.activations);
    device->local_gradient = new_pool(job, g, RP_BUFFER_ACTIVATIONS, largest.gradient);
    device->gates = rp_job_array(job, sizeof(RpTaskId));
    device->old_gates = rp_job_array(job, sizeof(RpTaskId));
}

RpPlacement *
rp_placement_new(const RpPlanJob *job)
{
    RpPlacement *placement = RP_JOB_NEW(job, RpPlacement, 1);

    placement->job = job;
    placement->ops = job->partition->dispatched         ? &rp_placement_dispatched
                     : rp_modes_upload_once(job->modes) ? &rp_placement_resident
                                                        : &rp_placement_offloaded;
    placement->devices = RP_JOB_NONE(job, RpDevice, job->shape.gpus);
    placement->resident_parameters = RP_JOB_NONE(job, guint32, job->n_stages);
    placement->resident_sums = RP_JOB_NONE(job, guint32, job->n_stages);
    placement->uploaded =
        RP_JOB_NEW(job, gboolean, (gsize)job->shape.gpus * job->profile->n_layers);
    placement->held = RP_JOB_NONE(job, RpHeld, (gsize)job->n_stages * job->shape.micro_batches);
    for (guint g = 0; g < job->shape.gpus; g++)
        lay_out_device(placement, g);
    return placement;
}

void
rp_placement_begin_call(RpPlacement *placement)
{
    const RpPlanJob *job = placement->job;

    memset(placement->held, 0xff, (gsize)job->n_stages * job->shape.micro_batches * sizeof(RpHeld));
}

const RpSlot *
rp_placement_next_slot(RpPlacement *placement, guint g, const RpAction *action)
{
    const RpPlanJob *job = placement->job;
    RpDevice *device = &placement->devices[g];

    device->next = (RpSlot){.iteration = job->iteration};
    if (!rp_modes_upload_once(job->modes))
        device->next = (RpSlot){action->stage, rp_job_round(job, action->micro_batch),
                                job->iteration, action->kind != RP_ACTION_FORWARD};
    return memcmp(&device->slot, &device->next, sizeof(RpSlot)) != 0 ? &device->next : NULL;
}

void
rp_placement_turn(RpPlacement *placement, guint g)
{
    RpDevice *device = &placement->devices[g];
    const RpSlot before = device->slot;

    device->slot = device->next;
    placement->ops->turn(placement, g, &before);
}

guint32
rp_placement_sums(const RpPlacement *placement, const RpPart *part)
{
    const RpDevice *device = &placement->devices[part->device];

    return rp_modes_upload_once(placement->job->modes) ? placement->resident_sums[part->stage]
                                                       : device->sums[device->turn];
}

/* Whether @stage is bound to the device: values sent there stay on it. */
static gboolean
is_local(const RpPlacement *placement, const RpPart *part, guint32 stage)
{
    return stage < placement->job->n_stages &&
           rp_plan_stage(placement->job->plan, stage)->device == part->device;
}

/* Bound: a buffer for the input of a stage until its backward has read it. */
static guint32
take_stash(RpPlacement *placement, RpHeld *held, guint g)
{
    if (held->input == RP_NONE)
        held->input = pool_take(placement->job, &placement->devices[g].stash, TRUE);
    return held->input;
}

void
rp_placement_take_input(RpPlacement *placement, RpPart *part)
{
    const RpPlanJob *job = placement->job;
    const guint32 first = part->at->layers.first;
    RpHeld *held = held_of(placement, part);

    part->input.buffer = held->input;
    /* its forward, or the stage before it on this device, has brought it; or nobody counts its
     * token ids */
    if (held->input != RP_NONE || job->profile->layers[first].input_bytes == 0)
        return;
    part->input.travels = TRUE;
    if (job->partition->dispatched) /* W reads it after I */
        held->input = ring_next(&placement->devices[part->device].input);
    else
        take_stash(placement, held, part->device);
    part->input.buffer = held->input;
}

void
rp_placement_take_output(RpPlacement *placement, RpPart *part)
{
    if (part->stage + 1 == placement->job->n_stages)
        return;

    RpHeld *next = held_of(placement, part) + placement->job->shape.micro_batches;
    part->output.travels = !is_local(placement, part, part->stage + 1);
    part->output.buffer = part->output.travels ? ring_next(&placement->devices[part->device].output)
                                               : take_stash(placement, next, part->device);
}

void
rp_placement_take_gradient(RpPlacement *placement, RpPart *part)
{
    const RpInterval *layers = &part->at->layers;

    if (layers->first + layers->count == placement->job->profile->n_layers)
        return;
    part->gradient.travels = !is_local(placement, part, part->stage + 1);
    part->gradient.buffer = part->gradient.travels
                                ? ring_next(&placement->devices[part->device].gradient)
                                : held_of(placement, part)->gradient;
}

void
rp_placement_take_input_gradient(RpPlacement *placement, RpPart *part)
{
    RpDevice *device = &placement->devices[part->device];

    if (part->at->layers.first == 0)
        return;
    part->output.travels = !is_local(placement, part, part->stage - 1);
    if (part->output.travels) {
        part->output.buffer = ring_next(&device->output);
        return;
    }
    part->output.buffer = pool_take(placement->job, &device->local_gradient, FALSE);
    (held_of(placement, part) - placement->job->shape.micro_batches)->gradient =
        part->output.buffer;
}

void
rp_placement_take_kept(RpPlacement *placement, RpPart *part)
{
    RpHeld *held = held_of(placement, part);

    if (held->kept == RP_NONE)
        held->kept = pool_take(placement->job, &placement->devices[part->device].kept, FALSE);
    part->kept = held->kept;
}

void
rp_placement_release(RpPlacement *placement, const RpPart *forward, const RpPart *backward,
                     const RpActionProducts *made)
{
    const gboolean last = made->weight_gradient || placement->job->options.forward_only;
    const RpHeld *held = held_of(placement, backward);
    RpDevice *device = &placement->devices[backward->device];

    if (made->input_gradient && !backward->gradient.travels)
        pool_return(&device->local_gradient, backward->gradient.buffer);
    if (last && !placement->job->partition->dispatched)
        pool_return(&device->stash, held->input);
    if (last)
        pool_return(&device->kept, held->kept);
    /* nothing comes up for W: its window is that of its I */
    if (!rp_modes_upload_once(placement->job->modes) && (made->output || made->input_gradient))
        g_array_append_val(device->gates, (made->output ? forward : backward)->gate);
}

/* ---- saved ---- */

void
rp_placement_lay_out_saved(RpPlacement *placement, guint g, const RpLargest *largest)
{
    const RpPlanJob *job = placement->job;
    RpDevice *device = &placement->devices[g];

    device->n_saved = largest->n_saved;
    device->saved_turn = 0;
    device->saved = RP_JOB_NONE(job, guint32, 2 * (gsize)largest->n_saved);
    for (guint i = 0; i < 2 * device->n_saved; i++)
        device->saved[i] = rp_job_add_buffer(job, g, RP_BUFFER_ACTIVATIONS, largest->saved);
}

void
rp_placement_take_saved(RpPlacement *placement, RpPart *part, gboolean again)
{
    RpDevice *device = &placement->devices[part->device];

    if (device->n_saved == 0)
        return;
    device->saved_turn ^= again ? 0 : 1;
    part->saved = &device->saved[device->saved_turn * device->n_saved];
}

void
rp_placement_access_saved(const RpPlacement *placement, const RpPart *part, gboolean backward)
{
    const RpPlanJob *job = placement->job;
    const RpInterval *layers = &part->at->layers;
    guint n = 0;

    for (guint l = layers->first; l < layers->first + layers->count && part->saved != NULL; l++) {
        if (rp_plan_layer(job->plan, l)->saved_bytes == 0)
            continue;
        if (backward)
            rp_builder_update(job->builder, part->saved[n++], RP_ROLE_SAVED);
        else
            rp_builder_write(job->builder, part->saved[n++], RP_ROLE_SAVED);
    }
}
