/*
 * The queue of requests. A ticket is in the queue, or with the generator that has taken it; the table of all of them is
 * for cancelling.
 *
 *   add -> |waiting: c d e| -> take -> a, b answered -> end
 *                ^                          |
 *                +------- put back ---------+
 */
#include "exec/generate/private.h"

#include <pthread.h>

struct _RpRequests {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    GQueue waiting;      /* (element-type RpTicket) */
    GHashTable *tickets; /* (element-type guint64 RpTicket): all that have not ended */
    guint64 last_id;
    gboolean closed;
};

static void
ticket_free(gpointer data)
{
    RpTicket *ticket = data;

    g_free((gpointer)ticket->request.prompt);
    g_free(ticket->answer);
    g_free(ticket);
}

RpRequests *
rp_requests_new(void)
{
    RpRequests *requests = g_new0(RpRequests, 1);

    pthread_mutex_init(&requests->lock, NULL);
    pthread_cond_init(&requests->changed, NULL);
    g_queue_init(&requests->waiting);
    requests->tickets = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL, ticket_free);
    return requests;
}

void
rp_requests_free(RpRequests *requests)
{
    if (requests == NULL)
        return;
    g_queue_clear(&requests->waiting);
    g_hash_table_unref(requests->tickets);
    pthread_cond_destroy(&requests->changed);
    pthread_mutex_destroy(&requests->lock);
    g_free(requests);
}

guint64
rp_requests_add(RpRequests *requests, const RpPromptRequest *request)
{
    RpTicket *ticket;
    guint64 id;

    g_return_val_if_fail(request->n_prompt > 0 && request->most_tokens > 0, 0);
    ticket = g_new0(RpTicket, 1);
    ticket->request = *request;
    ticket->request.prompt =
        g_memdup2(request->prompt, request->n_prompt * sizeof *request->prompt);
    ticket->answer = g_new(gint32, request->most_tokens);
    pthread_mutex_lock(&requests->lock);
    id = ticket->id = ++requests->last_id;
    g_hash_table_insert(requests->tickets, &ticket->id, ticket);
    g_queue_push_tail(&requests->waiting, ticket);
    pthread_cond_broadcast(&requests->changed);
    pthread_mutex_unlock(&requests->lock);
    return id;
}

void
rp_requests_cancel(RpRequests *requests, guint64 id)
{
    RpTicket *ticket;

    pthread_mutex_lock(&requests->lock);
    ticket = g_hash_table_lookup(requests->tickets, &id);
    if (ticket != NULL)
        g_atomic_int_set(&ticket->cancelled, TRUE);
    pthread_cond_broadcast(&requests->changed);
    pthread_mutex_unlock(&requests->lock);
}

void
rp_requests_close(RpRequests *requests)
{
    pthread_mutex_lock(&requests->lock);
    requests->closed = TRUE;
    pthread_cond_broadcast(&requests->changed);
    pthread_mutex_unlock(&requests->lock);
}

guint
rp_requests_left(RpRequests *requests)
{
    guint left;

    pthread_mutex_lock(&requests->lock);
    left = g_hash_table_size(requests->tickets);
    pthread_mutex_unlock(&requests->lock);
    return left;
}

RpTicket *
rp_requests_take(RpRequests *requests, gboolean waits)
{
    RpTicket *ticket;

    pthread_mutex_lock(&requests->lock);
    while (g_queue_is_empty(&requests->waiting) && !requests->closed && waits)
        pthread_cond_wait(&requests->changed, &requests->lock);
    ticket = g_queue_pop_head(&requests->waiting);
    pthread_mutex_unlock(&requests->lock);
    return ticket;
}

void
rp_requests_put_back(RpRequests *requests, RpTicket *ticket)
{
    pthread_mutex_lock(&requests->lock);
    g_queue_push_head(&requests->waiting, ticket);
    pthread_cond_broadcast(&requests->changed);
    pthread_mutex_unlock(&requests->lock);
}

void
rp_requests_end(RpRequests *requests, RpTicket *ticket, RpRequestEnd end)
{
    if (ticket->request.done != NULL)
        ticket->request.done(ticket->request.user_data, end, ticket->answer, ticket->n_answer);
    pthread_mutex_lock(&requests->lock);
    g_hash_table_remove(requests->tickets, &ticket->id);
    pthread_mutex_unlock(&requests->lock);
}
