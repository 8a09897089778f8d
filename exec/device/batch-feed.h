/**
 * Carries tokens from the caller to the tasks of an iteration, and losses back. It is a ring of
 * calls; the caller fills a place before the tasks that read it are handed over, and reads the
 * losses after they have run. Tokens are copied: they are few beside all that a step moves, and a
 * batch is the caller's again at once.
 */
#pragma once

#include "exec/data/batch.h"

#define RP_BATCH_FEED_RING 16 /* iterations in flight at most */

/* One forward_backward(). */
typedef struct {
    guint64 iteration;
    guint call;           /* within the iteration */
    RpTokenBatch *batch;  /* the feed's copy; %NULL once it was let go */
    double *losses;       /* [M]: summed over the targets of a micro-batch */
    double *aux_losses;   /* [M]: auxiliary ones, times targets; 0 where there are none */
    gint32 *broken_layer; /* [M]: lowest layer whose output was not finite, or G_MAXINT32 */
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
