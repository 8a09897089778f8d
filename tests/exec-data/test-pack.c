#include "tests/rp-test.h"

#include "tests/exec-data/batch-fixture.h"

static void
make_batcher(RpBatchFixture *f, const RpBatcherOptions *options)
{
    g_clear_pointer(&f->batch, rp_token_batch_free);
    g_clear_pointer(&f->batcher, rp_batcher_free);
    f->batch = rp_token_batch_new(options);
    f->batcher = rp_must(rp_batcher_new, f->dataset, options);
    assert_non_null(f->batcher);
}

/* Sample i has @lengths[i] tokens, all of them i; read once as a run does. */
static void
start(RpBatchFixture *f, const guint *lengths, guint n, const RpBatcherOptions *options)
{
    g_autoptr(GString) text = g_string_new(NULL);
    RpDatasetSummary summary;

    rp_batch_fixture_clear(f);
    for (guint i = 0; i < n; i++) {
        g_string_append(text, "{\"input_ids\":[");
        for (guint t = 0; t < lengths[i]; t++)
            g_string_append_printf(text, "%s%u", t > 0 ? "," : "", i);
        g_string_append(text, "]}\n");
    }
    g_autoptr(GBytes) bytes = g_bytes_new(text->str, text->len);
    f->dataset = rp_must(rp_dataset_new_jsonl, "FILE", bytes, 1000);
    assert_true(rp_dataset_check(f->dataset, options->tokens, NULL, NULL, &summary, &f->error));
    make_batcher(f, options);
}

/* The drawing in pack.h. */
RP_TEST_OF(puts_the_next_where_it_fits_first, RpBatchFixture *f)
{
    const guint lengths[] = {5, 4, 2, 6, 1, 3, 8, 8};
    const RpBatcherOptions options = {.micro_batches = 1,
                                      .sequences = 2,
                                      .tokens = 8,
                                      .pad_id = 99,
                                      .packing = TRUE,
                                      .epochs = 1};

    start(f, lengths, 8, &options);
    rp_batch_fixture_next(f);
    rp_assert_row(f->batch->input_ids, 16,
                  (const gint32[]){0, 0, 0, 0, 0, 2, 2, 4, 1, 1, 1, 1, 5, 5, 5, 99});
    rp_assert_row(
        f->batch->targets, 16,
        (const gint32[]){0, 0, 0, 0, -100, 2, -100, -100, 1, 1, 1, -100, 5, 5, -100, -100});
    assert_int_equal(f->batch->n_starts[0], 6);
    assert_int_equal(f->batch->longest[0], 5);
    rp_assert_row(rp_token_batch_starts(f->batch, 0), 7, (const gint32[]){0, 5, 7, 8, 12, 15, 16});
    assert_int_equal(f->batch->n_samples, 5);
    assert_int_equal(f->batch->n_tokens, 15);
    assert_int_equal(f->batch->n_targets, 10);
    assert_int_equal(f->batch->n_without_targets, 1);
    assert_int_equal(f->batch->lengths[1], 7);
    const RpDataState after = rp_batcher_state(f->batcher);
    /* the search went on for something that fits the last place */
    assert_true(after.n_held == 3 && after.held[0] == 3 && after.held[1] == 6);
    rp_batch_fixture_next(f); /* held samples come first */
    assert_int_equal(f->batch->samples[0], 3);
}

#define N 97

/* Fills in random lengths from 1 to @most. */
static void
some_lengths(guint *lengths, guint n, guint most, guint32 seed)
{
    g_autoptr(GRand) random = g_rand_new_with_seed(seed);

    for (guint i = 0; i < n; i++)
        lengths[i] = (guint)g_rand_int_range(random, 1, (gint32)most + 1);
}

RP_TEST_OF(takes_each_sample_once_an_epoch, RpBatchFixture *f)
{
    static const guint shapes[][3] = {{1, 1, 40}, {2, 2, 40}, {3, 4, 64}, {8, 4, 41}};

    for (guint i = 0; i < G_N_ELEMENTS(shapes); i++) {
        const RpBatcherOptions options = {.micro_batches = shapes[i][0],
                                          .sequences = shapes[i][1],
                                          .tokens = shapes[i][2],
                                          .shuffle = TRUE,
                                          .seed = i,
                                          .packing = TRUE,
                                          .epochs = 3};
        guint lengths[N], seen[N] = {0};
        guint64 tokens = 0;

        some_lengths(lengths, N, 40, i);
        start(f, lengths, N, &options);
        for (;;) {
            rp_batch_fixture_next(f);
            if (f->batch->n_samples == 0)
                break;
            for (gsize s = 0; s < f->batch->n_samples; s++)
                seen[f->batch->samples[s]]++;
            tokens += f->batch->n_tokens;
        }
        for (guint s = 0; s < N; s++) {
            assert_int_equal(seen[s], 3);
            tokens -= 3 * lengths[s];
        }
        assert_int_equal(tokens, 0);
        assert_int_equal(rp_batcher_state(f->batcher).n_held, 0);
        rp_batch_fixture_next(f); /* and stays at the end */
        assert_int_equal(f->batch->n_samples, 0);
        assert_int_equal(f->batch->n_targets, 0);
    }
}

/* Nothing of a sample is beside another one, and all tokens have their start. */
RP_TEST_OF(starts_are_where_samples_begin, RpBatchFixture *f)
{
    const RpBatcherOptions options = {
        .micro_batches = 3, .sequences = 2, .tokens = 32, .pad_id = 999, .packing = TRUE};
    guint lengths[N];

    some_lengths(lengths, N, 30, 7);
    start(f, lengths, N, &options);
    for (guint n = 0; n < 20; n++) {
        rp_batch_fixture_next(f);
        gsize sample = 0;
        for (guint m = 0; m < 3; m++) {
            const gint32 *starts = rp_token_batch_starts(f->batch, m);
            const gint32 *ids = rp_token_batch_input_ids(f->batch, m);
            const gint32 *targets = rp_token_batch_targets(f->batch, m);
            gint32 longest = 0;

            assert_int_equal(starts[0], 0);
            assert_int_equal(starts[f->batch->n_starts[m]], 64);
            for (guint i = 0; i < f->batch->n_starts[m]; i++) {
                const gint32 id = ids[starts[i]], end = starts[i + 1];
                assert_true(starts[i] < end && starts[i] / 32 == (end - 1) / 32);
                longest = MAX(longest, end - starts[i]);
                for (gint32 t = starts[i]; t < end; t++) {
                    assert_int_equal(ids[t], id);
                    assert_int_equal(targets[t], t + 1 < end && id != 999 ? id : -100);
                }
                if (id == 999)
                    continue;
                assert_int_equal(f->batch->samples[sample++], id);
                assert_int_equal(end - starts[i], lengths[id]);
            }
            assert_int_equal(f->batch->longest[m], longest);
        }
        assert_int_equal(sample, f->batch->n_samples);
    }
}

static void
assert_same_batch(const RpTokenBatch *a, const RpTokenBatch *b)
{
    const gsize n = (gsize)a->micro_batches * a->sequences * a->tokens * sizeof(gint32);

    assert_memory_equal(a->input_ids, b->input_ids, n);
    assert_memory_equal(a->targets, b->targets, n);
    assert_int_equal(a->n_samples, b->n_samples);
    assert_int_equal(a->n_targets, b->n_targets);
}

RP_TEST_OF(resumes_with_the_same_bytes, RpBatchFixture *f)
{
    const RpBatcherOptions options = {.micro_batches = 2,
                                      .sequences = 2,
                                      .tokens = 48,
                                      .shuffle = TRUE,
                                      .seed = 3,
                                      .packing = TRUE};
    guint lengths[N];
    gboolean held = FALSE;

    some_lengths(lengths, N, 60, 5);
    start(f, lengths, N, &options);
    g_autoptr(RpTokenBatch) expected = rp_token_batch_new(&options);
    for (guint i = 0; i < 30; i++) {
        const RpDataState before = rp_batcher_state(f->batcher);
        g_autofree char *text = rp_data_state_to_json(&before);
        RpDataState read;

        held = held || before.n_held > 0;
        rp_batch_fixture_next(f);
        rp_token_batch_copy(expected, f->batch);
        assert_true(rp_data_state_parse("STATE", text, strlen(text), &read, &f->error));
        make_batcher(f, &options);
        assert_true(rp_batcher_restore(f->batcher, &read, &f->error));
        rp_batch_fixture_next(f);
        assert_same_batch(f->batch, expected);
        for (guint m = 0; m < 2; m++)
            assert_memory_equal(rp_token_batch_starts(f->batch, m),
                                rp_token_batch_starts(expected, m),
                                (f->batch->n_starts[m] + 1) * sizeof(gint32));
    }
    assert_true(held);
}

/* Held samples are not lost on runs of other shapes, nor on runs that do not pack. */
RP_TEST_OF(goes_on_with_other_shapes, RpBatchFixture *f)
{
    RpBatcherOptions options = {
        .micro_batches = 2, .sequences = 4, .tokens = 64, .packing = TRUE, .epochs = 2};
    guint lengths[N], seen[N] = {0};

    some_lengths(lengths, N, 64, 9);
    start(f, lengths, N, &options);
    for (guint i = 0;; i++) {
        rp_batch_fixture_next(f);
        if (f->batch->n_samples == 0)
            break;
        for (gsize s = 0; s < f->batch->n_samples; s++)
            seen[f->batch->samples[s]]++;
        const RpDataState at = rp_batcher_state(f->batcher);
        options.micro_batches = 1 + i % 3;
        options.sequences = 1 + i % 2;
        options.packing = i % 4 != 1;
        make_batcher(f, &options);
        assert_true(rp_batcher_restore(f->batcher, &at, &f->error));
    }
    for (guint s = 0; s < N; s++)
        assert_int_equal(seen[s], 2);
}

RP_TEST_OF(changes_nothing_where_samples_fill_sequences, RpBatchFixture *f)
{
    RpBatcherOptions options = {.micro_batches = 2,
                                .sequences = 3,
                                .tokens = 16,
                                .shuffle = TRUE,
                                .seed = 1,
                                .packing = TRUE};
    guint lengths[N];

    for (guint i = 0; i < N; i++)
        lengths[i] = 16 + i % 3;
    start(f, lengths, N, &options);
    g_autoptr(RpTokenBatch) packed = rp_token_batch_new(&options);
    for (guint i = 0; i < 40; i++) {
        const RpDataState at = rp_batcher_state(f->batcher);

        options.packing = TRUE;
        make_batcher(f, &options);
        assert_true(rp_batcher_restore(f->batcher, &at, &f->error));
        rp_batch_fixture_next(f);
        rp_token_batch_copy(packed, f->batch);
        const RpDataState after = rp_batcher_state(f->batcher);
        assert_int_equal(after.n_held, 0);
        assert_int_equal(packed->n_starts[0], 3);
        assert_int_equal(packed->longest[0], 16);
        options.packing = FALSE;
        make_batcher(f, &options);
        assert_true(rp_batcher_restore(f->batcher, &at, &f->error));
        rp_batch_fixture_next(f);
        assert_same_batch(f->batch, packed);
        g_autofree char *one = rp_data_state_to_json(&after);
        const RpDataState unpacked = rp_batcher_state(f->batcher);
        g_autofree char *other = rp_data_state_to_json(&unpacked);
        assert_string_equal(one, other);
    }
}

RP_TEST_OF(leaves_long_samples_out, RpBatchFixture *f)
{
    const guint lengths[] = {5, 9, 4, 8, 30};

    for (guint packing = 0; packing < 2; packing++) {
        const RpBatcherOptions options = {.micro_batches = 1,
                                          .sequences = 3,
                                          .tokens = 8,
                                          .drop_long = TRUE,
                                          .epochs = 1,
                                          .packing = packing};

        start(f, lengths, 5, &options);
        rp_batch_fixture_next(f);
        assert_int_equal(f->batch->n_samples, 3);
        assert_int_equal(f->batch->n_tokens, 17);
        assert_int_equal(f->batch->n_truncated, 0);
        rp_batch_fixture_next(f);
        assert_int_equal(f->batch->n_samples, 0);
        assert_int_equal(rp_batcher_state(f->batcher).n_left_out, 2);
    }
}

RP_TEST_OF(ends_where_all_samples_are_too_long, RpBatchFixture *f)
{
    const guint lengths[] = {9, 10};
    const RpBatcherOptions options = {
        .micro_batches = 1, .sequences = 3, .tokens = 8, .drop_long = TRUE, .packing = TRUE};

    start(f, lengths, 2, &options);
    assert_false(rp_batcher_next(f->batcher, f->batch, &f->error));
    assert_string_equal(f->error->message,
                        "FILE: expected a sample of at most 8 tokens, found longer ones alone");
}

RP_TEST_OF(knows_how_full_sequences_become, RpBatchFixture *f)
{
    const RpBatcherOptions options = {
        .micro_batches = 4, .sequences = 4, .tokens = 64, .packing = TRUE, .epochs = 1};
    guint lengths[N];
    RpPackingSurvey survey;

    for (guint i = 0; i < N; i++)
        lengths[i] = 16;
    start(f, lengths, N, &options);
    g_autoptr(RpPacker) packer = rp_packer_new(f->dataset, &options);
    const RpDataState at = rp_batcher_state(f->batcher);
    assert_true(rp_packer_survey(packer, &at, 1, &survey, &f->error));
    assert_true(survey.useful == 1 && survey.typical_tokens == 16 && !survey.ended);
    /* 97 samples, 64 in an iteration: 33 fill 9 of the second's 16 sequences, one of them alone */
    assert_true(rp_packer_survey(packer, &at, 10, &survey, &f->error));
    assert_int_equal(survey.iterations, 2);
    assert_true(survey.ended);
    assert_true(ABS(survey.useful - 97.0 / 128) < 1e-9);
}

RP_TEST_OF(refuses_states_that_hold_what_is_not_there, RpBatchFixture *f)
{
    static const char *const helds[][2] = {
        {"[5]", "STATE: line 1, column 191: held: expected samples that there are, found an array"},
        {"[1,-2]", NULL},
        {"[1,1.5]", NULL},
        {"7", NULL}};

    for (guint i = 0; i < G_N_ELEMENTS(helds); i++) {
        RpDataState read;
        g_autofree char *text = g_strdup_printf(
            "{\"format\":\"roundpipe-data/2\",\"shuffle\":true,\"samples\":5,\"fingerprint\":1,"
            "\"seed\":1,\"epoch\":0,\"position\":3,\"iterations\":1,\"tokens\":1,\"targets\":1,"
            "\"truncated\":0,\"cut_tokens\":0,\"dropped\":0,\"held\":%s}",
            helds[i][0]);

        assert_false(rp_data_state_parse("STATE", text, strlen(text), &read, &f->error));
        if (helds[i][1] != NULL && strcmp(f->error->message, helds[i][1]) != 0)
            fail_msg("%s", f->error->message);
        g_clear_error(&f->error);
    }
}

/* Every sample outside the first part has an impossible label: it must not be read. */
RP_TEST_OF(a_part_reads_its_own_samples_alone, RpBatchFixture *f)
{
    RpBatcherOptions options = {.micro_batches = 2, .sequences = 1, .tokens = 4, .parts = 2};
    const char text[] = "{\"input_ids\":[1,2,3,4]}\n{\"input_ids\":[5,6,7,1000]}\n";
    g_autoptr(GBytes) bytes = g_bytes_new_static(text, sizeof text - 1);

    rp_batch_fixture_clear(f);
    f->dataset = rp_must(rp_dataset_new_jsonl, "FILE", bytes, 1000);
    make_batcher(f, &options);
    rp_batch_fixture_next(f);
    assert_int_equal(f->batch->micro_batches, 1);
    rp_assert_row(f->batch->input_ids, 4, (const gint32[]){1, 2, 3, 4});
    options.part = 1;
    make_batcher(f, &options);
    assert_false(rp_batcher_next(f->batcher, f->batch, &f->error));
    assert_int_equal(f->error->code, RP_DATASET_ERROR_SAMPLE);
    g_clear_error(&f->error);
}

#define PARTS 3

/* Micro-batch @m of @part is micro-batch @of of @whole. */
static void
assert_same_micro_batch(const RpTokenBatch *part, guint m, const RpTokenBatch *whole, guint of)
{
    const gsize n = (gsize)whole->sequences * whole->tokens * sizeof(gint32);

    assert_memory_equal(rp_token_batch_input_ids(part, m), rp_token_batch_input_ids(whole, of), n);
    assert_memory_equal(rp_token_batch_targets(part, m), rp_token_batch_targets(whole, of), n);
    assert_int_equal(part->n_micro_targets[m], whole->n_micro_targets[of]);
    if (!whole->packed)
        return;
    assert_int_equal(part->n_starts[m], whole->n_starts[of]);
    assert_int_equal(part->longest[m], whole->longest[of]);
    assert_memory_equal(rp_token_batch_starts(part, m), rp_token_batch_starts(whole, of),
                        (whole->n_starts[of] + 1) * sizeof(gint32));
}

static void
add_counts(RpBatchCounts *sum, const RpTokenBatch *batch)
{
    const RpBatchCounts counts = rp_token_batch_counts(batch);

    sum->n_targets += counts.n_targets;
    sum->n_tokens += counts.n_tokens;
    sum->n_truncated += counts.n_truncated;
    sum->n_cut_tokens += counts.n_cut_tokens;
    sum->n_without_targets += counts.n_without_targets;
}

/* The next iteration in parts, beside that of @f. */
static void
assert_parts_are_the_whole(RpBatchFixture *f, RpBatcher *const *batchers,
                           RpTokenBatch *const *batches)
{
    RpBatchCounts sum = {0};
    gsize n_samples = 0;

    rp_batch_fixture_next(f);
    for (guint p = 0; p < PARTS; p++) {
        assert_true(rp_batcher_next(batchers[p], batches[p], &f->error));
        add_counts(&sum, batches[p]);
        assert_int_equal(batches[p]->n_placed, f->batch->n_samples);
        for (gsize i = 0; i < batches[p]->n_samples; i++)
            assert_int_equal(batches[p]->samples[i], f->batch->samples[n_samples++]);
        for (guint m = 0; m < 2; m++)
            assert_same_micro_batch(batches[p], m, f->batch, 2 * p + m);
    }
    assert_int_equal(n_samples, f->batch->n_samples);
    for (guint p = 0; p < PARTS; p++) {
        const RpDataState whole = rp_batcher_state(f->batcher);

        rp_batcher_take_counts(batchers[p], batches[p], &sum);
        const RpDataState part = rp_batcher_state(batchers[p]);
        const RpBatchCounts all = rp_token_batch_counts(f->batch);

        assert_memory_equal(&sum, &all, sizeof all);
        assert_memory_equal(&part, &whole, sizeof whole);
        assert_int_equal(batches[p]->n_targets, f->batch->n_targets);
    }
}

RP_TEST_OF(parts_are_the_whole, RpBatchFixture *f)
{
    for (guint packing = 0; packing < 2; packing++) {
        RpBatcherOptions options = {.micro_batches = 2 * PARTS,
                                    .sequences = 2,
                                    .tokens = 24,
                                    .pad_id = 999,
                                    .shuffle = TRUE,
                                    .packing = packing};
        RpBatcher *batchers[PARTS];
        RpTokenBatch *batches[PARTS];
        guint lengths[N];

        some_lengths(lengths, N, 30, 3);
        start(f, lengths, N, &options);
        options.parts = PARTS;
        for (options.part = 0; options.part < PARTS; options.part++) {
            batchers[options.part] = rp_batcher_new(f->dataset, &options, &f->error);
            batches[options.part] = rp_token_batch_new(&options);
        }
        for (guint i = 0; i < 12; i++)
            assert_parts_are_the_whole(f, batchers, batches);
        for (guint p = 0; p < PARTS; p++) {
            rp_batcher_free(batchers[p]);
            rp_token_batch_free(batches[p]);
        }
    }
}

RP_TEST_FIXTURE(rp_batch_fixture_setup, rp_batch_fixture_teardown)
