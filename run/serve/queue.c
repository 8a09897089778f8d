#include "run/serve/private.h"

#include "core/base/quote.h"

struct _RpServeQueue {
    RpRequests *requests;
    RpRequestDone done;
    GThread **threads;
    guint n_threads, most;
    GMutex lock;         /* of all that follows */
    GHashTable *running; /* (element-type gpointer): user_data of requests that have not ended */
    guint n_alive;       /* generators */
    guint64 last_number, last_group;
    GError *error; /* the first */
};

typedef struct {
    RpServeQueue *queue;
    RpGenerator *generator;
} Worker;

/* Ends requests that nobody will take. */
static void
end_all(RpServeQueue *queue)
{
    g_autofree gpointer *left = NULL;
    guint n;

    g_mutex_lock(&queue->lock);
    left = g_hash_table_get_keys_as_array(queue->running, &n);
    g_mutex_unlock(&queue->lock);
    for (guint i = 0; i < n; i++)
        queue->done(left[i], RP_REQUEST_FAILED, NULL, 0);
}

static gpointer
serve(gpointer data)
{
    Worker *worker = data;
    RpServeQueue *queue = worker->queue;
    GError *error = NULL;
    guint n_alive;

    if (!rp_generator_serve(worker->generator, queue->requests, &error)) {
        g_mutex_lock(&queue->lock);
        n_alive = --queue->n_alive;
        if (queue->error == NULL)
            queue->error = g_steal_pointer(&error);
        g_mutex_unlock(&queue->lock);
        g_clear_error(&error);
        if (n_alive == 0)
            end_all(queue);
    }
    g_free(worker);
    return NULL;
}

RpServeQueue *
rp_serve_queue_new(RpGenerator *const *generators, guint n_generators, guint most,
                   RpRequestDone done)
{
    RpServeQueue *queue = g_new0(RpServeQueue, 1);

    g_mutex_init(&queue->lock);
    queue->requests = rp_requests_new();
    queue->running = g_hash_table_new(NULL, NULL);
    queue->done = done;
    queue->most = most;
    queue->n_alive = queue->n_threads = n_generators;
    queue->threads = g_new0(GThread *, n_generators);
    for (guint i = 0; i < n_generators; i++) {
        Worker *worker = g_new(Worker, 1);

        *worker = (Worker){queue, generators[i]};
        queue->threads[i] = g_thread_new("generator", serve, worker);
    }
    return queue;
}

static gboolean
check_space(const RpServeQueue *queue, guint n, GError **error)
{
    const guint running = g_hash_table_size(queue->running);

    if (queue->n_alive == 0)
        return rp_fail(error, RP_SERVE_ERROR, 500, "the model cannot answer: %s",
                       queue->error->message);
    if (n <= queue->most - running)
        return TRUE;
    return rp_fail(error, RP_SERVE_ERROR, 429,
                   "too many requests at once: expected at most %u answers, of which %u are under "
                   "way, found %u more; try again later",
                   queue->most, running, n);
}

gboolean
rp_serve_queue_add(RpServeQueue *queue, const RpPromptRequest *requests, guint n, guint64 *ids,
                   GError **error)
{
    gboolean good;

    g_mutex_lock(&queue->lock);
    good = check_space(queue, n, error);
    queue->last_group += good;
    for (guint i = 0; i < n && good; i++) {
        RpPromptRequest request = requests[i];

        request.done = queue->done;
        request.group = n > 1 ? queue->last_group : 0;
        g_hash_table_add(queue->running, request.user_data);
        ids[i] = rp_requests_add(queue->requests, &request);
    }
    g_mutex_unlock(&queue->lock);
    return good;
}

void
rp_serve_queue_cancel(RpServeQueue *queue, guint64 id)
{
    rp_requests_cancel(queue->requests, id);
}

void
rp_serve_queue_leave(RpServeQueue *queue, gpointer user_data)
{
    g_mutex_lock(&queue->lock);
    g_hash_table_remove(queue->running, user_data);
    g_mutex_unlock(&queue->lock);
}

guint64
rp_serve_queue_number(RpServeQueue *queue)
{
    guint64 number;

    g_mutex_lock(&queue->lock);
    number = queue->last_number++;
    g_mutex_unlock(&queue->lock);
    return number;
}

gboolean
rp_serve_queue_has_failed(RpServeQueue *queue)
{
    gboolean failed;

    g_mutex_lock(&queue->lock);
    failed = queue->n_alive == 0;
    g_mutex_unlock(&queue->lock);
    return failed;
}

gboolean
rp_serve_queue_close(RpServeQueue *queue, GError **error)
{
    GError *failure;

    rp_requests_close(queue->requests);
    for (guint i = 0; i < queue->n_threads; i++)
        g_thread_join(queue->threads[i]);
    failure = queue->error;
    rp_requests_free(queue->requests);
    g_hash_table_unref(queue->running);
    g_mutex_clear(&queue->lock);
    g_free(queue->threads);
    g_free(queue);
    if (failure != NULL)
        g_propagate_error(error, failure);
    return failure == NULL;
}
