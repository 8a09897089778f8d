#include "tests/rp-test.h"

#include "exec/data/batch.h"

#define N_SAMPLES 23
#define N_ITERATIONS 40

typedef struct {
    RpDataset *dataset;
    RpDataset *other;
    RpBatcher *batcher;
    RpBatcher *resumed;
    RpTokenBatch *batch;
    RpTokenBatch *again;
    GError *error;
} Fixture;

/* Samples of 2 to 6 tokens, of which some are masked. */
static RpDataset *
make_dataset(guint n_samples, GError **error)
{
    g_autoptr(GString) text = g_string_new(NULL);

    for (guint i = 0; i < n_samples; i++) {
        guint length = 2 + i % 5;
        g_string_append(text, "{\"input_ids\":[");
        for (guint t = 0; t < length; t++)
            g_string_append_printf(text, "%s%u", t ? "," : "", (i * 7 + t) % 100);
        g_string_append(text, "],\"labels\":[");
        for (guint t = 0; t < length; t++)
            g_string_append_printf(text, "%s%d", t ? "," : "", t % 3 == 2 ? -100 : (int)t);
        g_string_append(text, "]}\n");
    }
    g_autoptr(GBytes) bytes = g_bytes_new(text->str, text->len);
    return rp_dataset_new_jsonl("FILE", bytes, 100, error);
}

static void
setup(Fixture *f)
{
    f->dataset = make_dataset(N_SAMPLES, &f->error);
    assert_true(f->dataset != NULL);
}

static void
teardown(Fixture *f)
{
    rp_token_batch_free(f->batch);
    rp_token_batch_free(f->again);
    rp_batcher_free(f->batcher);
    rp_batcher_free(f->resumed);
    rp_dataset_free(f->dataset);
    rp_dataset_free(f->other);
    g_clear_error(&f->error);
}

static const RpBatcherOptions usual = {
    .micro_batches = 2, .sequences = 2, .tokens = 5, .pad_id = 1, .shuffle = TRUE, .seed = 1234};

static void
restart(Fixture *f, const RpDataset *dataset, const RpBatcherOptions *options)
{
    g_clear_pointer(&f->resumed, rp_batcher_free);
    g_clear_pointer(&f->again, rp_token_batch_free);
    f->resumed = rp_must(rp_batcher_new, dataset, options);
    f->again = rp_token_batch_new(options);
}

static void
next(RpBatcher *batcher, RpTokenBatch *batch, GError **error)
{
    gboolean good = rp_batcher_next(batcher, batch, error);

    rp_assert_no_error(*error);
    assert_true(good);
}

static void
assert_same_batch(const RpTokenBatch *a, const RpTokenBatch *b)
{
    gsize n_rows = (gsize)a->micro_batches * a->sequences;
    gsize n_places = n_rows * a->tokens;

    assert_memory_equal(a->input_ids, b->input_ids, n_places * sizeof *a->input_ids);
    assert_memory_equal(a->targets, b->targets, n_places * sizeof *a->targets);
    assert_memory_equal(a->lengths, b->lengths, n_rows * sizeof *a->lengths);
    assert_memory_equal(a->samples, b->samples, n_rows * sizeof *a->samples);
    assert_memory_equal(a->n_micro_targets, b->n_micro_targets,
                        a->micro_batches * sizeof *a->n_micro_targets);
    assert_int_equal(a->n_targets, b->n_targets);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->n_truncated, b->n_truncated);
    assert_int_equal(a->n_cut_tokens, b->n_cut_tokens);
    assert_int_equal(a->n_without_targets, b->n_without_targets);
    assert_int_equal(a->epoch, b->epoch);
}

static void
assert_same_state(const RpBatcher *a, const RpBatcher *b)
{
    RpDataState first = rp_batcher_state(a), second = rp_batcher_state(b);
    g_autofree char *first_text = rp_data_state_to_json(&first);
    g_autofree char *second_text = rp_data_state_to_json(&second);

    assert_string_equal(first_text, second_text);
}

/* Through text, as a checkpoint has it. */
static void
carry_over(const RpBatcher *from, RpBatcher *to, GError **error)
{
    RpDataState saved = rp_batcher_state(from), loaded;
    g_autofree char *text = rp_data_state_to_json(&saved);

    assert_true(rp_data_state_parse("FILE", text, strlen(text), &loaded, error));
    assert_true(rp_batcher_restore(to, &loaded, error));
}

RP_TEST_OF(gives_the_same_bytes_for_the_same_seed, Fixture *f)
{
    f->batch = rp_token_batch_new(&usual);
    f->batcher = rp_batcher_new(f->dataset, &usual, &f->error);
    restart(f, f->dataset, &usual);
    for (guint i = 0; i < N_ITERATIONS; i++) {
        next(f->batcher, f->batch, &f->error);
        next(f->resumed, f->again, &f->error);
        assert_same_batch(f->batch, f->again);
    }
}

/* Stops after every iteration of several epochs and continues for several more. */
RP_TEST_OF(resumes_anywhere_as_if_never_stopped, Fixture *f)
{
    for (guint variant = 0; variant < 4; variant++) {
        RpBatcherOptions options = usual;
        options.shuffle = variant & 1;
        options.epoch_end = variant & 2 ? RP_EPOCH_END_DROP : RP_EPOCH_END_CONTINUE;
        g_clear_pointer(&f->batch, rp_token_batch_free);
        f->batch = rp_token_batch_new(&options);
        for (guint stop = 0; stop < N_ITERATIONS; stop++) {
            g_clear_pointer(&f->batcher, rp_batcher_free);
            f->batcher = rp_batcher_new(f->dataset, &options, &f->error);
            for (guint i = 0; i < stop; i++)
                next(f->batcher, f->batch, &f->error);
            restart(f, f->dataset, &options);
            carry_over(f->batcher, f->resumed, &f->error);
            for (guint i = 0; i < N_SAMPLES; i++) {
                next(f->batcher, f->batch, &f->error);
                next(f->resumed, f->again, &f->error);
                assert_same_batch(f->batch, f->again);
                assert_same_state(f->batcher, f->resumed);
            }
        }
    }
}

/* One sample at a time, so that every position of an epoch is a place to stop. */
RP_TEST_OF(resumes_at_every_position, Fixture *f)
{
    RpBatcherOptions options = usual;
    guint64 order[3 * N_SAMPLES];

    options.micro_batches = options.sequences = 1;
    f->batch = rp_token_batch_new(&options);
    f->batcher = rp_batcher_new(f->dataset, &options, &f->error);
    RpDataState places[3 * N_SAMPLES];
    for (guint i = 0; i < 3 * N_SAMPLES; i++) {
        places[i] = rp_batcher_state(f->batcher);
        next(f->batcher, f->batch, &f->error);
        order[i] = f->batch->samples[0];
    }
    for (guint i = 0; i < 3 * N_SAMPLES; i++) {
        restart(f, f->dataset, &options);
        assert_true(rp_batcher_restore(f->resumed, &places[i], &f->error));
        for (guint k = i; k < 3 * N_SAMPLES; k++) {
            next(f->resumed, f->again, &f->error);
            assert_int_equal(f->again->samples[0], order[k]);
        }
    }
}

/* The order is one of samples: how they are cut into iterations does not change it. */
RP_TEST_OF(keeps_the_order_in_another_shape, Fixture *f)
{
    RpBatcherOptions one = usual;

    one.micro_batches = one.sequences = 1;
    f->batch = rp_token_batch_new(&usual);
    f->batcher = rp_batcher_new(f->dataset, &usual, &f->error);
    restart(f, f->dataset, &one);
    for (guint i = 0; i < N_ITERATIONS; i++) {
        carry_over(f->batcher, f->resumed, &f->error);
        next(f->batcher, f->batch, &f->error);
        for (guint row = 0; row < 4; row++) {
            next(f->resumed, f->again, &f->error);
            assert_int_equal(f->again->samples[0], f->batch->samples[row]);
            assert_memory_equal(f->again->input_ids, f->batch->input_ids + row * 5, 20);
            assert_memory_equal(f->again->targets, f->batch->targets + row * 5, 20);
        }
    }
}

RP_TEST_OF(refuses_a_place_in_other_data, Fixture *f)
{
    RpBatcherOptions options = usual;

    f->batcher = rp_batcher_new(f->dataset, &usual, &f->error);
    RpDataState saved = rp_batcher_state(f->batcher);

    f->other = make_dataset(N_SAMPLES + 1, &f->error);
    restart(f, f->other, &usual);
    assert_false(rp_batcher_restore(f->resumed, &saved, &f->error));
    assert_true(g_error_matches(f->error, RP_DATASET_ERROR, RP_DATASET_ERROR_STATE));
    assert_string_equal(f->error->message, "FILE: cannot resume: expected the number of samples 23 "
                                           "as in the checkpoint, found 24");
    g_clear_error(&f->error);

    RpDataState changed = saved;
    changed.fingerprint ^= 1;
    rp_refuses("made into samples by the same version, of fingerprint", rp_batcher_restore,
               f->batcher, &changed);

    changed = saved;
    changed.position = N_SAMPLES + 1;
    rp_refuses("expected a position of at most 23", rp_batcher_restore, f->batcher, &changed);

    options.seed++;
    restart(f, f->dataset, &options);
    rp_refuses("expected the seed 1234 as in the checkpoint, "
               "found 1235",
               rp_batcher_restore, f->resumed, &saved);

    options = usual;
    options.shuffle = FALSE;
    restart(f, f->dataset, &options);
    rp_refuses("expected shuffling 1 as in the checkpoint, found 0", rp_batcher_restore, f->resumed,
               &saved);
}

RP_TEST_STATE(Fixture, setup, teardown)
