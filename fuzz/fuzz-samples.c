/**
 * Reading a file of records, compressed or not, or a cache of samples neither crashes nor leaks,
 * whatever the bytes, and ends; a refusal is one line; accepted ids are of the vocabulary. The
 * first byte of an input says which kind the rest is, and which objective its records are for.
 */
#include "fuzz/harness.h"

#include <glib/gstdio.h>
#include <unistd.h>

#include "core/base/hash.h"
#include "exec/data/dataset.h"
#include "text/samples/samples.h"

#define VOCABULARY 1000
#define MOST_RECORDS 100000
#define CAPACITY 256

static const char *const endings[] = {"jsonl", "json", "jsonl.gz", "jsonl.zst", "bin", "csv"};

static void
check_refusal(const GError *error)
{
    g_assert(strchr(error->message, '\n') == NULL);
}

static void
check_tokens(const gint32 *ids, const gint32 *labels, gsize n)
{
    for (gsize i = 0; i < n; i++) {
        g_assert(ids[i] >= 0 && ids[i] < VOCABULARY);
        g_assert(labels[i] == RP_LABEL_MASKED || (labels[i] >= 0 && labels[i] < VOCABULARY));
    }
}

/* The first document of a preference, or the prompt of its first, ends within the sample. */
static void
check_split(RpObjective objective, RpSplit split, guint n)
{
    g_assert((split.answer == RP_ANSWER_NONE) == (objective == RP_OBJECTIVE_SFT));
    g_assert((objective == RP_OBJECTIVE_DPO) == (split.answer == RP_ANSWER_CHOSEN));
    g_assert(split.tokens < n && (split.tokens > 0 || objective != RP_OBJECTIVE_DPO));
    g_assert(split.shared == 0 || split.shared < split.tokens);
}

static void
read_records(const char *path, RpObjective objective)
{
    g_autoptr(RpEncoder) encoder = rp_encoder_new(
        &(RpEncoderOptions){.vocabulary = VOCABULARY, .objective = objective, .shares = TRUE});
    g_autoptr(RpRecords) records = rp_records_open(path, NULL);
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(gint32));
    g_autoptr(GArray) labels = g_array_new(FALSE, FALSE, sizeof(gint32));

    for (guint i = 0; i < MOST_RECORDS; i++) {
        g_autoptr(GString) text = g_string_new(NULL);
        g_autoptr(GError) error = NULL, bad = NULL;
        RpSplit split = {0};
        guint64 line;
        gboolean found;

        const gboolean read = rp_records_next(records, text, &line, &found, &error);
        if (!was_taken(read, error)) {
            check_refusal(error);
            return;
        }
        if (!found)
            return;
        const gboolean made =
            rp_encoder_read(encoder, "fuzz", line, text->str, text->len, ids, labels, &split, &bad);
        if (!was_taken(made, bad)) {
            check_refusal(bad);
            continue;
        }
        g_assert(ids->len > 0 && ids->len == labels->len);
        check_tokens((const gint32 *)(void *)ids->data, (const gint32 *)(void *)labels->data,
                     ids->len);
        check_split(objective, split, ids->len);
    }
}

/* Gives a cache the hash that its bytes have: no mutated one would be read without. */
static void
put_hash(const char *path, const guint8 *data, gsize size)
{
    const gsize at = RP_CACHE_HEADER_BYTES;
    RpCacheHeader header;

    if (size < at)
        return;
    rp_cache_header_read(data, &header);
    if (header.n_words > (size - at) / sizeof(guint32))
        return;
    g_autofree guint8 *bytes = g_memdup2(data, size);
    const gsize n = (gsize)header.n_words * sizeof(guint32);
    guint64 hash = n > 0 ? rp_hash64(bytes + at, n, 0) : 0;

    header.version = RP_CACHE_VERSION;
    hash = rp_hash64(bytes + at + n, size - at - n, hash);
    hash = GUINT64_TO_LE(rp_cache_header_hash(&header, hash));
    memcpy(bytes + G_STRUCT_OFFSET(RpCacheHeader, hash), &hash, sizeof hash);
    bytes[G_STRUCT_OFFSET(RpCacheHeader, version)] = RP_CACHE_VERSION;
    g_assert(g_file_set_contents_full(path, (const char *)bytes, (gssize)size,
                                      G_FILE_SET_CONTENTS_NONE, 0600, NULL));
}

/* Reads the cache with the key that it gives itself. */
static void
read_cache(const char *path, const guint8 *data, gsize size)
{
    static const char *const names[] = {"a", "b", NULL};
    gint32 ids[CAPACITY], labels[CAPACITY];
    RpCacheHeader header = {0};
    g_autoptr(GError) error = NULL;

    put_hash(path, data, size);
    if (size >= RP_CACHE_HEADER_BYTES)
        rp_cache_header_read(data, &header);
    g_autoptr(RpDataset) dataset =
        rp_dataset_open_cache(path, header.key, "fuzz", names, VOCABULARY, &header, &error);
    if (!was_taken(dataset != NULL, error)) {
        check_refusal(error);
        return;
    }
    for (guint64 i = 0; i < rp_dataset_n_samples(dataset); i++) {
        RpSample sample = {ids, labels, CAPACITY, 0};
        g_autoptr(GError) bad = NULL;

        const gboolean read = rp_dataset_read(dataset, i, &sample, &bad);
        if (was_taken(read, bad)) {
            check_tokens(ids, labels, (gsize)MIN(sample.n_tokens, CAPACITY));
            g_assert(sample.split.tokens < sample.n_tokens);
            g_assert(sample.split.shared == 0 || sample.split.shared < sample.split.tokens);
        }
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    static const RpObjective objectives[] = {RP_OBJECTIVE_SFT, RP_OBJECTIVE_DPO, RP_OBJECTIVE_KTO};
    const guint kind = data[0] % G_N_ELEMENTS(endings);
    g_autofree char *path =
        g_strdup_printf("%s/fuzz-samples-%d.%s", g_get_tmp_dir(), (int)getpid(), endings[kind]);

    g_assert(g_file_set_contents_full(path, (const char *)data + 1, (gssize)size - 1,
                                      G_FILE_SET_CONTENTS_NONE, 0600, NULL));
    if (strcmp(endings[kind], "bin") != 0)
        read_records(path, objectives[data[0] / G_N_ELEMENTS(endings) % G_N_ELEMENTS(objectives)]);
    else
        read_cache(path, data + 1, size - 1);
    (void)g_unlink(path);
    return 0;
}
