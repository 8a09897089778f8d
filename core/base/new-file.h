/**
 * A file that is complete or not there: it is written beside its name, and renamed when all of it is on the disk.
 *
 *   begin    .NAME.tmp, locked and of its whole size; a killed process's is removed
 *   write    ...
 *   finish   synced                    -> NAME
 *
 * A file NAME that was there stays as it was until then, and after any error.
 */
#pragma once

#include <glib.h>

typedef struct _RpNewFile RpNewFile;

/**
 * rp_new_file_begin:
 * @bytes: that will be written; they are allocated on the disk
 *
 * Errors: G_FILE_ERROR naming @path; G_FILE_ERROR_NOSPC: the disk cannot hold it; G_FILE_ERROR_TXTBSY: another process
 *   is writing it
 */
RpNewFile *rp_new_file_begin(const char *path, guint64 bytes,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Before the end: removes what is written of it. */
void rp_new_file_free(RpNewFile *file);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpNewFile, rp_new_file_free)

/* From any thread. Errors: as rp_new_file_begin() */
gboolean rp_new_file_write(const RpNewFile *file, guint64 offset, const void *data, gsize bytes,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The end has two halves, for files that must appear together. The directory is synced by the caller, who knows the
 * last of them. Errors: G_FILE_ERROR naming the path */
gboolean rp_new_file_sync(const RpNewFile *file, GError **error) G_GNUC_WARN_UNUSED_RESULT;
gboolean rp_new_file_rename(RpNewFile *file, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_new_file_check_space:
 *
 * A first look that answers before hours of work; the allocation of begin has the last word.
 *
 * Errors: G_FILE_ERROR_NOSPC with the bytes that are needed and free
 */
gboolean rp_new_file_check_space(const char *path, guint64 bytes,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* .NAME@suffix beside @path: no reader takes it for a result, and the next writer removes it. (transfer full) */
char *rp_new_file_temporary_path(const char *path, const char *suffix);
#define RP_NEW_FILE_SUFFIX ".tmp"

/* Finds the bytes that the disk of @directory, which exists, has free. Returns: FALSE with errno if the system cannot
 * say */
gboolean rp_new_file_free_bytes(const char *directory, guint64 *bytes);

/* After renames in it. Returns: 0, or an errno */
int rp_new_file_sync_directory(const char *directory) G_GNUC_WARN_UNUSED_RESULT;
