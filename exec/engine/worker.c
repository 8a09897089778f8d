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
#include "exec/engine/engine-private.h"

#include <time.h>

/* Makes tasks that are issued to @lane from now on come after @wait's task. */
static gboolean
issue_wait(RpEngine *engine, RpBackendLane *lane, const RpEngineWait *wait, GError **error)
{
    const guint32 other = wait->task->task.task.lane;

    if (!rp_counter_wait(&engine->progress[other], wait->task->position + 1)) {
        g_set_error_literal(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, "stopped");
        return FALSE;
    }
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

        if (!rp_counter_wait(&engine->progress[other], wait->task->position + 1)) {
            g_set_error_literal(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, "stopped");
            return FALSE;
        }
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

void *
rp_worker_run(void *data)
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
