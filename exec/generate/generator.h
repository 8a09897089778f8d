/**
 * Answers to prompts of token ids: each token is chosen by the model's logits, until an end-of-sequence token.
 *
 * A generator is a model on one device with slots, and a cache in blocks. Requests wait in a queue, which several
 * generators may serve; an answer that ends leaves its slot and its blocks to the next:
 *
 *   slot 1   |prompt a| 2 3 5 end |prompt d| 4 4 ...          requests   a b c d e
 *   slot 2   |prompt b| 8 1 9 9 7 2 1 end |prompt e| 7
 *   slot 3   |prompt c| 1 end
 *
 * An answer follows from its prompt, its sampling and its number alone: not from what is answered beside it, nor from
 * when, nor on how many devices of a kind. If blocks run out, the newest answer waits and begins again later, with the
 * same tokens. Requests of one group share the blocks that their prompt fills.
 */
#pragma once

#include <glib.h>

#include "exec/measure/probe.h"
#include "exec/network/network.h"

#define RP_GENERATE_ERROR (rp_generate_error_quark())
GQuark rp_generate_error_quark(void);
typedef enum {
    RP_GENERATE_ERROR_MEMORY, /* the model, or its cache, does not fit into the memory */
    RP_GENERATE_ERROR_BUSY,   /* there are too many requests */
    RP_GENERATE_ERROR_FAILED  /* no generator is left to answer them */
} RpGenerateError;

/* Answers that a generator works on at once, at most; tokens that end an answer. */
#define RP_GENERATOR_MAX_SLOTS 256
#define RP_GENERATOR_MAX_ENDS 64

/* How the next token is chosen, as transformers does: temperature, then the likeliest K, then the likeliest that
 * together have P of the probability, then sampling (RpSampleArgs). */
typedef struct {
    double temperature; /* 0: the likeliest token; of equal ones the lower id */
    double top_p;       /* (0,1]; 1 = all */
    guint top_k;        /* 0 = all */
    guint64 seed;
} RpSampling;

/* ---- requests: from any thread ---- */

typedef struct _RpRequests RpRequests;

typedef enum {
    RP_REQUEST_ENDED,   /* by an id that ends it, its last */
    RP_REQUEST_FULL,    /* it has most_tokens */
    RP_REQUEST_STOPPED, /* by a callback, or cancelled */
    RP_REQUEST_FAILED   /* it is longer than sequences of the generator, or that has failed */
} RpRequestEnd;

/* After each token; @answer: all of them so far. Returns: whether it may continue */
typedef gboolean (*RpRequestToken)(gpointer user_data, const gint32 *answer, guint n_answer);
/* Once for each request, at its end. */
typedef void (*RpRequestDone)(gpointer user_data, RpRequestEnd end, const gint32 *answer,
                              guint n_answer);

typedef struct {
    const gint32 *prompt; /* ids below the vocabulary; copied */
    guint n_prompt;       /* > 0 */
    guint most_tokens;    /* of the answer, > 0; both together: at most the generators' tokens */
    RpSampling sampling;
    guint64 number;       /* for sampling: of the prompt, or of one of its answers */
    guint64 group;        /* requests of one group have the same prompt; 0: of none */
    RpRequestToken token; /* (nullable); like @done called by a generator's thread */
    RpRequestDone done;   /* (nullable) */
    gpointer user_data;
} RpPromptRequest;

/* @most: requests at once; 0: any number */
RpRequests *rp_requests_new(guint most);
/* Nobody serves them any more. */
void rp_requests_free(RpRequests *requests);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRequests, rp_requests_free)
/* Adds all @n or none. @ids: (out) [n]: > 0. Errors: %RP_GENERATE_ERROR_BUSY, %RP_GENERATE_ERROR_FAILED */
gboolean rp_requests_add(RpRequests *requests, const RpPromptRequest *prompts, guint n,
                         guint64 *ids, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Ends a request that waits or is answered, soon; nothing happens to one that has ended. */
void rp_requests_cancel(RpRequests *requests, guint64 id);
/* No more will be added: generators return when all have ended. */
void rp_requests_close(RpRequests *requests);

/* ---- a generator ---- */

typedef struct _RpGenerator RpGenerator;

typedef struct {
    guint
        slots; /* answered at once, to RP_GENERATOR_MAX_SLOTS; 0: as many as the memory has space for */
    guint tokens; /* length of the longest prompt and its answer together */
    guint
        blocks; /* of the cache, of RP_CACHE_BLOCK tokens: at most; 0: as many as are needed, or fit */
    gint32 ends[RP_GENERATOR_MAX_ENDS];
    guint n_ends;
    guint64 memory_bytes; /* limit of the device; 0: what it has left */
    /* (nullable): another of the same weights, on another device of a kind: they share their copy on the host */
    const RpGenerator *beside;
} RpGeneratorOptions;

/**
 * rp_generator_new:
 * @weights: bound; borrowed until this returns
 * @kernels: of @probe's backend
 * @probe: the device; borrowed
 *
 * If the weights, the workspace and the cache of one sequence do not fit into the device's memory, the cache gets what
 * all slots can need, and as many layers are resident as fit beside it and two buffers. The others stay in memory of
 * the host; each call copies them, one after the other.
 *
 * Errors: %RP_GENERATE_ERROR_MEMORY; the backend's own
 */
RpGenerator *rp_generator_new(const RpModel *config, const RpWeights *weights,
                              const RpKernels *kernels, RpProbe *probe,
                              const RpGeneratorOptions *options,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_generator_free(RpGenerator *generator);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpGenerator, rp_generator_free)

/* Memory of a generator. */
typedef struct {
    guint slots;        /* resolved */
    guint begin_tokens; /* of prompts that are computed in one call, at most */
    guint blocks_each;  /* of the longest sequence */
    guint64 weight_bytes;
    guint64 workspace_bytes; /* and arrays of calls */
    guint64 state_bytes;     /* of slots, of which one is for rows that pad */
    guint64 block_bytes;
    guint64 least_bytes; /* of all, for one sequence */
    guint blocks; /* of the cache, without the first, which pads; 0: @least_bytes are not there */
    guint n_resident;       /* layers */
    guint64 streamed_bytes; /* of the others, which each call copies */
} RpGeneratorSizes;

/**
 * rp_generator_sizes:
 * @weights: need not be bound
 * @options: memory_bytes: of the GPU, which need not be there
 *
 * The memory that a generator would take.
 */
RpGeneratorSizes rp_generator_sizes(const RpModel *config, const RpWeights *weights, RpDtype dtype,
                                    const RpKernels *kernels, const RpGeneratorOptions *options);

/* Number of layers that each call copies to the device, as they are not resident; @n_layers: (out): of all. */
guint rp_generator_streamed(const RpGenerator *generator, guint *n_layers);

/**
 * rp_generator_serve:
 *
 * Answers requests until they are closed and all have ended; several generators may serve the same ones, each in a thread
 * of its own. A failure ends the requests that it has begun; others stay for other generators.
 *
 * Errors: the backend's own
 */
gboolean rp_generator_serve(RpGenerator *generator, RpRequests *requests,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_requests_serve:
 * @here: the first generator is served by the calling thread, until the requests are closed
 *
 * The same by a thread for each generator. When the last one fails, all requests that wait end.
 */
void rp_requests_serve(RpRequests *requests, RpGenerator *const *generators, guint n,
                       gboolean here);
/* Whether all generators have failed. */
gboolean rp_requests_have_failed(RpRequests *requests);
/* Closes the requests, waits until all have ended, and frees them. Errors: the first of a generator */
gboolean rp_requests_finish(RpRequests *requests, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* A prompt and its answer. */
typedef struct {
    const gint32
        *prompt;    /* ids below the vocabulary; equal pointers of neighbours: the same prompt */
    guint n_prompt; /* > 0 */
    gint32 *answer; /* space for most_tokens of them */
    guint n_answer; /* (out): the id that ends it included */
    guint64 number; /* number of the prompt, for sampling */
} RpAnswer;

/* After each token of answers[@index]. Returns: whether answers may continue */
typedef gboolean (*RpGeneratorToken)(gpointer user_data, guint index, const RpAnswer *answer);

/**
 * rp_generator_answer:
 * @n: any number of them
 * @most_tokens: of an answer; with the longest prompt at most `tokens`
 * @sampling: how tokens are chosen
 * @on_token: (nullable)
 *
 * Errors: the backend's own
 */
gboolean rp_generator_answer(RpGenerator *generator, RpAnswer *answers, guint n, guint most_tokens,
                             const RpSampling *sampling, RpGeneratorToken on_token,
                             gpointer user_data, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same by @n_generators of them at once, with as many threads. @on_token is called by any of these, one at a time.
 * Errors: the first */
gboolean rp_generators_answer(RpGenerator *const *generators, guint n_generators, RpAnswer *answers,
                              guint n, guint most_tokens, const RpSampling *sampling,
                              RpGeneratorToken on_token, gpointer user_data,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;
