#include "exec/device/batch-feed.h"

#include "exec/kernels/kernels.h"
#include "exec/system/clock.h"

#define LEAST_SHARE 16
#define MOST_STEP 128 /* rows: a tile of a matmul */

/* At most n / LEAST_SHARE; at least as many are masked, so that there are enough to fill up with. */
static guint
step_of(guint n)
{
    guint step = 1;

    while (step < MOST_STEP && 2 * step <= n / LEAST_SHARE)
        step *= 2;
    return step;
}

double
rp_targets_share(double share)
{
    return share > 1 - 1.0 / LEAST_SHARE ? 1 : share;
}

guint
rp_targets_pack(const gint32 *targets, guint n, gint32 *packed, gint32 *rows)
{
    const guint step = step_of(n);
    guint n_masked = 0, n_packed = 0;

    for (guint i = 0; i < n; i++)
        n_masked += targets[i] == RP_LABEL_MASKED;
    if (n_masked == 0 || n_masked < n / LEAST_SHARE)
        return RP_TARGETS_ALL;
    for (guint i = 0; i < n; i++) {
        if (targets[i] == RP_LABEL_MASKED)
            continue;
        packed[n_packed] = targets[i];
        rows[n_packed++] = (gint32)i;
    }
    for (guint i = 0; n_packed % step != 0; i++) {
        g_assert(i < n);
        if (targets[i] != RP_LABEL_MASKED)
            continue;
        packed[n_packed] = RP_LABEL_MASKED;
        rows[n_packed++] = (gint32)i;
    }
    return n_packed;
}

struct _RpBatchFeed {
    guint micro_batches;
    guint n_calls;          /* calls of an iteration */
    RpBatchFeedCall *calls; /* [RP_BATCH_FEED_RING][n_calls] */
    double *losses;         /* [RP_BATCH_FEED_RING][n_calls][M] */
    double *aux_losses;
    RpPreferenceSums *sums; /* likewise */
    gint32 *broken_layer;
    GPtrArray *spare; /* RpTokenBatch: of calls that are over */
    guint *n_losses;  /* [RP_BATCH_FEED_RING][n_calls]: that are stored; under the lock */
    pthread_mutex_t lock;
    pthread_cond_t all_there; /* losses of a call */
};

RpBatchFeed *
rp_batch_feed_new(guint micro_batches, guint calls)
{
    g_return_val_if_fail(micro_batches > 0 && calls > 0, NULL);

    const gsize n = RP_BATCH_FEED_RING * (gsize)calls;
    const gsize n_values = n * micro_batches;
    RpBatchFeed *feed = g_new0(RpBatchFeed, 1);

    feed->micro_batches = micro_batches;
    feed->n_calls = calls;
    feed->calls = g_new0(RpBatchFeedCall, n);
    feed->losses = g_new0(double, n_values);
    feed->aux_losses = g_new0(double, n_values);
    feed->sums = g_new0(RpPreferenceSums, n_values);
    feed->broken_layer = g_new0(gint32, n_values);
    feed->n_losses = g_new0(guint, n);
    feed->spare = g_ptr_array_new_with_free_func((GDestroyNotify)rp_token_batch_free);
    for (gsize i = 0; i < n; i++) {
        feed->calls[i].losses = feed->losses + i * micro_batches;
        feed->calls[i].aux_losses = feed->aux_losses + i * micro_batches;
        feed->calls[i].sums = feed->sums + i * micro_batches;
        feed->calls[i].broken_layer = feed->broken_layer + i * micro_batches;
    }
    pthread_mutex_init(&feed->lock, NULL);
    rp_clock_init_cond(&feed->all_there);
    return feed;
}

void
rp_batch_feed_free(RpBatchFeed *feed)
{
    if (feed == NULL)
        return;
    pthread_cond_destroy(&feed->all_there);
    pthread_mutex_destroy(&feed->lock);
    for (gsize i = 0; i < RP_BATCH_FEED_RING * (gsize)feed->n_calls; i++)
        rp_token_batch_free(feed->calls[i].batch);
    g_ptr_array_unref(feed->spare);
    g_free(feed->n_losses);
    g_free(feed->broken_layer);
    g_free(feed->sums);
    g_free(feed->aux_losses);
    g_free(feed->losses);
    g_free(feed->calls);
    g_free(feed);
}

static gsize
place_of(const RpBatchFeed *feed, guint64 iteration, guint call)
{
    return iteration % RP_BATCH_FEED_RING * feed->n_calls + call;
}

/* A place for tokens: the one that @call had, or one of a call that is over, or a new one. */
static RpTokenBatch *
take_space(RpBatchFeed *feed, RpBatchFeedCall *call, const RpTokenBatch *batch)
{
    const RpBatcherOptions shape = {.micro_batches = batch->micro_batches,
                                    .sequences = batch->sequences,
                                    .tokens = batch->tokens,
                                    .packing = batch->packed,
                                    .preference = batch->preference};

    if (call->batch != NULL)
        return call->batch;
    if (feed->spare->len > 0)
        return g_ptr_array_steal_index_fast(feed->spare, feed->spare->len - 1);
    return rp_token_batch_new(&shape);
}

void
rp_batch_feed_let_go(RpBatchFeed *feed, guint64 iteration)
{
    for (guint c = 0; c < feed->n_calls; c++) {
        RpBatchFeedCall *call = &feed->calls[place_of(feed, iteration, c)];

        if (call->batch != NULL)
            g_ptr_array_add(feed->spare, g_steal_pointer(&call->batch));
    }
}

RpBatchFeedCall *
rp_batch_feed_push(RpBatchFeed *feed, guint64 iteration, guint call, const RpTokenBatch *batch)
{
    g_return_val_if_fail(call < feed->n_calls, NULL);
    g_return_val_if_fail(batch->micro_batches == feed->micro_batches, NULL);

    const gsize place = place_of(feed, iteration, call);
    RpBatchFeedCall *pushed = &feed->calls[place];

    pushed->iteration = iteration;
    pushed->call = call;
    pushed->scores = pushed->by_reference = FALSE;
    pushed->batch = take_space(feed, pushed, batch);
    rp_token_batch_copy(pushed->batch, batch);
    for (guint m = 0; m < feed->micro_batches; m++) {
        pushed->losses[m] = pushed->aux_losses[m] = 0;
        pushed->broken_layer[m] = G_MAXINT32;
        pushed->sums[m] = (RpPreferenceSums){0};
    }
    pthread_mutex_lock(&feed->lock);
    feed->n_losses[place] = 0;
    pthread_mutex_unlock(&feed->lock);
    return pushed;
}

RpBatchFeedCall *
rp_batch_feed_find(RpBatchFeed *feed, guint64 iteration, guint32 micro_batch, guint *m)
{
    const guint call = micro_batch / feed->micro_batches;

    g_assert(call < feed->n_calls);
    RpBatchFeedCall *found = &feed->calls[place_of(feed, iteration, call)];
    g_assert(found->iteration == iteration && found->call == call);
    *m = micro_batch % feed->micro_batches;
    return found;
}

void
rp_batch_feed_set_loss(RpBatchFeed *feed, RpBatchFeedCall *call, guint m, double loss)
{
    pthread_mutex_lock(&feed->lock);
    call->losses[m] = loss;
    if (++feed->n_losses[call - feed->calls] == feed->micro_batches)
        pthread_cond_broadcast(&feed->all_there);
    pthread_mutex_unlock(&feed->lock);
}

gboolean
rp_batch_feed_wait(RpBatchFeed *feed, const RpBatchFeedCall *call, gint64 timeout_ns)
{
    const guint *n_losses = &feed->n_losses[call - feed->calls];
    const gint64 until_ns = rp_clock_ns() + timeout_ns;

    pthread_mutex_lock(&feed->lock);
    while (*n_losses < feed->micro_batches &&
           rp_clock_wait(&feed->all_there, &feed->lock, until_ns))
        ;
    gboolean there = *n_losses == feed->micro_batches;
    pthread_mutex_unlock(&feed->lock);
    return there;
}
