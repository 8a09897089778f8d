#include "tests/rp-test.h"

#include <pthread.h>

#include "exec/device/batch-feed.h"

#define M 3
#define CALLS 2

typedef struct {
    RpBatchFeed *feed;
    RpTokenBatch *batch;
} Fixture;

static void
set_up(Fixture *f)
{
    f->feed = rp_batch_feed_new(M, CALLS);
    f->batch =
        rp_token_batch_new(&(RpBatcherOptions){.micro_batches = M, .sequences = 1, .tokens = 2});
}

static void
tear_down(Fixture *f)
{
    rp_batch_feed_free(f->feed);
    rp_token_batch_free(f->batch);
}

RP_TEST_OF(finds_the_call_of_a_micro_batch, Fixture *f)
{
    RpBatchFeedCall *calls[RP_BATCH_FEED_RING][CALLS];
    guint m;

    for (guint64 i = 100; i < 100 + RP_BATCH_FEED_RING; i++)
        for (guint c = 0; c < CALLS; c++)
            calls[i - 100][c] = rp_batch_feed_push(f->feed, i, c, f->batch);
    for (guint64 i = 100; i < 100 + RP_BATCH_FEED_RING; i++)
        for (guint32 micro_batch = 0; micro_batch < M * CALLS; micro_batch++) {
            RpBatchFeedCall *call = rp_batch_feed_find(f->feed, i, micro_batch, &m);
            assert_ptr_equal(call, calls[i - 100][micro_batch / M]);
            assert_int_equal(m, micro_batch % M);
            assert_int_equal(call->iteration, i);
            assert_int_equal(call->call, micro_batch / M);
        }
}

RP_TEST_OF(forgets_what_a_place_held_before, Fixture *f)
{
    for (guint64 i = 0; i < 2; i++) {
        RpBatchFeedCall *call = rp_batch_feed_push(f->feed, i * RP_BATCH_FEED_RING, 1, f->batch);
        assert_false(rp_batch_feed_wait(f->feed, call, 1));
        for (guint m = 0; m < M; m++) {
            assert_true(call->losses[m] == 0);
            assert_int_equal(call->broken_layer[m], G_MAXINT32);
            call->broken_layer[m] = 1;
            rp_batch_feed_set_loss(f->feed, call, m, 7);
        }
        assert_true(rp_batch_feed_wait(f->feed, call, 1));
    }
}

/* There are as many copies as iterations in flight, however many there are in all. */
RP_TEST_OF(copies_tokens_into_room_of_calls_that_are_over, Fixture *f)
{
    g_autoptr(GHashTable) rooms = g_hash_table_new(NULL, NULL);

    for (guint64 i = 0; i < 4 * RP_BATCH_FEED_RING; i++) {
        if (i >= 2)
            rp_batch_feed_let_go(f->feed, i - 2);
        for (guint c = 0; c < CALLS; c++) {
            f->batch->input_ids[M] = (gint32)i;
            const RpBatchFeedCall *call = rp_batch_feed_push(f->feed, i, c, f->batch);
            f->batch->input_ids[M] = -1;
            assert_int_equal(call->batch->input_ids[M], i);
            g_hash_table_add(rooms, call->batch);
        }
    }
    assert_int_equal(g_hash_table_size(rooms), 2 * CALLS);
}

static void *
set_losses(void *data)
{
    Fixture *f = data;
    RpBatchFeedCall *call;
    guint at;

    for (guint32 m = 0; m < M; m++) {
        call = rp_batch_feed_find(f->feed, 5, m, &at);
        rp_batch_feed_set_loss(f->feed, call, at, m + 0.5);
    }
    return NULL;
}

RP_TEST_OF(wakes_who_waits_for_losses, Fixture *f)
{
    RpBatchFeedCall *call = rp_batch_feed_push(f->feed, 5, 0, f->batch);
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, set_losses, f), 0);
    const gboolean there = rp_batch_feed_wait(f->feed, call, G_GINT64_CONSTANT(100000000000));
    pthread_join(thread, NULL);
    assert_true(there);
    for (guint m = 0; m < M; m++)
        assert_true(call->losses[m] == m + 0.5);
}

RP_TEST_STATE(Fixture, set_up, tear_down)
