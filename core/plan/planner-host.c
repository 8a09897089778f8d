/* Gradients on their way down and on the host, and weights on their way up (§4.3).
 *
 * Asynchronous, events, one pass (two weight buffers, version T in buffer T mod 2):
 *
 *   gpus   |-- T reads v(T-2) --|-- T+1 reads v(T-1) --|-- T+2 reads v(T) --|
 *   host             ...step T-1|  |step T: writes v(T)|
 *
 * Lean keeps one buffer: the copy of v(T-1) into it waits until T has uploaded its last stage.
 * Blocking copies everything between two iterations while the devices wait.
 */
#include "core/plan/planner-private.h"

#define FP32_BYTES 4

static guint32
weight_version(const RpPlanner *planner)
{
    return rp_plan_promises(planner->plan)->double_weights ? planner->iteration % 2 : 0;
}

void
rp_planner_begin_call_host(RpPlanner *planner)
{
    gsize actions = (gsize)planner->n_stages * planner->shape.micro_batches;

    for (gsize i = 0; i < actions; i++) {
        planner->stash_of[i] = RP_NONE;
        planner->kept_of[i] = RP_NONE;
        planner->gradient_of[i] = RP_NONE;
    }
    if (planner->call > 0)
        return;
    for (guint s = 0; s < planner->n_stages; s++)
        planner->backwards_left[s] = rp_planner_backwards(planner);
    planner->gradients_left[planner->iteration % 2] = planner->trainable_stages;
    for (guint s = 0; s < planner->n_stages; s++) {
        const RpInterval layers = planner->stages[s].layers;

        if (rp_plan_stage(planner->plan, s)->gradients.n_chunks == 0)
            continue;
        for (guint l = layers.first; l < layers.first + layers.count; l++)
            planner->layer_left[planner->iteration % 2][l] = rp_planner_departures(planner);
    }
}

/* Of adding @n rounds, from @first on, to a sum in fp32: each of them is read, the sum is written
 * and, unless it begins, read. A measured rate is that of one that is added. */
static guint64
accumulate_bytes(const RpPlanner *planner, guint64 gradient_bytes, guint first, guint n)
{
    const guint64 element = rp_profile_element_bytes(planner->profile);
    const guint64 parameters = gradient_bytes / element;
    const guint64 each = n * element + (first == 0 ? 1 : 2) * FP32_BYTES;
    const double rate = planner->profile->sum_parameters_per_s;

    if (rate > 0)
        return rp_planner_bytes_at_rate(planner, parameters,
                                        rate * (double)(element + 2 * FP32_BYTES) / (double)each);
    return each * parameters;
}

/* One task for summand @first and those of its stage and iteration behind it. */
static void
append_accumulate(RpPlanner *planner, guint first)
{
    const RpSummand of = g_array_index(planner->summands, RpSummand, first);
    RpInterval layers = planner->stages[of.stage].layers;
    guint n = 0;

    rp_planner_begin_task(planner, RP_TASK_GRADIENT_ACCUMULATE,
                          rp_plan_host_lane(planner->plan, RP_HOST_LANE_ACCUMULATE), of.stage,
                          RP_NONE);
    planner->task.iteration = of.iteration;
    for (guint i = first; i < planner->summands->len; i++) {
        RpSummand *summand = &g_array_index(planner->summands, RpSummand, i);

        if (summand->stage != of.stage || summand->iteration != of.iteration)
            continue;
        g_assert(summand->round == of.round + n);
        planner->task.round = (guint16)summand->round;
        rp_planner_access(planner, summand->staging, RP_ACCESS_READ, RP_ROLE_STAGING, 0);
        summand->stage = RP_NONE;
        n++;
    }
    planner->task.bytes =
        accumulate_bytes(planner, planner->stages[of.stage].gradient_bytes, of.round, n);
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        rp_planner_access(planner, planner->layers[l].gradients[0],
                          of.round == 0 ? RP_ACCESS_WRITE : RP_ACCESS_READ | RP_ACCESS_WRITE,
                          RP_ROLE_HOST, 0);
    rp_planner_end_task(planner);
}

/* What has left of a stage. */
static void
append_sums_of(RpPlanner *planner, guint32 stage, guint32 iteration)
{
    gboolean pending = FALSE;

    for (guint i = 0; i < planner->summands->len; i++) {
        const RpSummand *summand = &g_array_index(planner->summands, RpSummand, i);

        if (summand->stage == stage && summand->iteration == iteration)
            append_accumulate(planner, i);
        pending = pending || summand->stage != RP_NONE;
    }
    if (!pending)
        g_array_set_size(planner->summands, 0);
}

/* Rounds wait to be added in one pass over the sum, until all of the stage have left or the staging
 * buffer of one is needed:
 *
 *   gradient-down  gpu 1  |--round 0--|
 *                  gpu 2     |--round 1--|
 *   accumulate                           |0 + 1|     the sum is written once and never read
 */
static void
empty_staging(RpPlanner *planner, guint32 staging)
{
    for (guint i = 0; i < planner->summands->len; i++) {
        const RpSummand summand = g_array_index(planner->summands, RpSummand, i);

        if (summand.stage != RP_NONE && summand.staging == staging) {
            append_sums_of(planner, summand.stage, summand.iteration);
            return;
        }
    }
}

static void
download_all(RpPlanner *planner)
{
    for (guint g = 0; g < planner->options.gpus; g++)
        rp_planner_download_gradients(planner, g, TRUE);
}

static void
append_gradient_chunk(RpPlanner *planner, guint g, guint chunk)
{
    RpDeviceState *device = &planner->devices[g];
    const RpChunks *chunks = &rp_plan_stage(planner->plan, device->leaving_stage)->gradients;
    const gboolean home = rp_planner_goes_home(planner);
    guint32 last_layer = RP_NONE;

    if (!home)
        empty_staging(planner, device->staging);
    rp_planner_begin_task(planner, RP_TASK_GRADIENT_DOWNLOAD,
                          rp_plan_lane(planner->plan, g, RP_LANE_GRADIENT_DOWN),
                          device->leaving_stage, RP_NONE);
    planner->task.iteration = device->leaving_iteration;
    planner->task.round = (guint16)device->leaving_round;
    planner->task.chunk = chunk;
    planner->task.bytes = chunks->chunk_bytes[chunk];
    /* its window opens when the activation download before it is over */
    if (planner->options.transfers == RP_TRANSFERS_WINDOWS)
        rp_planner_depend(planner, device->last_output,
                          rp_plan_lane(planner->plan, g, RP_LANE_ACTIVATION_DOWN), 0, 0);
    rp_planner_access(planner, device->leaving, RP_ACCESS_READ, RP_ROLE_LEAVING, 0);
    if (!home)
        rp_planner_access(planner, device->staging, RP_ACCESS_WRITE, RP_ROLE_STAGING, 0);
    for (guint i = chunks->first_segment[chunk]; home && i < chunks->first_segment[chunk + 1];
         i++) {
        guint32 layer = chunks->segments[i].layer;

        if (layer != last_layer)
            rp_planner_access(planner,
                              planner->layers[layer]
                                  .gradients[planner->rounds_apart > 0 ? device->leaving_round : 0],
                              RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
        last_layer = layer;
    }
    rp_planner_end_task(planner);
}

/* Rounds of a stage are added up in their order, whatever devices they were on, so that the result
 * has the same bits on any number of them. */
static void
download_earlier_rounds(RpPlanner *planner, guint g)
{
    const RpDeviceState later = planner->devices[g];

    for (guint d = 0; d < planner->options.gpus; d++) {
        const RpDeviceState *device = &planner->devices[d];

        if (device->leaving_stage == later.leaving_stage &&
            device->leaving_iteration == later.leaving_iteration &&
            device->leaving_round < later.leaving_round)
            rp_planner_download_gradients(planner, d, TRUE);
    }
}

void
rp_planner_download_gradients(RpPlanner *planner, guint g, gboolean all)
{
    RpDeviceState *device = &planner->devices[g];
    guint32 stage = device->leaving_stage;
    guint32 iteration = device->leaving_iteration;

    if (stage == RP_NONE)
        return;
    guint n_chunks = rp_plan_stage(planner->plan, stage)->gradients.n_chunks;

    do {
        append_gradient_chunk(planner, g, device->leaving_chunk++);
    } while (all && device->leaving_chunk < n_chunks);
    if (device->leaving_chunk < n_chunks)
        return;
    if (!rp_planner_goes_home(planner)) {
        const RpSummand summand = {.stage = stage,
                                   .iteration = iteration,
                                   .round = device->leaving_round,
                                   .staging = device->staging};

        download_earlier_rounds(planner, g);
        g_array_append_val(planner->summands, summand);
    }
    device->leaving_stage = RP_NONE;
    if (rp_planner_note_home(planner, stage, iteration)) {
        append_sums_of(planner, stage, iteration);
        rp_planner_append_optimizer(planner, stage, iteration);
    }
}

/* Gradients of an iteration overwrite those of the one before: its optimizer must stand first. */
static void
flush_older_gradients(RpPlanner *planner)
{
    for (guint g = 0; g < planner->options.gpus; g++)
        if (planner->devices[g].leaving_iteration < planner->iteration)
            rp_planner_download_gradients(planner, g, TRUE);
}

void
rp_planner_leave_gradients(RpPlanner *planner, guint g, guint32 stage, guint32 round)
{
    RpDeviceState *device = &planner->devices[g];

    if (rp_plan_stage(planner->plan, stage)->gradients.n_chunks == 0)
        return;
    if (planner->keeps_sums && round + 1 < rp_planner_rounds_of_iteration(planner))
        return; /* the next round is added to them */
    rp_planner_download_gradients(planner, g, TRUE);
    if (planner->next_step < planner->iteration)
        flush_older_gradients(planner);
    device->leaving_stage = stage;
    device->leaving_round = round;
    device->leaving_iteration = planner->iteration;
    device->leaving_chunk = 0;
}

void
rp_planner_end_iteration_host(RpPlanner *planner)
{
    if (rp_planner_is_blocking(planner)) {
        download_all(planner);
        rp_planner_append_blocking_optimizer(planner);
        return;
    }
    if (planner->options.async)
        flush_older_gradients(planner);
    else
        download_all(planner);
    rp_planner_end_optimizer(planner);
}

void
rp_planner_flush_host(RpPlanner *planner)
{
    download_all(planner);
}

void
rp_planner_finish_host(RpPlanner *planner)
{
    if (planner->iteration == planner->options.first_iteration)
        return;
    download_all(planner);
    rp_planner_finish_optimizer(planner);
}

static void
read_weights(RpPlanner *planner, guint layer, guint version)
{
    const RpPlanLayer *state = &planner->layers[layer];

    rp_planner_access(planner, state->frozen, RP_ACCESS_READ, RP_ROLE_HOST, 0);
    rp_planner_access(planner, state->weights[version], RP_ACCESS_READ, RP_ROLE_HOST, 0);
}

void
rp_planner_upload_parameters(RpPlanner *planner, guint g, guint32 stage, guint32 device_buffer,
                             gboolean windows)
{
    const RpDeviceState *device = &planner->devices[g];
    const RpChunks *chunks = &rp_plan_stage(planner->plan, stage)->parameters;
    guint version = weight_version(planner);

    for (guint c = 0; c < chunks->n_chunks; c++) {
        guint32 last_layer = RP_NONE;

        rp_planner_begin_task(planner, RP_TASK_PARAMETER_UPLOAD,
                              rp_plan_lane(planner->plan, g, RP_LANE_PARAMETER_UP), stage, RP_NONE);
        planner->task.chunk = c;
        planner->task.round = (guint16)device->round;
        planner->task.bytes = chunks->chunk_bytes[c];
        /* its window opens when the activation upload before it is over */
        if (windows && c < device->old_gates->len)
            rp_planner_depend(planner, g_array_index(device->old_gates, RpTaskId, c),
                              rp_plan_lane(planner->plan, g, RP_LANE_ACTIVATION_UP), 0, 0);
        rp_planner_depend(planner, planner->barrier,
                          rp_plan_host_lane(planner->plan, RP_HOST_LANE_OPTIMIZER), 0, 0);
        rp_planner_access(planner, device_buffer, RP_ACCESS_WRITE, RP_ROLE_PARAMETERS, 0);
        for (guint i = chunks->first_segment[c]; i < chunks->first_segment[c + 1]; i++) {
            guint32 layer = chunks->segments[i].layer;

            if (layer == last_layer)
                continue;
            last_layer = layer;
            read_weights(planner, layer, version);
            if (planner->layers[layer].tied_to != RP_NONE)
                read_weights(planner, planner->layers[layer].tied_to, version);
        }
        rp_planner_end_task(planner);
    }
}

/* The device turns to another stage (or from its forward to its backward). */
static void
begin_slot(RpPlanner *planner, guint g, guint32 stage, guint32 round, gboolean backward)
{
    RpDeviceState *device = &planner->devices[g];
    gboolean same_weights =
        device->stage == stage && device->round == round && device->iteration == planner->iteration;
    GArray *gates = device->old_gates;

    rp_planner_download_gradients(planner, g, TRUE);
    device->old_gates = device->gates;
    device->gates = gates;
    g_array_set_size(gates, 0);
    device->stage = stage;
    device->round = round;
    device->iteration = planner->iteration;
    device->backward = backward;
    if (same_weights)
        return;
    device->parameter_turn ^= 1;
    rp_planner_upload_parameters(planner, g, stage, rp_planner_parameter_buffer(planner, g, stage),
                                 planner->options.transfers == RP_TRANSFERS_WINDOWS);
}

/* Bound and resident: all stages of the device are uploaded when its iteration begins. */
static void
begin_resident_iteration(RpPlanner *planner, guint g)
{
    RpDeviceState *device = &planner->devices[g];

    if (device->stage != RP_NONE && device->iteration == planner->iteration)
        return;
    device->stage = 0;
    device->round = 0;
    device->iteration = planner->iteration;
    for (guint s = 0; s < planner->n_stages; s++)
        if (planner->stages[s].device == g)
            rp_planner_upload_parameters(planner, g, s, planner->resident_parameters[s], FALSE);
}

void
rp_planner_enter(RpPlanner *planner, guint g, const RpAction *action, gboolean backward)
{
    RpDeviceState *device = &planner->devices[g];
    guint32 round = rp_planner_round(planner, action->micro_batch);

    if (!rp_planner_offloads(planner)) {
        begin_resident_iteration(planner, g);
        return;
    }
    if (device->stage != action->stage || device->round != round ||
        device->iteration != planner->iteration || device->backward != backward)
        begin_slot(planner, g, action->stage, round, backward);
    /* the chunk of this window; the first leaves with the slot's first action */
    rp_planner_download_gradients(planner, g, FALSE);
}
