/**
 * `config.json` of Hugging Face transformers, for the rows of rp_architectures.
 *
 * Keys that change the arithmetic are read and checked, and refused if this project does not
 * compute them; all others are ignored, as transformers does. One table has them all
 * (config/hf-config-keys.c, docs/checkpoint-format.md). An absent key means the same as in
 * transformers.
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

typedef enum {
    RP_CONFIG_KEY_HONOURED, /* read, checked and computed with */
    RP_CONFIG_KEY_REFUSED,  /* taken only with the values that the row names */
    RP_CONFIG_KEY_IGNORED,  /* changes neither the loss nor its gradient */
} RpConfigKeyFate;

typedef struct {
    const char *name;
    RpConfigKeyFate fate;
    gboolean in_rope;  /* stands in rope_scaling or rope_parameters */
    const char *taken; /* values taken for a refused key: "true", "{} or null" */
    const char *why;   /* reason for refusing or ignoring a key */
} RpConfigKey;

/* The keys that transformers reads, one by one. Returns: FALSE behind the last */
gboolean rp_hf_config_key(guint index, RpConfigKey *key);

/**
 * rp_hf_config_parse:
 * @name: of the file, for messages
 * @config: (out): set on success only
 *
 * Errors: RP_HF_CONFIG_ERROR_*, one line with file, line, column, key, expected and found
 */
gboolean rp_hf_config_parse(const char *name, const char *text, gsize length, RpModel *config,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same for a file, or the `config.json` of a directory; of an architecture that runs. Errors:
 * also G_FILE_ERROR */
gboolean rp_hf_config_load(const char *path, RpModel *config,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The text of a config.json that transformers loads. (transfer full) */
char *rp_hf_config_to_json(const RpModel *config);

/* Writes it, replacing the file as a whole. Errors: G_FILE_ERROR naming @path */
gboolean rp_hf_config_save(const RpModel *config, const char *path,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_hf_config_requantise:
 * @name: of the file, for messages
 * @text: a config.json, @length bytes
 * @quantization: (nullable): JSON; %NULL: none
 *
 * Returns: (transfer full): the same config with this quantization_config, also without one in its text part; all other
 *   values are kept, byte for byte. %NULL with RP_HF_CONFIG_ERROR_SYNTAX
 */
char *rp_hf_config_requantise(const char *name, const char *text, gsize length,
                              const char *quantization, GError **error);

/* Whether a run computes models of that architecture. Errors: RP_HF_CONFIG_ERROR_UNSUPPORTED */
gboolean rp_hf_config_check_runs(const RpModel *model, GError **error) G_GNUC_WARN_UNUSED_RESULT;
