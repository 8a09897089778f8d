/**
 * The loss of a file of samples, by the plan, the devices and the code of training: what
 * `roundpipe evaluate` does.
 */
#pragma once

#include "run/train/job.h"

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
