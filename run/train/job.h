/**
 * A training run before its first step: model, data, layer times, partition, plan and prediction.
 */
#pragma once

#include "core/trace/report.h"
#include "exec/data/batch.h"
#include "exec/network/network.h"
#include "exec/safetensors/safetensors.h"
#include "exec/train/trainer.h"
#include "run/request.h"
#include "run/run-file.h"

/* In the output directory: the timing file that the run was planned with. */
#define RP_TRAIN_PROFILE "profile.json"

/* Who is told what goes on meanwhile, and asked when to stop. Any of the functions may be %NULL. */
typedef struct {
    /* One line. @kind: "note" or "warning" */
    void (*say)(gpointer user_data, const char *kind, const char *text);
    /* @what is done: "reading data". @total: 0 = it is over */
    void (*progress)(gpointer user_data, const char *what, guint64 done, guint64 total);
    /* It goes on from a checkpoint, of which something is to be known. */
    void (*resumed)(gpointer user_data, const char *note);
    /* Gradients for a file overflowed at a loss scale of @first; they were computed at @last. */
    void (*rescaled)(gpointer user_data, double first, double last);
    /* Before the first step. */
    void (*started)(gpointer user_data, const RpPinnedMemory *pinned);
    /* @step is next: a signal from now on lets it end. @saved: of the last checkpoint; 0: none.
     * Returns: %FALSE: a signal came before, and another step was said to be the last */
    gboolean (*begin)(gpointer user_data, guint64 step, guint64 saved);
    /* @step_ns: of a steady step, as far as is known */
    void (*stepped)(gpointer user_data, const RpStepReport *report, double step_ns);
    /* After the last. */
    void (*stopped)(gpointer user_data);
    /* At once: what follows may take a while. */
    void (*failed)(gpointer user_data, GError **error);
    /* Before all is freed. @stuck: a device has failed, and its driver may not let go */
    void (*ended)(gpointer user_data, gboolean stuck);
    /* The signal after which no step follows; 0: none */
    int (*stop)(void);
    /* Whether a checkpoint was asked for since */
    gboolean (*save)(void);
    gpointer user_data;
} RpRunEvents;

/* Calls a function of @events that is there. */
#define RP_RUN_TELL(events, function, ...)                                                         \
    do {                                                                                           \
        if ((events)->function != NULL)                                                            \
            (events)->function((events)->user_data, __VA_ARGS__);                                  \
    } while (0)

/* The signal after which no step follows; 0: none */
static inline int
rp_run_stop(const RpRunEvents *events)
{
    return events->stop != NULL ? events->stop() : 0;
}

void rp_run_say(const RpRunEvents *events, const char *kind, const char *format, ...)
    G_GNUC_PRINTF(3, 4);

/* Data that is evaluated, and what that is predicted to take. */
typedef struct {
    RpDataset *dataset;
    RpDatasetSummary summary;
    guint64 calls; /* of one evaluation */
    gint64 ns;
    double bubble_ratio;
} RpTrainValidation;

/* Everything that is known before training. Of several servers: micro-batches of the run are those of
 * all, the plan and its request are those of each. */
typedef struct {
    const RpRunSpec *run;
    const RpRunEvents *events;
    RpServers *servers; /* this is one of: set before rp_train_job_prepare(); %NULL: there is one */
    double measured_seconds; /* RpMeasureOptions.seconds: set before, too; 0: as usual */
    RpModel config;
    gboolean dry;              /* nothing is trained: weights and data may be missing */
    char *model_dir;           /* rp_run_model_directory() */
    gboolean random;           /* the model's weights are made in memory */
    RpSafetensors *checkpoint; /* the model's weights; %NULL: they are made, or are not there */
    RpSafetensors *adapters;   /* that the run begins with; or %NULL */
    RpWeights *weights;
    RpDataset *dataset;
    RpDatasetSummary summary;
    char *samples_folder; /* of a cache of samples; %NULL: there is none */
    RpBatcherOptions batcher;
    double useful;                /* tokens of samples, of all places in sequences, as expected */
    double useful_unpacked;       /* the same, were they not packed */
    double targets;               /* places with a target, of all, as expected */
    RpTrainValidation evaluation; /* of eval.data; its dataset is %NULL without */
    RpNetworkOptions network;
    char *matmul_library;             /* of a timing file: the network's; or %NULL */
    RpMatmulVariant *matmul_variants; /* the same */
    RpProfile *profile;
    RpProfile *measured; /* as it was before heads were put where they run, and before host_slow */
    char *profile_json;  /* as it was measured or read: goes into the output directory */
    guint64 device_memory_bytes; /* limit of each device; 0 = none */
    guint optimizer_threads;
    char *device_processors; /* that the optimizer's threads keep off; or %NULL */
    RpNodes *nodes;          /* of the machine's memory */
    RpScheduleOps *given;    /* a file's schedule, or %NULL */
    RpRequest request;
    RpPlan *plan;     /* of a few iterations: predicted with, and what the trainer's arenas need */
    RpTrace *trace;   /* predicted */
    RpSteady steady;  /* predicted step time and bubble ratio, */
    RpSteady clipped; /* and those of steps that clip; all 0: they take no longer */
    RpServersSpeed *speeds; /* [servers], as measured at the start; %NULL: there is one */
    gint64 alone_ns;   /* several servers: the predicted step time if the network took no time */
    gint64 least_ns;   /* the step time if every layer took its 10th percentile, */
    gint64 most_ns;    /* or its 90th; both 0: the layer times have no spreads */
    guint other_round; /* that would be faster by so much, or 0 */
    double other_gain;
    RpRemedy remedy; /* of a plan that does not fit */
    const char
        *reference_why; /* the reason for the reference of preferences; %NULL: there is none */
} RpTrainJob;

void rp_train_job_clear(RpTrainJob *job);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrainJob, rp_train_job_clear)

/* 1: there is one. */
guint rp_train_n_servers(const RpTrainJob *job);
/* Whether this one writes and tells for all. @servers: (nullable) */
gboolean rp_train_is_first(const RpServers *servers);

/**
 * rp_train_job_prepare:
 * @run: borrowed by @job
 * @earlier_run: output directory of the run that goes on, whose layer times will do if devices are
 *   still the same; %NULL: a new run
 * @dry: nothing is trained: memory is what the run file says, not what this machine has, and of the
 *   model config.json will do; data that are not there are taken to fill all sequences
 *
 * Opens the model and the data, reads all of the data once, measures or reads layer times, divides
 * the model, plans and simulates. Takes no memory for training.
 *
 * All servers call it: layer times are those of server 0, memory is the least of all, and
 * model, data and plan must be the same: RP_SERVERS_ERROR_DIFFERS.
 *
 * Errors: those of every part; a plan that does not fit: RP_TRAINER_ERROR_MEMORY, and job->remedy
 */
gboolean rp_train_job_prepare(RpTrainJob *job, RpRunSpec *run, const char *earlier_run,
                              gboolean dry, const RpRunEvents *events,
                              GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* How often the run sees each sample, as expected; 0: the data are not there. */
double rp_train_job_epochs(const RpTrainJob *job);

/* Tokens of a step if no sequence is padded. */
guint64 rp_train_job_step_tokens(const RpTrainJob *job);

/*
 * The loss of a file of samples, by the plan, the devices and the code of training: what
 * `roundpipe evaluate` does.
 */

/* Zeros and %NULL: as `train` has them. */
/* Zero-initialise. */
typedef struct {
    RpRunSpec *run;
    RpTrainJob job; /* its evaluation: samples, predicted time and bubble ratio */
    RpEvaluation result;
    gboolean left; /* a thread that a device's driver holds is left */
} RpTrainEvaluated;

void rp_train_evaluated_clear(RpTrainEvaluated *evaluated);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrainEvaluated, rp_train_evaluated_clear)

/**
 * rp_train_evaluate_file:
 * @adapter: (nullable): a directory of adapters for @model
 * @options: its settings that options set, as devices and dtype (rp_run_spec_set()): of them data is evaluated
 *
 * Errors: those of rp_run_file_parse(), rp_train_job_prepare() and rp_trainer_evaluate()
 */
gboolean rp_train_evaluate_file(const char *model, const char *adapter, const RpRunSpec *options,
                                const RpRunEvents *events, RpTrainEvaluated *evaluated,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
