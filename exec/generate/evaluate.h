/**
 * The loss of a model on data that is not learned, by forwards alone on one device. Samples share
 * sequences, and see nothing of each other.
 */
#pragma once

#include "exec/data/batch.h"
#include "exec/measure/probe.h"
#include "exec/network/network.h"

typedef struct {
    double loss; /* mean over targets, nats */
    guint64 n_targets;
    guint64 n_samples;
    guint64 n_tokens;    /* of samples, without padding */
    guint64 n_truncated; /* samples that were cut to a sequence */
} RpEvaluated;

/* After each sequence. Returns: whether it may go on */
typedef gboolean (*RpEvaluateProgress)(guint64 done, guint64 total, gpointer user_data);

/**
 * rp_evaluate_model:
 * @weights: bound
 * @kernels: of @probe's backend
 * @tokens: of a sequence; longer samples are cut
 * @pad_id: an id of the vocabulary
 * @progress: (nullable): samples done, of all
 * @evaluated: (out): set on success only
 *
 * Errors: of the data; %RP_GENERATE_ERROR_MEMORY; %RP_DATASET_ERROR_BATCH if nothing is learned of any
 *   sample; the backend's own
 */
gboolean rp_evaluate_model(const RpWeights *weights, const RpKernels *kernels, RpProbe *probe,
                           const RpDataset *dataset, guint tokens, gint32 pad_id,
                           RpEvaluateProgress progress, gpointer user_data, RpEvaluated *evaluated,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;
