/**
 * Shared by the files of the host's state.
 *
 *   host-state.c          life, places, updates out and in again
 *   host-state-load.c     weights of files, out and in again, and the newest for evaluations;
 *                         memory that is NUMA-local to the threads that step it
 *   host-state-overflow.c losses and gradients that are not finite
 *   host-state-update.c   iterations, and tasks of the host lanes: sums of rounds, norm, steps, copies
 */
#pragma once

#include "core/base/dtype.h"
#include "exec/device/host-state.h"

typedef struct {
    guint64 own;   /* trained parameters that live here, gaps included */
    RpShard share; /* the part of these that this server steps */
    guint64 tied;  /* parameters after those that live in another layer */
    /* since rp_host_state_attach() */
    /* [1]: NULL with a single version; [RP_HOST_STATE_REFERENCE]: NULL without a copy */
    guint8 *weights[3];
    guint8 *frozen;                          /* weights that no step changes; or NULL */
    guint8 *gradients[RP_MOST_ROUNDS_APART]; /* [1] and up: of rounds that stand apart; or NULL */
    float *copied;                           /* blocking: the same in fp32; or NULL */
    RpOptimizerLayer *state; /* state of the share; NULL: nothing of the layer is trained here */
} RpHostStateLayer;

/* An iteration in flight. The caller's thread writes reference and targets before it hands over the
 * tasks that read them; the norm writes the report. */
typedef struct {
    guint64 reference;
    guint64 targets;
    RpUpdateReport report;
} RpHostStateIteration;

/* Contents of a decision buffer (rp_plan_decision()). In a gated plan it is the decision on the
 * last iteration that the buffer is for; else the numbers gathered so far of the iteration. */
typedef struct {
    double multiplier; /* factor of the gradients as stored */
    double learning_rate;
    float scale; /* loss scale of the iterations whose heads read it */
    guint32 skipped;
    guint32 foresees; /* early steps write weights: the last step was neither clipped nor skipped */
    guint32 holds;    /* the weights that they wrote are the step's */
    double sums[];    /* [n_layers] of squares */
} RpHostStateDecision;

/* A loss that was not finite: of the newest such step the first micro-batch. */
typedef struct {
    guint64 step; /* 0: none */
    guint32 micro_batch;
    RpBrokenOutput broken;
} RpHostStateOverflow;

struct _RpHostState {
    const RpNetwork *network;
    const RpPlan
        *plan; /* its modes, stages and layers; buffers are looked up before anything runs */
    const RpPlanModes *modes; /* the plan's */
    RpUpdateOptions options;
    RpDtype dtype; /* storage of weights */
    gsize element_bytes;
    guint n_layers;
    RpHostStateLayer *layers;
    guint8 *memory;
    RpPool *pool;            /* threads of the optimizer's lane; NULL: its own thread alone */
    RpPool *accumulate_pool; /* threads of the other lane, which runs beside it */
    RpHostStateNuma near;
    RpOptimizer *optimizer;
    const void **
        added; /* [rounds of an iteration]: the accumulate lane's: where the rounds of its task stand */
    RpHostStateIteration ring[RP_HOST_STATE_RING];
    double *squares; /* written by devices; NULL: they make none */
    RpShares *shares;
    RpPool *network_pool; /* threads of the network's lane */
    guint n_numbers;
    RpHostStateNumbers numbers;
    gpointer numbers_data;
    double *told;                      /* [RP_HOST_STATE_RING][servers][n_numbers] */
    RpHostStateDecision *decisions[2]; /* since rp_host_state_attach() */
    RpUpdateState state;
    guint n_skipped;              /* steps in a row, up to the last decision; of this process */
    GMutex overflow_lock;         /* heads of several devices report at once */
    RpHostStateOverflow overflow; /* under it */
    gboolean evaluates;
    guint64 next_iteration;  /* to be decided */
    guint64 first_iteration; /* first iteration of the plan */
    guint64 steps_before;    /* it */
};

/* Whether a buffer of the plan, if there is one, lies in an arena of @bytes. */
static inline gboolean
rp_host_state_fits(const RpHostState *host_state, guint32 buffer, guint64 bytes)
{
    const RpBuffer *of = buffer != RP_NONE ? rp_plan_buffer(host_state->plan, buffer) : NULL;

    return of == NULL || (of->offset <= bytes && of->bytes <= bytes - of->offset);
}

/* Bytes of a gradient as it is stored. */
gsize rp_host_state_gradient_bytes(const RpHostState *host_state);

static inline RpHostStateIteration *
rp_host_state_iteration(RpHostState *host_state, guint64 iteration)
{
    return &host_state->ring[iteration % RP_HOST_STATE_RING];
}

static inline RpHostStateDecision *
rp_host_state_decision(const RpHostState *host_state, guint64 iteration)
{
    return host_state->decisions[iteration % rp_plan_n_decisions(host_state->plan)];
}

/* Decides on a step whose gradients are @finite or not. Returns: whether the run may continue,
 * after this step or without it. @sums: [n_layers] of squares. Errors:
 * RP_HOST_STATE_ERROR_GRADIENT, RP_HOST_STATE_ERROR_LOSS */
gboolean rp_host_state_note_finite(RpHostState *host_state, gboolean finite, const double *sums,
                                   GError **error);
gboolean rp_host_state_fail_gradient(const RpHostState *host_state, guint layer, GError **error);
/* Rounds the full-precision weights of the layer's share into @published, which is of the layer. */
void rp_host_state_publish(RpHostState *host_state, guint layer, void *published);
/* The same into every version; of several servers, those of all shares. */
void rp_host_state_publish_all(RpHostState *host_state, guint layer);
/* Updates as of a fresh run. */
void rp_host_state_begin_fresh(RpHostState *host_state);
