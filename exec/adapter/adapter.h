/**
 * Adapters in files as peft has them: a directory with adapter_config.json and
 * adapter_model.safetensors.
 *
 *   base_model.model.<module>.lora_A.weight   [r,in]
 *   base_model.model.<module>.lora_B.weight   [out,r]
 *   base_model.model.<module>.weight          of a module that is trained whole
 *
 * Stacked experts share one tensor; where gate_up_proj and down_proj both have adapters,
 * ".base_layer" stands behind "experts" of the first:
 *
 *   base_model.model.model.layers.N.mlp.experts.lora_A.weight   [r E,in]: expert e has rows e r ..
 *   base_model.model.model.layers.N.mlp.experts.lora_B.weight   [out,r E]: and columns e, e + E ..
 *
 * Source: peft 0.21 tuners/lora/config.py, utils/save_and_load.py
 */
#pragma once

#include "exec/model/weights.h"

#define RP_ADAPTER_CONFIG "adapter_config.json"
#define RP_ADAPTER_TENSORS "adapter_model.safetensors"

#define RP_ADAPTER_ERROR (rp_adapter_error_quark())
GQuark rp_adapter_error_quark(void);
typedef enum {
    RP_ADAPTER_ERROR_SYNTAX,      /* adapter_config.json is malformed */
    RP_ADAPTER_ERROR_UNSUPPORTED, /* a kind of adapter that nothing here computes */
    RP_ADAPTER_ERROR_TENSOR       /* missing, of another shape, or of no matrix: another base */
} RpAdapterError;

/* The weight's name in a file of adapters. (transfer full) */
char *rp_adapter_tensor_name(const RpWeights *weights, guint index);
/* Its shape there. @shape: (out): RP_WEIGHT_MAX_RANK of them. Returns: how many dimensions */
guint rp_adapter_tensor_shape(const RpWeight *weight, guint64 *shape);
/* Whether its elements stand there in another order than the network's. */
gboolean rp_adapter_is_transposed(const RpWeight *weight);
/* Elements @first to @first + @n as they stand there, of all @values of the weight: among them, or
 * in @buffer. @dtype: of the values, fp32 or bf16 */
const float *rp_adapter_to_file(const RpWeight *weight, RpDtype dtype, const void *values,
                                guint64 first, gsize n, float *buffer);

/**
 * rp_adapter_config_load:
 * @directory: with adapter_config.json
 * @lora: (out): rp_lora_clear(); seed 0
 *
 * Errors: G_FILE_ERROR, RP_ADAPTER_ERROR_*: one line with file, line, column, expected and found
 */
gboolean rp_adapter_config_load(const char *directory, RpLora *lora,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same from text. @name: for messages */
gboolean rp_adapter_config_parse(const char *name, const char *text, gsize length, RpLora *lora,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_adapter_config_text:
 * @weights: with adapters
 * @base: where the base is: base_model_name_or_path, which is made absolute
 *
 * Names of modules are whole where one of them stands for fewer than all layers' modules that end
 * so. Returns: (transfer full): adapter_config.json
 */
char *rp_adapter_config_text(const RpWeights *weights, const char *base);

/* The same into @directory, on the disk. @base: (nullable). Errors: G_FILE_ERROR */
gboolean rp_adapter_config_save(const RpWeights *weights, const char *base, const char *directory,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_adapter_bind:
 * @weights: bound, with adapters of the ranks and targets of the directory's config
 * @file: adapter_model.safetensors; must outlive @weights
 *
 * Adapters, and modules that are trained whole, begin as they are in @file.
 *
 * Errors: RP_ADAPTER_ERROR_TENSOR, one line: `FILE: tensor "NAME": expected ..., found ...`
 */
gboolean rp_adapter_bind(RpWeights *weights, const RpSafetensors *file,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @done and @total in elements. */
typedef void (*RpMergeProgress)(guint64 done, guint64 total, gpointer user_data);

typedef struct {
    guint64 max_shard_bytes;   /* 0 = one file */
    const RpSafetensors *base; /* (nullable): other parts of a larger model, written as they are */
    RpMergeProgress progress;  /* (nullable) */
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
 * Errors: G_FILE_ERROR
 */
gboolean rp_merge_write(const RpWeights *weights, const char *directory,
                        const RpMergeOptions *options, GError **error) G_GNUC_WARN_UNUSED_RESULT;
