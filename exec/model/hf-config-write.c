/* config.json back, and the configs of the catalogue's models. */
#include "exec/model/hf-config.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-pull.h"

/* What the published configs of a family have in common beyond the catalogue's shapes. */
typedef struct {
    const char *prefix; /* of the catalogue's names */
    RpArchitecture architecture;
    double rms_norm_eps;
    RpRope rope;
    gint64 bos_id;
    gint64 eos_id;
} Family;

static const Family families[] = {
    {"qwen3-", RP_ARCHITECTURE_QWEN3, 1e-6, {.theta = 1e6}, 151643, 151645},
    {"llama-3.1-",
     RP_ARCHITECTURE_LLAMA,
     1e-5,
     {RP_ROPE_LLAMA3, 5e5, 8, 1, 4, 8192},
     128000,
     128001},
    {"llama-3.2-",
     RP_ARCHITECTURE_LLAMA,
     1e-5,
     {RP_ROPE_LLAMA3, 5e5, 32, 1, 4, 8192},
     128000,
     128001},
};

gboolean
rp_hf_config_from_model(const RpModel *model, RpModelConfig *config, GError **error)
{
    const Family *family = NULL;

    g_return_val_if_fail(model && config, FALSE);
    g_return_val_if_fail(!error || !*error, FALSE);

    for (guint i = 0; i < G_N_ELEMENTS(families) && !family; i++)
        if (g_str_has_prefix(model->name, families[i].prefix))
            family = &families[i];
    if (!family || model->experts > 1 || model->sinks || model->sliding_window > 0) {
        g_set_error(error, RP_HF_CONFIG_ERROR, RP_HF_CONFIG_ERROR_UNSUPPORTED,
                    "%s: expected a dense Qwen3 or Llama model, found another", model->name);
        return FALSE;
    }
    *config = (RpModelConfig){
        .architecture = family->architecture,
        .hidden = model->hidden,
        .blocks = model->blocks,
        .heads = model->heads,
        .kv_heads = model->kv_heads,
        .head_dim = model->head_size,
        .intermediate = model->intermediate,
        .vocab = model->vocabulary,
        .max_positions = model->max_positions,
        .rms_norm_eps = family->rms_norm_eps,
        .initializer_range = 0.02,
        .rope = family->rope,
        .tied = model->tied,
        .attention_bias = model->attention_bias,
        .mlp_bias = model->mlp_bias,
        .qk_norm = model->qk_norm,
        .bos_id = family->bos_id,
        .pad_id = RP_MODEL_NO_TOKEN,
        .eos_ids = {family->eos_id},
        .n_eos = 1,
    };
    config->has_dtype = rp_dtype_parse(model->dtype, rp_dtype_name, &config->dtype);
    return TRUE;
}

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
add_eos(GString *json, const RpModelConfig *config)
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
rp_hf_config_to_json(const RpModelConfig *config)
{
    g_return_val_if_fail(config, NULL);

    gboolean qwen3 = config->architecture == RP_ARCHITECTURE_QWEN3;
    GString *json = g_string_new("{");
    add_key(json, "architectures");
    g_string_append_printf(json, "[\n    \"%s\"\n  ]", rp_architecture_name(config->architecture));
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
    if (!qwen3)
        add_boolean(json, "mlp_bias", config->mlp_bias);
    add_string(json, "model_type", qwen3 ? "qwen3" : "llama");
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
rp_hf_config_save(const RpModelConfig *config, const char *path, GError **error)
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
