/*
 * A list of prompts, answered through requests by one generator or several, a thread each:
 *
 *   answers    0 1 2 3 4 5 ...      each a request; neighbours with one prompt are a group
 *   threads    generator 0: 0 2 3 ...     generator 1: 1 4 5 ...
 */
#include "exec/generate/private.h"

/* ---- threads ---- */

typedef struct {
    RpRequests *requests;
    RpGenerator *generator;
} Server;

static gpointer
serve(gpointer data)
{
    g_autofree Server *server = data;
    RpRequests *requests = server->requests;
    GError *error = NULL;
    RpTicket *ticket;

    if (rp_generator_serve(server->generator, requests, &error))
        return NULL;
    pthread_mutex_lock(&requests->lock);
    if (requests->error == NULL)
        requests->error = g_steal_pointer(&error);
    requests->failed = --requests->n_alive == 0;
    pthread_mutex_unlock(&requests->lock);
    g_clear_error(&error);
    while (rp_requests_have_failed(requests) &&
           (ticket = rp_requests_take(requests, FALSE)) != NULL)
        rp_requests_end(requests, ticket, RP_REQUEST_FAILED);
    return NULL;
}

void
rp_requests_serve(RpRequests *requests, RpGenerator *const *generators, guint n, gboolean here)
{
    requests->n_alive = n;
    for (guint i = n; i-- > 0;) {
        Server *server = g_new(Server, 1);

        *server = (Server){requests, generators[i]};
        if (i == 0 && here)
            (void)serve(server);
        else
            g_ptr_array_add(requests->threads, g_thread_new("generator", serve, server));
    }
}

gboolean
rp_requests_have_failed(RpRequests *requests)
{
    gboolean failed;

    pthread_mutex_lock(&requests->lock);
    failed = requests->failed;
    pthread_mutex_unlock(&requests->lock);
    return failed;
}

gboolean
rp_requests_finish(RpRequests *requests, GError **error)
{
    rp_requests_close(requests);
    for (guint i = 0; i < requests->threads->len; i++)
        g_thread_join(g_ptr_array_index(requests->threads, i));
    const gboolean good = requests->error == NULL;

    if (!good)
        g_propagate_error(error, g_steal_pointer(&requests->error));
    rp_requests_free(requests);
    return good;
}

/* ---- a list ---- */

typedef struct {
    RpGeneratorToken on_token;
    gpointer user_data;
    pthread_mutex_t lock; /* of on_token, and */
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
    pthread_mutex_lock(&answering->lock);
    if (!answering->stopped && answering->on_token != NULL)
        answering->stopped = !answering->on_token(answering->user_data, part->index, part->answer);
    stopped = answering->stopped;
    pthread_mutex_unlock(&answering->lock);
    return !stopped;
}

gboolean
rp_generators_answer(RpGenerator *const *generators, guint n_generators, RpAnswer *answers, guint n,
                     guint most_tokens, const RpSampling *sampling, RpGeneratorToken on_token,
                     gpointer user_data, GError **error)
{
    RpRequests *requests = rp_requests_new(0);
    g_autofree Part *parts = g_new(Part, n);
    Answering answering = {.on_token = on_token, .user_data = user_data};
    guint64 group = 0, id;
    gboolean good = TRUE;

    g_return_val_if_fail(n_generators > 0 && most_tokens > 0, FALSE);
    pthread_mutex_init(&answering.lock, NULL);
    for (guint i = 0; i < n; i++) {
        parts[i] = (Part){&answering, &answers[i], i};
        answers[i].n_answer = 0;
        if (i == 0 || answers[i].prompt != answers[i - 1].prompt ||
            answers[i].n_prompt != answers[i - 1].n_prompt)
            group++;
        const RpPromptRequest request = {.prompt = answers[i].prompt,
                                         .n_prompt = answers[i].n_prompt,
                                         .most_tokens = most_tokens,
                                         .sampling = *sampling,
                                         .number = answers[i].number,
                                         .group = group,
                                         .token = take_token,
                                         .user_data = &parts[i]};
        good = rp_requests_add(requests, &request, 1, &id, NULL);
        g_assert(good); /* any number of them */
    }
    rp_requests_close(requests);
    rp_requests_serve(requests, generators, n_generators, TRUE);
    good = rp_requests_finish(requests, error);
    pthread_mutex_destroy(&answering.lock);
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
