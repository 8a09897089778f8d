/**
 * Shared by the trainer's files, and private to exec/train.
 *
 *   trainer.c         setting up, and queries
 *   trainer-step.c    the two calls, flush; steps that are over: losses, times, bubble
 *   trainer-evaluate.c  losses of data that is not learned
 *   trainer-state.c   weights, moments and gradients, out and in
 */
#pragma once

#include "core/verify/verify.h"
#include "exec/device/batch-feed.h"
#include "exec/train/trainer.h"

/* An iteration in flight. */
typedef struct {
    guint64 iteration;
    guint64 end_batch; /* engine's batch: its last call's + 1 */
    guint64 n_tokens;
    guint64 n_targets;
    guint64 n_units; /* by which the loss is divided: targets; of a preference pairs */
    guint calls;
    gint64 busy_ns; /* time of its actions and expansions on all devices, so far */
} RpStepRecord;

/* A layer that is being restored, weight by weight, or part by part. */
typedef struct {
    guint8 *weight;
    guint8 *moment[RP_OPTIMIZER_MOST_MOMENTS]; /* %NULL: none */
    float *scale[RP_OPTIMIZER_MOST_MOMENTS];
    guint8 *next; /* in the network's dtype; %NULL: none given */
    guint64 n_steps;
    guint64 n_left; /* elements of weights that are not there yet */
} RpRestoredLayer;

/* A plan that only runs forward, on the same backend. */
typedef struct {
    RpPlanner *planner;
    RpVerifier *verifier;
    RpTrace *trace;           /* %NULL: not kept */
    RpBatcherOptions batches; /* but for the padding */
    RpTokenBatch *batch;
    guint64 iteration; /* next */
    /* the evaluation under way */
    gint64 busy_ns;
    gint64 start_ns;
    gint64 end_ns;
    GArray *
        losses; /* (element-type double): of this server's micro-batches, batch by batch; of a preference
                       RP_N_PREFERENCE_SUMS each */
} RpEvaluator;

struct _RpTrainer {
    guint gpus;
    guint calls;
    guint servers;     /* 1: there is one */
    RpServers *joined; /* this is one of; or %NULL */
    RpStepDone done;
    gpointer user_data;
    const RpDeviceOps *devices;
    RpNetwork *network;
    RpWeights *weights; /* a list of our own, unbound */
    RpProfile *profile;
    RpPartition *partition;
    RpPlanner *planner;
    RpVerifier *verifier; /* verifies the planner's plan, as it is made */
    RpProofCost proof;
    RpHostState *host_state;
    RpBatchFeed *feed;
    RpBackend *backend;
    RpEngine *engine;
    RpEvaluator *evaluator; /* %NULL: nothing is evaluated */
    guint64 *arena_bytes;   /* gpus + 1 */

    guint64 iteration; /* iteration that the next call belongs to */
    guint64 first_iteration;
    guint64 steps_before; /* steps before a resumed run */
    guint call;           /* number of the call within the iteration */
    gboolean keep_trace;

    /* reports */
    RpStepRecord records[RP_HOST_STATE_RING];
    gint64 scored_ns; /* busy time of forwards that have scored batches since the last step began */
    guint64 n_reported; /* iterations, from first_iteration on */
    /* start of the first action since the devices stood still; G_MAXINT64: none yet */
    gint64 first_start_ns;
    gint64 *ends_ns; /* [RP_HOST_STATE_RING][gpus]: end of an iteration's last action on a device */
    /* [gpus]: ends of the iteration reported last; -1: none since they stood still */
    gint64 *last_ends_ns;

    RpRestoredLayer *restored; /* per layer; %NULL when nothing is being restored */
};

static inline RpStepRecord *
rp_trainer_record(RpTrainer *trainer, guint64 iteration)
{
    return &trainer->records[iteration % RP_HOST_STATE_RING];
}

/* [gpus] of @iteration. */
static inline gint64 *
rp_trainer_ends(RpTrainer *trainer, guint64 iteration)
{
    return trainer->ends_ns + iteration % RP_HOST_STATE_RING * trainer->gpus;
}

/* How many steps old the weights of a step are. */
static inline guint
rp_trainer_staleness(const RpTrainer *trainer)
{
    return rp_plan_modes(rp_planner_plan(trainer->planner))->staleness;
}

/* All devices have run out of work: the next step's time begins with its first action. */
void rp_trainer_stand_still(RpTrainer *trainer);

/* rp_trainer_flush(), but that devices do not stand still afterwards: more follows before the next step. */
gboolean rp_trainer_settle(RpTrainer *trainer, GError **error);

/* RpEngineDone: @user_data is the trainer. */
void rp_trainer_note_batch(gpointer user_data, guint64 batch, const RpTraceRecord *records,
                           gsize n);

/* RpHostStateNumbers: losses and auxiliary losses of micro-batches. @user_data is the trainer. */
void rp_trainer_tell_losses(gpointer user_data, guint64 iteration, double *numbers);

void rp_trainer_clear_restored(RpTrainer *trainer);

/* Sets RP_TRAINER_ERROR_OPTIONS. Returns: FALSE */
gboolean rp_trainer_fail_proof(RpViolation *violation, GError **error);
/* The objective, if it is a preference; else NULL. */
static inline const RpPreference *
rp_trainer_preference(const RpTrainer *trainer)
{
    const RpPreference *preference = &rp_network_options(trainer->network)->preference;

    return rp_preference_is_used(preference) ? preference : NULL;
}

/* By which gradients are divided before they are rounded: as many targets as a step of all servers may have; of a
 * preference, as many rows. */
static inline guint64
rp_trainer_most_units(const RpTrainer *trainer)
{
    const RpNetworkOptions *shape = rp_network_options(trainer->network);

    return (guint64)trainer->servers * rp_plan_micro_batches(rp_planner_plan(trainer->planner)) *
           shape->sequences * (rp_trainer_preference(trainer) != NULL ? 1 : shape->tokens);
}

/* Numbers that servers send each other of a micro-batch: loss, auxiliary loss, and sums of a preference. */
static inline guint
rp_trainer_n_numbers(const RpTrainer *trainer)
{
    return rp_trainer_preference(trainer) != NULL ? RP_STAGE_LOSSES : 2;
}

/* Waits for all losses of @call. @loss: (out): their sum over its targets */
gboolean rp_trainer_wait_for_loss(RpTrainer *trainer, const RpBatchFeedCall *call, double *loss,
                                  GError **error);

/* ---- trainer-evaluate.c ---- */

/* Before the arenas are opened: they may have to be larger. @options: those of the training plan */
gboolean rp_trainer_make_evaluator(RpTrainer *trainer, const RpPlanOptions *options,
                                   gboolean keep_trace, GError **error);
void rp_trainer_free_evaluator(RpTrainer *trainer);
