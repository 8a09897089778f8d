/**
 * Reading JSONL neither crashes nor leaks, whatever the bytes; a refusal is one line that names the
 * file. Accepted ids are of the vocabulary, and labels are masked or of it, however few of them are
 * stored; accepted lines, written anew, are read as the same.
 */
#include "fuzz/harness.h"

#include "exec/data/batch.h"

#define VOCABULARY 1000
#define CAPACITY 4096
#define SMALL 2

static void
check_refusal(const GError *error)
{
    g_assert(error->domain == RP_DATASET_ERROR);
    g_assert(g_str_has_prefix(error->message, "fuzz: "));
}

static void
append(GString *text, const char *key, const gint32 *tokens, guint64 n)
{
    g_string_append_printf(text, "\"%s\":[", key);
    for (guint64 i = 0; i < n; i++)
        g_string_append_printf(text, "%s%d", i > 0 ? "," : "", tokens[i]);
    g_string_append_c(text, ']');
}

/* Writes @sample as a line, reads it and compares. */
static void
check_again(const RpSample *sample)
{
    static gint32 input_ids[CAPACITY], labels[CAPACITY];
    RpSample again = {input_ids, labels, CAPACITY, 0};
    g_autoptr(GError) error = NULL;
    g_autoptr(GString) text = g_string_new("{");

    append(text, "labels", sample->labels, sample->n_tokens);
    g_string_append_c(text, ',');
    append(text, "input_ids", sample->input_ids, sample->n_tokens);
    g_string_append_c(text, '}');
    g_autoptr(GBytes) bytes = g_bytes_new_static(text->str, text->len);
    g_autoptr(RpDataset) dataset = rp_dataset_new_jsonl("again", bytes, VOCABULARY, &error);
    g_assert_no_error(error);
    g_assert(rp_dataset_read(dataset, 0, &again, &error));
    gsize n_bytes = (gsize)sample->n_tokens * sizeof *input_ids;
    g_assert_cmpmem(again.input_ids, n_bytes, sample->input_ids, n_bytes);
    g_assert_cmpmem(again.labels, n_bytes, sample->labels, n_bytes);
}

static void
check_sample(const RpDataset *dataset, guint64 index)
{
    static gint32 input_ids[CAPACITY], labels[CAPACITY];
    gint32 few_ids[SMALL], few_labels[SMALL];
    RpSample sample = {input_ids, labels, CAPACITY, 0};
    RpSample few = {few_ids, few_labels, SMALL, 0};
    g_autoptr(GError) error = NULL;
    g_autoptr(GError) few_error = NULL;

    gboolean good = rp_dataset_read(dataset, index, &sample, &error);
    g_assert(good == rp_dataset_read(dataset, index, &few, &few_error));
    if (!was_taken(good, error)) {
        check_refusal(error);
        g_assert_cmpstr(error->message, ==, few_error->message);
        return;
    }
    g_assert(sample.n_tokens > 0 && sample.n_tokens == few.n_tokens);
    for (guint64 i = 0; i < MIN(sample.n_tokens, CAPACITY); i++) {
        g_assert(input_ids[i] >= 0 && input_ids[i] < VOCABULARY);
        g_assert(labels[i] == RP_LABEL_MASKED || (labels[i] >= 0 && labels[i] < VOCABULARY));
        g_assert(i >= SMALL || (few_ids[i] == input_ids[i] && few_labels[i] == labels[i]));
    }
    if (sample.n_tokens <= CAPACITY)
        check_again(&sample);
}

/* One iteration over all of it. */
static void
check_batch(const RpDataset *dataset)
{
    const RpBatcherOptions options = {
        .micro_batches = 2, .sequences = 3, .tokens = 5, .pad_id = 9, .shuffle = TRUE};
    g_autoptr(GError) error = NULL;
    g_autoptr(RpTokenBatch) batch = rp_token_batch_new(&options);
    g_autoptr(RpBatcher) batcher = rp_batcher_new(dataset, &options, &error);
    guint64 n_targets = 0;

    g_assert_no_error(error);
    const gboolean next = rp_batcher_next(batcher, batch, &error);

    if (!was_taken(next, error)) {
        check_refusal(error);
        return;
    }
    for (guint i = 0; i < 2 * 3 * 5; i++)
        n_targets += batch->targets[i] != RP_LABEL_MASKED;
    g_assert(n_targets == batch->n_targets);
    g_assert((n_targets > 0) == rp_batcher_check_targets(batcher, &batch, 1, &error));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GBytes) bytes = g_bytes_new_static(data, size);
    g_autoptr(RpDataset) dataset = rp_dataset_new_jsonl("fuzz", bytes, VOCABULARY, &error);

    if (!was_taken(dataset != NULL, error)) {
        g_assert(size == 0);
        check_refusal(error);
        return 0;
    }
    for (guint64 i = 0; i < rp_dataset_n_samples(dataset); i++)
        check_sample(dataset, i);
    check_batch(dataset);
    return 0;
}
