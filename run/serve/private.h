/**
 * Shared by the files of run/serve/, and private to them.
 *
 *   service.c   HTTP: who may ask for what; errors
 *   clients.c   connections: which of them are slow, or gone
 *   answer.c    one request's answers, as they come
 *   request.c   the body of a request; errors
 */
#pragma once

#include "run/serve/service.h"

/* Its codes are those of HTTP. */
#define RP_SERVE_ERROR (rp_serve_error_quark())
GQuark rp_serve_error_quark(void);

/* ---- request.c ---- */

typedef struct {
    gboolean chat;
    char *model;                             /* (nullable) */
    GString *prompt;                         /* of a completion; its NULs are text */
    guint n_messages;                        /* of a chat */
    guint max_tokens, max_completion_tokens; /* 0: not given */
    guint n;
    RpSampling sampling;
    double no_penalty;
    gboolean has_seed;
    GPtrArray *stops; /* (element-type char *): texts that end an answer, none of them empty */
    guint longest_stop;
    gboolean stream;
    gboolean include_usage;
} RpServeRequest;

void rp_serve_request_clear(RpServeRequest *request);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpServeRequest, rp_serve_request_clear)

/**
 * rp_serve_request_read:
 * @sampling: where the request does not say
 * @request: (out): to be cleared, also on error
 * @param: (out) (transfer full) (nullable): the key that was wrong; set on error only
 *
 * Errors: %RP_SERVE_ERROR 400
 */
gboolean rp_serve_request_read(const char *body, gsize length, gboolean chat,
                               const RpSampling *sampling, RpServeRequest *request, char **param,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The error as clients get it: {"error": ...}. @param: (nullable): the key that was wrong. (transfer full) */
char *rp_serve_error_json(const GError *error, const char *param);

/* ---- answer.c ---- */

/* Counts its references: the connection has one, and each choice that has not ended. */
typedef struct _RpServeAnswer RpServeAnswer;

/* Whether the client is still there. */
typedef gboolean (*RpServeAlive)(gpointer user_data);

/**
 * rp_serve_answer_new:
 * @options: must outlive it, as @requests must
 * @request: taken over
 * @ids: of the prompt
 *
 * Adds all its choices to @requests. Errors: of rp_requests_add()
 */
RpServeAnswer *rp_serve_answer_new(const RpServiceOptions *options, RpRequests *requests,
                                   RpServeRequest *request, const GArray *ids, guint most_tokens,
                                   RpServeAlive alive, gpointer user_data,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_serve_answer_unref(RpServeAnswer *answer);

/* All of it, when it is there. Returns: (transfer full): JSON; %NULL: the client has left, or, with the error, nothing
 * answers. Errors: %RP_SERVE_ERROR 500 */
char *rp_serve_answer_whole(RpServeAnswer *answer, GError **error);
/* The next part of a stream, when there is one. Returns: its bytes, at most @space; 0: that was all, -1: the client has
 * left */
gssize rp_serve_answer_stream(RpServeAnswer *answer, char *part, gsize space);
/* Nobody will read it. */
void rp_serve_answer_cancel(RpServeAnswer *answer);
/* Tokens of the answer so far. */
guint rp_serve_answer_tokens(const RpServeAnswer *answer, guint *n_prompt);

/* ---- clients.c ---- */

typedef struct _RpServeClients RpServeClients;
typedef struct _RpServeClient RpServeClient;

/* @client_ms: as of RpServiceOptions */
RpServeClients *rp_serve_clients_new(guint client_ms);
/* All of them are closed. */
void rp_serve_clients_free(RpServeClients *clients);
RpServeClient *rp_serve_clients_open(RpServeClients *clients, int socket);
void rp_serve_clients_close(RpServeClients *clients, RpServeClient *client);

typedef enum {
    RP_CLIENT_IDLE,    /* between requests */
    RP_CLIENT_SENDS,   /* a request */
    RP_CLIENT_WAITS,   /* for its answer: as long as that takes */
    RP_CLIENT_RECEIVES /* the answer */
} RpServeClientState;
/* Its time begins anew. Returns: %FALSE: it had none left, and has been told so */
gboolean rp_serve_clients_set(RpServeClients *clients, RpServeClient *client,
                              RpServeClientState state);
/* Whether it is connected, as far as one can know without writing. */
gboolean rp_serve_client_is_there(RpServeClient *client);
