/**
 * Writes a 16-bit checkpoint, or random weights, in few bits: its linear matrices packed, all else as it is, in one
 * file.
 *
 *   model.safetensors   |embed|q_proj|..|norm|lm_head|
 *   model.nf4-1f0c…     |embed|q_proj packed, scales, ..|..|norm|lm_head|
 *
 * Weight after weight is packed by all processors and written; memory holds only one at a time, the
 * largest at most. Experts of a layer are packed as one tensor of their stack's name, or as published models have them.
 */
#pragma once

#include "exec/model/init.h"
#include "exec/model/weights.h"

/* @done and @total in elements. Returns: whether to continue */
typedef gboolean (*RpQuantiseProgress)(guint64 done, guint64 total, gpointer user_data);

typedef struct {
    gboolean published; /* experts one by one, and behind all a larger model's other parts */
    RpQuantiseProgress progress; /* (nullable) */
    gpointer user_data;
} RpQuantiseOptions;

/**
 * rp_quantise:
 * @checkpoint: of @model, in 16 or 32 bits
 * @path: the file. Until it is whole, an older file stays there, and nothing is left of an attempt
 *   that fails
 *
 * Errors: those of rp_weights_bind() and of the writer; RP_LOWBIT_ERROR_VALUE: a weight that is not
 *   finite; G_IO_ERROR_CANCELLED
 */
gboolean rp_quantise(const RpModel *model, const RpSafetensors *checkpoint, RpLowbit format,
                     const char *path, const RpQuantiseOptions *options,
                     GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_quantise_random:
 * @directory: exists
 *
 * Writes rp_quantise()'s file for rp_init_write()'s weights, without writing those, and
 * config.json. Errors: as rp_init_write()
 */
gboolean rp_quantise_random(const RpModel *model, RpLowbit format, const char *directory,
                            const RpInitOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The quantization_config of @model that is published in fp8, with the modules that stay as @checkpoint has them. (transfer
 * full) */
char *rp_quantise_fp8_config(const RpModel *model, const RpSafetensors *checkpoint);

/* Path of the packed form of a checkpoint: beside it, by its hash. (transfer full) */
char *rp_quantise_path(const RpSafetensors *checkpoint, RpLowbit format);
