/**
 * Shared by the files of exec/generate/, and private to them.
 *
 *   requests.c    the queue
 *   answers.c     a list of prompts, answered through it
 *   serve.c       which requests have slots and blocks; their tokens
 *   generator.c   memory, and calls of the network on the device
 *   layers.c      weights on the device, or copied there in each call
 */
#pragma once

#include <pthread.h>

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

/* Shared with answers.c, whose threads serve them. */
struct _RpRequests {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    GQueue waiting;      /* (element-type RpTicket) */
    GHashTable *tickets; /* (element-type guint64 RpTicket): all that have not ended */
    guint most;          /* of these; 0: any number */
    guint64 last_id;
    gboolean closed;
    GPtrArray *threads; /* (element-type GThread) */
    guint n_alive;      /* generators that have not failed */
    gboolean failed;    /* none is left */
    GError *error;      /* the first */
};

/* @waits: until there is one, or none will come. Returns: (nullable): the next; whoever takes it ends it or puts it back */
RpTicket *rp_requests_take(RpRequests *requests, gboolean waits);
/* As the first that will be taken. */
void rp_requests_put_back(RpRequests *requests, RpTicket *ticket);
void rp_requests_end(RpRequests *requests, RpTicket *ticket, RpRequestEnd end);

/* ---- layers.c ---- */

/* The whole model in pinned memory of the host. Its references are counted: generators of several devices share it. */
typedef struct {
    const RpProbeOps *ops;
    guint8 *memory;
} RpHostLayers;

/* Zero-initialise. */
typedef struct {
    const RpNetwork *network; /* any of the model: its layouts are read */
    guint8 *memory;           /* on the device */
    RpHostLayers *host;       /* (nullable) */
    guint8 **places;          /* [layers]: resident ones; %NULL: streamed */
    guint *streamed;          /* [n_streamed] */
    guint n_streamed;
    guint8 *buffers;
    guint64 buffer_bytes;
    guint64 used; /* copies that layers have read, since the first call */
} RpLayers;

/* Sets the error. @what: needs @bytes, but there are @left; @remedy: (nullable): of a device, %NULL: of the host.
 * Returns: %FALSE */
gboolean rp_layers_refuse(const char *what, guint64 bytes, guint64 left, const char *remedy,
                          GError **error);
/* Memory of the device that they take, if @n_resident layers are resident. */
guint64 rp_layers_bytes(const RpNetwork *network, guint n_resident, guint64 *streamed);
/**
 * rp_layers_open:
 * @layers: to be closed, also on error
 * @weights: bound; those of @network are stored as it computes. Packed ones are expanded
 * @host: (nullable): of other layers, if they have one
 *
 * Errors: %RP_GENERATE_ERROR_MEMORY; the backend's own
 */
gboolean rp_layers_open(RpLayers *layers, const RpNetwork *network, const RpWeights *weights,
                        RpProbe *probe, guint n_resident, RpHostLayers *host, GError **error);
void rp_layers_close(RpLayers *layers, RpProbe *probe);
/* Weights of the next layer that a call runs, where some are streamed: operations that are issued behind this find them.
 * Returns: %NULL with an error of the backend */
const void *rp_layers_begin(RpLayers *layers, RpProbe *probe, guint layer, GError **error);
/* All that reads it has been issued. */
gboolean rp_layers_end(RpLayers *layers, RpProbe *probe, guint layer, GError **error);

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
    RpLayers layers;    /* on the device, as all that follows */
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
