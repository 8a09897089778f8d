/* The optimizer protocol of §4.3: norm, steps and copies of an iteration.
 *
 * Where neither clipping nor skipping needs the norm first, a layer steps as soon as its gradient
 * is home, beside the devices' work on other layers:
 *
 *   gradient-down  |--layers 6, 7--|--layers 4, 5--|
 *   gated                                           |norm|step 0|step 1| ... |step 7|
 *   at once                        |step 7|step 6|  |step 5|step 4| ... |norm|
 */
#include "core/plan/planner-private.h"

/* Memory traffic of one trainable parameter, bytes (design: one pass 28, separate copies 40); e is
 * the size of a weight or gradient. */
#define STATE_TRAFFIC 24  /* weight and moments read 12, written 12 */
#define FP32_BYTES 4      /* lean: 24 + e; blocking: 24 + 4; fused: 24 + 2 e; copies: 4 + e */
#define MOST_BYTES 0x1p62 /* of a task, whatever rates a file says */

static gboolean
is_fused(const RpPlanner *planner)
{
    return !rp_planner_is_blocking(planner) && planner->options.optimizer == RP_OPTIMIZER_FUSED;
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
                   planner->layers[last].gradients[0] != RP_NONE
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
guint64
rp_planner_bytes_at_rate(const RpPlanner *planner, guint64 parameters, double parameters_per_s)
{
    const guint64 element = rp_profile_element_bytes(planner->profile);
    const double traffic = (double)(STATE_TRAFFIC + 2 * element);
    const double bytes = (double)parameters * traffic *
                         planner->profile->optimizer_parameters_per_s / parameters_per_s;

    return (guint64)MIN(bytes, MOST_BYTES);
}

/* Of a copy between storage of @element bytes and fp32. @parameters_per_s: measured with the
 * network's storage, or 0 */
static guint64
copy_bytes(const RpPlanner *planner, guint64 element, guint64 parameters, double parameters_per_s)
{
    const guint64 measured = FP32_BYTES + rp_profile_element_bytes(planner->profile);

    if (parameters_per_s > 0)
        return rp_planner_bytes_at_rate(planner, parameters,
                                        parameters_per_s * (double)measured /
                                            (double)(FP32_BYTES + element));
    return (FP32_BYTES + element) * parameters;
}

static void
append_parameter_copy(RpPlanner *planner, guint layer, guint32 iteration)
{
    const RpPlanLayer *state = &planner->layers[layer];

    if (state->gradients[0] == RP_NONE || planner->first_copy > iteration ||
        planner->next_copy[layer] > iteration)
        return;
    planner->next_copy[layer] = iteration + 1;
    begin_host_task(planner, RP_TASK_PARAMETER_COPY, layer, iteration);
    planner->task.bytes = copy_bytes(planner, rp_profile_element_bytes(planner->profile),
                                     parameters_of(planner, layer),
                                     planner->profile->parameter_copy_parameters_per_s);
    rp_planner_access(planner, state->optimizer, RP_ACCESS_READ, RP_ROLE_HOST, 0);
    rp_planner_access(planner, state->weights[0], RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
    rp_planner_end_task(planner);
}

/* Of a parameter's gradients on the host. */
static guint64
gradient_element(const RpPlanner *planner)
{
    return rp_planner_home_bytes(planner, rp_profile_element_bytes(planner->profile)) *
           rp_plan_gradient_buffers(rp_plan_promises(planner->plan));
}

/* All rounds of them. */
static void
read_gradients(RpPlanner *planner, const RpPlanLayer *layer)
{
    for (guint i = 0; i < RP_MOST_ROUNDS_APART && layer->gradients[i] != RP_NONE; i++)
        rp_planner_access(planner, layer->gradients[i], RP_ACCESS_READ, RP_ROLE_HOST, 0);
}

/* Of what a step reads: copies of them, or themselves. */
static void
read_step_gradients(RpPlanner *planner, const RpPlanLayer *layer)
{
    if (rp_planner_is_blocking(planner))
        rp_planner_access(planner, layer->copied, RP_ACCESS_READ, RP_ROLE_HOST, 0);
    else
        read_gradients(planner, layer);
}

static void
append_gradient_copies(RpPlanner *planner, guint32 iteration)
{
    for (guint l = 0; l < planner->profile->n_layers; l++) {
        const RpPlanLayer *state = &planner->layers[l];

        if (state->gradients[0] == RP_NONE)
            continue;
        begin_host_task(planner, RP_TASK_GRADIENT_COPY, l, iteration);
        planner->task.bytes = copy_bytes(planner, gradient_element(planner),
                                         planner->profile->layers[l].gradient_bytes /
                                             rp_profile_element_bytes(planner->profile),
                                         planner->profile->gradient_copy_parameters_per_s);
        read_gradients(planner, state);
        rp_planner_access(planner, state->copied, RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
        rp_planner_end_task(planner);
    }
}

/* Of the pass over gradients of @layer. A matrix that is tied counts twice: two gradients are read.
 */
static guint64
norm_bytes(const RpPlanner *planner, guint layer)
{
    const RpProfile *profile = planner->profile;
    const guint64 element = rp_profile_element_bytes(profile);

    if (profile->norm_parameters_per_s <= 0)
        return 0;
    /* measured with the network's storage */
    return rp_planner_bytes_at_rate(planner, profile->layers[layer].gradient_bytes / element,
                                    profile->norm_parameters_per_s * (double)element /
                                        (double)gradient_element(planner));
}

static void
access_decision(RpPlanner *planner, guint32 iteration, guint32 mode)
{
    rp_planner_access(planner, rp_plan_decision(planner->plan, iteration), mode, RP_ROLE_DECISION,
                      0);
}

/* Gated: the decision on the iteration, before its steps. Otherwise its end. */
static void
append_norm(RpPlanner *planner, guint32 iteration)
{
    const gboolean gated = rp_plan_promises(planner->plan)->gated;

    begin_host_task(planner, RP_TASK_NORM, RP_NONE, iteration);
    for (guint l = 0; gated && l < planner->profile->n_layers; l++) {
        if (planner->layers[l].gradients[0] == RP_NONE)
            continue;
        planner->task.bytes += norm_bytes(planner, l);
        read_gradients(planner, &planner->layers[l]);
    }
    access_decision(planner, iteration, RP_ACCESS_READ | RP_ACCESS_WRITE);
    rp_planner_end_task(planner);
}

static void
append_step(RpPlanner *planner, guint layer, guint32 iteration)
{
    const RpPlanLayer *state = &planner->layers[layer];
    guint version = rp_plan_promises(planner->plan)->double_weights ? iteration % 2 : 0;
    guint64 element = rp_profile_element_bytes(planner->profile);
    guint64 gradient = rp_planner_is_blocking(planner) ? FP32_BYTES : gradient_element(planner);
    guint64 traffic = STATE_TRAFFIC + gradient + (is_fused(planner) ? element : 0);
    const gboolean gated = rp_plan_promises(planner->plan)->gated;
    guint tied = tied_layer(planner, layer);

    if (state->gradients[0] == RP_NONE)
        return;
    begin_host_task(planner, RP_TASK_OPTIMIZER_STEP, layer, iteration);
    planner->task.bytes =
        traffic * parameters_of(planner, layer) + (gated ? 0 : norm_bytes(planner, layer));
    read_step_gradients(planner, state);
    if (tied != RP_NONE) {
        const RpPlanLayer *other = &planner->layers[tied];

        planner->task.bytes += gradient * (other->tied_bytes / element);
        read_step_gradients(planner, other);
    }
    rp_planner_access(planner, state->optimizer, RP_ACCESS_READ | RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
    if (is_fused(planner))
        rp_planner_access(planner, state->weights[version], RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
    access_decision(planner, iteration, gated ? RP_ACCESS_READ : RP_ACCESS_READ | RP_ACCESS_WRITE);
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
    for (guint l = planner->profile->n_layers; l-- > 0;)
        append_parameter_copy(planner, l, iteration);
}

/* The step of a layer and the copies around it, once all gradients that it reads are home. */
static void
step_if_home(RpPlanner *planner, guint layer, guint32 iteration)
{
    const guint *left = planner->layer_left[iteration % 2];
    const guint tied = tied_layer(planner, layer);

    if (left[layer] > 0 || (tied != RP_NONE && left[tied] > 0))
        return;
    /* all of the iteration's uploads of the layer stand before its gradients */
    if (planner->options.async && !is_fused(planner) && iteration > 0)
        append_parameter_copy(planner, layer, iteration - 1);
    append_step(planner, layer, iteration);
    if (!planner->options.async && !is_fused(planner))
        append_parameter_copy(planner, layer, iteration);
}

gboolean
rp_planner_note_home(RpPlanner *planner, guint32 stage, guint32 iteration)
{
    const RpInterval layers = planner->stages[stage].layers;
    guint *left = planner->layer_left[iteration % 2];

    planner->gradients_left[iteration % 2]--;
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        left[l]--;
    return left[layers.first] == 0;
}

/* Steps of the layers of a stage that is home. */
static void
step_at_once(RpPlanner *planner, guint32 stage, guint32 iteration)
{
    const RpInterval layers = planner->stages[stage].layers;

    for (guint i = 0; i < layers.count; i++) {
        const guint layer = layers.first + (planner->options.async ? layers.count - 1 - i : i);
        const guint tied = planner->layers[layer].tied_to;

        step_if_home(planner, layer, iteration);
        if (tied != RP_NONE && (tied < layers.first || tied >= layers.first + layers.count))
            step_if_home(planner, tied, iteration);
    }
    if (planner->gradients_left[iteration % 2] > 0)
        return;
    append_norm(planner, iteration);
    planner->next_step = iteration + 1;
}

void
rp_planner_append_optimizer(RpPlanner *planner, guint32 stage, guint32 iteration)
{
    if (rp_planner_is_blocking(planner))
        return;
    if (!rp_plan_promises(planner->plan)->gated) {
        step_at_once(planner, stage, iteration);
        return;
    }
    if (planner->gradients_left[iteration % 2] > 0)
        return;
    append_norm(planner, iteration);
    /* the step overwrites the full-precision weights that the copy reads */
    if (planner->options.async && !is_fused(planner) && iteration > 0)
        append_late_copies(planner, iteration - 1);
    append_steps(planner, iteration, !planner->options.async && !is_fused(planner));
}

void
rp_planner_append_blocking_optimizer(RpPlanner *planner)
{
    const guint32 iteration = planner->iteration;

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
rp_planner_end_optimizer(RpPlanner *planner)
{
    if (planner->trainable_stages == 0 && !rp_planner_is_blocking(planner))
        append_norm(planner, planner->iteration);
    if (planner->options.async && !is_fused(planner) && planner->iteration > 0)
        append_late_copies(planner, planner->iteration - 1);
}

void
rp_planner_finish_optimizer(RpPlanner *planner)
{
    if (planner->options.async && !is_fused(planner))
        append_late_copies(planner, planner->iteration - 1);
}
