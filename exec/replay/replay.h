/**
 * The replay backend: tasks only take their profile's time, scaled. Real threads, real events, real
 * clock reads; no arithmetic, no memory. It measures how well the engine keeps to a plan.
 *
 *   compute action   duration_ns x scale
 *   hop              hop_ns x scale (`compute` plans)
 *   copy             (latency + bytes / link speed) x scale; one copy engine per device and
 *                    direction, activation lanes first, a copy in flight is not pre-empted
 *   host task        bytes / optimizer speed x scale
 *
 * Nothing else is shared: no root complex, no host memory. Compare with a simulation of such a
 * machine.
 */
#pragma once

#include <glib.h>
#include <pthread.h>

#include "core/profile/cards.h"
#include "exec/engine/backend.h"

typedef struct {
    double scale; /* >= 0; 0 = everything is over at once: only the engine takes time */
    RpLinks links;
    const RpProfile *cards;       /* (nullable): whose devices have links of their own; borrowed */
    double optimizer_bytes_per_s; /* memory traffic of host tasks; 0 = no time */
} RpReplayOptions;

/* For one engine; a backend that was cancelled stays so. */
RpBackend *rp_replay_new(guint gpus, const RpReplayOptions *options);
void rp_replay_free(RpBackend *backend);

/* Delay with which the threads that stand for devices noticed that a task was over, after the
 * device's time. It is this machine's noise and does not add up; only where it exceeds the length
 * of tasks does it change a measurement. Read after the engine has finished. */
typedef struct {
    guint64 tasks; /* tasks that took time */
    gint64 mean_ns;
    gint64 max_ns;
} RpReplayLateness;
RpReplayLateness rp_replay_lateness(RpBackend *backend);

/*
 * A copy engine: one copy at a time, activation lanes first.
 */

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    gboolean busy;
    guint n_first;  /* activation lanes that wait */
    gint64 free_ns; /* device time at which the last copy was over */
} RpReplayEngine;

void rp_copy_engine_init(RpReplayEngine *engine);
void rp_copy_engine_clear(RpReplayEngine *engine);

/**
 * rp_copy_engine_take:
 * @first: goes before those that wait without it
 * @ready_ns: device time from which the copy could begin
 *
 * Sleeps until the engine is this thread's. Returns: device time at which the copy begins
 */
gint64 rp_copy_engine_take(RpReplayEngine *engine, gboolean first, gint64 ready_ns);
void rp_copy_engine_give(RpReplayEngine *engine, gint64 end_ns);
