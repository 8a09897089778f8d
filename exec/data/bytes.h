/**
 * The bytes of a data file, or of text in memory.
 *
 * A file is read piece by piece with pread(), not mapped: one that is cut short while it is read is
 * an error with a message, where a mapping would end the process with SIGBUS.
 */
#pragma once

#include <glib.h>

typedef struct _RpDataBytes RpDataBytes;

/**
 * rp_data_bytes_open:
 *
 * Opens a regular file and keeps it open: one of the same name that takes its place is not read.
 *
 * Errors: G_FILE_ERROR naming @path
 */
RpDataBytes *rp_data_bytes_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Bytes that are there already and are kept. @name: for messages */
RpDataBytes *rp_data_bytes_new(const char *name, GBytes *bytes);
void rp_data_bytes_free(RpDataBytes *bytes);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpDataBytes, rp_data_bytes_free)

/* For messages: the path as it is shown. */
const char *rp_data_bytes_name(const RpDataBytes *bytes);
/* Length when it was opened. */
guint64 rp_data_bytes_length(const RpDataBytes *bytes);

/**
 * rp_data_bytes_get:
 * @scratch: (out) (transfer full) (nullable): memory that was needed; free it when the bytes are
 * not used any more
 *
 * @n bytes from @offset on. From any thread.
 *
 * Returns: %NULL on error; for @n = 0 not %NULL
 * Errors: G_FILE_ERROR; RP_DATASET_ERROR_FILE if the file has become shorter
 */
const guint8 *rp_data_bytes_get(const RpDataBytes *bytes, guint64 offset, gsize n, guint8 **scratch,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_data_bytes_hash:
 *
 * A hash of all of it, in several threads. The same bytes give the same hash.
 *
 * Source: rp_hash64() of the hashes of its pieces of 2^24 bytes
 */
gboolean rp_data_bytes_hash(const RpDataBytes *bytes, guint64 *hash,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Whether size and time of the open file are those of when it was opened.
 * Errors: G_FILE_ERROR, RP_DATASET_ERROR_FILE, naming the change */
gboolean rp_data_bytes_check_unchanged(const RpDataBytes *bytes,
                                       GError **error) G_GNUC_WARN_UNUSED_RESULT;
