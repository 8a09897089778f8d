/**
 * A trained model answers programs over HTTP, in OpenAI's protocol: for clients of one's own, on this machine unless
 * an address says otherwise.
 *
 *   POST /v1/chat/completions   messages, which the model's template writes
 *   POST /v1/completions        a text, which is continued
 *   GET  /v1/models, /health
 *
 * Any number of clients wait in one queue, which all generators serve; each connection has a thread, which writes the
 * answer as it comes. Whatever a client sends, or however slowly, it gets an error of HTTP or loses its connection, and
 * others do not notice. An answer is the one that rp_talk_answer() gives for the same messages, length and sampling.
 */
#pragma once

#include "exec/generate/generator.h"
#include "run/model-text.h"

/* Where it listens if nothing is said: other machines do not reach it. */
#define RP_SERVICE_ADDRESS "127.0.0.1"
/* Bytes of a request's body, at most; choices of one. */
#define RP_SERVICE_MAX_BODY (1 << 20)
#define RP_SERVICE_MAX_CHOICES 128

typedef struct _RpService RpService;

/* A request that was answered, or refused. */
typedef struct {
    const char *client; /* its address */
    const char *method;
    const char *path;
    guint status;   /* of HTTP; 0: its client has left before */
    gboolean left;  /* the client has left before the end */
    guint n_prompt; /* tokens */
    guint n_answer; /* tokens of all its choices */
    double seconds;
} RpServiceRecord;

typedef struct {
    const char *model;       /* its name, for clients */
    const RpModelText *text; /* with a chat; must outlive the service, as generators must */
    RpGenerator *const *generators;
    guint n_generators;
    guint positions;   /* tokens of a prompt and its answer, at most: those that generators have */
    guint most_tokens; /* of an answer where a request does not say; 0: as rp_answer_length() */
    RpSampling sampling; /* the same */
    const char *address; /* (nullable): an IP address; %NULL: RP_SERVICE_ADDRESS */
    guint16 port;        /* 0: one that is free */
    const char *token;   /* (nullable): that clients must know */
    guint requests;      /* answers at once, at most; > 0 */
    guint
        client_ms; /* that a client may take to send a request, or to read an answer that is ready */
    guint grace_ms; /* that answers have to end, when the service stops */
    /* (nullable): by one thread at a time */
    void (*log)(gpointer user_data, const RpServiceRecord *record);
    gpointer user_data;
} RpServiceOptions;

/**
 * rp_service_new:
 * @options: copied, but not what it points to
 *
 * Listens, and answers from then on.
 *
 * Errors: RP_RUN_ERROR_USAGE: no IP address, or one that other machines reach without a token; G_IO_ERROR: the port
 */
RpService *rp_service_new(const RpServiceOptions *options,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
guint16 rp_service_port(const RpService *service);
/* Whether all generators have failed, so that nothing will be answered any more. */
gboolean rp_service_has_failed(RpService *service);

/**
 * rp_service_stop:
 *
 * Takes no more requests, lets answers end, and frees the service.
 *
 * Errors: the first of a generator
 */
gboolean rp_service_stop(RpService *service, GError **error) G_GNUC_WARN_UNUSED_RESULT;
