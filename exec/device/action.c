#include "exec/device/action.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "exec/device/batch-feed.h"
#include "exec/device/error.h"

static const RpKernels *
kernels_of(const RpDeviceAction *action)
{
    return rp_network_kernels(action->map->network);
}

/* Whether sums begin with the action; with one in pieces each piece begins those of its layers. */
static gboolean
begins_sums(const RpTaskMap *map, guint device, const RpBackendTask *task)
{
    const RpBackendAccess *sum = rp_task_access(task, RP_ROLE_SUM);
    const gsize place = rp_task_map_place(map, task->task.iteration, task->task.micro_batch);

    if (sum == NULL)
        return FALSE;
    if ((sum->mode & RP_ACCESS_READ) == 0)
        map->devices[device].begun = 1 + place;
    return (sum->mode & RP_ACCESS_READ) == 0 ||
           (rp_task_is_piece(&task->task) && map->devices[device].begun == 1 + place);
}

/* Tokens of the longest sequence of the task's micro-batch, where noise depends on it. */
static guint32
padded_length(const RpTaskMap *map, const RpTask *task)
{
    guint m;
    guint32 longest = 0;

    if (rp_network_options(map->network)->noise <= 0 || rp_host_state_evaluates(map->host_state))
        return 0;
    const RpTokenBatch *batch =
        rp_batch_feed_find(map->feed, task->iteration, task->micro_batch, &m)->batch;

    for (guint i = 0; i < batch->sequences; i++)
        longest = MAX(longest, batch->lengths[(gsize)m * batch->sequences + i]);
    return longest;
}

/* Whether the task is of a reference that is the model without its adapters. */
static gboolean
leaves_adapters_out(const RpTaskMap *map, const RpTask *task)
{
    guint m;

    return rp_host_state_evaluates(map->host_state) &&
           rp_network_options(map->network)->preference.reference != RP_REFERENCE_COPY &&
           rp_batch_feed_find(map->feed, task->iteration, 0, &m)->by_reference;
}

/* Memory and layers; the head's part, and who observes, are set later. */
static RpStageCall
call_of(const RpTaskMap *map, guint device, const RpBackendTask *task)
{
    const RpPlanStage *stage = rp_task_stage(map, task);

    return (RpStageCall){
        .layers = stage->layers,
        .stream = map->devices[device].stream,
        .constants = map->memory[device] + map->constants[device],
        .parameters = rp_task_parameters(map, task),
        .residents = rp_modes_pack(map->modes) ? (RpResidents){0} : rp_task_residents(map, device),
        .input = rp_task_operand(map, task, RP_ROLE_INPUT),
        .boundaries = stage->boundaries,
        .n_boundaries = task->task.kind == RP_TASK_FORWARD ? stage->n_boundaries : 0,
        .output = rp_task_operand(map, task, RP_ROLE_OUTPUT),
        .saved = rp_task_saved(map, device, task),
        .gradient = rp_task_operand(map, task, RP_ROLE_GRADIENT),
        .sums = rp_task_operand(map, task, RP_ROLE_SUM),
        .begins_sums = begins_sums(map, device, task),
        .workspace = rp_task_operand(map, task, RP_ROLE_WORKSPACE),
        .adapters_off = leaves_adapters_out(map, &task->task),
        .drops = !rp_host_state_evaluates(map->host_state),
        .step = (guint32)rp_host_state_step(map->host_state, task->task.iteration),
        .first_token = (guint32)(task->task.micro_batch * map->tokens),
        .padded = padded_length(map, &task->task),
    };
}

/* Looks at a layer's output, once it is there, and records the first token at which it is not finite. */
static void
observe(gpointer user_data, guint layer, const void *output)
{
    const RpDeviceAction *action = user_data;
    const RpTaskMap *map = action->map;

    kernels_of(action)->find_broken(action->call.stream,
                                    &(RpFindBrokenArgs){
                                        .dtype = rp_network_options(map->network)->dtype,
                                        .n = rp_network_hidden_elements(map->network),
                                        .columns = rp_network_model(map->network)->hidden,
                                        .x = output,
                                        .left = map->broken + action->place * map->n_layers + layer,
                                    });
}

/* Lowest layer that was recorded, or G_MAXINT32. All of the micro-batch's layers have run. */
static RpBrokenOutput
take_broken(const RpTaskMap *map, gsize place)
{
    volatile guint32 *left = map->broken + place * map->n_layers;
    const guint32 rows = (guint32)(rp_network_hidden_elements(map->network) /
                                   rp_network_model(map->network)->hidden);
    RpBrokenOutput lowest = {.layer = G_MAXINT32};

    for (guint l = map->n_layers; l-- > 0;) {
        if (left[l] == 0)
            continue;
        lowest = (RpBrokenOutput){.layer = (gint32)l,
                                  .token = (rows - left[l]) * (guint32)(map->tokens / rows)};
        left[l] = 0;
    }
    return lowest;
}

/* Samples whose losses are added up: of a preference pairs or labelled answers, else targets. */
static guint64
count_units(const RpBatchFeedCall *call, guint m)
{
    const RpTokenBatch *batch = call->batch;
    guint64 n = 0;

    if (!batch->preference)
        return batch->n_micro_targets[m];
    for (guint d = 0; d < batch->n_starts[m]; d++) {
        const RpAnswerKind kind = (RpAnswerKind)rp_token_batch_answers(batch, m)[d];

        n += rp_answer_is_chosen(kind) || kind == RP_ANSWER_UNDESIRABLE;
    }
    return n;
}

/* Log-probabilities of a forward's documents. */
static float *
scores_of(const RpTaskMap *map, guint64 iteration, guint32 micro_batch)
{
    return map->scores +
           (iteration % RP_SCORE_RING * map->micro_batches + micro_batch) * map->tokens;
}

gboolean
rp_device_action_take_loss(const RpTaskMap *map, guint64 iteration, guint32 micro_batch,
                           GError **error)
{
    const gsize place = rp_task_map_place(map, iteration, micro_batch);
    const double *losses = map->losses + place * map->n_losses;
    const RpBrokenOutput broken = take_broken(map, place);
    guint m;
    RpBatchFeedCall *call = rp_batch_feed_find(map->feed, iteration, micro_batch, &m);

    call->broken_layer[m] = broken.layer;
    if (map->n_losses > 1)
        call->aux_losses[m] = (double)count_units(call, m) * losses[1];
    if (call->batch->preference)
        call->sums[m] = *rp_stage_sums(losses);
    if (call->scores)
        memcpy(rp_token_batch_references(call->batch, m), scores_of(map, iteration, micro_batch),
               call->batch->n_starts[m] * sizeof *map->scores);
    if (!rp_host_state_take_loss(map->host_state, iteration, micro_batch, losses[0], broken, error))
        return FALSE;
    rp_batch_feed_set_loss(map->feed, call, m, losses[0]);
    return TRUE;
}

/* Address of its micro-batch's losses on the device. */
static double *
loss_of(const RpDeviceAction *action)
{
    return action->map->devices[action->device].losses + action->place * action->map->n_losses;
}

/* The first row of each document, behind the last one's rows as many; then kinds, then references.
 * @all: rows are all tokens, not those with a target alone */
static gsize
list_documents(const RpTokenBatch *batch, guint m, gboolean all, gint32 *numbers)
{
    const gint32 *targets = rp_token_batch_targets(batch, m);
    const gint32 *starts = rp_token_batch_starts(batch, m);
    const guint8 *answers = rp_token_batch_answers(batch, m);
    const gsize n = batch->n_starts[m];
    gint32 row = 0, t = 0;

    for (gsize d = 0; d <= n; d++) {
        for (; t < starts[d]; t++)
            row += all || targets[t] != RP_LABEL_MASKED;
        numbers[d] = row;
    }
    for (gsize d = 0; d < n; d++)
        numbers[n + 1 + d] = answers[d];
    memcpy(numbers + 2 * n + 1, rp_token_batch_references(batch, m), n * sizeof *numbers);
    return 3 * n + 1;
}

/* The call's part of a preference, whose numbers the device has behind targets and rows. */
static void
set_documents(RpDeviceAction *action, const RpTokenBatch *batch, guint m)
{
    const RpTaskMap *map = action->map;
    const RpTask *task = &action->task->task;
    const gint32 *numbers = action->call.targets + 2 * map->tokens;
    const guint n = batch->n_starts[m];
    const double weight = rp_network_options(map->network)->preference.sft_weight;
    RpStageDocuments documents = {.n = n,
                                  .first = numbers,
                                  .answers = numbers + n + 1,
                                  .references = (const float *)(numbers + 2 * n + 1)};

    if (batch->n_chosen_targets > 0)
        documents.nll_scale = weight * (double)batch->n_pairs / (double)batch->n_chosen_targets;
    if (rp_host_state_evaluates(map->host_state))
        documents.logps = scores_of(map, task->iteration, task->micro_batch);
    action->call.documents = documents;
}

/* Targets, those that are masked left out if they are many. */
static gboolean
begin_head(RpDeviceAction *action, const RpDeviceActionOps *ops, GError **error)
{
    const RpTaskMap *map = action->map;
    const RpTask *task = &action->task->task;
    gint32 *packed = map->packed + map->head_numbers * action->device;
    guint m;
    const RpBatchFeedCall *call =
        rp_batch_feed_find(map->feed, task->iteration, task->micro_batch, &m);
    const gboolean prefers = call->batch->preference;
    const gint32 *targets = rp_token_batch_targets(call->batch, m);
    /* a layer of the caller's program reads labels beside each other */
    const guint n =
        rp_network_model(map->network)->custom != NULL
            ? RP_TARGETS_ALL
            : rp_targets_pack(targets, (guint)map->tokens, packed, packed + map->tokens);
    const gboolean all = n == RP_TARGETS_ALL;
    gsize n_more = 0;

    if (all && prefers)
        targets = memcpy(packed, targets, map->tokens * sizeof *packed);
    if (prefers)
        n_more = list_documents(call->batch, m, all, packed + 2 * map->tokens);
    action->call.loss = loss_of(action);
    action->call.scale = rp_host_state_scale(map->host_state, task->iteration,
                                             rp_task_access(action->task, RP_ROLE_DECISION));
    action->call.aux_scale = action->call.scale * (float)count_units(call, m);
    if (!ops->begin_head(action, all ? targets : packed, all ? (guint)map->tokens : n, !all, n_more,
                         error))
        return FALSE;
    action->call.rows = all ? NULL : action->call.targets + map->tokens;
    action->call.n_rows = all ? 0 : n;
    if (prefers)
        set_documents(action, call->batch, m);
    return TRUE;
}

/* First tokens of the micro-batch's samples, several of which share a sequence, and of padding. */
static gboolean
set_places(RpDeviceAction *action, const RpDeviceActionOps *ops, GError **error)
{
    const RpTaskMap *map = action->map;
    const RpTask *task = &action->task->task;
    guint m;
    const RpBatchFeedCall *call =
        rp_batch_feed_find(map->feed, task->iteration, task->micro_batch, &m);
    const RpTokenBatch *batch = call->batch;
    const guint32 *lengths = batch->lengths + (gsize)m * batch->sequences;
    gint32 *places = map->places + map->most_places * action->device;

    if (batch->packed) {
        action->call.has_gaps = batch->preference && batch->n_shared[m] > 0;
        action->call.n_samples = batch->n_starts[m] - (batch->preference ? batch->n_shared[m] : 0);
        action->call.longest = batch->longest[m];
    }
    if (rp_task_is_piece(task) && task->first_step > 0)
        return TRUE; /* they are there */
    gsize n = batch->packed
                  ? rp_network_places(map->network, lengths, rp_token_batch_starts(batch, m),
                                      batch->preference ? rp_token_batch_shared(batch, m) : NULL,
                                      batch->n_starts[m], places)
                  : rp_network_places(map->network, lengths, NULL, NULL, 0, places);
    return ops->set_places(action, places, n, error);
}

/* Sums of @layers of the action's stage. */
static float *
sums_of(const RpDeviceAction *action, RpInterval layers)
{
    const RpInterval before = {action->call.layers.first, layers.first - action->call.layers.first};

    return action->call.sums + rp_network_elements(action->map->network, before);
}

/* Sums the squares of each layer's leaving gradients, for the norm; not of a tied matrix, to which
 * other gradients are added on the host. */
static void
sum_squares(const RpDeviceAction *action, RpInterval layers, const guint8 *leaving)
{
    const RpTaskMap *map = action->map;
    const RpTask *task = &action->task->task;
    double *row = map->squares + task->iteration % RP_BATCH_FEED_RING * map->n_layers;

    for (guint l = layers.first; l < layers.first + layers.count; l++) {
        const RpLayerLayout *layout = rp_network_layout(map->network, l);
        const gboolean is_tied =
            l == 0 && rp_network_layout(map->network, map->n_layers - 1)->tied_elements > 0;
        const RpSumSquaresArgs args = {.dtype = rp_task_map_leaving_dtype(map),
                                       .n = layout->elements - layout->tied_elements,
                                       .x = leaving,
                                       .sum = row + l,
                                       .workspace = map->devices[action->device].squares_workspace};

        if (!is_tied && args.n > 0)
            kernels_of(action)->sum_squares(action->call.stream, &args);
        leaving += layout->elements * rp_dtype_size(rp_task_map_leaving_dtype(map));
    }
}

/* The last part of an action whose slot's sum is complete: rounds it to the network's storage, in
 * which it leaves or, where sums stay on the device, is added to that of the rounds before. */
static void
leave(const RpDeviceAction *action)
{
    const RpTaskMap *map = action->map;
    const RpBackendAccess *access = rp_task_access(action->task, RP_ROLE_LEAVING);
    const RpDtype dtype = rp_network_options(map->network)->dtype;
    const RpInterval layers =
        action->call.steps != NULL ? action->call.steps->down : action->call.layers;
    const float *sums = sums_of(action, layers);
    const guint64 n = rp_network_elements(map->network, layers);
    void *leaving = rp_task_operand(map, action->task, RP_ROLE_LEAVING);

    if (access == NULL)
        return;
    if (map->modes->gradients == RP_GRADIENTS_KEPT)
        kernels_of(action)->gather(action->call.stream,
                                   &(RpGatherArgs){.dtype = dtype,
                                                   .n = n,
                                                   .begin = (access->mode & RP_ACCESS_READ) == 0,
                                                   .x = sums,
                                                   .y = leaving});
    else
        kernels_of(action)->convert(
            action->call.stream,
            &(RpElementsArgs){
                .n = n, .x = sums, .y = leaving, .x_dtype = RP_DTYPE_FP32, .y_dtype = dtype});
    if (map->squares != NULL && action->task->task.round + 1U == map->modes->rounds)
        sum_squares(action, layers, leaving);
}

/* Whether the action has made the loss, of which all of its sums know when it ends; in pieces, the one
 * that makes the first of them. */
static gboolean
makes_loss(const RpDeviceAction *action)
{
    const RpStageSteps *steps = action->call.steps;

    if (steps == NULL || action->call.sums == NULL)
        return action->call.loss != NULL;
    return sums_of(action, steps->down) == action->call.sums &&
           rp_network_elements(action->map->network, steps->down) > 0;
}

/* A loss may be infinite and its gradients finite: they are made not finite, so that the norm sees
 * it. A stage that trains nothing passes it to the stages before it in the gradient that leaves it:
 * half of an fp32 NaN is one of 16 bits, and goes into each of their sums. */
static void
end_sums(const RpDeviceAction *action)
{
    float *told = action->call.sums != NULL ? action->call.sums : action->call.output;

    if (makes_loss(action) && told != NULL && rp_host_state_skips(action->map->host_state))
        kernels_of(action)->break_sum(action->call.stream,
                                      &(RpBreakSumArgs){.loss = loss_of(action), .sum = told});
    leave(action);
}

static void
run_backward(const RpDeviceAction *action, RpTaskPart part)
{
    if (part != RP_PART_REST)
        rp_network_recompute(action->map->network, &action->call);
    if (part == RP_PART_LEAD)
        return;
    rp_network_backward(action->map->network, &action->call);
    end_sums(action);
}

static void
run_fused(const RpDeviceAction *action)
{
    rp_network_fused(action->map->network, &action->call);
    if (action->call.steps == NULL || action->call.steps->down.count > 0)
        end_sums(action);
}

static gboolean
check(const RpDeviceAction *action, GError **error)
{
    if (kernels_of(action)->check(action->map->devices[action->device].stream, error))
        return TRUE;
    return rp_prefix_error(error, "device %u: ", action->device);
}

static gboolean
run_expand(const RpDeviceAction *action, GError **error)
{
    rp_network_expand(action->map->network, action->map->devices[action->device].stream,
                      rp_task_stage(action->map, action->task)->layers,
                      rp_task_operand(action->map, action->task, RP_ROLE_PACKED),
                      rp_task_residents(action->map, action->device),
                      rp_task_operand(action->map, action->task, RP_ROLE_PARAMETERS));
    return check(action, error);
}

static gboolean
refuse(const RpDeviceAction *action, GError **error)
{
    return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_PLAN,
                   "the %s backend runs a backward as a whole, and has no %s: use a schedule that "
                   "neither splits nor merges actions",
                   kernels_of(action)->name,
                   rp_task_kind_name((RpTaskKind)action->task->task.kind));
}

static gboolean
runs_head(const RpDeviceAction *action)
{
    const RpInterval layers =
        action->call.steps != NULL ? action->call.steps->down : action->call.layers;

    return layers.count > 0 && layers.first + layers.count == action->map->n_layers;
}

gboolean
rp_device_action_run(const RpTaskMap *map, const RpDeviceActionOps *ops, RpBackend *backend,
                     guint device, const RpBackendTask *task, RpTaskPart part, GError **error)
{
    const RpTaskKind kind = (RpTaskKind)task->task.kind;
    RpDeviceAction action = {.map = map, .backend = backend, .device = device, .task = task};
    RpStageSteps steps;

    if (kind == RP_TASK_EXPAND)
        return run_expand(&action, error);
    if (kind != RP_TASK_FORWARD && kind != RP_TASK_BACKWARD && kind != RP_TASK_FUSED)
        return refuse(&action, error);
    action.call = call_of(map, device, task);
    action.place = rp_task_map_place(map, task->task.iteration, task->task.micro_batch);
    if (rp_task_is_piece(&task->task)) {
        steps = rp_task_steps(map, task);
        action.call.steps = &steps;
    }
    if (kind != RP_TASK_BACKWARD) {
        action.call.observe = observe;
        action.call.observe_data = &action;
    }
    if (map->places != NULL && !set_places(&action, ops, error))
        return FALSE;
    if ((kind != RP_TASK_FORWARD || rp_host_state_evaluates(map->host_state)) &&
        part != RP_PART_LEAD && runs_head(&action) && !begin_head(&action, ops, error))
        return FALSE;
    if (kind == RP_TASK_FORWARD)
        rp_network_forward(map->network, &action.call);
    else if (kind == RP_TASK_FUSED)
        run_fused(&action);
    else
        run_backward(&action, part);
    if (!check(&action, error))
        return FALSE;
    return action.call.loss == NULL || ops->send_loss(&action, error);
}

#define ALIGNMENT 256

/* Memory that is handed out front to back; beyond @bytes it only counts. */
typedef struct {
    guintptr memory;
    guint64 bytes, used;
} Space;

static void *
take(Space *space, guint64 bytes)
{
    void *at = (void *)(space->memory + space->used);

    space->used += rp_align_up(bytes, ALIGNMENT);
    return at;
}

/* The call but for its output; @d_input: the backward's. */
static RpStageCall
make_call(const RpNetwork *network, const RpProfile *profile, guint layer, Space *space,
          void **d_input)
{
    const RpLayer *sizes = &profile->layers[layer];
    const RpLayerLayout *layout = rp_network_layout(network, layer);
    const guint64 hidden = rp_network_hidden_bytes(network);

    *d_input = layer > 0 ? take(space, hidden) : NULL;
    return (RpStageCall){
        .layers = {layer, 1},
        .parameters = take(space, layout->bytes),
        .input = take(space, MAX(hidden, sizes->input_bytes)),
        .gradient = take(space, hidden),
        .output = take(space, hidden),
        .sums = take(space, layout->elements * sizeof(float)),
        .workspace =
            take(space, sizes->activation_bytes +
                            profile->layers[profile->n_layers - 1].activation_bytes +
                            MAX(sizes->forward_workspace_bytes, sizes->backward_workspace_bytes)),
        .targets = take(space, rp_profile_micro_batch_tokens(profile) * sizeof(gint32)),
        .loss = take(space, RP_STAGE_LOSSES * sizeof(double)),
        .scale = 1,
        .drops = TRUE};
}

static void
rehearse_layer(const RpNetwork *network, const RpProfile *profile, guint layer,
               RpKernelStream *stream, const void *constants, Space space)
{
    const gboolean head = profile->layers[layer].kind == RP_LAYER_HEAD;
    const guint boundary = layer + 1;
    void *d_input;
    RpStageCall call = make_call(network, profile, layer, &space, &d_input);
    const void *upload = take(&space, profile->layers[layer].upload_bytes);

    if (space.used > space.bytes)
        return;
    call.stream = stream;
    call.constants = constants;
    call.boundaries = &boundary;
    call.n_boundaries = head ? 0 : 1;
    if (rp_preference_is_used(&rp_network_options(network)->preference))
        call.documents.first = call.targets; /* there are none of them */
    rp_network_kernels(network)->fill(stream, &(RpFillArgs){.dtype = RP_DTYPE_FP32,
                                                            .n = space.used / sizeof(float),
                                                            .x = (void *)space.memory});
    if (profile->layers[layer].upload_bytes > 0)
        rp_network_expand(network, stream, call.layers, upload, (RpResidents){0},
                          (void *)call.parameters);
    rp_network_forward(network, &call);
    if (!head)
        rp_network_recompute(network, &call);
    call.output = d_input;
    rp_network_backward(network, &call);
}

void
rp_rehearse(const RpNetwork *network, RpKernelStream *stream, const void *constants, void *memory,
            guint64 bytes)
{
    g_autoptr(RpProfile) profile = rp_network_profile(network);

    for (guint l = 0; l < profile->n_layers; l++)
        if (rp_network_layer_class(network, l) == l)
            rehearse_layer(network, profile, l, stream, constants,
                           (Space){.memory = (guintptr)memory, .bytes = bytes});
}
