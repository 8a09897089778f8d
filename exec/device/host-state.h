/**
 * The model in host memory: weights that devices read, gradients that come back, optimizer
 * state; and the tasks of the host lanes on them (design.md §6). The same for every backend: it
 * works on the plan's host arena, which the backend allocates (plainly, or pinned).
 *
 *   gradient copies down -> [accumulate] -> norm -> step of each layer -> weights of version T
 *
 * The gradients of iteration T, as stored, are loss_scale(T) / reference(T) times the gradient of
 * the summed loss; the update multiplies them by reference / (loss_scale x targets) and the clip
 * coefficient. So an iteration that is one call is scaled before rounding, and one of several calls
 * needs not know the sum of their targets in advance.
 *
 * A record of each iteration lives in a ring of RP_HOST_STATE_RING.
 */
#pragma once

#include "core/plan/plan.h"
#include "exec/engine/backend.h"
#include "exec/network/network.h"
#include "exec/optim/optimizer.h"
#include "exec/optim/rules.h"
#include "exec/shares/shares.h"

#define RP_HOST_STATE_ERROR (rp_host_state_error_quark())
GQuark rp_host_state_error_quark(void);
typedef enum {
    RP_HOST_STATE_ERROR_GRADIENT, /* a gradient is not finite and there is no loss scale to lower */
    RP_HOST_STATE_ERROR_LOSS,     /* the same of a loss */
    RP_HOST_STATE_ERROR_MEMORY,   /* the arena does not hold the plan's buffers */
    RP_HOST_STATE_ERROR_PLAN      /* the plan was made for another network */
} RpHostStateError;

#define RP_HOST_STATE_RING 16 /* iterations */

typedef struct {
    RpAdamwOptions adamw;
    RpLearningRate learning_rate;
    double max_grad_norm; /* 0 = no clipping */
    gboolean scale_loss;  /* dynamic loss scaling; otherwise the scale is 1 */
    RpLossScaleOptions loss_scale;
    guint threads;             /* threads of the optimizer; 0 = 1 */
    const char *avoid_cpus;    /* processors left to devices, or NULL */
    const RpNodes *nodes;      /* nodes of the machine, or NULL: one. Borrowed: outlive the state */
    const RpAdamwOps *variant; /* NULL = the best */
    RpServers *servers;        /* this is one of; NULL = there is one. The plan is gated */
} RpUpdateOptions;

/* Neither clipping nor skipping: RpPlanOptions.step_at_once of such a run. */
static inline gboolean
rp_update_steps_at_once(const RpUpdateOptions *options)
{
    return options->max_grad_norm <= 0 && !options->scale_loss;
}

/* Counters that a checkpoint keeps beside weights and moments. */
typedef struct {
    guint64 n_updates;      /* steps that were applied; the learning rate follows them */
    guint64 n_iterations;   /* steps, skipped ones included */
    RpLossScale loss_scale; /* after the last update */
    /* scale of the next iteration: asynchronous, it was fixed one update ago */
    float next_scale;
} RpUpdateState;

/* Outcome of an iteration's update. */
typedef struct {
    double learning_rate;
    double grad_norm; /* norm for the mean loss, before clipping */
    gboolean skipped; /* a loss or gradient was not finite: the loss scale was lowered instead */
    float loss_scale; /* scale that the iteration ran with */
    guint64 n_targets;
    gboolean held; /* weights that its early steps wrote before the norm was known */
} RpUpdateReport;

typedef struct _RpHostState RpHostState;

/* @network, @plan: borrowed. The plan's layer table, modes and host buffers are read here and
 * not later. Errors: RP_HOST_STATE_ERROR_PLAN, RP_OPTIMIZER_ERROR_*, RP_POOL_ERROR_* */
RpHostState *rp_host_state_new(const RpNetwork *network, const RpPlan *plan,
                               const RpUpdateOptions *options,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_host_state_free(RpHostState *host_state);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpHostState, rp_host_state_free)

/* Placement on a machine with several memory nodes. */
typedef struct {
    /* nodes that threads of the optimizer run on; 0: nothing was requested of the system */
    guint nodes;
    guint64 bytes; /* bytes that should be NUMA-local to the thread that steps them */
    char *problem; /* why there are none; or NULL */
} RpHostStateNuma;

/**
 * rp_host_state_bind_numa:
 * @memory: the host arena of @bytes, which nobody has touched
 *
 * Requests memory that is NUMA-local to the threads of the optimizer, for the part of each layer's
 * state, gradients and weights that a thread steps. If the system refuses, they lie anywhere.
 */
void rp_host_state_bind_numa(RpHostState *host_state, const guint8 *memory, guint64 bytes);
const RpHostStateNuma *rp_host_state_numa(const RpHostState *host_state);

/**
 * rp_host_state_attach:
 * @memory: the host arena, @bytes of zeros, 4096-byte aligned; outlives the state
 *
 * Once, before anything else. Errors: RP_HOST_STATE_ERROR_MEMORY
 */
gboolean rp_host_state_attach(RpHostState *host_state, void *memory, guint64 bytes,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Fills in the numbers that this server sends to the others at the norm of an iteration: [n].
 * Called on the optimizer's lane. */
typedef void (*RpHostStateNumbers)(gpointer user_data, guint64 iteration, double *numbers);
/* Call it before anything runs; a single server sends nothing. */
void rp_host_state_set_numbers(RpHostState *host_state, guint n, RpHostStateNumbers numbers,
                               gpointer user_data);
/* All servers': [servers][n], valid once the iteration's norm has run. */
const double *rp_host_state_numbers(const RpHostState *host_state, guint64 iteration);

/* Sums of squares as devices leave them, of iteration T in row T mod RP_BATCH_FEED_RING of [n_layers];
 * zeros before. Only if gradients leave devices once an iteration; call it before anything runs. */
void rp_host_state_set_squares(RpHostState *host_state, double *squares);

/* Fills full-precision weights and every version from bound weights; state as of a fresh run. With
 * several servers, all do; should one be gone, the next exchange says so. */
void rp_host_state_load(RpHostState *host_state, const RpWeights *weights);

/* ---- copies: where the bytes of a layer stand ---- */

/* The version that the run began with, where the plan keeps a copy of it (RpPlanOptions.reference_copy). */
#define RP_HOST_STATE_REFERENCE 2

/* Host address of byte @offset of the layer's weights in version @version (0 or 1; of a single
 * buffer always 0). @run: (out): how many bytes follow there without a break. */
guint8 *rp_host_state_weights(const RpHostState *host_state, guint layer, guint version,
                              guint64 offset, guint64 *run);
/* The version that iteration @iteration reads. */
guint rp_host_state_version(const RpHostState *host_state, guint64 iteration);
/* The same for its gradients (a tied head has its own). @round: whose; of no matter unless rounds
 * stand apart */
guint8 *rp_host_state_gradients(const RpHostState *host_state, guint layer, guint round,
                                guint64 offset, guint64 *run);
/* Rounds whose gradients the host keeps apart; 1: it has one round, or their sum. */
guint rp_host_state_gradient_rounds(const RpHostState *host_state);
/* With several servers, all of which call: copies the sum of gradients that the last step read, of parameters [first,
 * first + n) that a layer owns, into @values. Errors: RP_SERVERS_ERROR_* */
gboolean rp_host_state_gather_gradient(const RpHostState *host_state, guint layer, guint64 first,
                                       guint64 n, float *values,
                                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Storage of gradients on the host. */
RpDtype rp_host_state_gradient_dtype(const RpHostState *host_state);
/* Any planned place of the host arena. */
guint8 *rp_host_state_memory(const RpHostState *host_state, const RpBackendAccess *access);

/* ---- an iteration ---- */

/* Before its first task is handed over. @reference: targets of its first call; > 0 */
void rp_host_state_begin(RpHostState *host_state, guint64 iteration, guint64 reference);
/* Before its update is handed over. @targets: of all its calls */
void rp_host_state_set_targets(RpHostState *host_state, guint64 iteration, guint64 targets);
/* Factor of the gradient of the summed loss, for tasks of devices. @decision: the task's access of
 * RP_ROLE_DECISION; %NULL in a plan that is not gated */
float rp_host_state_scale(const RpHostState *host_state, guint64 iteration,
                          const RpBackendAccess *decision);

/* The lowest layer of a micro-batch whose output is not finite, or G_MAXINT32; and its first token
 * there. */
typedef struct {
    gint32 layer;
    guint32 token; /* token of the micro-batch */
} RpBrokenOutput;

/**
 * rp_host_state_take_loss:
 * @micro_batch: as in RpTask
 * @loss: of a head that has run, on any thread
 * @broken: where the micro-batch's first output that is not finite stands
 *
 * With a loss scale, a loss that is not finite is recorded for a message; the backend makes the
 * gradients of its stage not finite either (rp_host_state_skips()), from which the norm sees that
 * the step is to be skipped. Otherwise it ends the run.
 *
 * Errors: RP_HOST_STATE_ERROR_LOSS, naming the step, the micro-batch, the layer and the token
 */
gboolean rp_host_state_take_loss(RpHostState *host_state, guint64 iteration, guint32 micro_batch,
                                 double loss, RpBrokenOutput broken,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Whether a step may be skipped: there is a loss scale. */
gboolean rp_host_state_skips(const RpHostState *host_state);

/**
 * rp_host_state_run:
 *
 * A task of a host lane; @stages of the plan are those given at rp_host_state_new(). The norm of a
 * gated plan computes the global norm and decides on the step; otherwise each step sums up its own
 * layer, and the norm closes the iteration. Early steps sum up theirs for the norm, and write weights
 * while nothing has been clipped lately.
 *
 * Errors: RP_HOST_STATE_ERROR_GRADIENT, RP_HOST_STATE_ERROR_LOSS, naming the step and the layer.
 * With a loss scale: if max_skipped steps in a row were skipped
 */
gboolean rp_host_state_run(RpHostState *host_state, RpHostLaneKind kind, const RpBackendTask *task,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Number of the step that an iteration of the plan is: from 1 up, over the whole run. */
guint64 rp_host_state_step(const RpHostState *host_state, guint64 iteration);

/* Valid once the iteration's norm has run. */
RpUpdateReport rp_host_state_report(const RpHostState *host_state, guint64 iteration);

/* ---- while nothing runs ---- */

/**
 * rp_host_state_begin_evaluation:
 *
 * Until rp_host_state_end_evaluation() devices read the newest weights, those of the last step;
 * heads make their loss alone, and report one that is not finite like any other. Asynchronous with
 * a single version, the weights that the next step reads stand where its gradients will, meanwhile.
 * Afterwards all is as before, but for the gradients of the last step.
 */
void rp_host_state_begin_evaluation(RpHostState *host_state);
void rp_host_state_end_evaluation(RpHostState *host_state);
gboolean rp_host_state_evaluates(const RpHostState *host_state);

RpUpdateState rp_host_state_updates(const RpHostState *host_state);
/* Full-precision weights and moments of a layer's trained parameters. A tied head has only its own
 * (the norm). With several servers they are those of the own share; but shared weights are all of
 * the layer's. */
RpOptimizerState rp_host_state_layer_state(const RpHostState *host_state, guint layer);
/* The parameters that a layer trains and whose state server @server has, or this one; with one
 * server, all. */
RpShard rp_host_state_share(const RpHostState *host_state, guint layer, guint server);
RpShard rp_host_state_own_share(const RpHostState *host_state, guint layer);
/* Copies a layer's state and writes its weights to every version. Errors:
 * RP_OPTIMIZER_ERROR_STATE */
gboolean rp_host_state_restore_layer(RpHostState *host_state, guint layer,
                                     const RpOptimizerState *state,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* After all layers: @first_iteration is the number that the plan begins with (1: resumed). */
void rp_host_state_restore(RpHostState *host_state, const RpUpdateState *state,
                           guint64 first_iteration);

/* "layer 4 (model.layers.3)", for messages. (transfer full) */
char *rp_host_state_describe_layer(const RpNetwork *network, guint layer);
