#include "exec/replay/replay.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/prctl.h>

#include "core/base/units.h"
#include "exec/engine/soft-lane.h"

void
rp_copy_engine_init(RpReplayEngine *engine)
{
    *engine = (RpReplayEngine){.busy = FALSE};
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->cond, NULL);
}

void
rp_copy_engine_clear(RpReplayEngine *engine)
{
    pthread_cond_destroy(&engine->cond);
    pthread_mutex_destroy(&engine->lock);
}

gint64
rp_copy_engine_take(RpReplayEngine *engine, gboolean first, gint64 ready_ns)
{
    pthread_mutex_lock(&engine->lock);
    engine->n_first += first ? 1 : 0;
    while (engine->busy || (!first && engine->n_first > 0))
        pthread_cond_wait(&engine->cond, &engine->lock);
    engine->n_first -= first ? 1 : 0;
    engine->busy = TRUE;
    gint64 start_ns = MAX(ready_ns, engine->free_ns);
    pthread_mutex_unlock(&engine->lock);
    return start_ns;
}

void
rp_copy_engine_give(RpReplayEngine *engine, gint64 end_ns)
{
    pthread_mutex_lock(&engine->lock);
    engine->busy = FALSE;
    engine->free_ns = end_ns;
    pthread_cond_broadcast(&engine->cond);
    pthread_mutex_unlock(&engine->lock);
}

typedef struct {
    RpSoftBackend soft;
    RpReplayOptions options;
    guint gpus;
    RpReplayEngine *engines; /* 2 device + (1 if down) */
    _Atomic guint64 n_late;
    _Atomic gint64 total_late_ns;
    _Atomic gint64 max_late_ns;
} RpReplay;

static gint64
scaled_ns(const RpReplay *replay, double time_ns)
{
    return (gint64)llround(time_ns * replay->options.scale);
}

static void
note_lateness(RpReplay *replay, gint64 late_ns)
{
    gint64 max_ns = atomic_load(&replay->max_late_ns);

    atomic_fetch_add(&replay->n_late, 1);
    atomic_fetch_add(&replay->total_late_ns, late_ns);
    while (late_ns > max_ns &&
           !atomic_compare_exchange_weak(&replay->max_late_ns, &max_ns, late_ns))
        ;
}

/* The lane is busy from its device's time @start_ns on. Returns: until when */
static gint64
take_time(RpReplay *replay, RpBackendLane *lane, gint64 start_ns, gint64 duration_ns)
{
    const gint64 end_ns = start_ns + duration_ns;

    rp_soft_lane_set_time(lane, end_ns);
    if (duration_ns > 0) {
        rp_soft_sleep_until(&replay->soft, end_ns);
        note_lateness(replay, rp_soft_clock_ns(&replay->soft.base) - end_ns);
    }
    return end_ns;
}

static gint64
part_ns(const RpTask *task, RpTaskPart part)
{
    switch (part) {
    case RP_PART_LEAD:
        return task->lead_ns;
    case RP_PART_REST:
        return task->duration_ns - task->lead_ns;
    case RP_PART_WHOLE:
        return task->duration_ns;
    }
    g_assert_not_reached();
}

static void
run_copy(RpReplay *replay, RpBackendLane *lane, const RpTask *task)
{
    const RpLaneKind kind = rp_soft_lane_kind(lane);
    const gboolean up = kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP;
    const gboolean activation = kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_ACTIVATION_DOWN;
    const guint32 device = rp_soft_lane_device(lane);
    const RpLinks *links = replay->options.cards != NULL
                               ? &rp_profile_of(replay->options.cards, device)->links
                               : &replay->options.links;
    const double speed = up ? links->h2d_bytes_per_s : links->d2h_bytes_per_s;
    RpReplayEngine *engine = &replay->engines[2 * device + (up ? 0 : 1)];
    double time_ns = (double)links->copy_latency_ns;

    if (task->bytes == 0)
        return; /* a copy of nothing needs no engine */
    if (speed > 0)
        time_ns += (double)task->bytes / speed * (double)RP_NS_PER_S;
    const gint64 start_ns = rp_copy_engine_take(engine, activation, rp_soft_lane_time_ns(lane));
    rp_copy_engine_give(engine, take_time(replay, lane, start_ns, scaled_ns(replay, time_ns)));
}

static gboolean
run_task(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, RpTaskPart part,
         GError **error)
{
    RpReplay *replay = (RpReplay *)backend;

    if (rp_task_is_transfer(&task->task))
        run_copy(replay, lane, &task->task);
    else
        take_time(replay, lane, rp_soft_lane_time_ns(lane),
                  scaled_ns(replay, (double)part_ns(&task->task, part)));
    return TRUE;
}

static gboolean
run_host(RpBackend *backend, RpHostLaneKind kind, const RpBackendTask *task, GError **error)
{
    RpReplay *replay = (RpReplay *)backend;
    const double speed = replay->options.optimizer_bytes_per_s;
    double time_ns = (double)task->task.duration_ns;

    if (speed > 0)
        time_ns += (double)task->task.bytes / speed * (double)RP_NS_PER_S;
    if (time_ns * replay->options.scale < 1)
        return TRUE;
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    rp_soft_sleep_until(&replay->soft, rp_soft_clock_ns(backend) + scaled_ns(replay, time_ns));
    return TRUE;
}

/* Nothing is stored. */
static gboolean
open_arenas(RpBackend *backend, const guint64 *bytes, guint n, GError **error)
{
    return TRUE;
}

static gboolean
wait_hop(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, gint64 delay_ns,
         GError **error)
{
    return rp_soft_wait(backend, lane, event,
                        scaled_ns((const RpReplay *)backend, (double)delay_ns), error);
}

static const RpBackendOps replay_ops = {
    .name = "replay",
    .open_arenas = open_arenas,
    .wait = wait_hop,
    .run_host = run_host,
};

RpBackend *
rp_replay_new(guint gpus, const RpReplayOptions *options)
{
    RpReplay *replay = g_new0(RpReplay, 1);

    rp_soft_backend_init(&replay->soft, &replay_ops, run_task);
    replay->options = *options;
    replay->gpus = gpus;
    replay->engines = g_new0(RpReplayEngine, 2 * (gsize)gpus);
    for (guint i = 0; i < 2 * gpus; i++)
        rp_copy_engine_init(&replay->engines[i]);
    return &replay->soft.base;
}

void
rp_replay_free(RpBackend *backend)
{
    RpReplay *replay = (RpReplay *)backend;

    if (replay == NULL)
        return;
    for (guint i = 0; i < 2 * replay->gpus; i++)
        rp_copy_engine_clear(&replay->engines[i]);
    g_free(replay->engines);
    rp_soft_backend_clear(&replay->soft);
    g_free(replay);
}

RpReplayLateness
rp_replay_lateness(RpBackend *backend)
{
    RpReplay *replay = (RpReplay *)backend;
    RpReplayLateness lateness = {
        .tasks = atomic_load(&replay->n_late),
        .max_ns = atomic_load(&replay->max_late_ns),
    };

    if (lateness.tasks > 0)
        lateness.mean_ns = atomic_load(&replay->total_late_ns) / (gint64)lateness.tasks;
    return lateness;
}
