#include "text/samples/samples.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/quote.h"

#define ENDING ".bin"
/* A file that nobody holds and nobody has written to for so long is a leftover. */
#define OLD_SECONDS 3600

#define N_HEADER (sizeof(RpCacheHeader) / sizeof(guint64))

struct _RpCacheWriter {
    char *path, *temporary;
    FILE *file;
    RpCacheHeader header;
    GByteArray *index;
    GArray *words;     /* guint32: a sample's */
    GByteArray *piece; /* words that are not hashed yet */
    guint64 hash;      /* hash of the pieces before it */
};

/* Between a header and the bytes of a file; both ways are the same. */
void
rp_cache_header_read(const void *bytes, RpCacheHeader *header)
{
    guint64 numbers[N_HEADER];

    memcpy(numbers, bytes, sizeof numbers);
    for (guint i = 0; i < N_HEADER; i++)
        numbers[i] = GUINT64_FROM_LE(numbers[i]);
    memcpy(header, numbers, sizeof numbers);
}

guint64
rp_cache_header_hash(const RpCacheHeader *header, guint64 hash)
{
    RpCacheHeader bytes;

    rp_cache_header_read(header, &bytes);
    return rp_hash64(&bytes, G_STRUCT_OFFSET(RpCacheHeader, hash), hash);
}

void
rp_cache_entry_read(const void *bytes, RpCacheEntry *entry)
{
    const guint8 *at = bytes;

    memcpy(&entry->word, at, 8);
    memcpy(&entry->n_tokens, at + 8, 4);
    memcpy(&entry->file, at + 12, 4);
    memcpy(&entry->line, at + 16, 8);
    entry->word = GUINT64_FROM_LE(entry->word);
    entry->n_tokens = GUINT32_FROM_LE(entry->n_tokens);
    entry->file = GUINT32_FROM_LE(entry->file);
    entry->line = GUINT64_FROM_LE(entry->line);
}

static gboolean
fail(const RpCacheWriter *writer, GError **error)
{
    const int number = errno;
    g_autofree char *name = rp_display_name(writer->temporary);

    return rp_fail(error, G_FILE_ERROR, (gint)g_file_error_from_errno(number),
                   "cannot write \"%s\": %s", name, g_strerror(number));
}

static gboolean
put(RpCacheWriter *writer, const void *bytes, gsize n, GError **error)
{
    return fwrite(bytes, 1, n, writer->file) == n || fail(writer, error);
}

/* Files beside @path that were begun for samples of other keys, long ago, and never finished. */
static void
remove_old_leftovers(const char *path)
{
    g_autofree char *directory = g_path_get_dirname(path);
    g_autoptr(GPtrArray) names = rp_file_list(directory, NULL);
    const gint64 now = g_get_real_time() / G_USEC_PER_SEC;

    for (guint i = 0; names != NULL && i < names->len; i++) {
        const char *name = g_ptr_array_index(names, i);
        const char *end = strstr(name, ENDING ".");
        g_autofree char *left = g_build_filename(directory, name, NULL);
        GStatBuf status;

        if (!g_str_has_prefix(name, "samples-") || end == NULL || g_stat(left, &status) != 0 ||
            now - (gint64)status.st_mtime < OLD_SECONDS)
            continue;
        left[strlen(left) - strlen(end) + strlen(ENDING)] = '\0';
        rp_file_remove_leftovers(left);
    }
}

RpCacheWriter *
rp_cache_writer_new(const char *path, guint64 key, guint mode, GError **error)
{
    static const char empty[RP_CACHE_HEADER_BYTES];
    g_autoptr(RpCacheWriter) writer = g_new0(RpCacheWriter, 1);
    g_autofree char *directory = g_path_get_dirname(path);

    G_STATIC_ASSERT(sizeof(RpCacheHeader) <= RP_CACHE_HEADER_BYTES);
    rp_file_remove_leftovers(path);
    remove_old_leftovers(path);
    writer->path = g_strdup(path);
    writer->temporary = g_strdup_printf("%s.XXXXXX", path);
    writer->header =
        (RpCacheHeader){.magic = RP_CACHE_MAGIC, .version = RP_CACHE_VERSION, .key = key};
    writer->index = g_byte_array_new();
    writer->words = g_array_new(FALSE, FALSE, sizeof(guint32));
    writer->piece = g_byte_array_new();
    /* g_mkstemp_full() opens with O_EXCL, which follows no link */
    const int fd = g_mkdir_with_parents(directory, 0777) == 0
                       ? g_mkstemp_full(writer->temporary, O_WRONLY | O_CLOEXEC, (int)mode)
                       : -1;
    writer->file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (writer->file == NULL)
        return rp_null(fail(writer, error));
    (void)flock(fileno(writer->file), LOCK_EX); /* it is no leftover */
    return put(writer, empty, sizeof empty, error) ? g_steal_pointer(&writer) : NULL;
}

void
rp_cache_writer_free(RpCacheWriter *writer)
{
    if (writer == NULL)
        return;
    if (writer->file != NULL) {
        (void)fclose(writer->file);
        (void)g_unlink(writer->temporary);
    }
    g_byte_array_unref(writer->index);
    g_array_unref(writer->words);
    g_byte_array_unref(writer->piece);
    g_free(writer->path);
    g_free(writer->temporary);
    g_free(writer);
}

static void
add_number(GByteArray *to, guint64 number, guint n_bytes)
{
    const guint64 little = GUINT64_TO_LE(number);

    g_byte_array_append(to, (const guint8 *)&little, n_bytes);
}

/* Whether each label is its id or masked. */
static gboolean
is_mask(const gint32 *ids, const gint32 *labels, guint32 n)
{
    for (guint32 i = 0; i < n; i++)
        if (labels[i] != ids[i] && labels[i] != RP_LABEL_MASKED)
            return FALSE;
    return TRUE;
}

/* Adds bytes to the piece and hashes every piece that is full. */
static void
hash_words(RpCacheWriter *writer, const guint8 *bytes, gsize n)
{
    while (n > 0) {
        const gsize some = MIN(n, RP_CACHE_PIECE_BYTES - writer->piece->len);

        g_byte_array_append(writer->piece, bytes, (guint)some);
        bytes += some;
        n -= some;
        if (writer->piece->len < RP_CACHE_PIECE_BYTES)
            return;
        writer->hash = rp_hash64(writer->piece->data, writer->piece->len, writer->hash);
        g_byte_array_set_size(writer->piece, 0);
    }
}

gboolean
rp_cache_writer_add(RpCacheWriter *writer, const gint32 *ids, const gint32 *labels, guint32 n,
                    RpSplit split, guint32 file, guint64 line, GError **error)
{
    RpCacheHeader *header = &writer->header;
    const gboolean apart = !is_mask(ids, labels, n);
    guint64 n_learned = 0;

    g_array_set_size(writer->words, apart ? 2 * n : n);
    guint32 *words = &g_array_index(writer->words, guint32, 0);
    for (guint32 i = 0; i < n; i++) {
        const gboolean masked = labels[i] == RP_LABEL_MASKED;

        words[i] = GUINT32_TO_LE((guint32)ids[i] | (masked && !apart ? RP_CACHE_MASKED : 0));
        if (apart)
            words[n + i] = GUINT32_TO_LE(masked ? RP_CACHE_MASKED : (guint32)labels[i]);
        n_learned += i > 0 && i != split.tokens && !masked;
    }
    if (split.tokens > 0) {
        const guint32 word =
            GUINT32_TO_LE(split.tokens | (guint32)split.answer << RP_CACHE_ANSWER_SHIFT);

        g_array_append_val(writer->words, word);
    }
    if (split.shared > 0) {
        const guint32 word = GUINT32_TO_LE(split.shared);

        g_array_append_val(writer->words, word);
    }
    words = &g_array_index(writer->words, guint32, 0);
    add_number(writer->index, header->n_words, 8);
    add_number(writer->index,
               n | (apart ? RP_CACHE_APART : 0) | (split.tokens > 0 ? RP_CACHE_SPLIT : 0) |
                   (split.shared > 0 ? RP_CACHE_SHARED : 0),
               4);
    add_number(writer->index, file, 4);
    add_number(writer->index, line, 8);
    header->n_samples++;
    header->n_words += writer->words->len;
    header->n_tokens += n;
    header->n_learned += n_learned;
    header->n_unlearned += n_learned == 0;
    hash_words(writer, (const guint8 *)words, writer->words->len * sizeof *words);
    return put(writer, words, writer->words->len * sizeof *words, error);
}

guint64
rp_cache_writer_n_learned(const RpCacheWriter *writer)
{
    return writer->header.n_learned;
}

gboolean
rp_cache_writer_finish(RpCacheWriter *writer, guint64 n_skipped, RpCacheHeader *header,
                       GError **error)
{
    RpCacheHeader bytes;

    writer->header.n_skipped = n_skipped;
    if (writer->piece->len > 0)
        writer->hash = rp_hash64(writer->piece->data, writer->piece->len, writer->hash);
    writer->hash = rp_hash64(writer->index->data, writer->index->len, writer->hash);
    writer->header.hash = rp_cache_header_hash(&writer->header, writer->hash);
    rp_cache_header_read(&writer->header, &bytes);
    if (!put(writer, writer->index->data, writer->index->len, error))
        return FALSE;
    if (fseek(writer->file, 0, SEEK_SET) != 0)
        return fail(writer, error);
    if (!put(writer, &bytes, sizeof bytes, error))
        return FALSE;
    if (fflush(writer->file) != 0 || fsync(fileno(writer->file)) != 0)
        return fail(writer, error);
    const int closed = fclose(g_steal_pointer(&writer->file));
    if (closed != 0 || g_rename(writer->temporary, writer->path) != 0) {
        (void)fail(writer, error);
        (void)g_unlink(writer->temporary);
        return FALSE;
    }
    *header = writer->header;
    return TRUE;
}
