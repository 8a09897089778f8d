/**
 * A counter that only grows, and threads that sleep until it has come to a number.
 *
 * Plain pthreads, not GLib's: its mutexes are invisible to the thread sanitizer.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include <glib.h>

typedef struct {
    _Atomic guint64 value;
    _Atomic guint64 wanted; /* the smallest number somebody sleeps for; G_MAXUINT64 = nobody */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    gboolean broken;
} RpCounter;

void rp_counter_init(RpCounter *counter);
void rp_counter_clear(RpCounter *counter);

/* Called by one thread at a time; @value never falls. Threads that it lets through see all earlier
 * writes.
 */
void rp_counter_advance(RpCounter *counter, guint64 value);

/* Sleeps until the counter has come to @value. Returns: %FALSE if it was broken before */
gboolean rp_counter_wait(RpCounter *counter, guint64 value);

/* Lets everybody go, now and from now on. */
void rp_counter_break(RpCounter *counter);
