/* The first failure, and the end.
 *
 *   thread that fails   |fail: note, break all counters, cancel|
 *   other threads        ....leave....|      ..........in the driver..........
 *   ender                |--join--|--join .....................
 *   caller               |--wait a moment--|message|   |stop: wait|leave it all where it is|
 *
 * A thread that issues to a full queue of a device that waits for one that has failed never comes
 * back, nor does any thread that calls that device. So only the ender waits for all of them, and
 * callers wait for the ender for a limited time. Everything that a thread which comes back late may
 * touch must then stay: see rp_engine_stop(). */
#include "core/base/quote.h"
#include "exec/engine/engine-private.h"
#include "exec/system/clock.h"

/* A message waits this long for one that explains the failure better. */
#define BETTER_NS (400 * G_GINT64_CONSTANT(1000000))

/* Lets every thread go. */
static void
let_go(RpEngine *engine)
{
    atomic_store(&engine->failed, TRUE);
    rp_counter_break(&engine->appended);
    for (guint32 l = 0; l < engine->n_lanes; l++)
        rp_counter_break(&engine->progress[l]);
    for (guint w = 0; w < engine->n_workers; w++)
        rp_counter_break(&engine->workers[w].passed);
    rp_counter_break(&engine->over);
    engine->backend->ops->cancel(engine->backend);
    rp_counter_break(&engine->ending);
}

void
rp_engine_fail(RpEngine *engine, RpTaskId task, GError *error)
{
    pthread_mutex_lock(&engine->failure_lock);
    engine->n_failing++;
    gboolean first = engine->failure == NULL;
    /* among tasks that failed at the same time, names the one that a serial program comes to first */
    if (first || (task < engine->failed_task &&
                  !g_error_matches(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED))) {
        GError *later = engine->failure;

        engine->failure = error;
        engine->failed_task = task;
        error = later;
    }
    pthread_mutex_unlock(&engine->failure_lock);
    if (first)
        let_go(engine);
    g_clear_error(&error);
    pthread_mutex_lock(&engine->failure_lock);
    if (--engine->n_failing == 0)
        pthread_cond_broadcast(&engine->failure_changed);
    pthread_mutex_unlock(&engine->failure_lock);
}

void *
rp_ender_run(void *data)
{
    RpEngine *engine = data;

    rp_counter_wait(&engine->ending, 1); /* until it is broken */
    for (guint w = 0; w < engine->n_started; w++)
        pthread_join(engine->workers[w].thread, NULL);
    if (engine->collecting)
        pthread_join(engine->collector, NULL);
    for (guint32 l = 0; l < engine->n_device_lanes; l++)
        if (engine->lanes[l] != NULL)
            engine->backend->ops->lane_free(engine->backend, g_steal_pointer(&engine->lanes[l]));
    pthread_mutex_lock(&engine->failure_lock);
    /* a thread of the backend may still be telling of a failure */
    while (engine->n_failing > 0)
        pthread_cond_wait(&engine->failure_changed, &engine->failure_lock);
    engine->ended = TRUE;
    pthread_cond_broadcast(&engine->failure_changed);
    pthread_mutex_unlock(&engine->failure_lock);
    return NULL;
}

gboolean
rp_engine_wait_end(RpEngine *engine, gint64 ns)
{
    const gint64 end_ns = rp_clock_ns() + ns;
    gboolean ended;

    pthread_mutex_lock(&engine->failure_lock);
    while (!engine->ended && rp_clock_wait(&engine->failure_changed, &engine->failure_lock, end_ns))
        ;
    ended = engine->ended;
    pthread_mutex_unlock(&engine->failure_lock);
    return ended;
}

gboolean
rp_engine_set_failure(RpEngine *engine, GError **error)
{
    (void)rp_engine_wait_end(engine, BETTER_NS);
    pthread_mutex_lock(&engine->failure_lock);
    const RpTaskId id = engine->failed_task;
    g_autofree char *message = g_strdup(engine->failure->message);
    pthread_mutex_unlock(&engine->failure_lock);

    /* the task is still in the plan: only batches that are over are retired */
    if (id < rp_plan_first_id(engine->plan) || id >= rp_plan_end_id(engine->plan))
        return rp_fail(error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_TASK, "%s", message);
    const guint32 lane = rp_plan_task(engine->plan, id)->lane;
    const guint32 device = rp_plan_lane_device(engine->plan, lane);
    g_autofree char *text = rp_task_describe(engine->plan, id);
    g_autofree char *place =
        device == RP_NONE ? g_strdup("host, ") : g_strdup_printf("gpu %u, ", device);

    return rp_fail(error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_TASK, "%s%s lane: %s: %s", place,
                   rp_lane_name(rp_plan_lane_kind(engine->plan, lane)), text, message);
}

G_DEFINE_QUARK(rp_engine_error, rp_engine_error)

G_DEFINE_QUARK(rp_backend_error, rp_backend_error)
