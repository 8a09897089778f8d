/*
 * The queue of requests. A ticket is in the queue, or with the generator that has taken it; the table of all of them is
 * for cancelling.
 *
 *   add -> |waiting: c d e| -> take -> a, b answered -> end
 *                ^                          |
 *                +------- put back ---------+
 */
#include "exec/generate/private.h"

#include <string.h>

struct _RpRequests {
    GMutex lock;
    GCond changed;
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

    g_mutex_init(&requests->lock);
    g_cond_init(&requests->changed);
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
    g_cond_clear(&requests->changed);
    g_mutex_clear(&requests->lock);
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
    g_mutex_lock(&requests->lock);
    id = ticket->id = ++requests->last_id;
    g_hash_table_insert(requests->tickets, &ticket->id, ticket);
    g_queue_push_tail(&requests->waiting, ticket);
    g_cond_broadcast(&requests->changed);
    g_mutex_unlock(&requests->lock);
    return id;
}

void
rp_requests_cancel(RpRequests *requests, guint64 id)
{
    RpTicket *ticket;

    g_mutex_lock(&requests->lock);
    ticket = g_hash_table_lookup(requests->tickets, &id);
    if (ticket != NULL)
        g_atomic_int_set(&ticket->cancelled, TRUE);
    g_cond_broadcast(&requests->changed);
    g_mutex_unlock(&requests->lock);
}

void
rp_requests_close(RpRequests *requests)
{
    g_mutex_lock(&requests->lock);
    requests->closed = TRUE;
    g_cond_broadcast(&requests->changed);
    g_mutex_unlock(&requests->lock);
}

guint
rp_requests_left(RpRequests *requests)
{
    guint left;

    g_mutex_lock(&requests->lock);
    left = g_hash_table_size(requests->tickets);
    g_mutex_unlock(&requests->lock);
    return left;
}

RpTicket *
rp_requests_take(RpRequests *requests, gboolean waits)
{
    RpTicket *ticket;

    g_mutex_lock(&requests->lock);
    while (g_queue_is_empty(&requests->waiting) && !requests->closed && waits)
        g_cond_wait(&requests->changed, &requests->lock);
    ticket = g_queue_pop_head(&requests->waiting);
    g_mutex_unlock(&requests->lock);
    return ticket;
}

void
rp_requests_put_back(RpRequests *requests, RpTicket *ticket)
{
    g_mutex_lock(&requests->lock);
    g_queue_push_head(&requests->waiting, ticket);
    g_cond_broadcast(&requests->changed);
    g_mutex_unlock(&requests->lock);
}

void
rp_requests_end(RpRequests *requests, RpTicket *ticket, RpRequestEnd end)
{
    if (ticket->request.done != NULL)
        ticket->request.done(ticket->request.user_data, end, ticket->answer, ticket->n_answer);
    g_mutex_lock(&requests->lock);
    g_hash_table_remove(requests->tickets, &ticket->id);
    g_mutex_unlock(&requests->lock);
}

/* ---- a list of answers ---- */

typedef struct {
    RpRequests *requests;
    RpGeneratorToken on_token;
    gpointer user_data;
    GMutex lock; /* of on_token, and */
    gboolean stopped;
} Answering;

typedef struct {
    Answering *answering;
    RpAnswer *answer;
    guint index;
} Part;

static gboolean
take_token(gpointer user_data, const gint32 *answer, guint n_answer)
{
    Part *part = user_data;
    Answering *answering = part->answering;
    gboolean stopped;

    part->answer->answer[n_answer - 1] = answer[n_answer - 1];
    part->answer->n_answer = n_answer;
    g_mutex_lock(&answering->lock);
    if (!answering->stopped && answering->on_token != NULL)
        answering->stopped = !answering->on_token(answering->user_data, part->index, part->answer);
    stopped = answering->stopped;
    g_mutex_unlock(&answering->lock);
    return !stopped;
}

typedef struct {
    RpGenerator *generator;
    RpRequests *requests;
    GError *error;
} Server;

static gpointer
serve(gpointer data)
{
    Server *server = data;

    if (!rp_generator_serve(server->generator, server->requests, &server->error))
        g_assert(server->error != NULL);
    return NULL;
}

static gboolean
serve_all(RpGenerator *const *generators, guint n, RpRequests *requests, GError **error)
{
    g_autofree Server *servers = g_new0(Server, n);
    g_autofree GThread **threads = g_new0(GThread *, n);
    gboolean good = TRUE;

    for (guint i = 0; i < n; i++) {
        servers[i] = (Server){generators[i], requests, NULL};
        if (i > 0)
            threads[i] = g_thread_new("generator", serve, &servers[i]);
    }
    (void)serve(&servers[0]);
    for (guint i = 0; i < n; i++) {
        if (threads[i] != NULL)
            (void)g_thread_join(threads[i]);
        if (servers[i].error == NULL)
            continue;
        if (good)
            g_propagate_error(error, g_steal_pointer(&servers[i].error));
        good = FALSE;
        g_clear_error(&servers[i].error);
    }
    return good;
}

gboolean
rp_generators_answer(RpGenerator *const *generators, guint n_generators, RpAnswer *answers, guint n,
                     guint most_tokens, const RpSampling *sampling, RpGeneratorToken on_token,
                     gpointer user_data, GError **error)
{
    g_autoptr(RpRequests) requests = rp_requests_new();
    g_autofree Part *parts = g_new(Part, n);
    Answering answering = {.requests = requests, .on_token = on_token, .user_data = user_data};
    guint64 group = 0;
    gboolean good;

    g_return_val_if_fail(n_generators > 0 && most_tokens > 0, FALSE);
    g_mutex_init(&answering.lock);
    for (guint i = 0; i < n; i++) {
        parts[i] = (Part){&answering, &answers[i], i};
        answers[i].n_answer = 0;
        if (i == 0 || answers[i].prompt != answers[i - 1].prompt ||
            answers[i].n_prompt != answers[i - 1].n_prompt)
            group++;
        (void)rp_requests_add(requests, &(RpPromptRequest){.prompt = answers[i].prompt,
                                                           .n_prompt = answers[i].n_prompt,
                                                           .most_tokens = most_tokens,
                                                           .sampling = *sampling,
                                                           .number = answers[i].number,
                                                           .group = group,
                                                           .token = take_token,
                                                           .user_data = &parts[i]});
    }
    rp_requests_close(requests);
    good = serve_all(generators, n_generators, requests, error);
    g_mutex_clear(&answering.lock);
    return good;
}

gboolean
rp_generator_answer(RpGenerator *generator, RpAnswer *answers, guint n, guint most_tokens,
                    const RpSampling *sampling, RpGeneratorToken on_token, gpointer user_data,
                    GError **error)
{
    return rp_generators_answer(&generator, 1, answers, n, most_tokens, sampling, on_token,
                                user_data, error);
}
