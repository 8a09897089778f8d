/**
 * `config.json` of Hugging Face transformers, for Qwen3ForCausalLM and LlamaForCausalLM.
 *
 * Keys that change the arithmetic are read and checked, and refused where they ask for something
 * that this project does not compute; all others are ignored, as transformers does. One table has
 * them all (hf-config-keys.c, docs/checkpoint-format.md). What an absent key means is what
 * transformers takes it to mean.
 */
#pragma once

#include <glib.h>

#include "core/base/dtype.h"
#include "core/catalogue/catalogue.h"

typedef enum {
    RP_HF_CONFIG_ERROR_SYNTAX,      /* not JSON, or not a config */
    RP_HF_CONFIG_ERROR_VALUE,       /* a value that no model can have */
    RP_HF_CONFIG_ERROR_UNSUPPORTED, /* an architecture, activation, rope type, ... */
} RpHfConfigError;

#define RP_HF_CONFIG_ERROR (rp_hf_config_error_quark())
GQuark rp_hf_config_error_quark(void);

typedef enum { RP_ARCHITECTURE_QWEN3, RP_ARCHITECTURE_LLAMA } RpArchitecture;

typedef enum { RP_ROPE_DEFAULT, RP_ROPE_LLAMA3 } RpRopeType;

/* Rotary position embedding. The last four: of llama3 only, else 0. */
typedef struct {
    RpRopeType type;
    double theta;
    double factor;
    double low_freq_factor;
    double high_freq_factor; /* > low_freq_factor */
    guint original_max_positions;
} RpRope;

#define RP_MODEL_MAX_EOS 8
#define RP_MODEL_NO_TOKEN (-1)

/* One model as it is computed. (RpModel is the catalogue's: for times and sizes.) */
typedef struct {
    RpArchitecture architecture;
    guint hidden;
    guint blocks;
    guint heads;
    guint kv_heads; /* divides heads */
    guint head_dim; /* even; heads x head_dim need not be hidden */
    guint intermediate;
    guint vocab;
    guint max_positions;
    double rms_norm_eps;
    double initializer_range; /* standard deviation of random weights */
    RpRope rope;
    gboolean tied;           /* the head multiplies with the embedding matrix */
    gboolean attention_bias; /* of q, k, v and o */
    gboolean mlp_bias;       /* of gate, up and down; Llama only */
    gboolean qk_norm;        /* RMSNorm over each query and key head; Qwen3 only */
    gboolean has_dtype;      /* whether the config names one */
    RpDtype dtype;           /* RP_DTYPE_FP32 if not */
    gint64 bos_id;           /* or RP_MODEL_NO_TOKEN */
    gint64 pad_id;           /* its row of the embedding gets no gradient from the input */
    gint64 eos_ids[RP_MODEL_MAX_EOS];
    guint n_eos;
} RpModelConfig;

typedef enum {
    RP_CONFIG_KEY_HONOURED, /* read, checked and computed with */
    RP_CONFIG_KEY_REFUSED,  /* taken only with the values that the row names */
    RP_CONFIG_KEY_IGNORED,  /* changes neither the loss nor its gradient */
} RpConfigKeyFate;

typedef struct {
    const char *name;
    RpConfigKeyFate fate;
    gboolean in_rope;  /* stands in rope_scaling or rope_parameters */
    const char *taken; /* of a refused key: "true", "{} or null" */
    const char *why;   /* of a refused or ignored key */
} RpConfigKey;

/* The keys that transformers reads, one by one; %NULL behind the last. */
const RpConfigKey *rp_hf_config_key(guint index);

/**
 * rp_hf_config_parse:
 * @name: of the file, for messages
 * @config: (out): set on success only
 *
 * Errors: RP_HF_CONFIG_ERROR_*, one line with file, line, column, key, expected and found
 */
gboolean rp_hf_config_parse(const char *name, const char *text, gsize length, RpModelConfig *config,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for a file, or the `config.json` of a directory. Errors: also G_FILE_ERROR */
gboolean rp_hf_config_load(const char *path, RpModelConfig *config,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The text of a config.json that transformers loads. (transfer full) */
char *rp_hf_config_to_json(const RpModelConfig *config);

/* Writes it, replacing the file as a whole. Errors: G_FILE_ERROR naming @path */
gboolean rp_hf_config_save(const RpModelConfig *config, const char *path,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_hf_config_from_model:
 * @model: of the catalogue
 *
 * Shapes from the catalogue; rope, epsilon and token ids as published for the family.
 *
 * Errors: RP_HF_CONFIG_ERROR_UNSUPPORTED for mixtures of experts and other architectures
 */
gboolean rp_hf_config_from_model(const RpModel *model, RpModelConfig *config,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "Qwen3ForCausalLM" */
const char *rp_architecture_name(RpArchitecture architecture);
