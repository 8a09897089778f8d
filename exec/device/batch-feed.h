/**
 * Carries tokens from the caller to the tasks of an iteration, and losses back. It is a ring of
 * calls; the caller fills a place before the tasks that read it are handed over, and reads the
 * losses after they have run. Tokens are copied: they are few beside all that a step moves, and a
 * batch is the caller's again at once.
 */
#pragma once

#include <glib.h>

#include "exec/data/batch.h"

#define RP_BATCH_FEED_RING 16 /* iterations in flight at most */

/* One forward_backward(). */
typedef struct {
    guint64 iteration;
    guint call;             /* within the iteration */
    RpTokenBatch *batch;    /* the feed's copy; %NULL once it was let go */
    double *losses;         /* [M]: summed over the targets of a micro-batch */
    double *aux_losses;     /* [M]: auxiliary ones, times targets; 0 where there are none */
    RpPreferenceSums *sums; /* [M]: of a preference */
    /* A forward whose documents' log-probabilities take the place of the batch's references: */
    gboolean scores;
    gboolean by_reference; /* by the reference, not by the newest weights */
    gint32 *broken_layer;  /* [M]: lowest layer whose output was not finite, or G_MAXINT32 */
} RpBatchFeedCall;

typedef struct _RpBatchFeed RpBatchFeed;

/* @micro_batches: M of a call; @calls: of an iteration */
RpBatchFeed *rp_batch_feed_new(guint micro_batches, guint calls);
void rp_batch_feed_free(RpBatchFeed *feed);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpBatchFeed, rp_batch_feed_free)

/* Caller: takes the next place for a call, copies its tokens and resets its outputs. */
RpBatchFeedCall *rp_batch_feed_push(RpBatchFeed *feed, guint64 iteration, guint call,
                                    const RpTokenBatch *batch);

/* Caller: the tasks of @iteration are over. The memory of its tokens is used for later calls; its
 * losses stay. */
void rp_batch_feed_let_go(RpBatchFeed *feed, guint64 iteration);

/**
 * rp_batch_feed_find:
 * @micro_batch: as in RpTask: counted over all calls of the iteration, call x M + m
 * @m: (out): within the call
 *
 * Tasks: the call that a task belongs to.
 */
RpBatchFeedCall *rp_batch_feed_find(RpBatchFeed *feed, guint64 iteration, guint32 micro_batch,
                                    guint *m);

/* Tasks: the head of a micro-batch has run; @loss is stored. */
void rp_batch_feed_set_loss(RpBatchFeed *feed, RpBatchFeedCall *call, guint m, double loss);

/* Caller: sleeps until every loss of @call is there, @timeout_ns at most. Returns: whether they
 * are */
gboolean rp_batch_feed_wait(RpBatchFeed *feed, const RpBatchFeedCall *call, gint64 timeout_ns);

/*
 * Targets of a micro-batch without masked ones, which the head need not compute. Filled up
 * with some that are, to a multiple of a step, so that few sizes occur however many are masked: a
 * GPU has a plan for each size of a matmul.
 *
 *   targets   b  -100  d   e  -100       rows    0 2 3 |    1
 *                                        packed  b d e | -100     with a step of 2
 *
 * The step is the largest power of two that is at most a sixteenth of all, at most 128.
 */

#define RP_TARGETS_ALL G_MAXUINT

/* Share of all tokens that the head computes where @share of them have a target. */
double rp_targets_share(double share);

/**
 * rp_targets_pack:
 * @targets: (array length=n): ids, or RP_LABEL_MASKED
 * @packed, @rows: (out) (array length=n): space for as many. Ids in their order, then as many
 *   masked ones as fill the step, the first of all; no row twice. If there are no ids nothing is
 *   added
 *
 * Does nothing where less than a sixteenth is masked, as where only the last token of each sequence
 * is: moving rows would cost more than they do.
 *
 * Returns: how many were packed, masked ones included, or %RP_TARGETS_ALL
 */
guint rp_targets_pack(const gint32 *targets, guint n, gint32 *packed, gint32 *rows);
