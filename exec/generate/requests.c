/*
 * The queue of requests. A ticket is in the queue, or with the generator that has taken it; the table of all of them is
 * for cancelling.
 *
 *   add -> |waiting: c d e| -> take -> a, b answered -> end
 *                ^                          |
 *                +------- put back ---------+
 */
#include "exec/generate/private.h"

#include "core/base/quote.h"

static void
ticket_free(gpointer data)
{
    RpTicket *ticket = data;

    g_free((gpointer)ticket->request.prompt);
    g_free(ticket->answer);
    g_free(ticket);
}

RpRequests *
rp_requests_new(guint most)
{
    RpRequests *requests = g_new0(RpRequests, 1);

    pthread_mutex_init(&requests->lock, NULL);
    pthread_cond_init(&requests->changed, NULL);
    g_queue_init(&requests->waiting);
    requests->most = most;
    requests->threads = g_ptr_array_new();
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
    g_ptr_array_unref(requests->threads);
    g_clear_error(&requests->error);
    g_free(requests);
}

static gboolean
check_space(RpRequests *requests, guint n, GError **error)
{
    const guint running = g_hash_table_size(requests->tickets);

    if (requests->failed)
        return rp_fail(error, RP_GENERATE_ERROR, RP_GENERATE_ERROR_FAILED,
                       "the model cannot answer: %s", requests->error->message);
    if (requests->most == 0 || n <= requests->most - running)
        return TRUE;
    return rp_fail(error, RP_GENERATE_ERROR, RP_GENERATE_ERROR_BUSY,
                   "too many requests at once: expected at most %u answers, of which %u are under "
                   "way, found %u more; try again later",
                   requests->most, running, n);
}

static RpTicket *
ticket_new(const RpPromptRequest *request, guint64 id)
{
    RpTicket *ticket = g_new0(RpTicket, 1);

    ticket->id = id;
    ticket->request = *request;
    ticket->request.prompt =
        g_memdup2(request->prompt, request->n_prompt * sizeof *request->prompt);
    ticket->answer = g_new(gint32, request->most_tokens);
    return ticket;
}

gboolean
rp_requests_add(RpRequests *requests, const RpPromptRequest *prompts, guint n, guint64 *ids,
                GError **error)
{
    gboolean good;

    pthread_mutex_lock(&requests->lock);
    good = check_space(requests, n, error);
    for (guint i = 0; i < n && good; i++) {
        RpTicket *ticket = ticket_new(&prompts[i], ++requests->last_id);

        ids[i] = ticket->id;
        g_hash_table_insert(requests->tickets, &ticket->id, ticket);
        g_queue_push_tail(&requests->waiting, ticket);
    }
    pthread_cond_broadcast(&requests->changed);
    pthread_mutex_unlock(&requests->lock);
    return good;
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
    pthread_mutex_lock(&requests->lock);
    g_hash_table_steal(requests->tickets, &ticket->id); /* whoever is told may add another */
    pthread_mutex_unlock(&requests->lock);
    if (ticket->request.done != NULL)
        ticket->request.done(ticket->request.user_data, end, ticket->answer, ticket->n_answer);
    ticket_free(ticket);
}
