/**
 * Records of a file, one after the other: the lines of a .jsonl, or the elements of the array that a
 * .json holds; compressed or not. Memory is that of one record.
 */
#pragma once

#include "text/samples/inflate.h"

#define RP_RECORD_MAX_BYTES ((gsize)64 << 20)

typedef struct _RpRecords RpRecords;

/* Whether @path is of a kind that is read here. */
gboolean rp_records_can_read(const char *path);

/* How the records of parquet, CSV or a data set's name get into such a file. Returns: (transfer full)
 * (nullable): nothing is known of another */
char *rp_records_hint(const char *path);

/* Errors: G_FILE_ERROR, RP_SAMPLES_ERROR_FILE for another kind */
RpRecords *rp_records_open(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_records_free(RpRecords *records);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRecords, rp_records_free)

/* For messages: the path as it is shown. */
const char *rp_records_name(const RpRecords *records);

/* Bytes of the file that were read so far. */
guint64 rp_records_offset(const RpRecords *records);

/**
 * rp_records_next:
 * @text: the record is appended, as it stands in the file; not checked
 * @line: (out): lines of the file before it
 * @found: (out): whether there was one
 *
 * Errors: RP_SAMPLES_ERROR_RECORD: too long, or no array of a .json; those of rp_inflate_read()
 */
gboolean rp_records_next(RpRecords *records, GString *text, guint64 *line, gboolean *found,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
