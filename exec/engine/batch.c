/* A batch: a part of the plan, copied so that workers never look at the plan itself.
 *
 *   plan       t7 t8 t9 | t10 t11 t12 ...          may move in memory at any time
 *   batch 3               10  11  12               waits are pointers into live batches;
 *                          \___/                   what is over, in the same lane, or implied by
 *                                                  an earlier wait of the lane, is left out
 */
#include "exec/engine/engine-private.h"

#include "core/base/quote.h"

void
rp_batch_init(RpBatch *batch, const RpEngine *engine)
{
    batch->waits = g_array_new(FALSE, FALSE, sizeof(RpEngineWait));
    batch->accesses = g_array_new(FALSE, FALSE, sizeof(RpBackendAccess));
    batch->worker_first = g_new0(guint, (gsize)engine->n_workers + 1);
    batch->last = g_new0(const RpEngineTask *, engine->n_lanes);
    batch->pools = g_new0(RpEventPool, engine->gpus);
    for (guint g = 0; g < engine->gpus; g++)
        batch->pools[g].events = g_ptr_array_new();
}

void
rp_batch_clear(RpBatch *batch, const RpEngine *engine)
{
    for (guint g = 0; g < engine->gpus; g++) {
        GPtrArray *events = batch->pools[g].events;

        for (guint i = 0; i < events->len; i++)
            engine->backend->ops->event_free(engine->backend, g_ptr_array_index(events, i));
        g_ptr_array_unref(events);
    }
    g_free(batch->pools);
    g_free(batch->last);
    g_free(batch->worker_first);
    g_array_unref(batch->accesses);
    g_array_unref(batch->waits);
    g_free(batch->order);
    g_free(batch->tasks);
    g_free(batch->records);
}

static RpBackendEvent *
take_event(RpBatch *batch, const RpEngine *engine, guint device, GError **error)
{
    RpEventPool *pool = &batch->pools[device];

    if (pool->n_used == pool->events->len) {
        RpBackendEvent *event = engine->backend->ops->event_new(engine->backend, device, error);

        if (event == NULL)
            return NULL;
        g_ptr_array_add(pool->events, event);
    }
    return g_ptr_array_index(pool->events, pool->n_used++);
}

/* Makes all pools as large as the largest, as devices rotate (§3.2): the events that one needs now
 * another needs an iteration later. */
static gboolean
level_pools(RpBatch *batch, const RpEngine *engine, GError **error)
{
    guint most = 0;

    for (guint g = 0; g < engine->gpus; g++)
        most = MAX(most, batch->pools[g].n_used);
    for (guint g = 0; g < engine->gpus; g++) {
        const guint n_used = batch->pools[g].n_used;

        while (batch->pools[g].n_used < most)
            if (take_event(batch, engine, g, error) == NULL)
                return FALSE;
        batch->pools[g].n_used = n_used;
    }
    return TRUE;
}

static gboolean
take_events(RpBatch *batch, const RpEngine *engine, RpEngineTask *task, GError **error)
{
    guint device = task->task.task.lane / RP_LANES_PER_DEVICE;

    if (!rp_engine_is_device_lane(engine, task->task.task.lane))
        return TRUE;
    task->start = take_event(batch, engine, device, error);
    task->end = task->start == NULL ? NULL : take_event(batch, engine, device, error);
    if (task->end == NULL || task->n_late == 0)
        return task->end != NULL;
    task->lead_end = take_event(batch, engine, device, error);
    task->rest_start = task->lead_end == NULL ? NULL : take_event(batch, engine, device, error);
    return task->rest_start != NULL;
}

/* A task of a batch that is not over yet; %NULL if it is over. */
static const RpEngineTask *
find_live(RpEngine *engine, RpBatch *batch, RpTaskId id)
{
    for (guint64 k = engine->n_done; k <= batch->number; k++) {
        RpBatch *other = rp_engine_batch(engine, k);

        if (id < other->first_id || id - other->first_id >= other->n_tasks)
            continue;
        other->last_dependent = MAX(other->last_dependent, batch->number);
        return &other->tasks[id - other->first_id];
    }
    return NULL;
}

static void
add_wait(RpEngine *engine, RpBatch *batch, RpEngineTask *task, const RpDependency *dependency,
         guint *count)
{
    const guint32 lane = task->task.task.lane;

    const RpEngineTask *other = find_live(engine, batch, dependency->task);
    if (other == NULL || (other->task.task.lane == lane && dependency->hop_ns == 0))
        return;

    guint64 *waited = &engine->waited[(gsize)lane * engine->n_lanes + other->task.task.lane];
    if (*waited > other->position && dependency->hop_ns == 0)
        return;
    RpEngineWait wait = {.task = other, .delay_ns = dependency->hop_ns};
    g_array_append_val(batch->waits, wait);
    (*count)++;
    *waited = MAX(*waited, other->position + 1);
}

/* A lead of no length is no lead, and transfers and host tasks have none. */
static gboolean
is_late(const RpEngine *engine, const RpTask *task, const RpDependency *dependency)
{
    return dependency->phase > 0 && task->lead_ns > 0 && !rp_task_is_transfer(task) &&
           rp_engine_is_device_lane(engine, task->lane);
}

static gboolean
resolve_waits(RpEngine *engine, RpBatch *batch, RpEngineTask *task, const RpTask *from,
              GError **error)
{
    const RpDependency *dependencies = rp_plan_dependencies(engine->plan, from);

    task->first_wait = batch->waits->len;
    for (guint i = 0; i < from->dependency_count; i++) {
        if (dependencies[i].task >= task->task.id) {
            g_autofree char *first = rp_task_describe(engine->plan, task->task.id);
            g_autofree char *second = rp_task_describe(engine->plan, dependencies[i].task);

            return rp_fail(error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_PLAN,
                           "the plan cannot run: %s waits for %s, which does not come before it",
                           first, second);
        }
        if (!is_late(engine, from, &dependencies[i]))
            add_wait(engine, batch, task, &dependencies[i], &task->n_waits);
    }
    /* only now: a late wait implies nothing for the start */
    for (guint i = 0; i < from->dependency_count; i++)
        if (is_late(engine, from, &dependencies[i]))
            add_wait(engine, batch, task, &dependencies[i], &task->n_late);
    engine->n_waits += task->n_waits + task->n_late;
    return TRUE;
}

static void
resolve_accesses(const RpEngine *engine, RpBatch *batch, const RpTask *from)
{
    const RpAccess *accesses = rp_plan_accesses(engine->plan, from);

    for (guint i = 0; i < from->access_count; i++) {
        const RpBuffer *buffer = rp_plan_buffer(engine->plan, accesses[i].buffer);
        RpBackendAccess access = {
            .offset = buffer->offset,
            .bytes = buffer->bytes,
            .arena = buffer->arena,
            .mode = accesses[i].mode,
            .role = accesses[i].role,
            .buffer = accesses[i].buffer,
        };

        g_array_append_val(batch->accesses, access);
    }
}

static gboolean
copy_task(RpEngine *engine, RpBatch *batch, gsize i, GError **error)
{
    const RpTask *from = rp_plan_task(engine->plan, batch->first_id + i);
    RpEngineTask *task = &batch->tasks[i];

    if (from->lane >= engine->n_lanes) {
        g_autofree char *text = rp_task_describe(engine->plan, batch->first_id + i);

        return rp_fail(error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_PLAN, "the plan cannot run: %s",
                       text);
    }
    *task = (RpEngineTask){.task = {.task = *from, .id = batch->first_id + i}};
    task->position = engine->n_planned[from->lane]++;
    batch->last[from->lane] = task;
    resolve_accesses(engine, batch, from);
    return resolve_waits(engine, batch, task, from, error) &&
           take_events(batch, engine, task, error);
}

/* Sorts tasks by worker, ids ascending. */
static void
sort_by_worker(const RpEngine *engine, RpBatch *batch)
{
    guint *first = batch->worker_first;

    for (guint w = 0; w <= engine->n_workers; w++)
        first[w] = 0;
    for (gsize i = 0; i < batch->n_tasks; i++)
        first[rp_engine_worker_of(engine, batch->tasks[i].task.task.lane) + 1]++;
    for (guint w = 0; w < engine->n_workers; w++)
        first[w + 1] += first[w];
    /* fills from each worker's first, which then has moved to the next worker's: shifted back */
    for (gsize i = 0; i < batch->n_tasks; i++)
        batch->order[first[rp_engine_worker_of(engine, batch->tasks[i].task.task.lane)]++] =
            (guint32)i;
    for (guint w = engine->n_workers; w > 0; w--)
        first[w] = first[w - 1];
    first[0] = 0;
}

/* Pointers only once the arrays stand still. */
static void
point_at_accesses(RpBatch *batch)
{
    gsize next = 0;

    for (gsize i = 0; i < batch->n_tasks; i++) {
        RpBackendTask *task = &batch->tasks[i].task;

        task->accesses = &g_array_index(batch->accesses, RpBackendAccess, next);
        next += task->task.access_count;
    }
}

gboolean
rp_batch_fill(RpBatch *batch, RpEngine *engine, guint64 number, RpTaskId first, RpTaskId end,
              GError **error)
{
    batch->number = number;
    batch->first_id = first;
    batch->n_tasks = end - first;
    batch->last_dependent = number;
    if (batch->n_tasks > batch->capacity) {
        /* iterations differ by a few tasks: no growing again for those */
        batch->capacity = batch->n_tasks + batch->n_tasks / 4;
        g_free(batch->tasks);
        g_free(batch->order);
        batch->tasks = g_new(RpEngineTask, batch->capacity);
        batch->order = g_new(guint32, batch->capacity);
    }
    g_array_set_size(batch->waits, 0);
    g_array_set_size(batch->accesses, 0);
    for (guint32 l = 0; l < engine->n_lanes; l++)
        batch->last[l] = NULL;
    for (guint g = 0; g < engine->gpus; g++)
        batch->pools[g].n_used = 0;
    for (gsize i = 0; i < batch->n_tasks; i++)
        if (!copy_task(engine, batch, i, error))
            return FALSE;
    sort_by_worker(engine, batch);
    point_at_accesses(batch);
    return level_pools(batch, engine, error);
}

void
rp_batch_task_times(const RpEngine *engine, const RpEngineTask *task, gint64 *start_ns,
                    gint64 *end_ns)
{
    RpBackend *backend = engine->backend;

    if (task->start == NULL) {
        *start_ns = task->start_ns;
        *end_ns = task->end_ns;
        return;
    }
    *start_ns = backend->ops->event_ns(backend, task->start);
    *end_ns = backend->ops->event_ns(backend, task->end);
    if (task->n_late > 0)
        *start_ns += backend->ops->event_ns(backend, task->rest_start) -
                     backend->ops->event_ns(backend, task->lead_end);
}
