/**
 * Samples: from the records of files to ids on disk.
 *
 * A record of token ids is an object with `input_ids` and perhaps `labels`. Rules: docs/data.md.
 */
#pragma once

#include <glib.h>

#include "core/catalogue/preference.h"
#include "core/json/json-record.h"
#include "text/chat/chat.h"

/* A label that is no target, as PyTorch's cross entropy and Hugging Face have it. */
#define RP_LABEL_MASKED (-100)

/* Two documents of a preference, one behind the other in a sample. */
typedef struct {
    guint32 tokens; /* of the first; 0: the sample is one document */
    guint8 answer;  /* RpAnswerKind of the first */
    /* tokens of the first that the second begins with, too, and stands without: they neither are learned nor predict a
     * token that is */
    guint32 shared;
} RpSplit;

/* Where a sample is read to: memory of the caller. */
typedef struct {
    gint32 *input_ids; /* @capacity places; (nullable) if that is 0 */
    gint32 *labels;    /* @capacity labels of the same token, not of the next; the ids themselves if
                          the sample has none */
    gsize capacity;    /* tokens; longer samples are checked and counted, not stored */
    guint64 n_tokens;  /* (out): tokens of the whole sample, at least 1 */
    RpSplit split;     /* (out) */
} RpSample;

typedef struct {
    guint vocabulary;
    char *expected_id; /* for messages */
    char *expected_label;
} RpIdsReader;

/* @vocabulary: ids are less than this */
void rp_ids_reader_init(RpIdsReader *reader, guint vocabulary);
void rp_ids_reader_clear(RpIdsReader *reader);

/* The object that is all of @pull's text. Errors: those of @pull */
gboolean rp_ids_read(const RpIdsReader *reader, RpJsonPull *pull, RpSample *sample);

/*
 * The bytes of a file, decompressed if its name ends in .gz, .zst or .zstd. They come in pieces: a
 * file may be larger than memory, and so may its decompressed text.
 */

#define RP_SAMPLES_ERROR (rp_samples_error_quark())
GQuark rp_samples_error_quark(void);
typedef enum {
    RP_SAMPLES_ERROR_FILE,   /* a file of an unknown kind, damaged, or cut short */
    RP_SAMPLES_ERROR_RECORD, /* a record that is none, or that no sample can be made of */
    RP_SAMPLES_ERROR_NOTHING /* no sample in all of the files, or nothing to learn */
} RpSamplesError;

/* Sets RP_SAMPLES_ERROR_RECORD; @line: lines before it. Returns: %FALSE */
gboolean rp_samples_fail(const char *name, guint64 line, const char *expected, const char *found,
                         GError **error);

typedef struct _RpInflate RpInflate;

/* @path without the ending of a compression. (transfer full) */
char *rp_inflate_name(const char *path);

/* Errors: G_FILE_ERROR naming @path */
RpInflate *rp_inflate_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_inflate_free(RpInflate *inflate);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpInflate, rp_inflate_free)

/* Bytes of the file that were read so far. */
guint64 rp_inflate_offset(const RpInflate *inflate);

/**
 * rp_inflate_read:
 * @n: (out): bytes in @to; 0 at the end
 *
 * Errors: RP_SAMPLES_ERROR_FILE with the place in the compressed file, G_FILE_ERROR
 */
gboolean rp_inflate_read(RpInflate *inflate, char *to, gsize space, gsize *n,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * Records of a file, one after the other: the lines of a .jsonl, the elements of the array that a .json
 * holds, or the rows of a .csv or .tsv as objects of their cells; compressed or not. Memory is that of one record.
 */

#define RP_RECORD_MAX_BYTES ((gsize)64 << 20)

typedef struct _RpRecords RpRecords;

/* Whether @path is of a kind that is read here. */
gboolean rp_records_can_read(const char *path);

/* How the records of parquet or a data set's name get into such a file. Returns: (transfer full)
 * (nullable): nothing is known of another */
char *rp_records_hint(const char *path);

/* Errors: G_FILE_ERROR, RP_SAMPLES_ERROR_FILE for another kind */
RpRecords *rp_records_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_records_free(RpRecords *records);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRecords, rp_records_free)

/* Bytes of the file that were read so far. */
guint64 rp_records_offset(const RpRecords *records);

/**
 * rp_records_next:
 * @text: the record is appended, as it stands in the file or as an object of a row's cells; not checked
 * @line: (out): lines of the file before it
 * @found: (out): whether there was one
 *
 * Errors: RP_SAMPLES_ERROR_RECORD: too long, or no array of a .json; those of rp_inflate_read()
 */
gboolean rp_records_next(RpRecords *records, GString *text, guint64 *line, gboolean *found,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * Samples on disk, as training reads them: ids, labels, and an index behind them.
 *
 *   |header|words of sample 0|words of sample 1|...|entry 0|entry 1|...|
 *
 * A word is a token: its id, and RP_CACHE_MASKED if it is not learned. A sample whose labels are
 * neither its ids nor masked has its labels behind its ids, as words too. A preference has one word
 * more behind these: tokens of its first document and, in the upper bits, that document's kind; then, if its documents
 * share any, the number of these tokens. All little-endian. A file is whole or not there: it is written under another
 * name.
 */

#define RP_CACHE_MASKED 0x80000000u
#define RP_CACHE_HEADER_BYTES 128
#define RP_CACHE_ENTRY_BYTES 24
/* In n_tokens of an entry: labels stand behind the ids; a word for the documents of a preference stands
 * behind these. */
#define RP_CACHE_APART 0x80000000u
#define RP_CACHE_SPLIT 0x40000000u
#define RP_CACHE_SHARED 0x20000000u /* and another, of shared tokens */
#define RP_CACHE_FLAGS (RP_CACHE_APART | RP_CACHE_SPLIT | RP_CACHE_SHARED)
#define RP_CACHE_ANSWER_SHIFT 28 /* of the kind in that word */

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

/* A sample of @n tokens of a line of a file. Errors: G_FILE_ERROR */
gboolean rp_cache_writer_add(RpCacheWriter *writer, const gint32 *ids, const gint32 *labels,
                             guint32 n, RpSplit split, guint32 file, guint64 line,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Targets of all that was added. */
guint64 rp_cache_writer_n_learned(const RpCacheWriter *writer);

/* @header: (out): as written. Errors: G_FILE_ERROR */
gboolean rp_cache_writer_finish(RpCacheWriter *writer, guint64 n_skipped, RpCacheHeader *header,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * From a record to a sample: token ids, and which of them are learned. Records of ids are samples as
 * they stand; chats and texts are made into them by a checkpoint's template and tokenizer
 * (text/chat).
 */

typedef struct {
    const RpChat *chat;    /* %NULL: records of ids alone */
    guint vocabulary;      /* the model's: ids are less than this */
    RpObjective objective; /* preferences have records of their own */
    gboolean shares;       /* the prompt of a pair stands once in its sample */
} RpEncoderOptions;

typedef struct _RpEncoder RpEncoder;

/* Its chat is borrowed. */
RpEncoder *rp_encoder_new(const RpEncoderOptions *options);
void rp_encoder_free(RpEncoder *encoder);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpEncoder, rp_encoder_free)

/* Whether a sample of the record needs a tokenizer; FALSE too if it is no record. */
gboolean rp_record_needs_tokenizer(const char *text, gsize length, RpObjective objective);

/**
 * rp_encoder_read:
 * @name: for messages
 * @line: lines of the file before the record
 * @ids: (element-type gint32): set to the sample's, at least one
 * @labels: (element-type gint32): as many, each the id or RP_LABEL_MASKED
 * @split: (out) (nullable): of pairs, two documents; of KTO only the first of these, whose prompt has @split's tokens:
 *   the other needs another record's answer
 *
 * From any thread. Errors: RP_SAMPLES_ERROR_RECORD with line and column; those of rp_chat_sample()
 */
gboolean rp_encoder_read(const RpEncoder *encoder, const char *name, guint64 line, const char *text,
                         gsize length, GArray *ids, GArray *labels, RpSplit *split,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/*
 * Makes a cache of samples out of files of records, on several threads and in bounded memory:
 *
 *   caller    |read records of job 4|write samples of job 2|read ...
 *   threads   |encode job 2| |encode job 3|
 *
 * Jobs are written in the order in which they were read: the file does not depend on the threads. A sample of KTO is
 * written once the next one's answer is known; the last has that of the first.
 */

/* @done and @total: bytes of the files, as they are on the disk. Returns: whether to go on */
typedef gboolean (*RpBuildProgress)(guint64 done, guint64 total, gpointer user_data);

typedef struct {
    const char *const *paths; /* up to %NULL */
    const RpEncoder *encoder;
    guint threads;            /* 0: as many as there are processors */
    gboolean skip_bad;        /* records that no sample can be made of are counted and left out */
    RpBuildProgress progress; /* (nullable) */
    gpointer user_data;
} RpSamplesBuild;

/**
 * rp_samples_build:
 * @path: the cache's; @key: hash of all that it follows from
 * @header: (out): set on success only
 * @bad: (out) (nullable) (transfer full): the error of the first record left out
 *
 * Errors: those of rp_records_open(), rp_records_next(), rp_encoder_read() and the writer: the first
 *   in the order of the files; RP_SAMPLES_ERROR_NOTHING; G_IO_ERROR_CANCELLED
 */
gboolean rp_samples_build(const RpSamplesBuild *build, const char *path, guint64 key,
                          RpCacheHeader *header, char **bad,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
