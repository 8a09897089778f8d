#include "exec/engine/counter.h"

void
rp_counter_init(RpCounter *counter)
{
    atomic_init(&counter->value, 0);
    atomic_init(&counter->wanted, G_MAXUINT64);
    pthread_mutex_init(&counter->lock, NULL);
    pthread_cond_init(&counter->cond, NULL);
    counter->broken = FALSE;
}

void
rp_counter_clear(RpCounter *counter)
{
    pthread_cond_destroy(&counter->cond);
    pthread_mutex_destroy(&counter->lock);
}

/* A sleeper writes `wanted` and then reads `value`; the other side does it in reverse order: one of
 * them sees the other's number, so no wake-up is lost. */
void
rp_counter_advance(RpCounter *counter, guint64 value)
{
    atomic_store(&counter->value, value);
    if (atomic_load(&counter->wanted) > value)
        return;
    pthread_mutex_lock(&counter->lock);
    atomic_store(&counter->wanted, G_MAXUINT64); /* threads that still sleep write it again */
    pthread_cond_broadcast(&counter->cond);
    pthread_mutex_unlock(&counter->lock);
}

gboolean
rp_counter_wait(RpCounter *counter, guint64 value)
{
    gboolean passed = TRUE;

    if (atomic_load(&counter->value) >= value)
        return TRUE;
    pthread_mutex_lock(&counter->lock);
    for (;;) {
        if (atomic_load(&counter->wanted) > value)
            atomic_store(&counter->wanted, value);
        if (atomic_load(&counter->value) >= value)
            break;
        if (counter->broken) {
            passed = FALSE;
            break;
        }
        pthread_cond_wait(&counter->cond, &counter->lock);
    }
    pthread_mutex_unlock(&counter->lock);
    return passed;
}

void
rp_counter_break(RpCounter *counter)
{
    pthread_mutex_lock(&counter->lock);
    counter->broken = TRUE;
    pthread_cond_broadcast(&counter->cond);
    pthread_mutex_unlock(&counter->lock);
}
