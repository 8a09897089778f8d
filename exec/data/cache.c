/* Samples that were made of text: a cache of text/samples. The index is held in memory, 24 bytes a
 * sample; tokens are read on request. */
#include "text/samples/samples.h"

#include <string.h>

#include "core/base/hash.h"
#include "exec/data/dataset-private.h"

typedef struct {
    RpDataBytes *bytes;
    RpCacheHeader header;
    guint8 *index;
    char **names; /* files that it was made of */
    guint n_names;
    guint vocabulary;
} Cache;

static RpCacheEntry
entry_of(const Cache *cache, guint64 index)
{
    RpCacheEntry entry;

    rp_cache_entry_read(cache->index + index * RP_CACHE_ENTRY_BYTES, &entry);
    return entry;
}

static guint64
cache_length(gconstpointer source, guint64 index)
{
    return entry_of(source, index).n_tokens & ~RP_CACHE_FLAGS;
}

/* @words: little-endian, at any address */
static guint32
word_at(const guint8 *words, gsize index)
{
    guint32 word;

    memcpy(&word, words + index * sizeof word, sizeof word);
    return GUINT32_FROM_LE(word);
}

/* Words behind those of a sample's tokens. */
static guint
words_of_split(const RpCacheEntry *entry)
{
    return (entry->n_tokens & RP_CACHE_SPLIT ? 1 : 0) + (entry->n_tokens & RP_CACHE_SHARED ? 1 : 0);
}

/* @word: behind the words of the sample, @n_words of it */
static gboolean
read_split(const Cache *cache, guint64 word, guint n_words, RpSample *sample, GError **error)
{
    g_autofree guint8 *scratch = NULL;
    const guint8 *bytes =
        rp_data_bytes_get(cache->bytes, RP_CACHE_HEADER_BYTES + word * sizeof(guint32),
                          n_words * sizeof(guint32), &scratch, error);

    if (bytes == NULL)
        return FALSE;
    const guint32 split = word_at(bytes, 0);
    const guint32 tokens = split & ((1u << RP_CACHE_ANSWER_SHIFT) - 1);
    const guint32 shared = n_words > 1 ? word_at(bytes, 1) : 0;
    if (tokens == 0 || tokens >= sample->n_tokens || shared >= tokens) {
        g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE,
                    "%s: expected two documents in a sample, found another: the file is damaged; "
                    "remove it",
                    rp_data_bytes_name(cache->bytes));
        return FALSE;
    }
    sample->split = (RpSplit){tokens, (guint8)(split >> RP_CACHE_ANSWER_SHIFT), shared};
    return TRUE;
}

static gboolean
cache_read(gconstpointer source, guint64 index, RpSample *sample, GError **error)
{
    const Cache *cache = source;
    const RpCacheEntry entry = entry_of(cache, index);
    const gboolean apart = (entry.n_tokens & RP_CACHE_APART) != 0;
    const guint n_split = words_of_split(&entry);
    const guint32 n = entry.n_tokens & ~RP_CACHE_FLAGS;
    const gsize stored = MIN(n, sample->capacity);
    g_autofree guint8 *scratch = NULL;
    const guint8 *words =
        rp_data_bytes_get(cache->bytes, RP_CACHE_HEADER_BYTES + entry.word * sizeof(guint32),
                          (apart ? (gsize)n + stored : stored) * sizeof(guint32), &scratch, error);

    if (words == NULL)
        return FALSE;
    for (gsize t = 0; t < stored; t++) {
        const guint32 id = word_at(words, t) & ~RP_CACHE_MASKED;
        const guint32 label = word_at(words, apart ? n + t : t);

        if (id >= cache->vocabulary || (label & ~RP_CACHE_MASKED) >= cache->vocabulary) {
            g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_SAMPLE,
                        "%s: sample %" G_GUINT64_FORMAT
                        ": expected ids from 0 to %u, found another: the file is damaged; "
                        "remove it",
                        rp_data_bytes_name(cache->bytes), index, cache->vocabulary - 1);
            return FALSE;
        }
        sample->input_ids[t] = (gint32)id;
        sample->labels[t] = label & RP_CACHE_MASKED ? RP_LABEL_MASKED : (gint32)label;
    }
    sample->n_tokens = n;
    return n_split == 0 ||
           read_split(cache, entry.word + (apart ? 2 * (guint64)n : n), n_split, sample, error);
}

static char *
cache_locate(gconstpointer source, guint64 index)
{
    const Cache *cache = source;
    const RpCacheEntry entry = entry_of(cache, index);

    return g_strdup_printf("%s: line %" G_GUINT64_FORMAT, cache->names[entry.file], entry.line + 1);
}

static const RpDataBytes *
cache_bytes(gconstpointer source)
{
    return ((const Cache *)source)->bytes;
}

static void
cache_free(gpointer source)
{
    Cache *cache = source;

    rp_data_bytes_free(cache->bytes);
    g_strfreev(cache->names);
    g_free(cache->index);
    g_free(cache);
}

static guint
cache_file(gconstpointer source, guint64 index)
{
    return entry_of(source, index).file;
}

static const RpDatasetOps cache_ops = {cache_read, cache_locate, cache_bytes,
                                       cache_free, cache_length, cache_file};

static gboolean
refuse(const Cache *cache, const char *found, GError **error)
{
    g_set_error(error, RP_DATASET_ERROR, RP_DATASET_ERROR_FILE,
                "%s: expected a cache of these samples, found %s", rp_data_bytes_name(cache->bytes),
                found);
    return FALSE;
}

/* All entries lie within the words. */
static gboolean
check_entries(const Cache *cache)
{
    const RpCacheHeader *header = &cache->header;

    for (guint64 i = 0; i < header->n_samples; i++) {
        const RpCacheEntry entry = entry_of(cache, i);
        const guint64 n = entry.n_tokens & ~RP_CACHE_FLAGS;
        const guint64 words =
            (entry.n_tokens & RP_CACHE_APART ? 2 * n : n) + words_of_split(&entry);

        if (n == 0 || entry.file >= cache->n_names || entry.word > header->n_words ||
            words > header->n_words - entry.word)
            return FALSE;
    }
    return TRUE;
}

/* @hash: (out): of all words */
static gboolean
hash_words(const Cache *cache, guint64 *hash, GError **error)
{
    const guint64 end = RP_CACHE_HEADER_BYTES + cache->header.n_words * sizeof(guint32);

    *hash = 0;
    for (guint64 at = RP_CACHE_HEADER_BYTES; at < end; at += RP_CACHE_PIECE_BYTES) {
        const gsize n = (gsize)MIN(RP_CACHE_PIECE_BYTES, end - at);
        g_autofree guint8 *scratch = NULL;
        const guint8 *piece = rp_data_bytes_get(cache->bytes, at, n, &scratch, error);

        if (piece == NULL)
            return FALSE;
        *hash = rp_hash64(piece, n, *hash);
    }
    return TRUE;
}

static gboolean
read_index(Cache *cache, guint64 key, GError **error)
{
    const guint64 length = rp_data_bytes_length(cache->bytes);
    RpCacheHeader *header = &cache->header;
    g_autofree guint8 *scratch = NULL;
    const guint8 *bytes;
    guint64 hash;

    if (length < RP_CACHE_HEADER_BYTES)
        return refuse(cache, "a short file", error);
    bytes = rp_data_bytes_get(cache->bytes, 0, RP_CACHE_HEADER_BYTES, &scratch, error);
    if (bytes == NULL)
        return FALSE;
    rp_cache_header_read(bytes, header);
    if (header->magic != RP_CACHE_MAGIC || header->version != RP_CACHE_VERSION ||
        header->key != key)
        return refuse(cache, "another", error);
    if (header->n_samples == 0 || header->n_samples > length / RP_CACHE_ENTRY_BYTES ||
        header->n_words > length / sizeof(guint32) ||
        length != RP_CACHE_HEADER_BYTES + header->n_words * sizeof(guint32) +
                      header->n_samples * RP_CACHE_ENTRY_BYTES)
        return refuse(cache, "one of another length", error);
    const gsize n = (gsize)header->n_samples * RP_CACHE_ENTRY_BYTES;
    g_clear_pointer(&scratch, g_free);
    bytes = rp_data_bytes_get(cache->bytes, length - n, n, &scratch, error);
    if (bytes == NULL)
        return FALSE;
    cache->index = g_memdup2(bytes, n);
    if (!hash_words(cache, &hash, error))
        return FALSE;
    hash = rp_cache_header_hash(header, rp_hash64(cache->index, n, hash));
    return (hash == header->hash && check_entries(cache)) || refuse(cache, "a damaged one", error);
}

static guint64
print_of(guint64 key, guint64 hash)
{
    const guint64 numbers[] = {GUINT64_TO_LE(key), GUINT64_TO_LE(hash)};

    return rp_hash64(numbers, sizeof numbers, 0);
}

RpDataset *
rp_dataset_open_cache(const char *path, guint64 key, const char *name, const char *const *names,
                      guint vocabulary, RpCacheHeader *header, GError **error)
{
    g_return_val_if_fail(path != NULL && name != NULL && names != NULL, NULL);
    g_return_val_if_fail(error == NULL || *error == NULL, NULL);

    RpDataBytes *bytes = rp_data_bytes_open(path, error);
    if (bytes == NULL)
        return NULL;
    Cache *cache = g_new0(Cache, 1);

    cache->bytes = bytes;
    cache->names = g_strdupv((char **)names);
    cache->n_names = g_strv_length(cache->names);
    cache->vocabulary = vocabulary;
    if (!read_index(cache, key, error)) {
        cache_free(cache);
        return NULL;
    }
    const guint64 index_hash =
        rp_hash64(cache->index, (gsize)cache->header.n_samples * RP_CACHE_ENTRY_BYTES, 0);
    const RpFingerprints prints = {print_of(key, cache->header.hash), print_of(key, index_hash)};

    *header = cache->header;
    return rp_dataset_new(&cache_ops, cache, name, cache->header.n_samples, vocabulary, &prints);
}
