/**
 * Training in two calls, as the paper has it (§4.1.1). The caller writes a sequential loop:
 *
 *   while (rp_batcher_next(batcher, batch, &error) &&
 *          rp_trainer_forward_backward(trainer, batch, &loss, &error) &&
 *          rp_trainer_step(trainer, &error))
 *       printf("%f\n", loss);
 *
 * Synchronous: a step's weights are read by the next forward. Asynchronous: by the one after the
 * next, so that the update runs beside it; weights are bit for bit those of a serial program that
 * applies each update one iteration late.
 *
 * All functions are for one thread.
 */
#pragma once

#include "core/plan/planner.h"
#include "core/trace/trace.h"
#include "exec/data/batch.h"
#include "exec/device/device.h"
#include "exec/engine/engine.h"

#define RP_TRAINER_ERROR (rp_trainer_error_quark())
GQuark rp_trainer_error_quark(void);
typedef enum {
    RP_TRAINER_ERROR_OPTIONS, /* schedule, shape or memory that cannot be run */
    RP_TRAINER_ERROR_MEMORY,  /* host or device memory too small: where, and which category */
    RP_TRAINER_ERROR_STATE    /* a checkpoint that is not of this model */
} RpTrainerError;

/* A step that is over. */
typedef struct {
    guint64 step;    /* from 1 up, over the whole run, resumed parts included */
    double loss;     /* mean over the targets of the step */
    double aux_loss; /* the routers' auxiliary loss of micro-batches, each by its share of these */
    double metrics
        [RP_N_PREFERENCE_METRICS]; /* of a preference, whose loss is a mean over pairs; else NAN */
    double learning_rate;
    double grad_norm;
    float loss_scale;
    gboolean skipped;
    gboolean
        held; /* what its early steps wrote, as nothing was clipped: the next step began sooner */
    guint64 n_tokens; /* without padding */
    guint64 n_targets;
    gint64
        step_ns; /* from the end of the step before (its last compute action) to its own end, with
                       rp_trainer_score() between them;
                       asynchronous: so on each device, and the mean over them */
    double bubble_ratio; /* share of that time: 1 - busy compute / (N x time) */
} RpStepReport;

/* Called on the caller's thread, from within the functions below, in order of steps. */
typedef void (*RpStepDone)(gpointer user_data, const RpStepReport *report);

typedef struct {
    const RpDeviceOps *devices;   /* %NULL: rp_host_devices() */
    const RpWeights *weights;     /* bound, borrowed until rp_trainer_new() returns */
    const RpProfile *profile;     /* sizes of the network (rp_network_profile()); borrowed */
    const RpPartition *partition; /* copied */
    RpPlanOptions plan;           /* fidelity is set to full */
    /* a plan with these options, of a few iterations, that rp_trainer_check_memory() and
     * rp_trainer_prove() have passed; %NULL: one is made, checked and proved; borrowed by
     * rp_trainer_new() */
    const RpPlan *checked;
    RpNetworkOptions network;
    RpUpdateOptions update;      /* with servers: the plan is that of one, batches are its own, and
                               their numbers of tokens and targets those of all */
    guint64 device_memory_bytes; /* memory of each device; 0 = no limit */
    guint64 host_memory_bytes;   /* 0 = the system's available memory now */
    const RpSlow *slow; /* (nullable): RpDeviceOptions.slow; borrowed by rp_trainer_new() */
    gboolean evaluates; /* rp_trainer_evaluate() will be called */
    gboolean keep_trace;
    RpStepDone done; /* may be %NULL */
    gpointer user_data;
} RpTrainerOptions;

typedef struct _RpTrainer RpTrainer;

/**
 * rp_trainer_check_memory:
 * @device_bytes: limit of each device; 0 = none
 * @host_bytes: limit of the run; 0 = none
 * @dry: else the memory left by the machine, cgroups and limits of the process counts, too
 * @remedy: (out) (optional): on error, the remedy
 *
 * Whether a plan of three iterations or more fits. Errors: RP_TRAINER_ERROR_MEMORY
 */
gboolean rp_trainer_check_memory(const RpDeviceOps *devices, const RpPlan *plan,
                                 guint64 device_bytes, guint64 host_bytes, gboolean dry,
                                 RpRemedy *remedy, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Whether the plan is correct: the one that runs is proved again as it is made. */
gboolean rp_trainer_prove(const RpPlan *plan, GError **error);

/**
 * rp_trainer_new:
 *
 * Checks the memory before it takes any. On the host backend.
 *
 * Errors: RP_TRAINER_ERROR_*, RP_PLANNER_ERROR_*, RP_SCHEDULE_ERROR_*, RP_ENGINE_ERROR_SYSTEM
 */
RpTrainer *rp_trainer_new(const RpTrainerOptions *options,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Stops all work, within five seconds; nothing is saved. Returns: %FALSE if a thread is left,
 * which the driver of a device holds (rp_engine_stop()): then all of it stays, to be freed later or
 *
 * never */
gboolean rp_trainer_free(RpTrainer *trainer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTrainer, rp_trainer_free)

/**
 * rp_trainer_forward_backward:
 * @batch: of the trainer's shape (plan.micro_batches x network.sequences x network.tokens);
 *   copied: the caller's again when the call returns
 * @loss: (out) (optional): mean over the targets of this call; with several servers, this one's
 *   part of it; %NULL: does not wait for it
 *
 * Adds the batch's gradients to those of the step: plan.calls times, then rp_trainer_step(). Every
 * task is proved correct before it is handed over (core/verify/verify.h).
 *
 * Errors: a failed task: RP_ENGINE_ERROR_TASK; RP_TRAINER_ERROR_OPTIONS: a plan that is not
 *   correct. Afterwards the trainer can only be freed
 */
gboolean rp_trainer_forward_backward(RpTrainer *trainer, const RpTokenBatch *batch, double *loss,
                                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Applies the gradients. Does not wait. Errors: as above */
gboolean rp_trainer_step(RpTrainer *trainer, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits until a call would begin a step at once: two at most are under way. A caller that may want no
 * further step decides then. Errors: as above */
gboolean rp_trainer_wait_to_begin(RpTrainer *trainer, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Waits until every step has been applied and reported. Needed before the state is read; training
 * continues afterwards as if it had not happened. Errors: as above */
gboolean rp_trainer_flush(RpTrainer *trainer, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Result of an evaluation on data that is not learned. */
typedef struct {
    double loss; /* mean over the targets; NAN where there are none, or one is not finite */
    guint64 n_samples;
    guint64 n_tokens; /* without padding */
    guint64 n_targets;
    guint64 n_pairs;                         /* of a preference, whose loss is a mean over them: */
    double metrics[RP_N_PREFERENCE_METRICS]; /* NAN: none */
    guint calls;
    gint64 ns;           /* from the start of the first action to the end of the last */
    double bubble_ratio; /* share of that time */
} RpEvaluation;

/* On the caller's thread, as samples are done. Returns: whether to continue */
typedef gboolean (*RpEvaluationProgress)(gpointer user_data, guint64 n_samples);

/**
 * rp_trainer_evaluate:
 * @dataset: of which each sample is read once, in its order
 * @pad_id: behind short samples
 * @progress: (nullable)
 * @evaluation: (out)
 *
 * The loss of the newest weights, those of the last step (asynchronous, too), by forwards alone: on the same stages,
 * devices and memory, in a plan of its own, proved before it runs. Adapters see all of their input. Waits for all steps
 * first; training continues afterwards as if it had not happened. Batches of a preference are scored by their reference
 * first, unless @dataset brings log-probabilities. The same on any devices, and under every schedule,
 * bit for bit. With several servers all call it: each runs its part of the micro-batches, and the numbers are those of
 * all, with the same bits as one server with all micro-batches; time and bubble ratio are this one's.
 *
 * Errors: those of the data, G_IO_ERROR_CANCELLED of @progress, of any server: then the trainer goes on, too;
 *   RP_ENGINE_ERROR_TASK, RP_TRAINER_ERROR_OPTIONS: afterwards it can only be freed
 */
gboolean rp_trainer_evaluate(RpTrainer *trainer, const RpDataset *dataset, gint32 pad_id,
                             RpEvaluationProgress progress, gpointer user_data,
                             RpEvaluation *evaluation, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_trainer_score:
 * @batches: (array length=n): of the trainer's shape, of a preference
 * @by_reference: by the reference, else by the newest weights. Of RP_REFERENCE_PRECOMPUTED it is the newest weights
 *   without adapters, which are those of the base before the first step, or where all else is frozen
 *
 * Sets references of @batches: log-probabilities of their documents, by forwards alone, as rp_trainer_evaluate() runs
 * them. Between steps: waits for all of them first; training continues afterwards as if it had not happened. A step by
 * RP_REFERENCE_ADAPTERS or RP_REFERENCE_COPY needs it for its batches; several steps' at once wait less. With several
 * servers each scores its own.
 *
 * Errors: as rp_trainer_evaluate()
 */
gboolean rp_trainer_score(RpTrainer *trainer, RpTokenBatch *const *batches, guint n,
                          gboolean by_reference, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* ---- after a flush ---- */

const RpNetwork *rp_trainer_network(const RpTrainer *trainer);
gboolean rp_trainer_is_async(const RpTrainer *trainer);
guint64 rp_trainer_n_steps(const RpTrainer *trainer);
/* Sums that a step's gradients are rounded to 16 bits in before they are added up: rounds of all
 * calls, 1 of a bound schedule. Steps with other numbers differ in their last bits. */
guint rp_trainer_rounds(const RpTrainer *trainer);
RpHostState *rp_trainer_host_state(RpTrainer *trainer);

/* A weight's fp32 master values where they are kept so, @elements of them, in the network's layout order. With one
 * server only. */
const float *rp_trainer_weight(const RpTrainer *trainer, guint weight);
/* The weight as the next forward reads it, in the network's dtype: asynchronous, one step older
 * than the masters. All of it, also of several servers. */
const void *rp_trainer_next_weight(const RpTrainer *trainer, guint weight);
/* A frozen weight, in its storage, as it lies on the host for good; packed: as it goes up. */
const void *rp_trainer_frozen_weight(const RpTrainer *trainer, guint weight);
/* The gradient of the last step's mean loss before clipping, as it came to the host, into @values (fp32). Tied: the sum
 * of both. With several servers all call it, and get the sum of all. Errors: RP_SERVERS_ERROR_* */
gboolean rp_trainer_gradient(const RpTrainer *trainer, guint weight, float *values,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_trainer_restore_weight:
 * @weight: index, not a tied head's
 * @state: master values and moments of that weight alone, or of a part of it: n_parameters of the
 *   layer from the first on
 * @next: of these, in the network's dtype: the weights that the next forward reads; %NULL: the
 *   masters, rounded
 *
 * Before the first forward_backward(); all parts of a weight, each once. Errors:
 * RP_TRAINER_ERROR_STATE
 */
gboolean rp_trainer_restore_weight(RpTrainer *trainer, guint weight, const RpOptimizerState *state,
                                   const void *next, GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Call it after all weights are restored. */
void rp_trainer_restore(RpTrainer *trainer, const RpUpdateState *state);
/* Format of a parameter's state. */
RpStateFormat rp_trainer_form(const RpTrainer *trainer);
/* Masters and moments, n_steps of its layer; of several servers those of the part that this one steps,
 * which may have no parameters. */
RpOptimizerState rp_trainer_weight_state(const RpTrainer *trainer, guint weight);
/* The elements of a weight that server @server steps; with one server, all. */
RpShard rp_trainer_weight_part(const RpTrainer *trainer, guint weight, guint server);
/* The parameter of its layer with which a weight begins. */
guint64 rp_trainer_weight_first(const RpTrainer *trainer, guint weight);

/* The measured trace so far; with keep_trace, once, at the end. (transfer full) (nullable) */
RpTrace *rp_trainer_steal_trace(RpTrainer *trainer);
/* Trace of the evaluations: times count from when the devices first ran. (transfer full) (nullable) */
RpTrace *rp_trainer_steal_evaluation_trace(RpTrainer *trainer);
RpEngineCost rp_trainer_cost(const RpTrainer *trainer);
/* Cost of proving the plan before it ran, on the caller's thread, so far. */
typedef struct {
    guint64 tasks;
    gint64 ns;
} RpProofCost;
RpProofCost rp_trainer_proof_cost(const RpTrainer *trainer);
/* Bytes taken for arena @arena: a device, or gpus for the host. */
guint64 rp_trainer_arena_bytes(const RpTrainer *trainer, guint32 arena);
/* Time of actions; zeros where devices are no threads of this machine. After a flush. */
RpActionTime rp_trainer_action_time(const RpTrainer *trainer);
/* Host memory that the backend pinned; zeros if none. */
RpPinnedMemory rp_trainer_pinned(const RpTrainer *trainer);
