/**
 * The model's home in host memory: weights that devices read, gradients that come back, optimizer
 * state; and the tasks of the host lanes on them (design.md §6). The same for every backend: it
 * works on the plan's host arena, which the backend allocates (plainly, or pinned).
 *
 *   gradient copies home -> [accumulate] -> norm -> step of each layer -> weights of version T
 *
 * The gradients of iteration T, as stored, are loss_scale(T) / reference(T) times the gradient of
 * the summed loss; the update multiplies them by reference / (loss_scale x targets) and the clip
 * coefficient. So an iteration that is one call is scaled before rounding, and one of several calls
 * needs not know the sum of their targets in advance.
 *
 * A record of each iteration lives in a ring of RP_HOME_RING.
 */
#pragma once

#include "core/plan/plan.h"
#include "exec/engine/backend.h"
#include "exec/network/network.h"
#include "exec/optim/learning-rate.h"
#include "exec/optim/loss-scale.h"
#include "exec/optim/optimizer.h"

#define RP_HOME_ERROR (rp_home_error_quark())
GQuark rp_home_error_quark(void);
typedef enum {
    RP_HOME_ERROR_GRADIENT, /* a gradient is not finite and there is no loss scale to lower */
    RP_HOME_ERROR_LOSS,     /* the same of a loss */
    RP_HOME_ERROR_MEMORY,   /* the arena does not hold what the plan places there */
    RP_HOME_ERROR_PLAN      /* the plan was made for another network */
} RpHomeError;

#define RP_HOME_RING 16 /* iterations */

typedef struct {
    RpAdamwOptions adamw;
    RpLearningRate learning_rate;
    double max_grad_norm; /* 0 = no clipping */
    gboolean scale_loss;  /* dynamic loss scaling; otherwise the scale is 1 */
    RpLossScaleOptions loss_scale;
    guint threads;             /* of the optimizer; 0 = 1 */
    const char *avoid_cpus;    /* processors left to devices, or NULL */
    const RpAdamwOps *variant; /* NULL = the best */
} RpUpdateOptions;

/* Neither clipping nor skipping: RpPlanOptions.step_at_once of such a run. */
static inline gboolean
rp_update_steps_at_once(const RpUpdateOptions *options)
{
    return options->max_grad_norm <= 0 && !options->scale_loss;
}

/* What a checkpoint keeps beside weights and moments. */
typedef struct {
    guint64 n_updates;      /* steps that were applied; the learning rate follows them */
    guint64 n_iterations;   /* steps, skipped ones included */
    RpLossScale loss_scale; /* after the last update */
    float next_scale;       /* of the next iteration: asynchronous, it was fixed one update ago */
} RpUpdateState;

/* What became of an iteration's update. */
typedef struct {
    double learning_rate;
    double grad_norm; /* of the mean loss, before clipping */
    gboolean skipped; /* a loss or gradient was not finite: the loss scale was lowered instead */
    float loss_scale; /* that the iteration ran with */
    guint64 n_targets;
} RpUpdateReport;

typedef struct _RpHome RpHome;

/* @network, @plan: borrowed. Of the plan, the layer table, the promises and the host buffers are
 * read here and not later. Errors: RP_HOME_ERROR_PLAN, RP_OPTIMIZER_ERROR_*, RP_POOL_ERROR_* */
RpHome *rp_home_new(const RpNetwork *network, const RpPlan *plan, const RpUpdateOptions *options,
                    GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_home_free(RpHome *home);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpHome, rp_home_free)

/**
 * rp_home_attach:
 * @memory: the host arena, @bytes of zeros, 4096-byte aligned; outlives the home
 *
 * Once, before anything else. Errors: RP_HOME_ERROR_MEMORY
 */
gboolean rp_home_attach(RpHome *home, void *memory, guint64 bytes,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Fills full-precision weights and every version from bound weights; state as of a fresh run. */
void rp_home_load(RpHome *home, const RpWeights *weights);

/* ---- copies: where the bytes of a layer stand ---- */

/* Host address of byte @offset of the layer's weights in version @version (0 or 1; of a single
 * buffer always 0). @run: (out): how many bytes follow there without a break. */
guint8 *rp_home_weights(const RpHome *home, guint layer, guint version, guint64 offset,
                        guint64 *run);
/* The version that iteration @iteration reads. */
guint rp_home_version(const RpHome *home, guint64 iteration);
/* The same for its gradients (a tied head has its own). @round: whose; of no matter unless rounds
 * stand apart */
guint8 *rp_home_gradients(const RpHome *home, guint layer, guint round, guint64 offset,
                          guint64 *run);
/* How many rounds stand apart; 1: what stands at home is one, or the sum. */
guint rp_home_gradient_rounds(const RpHome *home);
/* Storage of gradients at home. */
RpDtype rp_home_gradient_dtype(const RpHome *home);
/* Any planned place of the host arena. */
guint8 *rp_home_memory(const RpHome *home, const RpBackendAccess *access);

/* ---- an iteration ---- */

/* Before its first task is handed over. @reference: targets of its first call; > 0 */
void rp_home_begin(RpHome *home, guint64 iteration, guint64 reference);
/* Before its update is handed over. @targets: of all its calls */
void rp_home_set_targets(RpHome *home, guint64 iteration, guint64 targets);
/* What the gradient of the summed loss is multiplied by: for tasks of devices. @decision: the
 * task's access of RP_ROLE_DECISION; %NULL in a plan that is not gated */
float rp_home_scale(const RpHome *home, guint64 iteration, const RpBackendAccess *decision);

/**
 * rp_home_take_loss:
 * @micro_batch: as in RpTask
 * @loss: of a head that has run, on any thread
 * @broken_layer: lowest layer of the micro-batch whose output is not finite, or G_MAXINT32
 *
 * With a loss scale, a loss that is not finite is noted for a message; the backend makes the
 * gradients of its stage not finite either (rp_home_skips()), from which the norm sees that the
 * step is to be skipped. Otherwise it ends the run.
 *
 * Errors: RP_HOME_ERROR_LOSS, naming the step, the micro-batch and the layer
 */
gboolean rp_home_take_loss(RpHome *home, guint64 iteration, guint32 micro_batch, double loss,
                           gint32 broken_layer, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Whether a step may be skipped: there is a loss scale. */
gboolean rp_home_skips(const RpHome *home);

/**
 * rp_home_run:
 *
 * A task of a host lane; @stages of the plan are those given at rp_home_new(). The norm of a gated
 * plan computes the global norm and decides on the step; otherwise each step sums up its own layer,
 * and the norm closes the iteration.
 *
 * Errors: RP_HOME_ERROR_GRADIENT, RP_HOME_ERROR_LOSS, naming the step and the layer. With a loss
 * scale: if max_skipped steps in a row were skipped
 */
gboolean rp_home_run(RpHome *home, RpHostLaneKind kind, const RpBackendTask *task,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Number of the step that an iteration of the plan is: from 1 up, over the whole run. */
guint64 rp_home_step(const RpHome *home, guint64 iteration);

/* Valid once the iteration's norm has run. */
RpUpdateReport rp_home_report(const RpHome *home, guint64 iteration);

/* ---- while nothing runs ---- */

RpUpdateState rp_home_state(const RpHome *home);
/* Full-precision weights and moments of what a layer trains. A tied head has only its own (the
 * norm). */
RpOptimizerState rp_home_layer_state(const RpHome *home, guint layer);
/* Copies a layer's state and writes its weights to every version. Errors:
 * RP_OPTIMIZER_ERROR_STATE */
gboolean rp_home_restore_layer(RpHome *home, guint layer, const RpOptimizerState *state,
                               GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* After all layers: @first_iteration is the number that the plan begins with (1: resumed). */
void rp_home_restore(RpHome *home, const RpUpdateState *state, guint64 first_iteration);

/* "layer 4 (model.layers.3)", for messages. (transfer full) */
char *rp_home_describe_layer(const RpNetwork *network, guint layer);
