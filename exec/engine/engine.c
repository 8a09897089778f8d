#include "exec/engine/engine-private.h"

#include <string.h>
#include <time.h>

#include "core/base/quote.h"
#include "exec/system/clock.h"

/* The threads of the engine.
 *
 *   device workers  for each task of their lanes, in plan order:
 *                   [host event?]  wait*  record start
 *                   launch lead, record, wait*, record, launch rest   (or launch whole, or copy)
 *                   record end
 *   host worker     for each task of its lane:    wait for events, run, report
 *
 * A device worker sleeps only for conditions that must hold before it may issue: a host task that
 * is done, a record that another worker has issued (not: that has happened). Dependencies are on
 * smaller ids, and each worker goes by ids, so the smallest task that was not issued can always be:
 * workers cannot wait for each other in a circle. */

/* Makes tasks that are issued to @lane from now on come after @wait's task. */
static gboolean
issue_wait(RpEngine *engine, RpBackendLane *lane, const RpEngineWait *wait, GError **error)
{
    const guint32 other = wait->task->task.task.lane;

    if (!rp_counter_wait(&engine->progress[other], wait->task->position + 1))
        return rp_fail(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, "stopped");
    return !rp_engine_is_device_lane(engine, other) ||
           engine->backend->ops->wait(engine->backend, lane, wait->task->end, wait->delay_ns,
                                      error);
}

static gboolean
issue_waits(RpEngine *engine, RpBackendLane *lane, const RpEngineWait *waits, guint n,
            GError **error)
{
    for (guint i = 0; i < n; i++)
        if (!issue_wait(engine, lane, &waits[i], error))
            return FALSE;
    return TRUE;
}

static gboolean
issue_work(RpEngine *engine, RpBackendLane *lane, const RpEngineTask *task,
           const RpEngineWait *late, GError **error)
{
    RpBackend *backend = engine->backend;
    const RpBackendOps *ops = backend->ops;

    if (rp_task_is_transfer(&task->task.task))
        return ops->copy(backend, lane, &task->task, error);
    if (task->n_late == 0)
        return ops->launch(backend, lane, &task->task, RP_PART_WHOLE, error);
    return ops->launch(backend, lane, &task->task, RP_PART_LEAD, error) &&
           ops->record(backend, lane, task->lead_end, error) &&
           issue_waits(engine, lane, late, task->n_late, error) &&
           ops->record(backend, lane, task->rest_start, error) &&
           ops->launch(backend, lane, &task->task, RP_PART_REST, error);
}

static gboolean
issue(RpEngine *engine, const RpBatch *batch, const RpEngineTask *task, GError **error)
{
    RpBackend *backend = engine->backend;
    RpBackendLane *lane = engine->lanes[task->task.task.lane];
    const RpEngineWait *waits = &g_array_index(batch->waits, RpEngineWait, task->first_wait);

    if (!issue_waits(engine, lane, waits, task->n_waits, error) ||
        !backend->ops->record(backend, lane, task->start, error) ||
        !issue_work(engine, lane, task, waits + task->n_waits, error) ||
        !backend->ops->record(backend, lane, task->end, error))
        return FALSE;
    rp_counter_advance(&engine->progress[task->task.task.lane], task->position + 1);
    return TRUE;
}

static gboolean
run_host(RpEngine *engine, const RpBatch *batch, RpEngineTask *task, GError **error)
{
    RpBackend *backend = engine->backend;
    const guint32 lane = task->task.task.lane;

    for (guint i = 0; i < task->n_waits; i++) {
        const RpEngineWait *wait = &g_array_index(batch->waits, RpEngineWait, task->first_wait + i);
        const guint32 other = wait->task->task.task.lane;

        if (!rp_counter_wait(&engine->progress[other], wait->task->position + 1))
            return rp_fail(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, "stopped");
        if (rp_engine_is_device_lane(engine, other) &&
            !backend->ops->wait_host(backend, wait->task->end, error))
            return FALSE;
    }
    task->start_ns = backend->ops->clock_ns(backend);
    if (!backend->ops->run_host(backend, (RpHostLaneKind)(lane - engine->n_device_lanes),
                                &task->task, error))
        return FALSE;
    task->end_ns = backend->ops->clock_ns(backend);
    rp_counter_advance(&engine->progress[lane], task->position + 1);
    return TRUE;
}

static void
note_cpu(RpWorker *worker)
{
    struct timespec time;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    atomic_store(&worker->cpu_ns, time.tv_sec * G_GINT64_CONSTANT(1000000000) + time.tv_nsec);
}

/* A worker's thread; @data: RpWorker */
static void *
run_worker(void *data)
{
    RpWorker *worker = data;
    RpEngine *engine = worker->engine;

    for (guint64 k = 0; rp_counter_wait(&engine->appended, k + 1); k++) {
        RpBatch *batch = rp_engine_batch(engine, k);
        const guint end = batch->worker_first[worker->index + 1];

        for (guint i = batch->worker_first[worker->index]; i < end; i++) {
            RpEngineTask *task = &batch->tasks[batch->order[i]];
            GError *error = NULL;
            gboolean done = rp_engine_is_device_lane(engine, task->task.task.lane)
                                ? issue(engine, batch, task, &error)
                                : run_host(engine, batch, task, &error);

            if (atomic_load(&engine->failed) || !done) {
                if (!done)
                    rp_engine_fail(engine, task->task.id, error);
                note_cpu(worker);
                return NULL;
            }
        }
        note_cpu(worker);
        rp_counter_advance(&worker->passed, k + 1);
    }
    return NULL;
}

/* The collector: sees batches end, one after the other, and reads their times.
 *
 *   workers     |--issue 0--|--issue 1--|--issue 2--|
 *   collector      |------wait 0------|read|--wait 1--|read|
 *   caller                                 0 is over       1 is over
 */

static gboolean
wait_for_lane(RpEngine *engine, guint32 lane, const RpEngineTask *last)
{
    GError *error = NULL;

    if (!rp_counter_wait(&engine->progress[lane], last->position + 1))
        return FALSE;
    if (!rp_engine_is_device_lane(engine, lane) ||
        engine->backend->ops->wait_host(engine->backend, last->end, &error))
        return !atomic_load(&engine->failed);
    rp_engine_fail(engine, last->task.id, error);
    return FALSE;
}

static void
make_records(const RpEngine *engine, RpBatch *batch)
{
    if (batch->n_tasks > batch->records_capacity) {
        batch->records_capacity = batch->n_tasks + batch->n_tasks / 4;
        g_free(batch->records);
        batch->records = g_new(RpTraceRecord, batch->records_capacity);
    }
    for (gsize i = 0; i < batch->n_tasks; i++) {
        RpTraceRecord *record = &batch->records[i];
        gint64 start_ns, end_ns;

        rp_trace_record_init(record, batch->first_id + i, &batch->tasks[i].task.task);
        rp_batch_task_times(engine, &batch->tasks[i], &start_ns, &end_ns);
        record->start_ns = start_ns - engine->origin_ns;
        record->end_ns = end_ns - engine->origin_ns;
    }
}

/* The collector's thread; @data: RpEngine */
static void *
run_collector(void *data)
{
    RpEngine *engine = data;

    for (guint64 k = 0; rp_counter_wait(&engine->appended, k + 1); k++) {
        RpBatch *batch = rp_engine_batch(engine, k);

        for (guint32 l = 0; l < engine->n_lanes; l++)
            if (batch->last[l] != NULL && !wait_for_lane(engine, l, batch->last[l]))
                return NULL;
        make_records(engine, batch);
        rp_counter_advance(&engine->over, k + 1);
    }
    return NULL;
}

#define DEFAULT_RING 4

/* rp_engine_stop() waits this long for threads: longer than a backend takes to give up. */
#define STOP_NS (5 * G_GINT64_CONSTANT(1000000000))

static void
backend_failed(gpointer user_data, RpTaskId task, GError *error)
{
    rp_engine_fail(user_data, task, error);
}

static gboolean
make_lanes(RpEngine *engine, GError **error)
{
    for (guint32 l = 0; l < engine->n_device_lanes; l++) {
        engine->lanes[l] = engine->backend->ops->lane_new(
            engine->backend, l / RP_LANES_PER_DEVICE, (RpLaneKind)(l % RP_LANES_PER_DEVICE), error);
        if (engine->lanes[l] == NULL)
            return FALSE;
    }
    return TRUE;
}

static gboolean
start_thread(pthread_t *thread, void *(*run)(void *data), void *data, GError **error)
{
    const int code = pthread_create(thread, NULL, run, data);

    if (code == 0)
        return TRUE;
    return rp_fail(error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_SYSTEM,
                   "cannot start a worker thread: %s", g_strerror(code));
}

static gboolean
start_threads(RpEngine *engine, GError **error)
{
    for (guint w = 0; w < engine->n_workers; w++) {
        RpWorker *worker = &engine->workers[w];

        worker->engine = engine;
        worker->index = w;
        if (!start_thread(&worker->thread, run_worker, worker, error))
            return FALSE;
        engine->n_started++;
    }
    engine->collecting = start_thread(&engine->collector, run_collector, engine, error);
    return engine->collecting;
}

static void
init_waits(RpEngine *engine)
{
    for (guint32 l = 0; l < engine->n_lanes; l++)
        rp_counter_init(&engine->progress[l]);
    for (guint w = 0; w < engine->n_workers; w++)
        rp_counter_init(&engine->workers[w].passed);
    rp_counter_init(&engine->appended);
    rp_counter_init(&engine->over);
    rp_counter_init(&engine->ending);
    pthread_mutex_init(&engine->failure_lock, NULL);
    rp_clock_init_cond(&engine->failure_changed);
}

static void
clear_waits(RpEngine *engine)
{
    for (guint32 l = 0; l < engine->n_lanes; l++)
        rp_counter_clear(&engine->progress[l]);
    for (guint w = 0; w < engine->n_workers; w++)
        rp_counter_clear(&engine->workers[w].passed);
    rp_counter_clear(&engine->appended);
    rp_counter_clear(&engine->over);
    rp_counter_clear(&engine->ending);
    pthread_cond_destroy(&engine->failure_changed);
    pthread_mutex_destroy(&engine->failure_lock);
}

/* No thread is left. */
static void
free_engine(RpEngine *engine)
{
    for (guint i = 0; i < engine->options.ring; i++)
        rp_batch_clear(&engine->ring[i], engine);
    clear_waits(engine);
    g_clear_error(&engine->failure);
    rp_trace_free(engine->trace);
    g_free(engine->ring);
    g_free(engine->arena_bytes);
    g_free(engine->waited);
    g_free(engine->n_planned);
    g_free(engine->progress);
    g_free(engine->lanes);
    g_free(engine->workers);
    g_free(engine);
}

RpEngine *
rp_engine_new(RpPlan *plan, RpBackend *backend, const RpEngineOptions *options, GError **error)
{
    g_return_val_if_fail(plan != NULL && backend != NULL && options != NULL, NULL);

    RpEngine *engine = g_new0(RpEngine, 1);

    engine->plan = engine->first = plan;
    engine->backend = backend;
    engine->options = *options;
    if (engine->options.ring == 0)
        engine->options.ring = DEFAULT_RING;
    engine->gpus = rp_plan_gpus(plan);
    engine->n_lanes = rp_plan_n_lanes(plan);
    engine->n_device_lanes = engine->gpus * RP_LANES_PER_DEVICE;
    engine->n_workers = engine->gpus * RP_ISSUERS +
                        (rp_plan_modes(plan)->servers > 1 ? RP_HOST_LANES : RP_HOST_LANE_NETWORK);
    engine->workers = g_new0(RpWorker, engine->n_workers);
    engine->lanes = g_new0(RpBackendLane *, engine->n_device_lanes);
    engine->progress = g_new0(RpCounter, engine->n_lanes);
    engine->n_planned = g_new0(guint64, engine->n_lanes);
    engine->waited = g_new0(guint64, (gsize)engine->n_lanes * engine->n_lanes);
    engine->arena_bytes = g_new0(guint64, (gsize)engine->gpus + 1);
    if (engine->options.arena_bytes != NULL)
        memcpy(engine->arena_bytes, engine->options.arena_bytes,
               ((gsize)engine->gpus + 1) * sizeof(guint64));
    engine->ring = g_new0(RpBatch, engine->options.ring);
    for (guint i = 0; i < engine->options.ring; i++)
        rp_batch_init(&engine->ring[i], engine);
    init_waits(engine);
    engine->failed_task = RP_TASK_NONE;
    engine->next_id = rp_plan_first_id(plan);
    if (engine->options.keep_trace)
        engine->trace = rp_trace_new(plan, RP_TRACE_MEASURED);
    /* makes GLib's data for errors on one thread, before workers fail */
    g_error_free(g_error_new_literal(RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, ""));
    (void)rp_engine_error_quark();
    backend->failed = backend_failed;
    backend->failed_data = engine;
    /* starts the ender before the things that it frees, and other threads after the things that
     * they use */
    if (!start_thread(&engine->ender, rp_ender_run, engine, error)) {
        free_engine(engine);
        return NULL;
    }
    if (!make_lanes(engine, error) || !start_threads(engine, error)) {
        rp_engine_free(engine);
        return NULL;
    }
    return engine;
}

gboolean
rp_engine_stop(RpEngine *engine)
{
    if (engine->n_done < engine->n_appended)
        rp_engine_fail(engine, RP_TASK_NONE,
                       g_error_new_literal(RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED,
                                           "the engine was freed"));
    rp_counter_break(&engine->appended); /* idle threads leave by it */
    rp_counter_break(&engine->ending);
    return rp_engine_wait_end(engine, STOP_NS);
}

void
rp_engine_free(RpEngine *engine)
{
    if (engine == NULL || !rp_engine_stop(engine))
        return; /* threads that are left may still come back to it */
    pthread_join(engine->ender, NULL);
    free_engine(engine);
}

/* Arenas are allocated once, so they must have their size before anything runs. */
static gboolean
check_arenas(RpEngine *engine, GError **error)
{
    for (guint32 a = 0; a <= engine->gpus; a++) {
        const guint64 bytes = rp_plan_arena_bytes(engine->plan, a);

        if (!engine->opened) {
            engine->arena_bytes[a] = MAX(engine->arena_bytes[a], bytes);
        } else if (bytes > engine->arena_bytes[a]) {
            return rp_fail(error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_PLAN,
                           "arena %u grew from %" G_GUINT64_FORMAT " to %" G_GUINT64_FORMAT
                           " bytes after it was opened: plan two iterations before the first runs",
                           a, engine->arena_bytes[a], bytes);
        }
    }
    if (engine->opened)
        return TRUE;
    engine->opened = TRUE;
    if (!engine->backend->ops->open_arenas(engine->backend, engine->arena_bytes, engine->gpus + 1,
                                           error))
        return rp_prefix_error(error, "%s: ", engine->backend->ops->name);
    return TRUE;
}

/* Waits for the oldest batch, reports its times and retires it. It waits on a counter alone: after
 * a failure a driver may not return from a call. */
static gboolean
collect(RpEngine *engine, GError **error)
{
    const RpBatch *batch = rp_engine_batch(engine, engine->n_done);
    RpTrace *trace = engine->plan == engine->first ? engine->trace : engine->other_trace;

    if (!rp_counter_wait(&engine->over, engine->n_done + 1))
        return rp_engine_set_failure(engine, error);
    engine->n_done++;
    if (trace != NULL && batch->n_tasks > 0)
        memcpy(rp_trace_extend(trace, batch->n_tasks), batch->records,
               batch->n_tasks * sizeof *batch->records);
    if (engine->options.done != NULL)
        engine->options.done(engine->options.user_data, batch->number, batch->records,
                             batch->n_tasks);
    if (engine->options.retire)
        rp_plan_retire(engine->plan, batch->first_id + batch->n_tasks);
    return TRUE;
}

gboolean
rp_engine_wait(RpEngine *engine, guint64 batch, GError **error)
{
    while (engine->n_done < MIN(batch, engine->n_appended))
        if (!collect(engine, error))
            return FALSE;
    return atomic_load(&engine->failed) ? rp_engine_set_failure(engine, error) : TRUE;
}

gboolean
rp_engine_finish(RpEngine *engine, GError **error)
{
    return rp_engine_wait(engine, engine->n_appended, error);
}

/* A place in the ring is free when its batch is over, those that wait for its tasks are, and every
 * worker has seen that it has nothing more to do there. */
static gboolean
free_place(RpEngine *engine, GError **error)
{
    const RpBatch *batch = rp_engine_batch(engine, engine->n_appended);

    if (engine->n_appended < engine->options.ring)
        return TRUE;
    if (!rp_engine_wait(engine, batch->last_dependent + 1, error))
        return FALSE;
    for (guint w = 0; w < engine->n_workers; w++)
        if (!rp_counter_wait(&engine->workers[w].passed, batch->number + 1))
            return rp_engine_set_failure(engine, error);
    return TRUE;
}

gboolean
rp_engine_append(RpEngine *engine, GError **error)
{
    const RpTaskId end = rp_plan_end_id(engine->plan);

    if (atomic_load(&engine->failed))
        return rp_engine_set_failure(engine, error);
    if (end == engine->next_id)
        return TRUE;
    if (!free_place(engine, error))
        return FALSE;

    RpBatch *batch = rp_engine_batch(engine, engine->n_appended);
    GError *problem = NULL;

    if (!check_arenas(engine, &problem) ||
        !rp_batch_fill(batch, engine, engine->n_appended, engine->next_id, end, &problem)) {
        /* a device that has failed gives no more events; the task that did it says more */
        if (!rp_engine_wait(engine, engine->n_appended, error)) {
            g_error_free(problem);
            return FALSE;
        }
        g_propagate_error(error, g_error_copy(problem));
        rp_engine_fail(engine, RP_TASK_NONE, problem);
        return FALSE;
    }
    if (engine->n_appended == 0)
        engine->origin_ns = engine->backend->ops->clock_ns(engine->backend);
    engine->next_id = end;
    engine->n_tasks += batch->n_tasks;
    engine->n_appended++;
    rp_counter_advance(&engine->appended, engine->n_appended);
    return TRUE;
}

void
rp_engine_turn_to(RpEngine *engine, RpPlan *plan, RpTrace *trace, RpEngineDone done,
                  gpointer user_data)
{
    g_return_if_fail(engine->n_done == engine->n_appended);
    g_return_if_fail(rp_plan_n_lanes(plan) == engine->n_lanes);
    g_return_if_fail(engine->next_id == rp_plan_end_id(engine->plan));

    engine->plan = plan;
    engine->other_trace = trace;
    /* ids begin anew, but positions in lanes continue, as all waits count by them */
    engine->next_id = rp_plan_end_id(plan);
    engine->options.done = done;
    engine->options.user_data = user_data;
}

guint64
rp_engine_n_appended(const RpEngine *engine)
{
    return engine->n_appended;
}

RpTrace *
rp_engine_steal_trace(RpEngine *engine)
{
    return g_steal_pointer(&engine->trace);
}

RpEngineCost
rp_engine_cost(const RpEngine *engine)
{
    RpEngineCost cost = {.tasks = engine->n_tasks, .waits = engine->n_waits};

    for (guint w = 0; w < engine->n_workers; w++)
        cost.worker_cpu_ns += atomic_load(&engine->workers[w].cpu_ns);
    return cost;
}
