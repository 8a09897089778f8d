#include "exec/replay/copy-engine.h"

void
rp_copy_engine_init(RpReplayEngine *engine)
{
    *engine = (RpReplayEngine){.busy = FALSE};
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->cond, NULL);
}

void
rp_copy_engine_clear(RpReplayEngine *engine)
{
    pthread_cond_destroy(&engine->cond);
    pthread_mutex_destroy(&engine->lock);
}

gint64
rp_copy_engine_take(RpReplayEngine *engine, gboolean first, gint64 ready_ns)
{
    gint64 start_ns;

    pthread_mutex_lock(&engine->lock);
    engine->n_first += first ? 1 : 0;
    while (engine->busy || (!first && engine->n_first > 0))
        pthread_cond_wait(&engine->cond, &engine->lock);
    engine->n_first -= first ? 1 : 0;
    engine->busy = TRUE;
    start_ns = MAX(ready_ns, engine->free_ns);
    pthread_mutex_unlock(&engine->lock);
    return start_ns;
}

void
rp_copy_engine_give(RpReplayEngine *engine, gint64 end_ns)
{
    pthread_mutex_lock(&engine->lock);
    engine->busy = FALSE;
    engine->free_ns = end_ns;
    pthread_cond_broadcast(&engine->cond);
    pthread_mutex_unlock(&engine->lock);
}
