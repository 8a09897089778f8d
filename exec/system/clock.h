/**
 * The monotonic clock: times of tasks, and waits that end by it.
 */
#pragma once

#include <glib.h>
#include <pthread.h>
#include <time.h>

#include "core/base/units.h"

static inline gint64
rp_clock_ns(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * RP_NS_PER_S + time.tv_nsec;
}

/* A condition for rp_clock_wait(). */
static inline void
rp_clock_init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Returns: FALSE once it is @until_ns */
static inline gboolean
rp_clock_wait(pthread_cond_t *cond, pthread_mutex_t *lock, gint64 until_ns)
{
    const struct timespec until = {.tv_sec = until_ns / RP_NS_PER_S,
                                   .tv_nsec = until_ns % RP_NS_PER_S};

    return pthread_cond_timedwait(cond, lock, &until) == 0;
}
