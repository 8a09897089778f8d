/**
 * Files of others, as far as the readers of this folder need them.
 */
#pragma once

#include <glib.h>

/**
 * rp_file_map:
 *
 * Maps a regular file for reading. A pipe would block and a device has no size: both are refused.
 *
 * Returns: (transfer full)
 * Errors: G_FILE_ERROR naming @path
 */
GMappedFile *rp_file_map(const char *path, GError **error) G_GNUC_WARN_UNUSED_RESULT;
