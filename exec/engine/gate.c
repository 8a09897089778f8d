#include "exec/engine/gate.h"

void
rp_gate_init(RpGate *gate)
{
    atomic_init(&gate->value, 0);
    atomic_init(&gate->wanted, G_MAXUINT64);
    pthread_mutex_init(&gate->lock, NULL);
    pthread_cond_init(&gate->cond, NULL);
    gate->broken = FALSE;
}

void
rp_gate_clear(RpGate *gate)
{
    pthread_cond_destroy(&gate->cond);
    pthread_mutex_destroy(&gate->lock);
}

/* A sleeper writes `wanted` and then reads `value`, the other side the other way round: one of them
 * sees the other's number, so no wake-up is lost. */
void
rp_gate_advance(RpGate *gate, guint64 value)
{
    atomic_store(&gate->value, value);
    if (atomic_load(&gate->wanted) > value)
        return;
    pthread_mutex_lock(&gate->lock);
    atomic_store(&gate->wanted, G_MAXUINT64); /* those who still sleep write it again */
    pthread_cond_broadcast(&gate->cond);
    pthread_mutex_unlock(&gate->lock);
}

gboolean
rp_gate_wait(RpGate *gate, guint64 value)
{
    gboolean passed = TRUE;

    if (atomic_load(&gate->value) >= value)
        return TRUE;
    pthread_mutex_lock(&gate->lock);
    for (;;) {
        if (atomic_load(&gate->wanted) > value)
            atomic_store(&gate->wanted, value);
        if (atomic_load(&gate->value) >= value)
            break;
        if (gate->broken) {
            passed = FALSE;
            break;
        }
        pthread_cond_wait(&gate->cond, &gate->lock);
    }
    pthread_mutex_unlock(&gate->lock);
    return passed;
}

void
rp_gate_break(RpGate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->broken = TRUE;
    pthread_cond_broadcast(&gate->cond);
    pthread_mutex_unlock(&gate->lock);
}
