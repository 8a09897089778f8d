/**
 * One pass over a dataset: each sample once, in the order of the file, for evaluations.
 */
#pragma once

#include "exec/data/batch.h"

/**
 * rp_token_batch_read:
 * @batch: what it held is lost even if the call fails; its epoch is 0. May be without targets
 * @first: (inout): the sample that its first row takes; then the one behind its last. Rows for which
 *   there are no samples have the length 0
 *
 * Errors: those of rp_dataset_read(); @first is as it was
 */
gboolean rp_token_batch_read(RpTokenBatch *batch, const RpDataset *dataset, gint32 pad_id,
                             guint64 *first, GError **error) G_GNUC_WARN_UNUSED_RESULT;
