/* Batches of preferences: two documents of a sample in one row. */
#include "tests/rp-test.h"

#include "core/base/file.h"
#include "exec/data/batch.h"

#define KEY 43
#define N 40
#define PROMPT 2
#define LONGEST 48

typedef struct {
    char *directory, *path;
    RpDataset *dataset;
    GError *error;
} Fixture;

/* Documents of sample i: two tokens of prompt, i, and then as many of an answer as these have; every third is an
 * undesirable answer with its KL document, the others are pairs, half of which share the first token. */
static guint
answer_tokens(guint i, guint document)
{
    return document == 0 ? 1 + i % 5 : 1 + i * 7 % 11;
}

static void
make_sample(guint i, gint32 *ids, gint32 *labels, guint32 *n, RpSplit *split)
{
    const guint shared = i % 3 == 1;

    *n = 0;
    for (guint d = 0; d < 2; d++) {
        for (guint t = d * shared; t < PROMPT + answer_tokens(i, d); t++, (*n)++) {
            ids[*n] = (gint32)(t < PROMPT ? i : 100 + 50 * d + t);
            labels[*n] = t < PROMPT ? RP_LABEL_MASKED : ids[*n];
        }
        if (d == 0)
            *split = (RpSplit){*n, i % 3 == 2 ? RP_ANSWER_UNDESIRABLE : RP_ANSWER_CHOSEN, shared};
    }
}

static void
setup(Fixture *f)
{
    static const char *const names[] = {"a.jsonl", NULL};
    g_autoptr(RpCacheWriter) writer = NULL;
    RpCacheHeader header;

    f->directory = g_dir_make_tmp("test-preferences-XXXXXX", NULL);
    f->path = g_build_filename(f->directory, "samples.bin", NULL);
    writer = rp_must(rp_cache_writer_new, f->path, KEY, 0640);
    for (guint i = 0; i < N; i++) {
        gint32 ids[LONGEST], labels[LONGEST];
        RpSplit split;
        guint32 n;

        make_sample(i, ids, labels, &n, &split);
        assert_true(rp_cache_writer_add(writer, ids, labels, n, split, 0, i, NULL));
    }
    assert_true(rp_cache_writer_finish(writer, 0, &header, NULL));
    f->dataset = rp_must(rp_dataset_open_cache, f->path, KEY, "DATA", names, 250, &header);
}

static void
teardown(Fixture *f)
{
    rp_dataset_free(f->dataset);
    rp_file_remove_directory(f->directory);
    g_clear_error(&f->error);
    g_free(f->directory);
    g_free(f->path);
}

static RpBatcherOptions
options_of(guint tokens)
{
    return (RpBatcherOptions){.micro_batches = 2,
                              .sequences = 2,
                              .tokens = tokens,
                              .preference = TRUE,
                              .packing = TRUE,
                              .shuffle = TRUE,
                              .seed = 5,
                              .epochs = 1};
}

/* Checks a document against @sample's: cut to @n tokens, its targets are those of the next token. Returns: targets */
static guint
assert_document(const RpTokenBatch *batch, guint m, guint at, guint n, guint sample, guint document)
{
    const gint32 *ids = rp_token_batch_input_ids(batch, m) + at;
    const gint32 *targets = rp_token_batch_targets(batch, m) + at;
    gint32 all[LONGEST], labels[LONGEST];
    RpSplit split;
    guint32 n_all;
    guint n_targets = 0;

    make_sample(sample, all, labels, &n_all, &split);
    const guint first = document == 0 ? 0 : split.tokens;
    assert_true(n <= (document == 0 ? split.tokens : n_all - split.tokens));
    for (guint t = 0; t < n; t++) {
        const gint32 target = t + 1 < n ? labels[first + t + 1] : RP_LABEL_MASKED;

        assert_int_equal(ids[t], all[first + t]);
        assert_int_equal(targets[t], target);
        n_targets += target != RP_LABEL_MASKED;
    }
    return n_targets;
}

/* Every document of a micro-batch. @references: (nullable): of samples. Returns: samples */
static guint
assert_micro_batch(const RpTokenBatch *batch, guint m, const guint64 *samples,
                   const float *references, guint64 *n_targets, guint64 *n_chosen)
{
    const gint32 *starts = rp_token_batch_starts(batch, m);
    const guint8 *answers = rp_token_batch_answers(batch, m);
    const guint32 *shared = rp_token_batch_shared(batch, m);
    guint32 n = 0, n_shared = 0, longest = 0;

    for (guint d = 0; d < batch->n_starts[m]; d++) {
        longest = MAX(longest, (guint32)(starts[d + 1] - starts[shared[d] > 0 ? d - 1 : d]));
        assert_true(shared[d] == 0 || answers[d] == RP_ANSWER_REJECTED);
        if (answers[d] == RP_ANSWER_NONE)
            continue;
        const guint sample = (guint)samples[n++];
        const gboolean pair = sample % 3 != 2;

        assert_int_equal(answers[d], pair ? RP_ANSWER_CHOSEN : RP_ANSWER_UNDESIRABLE);
        assert_int_equal(answers[d + 1], pair ? RP_ANSWER_REJECTED : RP_ANSWER_KL);
        assert_int_equal(shared[d + 1], sample % 3 == 1);
        n_shared += shared[d + 1];
        longest = MAX(longest, (guint32)(starts[d + 2] - starts[shared[d + 1] > 0 ? d : d + 1]));
        /* one row has both */
        assert_int_equal(starts[d] / (gint32)batch->tokens,
                         (starts[d + 2] - 1) / (gint32)batch->tokens);
        for (guint k = 0; k < 2; k++, d += k == 1) {
            const guint targets = assert_document(batch, m, (guint)starts[d],
                                                  (guint)(starts[d + 1] - starts[d]), sample, k);

            *n_targets += targets;
            *n_chosen += pair && k == 0 ? targets : 0;
            assert_true(rp_token_batch_references(batch, m)[d] ==
                        (references != NULL ? references[2 * sample + k] : 0));
        }
    }
    assert_int_equal(n_shared, batch->n_shared[m]);
    assert_int_equal(longest, batch->longest[m]);
    return n;
}

static void
assert_batch(const RpTokenBatch *batch, const float *references)
{
    guint64 n_targets = 0, n_chosen = 0;
    guint n = 0;

    for (guint m = 0; m < batch->micro_batches; m++)
        n += assert_micro_batch(batch, m, batch->samples + n, references, &n_targets, &n_chosen);
    assert_int_equal(n, batch->n_samples);
    assert_int_equal(batch->n_pairs, n);
    assert_int_equal(batch->n_targets, n_targets);
    assert_int_equal(batch->n_chosen_targets, n_chosen);
}

RP_TEST_OF(puts_both_documents_into_one_row, Fixture *f)
{
    const RpBatcherOptions options = options_of(40);
    g_autoptr(RpBatcher) batcher = rp_must(rp_batcher_new, f->dataset, &options);
    g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&options);
    guint64 n = 0;

    do {
        assert_true(rp_batcher_next(batcher, batch, NULL));
        assert_batch(batch, NULL);
        n += batch->n_pairs;
        assert_int_equal(batch->n_truncated, 0);
    } while (batch->n_samples > 0);
    assert_int_equal(n, N);
}

/* Each document has at most half of 12 tokens, unless the other leaves more. */
RP_TEST_OF(cuts_the_ends_of_answers, Fixture *f)
{
    const RpBatcherOptions options = options_of(12);
    g_autoptr(RpBatcher) batcher = rp_must(rp_batcher_new, f->dataset, &options);
    g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&options);
    guint64 n = 0, n_cut = 0;

    do {
        assert_true(rp_batcher_next(batcher, batch, NULL));
        assert_batch(batch, NULL);
        n += batch->n_pairs;
        n_cut += batch->n_truncated;
    } while (batch->n_samples > 0);
    assert_int_equal(n, N);
    assert_true(n_cut > 5);
    assert_int_equal(rp_batch_cut_first((RpSplit){5}, 9, 12), 5);
    assert_int_equal(rp_batch_cut_first((RpSplit){5}, 30, 12), 5);
    assert_int_equal(rp_batch_cut_first((RpSplit){30}, 34, 12), 8);
    assert_int_equal(rp_batch_cut_first((RpSplit){30}, 60, 12), 6);
    assert_int_equal(rp_batch_cut_first((RpSplit){30}, 60, 13), 6);
    /* of the space that four shared tokens leave */
    assert_int_equal(rp_batch_cut_first((RpSplit){9, 0, 4}, 12, 12), 9);
    assert_int_equal(rp_batch_cut_first((RpSplit){8, 0, 4}, 30, 12), 8);
    assert_int_equal(rp_batch_cut_first((RpSplit){30, 0, 4}, 33, 12), 9);
    assert_int_equal(rp_batch_cut_first((RpSplit){30, 0, 4}, 60, 12), 8);
    assert_int_equal(rp_batch_cut_first((RpSplit){30, 0, 14}, 60, 12), 12);
}

/* Made by one batch, put into another of another order. */
RP_TEST_OF(keeps_references_beside_their_documents, Fixture *f)
{
    RpBatcherOptions options = options_of(40);
    g_autofree float *found = g_new0(float, 2 * N);
    float *references = g_new(float, 2 * N);

    for (guint i = 0; i < 2 * N; i++)
        references[i] = -1 - (float)i;
    rp_dataset_set_references(f->dataset, references);
    for (guint order = 0; order < 2; order++) {
        options.shuffle = order == 1;
        g_autoptr(RpBatcher) batcher = rp_must(rp_batcher_new, f->dataset, &options);
        g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&options);
        g_autoptr(RpTokenBatch) copy = rp_token_batch_new(&options);

        do {
            assert_true(rp_batcher_next(batcher, batch, NULL));
            rp_token_batch_copy(copy, batch);
            assert_batch(copy, references);
            rp_token_batch_get_references(copy, found);
        } while (batch->n_samples > 0);
        assert_memory_equal(found, references, 2 * N * sizeof(float));
    }
}

/* Two servers have half of the micro-batches each: together all that one has. */
RP_TEST_OF(divides_documents_between_servers, Fixture *f)
{
    RpBatcherOptions options = options_of(40);
    g_autoptr(RpBatcher) batcher = rp_must(rp_batcher_new, f->dataset, &options);
    g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&options);

    assert_true(rp_batcher_next(batcher, batch, NULL));
    options.parts = 2;
    for (guint part = 0; part < 2; part++) {
        options.part = part;
        g_autoptr(RpBatcher) own = rp_must(rp_batcher_new, f->dataset, &options);
        g_autoptr(RpTokenBatch) half = rp_token_batch_new(&options);
        guint64 n_targets = 0, n_chosen = 0;

        assert_true(rp_batcher_next(own, half, NULL));
        assert_int_equal(assert_micro_batch(half, 0, half->samples, NULL, &n_targets, &n_chosen),
                         half->n_samples);
        assert_memory_equal(rp_token_batch_answers(half, 0), rp_token_batch_answers(batch, part),
                            half->n_starts[0]);
        const RpBatchCounts counts = rp_token_batch_counts(batch);

        rp_batcher_take_counts(own, half, &counts);
        assert_int_equal(half->n_pairs, batch->n_pairs);
        assert_int_equal(half->n_chosen_targets, batch->n_chosen_targets);
    }
}

RP_TEST_OF(refuses_samples_of_one_document, Fixture *f)
{
    const RpBatcherOptions options = options_of(40);
    const char *text = "{\"input_ids\":[1,2]}\n";
    g_autoptr(GBytes) bytes = g_bytes_new_static(text, strlen(text));
    g_autoptr(RpDataset) plain = rp_must(rp_dataset_new_jsonl, "plain", bytes, 250);
    g_autoptr(RpBatcher) batcher = rp_must(rp_batcher_new, plain, &options);
    g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&options);

    rp_refuses("plain: line 1: expected a preference of two documents, found one document",
               rp_batcher_next, batcher, batch);
}

RP_TEST_STATE(Fixture, setup, teardown)
