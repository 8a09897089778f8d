/* config.json back. */
#include "exec/model/hf-config.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-pull.h"

static void
add_key(GString *json, const char *key)
{
    g_string_append(json, json->len > 1 ? ",\n  " : "\n  ");
    rp_json_append_string(json, key);
    g_string_append(json, ": ");
}

static void
add_count(GString *json, const char *key, guint value)
{
    add_key(json, key);
    g_string_append_printf(json, "%u", value);
}

static void
add_number(GString *json, const char *key, double value)
{
    add_key(json, key);
    rp_json_append_number(json, value);
}

static void
add_string(GString *json, const char *key, const char *value)
{
    add_key(json, key);
    rp_json_append_string(json, value);
}

static void
add_boolean(GString *json, const char *key, gboolean value)
{
    add_key(json, key);
    g_string_append(json, value ? "true" : "false");
}

static void
add_token(GString *json, const char *key, gint64 id)
{
    add_key(json, key);
    if (id == RP_MODEL_NO_TOKEN)
        g_string_append(json, "null");
    else
        g_string_append_printf(json, "%" G_GINT64_FORMAT, id);
}

static void
add_eos(GString *json, const RpModel *config)
{
    if (config->n_eos <= 1) {
        add_token(json, "eos_token_id",
                  config->n_eos == 1 ? config->eos_ids[0] : RP_MODEL_NO_TOKEN);
        return;
    }
    add_key(json, "eos_token_id");
    for (guint i = 0; i < config->n_eos; i++)
        g_string_append_printf(json, "%s%" G_GINT64_FORMAT, i > 0 ? ", " : "[", config->eos_ids[i]);
    g_string_append_c(json, ']');
}

/* rope_theta beside rope_scaling: the spelling that old and new versions of transformers read. */
static void
add_rope(GString *json, const RpRope *rope)
{
    add_key(json, "rope_scaling");
    if (rope->type == RP_ROPE_DEFAULT) {
        g_string_append(json, "null");
    } else {
        g_string_append(json, "{\n    \"factor\": ");
        rp_json_append_number(json, rope->factor);
        g_string_append(json, ",\n    \"high_freq_factor\": ");
        rp_json_append_number(json, rope->high_freq_factor);
        g_string_append(json, ",\n    \"low_freq_factor\": ");
        rp_json_append_number(json, rope->low_freq_factor);
        g_string_append_printf(json,
                               ",\n    \"original_max_position_embeddings\": %u,\n"
                               "    \"rope_type\": \"llama3\"\n  }",
                               rope->original_max_positions);
    }
    add_number(json, "rope_theta", rope->theta);
}

char *
rp_hf_config_to_json(const RpModel *config)
{
    g_return_val_if_fail(config, NULL);

    const RpArchitectureRow *row = &rp_architectures[config->architecture];
    GString *json = g_string_new("{");
    add_key(json, "architectures");
    g_string_append_printf(json, "[\n    \"%s\"\n  ]", row->hf_name);
    add_boolean(json, "attention_bias", config->attention_bias);
    add_number(json, "attention_dropout", 0);
    add_token(json, "bos_token_id", config->bos_id);
    add_eos(json, config);
    add_count(json, "head_dim", config->head_dim);
    add_string(json, "hidden_act", "silu");
    add_count(json, "hidden_size", config->hidden);
    add_number(json, "initializer_range", config->initializer_range);
    add_count(json, "intermediate_size", config->intermediate);
    add_count(json, "max_position_embeddings", config->max_positions);
    if (row->has_mlp_bias)
        add_boolean(json, "mlp_bias", config->mlp_bias);
    add_string(json, "model_type", row->model_type);
    add_count(json, "num_attention_heads", config->heads);
    add_count(json, "num_hidden_layers", config->blocks);
    add_count(json, "num_key_value_heads", config->kv_heads);
    add_token(json, "pad_token_id", config->pad_id);
    add_number(json, "rms_norm_eps", config->rms_norm_eps);
    add_rope(json, &config->rope);
    add_boolean(json, "tie_word_embeddings", config->tied);
    if (config->has_dtype)
        add_string(json, "torch_dtype", rp_dtype_torch_name(config->dtype));
    add_boolean(json, "use_cache", TRUE);
    add_count(json, "vocab_size", config->vocab);
    g_string_append(json, "\n}\n");
    return g_string_free(json, FALSE);
}

gboolean
rp_hf_config_save(const RpModel *config, const char *path, GError **error)
{
    g_return_val_if_fail(config && path, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    g_autofree char *json = rp_hf_config_to_json(config);
    if (g_file_set_contents_full(path, json, -1,
                                 G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0666,
                                 error))
        return TRUE;
    g_autofree char *shown = rp_display_name(path);
    g_prefix_error(error, "cannot write \"%s\": ", shown);
    return FALSE;
}
