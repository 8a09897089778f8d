#include "exec/data/pass.h"

/* Labels of the row's own tokens, as the dataset has them, become targets of the ones before.
 * Returns: how many */
static guint64
shift_labels(gint32 *labels, gsize length, gsize tokens)
{
    guint64 n_targets = 0;

    for (gsize t = 0; t < tokens; t++) {
        labels[t] = t + 1 < length ? labels[t + 1] : RP_LABEL_MASKED;
        n_targets += labels[t] != RP_LABEL_MASKED;
    }
    return n_targets;
}

/* @index: of a sample; behind the last one the row is padding. */
static gboolean
read_row(RpTokenBatch *batch, const RpDataset *dataset, gint32 pad_id, guint64 index, gsize row,
         GError **error)
{
    const gsize s = batch->tokens;
    gint32 *input_ids = batch->input_ids + row * s;
    gint32 *targets = batch->targets + row * s;
    RpSample sample = {.input_ids = input_ids, .labels = targets, .capacity = s};

    if (index < rp_dataset_n_samples(dataset) && !rp_dataset_read(dataset, index, &sample, error))
        return FALSE;
    const gsize length = (gsize)MIN(sample.n_tokens, s);
    for (gsize t = length; t < s; t++)
        input_ids[t] = pad_id;
    const guint64 n_targets = shift_labels(targets, length, s);

    batch->samples[row] = index;
    batch->lengths[row] = (guint32)length;
    batch->n_tokens += length;
    batch->n_truncated += sample.n_tokens > s;
    batch->n_cut_tokens += sample.n_tokens - length;
    batch->n_without_targets += n_targets == 0;
    batch->n_micro_targets[row / batch->sequences] += n_targets;
    batch->n_targets += n_targets;
    return TRUE;
}

gboolean
rp_token_batch_read(RpTokenBatch *batch, const RpDataset *dataset, gint32 pad_id, guint64 *first,
                    GError **error)
{
    const gsize n_rows = (gsize)batch->micro_batches * batch->sequences;

    batch->n_targets = batch->n_tokens = batch->epoch = 0;
    batch->n_truncated = batch->n_cut_tokens = batch->n_without_targets = 0;
    for (guint m = 0; m < batch->micro_batches; m++)
        batch->n_micro_targets[m] = 0;
    for (gsize row = 0; row < n_rows; row++)
        if (!read_row(batch, dataset, pad_id, *first + row, row, error))
            return FALSE;
    *first = MIN(*first + n_rows, rp_dataset_n_samples(dataset));
    return TRUE;
}
