/**
 * What the sources share.
 */
#pragma once

#include "exec/data/dataset.h"

/**
 * rp_dataset_map:
 * @name: (out): the path for messages. (transfer full)
 *
 * Maps a file; pages come and go as they are read.
 */
GBytes *rp_dataset_map(const char *path, char **name, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_dataset_hash:
 * @kind: of the source, its version and shape
 *
 * A fingerprint of the length and of 256 places spread over @bytes; of all bytes of a small file.
 * Tells another file, or one that grew; not one changed byte of a large one.
 *
 * Source: FNV-1a, 64 bits
 */
guint64 rp_dataset_hash(const char *kind, guint64 shape, const guint8 *bytes, gsize length);
