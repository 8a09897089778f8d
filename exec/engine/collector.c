/* The collector: sees batches end, one after the other, and reads their times.
 *
 *   workers     |--issue 0--|--issue 1--|--issue 2--|
 *   collector      |------wait 0------|read|--wait 1--|read|
 *   caller                                 0 is over       1 is over
 */
#include "exec/engine/engine-private.h"

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

void *
rp_collector_run(void *data)
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
