/* config.json back. */
#include "exec/model/hf-config.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/catalogue/custom.h"
#include "core/json/json-pull.h"
#include "core/json/json-write.h"

/* An exponent where it is shorter, as files of before have it. */
static void
add_number(RpJsonWriter *json, const char *key, double value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    rp_json_append_number(text, value, 1);
    rp_json_raw(json, key, text->str);
}

static void
add_token(RpJsonWriter *json, const char *key, gint64 id)
{
    if (id == RP_MODEL_NO_TOKEN)
        rp_json_null(json, key);
    else
        rp_json_int(json, key, id);
}

static void
add_eos(RpJsonWriter *json, const RpModel *config)
{
    if (config->n_eos <= 1) {
        add_token(json, "eos_token_id",
                  config->n_eos == 1 ? config->eos_ids[0] : RP_MODEL_NO_TOKEN);
        return;
    }
    rp_json_array(json, "eos_token_id");
    for (guint i = 0; i < config->n_eos; i++)
        rp_json_int(json, NULL, config->eos_ids[i]);
    rp_json_end(json);
}

static void
add_factors(RpJsonWriter *json, const char *key, const float *factors, guint n)
{
    rp_json_array(json, key);
    for (guint i = 0; i < n; i++)
        add_number(json, NULL, (double)factors[i]);
    rp_json_end(json);
}

/* The object @key of a rope. @inside: with its theta */
static void
add_rope_object(RpJsonWriter *json, const char *key, const RpRope *rope, guint head_dim,
                gboolean inside)
{
    rp_json_object(json, key);
    if (rope->type == RP_ROPE_YARN || rope->type == RP_ROPE_LONGROPE)
        add_number(json, "attention_factor", rope->attention_factor);
    if (rope->type == RP_ROPE_YARN) {
        add_number(json, "beta_fast", rope->beta_fast);
        add_number(json, "beta_slow", rope->beta_slow);
    }
    if (rope->factor > 0)
        add_number(json, "factor", rope->factor);
    if (rope->type == RP_ROPE_LLAMA3) {
        add_number(json, "high_freq_factor", rope->high_freq_factor);
        add_number(json, "low_freq_factor", rope->low_freq_factor);
    }
    if (rope->query_beta > 0)
        add_number(json, "llama_4_scaling_beta", rope->query_beta);
    if (rope->type == RP_ROPE_LONGROPE)
        add_factors(json, "long_factor", rope->long_factor, head_dim / 2);
    if (rope->original_max_positions > 0 && rope->type != RP_ROPE_DYNAMIC)
        rp_json_uint(json, "original_max_position_embeddings", rope->original_max_positions);
    if (inside)
        add_number(json, "rope_theta", rope->theta);
    rp_json_string(json, "rope_type", rp_rope_type_name(rope->type));
    if (rope->type == RP_ROPE_LONGROPE)
        add_factors(json, "short_factor", rope->short_factor, head_dim / 2);
    if (rope->type == RP_ROPE_YARN)
        rp_json_bool(json, "truncate", rope->truncate);
    rp_json_end(json);
}

/* rope_theta beside rope_scaling: the spelling that old and new versions of transformers read; or the new one, of
 * models that old versions do not know. */
static void
add_rope(RpJsonWriter *json, const RpModel *config)
{
    const RpRope *rope = &config->rope;

    if (config->has_sliding_rope) {
        rp_json_object(json, "rope_parameters");
        add_rope_object(json, "full_attention", rope, config->head_dim, TRUE);
        add_rope_object(json, "sliding_attention", &config->sliding_rope, config->head_dim, TRUE);
        rp_json_end(json);
        return;
    }
    if (rp_architectures[config->architecture].rope_parameters) {
        add_rope_object(json, "rope_parameters", rope, config->head_dim, TRUE);
        return;
    }
    /* GPT-OSS without an object has YaRN */
    if (rope->type == RP_ROPE_DEFAULT && config->architecture != RP_ARCHITECTURE_GPT_OSS)
        rp_json_null(json, "rope_scaling");
    else
        add_rope_object(json, "rope_scaling", rope, config->head_dim, FALSE);
    add_number(json, "rope_theta", rope->theta);
}

/* Whether transformers needs the list to know which blocks slide. */
static gboolean
lists_layer_types(const RpModel *config)
{
    const RpArchitectureRow *row = &rp_architectures[config->architecture];

    return row->has_delta || row->sliding == RP_SLIDING_ALTERNATE ||
           (config->sliding_window > 0 && row->sliding != RP_SLIDING_EVERY);
}

static void
add_layer_types(RpJsonWriter *json, const RpModel *config)
{
    if (!lists_layer_types(config))
        return;
    rp_json_array(json, "layer_types");
    for (guint i = 0; i < config->blocks; i++)
        rp_json_string(json, NULL,
                       rp_model_block_slides(config, i)     ? "sliding_attention"
                       : rp_model_block_is_delta(config, i) ? "linear_attention"
                                                            : "full_attention");
    rp_json_end(json);
}

static void
add_no_rope(RpJsonWriter *json, const RpModel *config)
{
    rp_json_array(json, "no_rope_layers");
    for (guint i = 0; i < config->blocks; i++)
        rp_json_uint(json, NULL, rp_model_block_has_rope(config, i) ? 1 : 0);
    rp_json_end(json);
}

/* An architecture that takes a window where the key is absent needs the key to have none. */
static void
add_window(RpJsonWriter *json, const RpModel *config)
{
    const RpArchitectureRow *row = &rp_architectures[config->architecture];

    if (config->sliding_window > 0)
        rp_json_uint(json, "sliding_window", config->sliding_window);
    else if (row->sliding == RP_SLIDING_ALTERNATE)
        rp_json_uint(json, "sliding_window", row->window);
    else if (row->window > 0 && !row->asks_for_window)
        rp_json_null(json, "sliding_window");
}

static char *
custom_to_json(const RpModel *config)
{
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_array(json, "architectures");
    rp_json_string(json, NULL, config->custom->name);
    rp_json_end(json);
    rp_json_uint(json, "hidden_size", config->hidden);
    if (config->intermediate > 0)
        rp_json_uint(json, "intermediate_size", config->intermediate);
    rp_json_uint(json, "max_position_embeddings", config->max_positions);
    rp_json_string(json, "model_type", config->custom->name);
    rp_json_uint(json, "num_hidden_layers", config->blocks);
    if (config->has_dtype)
        rp_json_string(json, "torch_dtype", rp_dtype_torch_name(config->dtype));
    rp_json_uint(json, "vocab_size", config->vocab);
    rp_json_end(json);
    return rp_json_writer_finish(json);
}

static void
add_delta(RpJsonWriter *json, const RpModel *config)
{
    rp_json_uint(json, "linear_conv_kernel_dim", config->delta_kernel);
    rp_json_uint(json, "linear_key_head_dim", config->delta_key_dim);
    rp_json_uint(json, "linear_num_key_heads", config->delta_key_heads);
    rp_json_uint(json, "linear_num_value_heads", config->delta_value_heads);
    rp_json_uint(json, "linear_value_head_dim", config->delta_value_dim);
}

static void
add_class(RpJsonWriter *json, const char *name)
{
    rp_json_array(json, "architectures");
    rp_json_break(json);
    rp_json_string(json, NULL, name);
    rp_json_end(json);
}

/* The keys of one class, or of the text part of a larger one. */
static void
add_keys(RpJsonWriter *json, const RpModel *config)
{
    const RpArchitectureRow *row = &rp_architectures[config->architecture];
    const gboolean apart = row->apart_experts;
    const gboolean gpt_oss = config->architecture == RP_ARCHITECTURE_GPT_OSS;

    if (!config->outer)
        add_class(json, row->hf_name);
    if (row->has_attention_bias)
        rp_json_bool(json, "attention_bias", config->attention_bias);
    add_number(json, "attention_dropout", 0);
    add_token(json, "bos_token_id", config->bos_id);
    if (apart && !row->lists_mlps && !row->shared_expert)
        rp_json_uint(json, "decoder_sparse_step", 1);
    add_eos(json, config);
    rp_json_uint(json, "head_dim", config->head_dim);
    rp_json_string(json, "hidden_act", "silu");
    rp_json_uint(json, "hidden_size", config->hidden);
    add_number(json, "initializer_range", config->initializer_range);
    if (!row->shared_expert)
        rp_json_uint(json, "intermediate_size",
                     apart ? config->dense_intermediate : config->intermediate);
    add_layer_types(json, config);
    if (row->has_delta)
        add_delta(json, config);
    rp_json_uint(json, "max_position_embeddings", config->max_positions);
    if (row->has_mlp_bias)
        rp_json_bool(json, "mlp_bias", config->mlp_bias);
    rp_json_string(json, "model_type", row->model_type);
    if (apart)
        rp_json_uint(json, "moe_intermediate_size", config->intermediate);
    if (row->has_no_rope)
        add_no_rope(json, config);
    if (apart && !row->shared_expert)
        rp_json_bool(json, "norm_topk_prob", config->norm_topk);
    rp_json_uint(json, "num_attention_heads", config->heads);
    if (apart)
        rp_json_uint(json, "num_experts", config->experts);
    if (config->experts > 1)
        rp_json_uint(json, "num_experts_per_tok", config->active_experts);
    rp_json_uint(json, "num_hidden_layers", config->blocks);
    rp_json_uint(json, "num_key_value_heads", config->kv_heads);
    if (gpt_oss)
        rp_json_uint(json, "num_local_experts", config->experts);
    if (config->router_aux_loss > 0)
        rp_json_bool(json, "output_router_logits", TRUE);
    add_token(json, "pad_token_id", config->pad_id);
    if (row->rotary > 0)
        add_number(json, "partial_rotary_factor",
                   (double)rp_model_rotary_dim(config) / config->head_dim);
    add_number(json, "rms_norm_eps", config->rms_norm_eps);
    add_rope(json, config);
    if (config->router_aux_loss > 0)
        add_number(json, "router_aux_loss_coef", config->router_aux_loss);
    if (row->shared_expert)
        rp_json_uint(json, "shared_expert_intermediate_size", config->shared_intermediate);
    add_window(json, config);
    if (gpt_oss) {
        add_number(json, "swiglu_alpha", config->swiglu_alpha);
        add_number(json, "swiglu_limit", config->swiglu_limit);
    }
    rp_json_bool(json, "tie_word_embeddings", config->tied);
    if (config->has_dtype)
        rp_json_string(json, "torch_dtype", rp_dtype_torch_name(config->dtype));
    rp_json_bool(json, "use_cache", TRUE);
    if (row->asks_for_window && config->sliding_window > 0)
        rp_json_bool(json, "use_sliding_window", TRUE);
    rp_json_uint(json, "vocab_size", config->vocab);
}

char *
rp_hf_config_to_json(const RpModel *config)
{
    g_return_val_if_fail(config != NULL, NULL);
    if (config->custom != NULL)
        return custom_to_json(config);

    const RpArchitectureRow *row = &rp_architectures[config->architecture];
    RpJsonWriter *json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    if (config->outer) {
        add_class(json, row->outer_name);
        rp_json_string(json, "model_type", row->outer_type);
        rp_json_object(json, "text_config");
    }
    add_keys(json, config);
    rp_json_end(json);
    if (config->outer) {
        rp_json_bool(json, "tie_word_embeddings", config->tied);
        rp_json_end(json);
    }
    return rp_json_writer_finish(json);
}

gboolean
rp_hf_config_save(const RpModel *config, const char *path, GError **error)
{
    g_return_val_if_fail(config && path, FALSE);
    g_return_val_if_fail(error == NULL || *error == NULL, FALSE);

    g_autofree char *json = rp_hf_config_to_json(config);
    if (g_file_set_contents_full(path, json, -1,
                                 G_FILE_SET_CONTENTS_CONSISTENT | G_FILE_SET_CONTENTS_DURABLE, 0666,
                                 error))
        return TRUE;
    g_autofree char *shown = rp_display_name(path);
    return rp_prefix_error(error, "cannot write \"%s\": ", shown);
}

/* @quantization: (nullable): the first member */
static gboolean
copy_members(RpJsonPull *pull, const char *quantization, GString *to)
{
    g_autoptr(GString) key = g_string_new(NULL);

    if (!rp_json_pull_enter_object(pull))
        return FALSE;
    const int indent = 2 * (int)pull->depth;

    g_string_append_c(to, '{');
    if (quantization != NULL)
        g_string_append_printf(to, "\n  \"quantization_config\": %s,", quantization);
    while (rp_json_pull_next_key(pull, key)) {
        const RpJsonLevel level = pull->levels[pull->depth - 1];
        const gboolean is_object = rp_json_pull_peek(pull) == RP_JSON_OBJECT;
        const char *value = pull->at;

        if (strcmp(key->str, "quantization_config") == 0) {
            (void)rp_json_pull_skip(pull);
            continue;
        }
        g_string_append_printf(to, "\n%*s\"%.*s\": ", indent, "", (int)level.key_length, level.key);
        if (is_object && strcmp(key->str, "text_config") == 0)
            (void)copy_members(pull, NULL, to);
        else if (rp_json_pull_skip(pull))
            g_string_append_len(to, value, pull->at - value);
        g_string_append_c(to, ',');
    }
    if (to->str[to->len - 1] == ',')
        g_string_truncate(to, to->len - 1);
    g_string_append_printf(to, "\n%*s}", indent - 2, "");
    return !pull->failed;
}

char *
rp_hf_config_requantise(const char *name, const char *text, gsize length, const char *quantization,
                        GError **error)
{
    g_autoptr(GString) to = g_string_new(NULL);
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, name, text, length, RP_HF_CONFIG_ERROR, RP_HF_CONFIG_ERROR_SYNTAX,
                           error) ||
        !copy_members(&pull, quantization, to))
        return NULL;
    g_string_append_c(to, '\n');
    return g_string_free(g_steal_pointer(&to), FALSE);
}
