/**
 * Shared by the engine's files.
 *
 *   engine.c     life, hand-over, waiting; the threads that issue tasks, and the one that sees batches end
 *   failure.c    the first failure, and the end of all threads
 *   batch.c      a part of the plan, copied and resolved
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "exec/engine/counter.h"
#include "exec/engine/engine.h"

typedef struct _RpEngineTask RpEngineTask;

/* Not before @task has ended and @delay_ns more have gone by. */
typedef struct {
    const RpEngineTask *task;
    gint64 delay_ns;
} RpEngineWait;

/* A task handed over. Written by the caller's thread before the batch is; then only by its worker:
 * the times of host tasks. */
struct _RpEngineTask {
    RpBackendTask task;
    guint64 position; /* in its lane, counted from the first batch */
    guint first_wait; /* index in RpBatch.waits: those for the start, then those for the rest */
    guint n_waits;
    guint n_late;          /* more than 0: the task is launched in two parts */
    RpBackendEvent *start; /* device tasks */
    RpBackendEvent *lead_end;
    RpBackendEvent *rest_start;
    RpBackendEvent *end;
    gint64 start_ns; /* host tasks */
    gint64 end_ns;
};

/* Events that lanes of one device record in one batch. */
typedef struct {
    GPtrArray *events;
    guint n_used;
} RpEventPool;

typedef struct {
    guint64 number;
    RpTaskId first_id;
    gsize n_tasks;
    gsize capacity; /* capacity of tasks and order */
    RpEngineTask *tasks;
    guint32 *order;         /* indices of tasks by worker, ids ascending */
    guint *worker_first;    /* n_workers + 1 indices into order */
    GArray *waits;          /* RpEngineWait */
    GArray *accesses;       /* RpBackendAccess */
    RpTraceRecord *records; /* one for each task; the collector's until the batch is over */
    gsize records_capacity;
    const RpEngineTask **last; /* per lane: the batch's last task; %NULL = none */
    RpEventPool *pools;        /* per device */
    guint64 last_dependent;    /* number of the last batch that waits for tasks of this one */
} RpBatch;

/* The workers of a device. Uploads of parameters wait for the optimizer, and downloads of gradients
 * for sums of rounds: host tasks, which must not hold up the issue of other work. */
typedef enum {
    RP_ISSUER_COMPUTE = 0, /* with activations; issuers[] has it for lanes that it does not name */
    RP_ISSUER_PARAMETER_UP,
    RP_ISSUER_GRADIENT_DOWN,
    RP_ISSUERS
} RpIssuer;

typedef struct {
    RpEngine *engine;
    guint index; /* device * RP_ISSUERS + RpIssuer, or gpus * RP_ISSUERS + RpHostLaneKind */
    pthread_t thread;
    RpCounter passed; /* batches that it will not look at again */
    _Atomic gint64 cpu_ns;
} RpWorker;

struct _RpEngine {
    RpPlan *plan;         /* the plan that is appended */
    RpPlan *first;        /* the plan that the engine was made with: `trace` is of it */
    RpTrace *other_trace; /* trace of any other plan; or NULL */
    RpBackend *backend;
    RpEngineOptions options;
    guint gpus;
    guint n_lanes;
    guint n_device_lanes;
    guint n_workers;
    guint n_started; /* workers that have a thread */
    RpWorker *workers;
    RpBackendLane **lanes; /* device lanes */
    /* per lane: tasks issued (device) or done (host), from the first batch on */
    RpCounter *progress;
    RpCounter appended; /* batches */
    RpCounter over;     /* batches: the collector's */
    RpBatch *ring;
    pthread_t collector;
    gboolean collecting; /* it has a thread */
    pthread_t ender;
    RpCounter ending; /* 1: all threads leave, and the ender waits for them */
    gboolean opened;
    guint64 *arena_bytes;
    /* caller's thread */
    RpTaskId next_id;   /* first task that was not handed over */
    guint64 n_appended; /* batches */
    guint64 n_done;
    guint64 *n_planned; /* per lane: tasks handed over */
    guint64 *waited;    /* [lane * n_lanes + other]: tasks of other that lane has waited for */
    guint64 n_tasks;
    guint64 n_waits;
    gint64 origin_ns;
    RpTrace *trace;
    /* the first failure */
    pthread_mutex_t failure_lock;
    pthread_cond_t failure_changed; /* and the end; of the monotonic clock */
    guint n_failing;                /* threads in rp_engine_fail() */
    gboolean ended;                 /* no thread is left but the ender */
    _Atomic gboolean failed;
    RpTaskId failed_task;
    GError *failure;
};

static inline RpBatch *
rp_engine_batch(RpEngine *engine, guint64 number)
{
    return &engine->ring[number % engine->options.ring];
}

static inline guint
rp_engine_worker_of(const RpEngine *engine, guint32 lane)
{
    static const RpIssuer issuers[RP_LANES_PER_DEVICE] = {
        [RP_LANE_PARAMETER_UP] = RP_ISSUER_PARAMETER_UP,
        [RP_LANE_GRADIENT_DOWN] = RP_ISSUER_GRADIENT_DOWN,
    };

    return lane < engine->n_device_lanes
               ? lane / RP_LANES_PER_DEVICE * RP_ISSUERS + issuers[lane % RP_LANES_PER_DEVICE]
               : engine->gpus * RP_ISSUERS + (lane - engine->n_device_lanes);
}

static inline gboolean
rp_engine_is_device_lane(const RpEngine *engine, guint32 lane)
{
    return lane < engine->n_device_lanes;
}

void rp_batch_init(RpBatch *batch, const RpEngine *engine);
void rp_batch_clear(RpBatch *batch, const RpEngine *engine);
/* Copies tasks [first, end) of the plan. Errors: RP_ENGINE_ERROR_PLAN, those of event_new */
gboolean rp_batch_fill(RpBatch *batch, RpEngine *engine, guint64 number, RpTaskId first,
                       RpTaskId end, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Times of one task that has ended, on the backend's clock. */
void rp_batch_task_times(const RpEngine *engine, const RpEngineTask *task, gint64 *start_ns,
                         gint64 *end_ns);

/* The ender's thread; @data: RpEngine. Sleeps until all is to end, then waits for every other
 * thread and frees the lanes. Either may take for ever where a device has failed. */
void *rp_ender_run(void *data);

/* Notes the first failure, and lets every thread go. Takes @error over. Any thread. */
void rp_engine_fail(RpEngine *engine, RpTaskId task, GError *error);
/* Reports the error of rp_engine_fail() to the caller; it waits a moment if threads need it to end,
 * as tasks that ran meanwhile may have failed, too. Returns: FALSE */
gboolean rp_engine_set_failure(RpEngine *engine, GError **error);
/* Waits so long for the ender. Returns: whether all threads have ended */
gboolean rp_engine_wait_end(RpEngine *engine, gint64 ns);
