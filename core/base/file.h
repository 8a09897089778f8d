/**
 * Files of others: opened, mapped and read so that none blocks, and none takes more than it may; and found,
 * if they are our own.
 */
#pragma once

#include <glib.h>
#include <sys/stat.h>

/**
 * rp_file_open:
 * @status: (out)
 *
 * Opens a regular file for reading. A pipe would block and a device has no size: both are refused.
 *
 * Returns: a descriptor, -1 on error
 * Errors: G_FILE_ERROR naming @path
 */
int rp_file_open(const char *path, struct stat *status, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_file_map:
 *
 * Maps a regular file for reading, as rp_file_open() opens it.
 *
 * Returns: (transfer full)
 * Errors: G_FILE_ERROR naming @path
 */
GMappedFile *rp_file_map(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_file_read:
 * @max_bytes: a file that has more is refused
 * @length: (out)
 *
 * Reads a whole file, a device or a pipe, with a NUL behind it. A pipe that nobody opens for
 * writing is waited for as long as RP_FILE_WAIT_MS; a writer may then take its time.
 *
 * Returns: (transfer full)
 * Errors: G_FILE_ERROR naming @path; G_FILE_ERROR_INVAL: rp_file_is_pointer()
 */
char *rp_file_read(const char *path, gsize max_bytes, gsize *length,
                   GError **error) G_GNUC_WARN_UNUSED_RESULT;
#define RP_FILE_WAIT_MS 3000

/* A clone without git-lfs has three lines of text in place of each large file. */
gboolean rp_file_is_pointer(const void *bytes, gsize length);
#define RP_FILE_POINTER_WORDS                                                                      \
    "found a pointer of git-lfs in its place; `git lfs pull` in its folder, or `hf download`, "    \
    "fetches it"

/* @path, or the nearest directory above it that is there. (transfer full) */
char *rp_file_existing_directory(const char *path);

/**
 * rp_file_list:
 *
 * The names in a directory, sorted. All of them or an error: GDir takes an error for the end.
 *
 * Returns: (transfer full) (element-type utf8)
 * Errors: G_FILE_ERROR naming @path
 */
GPtrArray *rp_file_list(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* Removes a directory and the files in it, as far as that works. */
void rp_file_remove_directory(const char *path);

/* Removes the files PATH.* beside @path that a killed process left before it renamed them to @path;
 * locked ones (flock) stay: somebody is writing them. */
void rp_file_remove_leftovers(const char *path);

/* Whether both are there and are one file: device and inode. */
gboolean rp_file_is_same(const char *a, const char *b);
/* Whether both are one file, or would be when they are written. */
gboolean rp_file_is_same_place(const char *a, const char *b);

/*
 * Files that are installed with the program or the library, wherever both were copied to.
 */

/**
 * rp_file_own_directory:
 *
 * The directory of the program or, if this code is a shared library's, the directory of that
 * library: another program may have loaded it.
 *
 * Returns: (transfer full)
 */
char *rp_file_own_directory(void);

/**
 * rp_file_find_module:
 * @folder: the folder of the build that makes it, such as "exec/cuda"
 * @file: its name
 *
 * Looks for a module in this order; HERE is rp_file_own_directory():
 *
 *   HERE/../FOLDER, HERE/../../FOLDER   a build folder, wherever it was copied to
 *   HERE                                beside the program
 *   HERE/roundpipe                      installed beside the library
 *   HERE/../LIBDIR/roundpipe            installed, under any prefix
 *   PREFIX/LIBDIR/roundpipe             installed
 *
 * Returns: (transfer full) (nullable): its path
 */
char *rp_file_find_module(const char *folder, const char *file);
