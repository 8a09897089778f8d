/**
 * Shared by the sources of samples.
 */
#pragma once

#include "exec/data/bytes.h"
#include "exec/data/dataset.h"

/**
 * rp_dataset_fingerprints:
 * @kind: of the source and its version
 * @shape: of the samples that it is cut into
 *
 * Computes the fingerprint of all bytes, and the one that old checkpoints have. Errors: those of
 * rp_data_bytes_get()
 */
gboolean rp_dataset_fingerprints(const char *kind, guint64 shape, const RpDataBytes *bytes,
                                 RpFingerprints *fingerprints,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

const RpDataBytes *rp_dataset_bytes(const RpDataset *dataset);
/* Tokens of a sample, if that is known without reading it; else 0. */
guint64 rp_dataset_known_length(const RpDataset *dataset, guint64 index);
