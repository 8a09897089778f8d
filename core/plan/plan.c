#include "core/plan/plan.h"

#include "core/base/units.h"

struct _RpPlan {
    guint gpus;
    guint n_layers;
    guint micro_batches;
    RpFidelity fidelity;
    RpPlanModes modes;
    RpPlanStorage storage;
    guint32 first_iteration;
    guint evaluation;     /* rounds; 0: it trains */
    RpTaskId first_id;    /* id of tasks[0] */
    GArray *tasks;        /* RpTask */
    GArray *dependencies; /* RpDependency; dependency_base is the stream index of element 0 */
    GArray *accesses;     /* RpAccess; access_base likewise */
    guint64 dependency_base;
    guint64 access_base;
    GArray *stages;               /* RpPlanStage */
    GArray *buffers;              /* RpBuffer */
    guint64 *arena_bytes;         /* gpus + 1 */
    gboolean *overlaps;           /* gpus + 1: whether buffers share bytes */
    RpPlanLayer *layers;          /* n_layers */
    guint32 *constants;           /* gpus */
    guint32 *residents;           /* [gpus][n_layers] */
    RpPlanSlotLayer *slot_layers; /* [gpus][n_layers] */
    guint32 decisions[2];
    guint n_decisions;
    RpPlanExchange exchange;
};

RpChunks
rp_chunks_copy(const RpChunks *chunks)
{
    RpChunks copy = {.n_chunks = chunks->n_chunks};

    if (chunks->n_chunks == 0)
        return copy;
    copy.first_segment = g_memdup2(chunks->first_segment, (chunks->n_chunks + 1) * sizeof(guint));
    copy.chunk_bytes = g_memdup2(chunks->chunk_bytes, chunks->n_chunks * sizeof(guint64));
    copy.segments =
        g_memdup2(chunks->segments, chunks->first_segment[chunks->n_chunks] * sizeof(RpSegment));
    return copy;
}

void
rp_chunks_clear(RpChunks *chunks)
{
    g_clear_pointer(&chunks->first_segment, g_free);
    g_clear_pointer(&chunks->chunk_bytes, g_free);
    g_clear_pointer(&chunks->segments, g_free);
    chunks->n_chunks = 0;
}

static void
clear_stage(gpointer data)
{
    RpPlanStage *stage = data;

    rp_chunks_clear(&stage->parameters);
    rp_chunks_clear(&stage->gradients);
    g_free(stage->boundaries);
}

RpPlan *
rp_plan_new(guint gpus, RpFidelity fidelity, guint n_layers, guint micro_batches)
{
    RpPlan *plan = g_new0(RpPlan, 1);

    plan->gpus = gpus;
    plan->fidelity = fidelity;
    plan->n_layers = n_layers;
    plan->micro_batches = micro_batches;
    plan->modes = (RpPlanModes){.rounds = 1, .slices = 1, .servers = 1};
    plan->tasks = g_array_new(FALSE, FALSE, sizeof(RpTask));
    /* sized, so that there is an address even without elements */
    plan->dependencies = g_array_sized_new(FALSE, FALSE, sizeof(RpDependency), 1);
    plan->accesses = g_array_sized_new(FALSE, FALSE, sizeof(RpAccess), 1);
    plan->stages = g_array_new(FALSE, FALSE, sizeof(RpPlanStage));
    g_array_set_clear_func(plan->stages, clear_stage);
    plan->buffers = g_array_new(FALSE, FALSE, sizeof(RpBuffer));
    plan->arena_bytes = g_new0(guint64, (gsize)gpus + 1);
    plan->overlaps = g_new0(gboolean, (gsize)gpus + 1);
    plan->layers = g_new(RpPlanLayer, n_layers);
    for (guint l = 0; l < n_layers; l++)
        plan->layers[l] = (RpPlanLayer){.frozen = RP_NONE,
                                        .weights = {RP_NONE, RP_NONE},
                                        .gradients = {RP_NONE, RP_NONE, RP_NONE, RP_NONE},
                                        .optimizer = RP_NONE,
                                        .copied = RP_NONE,
                                        .reduced = RP_NONE};
    plan->exchange = (RpPlanExchange){RP_NONE, RP_NONE};
    plan->constants = g_new(guint32, gpus);
    for (guint g = 0; g < gpus; g++)
        plan->constants[g] = RP_NONE;
    plan->residents = g_new(guint32, (gsize)gpus * n_layers + 1);
    plan->slot_layers = g_new(RpPlanSlotLayer, (gsize)gpus * n_layers + 1);
    for (gsize i = 0; i < (gsize)gpus * n_layers; i++) {
        plan->residents[i] = RP_NONE;
        plan->slot_layers[i] = (RpPlanSlotLayer){RP_NONE, RP_NONE};
    }
    return plan;
}

void
rp_plan_free(RpPlan *plan)
{
    if (plan == NULL)
        return;
    g_array_unref(plan->tasks);
    g_array_unref(plan->dependencies);
    g_array_unref(plan->accesses);
    g_array_unref(plan->stages);
    g_array_unref(plan->buffers);
    g_free(plan->arena_bytes);
    g_free(plan->overlaps);
    g_free(plan->layers);
    g_free(plan->constants);
    g_free(plan->residents);
    g_free(plan->slot_layers);
    g_free(plan);
}

guint
rp_plan_gpus(const RpPlan *plan)
{
    return plan->gpus;
}

guint
rp_plan_n_lanes(const RpPlan *plan)
{
    return plan->gpus * RP_LANES_PER_DEVICE + RP_HOST_LANES;
}

guint
rp_plan_n_layers(const RpPlan *plan)
{
    return plan->n_layers;
}

guint
rp_plan_micro_batches(const RpPlan *plan)
{
    return plan->micro_batches;
}

RpFidelity
rp_plan_fidelity(const RpPlan *plan)
{
    return plan->fidelity;
}

guint32
rp_plan_lane(const RpPlan *plan, guint device, RpLaneKind kind)
{
    return device * RP_LANES_PER_DEVICE + kind;
}

guint32
rp_plan_host_lane(const RpPlan *plan, RpHostLaneKind kind)
{
    return plan->gpus * RP_LANES_PER_DEVICE + kind;
}

guint32
rp_plan_lane_device(const RpPlan *plan, guint32 lane)
{
    return lane < plan->gpus * RP_LANES_PER_DEVICE ? lane / RP_LANES_PER_DEVICE : RP_NONE;
}

guint
rp_plan_lane_kind(const RpPlan *plan, guint32 lane)
{
    guint32 host = plan->gpus * RP_LANES_PER_DEVICE;

    return lane < host ? lane % RP_LANES_PER_DEVICE : RP_LANES_PER_DEVICE + (lane - host);
}

void
rp_plan_set_modes(RpPlan *plan, const RpPlanModes *modes)
{
    plan->modes = *modes;
}

const RpPlanModes *
rp_plan_modes(const RpPlan *plan)
{
    return &plan->modes;
}

void
rp_plan_set_storage(RpPlan *plan, const RpPlanStorage *storage)
{
    plan->storage = *storage;
}

const RpPlanStorage *
rp_plan_storage(const RpPlan *plan)
{
    return &plan->storage;
}

void
rp_plan_set_first_iteration(RpPlan *plan, guint32 iteration)
{
    plan->first_iteration = iteration;
}

guint32
rp_plan_first_iteration(const RpPlan *plan)
{
    return plan->first_iteration;
}

void
rp_plan_set_evaluation(RpPlan *plan, guint rounds)
{
    plan->evaluation = rounds;
}

gboolean
rp_plan_evaluates(const RpPlan *plan)
{
    return plan->evaluation > 0;
}

guint
rp_plan_rounds(const RpPlan *plan)
{
    return plan->evaluation > 0 ? plan->evaluation : plan->modes.rounds;
}

void
rp_plan_set_alike(RpPlan *plan, const RpPlan *source)
{
    plan->modes = source->modes;
    plan->storage = source->storage;
    plan->first_iteration = source->first_iteration;
    plan->evaluation = source->evaluation;
}

guint32
rp_plan_add_stage(RpPlan *plan, RpPlanStage *stage)
{
    g_array_append_val(plan->stages, *stage);
    stage->parameters = (RpChunks){0};
    stage->gradients = (RpChunks){0};
    stage->boundaries = NULL;
    stage->n_boundaries = 0;
    return plan->stages->len - 1;
}

guint
rp_plan_n_stages(const RpPlan *plan)
{
    return plan->stages->len;
}

const RpPlanStage *
rp_plan_stage(const RpPlan *plan, guint32 stage)
{
    g_return_val_if_fail(stage < plan->stages->len, NULL);
    return &g_array_index(plan->stages, RpPlanStage, stage);
}

void
rp_plan_set_layer(RpPlan *plan, guint layer, const RpPlanLayer *places)
{
    g_return_if_fail(layer < plan->n_layers);
    plan->layers[layer] = *places;
}

const RpPlanLayer *
rp_plan_layer(const RpPlan *plan, guint layer)
{
    g_return_val_if_fail(layer < plan->n_layers, NULL);
    return &plan->layers[layer];
}

guint32
rp_plan_tied_from(const RpPlan *plan, guint layer)
{
    const guint last = rp_plan_n_layers(plan) - 1;
    const RpPlanLayer *row = rp_plan_layer(plan, last);

    return row->tied_gradient_bytes > 0 && row->tied_to == layer ? last : RP_NONE;
}

void
rp_plan_set_constants(RpPlan *plan, guint device, guint32 buffer)
{
    g_return_if_fail(device < plan->gpus);
    plan->constants[device] = buffer;
}

guint32
rp_plan_constants(const RpPlan *plan, guint device)
{
    g_return_val_if_fail(device < plan->gpus, RP_NONE);
    return plan->constants[device];
}

void
rp_plan_set_resident(RpPlan *plan, guint device, guint layer, guint32 buffer)
{
    g_return_if_fail(device < plan->gpus && layer < plan->n_layers);
    plan->residents[(gsize)device * plan->n_layers + layer] = buffer;
}

guint32
rp_plan_resident(const RpPlan *plan, guint device, guint layer)
{
    g_return_val_if_fail(device < plan->gpus && layer < plan->n_layers, RP_NONE);
    return plan->residents[(gsize)device * plan->n_layers + layer];
}

void
rp_plan_set_slot_layer(RpPlan *plan, guint device, guint layer, RpPlanSlotLayer places)
{
    g_return_if_fail(device < plan->gpus && layer < plan->n_layers);
    plan->slot_layers[(gsize)device * plan->n_layers + layer] = places;
}

RpPlanSlotLayer
rp_plan_slot_layer(const RpPlan *plan, guint device, guint layer)
{
    return plan->slot_layers[(gsize)device * plan->n_layers + layer];
}

guint64
rp_plan_resident_bytes(const RpPlan *plan, guint device)
{
    guint64 bytes = 0;

    for (guint l = 0; l < plan->n_layers; l++)
        if (rp_plan_resident(plan, device, l) != RP_NONE)
            bytes += plan->layers[l].resident_bytes;
    return bytes;
}

guint32
rp_plan_decision(const RpPlan *plan, guint64 iteration)
{
    return plan->n_decisions > 0 ? plan->decisions[iteration % plan->n_decisions] : RP_NONE;
}

void
rp_plan_set_decisions(RpPlan *plan, const guint32 *buffers, guint n)
{
    g_return_if_fail(n <= G_N_ELEMENTS(plan->decisions));
    for (guint i = 0; i < n; i++)
        plan->decisions[i] = buffers[i];
    plan->n_decisions = n;
}

RpPlanExchange
rp_plan_exchange(const RpPlan *plan)
{
    return plan->exchange;
}

void
rp_plan_set_exchange(RpPlan *plan, RpPlanExchange exchange)
{
    plan->exchange = exchange;
}

guint
rp_plan_n_decisions(const RpPlan *plan)
{
    return plan->n_decisions;
}

guint32
rp_plan_add_buffer(RpPlan *plan, guint32 arena, RpBufferCategory category, guint64 bytes)
{
    g_return_val_if_fail(arena <= plan->gpus, RP_NONE);

    RpBuffer buffer = {
        .arena = arena,
        .category = category,
        .offset = rp_align_up(plan->arena_bytes[arena], RP_BUFFER_ALIGNMENT),
        .bytes = rp_align_up(bytes, RP_BUFFER_ALIGNMENT),
    };
    return rp_plan_place_buffer(plan, &buffer);
}

guint32
rp_plan_place_buffer(RpPlan *plan, const RpBuffer *buffer)
{
    g_return_val_if_fail(buffer->arena <= plan->gpus, RP_NONE);

    g_array_append_val(plan->buffers, *buffer);
    if (buffer->offset < plan->arena_bytes[buffer->arena])
        plan->overlaps[buffer->arena] = TRUE;
    plan->arena_bytes[buffer->arena] =
        MAX(plan->arena_bytes[buffer->arena], buffer->offset + buffer->bytes);
    return plan->buffers->len - 1;
}

guint
rp_plan_n_buffers(const RpPlan *plan)
{
    return plan->buffers->len;
}

const RpBuffer *
rp_plan_buffer(const RpPlan *plan, guint32 buffer)
{
    g_return_val_if_fail(buffer < plan->buffers->len, NULL);
    return &g_array_index(plan->buffers, RpBuffer, buffer);
}

guint64
rp_plan_arena_bytes(const RpPlan *plan, guint32 arena)
{
    g_return_val_if_fail(arena <= plan->gpus, 0);
    return plan->arena_bytes[arena];
}

/* Bytes of an arena with overlaps, from border to border of its buffers. */
static guint64
overlapping_bytes(const RpPlan *plan, guint32 arena, RpBufferCategory category)
{
    guint64 bytes = 0;

    for (guint64 at = 0, next; at < plan->arena_bytes[arena]; at = next) {
        const RpBuffer *owner = NULL; /* the largest, first one over the bytes from @at on */

        next = plan->arena_bytes[arena];
        for (guint i = 0; i < plan->buffers->len; i++) {
            const RpBuffer *buffer = rp_plan_buffer(plan, i);
            const guint64 end = buffer->offset + buffer->bytes;

            if (buffer->arena != arena || end <= at)
                continue;
            next = MIN(next, buffer->offset > at ? buffer->offset : end);
            if (buffer->offset <= at && (owner == NULL || buffer->bytes > owner->bytes))
                owner = buffer;
        }
        if (owner != NULL && owner->category == category)
            bytes += next - at;
    }
    return bytes;
}

guint64
rp_plan_category_bytes(const RpPlan *plan, guint32 arena, RpBufferCategory category)
{
    guint64 bytes = 0;

    if (plan->overlaps[arena])
        return overlapping_bytes(plan, arena, category);
    for (guint i = 0; i < plan->buffers->len; i++)
        if (rp_plan_buffer(plan, i)->arena == arena &&
            rp_plan_buffer(plan, i)->category == category)
            bytes += rp_plan_buffer(plan, i)->bytes;
    return bytes;
}

RpTaskId
rp_plan_append(RpPlan *plan, const RpTask *task, const RpDependency *dependencies,
               guint n_dependencies, const RpAccess *accesses, guint n_accesses)
{
    g_return_val_if_fail(n_dependencies <= G_MAXUINT16, RP_TASK_NONE);
    g_return_val_if_fail(n_accesses <= G_MAXUINT16, RP_TASK_NONE);

    RpTask copy = *task;
    copy.first_dependency = plan->dependency_base + plan->dependencies->len;
    copy.first_access = plan->access_base + plan->accesses->len;
    copy.dependency_count = (guint16)n_dependencies;
    copy.access_count = (guint16)n_accesses;
    g_array_append_vals(plan->tasks, &copy, 1);
    if (n_dependencies > 0)
        g_array_append_vals(plan->dependencies, dependencies, n_dependencies);
    if (n_accesses > 0)
        g_array_append_vals(plan->accesses, accesses, n_accesses);
    return plan->first_id + plan->tasks->len - 1;
}

RpTaskId
rp_plan_first_id(const RpPlan *plan)
{
    return plan->first_id;
}

RpTaskId
rp_plan_end_id(const RpPlan *plan)
{
    return plan->first_id + plan->tasks->len;
}

const RpTask *
rp_plan_task(const RpPlan *plan, RpTaskId id)
{
    g_return_val_if_fail(id >= plan->first_id && id < rp_plan_end_id(plan), NULL);
    return &g_array_index(plan->tasks, RpTask, id - plan->first_id);
}

void
rp_plan_set_times(RpPlan *plan, RpTaskId id, gint64 duration_ns, gint64 lead_ns)
{
    g_return_if_fail(plan && id >= plan->first_id && id < rp_plan_end_id(plan));
    g_return_if_fail(0 <= lead_ns && lead_ns <= duration_ns);

    RpTask *task = &g_array_index(plan->tasks, RpTask, id - plan->first_id);
    task->duration_ns = duration_ns;
    task->lead_ns = lead_ns;
}

const RpDependency *
rp_plan_dependencies(const RpPlan *plan, const RpTask *task)
{
    return &g_array_index(plan->dependencies, RpDependency,
                          task->first_dependency - plan->dependency_base);
}

const RpAccess *
rp_plan_accesses(const RpPlan *plan, const RpTask *task)
{
    return &g_array_index(plan->accesses, RpAccess, task->first_access - plan->access_base);
}

void
rp_plan_retire(RpPlan *plan, RpTaskId id)
{
    id = MIN(id, rp_plan_end_id(plan));
    if (id <= plan->first_id)
        return;

    guint n_tasks = (guint)(id - plan->first_id);
    guint64 dependency_end = plan->dependency_base + plan->dependencies->len;
    guint64 access_end = plan->access_base + plan->accesses->len;

    if (n_tasks < plan->tasks->len) {
        const RpTask *next = rp_plan_task(plan, id);

        dependency_end = next->first_dependency;
        access_end = next->first_access;
    }
    /* moves the remaining tasks to the front; the arrays keep their size, so a steady state
     * allocates nothing */
    if (n_tasks > 0)
        g_array_remove_range(plan->tasks, 0, n_tasks);
    if (dependency_end > plan->dependency_base)
        g_array_remove_range(plan->dependencies, 0,
                             (guint)(dependency_end - plan->dependency_base));
    if (access_end > plan->access_base)
        g_array_remove_range(plan->accesses, 0, (guint)(access_end - plan->access_base));
    plan->first_id = id;
    plan->dependency_base = dependency_end;
    plan->access_base = access_end;
}
