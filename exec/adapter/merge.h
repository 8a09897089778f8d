/**
 * A model with its adapters merged into it: W + s B A, tensor by tensor, a few rows at a time.
 */
#pragma once

#include "exec/model/weights.h"

/* @done and @total in elements. */
typedef void (*RpMergeProgress)(guint64 done, guint64 total, gpointer user_data);

typedef struct {
    guint64 max_shard_bytes;  /* 0 = one file */
    RpMergeProgress progress; /* (nullable) */
    gpointer user_data;
} RpMergeOptions;

/**
 * rp_merge_write:
 * @weights: bound, with adapters, each of which is bound too (rp_adapter_bind())
 * @directory: exists
 *
 * Writes model.safetensors, or shards with their index, in the base's type. Sums are fp32, in the
 * order of the rank, and rounded once. If it cannot be written, all files stay as they were.
 *
 * Errors: G_FILE_ERROR, RP_SAFETENSORS_ERROR_NO_SPACE
 */
gboolean rp_merge_write(const RpWeights *weights, const char *directory,
                        const RpMergeOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
