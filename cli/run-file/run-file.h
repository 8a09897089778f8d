/**
 * Run files: what `roundpipe train` is to do, in YAML (docs/train.md has every key).
 *
 *   defaults  <-  RUN.yaml  <-  --set key=value         the later one wins, key by key
 *
 * Keys are found with libyaml, which knows lines and columns, and may come from the command line;
 * what they mean is a libcyaml schema: types, names and places of values.
 */
#pragma once

#include <glib.h>

#include "core/base/dtype.h"
#include "core/plan/planner.h"
#include "exec/device/device.h"
#include "exec/optim/learning-rate.h"

#define RP_RUN_FILE_ERROR (rp_run_file_error_quark())
GQuark rp_run_file_error_quark(void);
typedef enum {
    RP_RUN_FILE_ERROR_SYNTAX, /* not YAML, or not a mapping */
    RP_RUN_FILE_ERROR_KEY,    /* unknown, twice, or missing */
    RP_RUN_FILE_ERROR_VALUE   /* of the wrong type, or out of range */
} RpRunFileError;

/* Tokens of a sequence, sequences of a micro-batch, micro-batches of a call: no more than this. */
#define RP_RUN_FILE_MAX_COUNT 1048576

typedef struct {
    int mode; /* RpOptimizerMode */
    double learning_rate;
    int schedule; /* RpLearningRateKind */
    gint64 warmup_steps;
    double weight_decay;
    double beta1;
    double beta2;
    double epsilon;
    double max_grad_norm; /* 0 = no clipping */
    gint64 threads;
} RpRunFileOptimizer;

typedef struct {
    double initial;
    gint64 growth_interval;
    gint64 max_skipped;
} RpRunFileLossScale;

typedef struct {
    gint64 every;   /* steps; 0 = not by steps */
    double minutes; /* since the last one, or the start; 0 = not by time */
    gint64 keep;    /* 0 = all */
    int final;      /* whether the last step is saved, too */
    int beside;     /* 1 = false, 2 = true, 0 = where there is memory for a copy */
} RpRunFileCheckpoint;

/* Values as written; %NULL = not given. Numbers are in range. */
typedef struct {
    char *model;
    char *data;
    char *output;
    char *devices;
    int dtype_choice; /* RpDtype + 1; 0 = the model's */
    gint64 sequence_length;
    gint64 micro_batch_size;
    gint64 micro_batches;
    gint64 gradient_accumulation_steps;
    gint64 steps;
    gint64 seed;
    int shuffle;
    int schedule_choice;
    int async_choice;     /* 1 = false, 2 = true, 0 = what suits the schedule */
    char *round_text;     /* "all", "auto" or a number */
    int partition_choice; /* 0 = simulated, 1 = paper */
    char *stages;
    char *forward_stages;
    char *backward_stages;
    int recompute_choice; /* RpRecompute */
    int transfers;        /* RpTransfers */
    int consistency;      /* RpConsistency */
    char *device_memory;
    char *host_memory;
    gint64 head_chunk;
    int attention_choice; /* RpAttentionChoice + 1; 0 = the faster one */
    int half_sums;        /* accumulate: 1 = fp16 */
    char *profile;        /* "auto", or a timing file */
    char *trace;
    int plot_loss;
    RpRunFileOptimizer optimizer;
    RpRunFileLossScale loss_scale;
    RpRunFileCheckpoint checkpoint;

    /* what follows from them */
    guint n_devices;
    const RpDeviceOps *device_ops;
    const char *schedule; /* its name */
    gboolean async;
    gboolean given_stages;
    guint64 device_memory_bytes; /* 0 = no limit */
    gint64 round;                /* 0 = chosen with the partition */
    guint64 host_memory_bytes;   /* 0 = what is available */
    char *resolved;              /* the same run as YAML: every key that has a value, one a line */
} RpRunFile;

/**
 * rp_run_file_load:
 * @sets: (nullable) (array zero-terminated=1): `key=value` words, later ones win
 *
 * Returns: (transfer full): the run, or %NULL
 * Errors: G_FILE_ERROR; RP_RUN_FILE_ERROR_*, one line: `RUN.yaml: line 3, column 9: steps: expected
 *   ..., found ...`; RP_CLI_ERROR_USAGE if it is one of @sets that is wrong;
 *   RP_SCHEDULE_ERROR_SHAPE if rounds do not suit micro-batches and devices
 */
RpRunFile *rp_run_file_load(const char *path, const char *const *sets,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for text in memory. @name: for messages */
RpRunFile *rp_run_file_parse(const char *name, const char *text, gsize length,
                             const char *const *sets, GError **error) G_GNUC_WARN_UNUSED_RESULT;

void rp_run_file_free(RpRunFile *run);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRunFile, rp_run_file_free)
