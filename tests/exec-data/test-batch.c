#include "tests/rp-test.h"

#include "exec/data/pack.h"
#include "tests/exec-data/batch-fixture.h"

/* A dataset of @text and a batcher of @options over it; FALSE if there is no batcher. */
static gboolean
start(RpBatchFixture *f, const char *text, const RpBatcherOptions *options)
{
    rp_batch_fixture_clear(f);
    g_autoptr(GBytes) bytes = g_bytes_new(text, strlen(text));
    f->dataset = rp_must(rp_dataset_new_jsonl, "FILE", bytes, 100);
    f->batch = rp_token_batch_new(options);
    f->batcher = rp_batcher_new(f->dataset, options, &f->error);
    return f->batcher != NULL;
}

/* Lines {"input_ids":[i, i + 1]} for i below @n. (transfer full) */
static char *
make_pairs(guint n)
{
    GString *text = g_string_new(NULL);

    for (guint i = 0; i < n; i++)
        g_string_append_printf(text, "{\"input_ids\":[%u,%u]}\n", i, i + 1);
    return g_string_free(text, FALSE);
}

RP_TEST_OF(shifts_pads_and_cuts, RpBatchFixture *f)
{
    const RpBatcherOptions options = {
        .micro_batches = 2, .sequences = 2, .tokens = 4, .pad_id = 99};

    assert_true(start(f,
                      "{\"input_ids\":[1,2,3,4]}\n"
                      "{\"input_ids\":[5,6]}\n"
                      "{\"input_ids\":[7,8,9,10,11,12]}\n"
                      "{\"input_ids\":[13,14,15],\"labels\":[13,-100,16]}\n",
                      &options));
    rp_batch_fixture_next(f);
    const gint32 *ids = rp_token_batch_input_ids(f->batch, 0);
    const gint32 *targets = rp_token_batch_targets(f->batch, 0);
    rp_assert_row(ids, 8, (const gint32[]){1, 2, 3, 4, 5, 6, 99, 99});
    rp_assert_row(targets, 8, (const gint32[]){2, 3, 4, -100, 6, -100, -100, -100});
    ids = rp_token_batch_input_ids(f->batch, 1);
    targets = rp_token_batch_targets(f->batch, 1);
    /* 11 was cut off: it is no target of 10 */
    rp_assert_row(ids, 8, (const gint32[]){7, 8, 9, 10, 13, 14, 15, 99});
    rp_assert_row(targets, 8, (const gint32[]){8, 9, 10, -100, -100, 16, -100, -100});
    assert_int_equal(f->batch->n_micro_targets[0], 4);
    assert_int_equal(f->batch->n_micro_targets[1], 4);
    assert_int_equal(f->batch->n_targets, 8);
    assert_int_equal(f->batch->n_tokens, 13);
    assert_int_equal(f->batch->n_truncated, 1);
    assert_int_equal(f->batch->n_cut_tokens, 2);
    assert_int_equal(f->batch->n_without_targets, 0);
    for (guint row = 0; row < 4; row++)
        assert_int_equal(f->batch->samples[row], row);
    assert_int_equal(f->batch->lengths[1], 2);
    assert_int_equal(f->batch->lengths[2], 4);
}

RP_TEST_OF(sums_up_over_iterations, RpBatchFixture *f)
{
    const RpBatcherOptions options = {.micro_batches = 1, .sequences = 1, .tokens = 2};

    assert_true(start(f, "{\"input_ids\":[1,2,3,4]}\n{\"input_ids\":[5,6]}\n", &options));
    for (guint i = 0; i < 5; i++)
        rp_batch_fixture_next(f);
    RpDataState sums = rp_batcher_state(f->batcher);
    assert_int_equal(sums.n_iterations, 5);
    assert_int_equal(sums.n_tokens, 10);
    assert_int_equal(sums.n_targets, 5);
    assert_int_equal(sums.n_truncated, 3);
    assert_int_equal(sums.n_cut_tokens, 6);
    assert_int_equal(sums.n_dropped, 0);
    assert_int_equal(sums.epoch, 2);
    assert_int_equal(sums.position, 1);
}

RP_TEST_OF(goes_on_with_the_next_epoch, RpBatchFixture *f)
{
    const RpBatcherOptions options = {.micro_batches = 2, .sequences = 2, .tokens = 2};
    g_autofree char *text = make_pairs(6);

    assert_true(start(f, text, &options));
    for (guint i = 0; i < 6; i++) {
        rp_batch_fixture_next(f);
        assert_int_equal(f->batch->epoch, i * 4 / 6);
        for (guint row = 0; row < 4; row++)
            assert_int_equal(f->batch->samples[row], (i * 4 + row) % 6);
    }
}

RP_TEST_OF(drops_what_does_not_fill_an_iteration, RpBatchFixture *f)
{
    const RpBatcherOptions options = {
        .micro_batches = 2, .sequences = 2, .tokens = 2, .epoch_end = RP_EPOCH_END_DROP};
    g_autofree char *text = make_pairs(6);

    assert_true(start(f, text, &options));
    for (guint i = 0; i < 3; i++) {
        rp_batch_fixture_next(f);
        assert_int_equal(f->batch->epoch, i);
        for (guint row = 0; row < 4; row++)
            assert_int_equal(f->batch->samples[row], row);
    }
    assert_int_equal(rp_batcher_state(f->batcher).n_dropped, 4);
}

RP_TEST_OF(takes_several_epochs_in_one_iteration, RpBatchFixture *f)
{
    const RpBatcherOptions options = {
        .micro_batches = 7, .sequences = 1, .tokens = 2, .shuffle = TRUE, .seed = 3};
    g_autofree char *text = make_pairs(3);
    guint counts[3] = {0};

    assert_true(start(f, text, &options));
    rp_batch_fixture_next(f);
    for (guint row = 0; row < 6; row++)
        counts[f->batch->samples[row]]++;
    for (guint i = 0; i < 3; i++)
        assert_int_equal(counts[i], 2);
    assert_int_equal(rp_batcher_state(f->batcher).epoch, 2);
}

RP_TEST_OF(shuffles_each_epoch_anew, RpBatchFixture *f)
{
    const RpBatcherOptions options = {
        .micro_batches = 2, .sequences = 2, .tokens = 2, .shuffle = TRUE, .seed = 8};
    g_autofree char *text = make_pairs(6);
    RpOrder order;

    assert_true(start(f, text, &options));
    for (guint i = 0; i < 9; i++) {
        rp_batch_fixture_next(f);
        for (guint row = 0; row < 4; row++) {
            guint at = i * 4 + row;
            rp_order_init(&order, 6, TRUE, 8, at / 6);
            assert_int_equal(f->batch->samples[row], rp_order_sample(&order, at % 6));
        }
    }
}

RP_TEST_OF(refuses_an_epoch_smaller_than_an_iteration_if_it_drops, RpBatchFixture *f)
{
    const RpBatcherOptions options = {
        .micro_batches = 2, .sequences = 2, .tokens = 2, .epoch_end = RP_EPOCH_END_DROP};
    g_autofree char *text = make_pairs(3);

    assert_false(start(f, text, &options));
    assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH));
    rp_assert_error_message_contains(f->error, "expected at least one iteration of 4 samples");
    rp_assert_error_message_contains(f->error, "found 3 samples");
}

RP_TEST_OF(refuses_padding_beyond_the_vocabulary, RpBatchFixture *f)
{
    static const gint32 pads[] = {-1, 100, G_MAXINT32};

    for (gsize i = 0; i < G_N_ELEMENTS(pads); i++) {
        const RpBatcherOptions options = {
            .micro_batches = 1, .sequences = 1, .tokens = 2, .pad_id = pads[i]};
        assert_false(start(f, "{\"input_ids\":[1,2]}", &options));
        rp_assert_error_message_contains(f->error, "FILE: expected a padding id from 0 to 99");
    }
}

RP_TEST_OF(takes_a_masked_micro_batch_among_others, RpBatchFixture *f)
{
    const RpBatcherOptions options = {.micro_batches = 2, .sequences = 1, .tokens = 3};

    assert_true(start(f,
                      "{\"input_ids\":[1,2,3],\"labels\":[-100,-100,-100]}\n"
                      "{\"input_ids\":[1,2,3],\"labels\":[-100,-100,3]}\n",
                      &options));
    rp_batch_fixture_next(f);
    assert_int_equal(f->batch->n_micro_targets[0], 0);
    assert_int_equal(f->batch->n_micro_targets[1], 1);
    assert_int_equal(f->batch->n_targets, 1);
    assert_int_equal(f->batch->n_without_targets, 1);
}

RP_TEST_OF(names_the_samples_of_a_step_without_targets, RpBatchFixture *f)
{
    RpBatcherOptions options = {.micro_batches = 1, .sequences = 2, .tokens = 3};
    /* masked; a label of the first token, which nothing predicts; one token; labels cut off */
    const char *text = "{\"input_ids\":[1,2,3],\"labels\":[-100,-100,-100]}\n"
                       "{\"input_ids\":[1,2,3],\"labels\":[1,-100,-100]}\n"
                       "{\"input_ids\":[1]}\n"
                       "{\"input_ids\":[1,2,3,4],\"labels\":[-100,-100,-100,4]}\n";

    assert_true(start(f, text, &options));
    rp_batch_fixture_next(f);
    assert_false(rp_batcher_check_targets(f->batcher, &f->batch, 1, &f->error));
    assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_BATCH));
    rp_assert_error_message_contains(f->error, "FILE: iteration 1: expected at least one label");
    rp_assert_error(&f->error, "found none in line 1, line 2");

    options.micro_batches = 5;
    assert_true(start(f, text, &options));
    rp_batch_fixture_next(f);
    rp_refuses("line 3, line 4, line 1, line 2, line 3, line 4 "
               "and 2 more",
               rp_batcher_check_targets, f->batcher, &f->batch, 1);
}

/* A batch of a step may have none if another of its batches has one. */
RP_TEST_OF(takes_a_step_with_a_target_in_one_batch, RpBatchFixture *f)
{
    const RpBatcherOptions options = {.micro_batches = 1, .sequences = 1, .tokens = 3};
    g_autoptr(RpTokenBatch) second = rp_token_batch_new(&options);

    assert_true(start(f,
                      "{\"input_ids\":[1,2,3],\"labels\":[-100,-100,-100]}\n"
                      "{\"input_ids\":[1,2,3],\"labels\":[-100,2,-100]}\n",
                      &options));
    rp_batch_fixture_next(f);
    assert_true(rp_batcher_next(f->batcher, second, &f->error));
    RpTokenBatch *const both[] = {f->batch, second};
    assert_int_equal(f->batch->n_targets, 0);
    assert_true(rp_batcher_check_targets(f->batcher, both, 2, &f->error));
    assert_false(rp_batcher_check_targets(f->batcher, both, 1, &f->error));
    g_clear_error(&f->error);
}

RP_TEST_OF(stays_where_it_was_if_a_sample_is_bad, RpBatchFixture *f)
{
    const RpBatcherOptions options = {.micro_batches = 1, .sequences = 2, .tokens = 2};

    assert_true(start(f, "{\"input_ids\":[1,2]}\n{\"input_ids\":[1,2]}\n{\"input_ids\":[1]}\n{}\n",
                      &options));
    rp_batch_fixture_next(f);
    for (guint attempt = 0; attempt < 2; attempt++) {
        rp_refuses("FILE: line 4, column 1: input_ids: expected an array", rp_batcher_next,
                   f->batcher, f->batch);
        RpDataState here = rp_batcher_state(f->batcher);
        assert_int_equal(here.position, 2);
        assert_int_equal(here.n_iterations, 1);
        assert_int_equal(here.n_tokens, 4);
    }
}

RP_TEST_OF(reads_token_files_too, RpBatchFixture *f)
{
    const RpBatcherOptions options = {.micro_batches = 1, .sequences = 2, .tokens = 3};
    static const guint8 words[7 * 4] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0,
                                        0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0};
    g_autoptr(GBytes) bytes = g_bytes_new_static(words, sizeof words);

    f->dataset = rp_dataset_new_tokens("FILE", bytes, 8, 3, &f->error);
    f->batch = rp_token_batch_new(&options);
    f->batcher = rp_batcher_new(f->dataset, &options, &f->error);
    rp_batch_fixture_next(f);
    rp_assert_row(f->batch->input_ids, 6, (const gint32[]){1, 2, 3, 4, 5, 6});
    rp_assert_row(f->batch->targets, 6, (const gint32[]){2, 3, -100, 5, 6, -100});
    assert_int_equal(f->batch->n_targets, 4);
}

RP_TEST_FIXTURE(rp_batch_fixture_setup, rp_batch_fixture_teardown)
