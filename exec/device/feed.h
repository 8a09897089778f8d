/**
 * What flows between the caller and the tasks of an iteration: tokens in, losses out. A ring of
 * calls; the caller fills a place before the tasks that read it are handed over, and reads the
 * losses after they have run. Tokens are copied: they are few beside all that a step moves, and a
 * batch is the caller's again at once.
 */
#pragma once

#include "exec/data/batch.h"

#define RP_FEED_RING 16 /* iterations in flight at most */

/* One forward_backward(). */
typedef struct {
    guint64 iteration;
    guint call;           /* within the iteration */
    RpTokenBatch *batch;  /* the feed's copy; %NULL once it was let go */
    double *losses;       /* [M]: summed over the targets of a micro-batch */
    gint32 *broken_layer; /* [M]: lowest layer whose output was not finite, or G_MAXINT32 */
} RpFeedCall;

typedef struct _RpFeed RpFeed;

/* @micro_batches: M of a call; @calls: of an iteration */
RpFeed *rp_feed_new(guint micro_batches, guint calls);
void rp_feed_free(RpFeed *feed);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpFeed, rp_feed_free)

/* Caller: takes the next place for a call, copies its tokens and resets its outputs. */
RpFeedCall *rp_feed_push(RpFeed *feed, guint64 iteration, guint call, const RpTokenBatch *batch);

/* Caller: the tasks of @iteration are over. What its tokens took is used for calls to come; its
 * losses stay. */
void rp_feed_let_go(RpFeed *feed, guint64 iteration);

/**
 * rp_feed_find:
 * @micro_batch: as in RpTask: counted over all calls of the iteration, call x M + m
 * @m: (out): within the call
 *
 * Tasks: the call that a task belongs to.
 */
RpFeedCall *rp_feed_find(RpFeed *feed, guint64 iteration, guint32 micro_batch, guint *m);

/* Tasks: the head of a micro-batch has run; @loss is stored. */
void rp_feed_set_loss(RpFeed *feed, RpFeedCall *call, guint m, double loss);

/* Caller: sleeps until every loss of @call is there, @timeout_ns at most. Returns: whether they are
 */
gboolean rp_feed_wait(RpFeed *feed, const RpFeedCall *call, gint64 timeout_ns);
