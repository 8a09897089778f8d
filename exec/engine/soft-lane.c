#include "exec/engine/soft-lane.h"

#include <sys/prctl.h>

#include "core/base/quote.h"
#include "exec/engine/counter.h"
#include "exec/system/clock.h"

/* Two slots of a large schedule must fit, or a lane would not hear of the next slot's parameters
 * while the slot before it runs. */
#define QUEUE_COMMANDS 4096

typedef enum { COMMAND_RUN, COMMAND_RECORD, COMMAND_WAIT, COMMAND_STOP } CommandKind;

typedef struct {
    guint8 kind;
    guint8 part;
    const RpBackendTask *task;
    RpBackendEvent *event;
    RpBackendLane *other; /* wait: who records the event, and as which of its records */
    guint64 record;
    gint64 time_ns; /* run: when it was issued; wait: delay */
} Command;

struct _RpBackendEvent {
    RpBackendLane *lane; /* these two are written when the record is issued */
    guint64 record;      /* number of the lane's records, from 1 */
    gint64 real_ns;      /* these two when it happens */
    gint64 device_ns;
};

struct _RpBackendLane {
    RpSoftBackend *backend;
    guint device;
    RpLaneKind kind;
    pthread_t thread;
    Command *queue;
    RpCounter pushed;
    RpCounter taken;
    RpCounter happened; /* records */
    guint64 n_pushed;   /* worker's */
    guint64 n_records;
    gint64 device_ns; /* lane's */
};

struct _RpSoftShared {
    pthread_mutex_t lock;
    pthread_cond_t cancelled_cond;
    _Atomic gboolean cancelled;
    GPtrArray *lanes; /* lanes that run */
    GPtrArray *ended; /* until no other lane can look at their records */
};

static void
free_lane(gpointer data)
{
    RpBackendLane *lane = data;

    rp_counter_clear(&lane->pushed);
    rp_counter_clear(&lane->taken);
    rp_counter_clear(&lane->happened);
    g_free(lane->queue);
    g_free(lane);
}

void
rp_soft_backend_clear(RpSoftBackend *backend)
{
    pthread_cond_destroy(&backend->shared->cancelled_cond);
    pthread_mutex_destroy(&backend->shared->lock);
    g_ptr_array_unref(backend->shared->lanes);
    g_ptr_array_unref(backend->shared->ended);
    g_free(backend->shared);
}

gint64
rp_soft_clock_ns(RpBackend *backend)
{
    return rp_clock_ns();
}

static gboolean
is_cancelled(RpSoftBackend *backend)
{
    return atomic_load(&backend->shared->cancelled);
}

void
rp_soft_sleep_until(RpSoftBackend *backend, gint64 time_ns)
{
    struct _RpSoftShared *shared = backend->shared;

    if (rp_clock_ns() >= time_ns)
        return;
    pthread_mutex_lock(&shared->lock);
    while (!atomic_load(&shared->cancelled) && rp_clock_ns() < time_ns)
        (void)rp_clock_wait(&shared->cancelled_cond, &shared->lock, time_ns);
    pthread_mutex_unlock(&shared->lock);
}

static void
cancel(RpBackend *backend)
{
    struct _RpSoftShared *shared = ((RpSoftBackend *)backend)->shared;

    pthread_mutex_lock(&shared->lock);
    atomic_store(&shared->cancelled, TRUE);
    pthread_cond_broadcast(&shared->cancelled_cond);
    for (guint i = 0; i < shared->lanes->len; i++)
        rp_counter_break(&((RpBackendLane *)g_ptr_array_index(shared->lanes, i))->happened);
    pthread_mutex_unlock(&shared->lock);
}

static void
run_command(RpBackendLane *lane, const Command *command)
{
    RpBackend *backend = &lane->backend->base;
    GError *error = NULL;

    if (is_cancelled(lane->backend))
        return;
    lane->device_ns = MAX(lane->device_ns, command->time_ns);
    if (!lane->backend->run(backend, lane, command->task, (RpTaskPart)command->part, &error))
        backend->failed(backend->failed_data, command->task->id, error);
}

static void
wait_command(RpBackendLane *lane, const Command *command)
{
    if (!rp_counter_wait(&command->other->happened, command->record))
        return;
    const gint64 over_ns = command->event->device_ns + command->time_ns;

    lane->device_ns = MAX(lane->device_ns, over_ns);
    if (command->time_ns > 0)
        rp_soft_sleep_until(lane->backend, over_ns);
}

static void
record_command(RpBackendLane *lane, const Command *command)
{
    command->event->real_ns = rp_clock_ns();
    command->event->device_ns = lane->device_ns;
    rp_counter_advance(&lane->happened, command->record);
}

static void *
lane_main(void *data)
{
    RpBackendLane *lane = data;

    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    for (guint64 i = 0;; i++) {
        rp_counter_wait(&lane->pushed, i + 1);
        const Command *command = &lane->queue[i % QUEUE_COMMANDS];

        switch ((CommandKind)command->kind) {
        case COMMAND_RUN:
            run_command(lane, command);
            break;
        case COMMAND_WAIT:
            wait_command(lane, command);
            break;
        case COMMAND_RECORD:
            record_command(lane, command);
            break;
        case COMMAND_STOP:
            return NULL;
        }
        rp_counter_advance(&lane->taken, i + 1);
    }
}

static void
push(RpBackendLane *lane, const Command *command)
{
    if (lane->n_pushed >= QUEUE_COMMANDS)
        rp_counter_wait(&lane->taken, lane->n_pushed + 1 - QUEUE_COMMANDS);
    lane->queue[lane->n_pushed % QUEUE_COMMANDS] = *command;
    rp_counter_advance(&lane->pushed, ++lane->n_pushed);
}

static RpBackendLane *
lane_new(RpBackend *backend, guint device, RpLaneKind kind, GError **error)
{
    RpSoftBackend *soft = (RpSoftBackend *)backend;
    RpBackendLane *lane = g_new0(RpBackendLane, 1);

    lane->backend = soft;
    lane->device = device;
    lane->kind = kind;
    lane->queue = g_new(Command, QUEUE_COMMANDS);
    rp_counter_init(&lane->pushed);
    rp_counter_init(&lane->taken);
    rp_counter_init(&lane->happened);
    const int code = pthread_create(&lane->thread, NULL, lane_main, lane);
    if (code != 0) {
        g_set_error(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_FAILED,
                    "cannot start a lane's thread: %s", g_strerror(code));
        free_lane(lane);
        return NULL;
    }
    pthread_mutex_lock(&soft->shared->lock);
    g_ptr_array_add(soft->shared->lanes, lane);
    pthread_mutex_unlock(&soft->shared->lock);
    return lane;
}

static void
lane_free(RpBackend *backend, RpBackendLane *lane)
{
    RpSoftBackend *soft = (RpSoftBackend *)backend;

    push(lane, &(Command){.kind = COMMAND_STOP});
    pthread_join(lane->thread, NULL);
    pthread_mutex_lock(&soft->shared->lock);
    g_ptr_array_remove_fast(soft->shared->lanes, lane);
    g_ptr_array_add(soft->shared->ended, lane);
    if (soft->shared->lanes->len == 0)
        g_ptr_array_set_size(soft->shared->ended, 0);
    pthread_mutex_unlock(&soft->shared->lock);
}

static RpBackendEvent *
event_new(RpBackend *backend, guint device, GError **error)
{
    return g_new0(RpBackendEvent, 1);
}

static void
event_free(RpBackend *backend, RpBackendEvent *event)
{
    g_free(event);
}

static gboolean
launch(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, RpTaskPart part,
       GError **error)
{
    push(lane,
         &(Command){
             .kind = COMMAND_RUN, .part = (guint8)part, .task = task, .time_ns = rp_clock_ns()});
    return TRUE;
}

static gboolean
copy(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, GError **error)
{
    return launch(backend, lane, task, RP_PART_WHOLE, error);
}

static gboolean
record(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, GError **error)
{
    event->lane = lane;
    event->record = ++lane->n_records;
    push(lane, &(Command){.kind = COMMAND_RECORD, .event = event, .record = event->record});
    return TRUE;
}

gboolean
rp_soft_wait(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, gint64 delay_ns,
             GError **error)
{
    push(lane, &(Command){.kind = COMMAND_WAIT,
                          .event = event,
                          .other = event->lane,
                          .record = event->record,
                          .time_ns = delay_ns});
    return TRUE;
}

static gboolean
wait_host(RpBackend *backend, RpBackendEvent *event, GError **error)
{
    if (rp_counter_wait(&event->lane->happened, event->record))
        return TRUE;
    return rp_fail(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, "stopped");
}

static gint64
event_ns(RpBackend *backend, const RpBackendEvent *event)
{
    return event->real_ns;
}

void
rp_soft_backend_init(RpSoftBackend *backend, const RpBackendOps *own, RpSoftRun run)
{
    *backend = (RpSoftBackend){.ops = *own, .run = run};
    backend->ops.lane_new = lane_new;
    backend->ops.lane_free = lane_free;
    backend->ops.event_new = event_new;
    backend->ops.event_free = event_free;
    backend->ops.launch = launch;
    backend->ops.copy = copy;
    backend->ops.record = record;
    backend->ops.wait = own->wait != NULL ? own->wait : rp_soft_wait;
    backend->ops.wait_host = wait_host;
    backend->ops.event_ns = event_ns;
    backend->ops.clock_ns = rp_soft_clock_ns;
    backend->ops.cancel = cancel;
    backend->base.ops = &backend->ops;
    backend->shared = g_new0(struct _RpSoftShared, 1);
    backend->shared->lanes = g_ptr_array_new();
    backend->shared->ended = g_ptr_array_new_with_free_func(free_lane);
    pthread_mutex_init(&backend->shared->lock, NULL);
    rp_clock_init_cond(&backend->shared->cancelled_cond);
}

guint
rp_soft_lane_device(const RpBackendLane *lane)
{
    return lane->device;
}

RpLaneKind
rp_soft_lane_kind(const RpBackendLane *lane)
{
    return lane->kind;
}

gint64
rp_soft_lane_time_ns(const RpBackendLane *lane)
{
    return lane->device_ns;
}

void
rp_soft_lane_set_time(RpBackendLane *lane, gint64 time_ns)
{
    lane->device_ns = time_ns;
}
