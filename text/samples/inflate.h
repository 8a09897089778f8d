/**
 * The bytes of a file, decompressed if its name ends in .gz, .zst or .zstd. They come in pieces: a
 * file may be larger than memory, and so may its decompressed text.
 */
#pragma once

#include <glib.h>

#define RP_SAMPLES_ERROR (rp_samples_error_quark())
GQuark rp_samples_error_quark(void);
typedef enum {
    RP_SAMPLES_ERROR_FILE,   /* a file of an unknown kind, damaged, or cut short */
    RP_SAMPLES_ERROR_RECORD, /* a record that is none, or that no sample can be made of */
    RP_SAMPLES_ERROR_NOTHING /* no sample in all of the files, or nothing to learn */
} RpSamplesError;

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
