/* Iterations out of samples; see batch.h. */
#include "exec/data/batch.h"

#include <string.h>

#include "exec/data/order.h"

#define MAX_NAMED_SAMPLES 8

struct _RpBatcher {
    const RpDataset *dataset;
    RpBatcherOptions options;
    RpDataState state;
    RpOrder order; /* of state.epoch */
};

static gsize
count_rows(guint micro_batches, guint sequences)
{
    return (gsize)micro_batches * sequences;
}

RpTokenBatch *
rp_token_batch_new(const RpBatcherOptions *options)
{
    g_return_val_if_fail(options && options->micro_batches > 0, NULL);
    g_return_val_if_fail(options->sequences > 0 && options->tokens > 0, NULL);

    gsize n_rows = count_rows(options->micro_batches, options->sequences);
    gsize n_places;
    if (!g_size_checked_mul(&n_places, n_rows, options->tokens))
        n_places = G_MAXSIZE; /* g_new0() ends the program, as for any size there is not */
    RpTokenBatch *batch = g_new0(RpTokenBatch, 1);
    batch->micro_batches = options->micro_batches;
    batch->sequences = options->sequences;
    batch->tokens = options->tokens;
    batch->input_ids = g_new0(gint32, n_places);
    batch->targets = g_new0(gint32, n_places);
    batch->lengths = g_new0(guint32, n_rows);
    batch->samples = g_new0(guint64, n_rows);
    batch->n_micro_targets = g_new0(guint64, options->micro_batches);
    return batch;
}

void
rp_token_batch_free(RpTokenBatch *batch)
{
    if (batch == NULL)
        return;
    g_free(batch->input_ids);
    g_free(batch->targets);
    g_free(batch->lengths);
    g_free(batch->samples);
    g_free(batch->n_micro_targets);
    g_free(batch);
}

void
rp_token_batch_copy(RpTokenBatch *to, const RpTokenBatch *from)
{
    g_return_if_fail(to->micro_batches == from->micro_batches);
    g_return_if_fail(to->sequences == from->sequences && to->tokens == from->tokens);

    const gsize n_rows = count_rows(from->micro_batches, from->sequences);
    const gsize n = n_rows * from->tokens;
    RpTokenBatch copy = *from;
    copy.input_ids = memcpy(to->input_ids, from->input_ids, n * sizeof *from->input_ids);
    copy.targets = memcpy(to->targets, from->targets, n * sizeof *from->targets);
    copy.lengths = memcpy(to->lengths, from->lengths, n_rows * sizeof *from->lengths);
    copy.samples = memcpy(to->samples, from->samples, n_rows * sizeof *from->samples);
    copy.n_micro_targets = memcpy(to->n_micro_targets, from->n_micro_targets,
                                  from->micro_batches * sizeof *from->n_micro_targets);
    *to = copy;
}

static gsize
micro_batch_start(const RpTokenBatch *batch, guint m)
{
    return (gsize)m * batch->sequences * batch->tokens;
}

const gint32 *
rp_token_batch_input_ids(const RpTokenBatch *batch, guint m)
{
    g_return_val_if_fail(batch && m < batch->micro_batches, NULL);

    return batch->input_ids + micro_batch_start(batch, m);
}

const gint32 *
rp_token_batch_targets(const RpTokenBatch *batch, guint m)
{
    g_return_val_if_fail(batch && m < batch->micro_batches, NULL);

    return batch->targets + micro_batch_start(batch, m);
}

RpBatcher *
rp_batcher_new(const RpDataset *dataset, const RpBatcherOptions *options, GError **error)
{
    g_return_val_if_fail(dataset && options && options->micro_batches > 0, NULL);
    g_return_val_if_fail(options->sequences > 0 && options->tokens > 0, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    guint64 n_samples = rp_dataset_n_samples(dataset);
    gsize n_rows = count_rows(options->micro_batches, options->sequences);
    if (options->epoch_end == RP_EPOCH_END_DROP && n_samples < n_rows) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH,
                    "%s: expected at least one iteration of %" G_GSIZE_FORMAT
                    " samples, as incomplete ones are dropped, found %" G_GUINT64_FORMAT " samples",
                    rp_dataset_name(dataset), n_rows, n_samples);
        return NULL;
    }
    if (options->pad_id < 0 || (guint)options->pad_id >= rp_dataset_vocabulary(dataset)) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH,
                    "%s: expected a padding id from 0 to %u, found %d", rp_dataset_name(dataset),
                    rp_dataset_vocabulary(dataset) - 1, options->pad_id);
        return NULL;
    }
    RpBatcher *batcher = g_new0(RpBatcher, 1);
    batcher->dataset = dataset;
    batcher->options = *options;
    batcher->state = (RpDataState){.n_samples = n_samples,
                                   .fingerprint = rp_dataset_fingerprint(dataset).all,
                                   .seed = options->seed,
                                   .shuffle = options->shuffle};
    rp_order_init(&batcher->order, n_samples, options->shuffle, options->seed, 0);
    return batcher;
}

void
rp_batcher_free(RpBatcher *batcher)
{
    g_free(batcher);
}

static void
enter_epoch(RpBatcher *batcher, guint64 epoch)
{
    if (batcher->order.epoch != epoch)
        rp_order_init(&batcher->order, batcher->state.n_samples, batcher->options.shuffle,
                      batcher->options.seed, epoch);
}

/* What an iteration begins with: the start of an epoch rather than the end of the last, or, if
 * incomplete iterations are dropped, than too few samples at its end. */
static void
skip_end_of_epoch(const RpBatcher *batcher, RpDataState *state)
{
    guint64 left = state->n_samples - state->position;
    guint64 needed = batcher->options.epoch_end == RP_EPOCH_END_DROP
                         ? count_rows(batcher->options.micro_batches, batcher->options.sequences)
                         : 1;

    if (left >= needed)
        return;
    state->n_dropped += left;
    state->epoch++;
    state->position = 0;
}

/* Which samples the iteration has. */
static void
choose_samples(RpBatcher *batcher, RpDataState *state, RpTokenBatch *batch)
{
    gsize n_rows = count_rows(batch->micro_batches, batch->sequences);

    skip_end_of_epoch(batcher, state);
    batch->epoch = state->epoch;
    for (gsize row = 0; row < n_rows; row++) {
        if (state->position == state->n_samples) {
            state->epoch++;
            state->position = 0;
        }
        enter_epoch(batcher, state->epoch);
        batch->samples[row] = rp_order_sample(&batcher->order, state->position++);
    }
}

/* Labels of the row's own tokens, as the dataset has them, become targets. Returns: how many */
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

/* Reads the sample of @row, cuts or pads it, and adds it to the sums of @batch. */
static gboolean
fill_row(const RpBatcher *batcher, RpTokenBatch *batch, gsize row, GError **error)
{
    gsize s = batch->tokens;
    gint32 *input_ids = batch->input_ids + row * s;
    gint32 *targets = batch->targets + row * s;
    RpSample sample = {.input_ids = input_ids, .labels = targets, .capacity = s};

    if (!rp_dataset_read(batcher->dataset, batch->samples[row], &sample, error))
        return FALSE;
    gsize length = (gsize)MIN(sample.n_tokens, s);
    for (gsize t = length; t < s; t++)
        input_ids[t] = batcher->options.pad_id;
    guint64 n_targets = shift_labels(targets, length, s);
    batch->lengths[row] = (guint32)length;
    batch->n_tokens += length;
    batch->n_truncated += sample.n_tokens > s;
    batch->n_cut_tokens += sample.n_tokens - length;
    batch->n_without_targets += n_targets == 0;
    batch->n_micro_targets[row / batch->sequences] += n_targets;
    batch->n_targets += n_targets;
    return TRUE;
}

static gboolean
fail_without_targets(const RpBatcher *batcher, const RpTokenBatch *batch, GError **error)
{
    gsize n_rows = count_rows(batch->micro_batches, batch->sequences);
    g_autoptr(GString) names = g_string_new(NULL);

    for (gsize row = 0; row < MIN(n_rows, MAX_NAMED_SAMPLES); row++) {
        g_autofree char *place = rp_dataset_locate(batcher->dataset, batch->samples[row]);
        g_string_append_printf(names, "%s%s", row > 0 ? ", " : "", place);
    }
    if (n_rows > MAX_NAMED_SAMPLES)
        g_string_append_printf(names, " and %" G_GSIZE_FORMAT " more", n_rows - MAX_NAMED_SAMPLES);
    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH,
                "%s: iteration %" G_GUINT64_FORMAT
                ": expected at least one label that is not masked within %u tokens, behind the "
                "first, found none in %s",
                rp_dataset_name(batcher->dataset), batcher->state.n_iterations + 1, batch->tokens,
                names->str);
    return FALSE;
}

gboolean
rp_batcher_next(RpBatcher *batcher, RpTokenBatch *batch, GError **error)
{
    g_return_val_if_fail(batcher && batch, FALSE);
    g_return_val_if_fail(batch->micro_batches == batcher->options.micro_batches &&
                             batch->sequences == batcher->options.sequences &&
                             batch->tokens == batcher->options.tokens,
                         FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    gsize n_rows = count_rows(batch->micro_batches, batch->sequences);
    RpDataState after = batcher->state;
    batch->n_targets = batch->n_tokens = 0;
    batch->n_truncated = batch->n_cut_tokens = batch->n_without_targets = 0;
    for (guint m = 0; m < batch->micro_batches; m++)
        batch->n_micro_targets[m] = 0;
    choose_samples(batcher, &after, batch);
    for (gsize row = 0; row < n_rows; row++)
        if (!fill_row(batcher, batch, row, error))
            return FALSE;
    if (batch->n_targets == 0)
        return fail_without_targets(batcher, batch, error);
    after.n_iterations++;
    after.n_tokens += batch->n_tokens;
    after.n_targets += batch->n_targets;
    after.n_truncated += batch->n_truncated;
    after.n_cut_tokens += batch->n_cut_tokens;
    batcher->state = after;
    return TRUE;
}

RpDataState
rp_batcher_state(const RpBatcher *batcher)
{
    g_return_val_if_fail(batcher != NULL, ((RpDataState){0}));

    return batcher->state;
}

static gboolean
fail_state(const RpBatcher *batcher, const char *what, guint64 saved, guint64 here, GError **error)
{
    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_STATE,
                "%s: cannot resume: expected %s %" G_GUINT64_FORMAT
                " as in the checkpoint, found %" G_GUINT64_FORMAT,
                rp_dataset_name(batcher->dataset), what, saved, here);
    return FALSE;
}

gboolean
rp_batcher_restore(RpBatcher *batcher, const RpDataState *state, GError **error)
{
    g_return_val_if_fail(batcher && state, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    const RpDataState *here = &batcher->state;
    if (state->n_samples != here->n_samples)
        return fail_state(batcher, "the number of samples", state->n_samples, here->n_samples,
                          error);
    const RpFingerprints prints = rp_dataset_fingerprint(batcher->dataset);
    const guint64 fingerprint = state->sampled ? prints.sampled : prints.all;
    if (state->fingerprint != fingerprint)
        return fail_state(batcher, "a file of fingerprint", state->fingerprint, fingerprint, error);
    if (state->seed != here->seed)
        return fail_state(batcher, "the seed", state->seed, here->seed, error);
    if (!state->shuffle != !here->shuffle)
        return fail_state(batcher, "shuffling", state->shuffle, here->shuffle, error);
    if (state->position > state->n_samples)
        return fail_state(batcher, "a position of at most", state->n_samples, state->position,
                          error);
    batcher->state = *state;
    batcher->state.fingerprint = prints.all;
    batcher->state.sampled = FALSE;
    enter_epoch(batcher, state->epoch);
    return TRUE;
}
