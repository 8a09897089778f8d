/**
 * Samples on disk, as training reads them: ids, labels, and an index behind them.
 *
 *   |header|words of sample 0|words of sample 1|...|entry 0|entry 1|...|
 *
 * A word is a token: its id, and RP_CACHE_MASKED if it is not learned. A sample whose labels are
 * neither its ids nor masked has its labels behind its ids, as words too. All little-endian. A file
 * is whole or not there: it is written under another name.
 */
#pragma once

#include "text/samples/inflate.h"

#define RP_CACHE_MASKED 0x80000000u
#define RP_CACHE_HEADER_BYTES 128
#define RP_CACHE_ENTRY_BYTES 24
#define RP_CACHE_APART 0x80000000u /* in n_tokens of an entry: labels stand behind the ids */

typedef struct {
    guint64 magic; /* "rpsample" */
    guint64 version;
    guint64 key; /* hash of all that the samples follow from */
    guint64 n_samples;
    guint64 n_words;
    guint64 n_tokens;
    guint64 n_learned;   /* tokens that are targets */
    guint64 n_skipped;   /* bad records */
    guint64 n_unlearned; /* samples without targets */
    guint64 hash;        /* hash of the words, the entries and the numbers above */
} RpCacheHeader;
#define RP_CACHE_MAGIC G_GUINT64_CONSTANT(0x656c706d61737072)
#define RP_CACHE_VERSION 2 /* the first had a hash of its entries alone: it is made anew */

typedef struct {
    guint64 word; /* its first */
    guint32 n_tokens;
    guint32 file; /* index in the list */
    guint64 line; /* before it, in the file */
} RpCacheEntry;

/* Words are hashed in pieces of this many bytes, each with the hash before it as its seed, then the
 * entries in one piece, then the header's numbers. */
#define RP_CACHE_PIECE_BYTES ((gsize)1 << 20)

/* @hash: hash of the words and the entries. Returns: RpCacheHeader.hash */
guint64 rp_cache_header_hash(const RpCacheHeader *header, guint64 hash);

/* Reads one from a file's bytes. */
void rp_cache_header_read(const void *bytes, RpCacheHeader *header);
void rp_cache_entry_read(const void *bytes, RpCacheEntry *entry);

typedef struct _RpCacheWriter RpCacheWriter;

/* @path: the finished file, in a directory that is made; @mode: its permissions, of which the
 * process's mask takes some away. Errors: G_FILE_ERROR */
RpCacheWriter *rp_cache_writer_new(const char *path, guint64 key, guint mode,
                                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
/* Removes an unfinished file. */
void rp_cache_writer_free(RpCacheWriter *writer);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpCacheWriter, rp_cache_writer_free)

gboolean rp_cache_writer_add(RpCacheWriter *writer, const gint32 *ids, const gint32 *labels,
                             guint32 n, guint32 file, guint64 line,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Targets of all that was added. */
guint64 rp_cache_writer_n_learned(const RpCacheWriter *writer);

/* @header: (out): as written. Errors: G_FILE_ERROR */
gboolean rp_cache_writer_finish(RpCacheWriter *writer, guint64 n_skipped, RpCacheHeader *header,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
