#include "tests/exec/manual-backend.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

#define MOST_SECONDS 60

typedef enum { COMMAND_RUN, COMMAND_RECORD, COMMAND_WAIT } CommandKind;

typedef struct {
    CommandKind kind;
    const RpBackendTask *task;
    RpTaskPart part;
    RpBackendEvent *event;
    guint64 record;
} Command;

struct _RpBackendEvent {
    guint64 issued; /* records */
    guint64 happened;
    gint64 time_ns;
};

struct _RpBackendLane {
    GQueue commands;
    gboolean running; /* the head has started */
};

/* A started part. */
typedef struct {
    RpTaskId task;
    RpTaskPart part;
    RpBackendLane *lane; /* %NULL: a host task, whose thread waits */
} Started;

struct _ManualBackend {
    RpBackend base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    gboolean automatic;
    gboolean stop;
    gboolean cancelled;
    GRand *random;
    gint64 now_ns;
    gint64 delay_ns;
    RpTaskId fault_task;
    ManualFault fault;
    RpTaskId held_task;
    guint n_held;
    GPtrArray *lanes;
    GArray *started; /* Started */
    GArray *log;     /* ManualEntry */
};

static gint64
tick(ManualBackend *manual)
{
    return manual->now_ns += MANUAL_TICK_NS;
}

static void
note(ManualBackend *manual, RpTaskId task, RpTaskPart part, gboolean end)
{
    ManualEntry entry = {.task = task, .part = part, .end = end};

    g_array_append_val(manual->log, entry);
    tick(manual);
    pthread_cond_broadcast(&manual->changed);
}

static void
start(ManualBackend *manual, RpBackendLane *lane, RpTaskId task, RpTaskPart part)
{
    Started started = {.task = task, .part = part, .lane = lane};

    g_array_append_val(manual->started, started);
    note(manual, task, part, FALSE);
}

/* Lets a lane do all work that needs no time. Returns: whether it did something */
static gboolean
advance_lane(ManualBackend *manual, RpBackendLane *lane)
{
    Command *command = g_queue_peek_head(&lane->commands);

    if (command == NULL || lane->running)
        return FALSE;
    if (command->kind == COMMAND_WAIT && !manual->cancelled &&
        command->event->happened < command->record)
        return FALSE;
    if (command->kind == COMMAND_RUN && !manual->cancelled) {
        lane->running = TRUE;
        start(manual, lane, command->task->id, command->part);
        return TRUE;
    }
    if (command->kind == COMMAND_RECORD) {
        command->event->time_ns = tick(manual);
        command->event->happened = command->record;
        pthread_cond_broadcast(&manual->changed);
    }
    g_free(g_queue_pop_head(&lane->commands));
    return TRUE;
}

static void
advance(ManualBackend *manual)
{
    gboolean moved = TRUE;

    while (moved) {
        moved = FALSE;
        for (guint i = 0; i < manual->lanes->len; i++)
            while (advance_lane(manual, g_ptr_array_index(manual->lanes, i)))
                moved = TRUE;
    }
}

/* Ends a started part. Called with the lock held, which a failure gives up for a moment. */
static void
end_started(ManualBackend *manual, guint i)
{
    Started started = g_array_index(manual->started, Started, i);

    g_array_remove_index(manual->started, i);
    note(manual, started.task, started.part, TRUE);
    if (started.lane == NULL)
        return; /* its thread sees that it is gone, and reports a fault itself */
    if (manual->fault == MANUAL_FAULT_RUN && manual->fault_task == started.task &&
        !manual->cancelled) {
        pthread_mutex_unlock(&manual->lock);
        manual->base.failed(
            manual->base.failed_data, started.task,
            g_error_new(RP_BACKEND_ERROR, RP_BACKEND_ERROR_FAILED, "injected while it ran"));
        pthread_mutex_lock(&manual->lock);
    }
    started.lane->running = FALSE;
    g_free(g_queue_pop_head(&started.lane->commands));
    advance(manual);
}

static void *
end_at_random(void *data)
{
    ManualBackend *manual = data;

    pthread_mutex_lock(&manual->lock);
    while (!manual->stop) {
        if (manual->started->len == 0)
            pthread_cond_wait(&manual->changed, &manual->lock);
        else
            end_started(manual,
                        (guint)g_rand_int_range(manual->random, 0, (gint32)manual->started->len));
    }
    pthread_mutex_unlock(&manual->lock);
    return NULL;
}

static gboolean
open_arenas(RpBackend *backend, const guint64 *bytes, guint n, GError **error)
{
    return TRUE;
}

static RpBackendLane *
lane_new(RpBackend *backend, guint device, RpLaneKind kind, GError **error)
{
    ManualBackend *manual = (ManualBackend *)backend;
    RpBackendLane *lane = g_new0(RpBackendLane, 1);

    g_queue_init(&lane->commands);
    pthread_mutex_lock(&manual->lock);
    g_ptr_array_add(manual->lanes, lane);
    pthread_mutex_unlock(&manual->lock);
    return lane;
}

/* Drops tasks that were not run. The lane itself is freed with the backend, whose thread may hold
 * it. */
static void
lane_free(RpBackend *backend, RpBackendLane *lane)
{
    ManualBackend *manual = (ManualBackend *)backend;

    pthread_mutex_lock(&manual->lock);
    g_queue_clear_full(&lane->commands, g_free);
    for (guint i = manual->started->len; i-- > 0;)
        if (g_array_index(manual->started, Started, i).lane == lane)
            g_array_remove_index(manual->started, i);
    pthread_mutex_unlock(&manual->lock);
}

static void
free_lane(gpointer data)
{
    RpBackendLane *lane = data;

    g_queue_clear_full(&lane->commands, g_free);
    g_free(lane);
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

static void
push(ManualBackend *manual, RpBackendLane *lane, const Command *command)
{
    g_queue_push_tail(&lane->commands, g_memdup2(command, sizeof *command));
    advance(manual);
    pthread_cond_broadcast(&manual->changed);
}

static gboolean
fails_at_once(const ManualBackend *manual, const RpBackendTask *task, GError **error)
{
    if (manual->fault != MANUAL_FAULT_ISSUE || manual->fault_task != task->id)
        return FALSE;
    g_set_error_literal(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_FAILED,
                        "injected when it was issued");
    return TRUE;
}

static gboolean
launch(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, RpTaskPart part,
       GError **error)
{
    ManualBackend *manual = (ManualBackend *)backend;

    pthread_mutex_lock(&manual->lock);
    manual->n_held++;
    pthread_cond_broadcast(&manual->changed);
    while (manual->held_task == task->id)
        pthread_cond_wait(&manual->changed, &manual->lock);
    manual->n_held--;
    const gboolean fails = fails_at_once(manual, task, error);
    if (!fails)
        push(manual, lane, &(Command){.kind = COMMAND_RUN, .task = task, .part = part});
    pthread_mutex_unlock(&manual->lock);
    return !fails;
}

static gboolean
copy(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, GError **error)
{
    return launch(backend, lane, task, RP_PART_WHOLE, error);
}

static gboolean
record(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, GError **error)
{
    ManualBackend *manual = (ManualBackend *)backend;

    pthread_mutex_lock(&manual->lock);
    push(manual, lane,
         &(Command){.kind = COMMAND_RECORD, .event = event, .record = ++event->issued});
    pthread_mutex_unlock(&manual->lock);
    return TRUE;
}

static gboolean
wait(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, gint64 delay_ns,
     GError **error)
{
    ManualBackend *manual = (ManualBackend *)backend;

    pthread_mutex_lock(&manual->lock);
    g_assert(event->issued > 0); /* the engine records first */
    manual->delay_ns += delay_ns;
    push(manual, lane, &(Command){.kind = COMMAND_WAIT, .event = event, .record = event->issued});
    pthread_mutex_unlock(&manual->lock);
    return TRUE;
}

static gboolean
wait_host(RpBackend *backend, RpBackendEvent *event, GError **error)
{
    ManualBackend *manual = (ManualBackend *)backend;

    pthread_mutex_lock(&manual->lock);
    const guint64 awaited = event->issued;
    while (event->happened < awaited && !manual->cancelled)
        pthread_cond_wait(&manual->changed, &manual->lock);
    const gboolean happened = event->happened >= awaited;
    pthread_mutex_unlock(&manual->lock);
    if (!happened)
        g_set_error_literal(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, "cancelled");
    return happened;
}

static gint64
event_ns(RpBackend *backend, const RpBackendEvent *event)
{
    return event->time_ns;
}

static gboolean
is_started(const ManualBackend *manual, RpTaskId task, RpTaskPart part, guint *index)
{
    for (guint i = 0; i < manual->started->len; i++) {
        const Started *started = &g_array_index(manual->started, Started, i);

        if (started->task == task && started->part == part) {
            *index = i;
            return TRUE;
        }
    }
    return FALSE;
}

static gboolean
run_host(RpBackend *backend, RpHostLaneKind kind, const RpBackendTask *task, GError **error)
{
    ManualBackend *manual = (ManualBackend *)backend;
    gboolean fails;
    guint i;

    pthread_mutex_lock(&manual->lock);
    fails = fails_at_once(manual, task, error);
    if (!fails) {
        start(manual, NULL, task->id, RP_PART_WHOLE);
        while (is_started(manual, task->id, RP_PART_WHOLE, &i) && !manual->cancelled)
            pthread_cond_wait(&manual->changed, &manual->lock);
        fails = manual->fault == MANUAL_FAULT_RUN && manual->fault_task == task->id;
        if (fails)
            g_set_error_literal(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_FAILED,
                                "injected while it ran");
    }
    pthread_mutex_unlock(&manual->lock);
    return !fails;
}

static gint64
clock_now_ns(RpBackend *backend)
{
    ManualBackend *manual = (ManualBackend *)backend;

    pthread_mutex_lock(&manual->lock);
    const gint64 now_ns = tick(manual);
    pthread_mutex_unlock(&manual->lock);
    return now_ns;
}

static void
cancel(RpBackend *backend)
{
    ManualBackend *manual = (ManualBackend *)backend;

    pthread_mutex_lock(&manual->lock);
    manual->cancelled = TRUE;
    advance(manual);
    pthread_cond_broadcast(&manual->changed);
    pthread_mutex_unlock(&manual->lock);
}

static const RpBackendOps manual_ops = {
    .name = "manual",
    .open_arenas = open_arenas,
    .lane_new = lane_new,
    .lane_free = lane_free,
    .event_new = event_new,
    .event_free = event_free,
    .launch = launch,
    .copy = copy,
    .record = record,
    .wait = wait,
    .wait_host = wait_host,
    .event_ns = event_ns,
    .run_host = run_host,
    .clock_ns = clock_now_ns,
    .cancel = cancel,
};

ManualBackend *
manual_new(void)
{
    ManualBackend *manual = g_new0(ManualBackend, 1);

    manual->base.ops = &manual_ops;
    manual->fault_task = RP_TASK_NONE;
    manual->held_task = RP_TASK_NONE;
    pthread_mutex_init(&manual->lock, NULL);
    pthread_cond_init(&manual->changed, NULL);
    manual->lanes = g_ptr_array_new_with_free_func(free_lane);
    manual->started = g_array_new(FALSE, FALSE, sizeof(Started));
    manual->log = g_array_new(FALSE, FALSE, sizeof(ManualEntry));
    return manual;
}

void
manual_free(ManualBackend *manual)
{
    if (manual == NULL)
        return;
    if (manual->automatic) {
        pthread_mutex_lock(&manual->lock);
        manual->stop = TRUE;
        pthread_cond_broadcast(&manual->changed);
        pthread_mutex_unlock(&manual->lock);
        pthread_join(manual->thread, NULL);
        g_rand_free(manual->random);
    }
    g_ptr_array_unref(manual->lanes);
    g_array_unref(manual->started);
    g_array_unref(manual->log);
    pthread_cond_destroy(&manual->changed);
    pthread_mutex_destroy(&manual->lock);
    g_free(manual);
}

RpBackend *
manual_backend(ManualBackend *manual)
{
    return &manual->base;
}

void
manual_set_automatic(ManualBackend *manual, guint32 seed)
{
    manual->random = g_rand_new_with_seed(seed);
    manual->automatic = TRUE;
    g_assert(pthread_create(&manual->thread, NULL, end_at_random, manual) == 0);
}

void
manual_set_fault(ManualBackend *manual, RpTaskId task, ManualFault fault)
{
    manual->fault_task = task;
    manual->fault = fault;
}

/* With the lock. A task that never starts ends the test instead of holding it up. */
static void
wait_started(ManualBackend *manual, RpTaskId task, RpTaskPart part, guint *i)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MOST_SECONDS;
    while (!is_started(manual, task, part, i))
        if (pthread_cond_timedwait(&manual->changed, &manual->lock, &until) == ETIMEDOUT)
            g_error("task %" G_GUINT64_FORMAT " has not started in %d seconds", (guint64)task,
                    MOST_SECONDS);
}

void
manual_wait_started(ManualBackend *manual, RpTaskId task, RpTaskPart part)
{
    guint i;

    pthread_mutex_lock(&manual->lock);
    wait_started(manual, task, part, &i);
    pthread_mutex_unlock(&manual->lock);
}

static gboolean
has_wait(const RpBackendLane *lane)
{
    for (const GList *link = lane->commands.head; link != NULL; link = link->next)
        if (((const Command *)link->data)->kind == COMMAND_WAIT)
            return TRUE;
    return FALSE;
}

void
manual_wait_followed(ManualBackend *manual, RpTaskId task, RpTaskPart part)
{
    guint i;

    pthread_mutex_lock(&manual->lock);
    wait_started(manual, task, part, &i);
    const RpBackendLane *lane = g_array_index(manual->started, Started, i).lane;
    while (!has_wait(lane))
        pthread_cond_wait(&manual->changed, &manual->lock);
    pthread_mutex_unlock(&manual->lock);
}

void
manual_end(ManualBackend *manual, RpTaskId task, RpTaskPart part)
{
    guint i;

    pthread_mutex_lock(&manual->lock);
    wait_started(manual, task, part, &i);
    end_started(manual, i);
    pthread_mutex_unlock(&manual->lock);
}

gboolean
manual_is_started(ManualBackend *manual, RpTaskId task, RpTaskPart part)
{
    guint i;

    pthread_mutex_lock(&manual->lock);
    const gboolean started = is_started(manual, task, part, &i);
    pthread_mutex_unlock(&manual->lock);
    return started;
}

void
manual_pass(ManualBackend *manual, gint64 ns)
{
    pthread_mutex_lock(&manual->lock);
    manual->now_ns += ns;
    pthread_mutex_unlock(&manual->lock);
}

int
manual_find(ManualBackend *manual, RpTaskId task, RpTaskPart part, gboolean end)
{
    int found = -1;

    pthread_mutex_lock(&manual->lock);
    for (guint i = 0; i < manual->log->len && found < 0; i++) {
        const ManualEntry *entry = &g_array_index(manual->log, ManualEntry, i);

        if (entry->task == task && entry->part == part && entry->end == end)
            found = (int)i;
    }
    pthread_mutex_unlock(&manual->lock);
    return found;
}

guint
manual_n_entries(ManualBackend *manual)
{
    pthread_mutex_lock(&manual->lock);
    const guint n = manual->log->len;
    pthread_mutex_unlock(&manual->lock);
    return n;
}

gint64
manual_delay_ns(ManualBackend *manual)
{
    return manual->delay_ns;
}

void
manual_hold(ManualBackend *manual, RpTaskId task)
{
    pthread_mutex_lock(&manual->lock);
    manual->held_task = task;
    pthread_cond_broadcast(&manual->changed);
    pthread_mutex_unlock(&manual->lock);
}

void
manual_wait_held(ManualBackend *manual)
{
    pthread_mutex_lock(&manual->lock);
    while (manual->n_held == 0)
        pthread_cond_wait(&manual->changed, &manual->lock);
    pthread_mutex_unlock(&manual->lock);
}
