/**
 * The engine: runs a plan for real, on any backend, as the planner appends it (design.md §4).
 *
 *   caller's thread    append |--wait--| append |--wait--|          plans, hands over, collects
 *   workers of gpu g     three: each issues the tasks of its lanes in plan order; events between
 *                        lanes
 *   host workers         one for each host lane; they wait for events and run the tasks themselves
 *   collector            waits for batches to end and reads their times
 *   ender                waits for all these threads, at the end
 *
 * Tasks are copied when they are handed over, so that the plan may grow while workers run. The
 * copy, a batch, has all tasks appended to the plan since the last rp_engine_append(): usually one
 * iteration. Batches live in a ring; once it has been through, nothing is allocated any more.
 *
 * All functions are for one thread: the one that appends to the plan.
 */
#pragma once

#include <glib.h>

#include "core/plan/plan.h"
#include "core/trace/trace.h"
#include "exec/engine/backend.h"

#define RP_ENGINE_ERROR (rp_engine_error_quark())
GQuark rp_engine_error_quark(void);

typedef enum {
    RP_ENGINE_ERROR_PLAN,  /* a task waits for a later one, or arenas grew after the first batch */
    RP_ENGINE_ERROR_TASK,  /* a task failed: names device, lane and task */
    RP_ENGINE_ERROR_SYSTEM /* no more threads */
} RpEngineError;

/**
 * RpEngineDone:
 * @batch: 0, 1, 2, …
 * @records: (array length=n): measured, in task order; valid during the call
 *
 * A batch is over. Called on the caller's thread, from rp_engine_append(), _wait() or _finish().
 */
typedef void (*RpEngineDone)(gpointer user_data, guint64 batch, const RpTraceRecord *records,
                             gsize n);

typedef struct {
    guint ring;          /* batches in flight at most; 0 = 4 */
    gboolean retire;     /* rp_plan_retire() finished tasks */
    gboolean keep_trace; /* keep all records for rp_engine_steal_trace(); it grows */
    RpEngineDone done;   /* may be %NULL */
    gpointer user_data;
    /* (array length=gpus+1) (nullable): sizes that arenas have at least, where the plan does not
     * know them all before its second iteration (bound schedules); copied */
    const guint64 *arena_bytes;
} RpEngineOptions;

typedef struct _RpEngine RpEngine;

/**
 * rp_engine_new:
 * @plan: borrowed; must outlive the engine. Only the calling thread reads it
 * @backend: borrowed; must outlive the engine; for one engine at a time
 *
 * Errors: RP_ENGINE_ERROR_SYSTEM, those of the backend
 */
RpEngine *rp_engine_new(RpPlan *plan, RpBackend *backend, const RpEngineOptions *options,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_engine_stop:
 *
 * Stops all running work and waits for every thread, five seconds at most: one that issues to a
 * device which waits for another that has failed may never come back from the driver.
 *
 * Returns: %FALSE if a thread is left. It only returns, whenever it comes back, but reads its
 * task's data before: neither the backend, nor the data it borrows (the network, the host's
 * state, batches of tokens), nor the plan may be freed any more
 */
gboolean rp_engine_stop(RpEngine *engine);

/* Stops it, and frees it unless a thread is left. */
void rp_engine_free(RpEngine *engine);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpEngine, rp_engine_free)

/**
 * rp_engine_append:
 *
 * Hands over the tasks appended to the plan since the last call; the first call opens the arenas.
 * Waits for the oldest batches while the ring is full.
 *
 * Errors: RP_ENGINE_ERROR_*, within half a second of the failure, even if threads still run; after
 * one the engine has stopped and can only be freed
 */
gboolean rp_engine_append(RpEngine *engine, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits until the batches before @batch are over. Errors: as above */
gboolean rp_engine_wait(RpEngine *engine, guint64 batch, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits until everything that was handed over is over. Errors: as above */
gboolean rp_engine_finish(RpEngine *engine, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_engine_turn_to:
 * @plan: of the same devices and lanes, whose arenas are no larger; borrowed, must outlive the engine
 *   or stay until it turns to another
 * @trace: (nullable): of @plan, takes its records; %NULL for the plan that the engine was made with,
 *   whose trace is the engine's. Borrowed likewise
 * @done: (nullable): called after its batches
 *
 * Call it while nothing runs: tasks appended from now on belong to @plan.
 */
void rp_engine_turn_to(RpEngine *engine, RpPlan *plan, RpTrace *trace, RpEngineDone done,
                       gpointer user_data);

/* Number of batches handed over, and of those that are over (and retired), which are the first. */
guint64 rp_engine_n_appended(const RpEngine *engine);

/**
 * rp_engine_steal_trace:
 *
 * The measured trace of the tasks that are over; time 0 is the first hand-over. A task that stood
 * still between its lead and its rest starts that much later, as in the simulator:
 *
 *   ran        |--lead--|.......|----rest----|
 *   recorded           |--------|----rest----|      the dots are idle, not busy
 *
 * Returns: (transfer full) (nullable): %NULL without keep_trace, or if taken before
 */
RpTrace *rp_engine_steal_trace(RpEngine *engine);

/* The engine's own cost so far. */
typedef struct {
    guint64 tasks;        /* issued or run */
    guint64 waits;        /* on events; those that follow from others are left out */
    gint64 worker_cpu_ns; /* processor time of the workers (host tasks included) */
} RpEngineCost;
RpEngineCost rp_engine_cost(const RpEngine *engine);
