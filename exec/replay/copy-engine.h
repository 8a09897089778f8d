/**
 * A copy engine: one copy at a time, activation lanes first.
 */
#pragma once

#include <pthread.h>

#include <glib.h>

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
