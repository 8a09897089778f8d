/**
 * A gate: a counter that only grows, and threads that sleep until it has come to a number.
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
} RpGate;

void rp_gate_init(RpGate *gate);
void rp_gate_clear(RpGate *gate);

/* One thread at a time; @value never falls. What was written before is seen by those let through.
 */
void rp_gate_advance(RpGate *gate, guint64 value);

static inline guint64
rp_gate_value(RpGate *gate)
{
    return atomic_load(&gate->value);
}

/* Sleeps until the gate has come to @value. Returns: %FALSE if it was broken before */
gboolean rp_gate_wait(RpGate *gate, guint64 value);

/* Lets everybody go, now and from now on. */
void rp_gate_break(RpGate *gate);
