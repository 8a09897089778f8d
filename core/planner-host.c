/* Gradients on their way down and on the host, and the optimizer protocol of §4.3.
 *
 * Asynchronous, events, one pass (two weight buffers, version T in buffer T mod 2):
 *
 *   gpus   |-- T reads v(T-2) --|-- T+1 reads v(T-1) --|-- T+2 reads v(T) --|
 *   host             ...step T-1|  |step T: writes v(T)|
 *
 * Lean keeps one buffer: the copy of v(T-1) into it waits until T has uploaded its last stage.
 * Blocking copies everything between two iterations while the devices wait.
 */
#include "core/planner-private.h"

/* Memory traffic of one trainable parameter, bytes (design: one pass 28, separate copies 40); e is
 * the size of a weight or gradient. */
#define STATE_TRAFFIC 24  /* weight and moments read 12, written 12 */
#define FP32_BYTES 4      /* lean: 24 + e; blocking: 24 + 4; fused: 24 + 2 e; copies: 4 + e */
#define SUM_TRAFFIC 2     /* per gradient byte: read and written, beside what is added to it */
#define MOST_BYTES 0x1p62 /* of a task, whatever rates a file says */

static gboolean
is_blocking(const RpPlanner *planner)
{
    return planner->options.consistency == RP_CONSISTENCY_BLOCKING;
}

static gboolean
is_fused(const RpPlanner *planner)
{
    return !is_blocking(planner) && planner->options.optimizer == RP_OPTIMIZER_FUSED;
}

guint32
rp_planner_weight_version(const RpPlanner *planner)
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
}

/* Trained parameters that live with the layer: without a tied matrix. */
static guint64
parameters_of(const RpPlanner *planner, guint layer)
{
    const RpLayer *of = &planner->profile->layers[layer];

    return (of->gradient_bytes - MIN(of->tied_bytes, of->gradient_bytes)) /
           rp_profile_element_bytes(planner->profile);
}

/* The layer whose gradients of a tied matrix are added to those of @layer; RP_NONE. */
static guint
tied_layer(const RpPlanner *planner, guint layer)
{
    guint last = planner->profile->n_layers - 1;

    return last > layer && planner->layers[last].tied_to == layer &&
                   planner->layers[last].gradients != RP_NONE
               ? last
               : RP_NONE;
}

static void
begin_host_task(RpPlanner *planner, RpTaskKind kind, guint32 layer, guint32 iteration)
{
    rp_planner_begin_task(planner, kind, rp_plan_host_lane(planner->plan, RP_HOST_LANE_OPTIMIZER),
                          RP_NONE, RP_NONE);
    planner->task.layer = layer;
    planner->task.iteration = iteration;
}

/* Memory traffic of a fused step that takes as long as a pass over @parameters at @parameters_per_s
 * does, bytes. */
static guint64
bytes_at_rate(const RpPlanner *planner, guint64 parameters, double parameters_per_s)
{
    const guint64 element = rp_profile_element_bytes(planner->profile);
    const double traffic = (double)(STATE_TRAFFIC + 2 * element);
    const double bytes = (double)parameters * traffic *
                         planner->profile->optimizer_parameters_per_s / parameters_per_s;

    return (guint64)MIN(bytes, MOST_BYTES);
}

/* Of a copy between the network's storage and fp32. @parameters_per_s: measured, or 0 */
static guint64
copy_bytes(const RpPlanner *planner, guint64 parameters, double parameters_per_s)
{
    if (parameters_per_s > 0)
        return bytes_at_rate(planner, parameters, parameters_per_s);
    return (FP32_BYTES + rp_profile_element_bytes(planner->profile)) * parameters;
}

static void
append_parameter_copy(RpPlanner *planner, guint layer, guint32 iteration)
{
    const RpPlanLayer *state = &planner->layers[layer];

    if (state->gradients == RP_NONE)
        return;
    begin_host_task(planner, RP_TASK_PARAMETER_COPY, layer, iteration);
    planner->task.bytes = copy_bytes(planner, parameters_of(planner, layer),
                                     planner->profile->parameter_copy_parameters_per_s);
    rp_planner_access(planner, state->optimizer, RP_ACCESS_READ, RP_ROLE_HOST, 0);
    rp_planner_access(planner, state->weights[0], RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
    rp_planner_end_task(planner);
}

static void
append_gradient_copies(RpPlanner *planner, guint32 iteration)
{
    for (guint l = 0; l < planner->profile->n_layers; l++) {
        const RpPlanLayer *state = &planner->layers[l];

        if (state->gradients == RP_NONE)
            continue;
        begin_host_task(planner, RP_TASK_GRADIENT_COPY, l, iteration);
        planner->task.bytes = copy_bytes(planner,
                                         planner->profile->layers[l].gradient_bytes /
                                             rp_profile_element_bytes(planner->profile),
                                         planner->profile->gradient_copy_parameters_per_s);
        rp_planner_access(planner, state->gradients, RP_ACCESS_READ, RP_ROLE_HOST, 0);
        rp_planner_access(planner, state->copied, RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
        rp_planner_end_task(planner);
    }
}

/* Of the pass over all gradients. A matrix that is tied counts twice: two gradients are read. */
static guint64
norm_bytes(const RpPlanner *planner)
{
    const RpProfile *profile = planner->profile;
    const guint64 element = rp_profile_element_bytes(profile);
    guint64 parameters = 0;

    if (profile->norm_parameters_per_s <= 0)
        return 0;
    for (guint l = 0; l < profile->n_layers; l++)
        if (planner->layers[l].gradients != RP_NONE)
            parameters += profile->layers[l].gradient_bytes / element;
    return bytes_at_rate(planner, parameters, profile->norm_parameters_per_s);
}

/* Every gradient of the iteration is home: the global norm is known from here on. */
static void
append_norm(RpPlanner *planner, guint32 iteration)
{
    begin_host_task(planner, RP_TASK_BARRIER, RP_NONE, iteration);
    planner->task.bytes = norm_bytes(planner);
    for (guint g = 0; g < planner->options.gpus; g++)
        rp_planner_depend(planner, planner->devices[g].last_gradient,
                          rp_plan_lane(planner->plan, g, RP_LANE_GRADIENT_DOWN), 0, 0);
    rp_planner_depend(planner, planner->last_accumulate,
                      rp_plan_host_lane(planner->plan, RP_HOST_LANE_ACCUMULATE), 0, 0);
    rp_planner_end_task(planner);
}

static void
append_step(RpPlanner *planner, guint layer, guint32 iteration)
{
    const RpPlanLayer *state = &planner->layers[layer];
    guint version = rp_plan_promises(planner->plan)->double_weights ? iteration % 2 : 0;
    guint64 element = rp_profile_element_bytes(planner->profile);
    guint64 gradient = is_blocking(planner) ? FP32_BYTES : element;
    guint64 traffic = STATE_TRAFFIC + gradient + (is_fused(planner) ? element : 0);
    guint tied = tied_layer(planner, layer);

    if (state->gradients == RP_NONE)
        return;
    begin_host_task(planner, RP_TASK_OPTIMIZER_STEP, layer, iteration);
    planner->task.bytes = traffic * parameters_of(planner, layer);
    rp_planner_access(planner, is_blocking(planner) ? state->copied : state->gradients,
                      RP_ACCESS_READ, RP_ROLE_HOST, 0);
    if (tied != RP_NONE) {
        const RpPlanLayer *other = &planner->layers[tied];

        planner->task.bytes += gradient * (other->tied_bytes / element);
        rp_planner_access(planner, is_blocking(planner) ? other->copied : other->gradients,
                          RP_ACCESS_READ, RP_ROLE_HOST, 0);
    }
    rp_planner_access(planner, state->optimizer, RP_ACCESS_READ | RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
    if (is_fused(planner))
        rp_planner_access(planner, state->weights[version], RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
    rp_planner_end_task(planner);
}

/* The @i-th layer to step. Synchronous: the first layer first, which the next forward needs first.
 * Asynchronous: the last layer first, since its gradients are the first that the running iteration
 * overwrites; a layer that it is tied to comes right after it, for the same reason. One stage has
 * no gradient home before all of the iteration is computed, and uploads from the first layer on. */
static guint
step_order(const RpPlanner *planner, guint i)
{
    guint n = planner->profile->n_layers;
    gboolean tied = tied_layer(planner, 0) != RP_NONE;

    if (!planner->options.async || planner->n_stages == 1)
        return i;
    if (!tied || i == 0)
        return n - 1 - i;
    return i == 1 ? 0 : n - i;
}

static void
append_steps(RpPlanner *planner, guint32 iteration, gboolean with_copies)
{
    for (guint i = 0; i < planner->profile->n_layers; i++) {
        guint layer = step_order(planner, i);

        append_step(planner, layer, iteration);
        if (with_copies)
            append_parameter_copy(planner, layer, iteration);
    }
    planner->next_step = iteration + 1;
}

/* Lean, asynchronous: v(T-1) goes into the one buffer once T has uploaded what it reads. Layers in
 * the order in which backward is through with them. */
static void
append_late_copies(RpPlanner *planner, guint32 iteration)
{
    if (planner->next_copy > iteration)
        return;
    for (guint l = planner->profile->n_layers; l-- > 0;)
        append_parameter_copy(planner, l, iteration);
    planner->next_copy = iteration + 1;
}

/* Of adding @n rounds to a sum: each of them is read, the sum is read and written once. A measured
 * rate is that of one. */
static guint64
accumulate_bytes(const RpPlanner *planner, guint64 gradient_bytes, guint n)
{
    const double rate = planner->profile->accumulate_parameters_per_s;

    if (rate > 0)
        return bytes_at_rate(planner, gradient_bytes / rp_profile_element_bytes(planner->profile),
                             rate * ((SUM_TRAFFIC + 1.0) / (SUM_TRAFFIC + n)));
    return (SUM_TRAFFIC + n) * gradient_bytes;
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
    planner->task.bytes = accumulate_bytes(planner, planner->stages[of.stage].gradient_bytes, n);
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        rp_planner_access(planner, planner->layers[l].gradients, RP_ACCESS_READ | RP_ACCESS_WRITE,
                          RP_ROLE_HOST, 0);
    planner->last_accumulate = rp_planner_end_task(planner);
}

static void
append_sums(RpPlanner *planner)
{
    for (guint i = 0; i < planner->summands->len; i++)
        if (g_array_index(planner->summands, RpSummand, i).stage != RP_NONE)
            append_accumulate(planner, i);
    g_array_set_size(planner->summands, 0);
}

/* Rounds of a stage that leave between the two are added to the sum in one pass over it:
 *
 *   gradient-down  gpu 1  |--round 1--|
 *                  gpu 2  |--round 2--|
 *   accumulate                        |0 + 1 + 2|    moves 4 times its bytes, two sums 6
 */
static void
begin_leaving_together(RpPlanner *planner)
{
    planner->leaving_depth++;
}

static void
end_leaving_together(RpPlanner *planner)
{
    if (--planner->leaving_depth == 0)
        append_sums(planner);
}

static void
download_all(RpPlanner *planner)
{
    begin_leaving_together(planner);
    for (guint g = 0; g < planner->options.gpus; g++)
        rp_planner_download_gradients(planner, g, TRUE);
    end_leaving_together(planner);
}

/* The optimizer of an iteration whose last gradient has just been appended (events). */
static void
append_optimizer(RpPlanner *planner, guint32 iteration)
{
    append_sums(planner);
    append_norm(planner, iteration);
    /* the step overwrites the full-precision weights that the copy reads */
    if (planner->options.async && !is_fused(planner) && iteration > 0)
        append_late_copies(planner, iteration - 1);
    append_steps(planner, iteration, !planner->options.async && !is_fused(planner));
}

static void
append_gradient_chunk(RpPlanner *planner, guint g, guint chunk)
{
    RpDeviceState *device = &planner->devices[g];
    const RpChunks *chunks = &rp_plan_stage(planner->plan, device->leaving_stage)->gradients;
    guint32 last_layer = RP_NONE;

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
    if (device->leaving_round > 0)
        rp_planner_access(planner, device->staging, RP_ACCESS_WRITE, RP_ROLE_STAGING, 0);
    for (guint i = chunks->first_segment[chunk];
         device->leaving_round == 0 && i < chunks->first_segment[chunk + 1]; i++) {
        guint32 layer = chunks->segments[i].layer;

        if (layer != last_layer)
            rp_planner_access(planner, planner->layers[layer].gradients, RP_ACCESS_WRITE,
                              RP_ROLE_HOST, 0);
        last_layer = layer;
    }
    device->last_gradient = rp_planner_end_task(planner);
}

/* Rounds of a stage are added up in their order, whatever devices they were on, so that the result
 * has the same bits on any number of them; round 0 is what the others are added to. */
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
    begin_leaving_together(planner);
    if (device->leaving_round > 0) {
        const RpSummand summand = {.stage = stage,
                                   .iteration = iteration,
                                   .round = device->leaving_round,
                                   .staging = device->staging};

        download_earlier_rounds(planner, g);
        g_array_append_val(planner->summands, summand);
    }
    device->leaving_stage = RP_NONE;
    planner->gradients_left[iteration % 2]--;
    if (planner->gradients_left[iteration % 2] == 0 && !is_blocking(planner))
        append_optimizer(planner, iteration);
    end_leaving_together(planner);
}

/* Gradients of an iteration overwrite those of the one before: its optimizer must stand first. */
static void
flush_older_gradients(RpPlanner *planner)
{
    begin_leaving_together(planner);
    for (guint g = 0; g < planner->options.gpus; g++)
        if (planner->devices[g].leaving_iteration < planner->iteration)
            rp_planner_download_gradients(planner, g, TRUE);
    end_leaving_together(planner);
}

void
rp_planner_leave_gradients(RpPlanner *planner, guint g, guint32 stage, guint32 round)
{
    RpDeviceState *device = &planner->devices[g];

    if (rp_plan_stage(planner->plan, stage)->gradients.n_chunks == 0)
        return;
    rp_planner_download_gradients(planner, g, TRUE);
    if (planner->next_step < planner->iteration)
        flush_older_gradients(planner);
    device->leaving_stage = stage;
    device->leaving_round = round;
    device->leaving_iteration = planner->iteration;
    device->leaving_chunk = 0;
}

static void
end_iteration_blocking(RpPlanner *planner)
{
    guint32 iteration = planner->iteration;

    download_all(planner);
    append_norm(planner, iteration);
    if (planner->options.async && iteration > 0)
        append_late_copies(planner, iteration - 1);
    append_gradient_copies(planner, iteration);
    if (!planner->options.async)
        append_steps(planner, iteration, TRUE);
    begin_host_task(planner, RP_TASK_BARRIER, RP_NONE, iteration);
    for (guint g = 0; g < planner->options.gpus; g++)
        rp_planner_depend(planner, planner->last_compute[g],
                          rp_plan_lane(planner->plan, g, RP_LANE_COMPUTE), 0, 0);
    planner->barrier = rp_planner_end_task(planner);
    if (planner->options.async)
        append_steps(planner, iteration, FALSE);
}

void
rp_planner_end_iteration_host(RpPlanner *planner)
{
    if (is_blocking(planner)) {
        end_iteration_blocking(planner);
        return;
    }
    if (!planner->options.async) {
        download_all(planner);
        if (planner->trainable_stages == 0)
            append_norm(planner, planner->iteration);
        return;
    }
    flush_older_gradients(planner);
    if (!is_fused(planner) && planner->iteration > 0)
        append_late_copies(planner, planner->iteration - 1);
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
    if (planner->options.async && !is_fused(planner))
        append_late_copies(planner, planner->iteration - 1);
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
    guint version = rp_planner_weight_version(planner);

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
