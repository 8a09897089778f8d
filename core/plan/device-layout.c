#include "core/plan/device-layout.h"

#include "core/base/units.h"
#include "core/plan/planner.h"
#include "core/profile/cards.h"

/* @saves: without the tensors that their forwards have saved */
static guint64
activation_bytes(const RpProfile *profile, RpInterval layers, gboolean saves)
{
    guint64 bytes = 0;

    for (guint l = layers.first; l < layers.first + layers.count; l++)
        bytes += profile->layers[l].activation_bytes -
                 (saves ? rp_layer_saved_bytes(&profile->layers[l]) : 0);
    return bytes;
}

static void
note_saved(RpLargest *largest, const RpProfile *profile, RpInterval layers)
{
    guint n = 0;

    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const guint64 bytes = rp_layer_saved_bytes(&profile->layers[l]);

        largest->saved = MAX(largest->saved, bytes);
        n += bytes > 0;
    }
    largest->n_saved = MAX(largest->n_saved, n);
}

/* Scratch of a stage beyond its inputs, outputs and weights. */
static guint64
workspace_bytes(const RpProfile *profile, RpInterval layers, gboolean backward, gboolean saves,
                gboolean keeps)
{
    guint64 scratch = 0;
    guint64 between = 0;

    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const RpLayer *layer = &profile->layers[l];

        scratch = MAX(scratch, MAX(layer->forward_workspace_bytes,
                                   backward ? layer->backward_workspace_bytes : 0));
        if (l > layers.first)
            between = MAX(between, 2 * layer->input_bytes);
    }
    return scratch + (keeps ? 0 : backward ? activation_bytes(profile, layers, saves) : between);
}

/* A forward stage sends down, beside its output, the inputs of backward stages that begin in it. */
static guint64
inner_stash_bytes(const RpProfile *profile, const RpPartition *partition, RpInterval layers)
{
    guint64 bytes = 0;
    guint low = 0, high = partition->n_backward;

    while (low < high) { /* the first that does not begin behind these layers */
        guint middle = low + (high - low) / 2;

        if (partition->backward[middle].first >= layers.first + layers.count)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < partition->n_backward && partition->backward[low].first > layers.first; low++)
        bytes += profile->layers[partition->backward[low].first].input_bytes;
    return bytes;
}

RpLargest
rp_largest_new(const RpProfile *profile)
{
    return (RpLargest){.is_packed = rp_profile_is_packed(profile)};
}

void
rp_largest_note(RpLargest *largest, const RpProfile *profile, const RpPartition *partition,
                RpInterval layers, gboolean forward, gboolean backward)
{
    RpDirection direction = backward ? RP_DIRECTION_BACKWARD : RP_DIRECTION_FORWARD;
    guint end = layers.first + layers.count;
    guint64 output = 0;
    const gboolean saves = forward != backward && rp_stage_saves(profile, layers);
    guint64 parameters = 0;
    guint64 uploaded = 0;
    guint64 gradients = 0;

    if (forward && end < profile->n_layers)
        output = profile->layers[end].input_bytes;
    if (forward)
        output += inner_stash_bytes(profile, partition, layers);
    if (backward && layers.first > 0)
        output = MAX(output, profile->layers[layers.first].input_bytes);
    for (guint l = layers.first; l < end; l++) {
        parameters += profile->layers[l].parameter_bytes;
        uploaded += rp_layer_upload_bytes(&profile->layers[l]);
        gradients += profile->layers[l].gradient_bytes;
    }
    largest->parameters[direction] =
        MAX(largest->parameters[direction], largest->is_packed ? parameters : uploaded);
    if (largest->is_packed)
        largest->packed = MAX(largest->packed, uploaded);
    largest->workspace[direction] =
        MAX(largest->workspace[direction],
            workspace_bytes(profile, layers, backward, saves, largest->keeps));
    if (backward)
        largest->gradients = MAX(largest->gradients, gradients);
    largest->input = MAX(largest->input, profile->layers[layers.first].input_bytes);
    if (backward && end < profile->n_layers)
        largest->gradient = MAX(largest->gradient, profile->layers[end].input_bytes);
    largest->output = MAX(largest->output, output);
    /* a dispatched stage runs in one direction, but the fused one, which keeps nothing for later */
    if (backward && (forward || end < profile->n_layers))
        largest->activations = MAX(largest->activations, activation_bytes(profile, layers, saves));
    if (saves)
        note_saved(largest, profile, layers);
}

static guint64
aligned(guint64 bytes)
{
    return rp_align_up(bytes, RP_BUFFER_ALIGNMENT);
}

guint
rp_plan_slot_step(const RpProfile *profile, const RpPlanOptions *options)
{
    if (!rp_schedule_is_rotated(options->schedule) ||
        (options->dispatch == RP_DISPATCH_FREE && rp_profile_is_mixed(profile)))
        return 0;
    return rp_plan_group_gpus(options);
}

static guint64
uploaded_bytes(const RpProfile *profile, const RpInterval *layers)
{
    guint64 bytes = 0;

    for (guint l = layers->first; l < layers->first + layers->count; l++)
        bytes += rp_layer_upload_bytes(&profile->layers[l]);
    return aligned(bytes);
}

/* The largest pair of uploads in neighbouring slots of a device: the first @used of each row of @n,
 * @step apart. There is no limit if a stage has no weights: its upload waits for no slot, so that
 * the one behind it might come too early. */
static guint64
neighbour_bytes(const RpProfile *profile, const RpPartition *partition, guint used, guint n,
                guint step)
{
    guint64 most = 0;

    for (guint s = 0; s < used; s++) {
        const guint64 bytes = uploaded_bytes(profile, rp_partition_stage(partition, s));
        guint next = (s + step) % n;

        if (bytes == 0)
            return G_MAXUINT64;
        while (next >= used)
            next = (next + step) % n;
        most = MAX(most, bytes + uploaded_bytes(profile, rp_partition_stage(partition, next)));
    }
    return most;
}

static gboolean
trains_all(const RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++)
        if (profile->layers[l].gradient_bytes < rp_layer_host_bytes(&profile->layers[l]))
            return FALSE;
    return TRUE;
}

/* A plan that only runs forward ends its rounds with the fused stage; where weights stay, its stages go to
 * the devices that they go to otherwise. */
static guint64
all_neighbours(const RpProfile *profile, const RpPartition *partition, guint step)
{
    const guint all = partition->n_forward + partition->n_backward;
    const guint forward = partition->n_forward + 1;
    guint64 most = MAX(neighbour_bytes(profile, partition, all, all, step),
                       neighbour_bytes(profile, partition, forward, forward, step));

    if (!trains_all(profile))
        most = MAX(most, neighbour_bytes(profile, partition, forward, all, step));
    return most;
}

RpLargest
rp_largest_dispatched(const RpProfile *profile, const RpPartition *partition, guint step)
{
    RpLargest largest = rp_largest_new(profile);

    for (guint s = 0; s < partition->n_forward; s++)
        rp_largest_note(&largest, profile, partition, partition->forward[s], TRUE, FALSE);
    for (guint b = 0; b < partition->n_backward; b++)
        rp_largest_note(&largest, profile, partition, partition->backward[b], FALSE, TRUE);
    largest.neighbours = step == 0 ? 2 * aligned(MAX(largest.parameters[RP_DIRECTION_FORWARD],
                                                     largest.parameters[RP_DIRECTION_BACKWARD]))
                                   : all_neighbours(profile, partition, step);
    return largest;
}

RpSlotLayout
rp_slot_layout(const RpProfile *profile, const RpLargest *largest)
{
    const guint64 *parameters = largest->parameters;
    const guint64 *workspace = largest->workspace;
    const guint64 sums = aligned(rp_profile_sum_bytes(profile, largest->gradients));
    const guint64 most_workspace =
        aligned(MAX(workspace[RP_DIRECTION_FORWARD], workspace[RP_DIRECTION_BACKWARD]));
    const guint64 most_parameters =
        aligned(MAX(parameters[RP_DIRECTION_FORWARD], parameters[RP_DIRECTION_BACKWARD]));
    RpSlotLayout best = {
        .at_ends = largest->neighbours < 2 * most_parameters,
        .bytes = MIN(largest->neighbours, 2 * most_parameters) + sums + most_workspace,
    };

    /* all of it is the compute lane's, one slot after the other */
    if (largest->is_packed)
        return (RpSlotLayout){
            .single = TRUE,
            .accumulators_inside = TRUE,
            .workspace_inside = TRUE,
            .bytes =
                aligned(largest->packed) + MAX(aligned(parameters[RP_DIRECTION_FORWARD]) +
                                                   aligned(workspace[RP_DIRECTION_FORWARD]),
                                               aligned(parameters[RP_DIRECTION_BACKWARD]) + sums +
                                                   aligned(workspace[RP_DIRECTION_BACKWARD])),
        };

    for (guint inside = 1; inside < 4; inside++) {
        gboolean sums_inside = (inside & 1) != 0;
        gboolean workspace_inside = (inside & 2) != 0;
        guint64 forward = aligned(parameters[RP_DIRECTION_FORWARD]) +
                          (workspace_inside ? aligned(workspace[RP_DIRECTION_FORWARD]) : 0);
        guint64 backward = aligned(parameters[RP_DIRECTION_BACKWARD]) + (sums_inside ? sums : 0) +
                           (workspace_inside ? aligned(workspace[RP_DIRECTION_BACKWARD]) : 0);
        guint64 bytes = 2 * MAX(forward, backward) + (sums_inside ? 0 : sums);

        if (!workspace_inside)
            bytes += most_workspace;
        if (bytes < best.bytes)
            best = (RpSlotLayout){.accumulators_inside = sums_inside,
                                  .workspace_inside = workspace_inside,
                                  .bytes = bytes};
    }
    return best;
}

guint64
rp_device_bytes(const RpProfile *profile, const RpLargest *largest, gboolean kept_sums,
                gboolean split)
{
    return rp_slot_layout(profile, largest).bytes + 2 * aligned(largest->input) +
           2 * aligned(largest->gradient) + 2 * aligned(largest->output) +
           2 * (guint64)largest->n_saved * aligned(largest->saved) +
           (split ? aligned(largest->activations) : 0) + aligned(profile->constant_bytes) +
           aligned(kept_sums ? rp_profile_sum_bytes(profile, largest->gradients)
                             : largest->gradients);
}

guint64
rp_plan_dispatched_gpu_bytes(const RpProfile *profile, const RpPartition *partition, gboolean split,
                             guint step)
{
    RpLargest largest = rp_largest_dispatched(profile, partition, step);

    return rp_device_bytes(profile, &largest, FALSE, split);
}

guint64
rp_plan_least_gpu_bytes(const RpProfile *profile, guint fused_first, const RpInterval *stage,
                        RpPhase phase)
{
    const RpPartition alone = {.dispatched = TRUE}; /* nothing is stashed inside a stage */
    const RpInterval fused = {fused_first, profile->n_layers - fused_first};
    RpLargest largest = rp_largest_new(profile);

    rp_largest_note(&largest, profile, &alone, fused, FALSE, TRUE);
    for (guint l = 0; l < fused_first; l++) {
        rp_largest_note(&largest, profile, &alone, (RpInterval){l, 1}, TRUE, FALSE);
        rp_largest_note(&largest, profile, &alone, (RpInterval){l, 1}, FALSE, TRUE);
    }
    if (stage != NULL)
        rp_largest_note(&largest, profile, &alone, *stage, phase == RP_PHASE_FORWARD,
                        phase != RP_PHASE_FORWARD);
    largest.neighbours = aligned(MAX(largest.parameters[0], largest.parameters[1]));
    return rp_device_bytes(profile, &largest, FALSE, FALSE);
}

gboolean
rp_partition_keeps_sums(const RpPartition *partition, guint gpus)
{
    return partition->dispatched && (partition->n_forward + partition->n_backward) % gpus == 0 &&
           partition->n_backward <= gpus;
}
