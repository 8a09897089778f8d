/**
 * Every key of config.json that transformers 5.23 or 4.57 reads for these models, and its fate. The
 * page docs/checkpoint-format.md has the same rows; a test compares the two.
 *
 *   honoured   read, checked, and computed with
 *   refused    only the values named here are taken: with others transformers computes something
 *              that this project does not
 *   ignored    changes nothing in the loss or its gradient
 *
 * A key that stands nowhere here is one that transformers does not read either, and is ignored; in
 * the rope's object, where a key may be a layer type with a rope of its own, it is refused.
 */
#include "exec/model/hf-config-private.h"

#include <math.h>
#include <string.h>

#include "core/catalogue/custom.h"
#include "exec/kernels/expert-args.h"

/* ---- readers: RpJsonRead ---- */

static gboolean read_fields(RpJsonPull *pull, RpConfigRaw *raw);

/* Families that are not read, by how their names begin in small letters without "_": the class that is most like each. */
static const struct {
    const char *begin, *family, *nearest;
} families[] = {
    {"gemma", "Gemma", "Qwen3_5ForCausalLM"},
    {"glm", "GLM", "Qwen3MoeForCausalLM"},
    {"deepseek", "DeepSeek", "Qwen3MoeForCausalLM"},
    {"kimi", "Kimi", "Qwen3MoeForCausalLM"},
    {"minimax", "MiniMax", "Qwen3MoeForCausalLM"},
    {"nemotronh", "Nemotron-H", "Qwen3_5ForCausalLM"},
    {"nemotron", "Nemotron", "LlamaForCausalLM"},
    {"qwen3next", "Qwen3-Next", "Qwen3_5MoeForCausalLM"},
    {"qwen38", "Qwen3.8-Flash-Next", "Qwen3_5MoeForCausalLM"},
    {"qwen3vlmoe", "Qwen3-VL", "Qwen3MoeForCausalLM"},
    {"qwen3vl", "Qwen3-VL", "Qwen3ForCausalLM"},
    {"llama4", "Llama 4", "Qwen3MoeForCausalLM"},
    {"phi3", "Phi", "LlamaForCausalLM"},
    {"olmo", "OLMo", "Qwen3ForCausalLM"},
    {"granite", "Granite", "LlamaForCausalLM"},
    {"seedoss", "Seed-OSS", "Qwen2ForCausalLM"},
};

/* Refuses the name @text, with the nearest class if its family is known. */
static gboolean
fail_name(RpJsonPull *pull, const char *text, const char **names)
{
    g_auto(GStrv) words = g_strsplit(text, "_", -1);
    g_autofree char *joined = g_strjoinv("", words);
    g_autofree char *small = g_ascii_strdown(joined, -1);
    g_autofree char *all = g_strjoinv("\", \"", (char **)names);
    g_autofree char *expected = NULL;

    for (guint i = 0; i < G_N_ELEMENTS(families) && expected == NULL; i++)
        if (g_str_has_prefix(small, families[i].begin))
            expected =
                g_strdup_printf("one of \"%s\" (%s is not supported; the most like it is %s)", all,
                                families[i].family, families[i].nearest);
    if (expected == NULL)
        expected = g_strdup_printf("one of \"%s\"", all);
    return rp_config_fail_unsupported(pull, expected);
}

/* A name of an architecture's row, at @own, or of the larger model that has it, at @outer; those of the caller's program
 * stand between. */
static gboolean
read_name(RpJsonPull *pull, gsize own, gsize outer, int *row, gboolean *is_outer)
{
    g_autofree const char **known = rp_config_architecture_names(own);
    const guint n_own = g_strv_length((char **)known);
    g_autofree const char **names = g_new0(const char *, n_own + RP_N_ARCHITECTURES + 1);
    guint n = n_own;
    g_autoptr(GString) text = g_string_new(NULL);
    int rows[RP_N_ARCHITECTURES];

    memcpy(names, known, n_own * sizeof *names);
    for (int i = 0; i < RP_N_ARCHITECTURES; i++) {
        const char *larger = G_STRUCT_MEMBER(const char *, &rp_architectures[i], outer);

        if (larger == NULL || (n > n_own && g_str_equal(larger, names[n - 1])))
            continue;
        rows[n - n_own] = i;
        names[n++] = larger;
    }
    if (!rp_json_pull_string(pull, text))
        return FALSE;
    for (guint i = 0; i < n; i++) {
        if (strcmp(names[i], text->str) != 0)
            continue;
        *is_outer = i >= n_own;
        *row = *is_outer ? rows[i - n_own] : (int)i;
        return TRUE;
    }
    return fail_name(pull, text->str, names);
}

static gboolean
read_architectures(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;
    guint n = 0;

    if (raw->in_text)
        return rp_json_pull_skip(pull);
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        if (n++ > 0)
            return rp_json_pull_fail(pull, "one architecture");
        if (!read_name(pull, G_STRUCT_OFFSET(RpArchitectureRow, hf_name),
                       G_STRUCT_OFFSET(RpArchitectureRow, outer_name), &raw->architecture,
                       &raw->outer_class))
            return FALSE;
    }
    return !pull->failed;
}

static gboolean
read_model_type(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;
    gboolean outer;

    return read_name(pull, G_STRUCT_OFFSET(RpArchitectureRow, model_type),
                     G_STRUCT_OFFSET(RpArchitectureRow, outer_type),
                     raw->in_text ? &raw->text_type : &raw->model_type,
                     raw->in_text ? &outer : &raw->outer_type);
}

static gboolean
read_activation(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const names[] = {"silu", NULL};
    int choice;

    return rp_config_read_choice(pull, names, &choice);
}

static gboolean
read_dtype(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);
    RpModel *config = &((RpConfigRaw *)value)->config;
    RpDtype dtype;

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    const char *name = text->str;
    if (g_str_has_prefix(name, "torch."))
        name += strlen("torch.");
    if (!rp_dtype_parse(name, rp_dtype_torch_name, &dtype))
        return rp_config_fail_unsupported(pull, "one of \"bfloat16\", \"float16\", \"float32\"");
    if (config->has_dtype && config->dtype != dtype)
        return rp_json_pull_fail_value(pull, "the same for torch_dtype and dtype");
    config->has_dtype = TRUE;
    config->dtype = dtype;
    return TRUE;
}

/* Or -1, which older files have for none. */
static gboolean
read_token(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double id;

    if (!rp_json_pull_number(pull, &id))
        return FALSE;
    if (id != floor(id) || id < RP_MODEL_NO_TOKEN || id > RP_CONFIG_MAX_SIZE)
        return rp_json_pull_fail_value(pull, "a token's number");
    *(gint64 *)value = (gint64)id;
    return TRUE;
}

static gboolean
read_pad(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    if (rp_json_pull_peek(pull) == RP_JSON_NULL) {
        *(gint64 *)value = RP_MODEL_NO_TOKEN;
        return rp_json_pull_null(pull);
    }
    return read_token(pull, field, value) &&
           (*(gint64 *)value != RP_MODEL_NO_TOKEN ||
            rp_json_pull_fail_value(
                pull, "a token's number, or null for none (torch takes -1 for the last token)"));
}

static gboolean
read_eos(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpModel *config = &((RpConfigRaw *)value)->config;

    config->n_eos = 0;
    if (rp_json_pull_peek(pull) != RP_JSON_ARRAY) {
        config->n_eos = 1;
        return read_token(pull, field, &config->eos_ids[0]);
    }
    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        if (config->n_eos == RP_MODEL_MAX_EOS)
            return rp_json_pull_fail(pull, "at most " G_STRINGIFY(RP_MODEL_MAX_EOS) " tokens");
        if (!read_token(pull, field, &config->eos_ids[config->n_eos++]))
            return FALSE;
    }
    return !pull->failed;
}

static gboolean
read_head_dim(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;

    raw->null_head_dim = rp_json_pull_peek(pull) == RP_JSON_NULL;
    return raw->null_head_dim ? rp_json_pull_null(pull)
                              : rp_json_read_uint(pull, field, &raw->config.head_dim);
}

static gboolean
read_window(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    const RpJsonField bounds = {.min = 1, .max = RP_CONFIG_MAX_POSITIONS};
    RpConfigRaw *raw = value;

    raw->null_window = rp_json_pull_peek(pull) == RP_JSON_NULL;
    return raw->null_window ? rp_json_pull_null(pull)
                            : rp_json_read_uint(pull, &bounds, &raw->window);
}

/* ---- tables ---- */

/* The text part of a larger model: the same keys, of which the outer ones win. */
static gboolean
read_text(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;
    const int tied = raw->tied;

    if (raw->in_text)
        return rp_json_pull_fail(pull, "no text_config within another");
    raw->in_text = raw->has_text = TRUE;
    const gboolean good = read_fields(pull, raw);

    raw->in_text = FALSE;
    raw->tied = tied >= 0 ? tied : raw->tied;
    return good;
}

#define REFUSED(key, taken, why)                                                                   \
    {                                                                                              \
        key, rp_config_read_fixed, .expected = taken, .note = why                                  \
    }

static const RpJsonField fields[] = {
    RP_CONFIG_OTHER("architectures", read_architectures, TRUE),
    RP_CONFIG_OTHER("model_type", read_model_type, FALSE),
    RP_CONFIG_COUNT("hidden_size", config.hidden, RP_CONFIG_MAX_SIZE),
    RP_CONFIG_COUNT("num_hidden_layers", config.blocks, RP_CONFIG_MAX_BLOCKS),
    RP_CONFIG_COUNT("num_attention_heads", config.heads, RP_CONFIG_MAX_SIZE),
    {"num_key_value_heads", rp_json_read_uint, RP_CONFIG_AT(config.kv_heads),
     .null_is_absent = TRUE, .min = 1, .max = RP_CONFIG_MAX_SIZE},
    {"head_dim", read_head_dim, .min = 1, .max = RP_CONFIG_MAX_SIZE},
    RP_CONFIG_COUNT("intermediate_size", config.intermediate, RP_CONFIG_MAX_SIZE),
    RP_CONFIG_COUNT("vocab_size", config.vocab, RP_CONFIG_MAX_SIZE),
    RP_CONFIG_COUNT("max_position_embeddings", config.max_positions, RP_CONFIG_MAX_POSITIONS),
    RP_CONFIG_NUMBER("rms_norm_eps", rms_norm_eps, FALSE),
    RP_CONFIG_NUMBER("initializer_range", config.initializer_range, FALSE),
    RP_CONFIG_NUMBER("rope_theta", rope_theta, TRUE),
    RP_CONFIG_OTHER("rope_scaling", rp_config_read_rope, TRUE),
    RP_CONFIG_OTHER("rope_parameters", rp_config_read_rope, TRUE),
    RP_CONFIG_COUNT("original_max_position_embeddings", outer_original_max_positions,
                    RP_CONFIG_MAX_POSITIONS),
    RP_CONFIG_BOOLEAN("tie_word_embeddings", tied),
    RP_CONFIG_BOOLEAN("attention_bias", attention_bias),
    RP_CONFIG_BOOLEAN("mlp_bias", config.mlp_bias),
    RP_CONFIG_OTHER("layer_types", rp_config_read_layer_types, TRUE),
    RP_CONFIG_OTHER("hidden_act", read_activation, FALSE),
    RP_CONFIG_OTHER("torch_dtype", read_dtype, TRUE),
    RP_CONFIG_OTHER("dtype", read_dtype, TRUE),
    {"bos_token_id", read_token, RP_CONFIG_AT(config.bos_id), .null_is_absent = TRUE},
    RP_CONFIG_OTHER("eos_token_id", read_eos, TRUE),
    {"pad_token_id", read_pad, RP_CONFIG_AT(config.pad_id)},
    RP_CONFIG_BOOLEAN("use_sliding_window", use_sliding_window),
    RP_CONFIG_OTHER("sliding_window", read_window, FALSE),
    {"max_window_layers", rp_json_read_uint, RP_CONFIG_AT(max_window_layers),
     .max = RP_CONFIG_MAX_SIZE},
    RP_CONFIG_OTHER("no_rope_layers", rp_config_read_no_rope_layers, TRUE),
    RP_CONFIG_COUNT("no_rope_layer_interval", no_rope_interval, RP_CONFIG_MAX_SIZE),
    RP_CONFIG_COUNT("num_experts", experts, RP_MOST_EXPERTS),
    RP_CONFIG_COUNT("num_local_experts", local_experts, RP_MOST_EXPERTS),
    RP_CONFIG_COUNT("num_experts_per_tok", experts_per_tok, RP_MOST_CHOICES),
    RP_CONFIG_COUNT("experts_per_token", experts_per_token, RP_MOST_CHOICES),
    RP_CONFIG_COUNT("moe_intermediate_size", moe_intermediate, RP_CONFIG_MAX_SIZE),
    RP_CONFIG_COUNT("shared_expert_intermediate_size", config.shared_intermediate,
                    RP_CONFIG_MAX_SIZE),
    RP_CONFIG_BOOLEAN("norm_topk_prob", norm_topk),
    RP_CONFIG_OTHER("mlp_layer_types", rp_config_read_mlp_types, TRUE),
    RP_CONFIG_BOOLEAN("output_router_logits", router_logits),
    {"router_aux_loss_coef", rp_json_read_number, RP_CONFIG_AT(router_aux_loss),
     .max = RP_CONFIG_MAX_NUMBER, .expected = "a number from 0 to 1e15"},
    RP_CONFIG_NUMBER("swiglu_alpha", config.swiglu_alpha, FALSE),
    RP_CONFIG_NUMBER("swiglu_limit", config.swiglu_limit, FALSE),
    RP_CONFIG_OTHER("quantization_config", rp_config_read_quantization, TRUE),

    {"attention_dropout", rp_config_read_exactly, .expected = "0",
     .note = "transformers drops attention in training"},
    RP_CONFIG_ROTARY(rotary),
    RP_CONFIG_COUNT("full_attention_interval", full_interval, RP_CONFIG_MAX_BLOCKS),
    RP_CONFIG_COUNT("linear_conv_kernel_dim", config.delta_kernel, RP_CONFIG_MAX_KERNEL),
    RP_CONFIG_COUNT("linear_key_head_dim", config.delta_key_dim, RP_CONFIG_MAX_DELTA),
    RP_CONFIG_COUNT("linear_value_head_dim", config.delta_value_dim, RP_CONFIG_MAX_DELTA),
    RP_CONFIG_COUNT("linear_num_key_heads", config.delta_key_heads, RP_CONFIG_MAX_DELTA),
    RP_CONFIG_COUNT("linear_num_value_heads", config.delta_value_heads, RP_CONFIG_MAX_DELTA),
    RP_CONFIG_OTHER("text_config", read_text, TRUE),
    {"decoder_sparse_step", rp_config_read_exactly, .expected = "1",
     .note = "transformers builds dense blocks between those of experts"},
    REFUSED("mlp_only_layers", "[] or null",
            "transformers builds dense blocks between those of experts"),
    REFUSED("is_causal", "true", "without it transformers lets tokens see later ones"),
    REFUSED("per_layer_config", "null", "transformers builds layers that differ"),
    REFUSED("decoder", "null", "transformers may read its sizes from there"),
    REFUSED("generator", "null", "transformers may read its sizes from there"),
    REFUSED("encoder", "null", "transformers may read its sizes from there"),
    REFUSED("text_encoder", "null", "transformers may read its sizes from there"),
    REFUSED("compression_config", "null", "the weights must not be quantized"),
    REFUSED("fusion_config", "null", "transformers replaces modules by fused ones"),
    REFUSED("transformers_weights", "null", "transformers reads the weights from that file"),
    REFUSED("pruned_heads", "{} or null", "transformers 4 prunes the heads"),
    REFUSED("torchscript", "false or null", "transformers 4 unties the head"),

    RP_CONFIG_IGNORED("use_cache", "for generation"),
    RP_CONFIG_IGNORED("num_mtp_layers", "further heads, which the loss has not"),
    RP_CONFIG_IGNORED("num_nextn_predict_layers", "further heads, which the loss has not"),
    RP_CONFIG_IGNORED("mtp_layer_types", "further heads, which the loss has not"),
    RP_CONFIG_IGNORED("mtp_mlp_layer_types", "further heads, which the loss has not"),
    RP_CONFIG_IGNORED("pretraining_tp", "the same product in slices, transformers 4 only"),
    RP_CONFIG_IGNORED("attn_implementation", "which kernel, not which function"),
    RP_CONFIG_IGNORED("_attn_implementation", "which kernel, not which function"),
    RP_CONFIG_IGNORED("experts_implementation", "which kernel, not which function"),
    RP_CONFIG_IGNORED("initial_context_length", "not read by these models"),
    RP_CONFIG_IGNORED("gradient_checkpointing", "memory, not values"),
    RP_CONFIG_IGNORED("chunk_size_feed_forward", "not read by these models"),
    RP_CONFIG_IGNORED("distributed_config", "places of weights, not values"),
    RP_CONFIG_IGNORED("output_hidden_states", "more outputs, the same loss"),
    RP_CONFIG_IGNORED("output_attentions", "more outputs, the same loss"),
    RP_CONFIG_IGNORED("tie_last_hidden_states", "more outputs, the same loss"),
    RP_CONFIG_IGNORED("return_dict", "form of the output"),
    RP_CONFIG_IGNORED("use_return_dict", "form of the output"),
    RP_CONFIG_IGNORED("is_encoder_decoder", "not read by these models"),
    RP_CONFIG_IGNORED("is_decoder", "not read by these models"),
    RP_CONFIG_IGNORED("add_cross_attention", "not read by these models"),
    RP_CONFIG_IGNORED("cross_attention_hidden_size", "not read by these models"),
    RP_CONFIG_IGNORED("tie_encoder_decoder", "not read by these models"),
    RP_CONFIG_IGNORED("id2label", "for classification"),
    RP_CONFIG_IGNORED("label2id", "for classification"),
    RP_CONFIG_IGNORED("num_labels", "for classification"),
    RP_CONFIG_IGNORED("problem_type", "for classification"),
    RP_CONFIG_IGNORED("classifier_dropout", "for classification"),
    RP_CONFIG_IGNORED("finetuning_task", "a note"),
    RP_CONFIG_IGNORED("task_specific_params", "a note"),
    RP_CONFIG_IGNORED("transformers_version", "a note"),
    RP_CONFIG_IGNORED("_name_or_path", "a note"),
    RP_CONFIG_IGNORED("name_or_path", "a note"),
    RP_CONFIG_IGNORED("_commit_hash", "a note"),
    RP_CONFIG_IGNORED("auto_map", "code of the repository, run only with trust_remote_code"),
    RP_CONFIG_IGNORED("tokenizer_class", "for the tokenizer"),
    RP_CONFIG_IGNORED("prefix", "for the tokenizer"),
    RP_CONFIG_IGNORED("sep_token_id", "for generation"),
    RP_CONFIG_IGNORED("decoder_start_token_id", "for generation"),
    RP_CONFIG_IGNORED("generation_config", "for generation"),
    RP_CONFIG_IGNORED("use_bfloat16", "not read any more"),

    {NULL, rp_json_read_ignored},
};

static gboolean
read_fields(RpJsonPull *pull, RpConfigRaw *raw)
{
    return rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), raw, NULL);
}

gboolean
rp_config_read(RpConfigReader *reader)
{
    return read_fields(&reader->pull, &reader->raw);
}

gboolean
rp_hf_config_key(guint index, RpConfigKey *key)
{
    guint n_rope;
    const RpJsonField *rope_fields = rp_config_rope_fields(&n_rope);
    gboolean in_rope = index >= G_N_ELEMENTS(fields) - 1;

    if (in_rope)
        index -= G_N_ELEMENTS(fields) - 1;
    if (in_rope && index >= n_rope)
        return FALSE;
    const RpJsonField *field = in_rope ? &rope_fields[index] : &fields[index];
    *key = (RpConfigKey){field->key,
                         field->note == NULL                   ? RP_CONFIG_KEY_HONOURED
                         : field->read == rp_json_read_ignored ? RP_CONFIG_KEY_IGNORED
                                                               : RP_CONFIG_KEY_REFUSED,
                         in_rope, field->expected, field->note};
    return TRUE;
}

const char **
rp_config_architecture_names(gsize member)
{
    guint custom = 0;

    while (rp_architecture_nth(custom) != NULL)
        custom++;
    const char **names = g_new0(const char *, RP_N_ARCHITECTURES + custom + 1);

    for (guint i = 0; i < RP_N_ARCHITECTURES; i++)
        names[i] = G_STRUCT_MEMBER(const char *, &rp_architectures[i], member);
    for (guint i = 0; i < custom; i++)
        names[RP_N_ARCHITECTURES + i] = rp_architecture_nth(i)->name;
    return names;
}
