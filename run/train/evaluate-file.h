/**
 * The loss of a file of samples, by the plan, the devices and the code of training: what
 * `roundpipe evaluate` does.
 */
#pragma once

#include "run/train/job.h"

/* Zeros and %NULL: as `train` has them. */
typedef struct {
    const char *model;
    const char *adapter; /* (nullable): a directory of adapters for it */
    gboolean any_base;   /* or for another base */
    const char *data;    /* as `train` reads them */
    const char *devices; /* "host:2" */
    const char *dtype;
    guint sequence_length; /* > 0 */
    guint micro_batch_size;
    guint micro_batches;
} RpEvaluateFile;

/* Zero-initialise. */
typedef struct {
    RpRunSpec *run;
    RpTrainJob job; /* its evaluation: samples, predicted time and bubble ratio */
    RpEvaluation result;
    gboolean left; /* a thread that a device's driver holds is left */
} RpTrainEvaluated;

void rp_train_evaluated_clear(RpTrainEvaluated *evaluated);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpTrainEvaluated, rp_train_evaluated_clear)

/* Errors: those of rp_run_file_parse(), rp_train_job_prepare() and rp_trainer_evaluate() */
gboolean rp_train_evaluate_file(const RpEvaluateFile *file, const RpRunEvents *events,
                                RpTrainEvaluated *evaluated,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
