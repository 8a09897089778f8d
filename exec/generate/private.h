/**
 * Shared by the files of exec/generate/, and private to them.
 *
 *   requests.c    the queue
 *   answers.c     a list of prompts, answered through it
 *   serve.c       which requests have slots and blocks; their tokens
 *   generator.c   weights, memory, and calls of the network on the device
 */
#pragma once

#include "exec/generate/generator.h"

/* ---- requests.c ---- */

/* A request, from when it is added until it has ended. Whoever has taken it owns all but `cancelled`. */
typedef struct {
    guint64 id;
    RpPromptRequest request; /* prompt: a copy */
    gint32 *answer;          /* [most_tokens] */
    guint n_answer;
    guint
        n_shown; /* tokens that the caller has seen: more than n_answer after it had to begin again */
    gint cancelled; /* atomic */
} RpTicket;

/* @waits: until there is one, or none will come. Returns: (nullable): the next; whoever takes it ends it or puts it back */
RpTicket *rp_requests_take(RpRequests *requests, gboolean waits);
/* As the first that will be taken. */
void rp_requests_put_back(RpRequests *requests, RpTicket *ticket);
void rp_requests_end(RpRequests *requests, RpTicket *ticket, RpRequestEnd end);

/* ---- generator.c ---- */

/* Recorded calls of a shape: by the length of the longest sequence, in powers of two of RP_CACHE_PART. */
#define RP_GENERATOR_RECORDS 16

/* One sequence with a slot. */
typedef struct {
    RpTicket *ticket;
    guint slot;
    gint32 *blocks; /* [most_blocks]: its table */
    guint n_blocks;
    guint n_shared; /* of these, the first: others have them, too, and have filled them */
    guint
        begins_with; /* place among the sequences that begin of the one whose prompt is computed for both */
} RpSequence;

struct _RpGenerator {
    RpModel config;
    RpGeneratorOptions options; /* slots resolved */
    RpNetworkOptions network;
    const RpKernels *kernels;
    RpProbe *probe;
    RpWeights *weights; /* a list of our own, unbound */
    void *parameters;   /* on the device, as all that follows */
    void *cache;
    guint8 *constants;
    guint rope_tokens; /* that the constants are for */
    void *workspace;
    guint8 *places;  /* arrays of a call */
    gint32 *sampled; /* [slots] */
    guint8 *host_places;
    gsize places_bytes;
    gint32 *ids;        /* the host's: [slots] of `sampled` */
    guint most_blocks;  /* of a sequence */
    guint blocks;       /* of the cache, block 0 among them */
    guint begin_tokens; /* of a call that begins sequences, at most */
    GHashTable *
        shapes; /* (element-type guint Shape): by tokens of a call; those of decoding by -sequences */
};

/* Tokens of sequences that begin that a call has space for. */
guint rp_generator_begin_tokens(const RpGenerator *generator);

/* Computes the prompts of @sequences, and the answers that they have so far, and chooses the next token of each: ids[i].
 * Errors: the backend's own */
gboolean rp_generator_begin(RpGenerator *generator, RpSequence *const *sequences, guint n,
                            GError **error);
/* Computes the last token of each, which has a place in its blocks, and chooses the next. */
gboolean rp_generator_step(RpGenerator *generator, RpSequence *const *sequences, guint n,
                           GError **error);

/* Makes ropes that depend on a sequence's length those of @length tokens. @again: (out): all keys of it must be made anew */
gboolean rp_generator_turn(RpGenerator *generator, guint length, gboolean first, gboolean *again,
                           GError **error);
