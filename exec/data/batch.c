/* Iterations out of samples; see batch.h. */
#include "exec/data/batch.h"

#include <string.h>

#define MAX_NAMED_SAMPLES 8

struct _RpBatcher {
    const RpDataset *dataset;
    RpBatcherOptions options;
    RpDataState state;
    RpPacker *packer;
    gint32 *ids, *labels; /* [space]: of a sample while it is read */
    gsize space;          /* s or, of preferences, tokens of the longest so far */
    GArray *splits;       /* RpSplit of the samples of a part, as they are cut */
};

static gsize
count_rows(guint micro_batches, guint sequences)
{
    return (gsize)micro_batches * sequences;
}

/* Micro-batches of a batch. */
static guint
own_micro_batches(const RpBatcherOptions *options)
{
    return options->micro_batches / MAX(1, options->parts);
}

RpTokenBatch *
rp_token_batch_new(const RpBatcherOptions *options)
{
    g_return_val_if_fail(options && options->micro_batches > 0, NULL);
    g_return_val_if_fail(options->sequences > 0 && options->tokens > 0, NULL);

    const guint micro_batches = own_micro_batches(options);
    gsize n_rows = count_rows(micro_batches, options->sequences);
    gsize n_places;
    if (!g_size_checked_mul(&n_places, n_rows, options->tokens))
        n_places = G_MAXSIZE; /* g_new0() ends the program, as for any size there is not */
    RpTokenBatch *batch = g_new0(RpTokenBatch, 1);
    batch->micro_batches = micro_batches;
    batch->sequences = options->sequences;
    batch->tokens = options->tokens;
    batch->input_ids = g_new0(gint32, n_places);
    batch->targets = g_new0(gint32, n_places);
    batch->lengths = g_new0(guint32, n_rows);
    batch->packed = options->packing;
    batch->space = n_rows;
    batch->samples = g_new0(guint64, n_rows);
    batch->n_micro_targets = g_new0(guint64, micro_batches);
    if (!batch->packed)
        return batch;
    batch->starts = g_new0(gint32, n_places + micro_batches);
    batch->n_starts = g_new0(guint32, micro_batches);
    batch->longest = g_new0(guint32, micro_batches);
    batch->preference = options->preference;
    if (!batch->preference)
        return batch;
    batch->answers = g_new0(guint8, n_places);
    batch->references = g_new0(float, n_places);
    batch->shared = g_new0(guint32, n_places);
    batch->n_shared = g_new0(guint32, micro_batches);
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
    g_free(batch->starts);
    g_free(batch->n_starts);
    g_free(batch->longest);
    g_free(batch->answers);
    g_free(batch->references);
    g_free(batch->shared);
    g_free(batch->n_shared);
    g_free(batch);
}

static void
make_space(RpTokenBatch *batch, gsize n_samples)
{
    if (n_samples <= batch->space)
        return;
    batch->space = MAX(n_samples, 2 * batch->space);
    batch->samples = g_renew(guint64, batch->samples, batch->space);
}

void
rp_token_batch_copy(RpTokenBatch *to, const RpTokenBatch *from)
{
    g_return_if_fail(to->micro_batches == from->micro_batches);
    g_return_if_fail(to->sequences == from->sequences && to->tokens == from->tokens);
    g_return_if_fail(to->packed == from->packed && to->preference == from->preference);

    const gsize n_rows = count_rows(from->micro_batches, from->sequences);
    const gsize n = n_rows * from->tokens;
    RpTokenBatch copy = *from;
    make_space(to, from->n_samples);
    copy.space = to->space;
    copy.input_ids = memcpy(to->input_ids, from->input_ids, n * sizeof *from->input_ids);
    copy.targets = memcpy(to->targets, from->targets, n * sizeof *from->targets);
    copy.lengths = memcpy(to->lengths, from->lengths, n_rows * sizeof *from->lengths);
    copy.samples = memcpy(to->samples, from->samples, from->n_samples * sizeof *from->samples);
    copy.n_micro_targets = memcpy(to->n_micro_targets, from->n_micro_targets,
                                  from->micro_batches * sizeof *from->n_micro_targets);
    if (from->packed) {
        copy.starts = memcpy(to->starts, from->starts, (n + from->micro_batches) * sizeof(gint32));
        copy.n_starts =
            memcpy(to->n_starts, from->n_starts, from->micro_batches * sizeof *from->n_starts);
        copy.longest =
            memcpy(to->longest, from->longest, from->micro_batches * sizeof *from->longest);
    }
    if (from->preference) {
        copy.answers = memcpy(to->answers, from->answers, n * sizeof *from->answers);
        copy.references = memcpy(to->references, from->references, n * sizeof *from->references);
        copy.shared = memcpy(to->shared, from->shared, n * sizeof *from->shared);
        copy.n_shared =
            memcpy(to->n_shared, from->n_shared, from->micro_batches * sizeof *from->n_shared);
    }
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

const gint32 *
rp_token_batch_starts(const RpTokenBatch *batch, guint m)
{
    g_return_val_if_fail(batch && batch->packed && m < batch->micro_batches, NULL);

    return batch->starts + micro_batch_start(batch, m) + m;
}

const guint8 *
rp_token_batch_answers(const RpTokenBatch *batch, guint m)
{
    g_return_val_if_fail(batch && batch->preference && m < batch->micro_batches, NULL);

    return batch->answers + micro_batch_start(batch, m);
}

const guint32 *
rp_token_batch_shared(const RpTokenBatch *batch, guint m)
{
    g_return_val_if_fail(batch && batch->preference && m < batch->micro_batches, NULL);

    return batch->shared + micro_batch_start(batch, m);
}

float *
rp_token_batch_references(const RpTokenBatch *batch, guint m)
{
    g_return_val_if_fail(batch && batch->preference && m < batch->micro_batches, NULL);

    return batch->references + micro_batch_start(batch, m);
}

/* Samples are in the order of their documents, two each. */
static void
move_references(const RpTokenBatch *batch, float *of_samples, gboolean get)
{
    gsize n = 0; /* documents before it, without paddings */

    g_return_if_fail(batch->preference);
    for (guint m = 0; m < batch->micro_batches; m++) {
        const guint8 *answers = rp_token_batch_answers(batch, m);
        float *references = rp_token_batch_references(batch, m);

        for (guint d = 0; d < batch->n_starts[m]; d++) {
            if (answers[d] == RP_ANSWER_NONE)
                continue;
            float *own = &of_samples[2 * batch->samples[n / 2] + n % 2];

            *(get ? own : &references[d]) = get ? references[d] : *own;
            n++;
        }
    }
}

void
rp_token_batch_set_references(RpTokenBatch *batch, const float *references)
{
    move_references(batch, (float *)references, FALSE);
}

void
rp_token_batch_get_references(const RpTokenBatch *batch, float *references)
{
    move_references(batch, references, TRUE);
}

RpBatchCounts
rp_token_batch_counts(const RpTokenBatch *batch)
{
    return (RpBatchCounts){.n_targets = batch->n_targets,
                           .n_tokens = batch->n_tokens,
                           .n_truncated = batch->n_truncated,
                           .n_cut_tokens = batch->n_cut_tokens,
                           .n_without_targets = batch->n_without_targets,
                           .n_pairs = batch->n_pairs,
                           .n_chosen_targets = batch->n_chosen_targets};
}

RpBatcher *
rp_batcher_new(const RpDataset *dataset, const RpBatcherOptions *options, GError **error)
{
    g_return_val_if_fail(dataset && options && options->micro_batches > 0, NULL);
    g_return_val_if_fail(options->sequences > 0 && options->tokens > 0, NULL);
    g_return_val_if_fail(options->part < MAX(1, options->parts), NULL);
    g_return_val_if_fail(options->micro_batches % MAX(1, options->parts) == 0, NULL);
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
    if (options->epoch_end == RP_EPOCH_END_DROP && options->packing) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH,
                    "%s: expected iterations that go on with the next epoch, as samples are "
                    "packed, found that incomplete ones are dropped",
                    rp_dataset_name(dataset));
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
    batcher->packer = rp_packer_new(dataset, options);
    batcher->space = options->tokens;
    batcher->ids = g_new(gint32, batcher->space);
    batcher->labels = g_new(gint32, batcher->space);
    batcher->splits = g_array_new(FALSE, FALSE, sizeof(RpSplit));
    return batcher;
}

void
rp_batcher_free(RpBatcher *batcher)
{
    if (batcher == NULL)
        return;
    rp_packer_free(batcher->packer);
    g_free(batcher->ids);
    g_free(batcher->labels);
    g_array_unref(batcher->splits);
    g_free(batcher);
}

/* Lengths are recorded before. */
static gboolean
fail_length(const RpBatcher *batcher, const RpPackPlace *place, guint64 found, GError **error)
{
    g_autofree char *where = rp_dataset_locate(batcher->dataset, place->sample);

    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                "%s: %s: expected %u tokens, as there were at the start, found %" G_GUINT64_FORMAT
                ": the file was written over while it was read",
                rp_dataset_name(batcher->dataset), where, place->length, found);
    return FALSE;
}

static gboolean
fail_plain(const RpBatcher *batcher, const RpPackPlace *place, GError **error)
{
    g_autofree char *where = rp_dataset_locate(batcher->dataset, place->sample);

    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE,
                "%s: %s: expected a preference of two documents, found one document",
                rp_dataset_name(batcher->dataset), where);
    return FALSE;
}

/* Puts @n tokens of the batcher's @from on at @first of the batch: targets are the labels of the next tokens of the
 * same document. Returns: targets */
static guint64
fill_document(const RpBatcher *batcher, RpTokenBatch *batch, gsize from, gsize first, guint32 n)
{
    const guint labels = batcher->options.labels;
    gint32 *targets = batch->targets + first;
    guint64 n_targets = 0;

    if (n == 0)
        return 0;
    memcpy(batch->input_ids + first, batcher->ids + from, n * sizeof(gint32));
    memcpy(targets, batcher->labels + from + 1, (n - 1) * sizeof(gint32));
    targets[n - 1] = RP_LABEL_MASKED;
    for (guint32 t = 0; labels > 0 && t + 1 + labels < n; t++)
        targets[t] = RP_LABEL_MASKED;
    for (guint32 t = 0; t < n; t++)
        n_targets += targets[t] != RP_LABEL_MASKED;
    return n_targets;
}

/* A preference is read as a whole, since both of its documents may be cut. */
static gboolean
make_space_for(RpBatcher *batcher, const RpPackPlace *place, gsize *capacity, GError **error)
{
    guint64 length = place->length;

    if (batcher->options.preference &&
        !rp_dataset_length(batcher->dataset, place->sample, &length, error))
        return FALSE;
    if (length > batcher->space) {
        batcher->space = (gsize)length;
        batcher->ids = g_renew(gint32, batcher->ids, batcher->space);
        batcher->labels = g_renew(gint32, batcher->labels, batcher->space);
    }
    *capacity = (gsize)length;
    return TRUE;
}

guint32
rp_batch_cut_first(RpSplit split, guint64 n_tokens, guint32 length)
{
    const guint32 shared = MIN(split.shared, length), space = length - shared;
    const guint64 second = n_tokens - split.tokens;

    if (n_tokens <= length || split.tokens - shared <= space / 2)
        return split.tokens;
    return shared + (second <= space / 2 ? (guint32)(space - second) : space / 2);
}

static gboolean
is_learned(const gint32 *labels, guint64 from, guint64 n)
{
    for (guint64 t = from + 1; t < from + n; t++)
        if (labels[t] != RP_LABEL_MASKED)
            return TRUE;
    return FALSE;
}

gboolean
rp_batch_cut_is_learned(const RpSample *sample, guint32 length)
{
    const guint32 first = rp_batch_cut_first(sample->split, sample->n_tokens, length);

    return is_learned(sample->labels, 0, first) &&
           is_learned(sample->labels, sample->split.tokens, MIN(length, sample->n_tokens) - first);
}

/* Both documents of a preference. Returns: targets */
static guint64
fill_pair(RpBatcher *batcher, RpTokenBatch *batch, const RpSample *sample, gsize first,
          guint32 length)
{
    const RpSplit cut = {rp_batch_cut_first(sample->split, sample->n_tokens, length),
                         sample->split.answer, sample->split.shared};
    const guint64 n_first = fill_document(batcher, batch, 0, first, cut.tokens);
    const guint64 n_second = fill_document(batcher, batch, sample->split.tokens, first + cut.tokens,
                                           length - cut.tokens);

    g_array_append_val(batcher->splits, cut);
    batch->n_pairs++;
    batch->n_chosen_targets += cut.answer == RP_ANSWER_UNDESIRABLE ? 0 : n_first;
    return n_first + n_second;
}

/* Reads a sample to its place. @row: of the part */
static gboolean
fill_place(RpBatcher *batcher, RpTokenBatch *batch, const RpPackPlace *place, gsize row,
           GError **error)
{
    const gsize first = row * batch->tokens + place->at;
    gsize capacity;

    if (!make_space_for(batcher, place, &capacity, error))
        return FALSE;
    RpSample sample = {.input_ids = batcher->ids, .labels = batcher->labels, .capacity = capacity};
    if (!rp_dataset_read(batcher->dataset, place->sample, &sample, error))
        return FALSE;
    const guint32 length = (guint32)MIN(sample.n_tokens, place->length);
    if (batch->packed && (length < place->length || sample.n_tokens < capacity))
        return fail_length(batcher, place, sample.n_tokens, error);
    if (batch->preference && sample.split.tokens == 0)
        return fail_plain(batcher, place, error);
    const guint64 n_targets = batch->preference ? fill_pair(batcher, batch, &sample, first, length)
                                                : fill_document(batcher, batch, 0, first, length);
    batch->samples[batch->n_samples++] = place->sample;
    batch->lengths[row] = place->at + length;
    batch->n_tokens += length;
    batch->n_truncated += sample.n_tokens > length;
    batch->n_cut_tokens += sample.n_tokens - length;
    batch->n_without_targets += n_targets == 0;
    batch->n_micro_targets[row / batch->sequences] += n_targets;
    batch->n_targets += n_targets;
    return TRUE;
}

static void
pad_row(const RpBatcher *batcher, RpTokenBatch *batch, gsize row)
{
    for (gsize t = row * batch->tokens + batch->lengths[row]; t < (row + 1) * batch->tokens; t++) {
        batch->input_ids[t] = batcher->options.pad_id;
        batch->targets[t] = RP_LABEL_MASKED;
    }
}

/* Records that a document, or a padding, of @length tokens begins at token @at of the micro-batch. @shared: tokens of
 * the one before that it begins with */
static void
add_start(RpTokenBatch *batch, guint m, gsize at, guint32 length, RpAnswerKind answer,
          guint32 shared)
{
    const gsize first = micro_batch_start(batch, m), d = batch->n_starts[m];
    gint32 *starts = batch->starts + first + m;

    if (length == 0)
        return;
    if (batch->preference) {
        batch->answers[first + d] = (guint8)answer;
        batch->references[first + d] = 0;
        batch->shared[first + d] = shared;
        batch->n_shared[m] += shared > 0;
    }
    starts[d] = (gint32)at;
    starts[d + 1] = (gint32)(at + length);
    batch->n_starts[m]++;
    batch->longest[m] =
        MAX(batch->longest[m], (guint32)(starts[d + 1] - starts[shared > 0 ? d - 1 : d]));
}

/* @split: of a preference; else %NULL */
static void
add_sample_start(RpTokenBatch *batch, guint m, gsize at, guint32 length, const RpSplit *split)
{
    if (split == NULL) {
        add_start(batch, m, at, length, RP_ANSWER_NONE, 0);
        return;
    }
    add_start(batch, m, at, split->tokens, split->answer, 0);
    add_start(batch, m, at + split->tokens, length - split->tokens,
              split->answer == RP_ANSWER_CHOSEN ? RP_ANSWER_REJECTED : RP_ANSWER_KL, split->shared);
}

/* @first_row: of the part, in the iteration. @splits: RpSplit of the samples of the part */
static void
set_starts(RpTokenBatch *batch, const GArray *placed, const GArray *splits, gsize first_row)
{
    const gsize n_rows = count_rows(batch->micro_batches, batch->sequences);
    guint i = 0, n_splits = 0;

    for (guint m = 0; m < batch->micro_batches; m++) {
        batch->n_starts[m] = batch->longest[m] = 0;
        if (batch->preference)
            batch->n_shared[m] = 0;
    }
    while (i < placed->len && g_array_index(placed, RpPackPlace, i).row < first_row)
        i++;
    for (gsize row = 0; row < n_rows; row++) {
        const guint m = (guint)(row / batch->sequences);
        const gsize first = row % batch->sequences * batch->tokens;

        for (; i < placed->len && g_array_index(placed, RpPackPlace, i).row == first_row + row;
             i++) {
            const RpPackPlace *place = &g_array_index(placed, RpPackPlace, i);
            const RpSplit *split =
                batch->preference ? &g_array_index(splits, RpSplit, n_splits++) : NULL;
            add_sample_start(batch, m, first + place->at, place->length, split);
        }
        add_start(batch, m, first + batch->lengths[row],
                  (guint32)(batch->tokens - batch->lengths[row]), RP_ANSWER_NONE, 0);
    }
}

gboolean
rp_batcher_check_targets(const RpBatcher *batcher, RpTokenBatch *const *batches, guint n_batches,
                         GError **error)
{
    g_autoptr(GString) names = g_string_new(NULL);

    g_return_val_if_fail(batcher != NULL && n_batches > 0, FALSE);
    for (guint i = 0; i < n_batches; i++)
        if (batches[i]->n_targets > 0)
            return TRUE;
    const RpTokenBatch *batch = batches[0];
    const gsize n = batch->n_samples;

    for (gsize i = 0; i < MIN(n, MAX_NAMED_SAMPLES); i++) {
        g_autofree char *place = rp_dataset_locate(batcher->dataset, batch->samples[i]);
        g_string_append_printf(names, "%s%s", i > 0 ? ", " : "", place);
    }
    if (n > MAX_NAMED_SAMPLES)
        g_string_append_printf(names, " and %" G_GSIZE_FORMAT " more", n - MAX_NAMED_SAMPLES);
    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH,
                "%s: iteration %" G_GUINT64_FORMAT
                ": expected at least one label that is not masked within %u tokens, behind the "
                "first, found none in %s",
                rp_dataset_name(batcher->dataset), batch->iteration, batch->tokens, names->str);
    return FALSE;
}

static gboolean
is_for(const RpBatcher *batcher, const RpTokenBatch *batch)
{
    const RpBatcherOptions *options = &batcher->options;

    return batch->micro_batches == own_micro_batches(options) &&
           batch->sequences == options->sequences && batch->tokens == options->tokens &&
           batch->packed == options->packing && batch->preference == options->preference;
}

static void
empty(RpTokenBatch *batch)
{
    batch->n_targets = batch->n_tokens = 0;
    batch->n_truncated = batch->n_cut_tokens = batch->n_without_targets = 0;
    batch->n_pairs = batch->n_chosen_targets = 0;
    batch->n_samples = 0;
    for (guint m = 0; m < batch->micro_batches; m++)
        batch->n_micro_targets[m] = 0;
    for (gsize row = 0; row < count_rows(batch->micro_batches, batch->sequences); row++)
        batch->lengths[row] = 0;
}

/* Reads the samples of the part. */
static gboolean
fill(RpBatcher *batcher, RpTokenBatch *batch, const GArray *placed, GError **error)
{
    const gsize n_rows = count_rows(batch->micro_batches, batch->sequences);
    const gsize first_row = batcher->options.part * n_rows;

    empty(batch);
    g_array_set_size(batcher->splits, 0);
    batch->n_placed = placed->len;
    make_space(batch, placed->len);
    for (guint i = 0; i < placed->len; i++) {
        const RpPackPlace *place = &g_array_index(placed, RpPackPlace, i);

        if (place->row >= first_row && place->row < first_row + n_rows &&
            !fill_place(batcher, batch, place, place->row - first_row, error))
            return FALSE;
    }
    for (gsize row = 0; row < n_rows; row++)
        pad_row(batcher, batch, row);
    if (batch->packed)
        set_starts(batch, placed, batcher->splits, first_row);
    if (batch->preference && rp_dataset_references(batcher->dataset) != NULL)
        rp_token_batch_set_references(batch, rp_dataset_references(batcher->dataset));
    return TRUE;
}

static void
add_counts(RpDataState *state, const RpTokenBatch *batch)
{
    state->n_tokens += batch->n_tokens;
    state->n_targets += batch->n_targets;
    state->n_truncated += batch->n_truncated;
    state->n_cut_tokens += batch->n_cut_tokens;
}

gboolean
rp_batcher_next(RpBatcher *batcher, RpTokenBatch *batch, GError **error)
{
    g_return_val_if_fail(batcher && batch && is_for(batcher, batch), FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    const gboolean whole = batcher->options.parts <= 1;
    RpDataState after = batcher->state;
    const GArray *placed = rp_packer_next(batcher->packer, &after, &batch->epoch, error);
    if (placed == NULL)
        return FALSE;
    batch->iteration = ++after.n_iterations;
    if (!fill(batcher, batch, placed, error))
        return FALSE;
    if (whole)
        add_counts(&after, batch);
    batcher->state = after;
    return TRUE;
}

void
rp_batcher_take_counts(RpBatcher *batcher, RpTokenBatch *batch, const RpBatchCounts *all)
{
    g_return_if_fail(batcher && batch && batcher->options.parts > 1);

    batch->n_targets = all->n_targets;
    batch->n_tokens = all->n_tokens;
    batch->n_truncated = all->n_truncated;
    batch->n_cut_tokens = all->n_cut_tokens;
    batch->n_without_targets = all->n_without_targets;
    batch->n_pairs = all->n_pairs;
    batch->n_chosen_targets = all->n_chosen_targets;
    add_counts(&batcher->state, batch);
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
    /* checkpoints of before caches had a hash of their words are of the newer format, too */
    if (state->fingerprint != prints.sampled &&
        (state->sampled || state->fingerprint != prints.all))
        return fail_state(batcher,
                          "the same data, made into samples by the same version, of fingerprint",
                          state->fingerprint, state->sampled ? prints.sampled : prints.all, error);
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
    return TRUE;
}
