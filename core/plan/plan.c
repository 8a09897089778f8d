#include "core/plan/plan.h"

#include "core/base/units.h"

/* Shared by plans that stand beside each other. */
typedef struct {
    RpPlanTables tables;
    GArray *stages;       /* RpPlanStage */
    GArray *buffers;      /* RpBuffer */
    guint64 *arena_bytes; /* gpus + 1 */
    gboolean *overlaps;   /* gpus + 1: whether buffers share bytes */
} Shared;

struct _RpPlan {
    guint gpus;
    guint n_layers;
    guint micro_batches;
    RpFidelity fidelity;
    Shared *shared;       /* counted */
    RpTaskId first_id;    /* id of tasks[0] */
    GArray *tasks;        /* RpTask */
    GArray *dependencies; /* RpDependency; dependency_base is the stream index of element 0 */
    GArray *accesses;     /* RpAccess; access_base likewise */
    guint64 dependency_base;
    guint64 access_base;
};

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

static Shared *
new_shared(guint gpus, guint n_layers)
{
    const gsize n_slots = (gsize)gpus * n_layers;
    Shared *shared = g_rc_box_new0(Shared);
    RpPlanTables *tables = &shared->tables;

    tables->modes = (RpPlanModes){.rounds = 1, .slices = 1, .servers = 1};
    tables->layers = g_new(RpPlanLayer, n_layers);
    for (guint l = 0; l < n_layers; l++)
        tables->layers[l] = (RpPlanLayer){.frozen = RP_NONE,
                                          .weights = {RP_NONE, RP_NONE},
                                          .gradients = {RP_NONE, RP_NONE, RP_NONE, RP_NONE},
                                          .optimizer = RP_NONE,
                                          .copied = RP_NONE,
                                          .reference = RP_NONE,
                                          .reduced = RP_NONE};
    tables->exchange = (RpPlanExchange){RP_NONE, RP_NONE};
    tables->constants = g_new(guint32, gpus);
    for (guint g = 0; g < gpus; g++)
        tables->constants[g] = RP_NONE;
    tables->slot_layers = g_new(RpPlanSlotLayer, n_slots + 1);
    for (gsize i = 0; i < n_slots; i++)
        tables->slot_layers[i] = (RpPlanSlotLayer){RP_NONE, RP_NONE, RP_NONE};
    shared->stages = g_array_new(FALSE, FALSE, sizeof(RpPlanStage));
    g_array_set_clear_func(shared->stages, clear_stage);
    shared->buffers = g_array_new(FALSE, FALSE, sizeof(RpBuffer));
    shared->arena_bytes = g_new0(guint64, (gsize)gpus + 1);
    shared->overlaps = g_new0(gboolean, (gsize)gpus + 1);
    return shared;
}

static void
clear_shared(gpointer data)
{
    Shared *shared = data;

    g_array_unref(shared->stages);
    g_array_unref(shared->buffers);
    g_free(shared->arena_bytes);
    g_free(shared->overlaps);
    g_free(shared->tables.layers);
    g_free(shared->tables.constants);
    g_free(shared->tables.slot_layers);
}

static RpPlan *
new_plan(guint gpus, RpFidelity fidelity, guint n_layers, guint micro_batches, Shared *shared)
{
    RpPlan *plan = g_new0(RpPlan, 1);

    plan->gpus = gpus;
    plan->fidelity = fidelity;
    plan->n_layers = n_layers;
    plan->micro_batches = micro_batches;
    plan->shared = shared;
    plan->tasks = g_array_new(FALSE, FALSE, sizeof(RpTask));
    /* sized, so that there is an address even without elements */
    plan->dependencies = g_array_sized_new(FALSE, FALSE, sizeof(RpDependency), 1);
    plan->accesses = g_array_sized_new(FALSE, FALSE, sizeof(RpAccess), 1);
    return plan;
}

RpPlan *
rp_plan_new(guint gpus, RpFidelity fidelity, guint n_layers, guint micro_batches)
{
    return new_plan(gpus, fidelity, n_layers, micro_batches, new_shared(gpus, n_layers));
}

RpPlan *
rp_plan_new_beside(const RpPlan *source)
{
    return new_plan(source->gpus, source->fidelity, source->n_layers, source->micro_batches,
                    g_rc_box_acquire(source->shared));
}

void
rp_plan_free(RpPlan *plan)
{
    if (plan == NULL)
        return;
    g_array_unref(plan->tasks);
    g_array_unref(plan->dependencies);
    g_array_unref(plan->accesses);
    g_rc_box_release_full(plan->shared, clear_shared);
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

RpPlanTables *
rp_plan_tables(RpPlan *plan)
{
    return &plan->shared->tables;
}

const RpPlanModes *
rp_plan_modes(const RpPlan *plan)
{
    return &plan->shared->tables.modes;
}

const RpPlanStorage *
rp_plan_storage(const RpPlan *plan)
{
    return &plan->shared->tables.storage;
}

guint32
rp_plan_first_iteration(const RpPlan *plan)
{
    return plan->shared->tables.first_iteration;
}

gboolean
rp_plan_evaluates(const RpPlan *plan)
{
    return plan->shared->tables.evaluation > 0;
}

guint
rp_plan_rounds(const RpPlan *plan)
{
    return rp_plan_evaluates(plan) ? plan->shared->tables.evaluation
                                   : plan->shared->tables.modes.rounds;
}

guint32
rp_plan_add_stage(RpPlan *plan, RpPlanStage *stage)
{
    g_array_append_val(plan->shared->stages, *stage);
    stage->parameters = (RpChunks){0};
    stage->gradients = (RpChunks){0};
    stage->boundaries = NULL;
    stage->n_boundaries = 0;
    return plan->shared->stages->len - 1;
}

guint
rp_plan_n_stages(const RpPlan *plan)
{
    return plan->shared->stages->len;
}

const RpPlanStage *
rp_plan_stage(const RpPlan *plan, guint32 stage)
{
    g_return_val_if_fail(stage < plan->shared->stages->len, NULL);
    return &g_array_index(plan->shared->stages, RpPlanStage, stage);
}

const RpPlanLayer *
rp_plan_layer(const RpPlan *plan, guint layer)
{
    g_return_val_if_fail(layer < plan->n_layers, NULL);
    return &plan->shared->tables.layers[layer];
}

guint32
rp_plan_tied_from(const RpPlan *plan, guint layer)
{
    const guint last = rp_plan_n_layers(plan) - 1;
    const RpPlanLayer *row = rp_plan_layer(plan, last);

    return row->tied_gradient_bytes > 0 && row->tied_to == layer ? last : RP_NONE;
}

guint32
rp_plan_constants(const RpPlan *plan, guint device)
{
    g_return_val_if_fail(device < plan->gpus, RP_NONE);
    return plan->shared->tables.constants[device];
}

guint32
rp_plan_resident(const RpPlan *plan, guint device, guint layer)
{
    g_return_val_if_fail(device < plan->gpus && layer < plan->n_layers, RP_NONE);
    return rp_plan_slot_layer(plan, device, layer).resident;
}

RpPlanSlotLayer
rp_plan_slot_layer(const RpPlan *plan, guint device, guint layer)
{
    return plan->shared->tables.slot_layers[(gsize)device * plan->n_layers + layer];
}

guint64
rp_plan_resident_bytes(const RpPlan *plan, guint device)
{
    guint64 bytes = 0;

    for (guint l = 0; l < plan->n_layers; l++)
        if (rp_plan_resident(plan, device, l) != RP_NONE)
            bytes += plan->shared->tables.layers[l].resident_bytes;
    return bytes;
}

guint32
rp_plan_decision(const RpPlan *plan, guint64 iteration)
{
    return plan->shared->tables.n_decisions > 0
               ? plan->shared->tables.decisions[iteration % plan->shared->tables.n_decisions]
               : RP_NONE;
}

RpPlanExchange
rp_plan_exchange(const RpPlan *plan)
{
    return plan->shared->tables.exchange;
}

guint
rp_plan_n_decisions(const RpPlan *plan)
{
    return plan->shared->tables.n_decisions;
}

guint32
rp_plan_add_buffer(RpPlan *plan, guint32 arena, RpBufferCategory category, guint64 bytes)
{
    g_return_val_if_fail(arena <= plan->gpus, RP_NONE);

    RpBuffer buffer = {
        .arena = arena,
        .category = category,
        .offset = rp_align_up(plan->shared->arena_bytes[arena], RP_BUFFER_ALIGNMENT),
        .bytes = rp_align_up(bytes, RP_BUFFER_ALIGNMENT),
    };
    return rp_plan_place_buffer(plan, &buffer);
}

guint32
rp_plan_place_buffer(RpPlan *plan, const RpBuffer *buffer)
{
    g_return_val_if_fail(buffer->arena <= plan->gpus, RP_NONE);

    g_array_append_val(plan->shared->buffers, *buffer);
    if (buffer->offset < plan->shared->arena_bytes[buffer->arena])
        plan->shared->overlaps[buffer->arena] = TRUE;
    plan->shared->arena_bytes[buffer->arena] =
        MAX(plan->shared->arena_bytes[buffer->arena], buffer->offset + buffer->bytes);
    return plan->shared->buffers->len - 1;
}

guint
rp_plan_n_buffers(const RpPlan *plan)
{
    return plan->shared->buffers->len;
}

const RpBuffer *
rp_plan_buffer(const RpPlan *plan, guint32 buffer)
{
    g_return_val_if_fail(buffer < plan->shared->buffers->len, NULL);
    return &g_array_index(plan->shared->buffers, RpBuffer, buffer);
}

guint64
rp_plan_arena_bytes(const RpPlan *plan, guint32 arena)
{
    g_return_val_if_fail(arena <= plan->gpus, 0);
    return plan->shared->arena_bytes[arena];
}

guint32
rp_plan_fullest_gpu(const RpPlan *plan)
{
    guint32 fullest = 0;

    for (guint32 g = 1; g < plan->gpus; g++)
        if (plan->shared->arena_bytes[g] > plan->shared->arena_bytes[fullest])
            fullest = g;
    return fullest;
}

/* Bytes of an arena with overlaps, from border to border of its buffers. */
static guint64
overlapping_bytes(const RpPlan *plan, guint32 arena, RpBufferCategory category)
{
    guint64 bytes = 0;

    for (guint64 at = 0, next; at < plan->shared->arena_bytes[arena]; at = next) {
        const RpBuffer *owner = NULL; /* the largest, first one over the bytes from @at on */

        next = plan->shared->arena_bytes[arena];
        for (guint i = 0; i < plan->shared->buffers->len; i++) {
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

    if (plan->shared->overlaps[arena])
        return overlapping_bytes(plan, arena, category);
    for (guint i = 0; i < plan->shared->buffers->len; i++)
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
