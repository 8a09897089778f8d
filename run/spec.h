/**
 * The one description of a run: values of all its settings (run/settings.c), which a run file, `--set`
 * or options of commands fill in, the plan that it requests, and what follows from both.
 */
#pragma once

#include <string.h>

#include <glib.h>

#include "core/base/dtype.h"
#include "core/catalogue/catalogue.h"
#include "core/catalogue/preference.h"
#include "core/plan/planner.h"
#include "exec/device/device.h"
#include "exec/optim/rules.h"
#include "run/settings.h"

/* Tokens of a sequence, sequences of a micro-batch, micro-batches of a call: no more than this. */
#define RP_RUN_MAX_COUNT 1048576

/* Values of round_choice that are no numbers. */
#define RP_RUN_ROUND_ALL 0
#define RP_RUN_ROUND_AUTO (-1)

/* Values of packing_choice, but for 1 = false, 2 = true. */
#define RP_RUN_PACKING_AUTO 0

/* wsd that does not fall by a cosine: of optimizer.schedule. */
#define RP_RUN_STABLE(fall) (RP_LEARNING_RATE_STABLE + 16 * RP_LEARNING_RATE_##fall)

/* With checkpoint.beside: true. */
#define RP_RUN_BESIDE_ALWAYS 2

/* Values of excess_length_choice. */
#define RP_RUN_EXCESS_TRUNCATE 0
#define RP_RUN_EXCESS_DROP 1
#define RP_RUN_EXCESS_ERROR 2

/* Values of base_choice. */
#define RP_RUN_BASE_OF_THE_FILE 0
#define RP_RUN_BASE_16_BITS 1
#define RP_RUN_BASE_PACKED 2 /* and up */

/* More than there are settings. */
#define RP_RUN_MOST_SETTINGS 128

#define RP_RUN_PROFILE_MEASURE "measure" /* of `profile` */

typedef struct {
    int mode;    /* RpOptimizerMode */
    int early;   /* RpEarlySteps */
    int rule;    /* RpUpdateRule */
    int master;  /* RpMoments */
    int moments; /* RpMoments */
    double learning_rate;
    int schedule; /* RpLearningRateKind; with wsd the shape of the fall, too (RP_RUN_STABLE()) */
    double min_lr_ratio;
    gint64 decay_steps; /* 0 = a tenth of the steps */
    gint64 warmup_steps;
    double warmup_ratio; /* of the steps; 0 = warmup_steps */
    double weight_decay;
    double beta1;
    double beta2;
    double epsilon;
    double max_grad_norm; /* 0 = no clipping */
    gint64 threads;
} RpRunOptimizer;

static inline RpStateFormat
rp_run_optimizer_form(const RpRunOptimizer *optimizer)
{
    return (RpStateFormat){(RpUpdateRule)optimizer->rule, (RpMoments)optimizer->master,
                           (RpMoments)optimizer->moments};
}

typedef struct {
    double initial;
    gint64 max_skipped;
} RpRunLossScale;

typedef struct {
    gint64 every;   /* steps; 0 = not by steps */
    double minutes; /* since the last one, or the start; 0 = not by time */
    gint64 keep;    /* 0 = all */
    int final;      /* whether the last step is saved, too */
    int beside;     /* 1 = false, 2 = true, 0 = where there is memory for a copy */
} RpRunCheckpoint;

/* Without data nothing is evaluated. */
typedef struct {
    char *data; /* names with commas between */ /* names with commas between */
    gint64 every;                               /* steps; 0 = a tenth of them */
    int keep_best;                              /* the checkpoint of the lowest loss stays */
    gint64 patience; /* evaluations without a lower loss that end the run; 0 = none do */
    double split;    /* share of the samples; 0: none */
} RpRunEval;

/* With matmul: fp8. */
typedef struct {
    int gradients;                 /* RpDtype; 0 = RP_DTYPE_E5M2 */
    char *plain;                   /* "1,2"; %NULL: none */
    guint plain_first, plain_last; /* which follow from it */
} RpRunFp8;

/* Rank 0: none is given. */
typedef struct {
    gint64 rank;
    double alpha; /* 0 = twice the rank */
    char *targets;
    int rslora;
    int any_base;
    char *save;
    double dropout;
    char *start;
} RpRunLora;

/* Numbers are in range; %NULL = not given. */
typedef struct {
    char *model;
    char *data;         /* names with commas between */
    char *data_weights; /* numbers with commas between */
    char *data_cache;
    int skip_bad_samples;
    int train_on; /* RpTrainOn */
    char *chat_template;
    int objective;        /* RpObjective */
    int reference_choice; /* RpReference; RP_REFERENCE_NONE = what suits the run */
    RpPreference preference;
    char *output;
    char *devices;
    int dtype_choice; /* RpDtype + 1; 0 = the model's */
    int base_choice;  /* RP_RUN_BASE_OF_THE_FILE, _16_BITS, or _PACKED + RpLowbit */
    gint64 sequence_length;
    int packing_choice; /* 1 = false, 2 = true, 0 = where samples are shorter than a sequence */
    int excess_length_choice; /* RP_RUN_EXCESS_* */
    gint64 micro_batch_size;
    gint64 micro_batches;
    gint64 gradient_accumulation_steps;
    gint64 steps;  /* 0 until the data are read, if it follows from epochs */
    gint64 epochs; /* 0: none were asked for */
    gint64 seed;
    int shuffle;
    const char *schedule; /* its name */
    char *schedule_file;  /* or a file with its orders; %NULL: none */
    int async_choice;     /* 1 = false, 2 = true, 0 = what suits the schedule */
    gint64 replicas;
    gint64 round_choice;  /* a number, or RP_RUN_ROUND_* */
    int partition_choice; /* 0 = simulated, 1 = paper */
    char *stages;
    char *forward_stages;
    char *backward_stages;
    int recompute_choice;        /* RP_SETTING_RECOMPUTE() */
    int dispatch;                /* RpDispatch */
    char *device_split;          /* parts of each GPU, or NULL */
    char *host_slow;             /* `slow` in words, or NULL */
    double network_limit;        /* Gbit/s, of several servers; 0 = none */
    int transfers;               /* RpTransfers */
    int consistency;             /* RpConsistency */
    int resident_choice;         /* RpResidentChoice */
    guint64 device_memory_bytes; /* 0 = no limit */
    guint64 host_memory_bytes;   /* 0 = what is available */
    gint64 head_chunk;
    int attention_choice; /* RpAttentionChoice + 1; 0 = the faster one */
    int half_sums;        /* accumulate: 1 = fp16 */
    int matmul_choice;    /* RpDtype + 1, RP_DTYPE_E4M3 of fp8; 0 = as dtype */
    RpRunFp8 fp8;
    char *profile; /* "auto", RP_RUN_PROFILE_MEASURE, a timing file, or a card's name */
    char *trace;
    int plot_loss;
    int tensorboard;
    char *freeze; /* names, as a list */
    double neftune_alpha;
    char *loss; /* its name; %NULL: cross entropy, or a program's architecture's own */
    double label_smoothing;
    double router_aux_loss; /* < 0: the model's */
    RpRunOptimizer optimizer;
    RpRunLossScale loss_scale;
    RpRunCheckpoint checkpoint;
    RpRunEval eval;
    RpRunLora lora;

    /* the plan that it requests: options of a simulation, and rp_run_spec_plan() */
    RpPlanOptions plan;   /* calls are 0; those of the run are gradient_accumulation_steps */
    guint n_stages;       /* of a bound schedule; 0 = chosen */
    guint iterations;     /* 0 = as many as it takes */
    guint64 host_bytes;   /* limit of everything in host memory; 0: none is known */
    gboolean trains;      /* it is run, not only simulated: messages name keys, not options */
    guint beside;         /* simulations that run at the same time, this one included; 0 = 1 */
    guint64 memory_bytes; /* for all of them, found before they began; 0 = what there is now */

    /* what follows from them */
    const RpGpu *card; /* of the catalogue, which a dry run predicts for; %NULL: of none */
    guint n_devices;
    RpSlow *slow; /* of each device on threads, or NULL */
    const RpDeviceOps *device_ops;
    gboolean async;
    gboolean given_stages;
    gint64 round;   /* 0 = chosen with the partition */
    GArray *values; /* the same as texts (run/values.h): rp_run_file_of() writes them */

    /* of each setting the text that an option set it to (rp_run_spec_given()) */
    const char *given[RP_RUN_MOST_SETTINGS];
} RpRunSpec;

/* Whether layer times are this machine's: of an earlier run, or measured at the start. */
static inline gboolean
rp_run_measures(const RpRunSpec *run)
{
    return strcmp(run->profile, "auto") == 0 || strcmp(run->profile, RP_RUN_PROFILE_MEASURE) == 0;
}

/* Gives choices of a zeroed @run their defaults. */
void rp_run_spec_init(RpRunSpec *run);

/* Sets what an option sets; texts are interned. Returns: whether @text is a value of @setting */
gboolean rp_run_spec_set(RpRunSpec *run, const RpSetting *setting,
                         const char *text) G_GNUC_WARN_UNUSED_RESULT;

/* The text that an option set @key to. Returns: (nullable) */
const char *rp_run_spec_given(const RpRunSpec *run, const char *key);

/* Forgets that. */
void rp_run_spec_forget(RpRunSpec *run, const char *key);

/* Puts what settings say of the plan into @run->plan. */
void rp_run_spec_plan(RpRunSpec *run);

static inline RpSaveChoice
rp_run_spec_save(const RpRunSpec *run)
{
    return RP_SETTING_RECOMPUTE_SAVE(run->recompute_choice);
}

/* Whether its devices are threads, whose arenas are host memory. */
static inline gboolean
rp_run_spec_is_on_host(const RpRunSpec *run)
{
    return run->trains && run->device_ops->host_memory;
}
