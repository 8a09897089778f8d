#include "exec/device/task-map.h"

#include "core/base/quote.h"
#include "exec/device/error.h"

G_DEFINE_QUARK(rp_device_error, rp_device_error)

gboolean
rp_arena_check_limits(const guint64 *bytes, guint gpus, guint64 limit, GError **error)
{
    for (guint g = 0; limit > 0 && g < gpus; g++) {
        if (bytes[g] <= limit)
            continue;
        return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
                       "device %u: the plan needs %" G_GUINT64_FORMAT " bytes, %" G_GUINT64_FORMAT
                       " more than the limit of %" G_GUINT64_FORMAT
                       ": use more stages or smaller micro-batches, or raise the limit",
                       g, bytes[g], bytes[g] - limit, limit);
    }
    return TRUE;
}

gboolean
rp_arena_check_open(const guint64 *bytes, const guint64 *open, guint n, GError **error)
{
    for (guint i = 0; i < n; i++) {
        if (bytes[i] <= open[i])
            continue;
        return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
                       "arena %u has grown to %" G_GUINT64_FORMAT
                       " bytes since it was opened with %" G_GUINT64_FORMAT,
                       i, bytes[i], open[i]);
    }
    return TRUE;
}

/* Places of resident layers on devices, and the upload of the other layers. */
static void
find_residents(RpTaskMap *map, const RpPlan *plan)
{
    guint64 first = 0;

    map->residents = g_new(guint64, (gsize)map->gpus * map->n_layers);
    map->first = g_new(guint64, map->n_layers);
    for (guint l = 0; l < map->n_layers; l++) {
        map->first[l] = first;
        first += rp_network_layout(map->network, l)->upload_bytes -
                 rp_plan_layer(plan, l)->resident_bytes;
        for (guint g = 0; g < map->gpus; g++) {
            const guint32 buffer = rp_plan_resident(plan, g, l);

            map->residents[(gsize)g * map->n_layers + l] =
                buffer != RP_NONE ? rp_plan_buffer(plan, buffer)->offset : RP_LAYOUT_NONE;
        }
    }
}

void
rp_task_map_init(RpTaskMap *map, const RpPlan *plan, const RpNetwork *network,
                 RpHostState *host_state, RpBatchFeed *feed)
{
    const RpNetworkOptions *options = rp_network_options(network);

    g_assert(rp_plan_constants(plan, 0) != RP_NONE); /* RpProfile.constant_bytes */
    *map = (RpTaskMap){
        .plan = plan,
        .modes = rp_plan_modes(plan),
        .network = network,
        .host_state = host_state,
        .feed = feed,
        .gpus = rp_plan_gpus(plan),
        .n_layers = rp_network_n_layers(network),
        .micro_batches = rp_plan_micro_batches(plan),
        .tokens = (gsize)options->sequences * options->tokens,
        .element_bytes = rp_dtype_size(options->dtype),
    };
    find_residents(map, plan);
    map->saved = g_new0(RpSavedPlace, (gsize)map->gpus * map->n_layers);
    for (guint l = 0; l < map->n_layers; l++)
        g_assert(rp_network_saved_bytes(network, l, rp_plan_layer(plan, l)->saved_groups) ==
                 rp_plan_layer(plan, l)->saved_bytes);
    map->constants = g_new(guint64, map->gpus);
    for (guint g = 0; g < map->gpus; g++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, rp_plan_constants(plan, g));

        g_assert(buffer->bytes >= rp_network_constant_bytes(network));
        map->constants[g] = buffer->offset;
    }
    map->n_losses = options->aux_loss > 0 ? 2 : 1;
    map->head_numbers = 2 * map->tokens;
    if (rp_preference_is_used(&options->preference)) {
        map->n_losses = RP_STAGE_LOSSES;
        map->head_numbers = 5 * map->tokens + 1;
    }
    map->packed = g_new(gint32, map->head_numbers * map->gpus);
    map->most_places = rp_network_most_places(network);
    if (map->most_places > 0)
        map->places = g_new(gint32, map->most_places * map->gpus);
    map->devices = g_new0(RpTaskDevice, map->gpus);
    map->memory = g_new0(guint8 *, (gsize)map->gpus + 1);
}

void
rp_task_map_clear(RpTaskMap *map)
{
    g_free(map->constants);
    g_free(map->residents);
    g_free(map->first);
    g_free(map->saved);
    g_free(map->packed);
    g_free(map->places);
    g_free(map->devices);
    g_free(map->memory);
}

const RpBackendAccess *
rp_task_access(const RpBackendTask *task, RpAccessRole role)
{
    for (guint i = 0; i < task->task.access_count; i++)
        if (task->accesses[i].role == role)
            return &task->accesses[i];
    return NULL;
}

void *
rp_task_operand(const RpTaskMap *map, const RpBackendTask *task, RpAccessRole role)
{
    const RpBackendAccess *access = rp_task_access(task, role);

    return access == NULL ? NULL : map->memory[access->arena] + access->offset;
}

gsize
rp_task_map_squares_workspace(const RpTaskMap *map)
{
    const RpKernels *kernels = rp_network_kernels(map->network);
    gsize most = 0;

    for (guint l = 0; l < map->n_layers && rp_modes_leave_once(map->modes); l++) {
        const RpSumSquaresArgs args = {.dtype = rp_task_map_leaving_dtype(map),
                                       .n = rp_network_layout(map->network, l)->elements};

        most = MAX(most, kernels->sum_squares_workspace(&args));
    }
    return most;
}

gsize
rp_task_map_n_scores(const RpTaskMap *map)
{
    return rp_preference_is_used(&rp_network_options(map->network)->preference)
               ? RP_SCORE_RING * (gsize)map->micro_batches * map->tokens
               : 0;
}

RpStageSteps
rp_task_steps(const RpTaskMap *map, const RpBackendTask *task)
{
    const RpInterval layers = rp_task_stage(map, task)->layers;

    return (RpStageSteps){rp_task_upward(&task->task, layers),
                          rp_task_downward(&task->task, layers)};
}

/* Evaluations have a plan of their own, with the parameters of a stage in one place. */
static gboolean
is_layerwise(const RpTaskMap *map)
{
    return map->modes->weights == RP_WEIGHTS_PER_LAYER && !rp_host_state_evaluates(map->host_state);
}

const void *
rp_task_parameters(const RpTaskMap *map, const RpBackendTask *task)
{
    const guint8 *operand = rp_task_operand(map, task, RP_ROLE_PARAMETERS);
    const guint first = rp_task_stage(map, task)->layers.first;
    /* the task's lowest layer: the first operand belongs to it or to a later one */
    guint lowest = first;

    if (operand == NULL || !is_layerwise(map))
        return operand;
    const RpStageSteps steps = rp_task_steps(map, task);

    lowest = steps.up.count == 0     ? steps.down.first
             : steps.down.count == 0 ? steps.up.first
                                     : MIN(steps.up.first, steps.down.first);
    return operand - (map->first[lowest] - map->first[first]);
}

static guint
saved_groups(const RpTaskMap *map, guint layer)
{
    return rp_plan_layer(map->plan, layer)->saved_groups;
}

/* Accesses are in the order of those layers that save something. */
const RpSavedPlace *
rp_task_saved(const RpTaskMap *map, guint device, const RpBackendTask *task)
{
    const RpInterval layers = rp_task_stage(map, task)->layers;
    RpSavedPlace *places = &map->saved[(gsize)device * map->n_layers];
    guint n = 0;

    for (guint i = 0; i < task->task.access_count; i++) {
        const RpBackendAccess *access = &task->accesses[i];

        if (access->role != RP_ROLE_SAVED)
            continue;
        while (n < layers.count && saved_groups(map, layers.first + n) == 0)
            places[n++] = (RpSavedPlace){0};
        g_assert(n < layers.count);
        places[n] = (RpSavedPlace){saved_groups(map, layers.first + n),
                                   map->memory[access->arena] + access->offset};
        n++;
    }
    if (n == 0)
        return NULL;
    while (n < layers.count)
        places[n++] = (RpSavedPlace){0};
    return places;
}

/* Token ids of a micro-batch come from the caller, everything else from where it was stored. */
static gboolean
copy_up(const RpTaskMap *map, const RpBackendTask *task, RpAccessRole role, RpTaskMove move,
        gpointer user_data, GError **error)
{
    const void *source = rp_task_operand(map, task, RP_ROLE_HOST);

    if (source == NULL) {
        guint m;
        const RpBatchFeedCall *call =
            rp_batch_feed_find(map->feed, task->task.iteration, task->task.micro_batch, &m);

        source = rp_token_batch_input_ids(call->batch, m);
    }
    return move(user_data, rp_task_operand(map, task, role), source, task->task.bytes, error);
}

/* @boundary: place in the output, in hidden states */
static gboolean
copy_down(const RpTaskMap *map, const RpBackendTask *task, guint boundary, RpTaskMove move,
          gpointer user_data, GError **error)
{
    const guint8 *source = rp_task_operand(map, task, RP_ROLE_OUTPUT);

    return move(user_data, rp_task_operand(map, task, RP_ROLE_HOST),
                source + boundary * rp_network_hidden_bytes(map->network), task->task.bytes, error);
}

static guint
boundary_of(const RpTaskMap *map, const RpBackendTask *task)
{
    const RpPlanStage *stage = rp_task_stage(map, task);
    guint i = 0;

    while (i < stage->n_boundaries && stage->boundaries[i] != task->task.layer)
        i++;
    g_assert(i < stage->n_boundaries);
    return i;
}

/* The version of weights that a task reads: in evaluations, the reference's for a call by it. */
static guint
version_of(const RpTaskMap *map, const RpTask *task)
{
    const RpPreference *preference = &rp_network_options(map->network)->preference;
    guint m;

    if (preference->reference == RP_REFERENCE_COPY && rp_host_state_evaluates(map->host_state) &&
        rp_batch_feed_find(map->feed, task->iteration, 0, &m)->by_reference)
        return RP_HOST_STATE_REFERENCE;
    return rp_host_state_version(map->host_state, task->iteration);
}

/* Bytes of a layer up, from where each of them lives. @at: where byte @offset goes */
static gboolean
copy_weights(const RpTaskMap *map, const RpBackendTask *task, guint layer, guint64 offset,
             guint64 bytes, guint8 *at, RpTaskMove move, gpointer user_data, GError **error)
{
    const guint version = version_of(map, &task->task);
    guint64 run;

    for (guint64 done = 0; done < bytes; done += run) {
        const guint8 *source =
            rp_host_state_weights(map->host_state, layer, version, offset + done, &run);

        run = MIN(run, bytes - done);
        if (!move(user_data, at + done, source, run, error))
            return FALSE;
    }
    return TRUE;
}

/* Copies the resident part of a layer: all but its trained weights, which come first. */
static gboolean
copy_residents(const RpTaskMap *map, const RpBackendTask *task, RpTaskMove move, gpointer user_data,
               GError **error)
{
    const guint layer = task->task.layer;
    const guint64 bytes = task->task.bytes;

    return copy_weights(map, task, layer,
                        rp_network_layout(map->network, layer)->upload_bytes - bytes, bytes,
                        rp_task_operand(map, task, RP_ROLE_RESIDENT), move, user_data, error);
}

/* Weights of a chunk up. */
static gboolean
copy_parameters(const RpTaskMap *map, const RpBackendTask *task, RpTaskMove move,
                gpointer user_data, GError **error)
{
    const RpPlanStage *stage = rp_task_stage(map, task);
    const RpChunks *chunks = &stage->parameters;
    guint8 *packed = rp_task_operand(map, task, RP_ROLE_PACKED);
    guint8 *target = packed != NULL ? packed : rp_task_operand(map, task, RP_ROLE_PARAMETERS);

    for (guint i = chunks->first_segment[task->task.chunk];
         i < chunks->first_segment[task->task.chunk + 1]; i++) {
        const RpSegment *segment = &chunks->segments[i];
        guint8 *at = is_layerwise(map)
                         ? target
                         : target + map->first[segment->layer] - map->first[stage->layers.first];

        if (!copy_weights(map, task, segment->layer, segment->offset, segment->bytes,
                          at + segment->offset, move, user_data, error))
            return FALSE;
    }
    return TRUE;
}

/* Gradients of a chunk down: to the host, or to the staging buffer if they are to be added to
 * earlier ones. */
static gboolean
copy_gradients(const RpTaskMap *map, const RpBackendTask *task, RpTaskMove move, gpointer user_data,
               GError **error)
{
    const RpPlanStage *stage = rp_task_stage(map, task);
    const RpChunks *chunks = &stage->gradients;
    const RpLayerLayout *first = rp_network_layout(map->network, stage->layers.first);
    const guint8 *leaving = rp_task_operand(map, task, RP_ROLE_LEAVING);
    guint8 *staging = rp_task_operand(map, task, RP_ROLE_STAGING);

    for (guint i = chunks->first_segment[task->task.chunk];
         i < chunks->first_segment[task->task.chunk + 1]; i++) {
        const RpSegment *segment = &chunks->segments[i];
        const RpLayerLayout *layout = rp_network_layout(map->network, segment->layer);
        const guint64 at = (layout->first_element - first->first_element) *
                               rp_dtype_size(rp_task_map_leaving_dtype(map)) +
                           segment->offset;
        guint64 run;
        guint8 *target = staging != NULL
                             ? staging + at
                             : rp_host_state_gradients(map->host_state, segment->layer,
                                                       task->task.round, segment->offset, &run);

        if (!move(user_data, target, leaving + (is_layerwise(map) ? segment->offset : at),
                  segment->bytes, error))
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_task_copy(const RpTaskMap *map, const RpBackendTask *task, RpTaskMove move, gpointer user_data,
             GError **error)
{
    switch ((RpTaskKind)task->task.kind) {
    case RP_TASK_ACTIVATION_UPLOAD:
    case RP_TASK_STASH_UPLOAD:
        return copy_up(map, task, RP_ROLE_INPUT, move, user_data, error);
    case RP_TASK_ACTGRAD_UPLOAD:
        return copy_up(map, task, RP_ROLE_GRADIENT, move, user_data, error);
    case RP_TASK_ACTIVATION_DOWNLOAD:
        return copy_down(map, task, boundary_of(map, task), move, user_data, error);
    case RP_TASK_ACTGRAD_DOWNLOAD:
        return copy_down(map, task, 0, move, user_data, error);
    case RP_TASK_SAVED_UPLOAD:
        return copy_up(map, task, RP_ROLE_SAVED, move, user_data, error);
    case RP_TASK_SAVED_DOWNLOAD:
        return move(user_data, rp_task_operand(map, task, RP_ROLE_HOST),
                    rp_task_operand(map, task, RP_ROLE_SAVED), task->task.bytes, error);
    case RP_TASK_PARAMETER_UPLOAD:
        return copy_parameters(map, task, move, user_data, error);
    case RP_TASK_RESIDENT_UPLOAD:
        return copy_residents(map, task, move, user_data, error);
    case RP_TASK_GRADIENT_DOWNLOAD:
        return copy_gradients(map, task, move, user_data, error);
    default:
        g_assert_not_reached();
    }
}
