/**
 * Samples of tokens to train on, from files.
 *
 * Two sources (open.c): JSONL with `input_ids` and perhaps `labels`, and flat little-endian uint32.
 * Both read and check a sample on request; a file of any size opens in the memory of its index. Formats and rules: docs/data.md.
 */
#pragma once

#include <glib.h>

#include "exec/data/bytes.h"
#include "text/samples/samples.h"

typedef enum {
    RP_DATASET_ERROR_FILE, /* nothing in it, of impossible length, of an unknown kind, cut short */
    RP_DATASET_ERROR_SAMPLE, /* a sample that is not JSON, of wrong type, with an impossible id */
    RP_DATASET_ERROR_BATCH,  /* nothing to learn from it, or too few samples for one */
    RP_DATASET_ERROR_STATE   /* a saved place that is not one of this dataset */
} RpDatasetError;

#define RP_DATASET_ERROR (rp_dataset_error_quark())
GQuark rp_dataset_error_quark(void);

#define RP_DATASET_MAX_VOCABULARY G_MAXINT32
#define RP_JSONL_MAX_LINE_BYTES ((gsize)64 << 20)

/* Operations of a kind of source. Functions take the source and may be called from any thread. */
typedef struct {
    gboolean (*read)(gconstpointer source, guint64 index, RpSample *sample, GError **error);
    char *(*locate)(gconstpointer source, guint64 index); /* "line 3"; (transfer full) */
    const RpDataBytes *(*bytes)(gconstpointer source);
    void (*free)(gpointer source);
    /* (nullable): tokens of a sample, known without reading it: its ids are good */
    guint64 (*length)(gconstpointer source, guint64 index);
    /* (nullable): of several files */
    guint (*file)(gconstpointer source, guint64 index);
} RpDatasetOps;

/* They change when the content does; a resume compares one. */
typedef struct {
    guint64 all;     /* fingerprint of all bytes */
    guint64 sampled; /* as older checkpoints have it: of the length and 256 places (of a cache: of
                      * its key and entries) */
} RpFingerprints;

typedef struct _RpDataset RpDataset;

/**
 * rp_dataset_new:
 * @source: (transfer full)
 * @name: for messages: the file's
 * @n_samples: > 0
 * @vocabulary: the ids read are less than this
 */
RpDataset *rp_dataset_new(const RpDatasetOps *ops, gpointer source, const char *name,
                          guint64 n_samples, guint vocabulary, const RpFingerprints *fingerprints);
/* Views share one. Not for several threads at once. */
RpDataset *rp_dataset_ref(RpDataset *dataset);
void rp_dataset_free(RpDataset *dataset);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpDataset, rp_dataset_free)

/**
 * rp_dataset_open:
 * @path: `….jsonl` or `….bin`
 * @vocabulary: ids are less than this
 * @sequence_tokens: what a `.bin` is cut into; not used for JSONL
 *
 * Errors: G_FILE_ERROR, %RP_DATASET_ERROR_FILE
 */
RpDataset *rp_dataset_open(const char *path, guint vocabulary, guint sequence_tokens,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_dataset_open_jsonl:
 *
 * One pass over the file finds where lines start: 8 bytes of memory a line, 64-bit places.
 * Sample i is line i + 1.
 *
 * Errors: G_FILE_ERROR, %RP_DATASET_ERROR_FILE if the file is empty
 */
RpDataset *rp_dataset_open_jsonl(const char *path, guint vocabulary,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for text in memory, which is kept. */
RpDataset *rp_dataset_new_jsonl(const char *name, GBytes *text, guint vocabulary,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_dataset_open_tokens:
 * @sequence_tokens: > 0; sample i is tokens i × @sequence_tokens to (i + 1) × @sequence_tokens - 1.
 *   Tokens behind the last whole sequence belong to no sample.
 *
 * Errors: G_FILE_ERROR, %RP_DATASET_ERROR_FILE if the length is no multiple of 4 bytes or there is
 *   not one whole sequence
 */
RpDataset *rp_dataset_open_tokens(const char *path, guint vocabulary, guint sequence_tokens,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for bytes in memory, which are kept. */
RpDataset *rp_dataset_new_tokens(const char *name, GBytes *bytes, guint vocabulary,
                                 guint sequence_tokens, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_dataset_open_cache:
 * @path: of a cache of text/samples
 * @key: that it was made with
 * @name: of the data, @names: of the files that it was made of, for messages
 * @header: (out)
 *
 * Errors: G_FILE_ERROR; %RP_DATASET_ERROR_FILE if it is no cache, one of another key, or damaged
 */
RpDataset *rp_dataset_open_cache(const char *path, guint64 key, const char *name,
                                 const char *const *names, guint vocabulary, RpCacheHeader *header,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Samples of @base: its numbers @indices, each as often as it is there. Holds a reference. */
RpDataset *rp_dataset_new_view(RpDataset *base, const guint64 *indices, guint64 n);

const char *rp_dataset_name(const RpDataset *dataset);
guint64 rp_dataset_n_samples(const RpDataset *dataset);
guint rp_dataset_vocabulary(const RpDataset *dataset);
RpFingerprints rp_dataset_fingerprint(const RpDataset *dataset);

/* Whether the file has the size and the time of when it was opened; memory does not change.
 * Errors: %RP_DATASET_ERROR_FILE, naming the change; G_FILE_ERROR */
gboolean rp_dataset_check_unchanged(const RpDataset *dataset,
                                    GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @references: (transfer full): [samples][2], a reference's log-probabilities of the documents of preferences: a batcher
 * puts them into its batches */
void rp_dataset_set_references(RpDataset *dataset, float *references);
/* Returns: (nullable): there are none */
const float *rp_dataset_references(const RpDataset *dataset);

/* Returns which of its files a sample is in. */
guint rp_dataset_file(const RpDataset *dataset, guint64 index);

/* Place of @index, without the file: "line 3". (transfer full) */
char *rp_dataset_locate(const RpDataset *dataset, guint64 index);

/**
 * rp_dataset_read:
 * @index: less than the number of samples
 * @sample: of it, arrays may be written to even if the call fails
 *
 * Checks all of the sample, also tokens that do not fit @sample.
 *
 * Errors: %RP_DATASET_ERROR_SAMPLE, one line: `FILE: line 3, column 14: expected …, found …`;
 *   %RP_DATASET_ERROR_FILE if the file has become shorter, G_FILE_ERROR
 */
gboolean rp_dataset_read(const RpDataset *dataset, guint64 index, RpSample *sample,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Tokens of a sample, at least 1: known at once after a check, else it is read. Errors: as
 * rp_dataset_read() */
gboolean rp_dataset_length(const RpDataset *dataset, guint64 index, guint64 *n_tokens,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Counts of a file's samples and tokens. */
typedef struct {
    guint64 n_samples;
    guint64 n_tokens;
    guint64 shortest_tokens;
    guint64 longest_tokens;
    guint64 longest_index;
    guint64 n_truncated_samples; /* longer than the limit */
    guint64 n_truncated_tokens;  /* tokens that no training sees */
} RpDatasetSummary;

/* @done and @total in samples, every few hundred. Returns: whether to continue */
typedef gboolean (*RpDatasetProgress)(guint64 done, guint64 total, gpointer user_data);

/**
 * rp_dataset_check:
 * @sequence_tokens: training will truncate to this; 0 = it will not
 * @progress: (nullable)
 * @summary: (out): set on success only
 *
 * Reads every sample once, so that a bad line far down a file is found before training, not in it,
 * and notes its length: 4 bytes of memory a sample.
 *
 * Errors: those of rp_dataset_read(); G_IO_ERROR_CANCELLED if @progress says so
 */
gboolean rp_dataset_check(RpDataset *dataset, guint sequence_tokens, RpDatasetProgress progress,
                          gpointer user_data, RpDatasetSummary *summary,
                          GError **error) G_GNUC_WARN_UNUSED_RESULT;
