/*
 * A list of prompts, answered through requests by one generator or several, a thread each:
 *
 *   answers    0 1 2 3 4 5 ...      each a request; neighbours with one prompt are a group
 *   threads    generator 0: 0 2 3 ...     generator 1: 1 4 5 ...
 */
#include "exec/generate/private.h"

#include <pthread.h>

typedef struct {
    RpRequests *requests;
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
    pthread_mutex_init(&answering.lock, NULL);
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
