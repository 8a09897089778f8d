/**
 * Micro-batches of one shape, an iteration at a time, in an order that a resume continues.
 *
 *   file      sample 0, sample 1, …
 *   order     a permutation for each epoch (pack.h)
 *   iteration the next M × b samples, or more if packed (pack.h): M micro-batches of b sequences
 *             of s tokens
 *
 *   input_ids   a    b    c    d   pad  pad      cut or padded to s
 *   targets     b    c    d  -100 -100 -100      the label of the *next* token
 *
 *   input_ids   a    b    c    x    y   pad      packed: positions begin at 0 with each sample,
 *   targets     b    c  -100   y  -100 -100      and attention sees the own sample alone
 *   starts      0              3         5 (6)   padding is one as well, so that all tokens have one
 *
 *   input_ids   p    a    b    p    x   pad      a preference, which is packed too: two documents of
 *   targets     a    b  -100   x  -100 -100      a sample, one behind the other in one row
 *   starts      0              3         5 (6)
 *   answers     CHOSEN         REJECTED  NONE
 *
 *   input_ids   p    q    a    b    q    x    pad     the same where its documents share all of the prompt but its last
 *   targets   -100   a    b  -100   x  -100  -100     token, so that each target has a token of its own before it
 *   starts      0                   4         6 (7)
 *   shared      0                   1         0       positions of the second begin behind the shared tokens, which it
 *                                                     sees, and it sees nothing else of the first
 *
 * The shift by one is done here, once: labels in files stand beside their own token, as Hugging
 * Face has them, where the model shifts. So the loss of a row is that of its target, whatever
 * chunk of rows the head works on.
 *
 * With several servers, each has a part of the micro-batches, and reads no sample of the others:
 *
 *   iteration   | micro-batch 0 | micro-batch 1 | micro-batch 2 | micro-batch 3 |
 *   2 parts     |----------- part 0 ------------|----------- part 1 ------------|
 *
 * Here M = micro_batches, b = sequences, s = tokens. Memory is taken by the _new functions, and
 * for lists of samples that become longer.
 */
#pragma once

#include "core/catalogue/preference.h"
#include "exec/data/pack.h"

/* Numbers that add up over the parts of an iteration. */
typedef struct {
    guint64 n_targets;
    guint64 n_tokens;
    guint64 n_truncated;
    guint64 n_cut_tokens;
    guint64 n_without_targets;
    guint64 n_pairs;
    guint64 n_chosen_targets;
} RpBatchCounts;

/* One iteration's tokens, or a part's. Row r = (m × b + i) of sequence i of micro-batch m. */
typedef struct {
    guint micro_batches; /* micro-batches of the part */
    guint sequences;
    guint tokens;
    gint32 *input_ids;        /* [M × b][s] */
    gint32 *targets;          /* [M × b][s]: an id or RP_LABEL_MASKED; the last always masked */
    guint32 *lengths;         /* [M × b]: tokens before the padding, 0 to s */
    gsize n_placed;           /* samples of the iteration; none once the epochs are over */
    gsize n_samples;          /* samples of the part */
    guint64 *samples;         /* [n_samples]: index in the dataset, row after row */
    gsize space;              /* capacity of @samples */
    gboolean packed;          /* the fields below are set: */
    gint32 *starts;           /* [M][b × s + 1]: first tokens of samples, and b × s behind them */
    guint32 *n_starts;        /* [M]: samples of a micro-batch, paddings too */
    guint32 *longest;         /* [M]: tokens of the longest of these */
    guint64 *n_micro_targets; /* [M]: unmasked targets; may be 0 */
    gboolean preference;      /* samples are two documents; the fields below are set: */
    guint8 *answers;          /* [M][b × s]: RpAnswerKind of each of @starts */
    guint32 *shared;   /* [M][b × s]: tokens that each shares with the document before (RpSplit) */
    guint32 *n_shared; /* [M]: documents that share some */
    /* [M][b × s]: the reference's log-probability of each of @starts; 0 until somebody scores it */
    float *references;
    guint64 iteration; /* from 1 up, over the whole run */
    /* targets of the iteration, > 0, by which its loss is divided; only a part's until
     * rp_batcher_take_counts(), as all below */
    guint64 n_targets;
    guint64 n_tokens;          /* without padding */
    guint64 n_truncated;       /* sequences that were cut to s */
    guint64 n_cut_tokens;      /* tokens cut off them */
    guint64 n_without_targets; /* sequences with nothing to learn */
    guint64 n_pairs;           /* preferences: samples, by which their loss is divided */
    guint64 n_chosen_targets;  /* targets of answers that are chosen */
    guint64 epoch;             /* epoch of the first sample */
} RpTokenBatch;

/* An empty one of the shape of @options; any number may be in flight. */
RpTokenBatch *rp_token_batch_new(const RpBatcherOptions *options);
void rp_token_batch_free(RpTokenBatch *batch);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpTokenBatch, rp_token_batch_free)

/* @to: of the shape of @from */
void rp_token_batch_copy(RpTokenBatch *to, const RpTokenBatch *from);

/* The [b][s] ids and targets of micro-batch @m. */
const gint32 *rp_token_batch_input_ids(const RpTokenBatch *batch, guint m);
const gint32 *rp_token_batch_targets(const RpTokenBatch *batch, guint m);

/* In a packed batch: where the samples of micro-batch @m begin, one number a sample, and the end. */
const gint32 *rp_token_batch_starts(const RpTokenBatch *batch, guint m);

/* In a batch of preferences: RpAnswerKind of each of these, shared tokens, and the reference's log-probabilities. */
const guint8 *rp_token_batch_answers(const RpTokenBatch *batch, guint m);
const guint32 *rp_token_batch_shared(const RpTokenBatch *batch, guint m);
float *rp_token_batch_references(const RpTokenBatch *batch, guint m);

/**
 * rp_token_batch_set_references:
 * @references: [samples of the dataset][2]: log-probabilities of a sample's documents
 */
void rp_token_batch_set_references(RpTokenBatch *batch, const float *references);

/* The other way: @references of the samples of @batch, once it is scored. */
void rp_token_batch_get_references(const RpTokenBatch *batch, float *references);

/**
 * rp_batch_cut_first:
 * @split: of a sample of @n_tokens
 * @length: tokens that there is space for
 *
 * The shorter document keeps all of its tokens if these are at most half of the space that shared ones leave; the
 * longer one loses its end.
 *
 * Returns: tokens that stay of the first; the second has the rest of @length
 */
guint32 rp_batch_cut_first(RpSplit split, guint64 n_tokens, guint32 length);

/* Whether each of two documents that are cut so has something to learn. @sample: all of it */
gboolean rp_batch_cut_is_learned(const RpSample *sample, guint32 length);

typedef struct _RpBatcher RpBatcher;

/**
 * rp_batcher_new:
 * @dataset: must outlive the batcher
 * @options: M, b, s > 0; copied
 *
 * Stands at the first sample of epoch 0.
 *
 * Errors: %RP_DATASET_ERROR_BATCH if the padding id is not of the vocabulary, if
 *   %RP_EPOCH_END_DROP would drop every epoch as a whole, or with packing
 */
RpBatcher *rp_batcher_new(const RpDataset *dataset, const RpBatcherOptions *options,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_batcher_free(RpBatcher *batcher);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpBatcher, rp_batcher_free)

/**
 * rp_batcher_next:
 * @batch: of the batcher's shape; its contents are lost even if the call fails
 *
 * The next iteration, without samples once the epochs are over. On error the batcher stays where it
 * was.
 *
 * Errors: those of rp_dataset_read()
 */
gboolean rp_batcher_next(RpBatcher *batcher, RpTokenBatch *batch,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

RpBatchCounts rp_token_batch_counts(const RpTokenBatch *batch);

/**
 * rp_batcher_take_counts:
 * @batch: the last of rp_batcher_next()
 * @all: sums of all parts: the batch and the batcher's place have these then
 *
 * Only for a batcher with parts.
 */
void rp_batcher_take_counts(RpBatcher *batcher, RpTokenBatch *batch, const RpBatchCounts *all);

/**
 * rp_batcher_check_targets:
 * @batches: all of a step
 *
 * Whether a token of any of them has a target: else there is no loss to step by. A batch without
 * targets beside others that have some adds nothing.
 *
 * Errors: %RP_DATASET_ERROR_BATCH, naming samples of the first (its own part of them);
 *   rp_batcher_restore() leads back
 */
gboolean rp_batcher_check_targets(const RpBatcher *batcher, RpTokenBatch *const *batches,
                                  guint n_batches, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The batcher's place: the start of the next iteration, and sums over those before. */
RpDataState rp_batcher_state(const RpBatcher *batcher);

/**
 * rp_batcher_restore:
 * @state: of a batcher of the same dataset, seed and shuffling. Shapes may differ: a place is a
 *   number of samples.
 *
 * Errors: %RP_DATASET_ERROR_STATE naming the difference; the batcher stays where it was
 */
gboolean rp_batcher_restore(RpBatcher *batcher, const RpDataState *state,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;
