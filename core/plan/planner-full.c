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
#include "core/plan/device-layout.h"
#include "core/plan/planner-private.h"

/* What an action reads and writes on its device. RP_NONE: nothing. */
typedef struct {
    guint32 input;
    guint32 gradient;
    guint32 output;
    guint32 kept;
    RpTaskId gate; /* upload that opened its window */
} Operands;

static guint32
next_of(const guint32 ring[2], guint *turn)
{
    *turn ^= 1;
    return ring[*turn];
}

static RpTaskId
append_upload(RpPlanner *planner, guint g, RpTaskKind kind, const RpAction *action, guint32 layer,
              guint32 host_buffer, guint32 device_buffer)
{
    RpAccessRole role = kind == RP_TASK_ACTGRAD_UPLOAD ? RP_ROLE_GRADIENT : RP_ROLE_INPUT;

    rp_planner_begin_task(planner, kind, rp_plan_lane(planner->plan, g, RP_LANE_ACTIVATION_UP),
                          action->stage, action->micro_batch);
    planner->task.layer = layer;
    planner->task.round = (guint16)rp_planner_round(planner, action->micro_batch);
    planner->task.bytes = planner->profile->layers[layer].input_bytes;
    rp_planner_access(planner, host_buffer, RP_ACCESS_READ, RP_ROLE_HOST, 0);
    rp_planner_access(planner, device_buffer, RP_ACCESS_WRITE, role, 0);
    return rp_planner_end_task(planner);
}

static void
append_download(RpPlanner *planner, guint g, RpTaskKind kind, const RpAction *action, guint32 layer,
                guint32 device_buffer, guint32 host_buffer)
{
    rp_planner_begin_task(planner, kind, rp_plan_lane(planner->plan, g, RP_LANE_ACTIVATION_DOWN),
                          action->stage, action->micro_batch);
    planner->task.layer = layer;
    planner->task.round = (guint16)rp_planner_round(planner, action->micro_batch);
    planner->task.bytes = planner->profile->layers[layer].input_bytes;
    rp_planner_access(planner, device_buffer, RP_ACCESS_READ, RP_ROLE_OUTPUT, 0);
    rp_planner_access(planner, host_buffer, RP_ACCESS_WRITE, RP_ROLE_HOST, 0);
    planner->devices[g].last_output = rp_planner_end_task(planner);
}

/* Which of a slot's buffers a stage uses; bound stages run both ways in the larger. */
static RpWay
way_of(const RpPlanner *planner, guint32 stage)
{
    return planner->partition->dispatched && planner->stages[stage].phase == RP_PHASE_FORWARD
               ? RP_WAY_FORWARD
               : RP_WAY_BACKWARD;
}

guint32
rp_planner_parameter_buffer(const RpPlanner *planner, guint g, guint32 stage)
{
    const RpDeviceState *device = &planner->devices[g];

    if (planner->stages[stage].parameter_bytes == 0)
        return RP_NONE; /* nothing is uploaded that an action could read */
    return rp_planner_offloads(planner)
               ? device->parameters[way_of(planner, stage)][device->parameter_turn]
               : planner->resident_parameters[stage];
}

static guint32
stash_take(RpPlanner *planner, guint g, guint32 stage, guint32 micro_batch)
{
    guint32 *place = &planner->stash_of[(gsize)stage * planner->shape.micro_batches + micro_batch];

    if (*place == RP_NONE)
        *place = rp_planner_pool_take(planner, &planner->devices[g].stash, TRUE);
    return *place;
}

/* Brings the input of a forward to its device. */
static void
prepare_forward(RpPlanner *planner, guint g, const RpAction *action, Operands *operands)
{
    RpDeviceState *device = &planner->devices[g];
    const RpStageInfo *info = &planner->stages[action->stage];
    guint32 layer = info->layers.first;
    gsize at = (gsize)action->stage * planner->shape.micro_batches + action->micro_batch;
    gboolean local = !planner->partition->dispatched && planner->stash_of[at] != RP_NONE;

    if (!local && planner->profile->layers[layer].input_bytes == 0)
        return; /* token ids that nobody counts */
    operands->input = planner->partition->dispatched
                          ? next_of(device->input, &device->input_turn)
                          : stash_take(planner, g, action->stage, action->micro_batch);
    if (local) /* the stage before it runs on this device and has written it here */
        return;
    operands->gate = append_upload(
        planner, g, RP_TASK_ACTIVATION_UPLOAD, action, layer,
        layer > 0 ? rp_planner_host_activation(planner, layer, action->micro_batch) : RP_NONE,
        operands->input);
}

/* Where the output of a forward goes: down, or straight to the next stage of the same device. */
static void
place_output(RpPlanner *planner, guint g, const RpAction *action, Operands *operands)
{
    RpDeviceState *device = &planner->devices[g];
    guint32 next = action->stage + 1;

    if (action->kind == RP_ACTION_FUSED || next >= planner->n_stages)
        return;
    if (!planner->partition->dispatched && planner->stages[next].device == g)
        operands->output = stash_take(planner, g, next, action->micro_batch);
    else
        operands->output = next_of(device->output, &device->output_turn);
}

static void
finish_forward(RpPlanner *planner, guint g, const RpAction *action, const Operands *operands)
{
    const RpStageInfo *info = &planner->stages[action->stage];
    guint32 next = action->stage + 1;
    guint32 end = info->layers.first + info->layers.count;

    if (next >= planner->n_stages ||
        (!planner->partition->dispatched && planner->stages[next].device == g))
        return;
    append_download(planner, g, RP_TASK_ACTIVATION_DOWNLOAD, action, end, operands->output,
                    rp_planner_host_activation(planner, end, action->micro_batch));
    if (planner->inner_boundaries == NULL)
        return;
    const GArray *inner = planner->inner_boundaries[action->stage];
    for (guint i = 0; i < inner->len; i++) {
        guint layer = g_array_index(inner, guint, i);

        append_download(planner, g, RP_TASK_ACTIVATION_DOWNLOAD, action, layer, operands->output,
                        rp_planner_host_activation(planner, layer, action->micro_batch));
    }
}

/* Brings the stashed input and the gradient of a backward to its device. */
static void
prepare_backward(RpPlanner *planner, guint g, const RpAction *action, Operands *operands)
{
    RpDeviceState *device = &planner->devices[g];
    const RpStageInfo *info = &planner->stages[action->stage];
    guint32 first = info->layers.first;
    guint32 end = first + info->layers.count;
    gboolean dispatched = planner->partition->dispatched;
    gsize at = (gsize)action->stage * planner->shape.micro_batches + action->micro_batch;

    if (!dispatched) {
        operands->input = planner->stash_of[at];
    } else if (planner->profile->layers[first].input_bytes > 0) {
        operands->input = next_of(device->input, &device->input_turn);
        operands->gate = append_upload(
            planner, g, RP_TASK_STASH_UPLOAD, action, first,
            first > 0 ? rp_planner_host_activation(planner, first, action->micro_batch) : RP_NONE,
            operands->input);
    }
    if (end == planner->profile->n_layers)
        return;
    if (!dispatched && planner->stages[action->stage + 1].device == g) {
        operands->gradient = planner->gradient_of[at];
        return;
    }
    guint32 maker = dispatched ? action->stage - 1 : action->stage + 1;
    operands->gradient = next_of(device->gradient, &device->gradient_turn);
    operands->gate = append_upload(planner, g, RP_TASK_ACTGRAD_UPLOAD, action, end,
                                   rp_planner_host_gradient(planner, maker, action->micro_batch),
                                   operands->gradient);
}

static void
place_gradient(RpPlanner *planner, guint g, const RpAction *action, Operands *operands)
{
    RpDeviceState *device = &planner->devices[g];
    guint32 stage = action->stage;
    gsize m = planner->shape.micro_batches;

    if (planner->stages[stage].layers.first == 0)
        return;
    if (!planner->partition->dispatched && planner->stages[stage - 1].device == g) {
        operands->output = rp_planner_pool_take(planner, &device->local_gradient, FALSE);
        planner->gradient_of[(stage - 1) * m + action->micro_batch] = operands->output;
    } else {
        operands->output = next_of(device->output, &device->output_turn);
    }
}

/* Gives back what the backward was the last to read, and sends its gradient on. */
static void
finish_backward(RpPlanner *planner, guint g, const RpAction *action, const Operands *operands)
{
    RpDeviceState *device = &planner->devices[g];
    const RpStageInfo *info = &planner->stages[action->stage];
    gboolean dispatched = planner->partition->dispatched;
    gboolean local_input = !dispatched && action->stage + 1 < planner->n_stages &&
                           planner->stages[action->stage + 1].device == g;
    gboolean local_output =
        !dispatched && action->stage > 0 && planner->stages[action->stage - 1].device == g;

    if (local_input)
        rp_planner_pool_return(&device->local_gradient, operands->gradient);
    if (!dispatched && action->kind != RP_ACTION_INPUT_GRADIENT)
        rp_planner_pool_return(&device->stash, operands->input);
    if (info->layers.first > 0 && !local_output)
        append_download(planner, g, RP_TASK_ACTGRAD_DOWNLOAD, action, info->layers.first,
                        operands->output,
                        rp_planner_host_gradient(planner, action->stage, action->micro_batch));
}

/* Sums the stage's gradients; the last action of the sum turns it into what leaves, or adds it to
 * that of the rounds before. */
static void
access_gradient_sum(RpPlanner *planner, guint g, guint32 stage)
{
    const RpDeviceState *device = &planner->devices[g];
    guint32 sum = rp_planner_offloads(planner) ? device->accumulator[device->parameter_turn]
                                               : planner->resident_accumulators[stage];
    gboolean first = planner->backwards_left[stage] == rp_planner_backwards(planner);

    if (planner->stages[stage].gradient_bytes == 0)
        return;
    rp_planner_access(planner, sum, first ? RP_ACCESS_WRITE : RP_ACCESS_READ | RP_ACCESS_WRITE,
                      RP_ROLE_SUM, 0);
    if (planner->backwards_left[stage] == 1)
        rp_planner_access(planner, device->leaving,
                          planner->keeps_sums && planner->task.round > 0
                              ? RP_ACCESS_READ | RP_ACCESS_WRITE
                              : RP_ACCESS_WRITE,
                          RP_ROLE_LEAVING, 0);
}

static void
count_gradient(RpPlanner *planner, guint g, const RpAction *action)
{
    guint32 stage = action->stage;

    if (--planner->backwards_left[stage] > 0)
        return;
    planner->backwards_left[stage] = rp_planner_backwards(planner);
    rp_planner_leave_gradients(planner, g, stage, rp_planner_round(planner, action->micro_batch));
    if (!rp_planner_offloads(planner))
        rp_planner_download_gradients(planner, g, TRUE);
}

static void
begin_compute(RpPlanner *planner, guint g, const RpAction *action, gint64 duration_ns,
              gint64 lead_ns)
{
    const RpDeviceState *device = &planner->devices[g];

    rp_planner_begin_task(planner, (RpTaskKind)action->kind,
                          rp_plan_lane(planner->plan, g, RP_LANE_COMPUTE), action->stage,
                          action->micro_batch);
    planner->task.round = (guint16)rp_planner_round(planner, action->micro_batch);
    planner->task.duration_ns = duration_ns;
    planner->task.lead_ns = lead_ns;
    rp_planner_access(planner, rp_planner_parameter_buffer(planner, g, action->stage),
                      RP_ACCESS_READ, RP_ROLE_PARAMETERS, 0);
    rp_planner_access(planner,
                      device->workspace[way_of(planner, action->stage)][device->parameter_turn],
                      RP_ACCESS_WRITE, RP_ROLE_WORKSPACE, 0);
}

static void
access_operands(RpPlanner *planner, const Operands *operands, guint32 gradient_phase)
{
    rp_planner_access(planner, operands->input, RP_ACCESS_READ, RP_ROLE_INPUT, 0);
    rp_planner_access(planner, operands->output, RP_ACCESS_WRITE, RP_ROLE_OUTPUT, 0);
    rp_planner_access(planner, operands->kept, RP_ACCESS_WRITE, RP_ROLE_KEPT, 0);
    rp_planner_access(planner, operands->gradient, RP_ACCESS_READ, RP_ROLE_GRADIENT,
                      gradient_phase);
}

/* The head makes the loss, scaled as the newest decision has it. */
static void
access_decision(RpPlanner *planner, guint32 stage)
{
    const RpInterval layers = planner->stages[stage].layers;

    if (rp_plan_promises(planner->plan)->gated &&
        layers.first + layers.count == planner->profile->n_layers)
        rp_planner_access(planner, rp_plan_decision(planner->plan, planner->iteration),
                          RP_ACCESS_READ, RP_ROLE_DECISION, 0);
}

static const Operands no_operands = {RP_NONE, RP_NONE, RP_NONE, RP_NONE, RP_TASK_NONE};

static RpTaskId
append_forward(RpPlanner *planner, guint g, const RpAction *action, Operands *operands)
{
    RpTaskId id;

    prepare_forward(planner, g, action, operands);
    place_output(planner, g, action, operands);
    begin_compute(planner, g, action, planner->stages[action->stage].forward_ns, 0);
    access_operands(planner, operands, 0);
    id = rp_planner_end_task(planner);
    finish_forward(planner, g, action, operands);
    return id;
}

static RpTaskId
append_fused(RpPlanner *planner, guint g, const RpAction *action, Operands *operands)
{
    RpTaskId id;

    prepare_forward(planner, g, action, operands);
    place_gradient(planner, g, action, operands);
    begin_compute(planner, g, action, planner->stages[action->stage].backward_ns, 0);
    access_operands(planner, operands, 0);
    access_gradient_sum(planner, g, action->stage);
    access_decision(planner, action->stage);
    id = rp_planner_end_task(planner);
    finish_backward(planner, g, action, operands);
    return id;
}

/* B, or I of a split backward. */
static RpTaskId
append_backward(RpPlanner *planner, guint g, const RpAction *action, Operands *operands)
{
    const RpStageInfo *info = &planner->stages[action->stage];
    gboolean split = action->kind == RP_ACTION_INPUT_GRADIENT;
    gsize at = (gsize)action->stage * planner->shape.micro_batches + action->micro_batch;
    RpTaskId id;

    prepare_backward(planner, g, action, operands);
    place_gradient(planner, g, action, operands);
    if (split) {
        operands->kept = rp_planner_pool_take(planner, &planner->devices[g].kept, FALSE);
        planner->kept_of[at] = operands->kept;
    }
    begin_compute(planner, g, action, info->backward_ns - (split ? info->weight_ns : 0),
                  planner->early ? info->lead_ns : 0);
    access_operands(planner, operands, planner->early ? 1 : 0);
    if (!split)
        access_gradient_sum(planner, g, action->stage);
    access_decision(planner, action->stage);
    id = rp_planner_end_task(planner);
    finish_backward(planner, g, action, operands);
    return id;
}

static RpTaskId
append_weight_gradient(RpPlanner *planner, guint g, const RpAction *action)
{
    RpDeviceState *device = &planner->devices[g];
    gsize at = (gsize)action->stage * planner->shape.micro_batches + action->micro_batch;
    RpTaskId id;

    begin_compute(planner, g, action, planner->stages[action->stage].weight_ns, 0);
    rp_planner_access(planner, planner->kept_of[at], RP_ACCESS_READ, RP_ROLE_KEPT, 0);
    rp_planner_access(planner, planner->stash_of[at], RP_ACCESS_READ, RP_ROLE_INPUT, 0);
    access_gradient_sum(planner, g, action->stage);
    id = rp_planner_end_task(planner);
    rp_planner_pool_return(&device->kept, planner->kept_of[at]);
    rp_planner_pool_return(&device->stash, planner->stash_of[at]);
    return id;
}

/* F and B of two stages as one action. */
static RpTaskId
append_overlap(RpPlanner *planner, guint g, const RpAction *action, Operands *operands)
{
    RpAction forward = *action;
    RpAction backward = {.kind = RP_ACTION_BACKWARD,
                         .stage = action->backward_stage,
                         .micro_batch = action->backward_micro_batch};
    Operands other = no_operands;
    RpTaskId id;

    prepare_forward(planner, g, &forward, operands);
    place_output(planner, g, &forward, operands);
    prepare_backward(planner, g, &backward, &other);
    place_gradient(planner, g, &backward, &other);
    begin_compute(
        planner, g, action,
        planner->stages[action->stage].forward_ns + planner->stages[backward.stage].backward_ns, 0);
    planner->task.backward_stage = backward.stage;
    planner->task.backward_micro_batch =
        rp_planner_global_micro_batch(planner, backward.micro_batch);
    if (backward.stage != action->stage)
        rp_planner_access(planner, rp_planner_parameter_buffer(planner, g, backward.stage),
                          RP_ACCESS_READ, RP_ROLE_PARAMETERS, 0);
    access_operands(planner, operands, 0);
    access_operands(planner, &other, 0);
    access_gradient_sum(planner, g, backward.stage);
    access_decision(planner, backward.stage);
    id = rp_planner_end_task(planner);
    finish_forward(planner, g, &forward, operands);
    finish_backward(planner, g, &backward, &other);
    count_gradient(planner, g, &backward);
    return id;
}

RpTaskId
rp_planner_full_action(RpPlanner *planner, guint g, const RpAction *action)
{
    RpDeviceState *device = &planner->devices[g];
    gboolean backward = action->kind != RP_ACTION_FORWARD && action->kind != RP_ACTION_OVERLAP;
    Operands operands = no_operands;
    RpTaskId id = RP_TASK_NONE;

    rp_planner_enter(planner, g, action, backward);
    switch ((RpActionKind)action->kind) {
    case RP_ACTION_FORWARD:
        id = append_forward(planner, g, action, &operands);
        break;
    case RP_ACTION_FUSED:
        id = append_fused(planner, g, action, &operands);
        break;
    case RP_ACTION_BACKWARD:
    case RP_ACTION_INPUT_GRADIENT:
        id = append_backward(planner, g, action, &operands);
        break;
    case RP_ACTION_WEIGHT_GRADIENT:
        id = append_weight_gradient(planner, g, action);
        break;
    case RP_ACTION_OVERLAP:
        id = append_overlap(planner, g, action, &operands);
        break;
    }
    g_array_append_val(device->gates, operands.gate);
    if (backward && action->kind != RP_ACTION_INPUT_GRADIENT)
        count_gradient(planner, g, action);
    return id;
}
