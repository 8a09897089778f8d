/* Arenas of a `full` plan: every buffer a device or the host ever needs. Whether it fits:
 * memory.c. */
#include "core/plan/device-layout.h"
#include "core/plan/planner-private.h"

#include "core/base/units.h"

#define STATE_BYTES 12 /* of a parameter: full-precision weight and two moments */
#define FP32_BYTES 4

static guint32
add_if(RpPlanner *planner, guint32 arena, RpBufferCategory category, guint64 bytes)
{
    return bytes > 0 ? rp_plan_add_buffer(planner->plan, arena, category, bytes) : RP_NONE;
}

static void
init_pool(RpBufferPool *pool, guint32 arena, RpBufferCategory category, guint64 bytes)
{
    *pool = (RpBufferPool){.arena = arena, .category = category, .bytes = bytes};
    g_queue_init(&pool->free);
}

static void
lay_out_resident_stages(RpPlanner *planner, guint g)
{
    for (guint s = 0; s < planner->n_stages; s++) {
        const RpStageInfo *info = &planner->stages[s];

        if (info->device != g)
            continue;
        planner->resident_parameters[s] =
            add_if(planner, g, RP_BUFFER_PARAMETERS, info->parameter_bytes);
        planner->resident_accumulators[s] =
            add_if(planner, g, RP_BUFFER_ACCUMULATORS,
                   rp_profile_sum_bytes(planner->profile, info->gradient_bytes));
    }
}

/* A buffer inside a slot's region. All of a region share one history: what one of them holds is
 * gone when another is written. */
static guint32
place_in_region(RpPlanner *planner, guint g, RpBufferCategory category, guint64 offset,
                guint64 bytes, guint32 *history)
{
    RpBuffer buffer = {.arena = g,
                       .category = category,
                       .offset = offset,
                       .bytes = rp_align_up(bytes, RP_BUFFER_ALIGNMENT)};
    guint32 index;

    if (bytes == 0)
        return RP_NONE;
    index = rp_plan_place_buffer(planner->plan, &buffer);
    if (*history == RP_NONE)
        *history = index;
    rp_planner_share_history(planner, index, *history);
    return index;
}

/* Dispatched: one of the two slots, see core/plan/device-layout.h. */
static void
lay_out_region(RpPlanner *planner, guint g, const RpLargest *largest, const RpSlotLayout *layout,
               guint turn)
{
    RpDeviceState *device = &planner->devices[g];
    guint64 base = rp_align_up(rp_plan_arena_bytes(planner->plan, g), RP_BUFFER_ALIGNMENT);
    guint64 forward_end =
        base + rp_align_up(largest->parameters[RP_WAY_FORWARD], RP_BUFFER_ALIGNMENT);
    guint64 backward_end =
        base + rp_align_up(largest->parameters[RP_WAY_BACKWARD], RP_BUFFER_ALIGNMENT);
    guint64 sums = rp_profile_sum_bytes(planner->profile, largest->gradients);
    guint32 history = RP_NONE;

    for (guint way = 0; way < RP_N_WAYS; way++)
        device->parameters[way][turn] = place_in_region(planner, g, RP_BUFFER_PARAMETERS, base,
                                                        largest->parameters[way], &history);
    if (layout->accumulators_inside) {
        device->accumulator[turn] =
            place_in_region(planner, g, RP_BUFFER_ACCUMULATORS, backward_end, sums, &history);
        backward_end += rp_align_up(sums, RP_BUFFER_ALIGNMENT);
    }
    if (layout->workspace_inside) {
        device->workspace[RP_WAY_FORWARD][turn] =
            place_in_region(planner, g, RP_BUFFER_WORKSPACE, forward_end,
                            largest->workspace[RP_WAY_FORWARD], &history);
        device->workspace[RP_WAY_BACKWARD][turn] =
            place_in_region(planner, g, RP_BUFFER_WORKSPACE, backward_end,
                            largest->workspace[RP_WAY_BACKWARD], &history);
    }
}

/* One buffer for both ways and both turns. */
static void
set_workspace(RpDeviceState *device, guint32 buffer)
{
    for (guint way = 0; way < RP_N_WAYS; way++)
        for (guint turn = 0; turn < 2; turn++)
            device->workspace[way][turn] = buffer;
}

/* Parameters, gradient sums and workspace of a device whose stages come and go. */
static void
lay_out_slots(RpPlanner *planner, guint g, const RpLargest *largest, gboolean dispatched)
{
    RpDeviceState *device = &planner->devices[g];
    RpSlotLayout layout = {0};

    if (dispatched)
        layout = rp_slot_layout(planner->profile, largest);
    for (guint turn = 0; turn < 2; turn++) {
        if (layout.accumulators_inside || layout.workspace_inside) {
            lay_out_region(planner, g, largest, &layout, turn);
            continue;
        }
        device->parameters[0][turn] = add_if(planner, g, RP_BUFFER_PARAMETERS,
                                             MAX(largest->parameters[0], largest->parameters[1]));
        device->parameters[1][turn] = device->parameters[0][turn];
    }
    if (!layout.accumulators_inside) {
        device->accumulator[0] = add_if(planner, g, RP_BUFFER_ACCUMULATORS,
                                        rp_profile_sum_bytes(planner->profile, largest->gradients));
        device->accumulator[1] = device->accumulator[0];
    }
    if (!layout.workspace_inside)
        set_workspace(device, add_if(planner, g, RP_BUFFER_WORKSPACE,
                                     MAX(largest->workspace[0], largest->workspace[1])));
}

static void
lay_out_device(RpPlanner *planner, guint g)
{
    RpDeviceState *device = &planner->devices[g];
    gboolean bound = !planner->partition->dispatched;
    gboolean resident = bound && !planner->options.schedule->offloads_weights;
    RpLargest largest = {0};

    if (!bound)
        largest = rp_largest_dispatched(planner->profile, planner->partition);
    for (guint s = 0; bound && s < planner->n_stages; s++)
        if (planner->stages[s].device == g)
            rp_largest_note(&largest, planner->profile, planner->partition,
                            planner->stages[s].layers, TRUE, TRUE);
    for (guint i = 0; i < 2; i++) {
        device->parameters[0][i] = device->parameters[1][i] = RP_NONE;
        device->accumulator[i] = RP_NONE;
        device->input[i] =
            bound ? RP_NONE : add_if(planner, g, RP_BUFFER_ACTIVATIONS, largest.input);
        device->gradient[i] = add_if(planner, g, RP_BUFFER_ACTIVATIONS, largest.gradient);
        device->output[i] = add_if(planner, g, RP_BUFFER_ACTIVATIONS, largest.output);
    }
    if (resident) {
        lay_out_resident_stages(planner, g);
        set_workspace(device, add_if(planner, g, RP_BUFFER_WORKSPACE, largest.workspace[1]));
    } else {
        lay_out_slots(planner, g, &largest, !bound);
    }
    device->leaving = add_if(planner, g, RP_BUFFER_GRADIENTS,
                             rp_planner_leaving_bytes(planner, largest.gradients));
    rp_plan_set_constants(planner->plan, g,
                          add_if(planner, g, RP_BUFFER_WORKSPACE, planner->options.constant_bytes));
    device->staging = RP_NONE;
    if (!rp_planner_goes_home(planner))
        device->staging = add_if(planner, planner->options.gpus, RP_BUFFER_STAGING,
                                 rp_planner_leaving_bytes(planner, largest.gradients));
    init_pool(&device->stash, g, RP_BUFFER_STASH, largest.input);
    init_pool(&device->kept, g, RP_BUFFER_WORKSPACE, largest.activations);
    init_pool(&device->local_gradient, g, RP_BUFFER_ACTIVATIONS, largest.gradient);
    device->stage = RP_NONE;
    device->leaving_stage = RP_NONE;
    device->last_output = RP_TASK_NONE;
    device->gates = g_array_new(FALSE, FALSE, sizeof(RpTaskId));
    device->old_gates = g_array_new(FALSE, FALSE, sizeof(RpTaskId));
}

/* Weights, gradients and optimizer state: the model's home. */
static void
lay_out_layers(RpPlanner *planner)
{
    guint32 host = planner->options.gpus;
    gboolean twice = rp_plan_promises(planner->plan)->double_weights;
    gboolean copied = planner->options.consistency == RP_CONSISTENCY_BLOCKING;
    guint64 element = rp_profile_element_bytes(planner->profile);

    planner->layers = g_new(RpPlanLayer, planner->profile->n_layers);
    planner->next_copy = g_new0(guint32, planner->profile->n_layers);
    for (guint i = 0; i < 2; i++)
        planner->layer_left[i] = g_new0(guint, planner->profile->n_layers);
    for (guint l = 0; l < planner->profile->n_layers; l++) {
        const RpLayer *layer = &planner->profile->layers[l];
        RpPlanLayer *state = &planner->layers[l];
        /* a tied matrix lives with the layer that it is tied to; its gradient comes home here */
        guint64 own = layer->parameter_bytes - layer->tied_bytes;
        guint64 own_gradients =
            layer->gradient_bytes - MIN(layer->tied_bytes, layer->gradient_bytes);
        guint64 trainable = MIN(own_gradients, own);

        state->tied_to = layer->tied_bytes > 0 ? 0 : RP_NONE;
        state->tied_bytes = layer->tied_bytes;
        state->input_bytes = layer->input_bytes;
        state->frozen = add_if(planner, host, RP_BUFFER_PARAMETERS, own - trainable);
        for (guint i = 0; i < 2; i++)
            state->weights[i] =
                i == 0 || twice ? add_if(planner, host, RP_BUFFER_PARAMETERS, trainable) : RP_NONE;
        for (guint i = 0; i < RP_MOST_ROUNDS_APART; i++)
            state->gradients[i] =
                i < rp_plan_gradient_buffers(rp_plan_promises(planner->plan))
                    ? add_if(planner, host, RP_BUFFER_GRADIENTS,
                             rp_planner_home_bytes(planner, layer->gradient_bytes))
                    : RP_NONE;
        state->optimizer =
            add_if(planner, host, RP_BUFFER_OPTIMIZER, own_gradients / element * STATE_BYTES);
        state->copied = copied ? add_if(planner, host, RP_BUFFER_OPTIMIZER,
                                        layer->gradient_bytes / element * FP32_BYTES)
                               : RP_NONE;
        rp_plan_set_layer(planner->plan, l, state);
    }
}

/* Gated: one for each iteration that may be under way (rp_plan_decision()). */
static void
lay_out_decisions(RpPlanner *planner)
{
    const RpPlanPromises *promises = rp_plan_promises(planner->plan);
    const guint n = promises->gated && promises->async ? 2 : 1;
    guint32 buffers[2];

    for (guint i = 0; i < n; i++)
        buffers[i] = add_if(planner, planner->options.gpus, RP_BUFFER_OPTIMIZER,
                            RP_DECISION_BYTES(planner->profile->n_layers));
    rp_plan_set_decisions(planner->plan, buffers, n);
}

/* What a forward of each stage sends on. */
static void
note_boundaries(RpPlanner *planner)
{
    for (guint s = 0; s < planner->n_stages; s++) {
        const RpStageInfo *info = &planner->stages[s];
        const GArray *inner =
            planner->inner_boundaries != NULL ? planner->inner_boundaries[s] : NULL;
        guint n_inner = inner != NULL ? inner->len : 0;
        guint *layers = g_new(guint, 1 + n_inner);

        layers[0] = info->layers.first + info->layers.count;
        for (guint i = 0; i < n_inner; i++)
            layers[1 + i] = g_array_index(inner, guint, i);
        rp_plan_set_boundaries(
            planner->plan, s, layers,
            info->phase == RP_PHASE_FORWARD && layers[0] < planner->profile->n_layers ? 1 + n_inner
                                                                                      : 0);
    }
}

static void
add_boundary(RpPlanner *planner, guint layer)
{
    if (layer > 0 && planner->boundary_index[layer] == RP_NONE)
        planner->boundary_index[layer] = planner->n_boundaries++;
}

static void
find_inner_boundaries(RpPlanner *planner)
{
    const RpPartition *partition = planner->partition;

    planner->inner_boundaries = g_new0(GArray *, planner->n_stages);
    for (guint s = 0; s < partition->n_forward; s++) {
        RpInterval layers = partition->forward[s];

        planner->inner_boundaries[s] = g_array_new(FALSE, FALSE, sizeof(guint));
        for (guint b = 0; b < partition->n_backward; b++) {
            guint first = partition->backward[b].first;

            if (first > layers.first && first < layers.first + layers.count)
                g_array_append_val(planner->inner_boundaries[s], first);
        }
    }
}

static gboolean
is_stashed(const RpPlanner *planner, guint layer)
{
    for (guint b = 1; b < planner->partition->n_backward; b++)
        if (planner->partition->backward[b].first == layer)
            return TRUE;
    return FALSE;
}

/* Host side of activations: what waits between two stages, and for its backward. */
static void
lay_out_boundaries(RpPlanner *planner)
{
    gboolean bound = !planner->partition->dispatched;
    gsize round = planner->shape.round;
    guint32 host = planner->options.gpus;

    planner->boundary_index = g_new(guint32, planner->profile->n_layers);
    for (guint l = 0; l < planner->profile->n_layers; l++)
        planner->boundary_index[l] = RP_NONE;
    for (guint s = 0; s < planner->n_stages; s++)
        add_boundary(planner, planner->stages[s].layers.first);
    /* a round may start while the one before it still reads its stash */
    planner->parities =
        !bound && (planner->options.async || planner->rounds * planner->options.calls > 1) ? 2 : 1;
    planner->host_activations =
        g_new(guint32, MAX(1, planner->parities * planner->n_boundaries * round));
    for (guint p = 0; p < planner->parities; p++) {
        for (guint l = 1; l < planner->profile->n_layers; l++) {
            guint32 boundary = planner->boundary_index[l];

            if (boundary == RP_NONE)
                continue;
            RpBufferCategory category =
                !bound && is_stashed(planner, l) ? RP_BUFFER_STASH : RP_BUFFER_ACTIVATIONS;
            gsize first = ((gsize)p * planner->n_boundaries + boundary) * round;
            for (gsize m = 0; m < round; m++)
                planner->host_activations[first + m] =
                    add_if(planner, host, category, rp_boundary_bytes(planner->profile, l));
        }
    }
}

static void
lay_out_host_gradients(RpPlanner *planner)
{
    gboolean bound = !planner->partition->dispatched;
    gsize round = planner->shape.round;
    guint n = bound ? planner->n_stages : 2;
    guint64 largest = 0;

    for (guint l = 1; l < planner->profile->n_layers; l++)
        if (planner->boundary_index[l] != RP_NONE)
            largest = MAX(largest, rp_boundary_bytes(planner->profile, l));
    planner->host_gradients = g_new(guint32, n * round);
    for (guint i = 0; i < n; i++) {
        guint64 bytes = largest;

        if (bound)
            bytes =
                i > 0 ? rp_boundary_bytes(planner->profile, planner->stages[i].layers.first) : 0;
        for (gsize m = 0; m < round; m++)
            planner->host_gradients[i * round + m] =
                add_if(planner, planner->options.gpus, RP_BUFFER_ACTIVATIONS, bytes);
    }
}

void
rp_planner_lay_out(RpPlanner *planner)
{
    gsize actions = (gsize)planner->n_stages * planner->shape.micro_batches;

    if (planner->partition->dispatched)
        find_inner_boundaries(planner);
    planner->resident_parameters = g_new(guint32, planner->n_stages);
    planner->resident_accumulators = g_new(guint32, planner->n_stages);
    planner->backwards_left = g_new0(guint, planner->n_stages);
    planner->stash_of = g_new(guint32, actions);
    planner->kept_of = g_new(guint32, actions);
    planner->gradient_of = g_new(guint32, actions);
    planner->devices = g_new0(RpDeviceState, planner->options.gpus);
    lay_out_layers(planner);
    lay_out_decisions(planner);
    lay_out_boundaries(planner);
    lay_out_host_gradients(planner);
    for (guint s = 0; s < planner->n_stages; s++)
        if (rp_plan_stage(planner->plan, s)->gradients.n_chunks > 0)
            planner->trainable_stages += rp_planner_departures(planner);
    note_boundaries(planner);
    for (guint g = 0; g < planner->options.gpus; g++)
        lay_out_device(planner, g);
    planner->summands = g_array_new(FALSE, FALSE, sizeof(RpSummand));
}

guint32
rp_planner_host_activation(const RpPlanner *planner, guint32 layer, guint32 micro_batch)
{
    guint32 boundary = planner->boundary_index[layer];
    gsize per_round = planner->shape.round;
    gsize turn = (planner->rounds_before + micro_batch / per_round) % planner->parities;

    if (boundary == RP_NONE)
        return RP_NONE;
    return planner->host_activations[(turn * planner->n_boundaries + boundary) * per_round +
                                     micro_batch % per_round];
}

/* @stage is the reader's neighbour that makes the gradient. */
guint32
rp_planner_host_gradient(const RpPlanner *planner, guint32 stage, guint32 micro_batch)
{
    gsize per_round = planner->shape.round;
    gsize row = planner->partition->dispatched ? stage % 2 : stage;

    return planner->host_gradients[row * per_round + micro_batch % per_round];
}

/* One of a kind. A pool keeps one @spare back, so that the next user need not wait for the one that
 * has only just given its buffer back. */
guint32
rp_planner_pool_take(RpPlanner *planner, RpBufferPool *pool, gboolean spare)
{
    if (pool->bytes == 0)
        return RP_NONE;
    if (g_queue_get_length(&pool->free) > (spare ? 1 : 0))
        return GPOINTER_TO_UINT(g_queue_pop_head(&pool->free));
    return rp_plan_add_buffer(planner->plan, pool->arena, pool->category, pool->bytes);
}

void
rp_planner_pool_return(RpBufferPool *pool, guint32 buffer)
{
    if (buffer != RP_NONE)
        g_queue_push_tail(&pool->free, GUINT_TO_POINTER(buffer));
}

void
rp_planner_free_full(RpPlanner *planner)
{
    rp_planner_clear_buffer_states(planner);
    for (guint g = 0; planner->devices != NULL && g < planner->options.gpus; g++) {
        RpDeviceState *device = &planner->devices[g];

        g_queue_clear(&device->stash.free);
        g_queue_clear(&device->kept.free);
        g_queue_clear(&device->local_gradient.free);
        g_array_unref(device->gates);
        g_array_unref(device->old_gates);
    }
    for (guint s = 0; planner->inner_boundaries != NULL && s < planner->n_stages; s++)
        if (planner->inner_boundaries[s] != NULL)
            g_array_unref(planner->inner_boundaries[s]);
    g_free(planner->inner_boundaries);
    if (planner->summands != NULL)
        g_array_unref(planner->summands);
    g_free(planner->devices);
    g_free(planner->layers);
    g_free(planner->next_copy);
    for (guint i = 0; i < 2; i++)
        g_free(planner->layer_left[i]);
    g_free(planner->resident_parameters);
    g_free(planner->resident_accumulators);
    g_free(planner->backwards_left);
    g_free(planner->stash_of);
    g_free(planner->kept_of);
    g_free(planner->gradient_of);
    g_free(planner->boundary_index);
    g_free(planner->host_activations);
    g_free(planner->host_gradients);
}
