/* Uploads weights for each slot: of a bound schedule that offloads them, or dispatched. A device
 * has space for two stages: the one that runs, and the next one arriving, which may be packed; or
 * for one, if it has one slot an iteration at most and nothing can arrive meanwhile. */
#include "core/base/units.h"
#include "core/plan/planner/placement.h"
#include "core/profile/cards.h"

/* The half of a slot's buffers that a stage uses; bound stages run forward and backward in the
 * larger. */
static RpDirection
direction_of(const RpPlanStage *stage)
{
    return stage->runs_backward ? RP_DIRECTION_BACKWARD : RP_DIRECTION_FORWARD;
}

guint32
rp_placement_parameters(const RpPlacement *placement, const RpPart *part)
{
    const RpDevice *device = &placement->devices[part->device];

    if (part->at->parameter_bytes == 0)
        return RP_NONE; /* nothing is uploaded that an action could read */
    return rp_modes_upload_once(placement->job->modes) ? placement->resident_parameters[part->stage]
           : device->ends != NULL ? device->ends[2 * part->stage + device->turn]
                                  : device->parameters[direction_of(part->at)][device->turn];
}

guint32
rp_placement_workspace(const RpPlacement *placement, const RpPart *part)
{
    const RpDevice *device = &placement->devices[part->device];

    return device->workspace[direction_of(part->at)][device->turn];
}

/* A buffer inside a slot's region. All of a region share one history: writing one of them destroys
 * the others' contents. */
static guint32
place_in_region(const RpPlanJob *job, guint g, RpBufferCategory category, guint64 offset,
                guint64 bytes, guint32 *history)
{
    const RpBuffer buffer = {.arena = g,
                             .category = category,
                             .offset = offset,
                             .bytes = rp_align_up(bytes, RP_BUFFER_ALIGNMENT)};

    if (bytes == 0)
        return RP_NONE;
    guint32 index = rp_plan_place_buffer(job->plan, &buffer);
    if (*history == RP_NONE)
        *history = index;
    rp_builder_share_history(job->builder, index, *history);
    return index;
}

/* Dispatched: one of the two slots, see core/plan/device-layout.h. */
static void
lay_out_region(RpPlacement *placement, guint g, const RpLargest *largest,
               const RpSlotLayout *layout, guint turn)
{
    const RpPlanJob *job = placement->job;
    const guint64 base = rp_align_up(rp_plan_arena_bytes(job->plan, g), RP_BUFFER_ALIGNMENT);
    const guint64 sums = rp_profile_sum_bytes(job->profile, largest->gradients);
    guint64 end[RP_N_DIRECTIONS]; /* end of the buffers in the region so far, by its use */
    guint32 history = RP_NONE;
    RpDevice *device = &placement->devices[g];

    for (guint direction = 0; direction < RP_N_DIRECTIONS; direction++) {
        device->parameters[direction][turn] = place_in_region(
            job, g, RP_BUFFER_PARAMETERS, base, largest->parameters[direction], &history);
        end[direction] = base + rp_align_up(largest->parameters[direction], RP_BUFFER_ALIGNMENT);
    }
    if (layout->accumulators_inside) {
        device->sums[turn] = place_in_region(job, g, RP_BUFFER_ACCUMULATORS,
                                             end[RP_DIRECTION_BACKWARD], sums, &history);
        end[RP_DIRECTION_BACKWARD] += rp_align_up(sums, RP_BUFFER_ALIGNMENT);
    }
    for (guint direction = 0; layout->workspace_inside && direction < RP_N_DIRECTIONS; direction++)
        device->workspace[direction][turn] = place_in_region(
            job, g, RP_BUFFER_WORKSPACE, end[direction], largest->workspace[direction], &history);
}

/* Dispatched: slots at the borders of a region, see core/plan/device-layout.h. Stages of one size
 * share a buffer at each border. */
static void
lay_out_ends(RpPlacement *placement, guint g, const RpLargest *largest)
{
    const RpPlanJob *job = placement->job;
    const guint64 from = rp_align_up(rp_plan_arena_bytes(job->plan, g), RP_BUFFER_ALIGNMENT);
    guint32 *ends = RP_JOB_NONE(job, guint32, 2 * (gsize)job->n_stages);
    guint32 histories[2] = {RP_NONE, RP_NONE};

    for (guint s = 0; s < job->n_stages; s++) {
        const guint64 bytes = rp_plan_stage(job->plan, s)->upload_bytes;
        guint like = 0; /* the first stage of this size */

        while (rp_plan_stage(job->plan, like)->upload_bytes != bytes)
            like++;
        for (guint turn = 0; turn < 2; turn++)
            ends[2 * s + turn] =
                like < s ? ends[2 * like + turn]
                         : place_in_region(job, g, RP_BUFFER_PARAMETERS,
                                           turn == 0 ? from
                                                     : from + largest->neighbours -
                                                           rp_align_up(bytes, RP_BUFFER_ALIGNMENT),
                                           bytes, &histories[turn]);
    }
    placement->devices[g].ends = ends;
}

/* ---- layer by layer ----
 *
 * A device has one slot an iteration, of all layers, whose first action follows the uploads, and whose last one is
 * followed by the downloads. So each layer has buffers of its own, one after the other:
 *
 *   slot      |--parameters of 0--|--of 1--| ... |--of n - 1--|
 *   leaving   |--gradients of 0--|--of 1--| ... |--of n - 1--|
 */

/* A buffer right behind the one before it, which began the row at @base. */
static guint32
place_behind(const RpPlanJob *job, guint g, RpBufferCategory category, guint64 *end, guint64 bytes)
{
    const RpBuffer buffer = {.arena = g, .category = category, .offset = *end, .bytes = bytes};

    *end += bytes;
    return bytes > 0 ? rp_plan_place_buffer(job->plan, &buffer) : RP_NONE;
}

static guint64
end_of_arena(const RpPlanJob *job, guint g)
{
    return rp_align_up(rp_plan_arena_bytes(job->plan, g), RP_BUFFER_ALIGNMENT);
}

void
rp_placement_lay_out_parameters(RpPlacement *placement, guint g)
{
    const RpPlanJob *job = placement->job;
    guint64 end = end_of_arena(job, g);

    for (guint l = 0; l < job->profile->n_layers; l++)
        rp_job_slot_layer(job, g, l)->parameters = place_behind(
            job, g, RP_BUFFER_PARAMETERS, &end, rp_layer_upload_bytes(&job->profile->layers[l]));
}

void
rp_placement_lay_out_leaving(RpPlacement *placement, guint g)
{
    const RpPlanJob *job = placement->job;
    guint64 end = end_of_arena(job, g);

    for (guint l = 0; l < job->profile->n_layers; l++)
        rp_job_slot_layer(job, g, l)->leaving =
            place_behind(job, g, RP_BUFFER_GRADIENTS, &end, job->profile->layers[l].gradient_bytes);
}

void
rp_placement_read_layers(const RpPlacement *placement, guint g, RpInterval layers)
{
    const RpPlanJob *job = placement->job;

    for (guint l = layers.first; l < layers.first + layers.count; l++)
        rp_builder_read(job->builder, rp_plan_slot_layer(job->plan, g, l).parameters,
                        RP_ROLE_PARAMETERS);
}

void
rp_placement_leave_layers(const RpPlacement *placement, guint g, RpInterval layers)
{
    const RpPlanJob *job = placement->job;

    for (guint l = layers.first; l < layers.first + layers.count; l++)
        rp_builder_write(job->builder, rp_plan_slot_layer(job->plan, g, l).leaving,
                         RP_ROLE_LEAVING);
}

static void
lay_out_slots(RpPlacement *placement, guint g, const RpLargest *largest, const RpSlotLayout *layout)
{
    const RpPlanJob *job = placement->job;
    RpDevice *device = &placement->devices[g];

    if (layout->at_ends)
        lay_out_ends(placement, g, largest);
    for (guint turn = 0; turn < (layout->single ? 1 : 2) && !layout->at_ends; turn++) {
        if (layout->accumulators_inside || layout->workspace_inside)
            lay_out_region(placement, g, largest, layout, turn);
        else if (job->modes->weights == RP_WEIGHTS_PER_LAYER)
            rp_placement_lay_out_parameters(placement, g);
        else
            device->parameters[0][turn] = device->parameters[1][turn] = rp_job_add_buffer(
                job, g, RP_BUFFER_PARAMETERS, MAX(largest->parameters[0], largest->parameters[1]));
    }
    if (!layout->accumulators_inside)
        device->sums[0] = device->sums[1] = rp_job_add_buffer(
            job, g, RP_BUFFER_ACCUMULATORS, rp_profile_sum_bytes(job->profile, largest->gradients));
    if (!layout->workspace_inside) { /* one buffer for both directions and both parities */
        const guint32 workspace = rp_job_add_buffer(
            job, g, RP_BUFFER_WORKSPACE, MAX(largest->workspace[0], largest->workspace[1]));

        for (guint i = 0; i < 2; i++)
            device->workspace[0][i] = device->workspace[1][i] = workspace;
    }
    device->packed = rp_job_add_buffer(job, g, RP_BUFFER_PARAMETERS, largest->packed);
    for (guint direction = 0; layout->single && direction < RP_N_DIRECTIONS; direction++) {
        device->parameters[direction][1] = device->parameters[direction][0];
        device->workspace[direction][1] = device->workspace[direction][0];
        device->sums[1] = device->sums[0];
    }
}

static void
lay_out_offloaded(RpPlacement *placement, guint g, const RpLargest *largest)
{
    const RpSlotLayout layout = rp_slot_layout(placement->job->profile, largest);

    lay_out_slots(placement, g, largest, layout.single ? &layout : &(RpSlotLayout){0});
}

static void
lay_out_dispatched(RpPlacement *placement, guint g, const RpLargest *largest)
{
    const RpSlotLayout layout = placement->job->one_slot
                                    ? (RpSlotLayout){.single = TRUE} /* nothing arrives beside */
                                    : rp_slot_layout(placement->job->profile, largest);

    lay_out_slots(placement, g, largest, &layout);
    rp_placement_lay_out_resident(placement, g);
}

/* To another stage, or from its forward to its backward. */
static void
turn(RpPlacement *placement, guint g, const RpSlot *before)
{
    RpDevice *device = &placement->devices[g];
    const RpSlot *now = &device->slot;
    GArray *gates = device->old_gates;

    device->old_gates = device->gates;
    device->gates = gates;
    g_array_set_size(gates, 0);
    if (now->stage == before->stage && now->round == before->round &&
        now->iteration == before->iteration)
        return;
    device->turn ^= 1;
    rp_placement_upload(
        placement, g, now->stage,
        placement->job->options.transfers == RP_TRANSFERS_WINDOWS ? device->old_gates : NULL);
}

const RpPlacementOps rp_placement_offloaded = {.lay_out = lay_out_offloaded, .turn = turn};
const RpPlacementOps rp_placement_dispatched = {.lay_out = lay_out_dispatched, .turn = turn};

/* @frozen: they go up, too */
static void
read_weights(const RpPlanJob *job, guint layer, gboolean frozen)
{
    const RpPlanLayer *state = rp_plan_layer(job->plan, layer);
    const guint version = rp_modes_versions(job->modes) == 2 ? job->iteration % 2 : 0;

    if (frozen)
        rp_builder_read(job->builder, state->frozen, RP_ROLE_HOST);
    rp_builder_read(job->builder, state->weights[version], RP_ROLE_HOST);
}

/* Before the slot's first action, behind the last of the slot before. */
static void
append_expand(const RpPlacement *placement, const RpPart *part)
{
    const RpPlanJob *job = placement->job;
    const RpDevice *device = &placement->devices[part->device];
    RpTask *task =
        rp_builder_begin(job->builder, RP_TASK_EXPAND, part->device, part->stage, job->iteration);

    task->round = (guint16)device->slot.round;
    for (guint l = 0; l < part->at->layers.count; l++)
        task->duration_ns +=
            rp_profile_of(job->profile, part->device)->layers[part->at->layers.first + l].expand_ns;
    rp_builder_read(job->builder, part->at->upload_bytes > 0 ? device->packed : RP_NONE,
                    RP_ROLE_PACKED);
    rp_placement_read_resident(placement, part);
    rp_builder_write(job->builder, rp_placement_parameters(placement, part), RP_ROLE_PARAMETERS);
    rp_builder_end(job->builder);
}

void
rp_placement_upload(const RpPlacement *placement, guint g, guint32 stage, const GArray *gates)
{
    const RpPlanJob *job = placement->job;
    const RpPart part = rp_part(job, g, stage, RP_NONE);
    const RpChunks *chunks = &part.at->parameters;

    rp_placement_upload_resident(placement, g, part.at->layers);
    for (guint c = 0; c < chunks->n_chunks; c++) {
        guint32 last_layer = RP_NONE;
        RpTask *task =
            rp_builder_begin(job->builder, RP_TASK_PARAMETER_UPLOAD, g, stage, job->iteration);

        task->chunk = c;
        task->round = (guint16)placement->devices[g].slot.round;
        task->bytes = chunks->chunk_bytes[c];
        /* its window opens when the activation upload before it is over */
        if (gates != NULL && c < gates->len)
            rp_builder_wait(job->builder, g_array_index(gates, RpTaskId, c),
                            rp_plan_lane(job->plan, g, RP_LANE_ACTIVATION_UP), 0, 0);
        rp_builder_wait_barrier(job->builder, FALSE);
        if (rp_modes_pack(job->modes))
            rp_builder_write(job->builder, placement->devices[g].packed, RP_ROLE_PACKED);
        else if (job->modes->weights == RP_WEIGHTS_PER_LAYER)
            rp_builder_write(
                job->builder,
                rp_plan_slot_layer(job->plan, g, chunks->segments[chunks->first_segment[c]].layer)
                    .parameters,
                RP_ROLE_PARAMETERS);
        else
            rp_builder_write(job->builder, rp_placement_parameters(placement, &part),
                             RP_ROLE_PARAMETERS);
        for (guint i = chunks->first_segment[c]; i < chunks->first_segment[c + 1]; i++) {
            const guint32 layer = chunks->segments[i].layer;
            const RpPlanLayer *row = rp_plan_layer(job->plan, layer);
            const gboolean stays = row->resident_bytes > 0;

            if (layer == last_layer)
                continue;
            last_layer = layer;
            read_weights(job, layer, !stays);
            if (row->tied_to != RP_NONE && !stays)
                read_weights(job, row->tied_to, TRUE);
        }
        rp_builder_end(job->builder);
    }
    if (rp_modes_pack(job->modes) && part.at->parameter_bytes > 0)
        append_expand(placement, &part);
}
