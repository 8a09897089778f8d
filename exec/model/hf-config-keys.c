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

/* ---- readers: RpJsonRead ---- */

static gboolean
fail_unsupported(RpJsonPull *pull, const char *expected)
{
    pull->code = RP_HF_CONFIG_ERROR_UNSUPPORTED;
    return rp_json_pull_fail_value(pull, expected);
}

/* The index in @names of the string that stands next. No "did you mean": another name computes
 * something else. */
static gboolean
read_choice(RpJsonPull *pull, const char *const *names, int *choice)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_string(pull, text))
        return FALSE;
    for (*choice = 0; names[*choice] != NULL; (*choice)++)
        if (strcmp(names[*choice], text->str) == 0)
            return TRUE;
    g_autofree char *joined = g_strjoinv("\", \"", (char **)names);
    g_autofree char *expected =
        g_strdup_printf("%s\"%s\"", names[1] != NULL ? "one of " : "", joined);
    return fail_unsupported(pull, expected);
}

static gboolean
read_architectures(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autofree const char **names =
        rp_config_architecture_names(G_STRUCT_OFFSET(RpArchitectureRow, hf_name));
    RpConfigRaw *raw = value;
    guint n = 0;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (n++ > 0)
            return rp_json_pull_fail(pull, "one architecture");
        if (!read_choice(pull, names, &raw->architecture))
            return FALSE;
    }
    return !pull->failed;
}

static gboolean
read_model_type(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autofree const char **names =
        rp_config_architecture_names(G_STRUCT_OFFSET(RpArchitectureRow, model_type));

    return read_choice(pull, names, &((RpConfigRaw *)value)->model_type);
}

static gboolean
read_activation(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const names[] = {"silu", NULL};
    int choice;

    return read_choice(pull, names, &choice);
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
        return fail_unsupported(pull, "one of \"bfloat16\", \"float16\", \"float32\"");
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
    (void)rp_json_pull_enter_array(pull);
    while (rp_json_pull_next_element(pull)) {
        if (config->n_eos == RP_MODEL_MAX_EOS)
            return rp_json_pull_fail(pull, "at most " G_STRINGIFY(RP_MODEL_MAX_EOS) " tokens");
        if (!read_token(pull, field, &config->eos_ids[config->n_eos++]))
            return FALSE;
    }
    return !pull->failed;
}

static gboolean
read_layer_types(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) text = g_string_new(NULL);

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
        if (!rp_json_pull_string(pull, text))
            return FALSE;
        if (strcmp(text->str, "full_attention") != 0)
            return fail_unsupported(pull, "\"full_attention\" for every block");
        ((RpConfigRaw *)value)->n_layer_types++;
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
read_rope_type(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const names[] = {"default", "llama3", NULL};
    RpConfigRaw *raw = value;
    gboolean old = strcmp(field->key, "type") == 0;
    int *own = old ? &raw->old_rope_type : &raw->rope_type;
    int other = old ? raw->rope_type : raw->old_rope_type;

    if (!read_choice(pull, names, own))
        return FALSE;
    if (other >= 0 && other != *own)
        return rp_json_pull_fail_value(pull, "the same for rope_type and type");
    raw->config.rope.type = *own == 1 ? RP_ROPE_LLAMA3 : RP_ROPE_DEFAULT;
    return TRUE;
}

/* Refuses what stands from @start on. */
static gboolean
fail_refused(RpJsonPull *pull, const RpJsonField *field, const char *start)
{
    g_autofree char *expected = g_strdup_printf("%s (%s)", field->expected, field->note);

    pull->value = start;
    return fail_unsupported(pull, expected);
}

static gboolean
read_fixed(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_auto(GStrv) taken = g_strsplit(field->expected, " or ", -1);
    const char *start = pull->at;

    if (!rp_json_pull_skip(pull))
        return FALSE;
    g_autofree char *found = g_strndup(start, (gsize)(pull->at - start));
    return g_strv_contains((const char *const *)taken, found) || fail_refused(pull, field, start);
}

static gboolean
read_exactly(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double number;

    return rp_json_pull_number(pull, &number) && (number == g_ascii_strtod(field->expected, NULL) ||
                                                  fail_refused(pull, field, pull->value));
}

/* It may be a layer type with a rope of its own. */
static gboolean
read_unknown(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return fail_unsupported(pull, "a key of one rope for all layers");
}

/* ---- tables ---- */

#define AT(member) G_STRUCT_OFFSET(RpConfigRaw, member)
#define COUNT(key, member, most)                                                                   \
    {                                                                                              \
        key, rp_json_read_uint, AT(member), .min = 1, .max = most                                  \
    }
#define NULL_OR_COUNT(key, member, most)                                                           \
    {                                                                                              \
        key, rp_json_read_uint, AT(member), .null_is_absent = TRUE, .min = 1, .max = most          \
    }
#define NUMBER(key, member, null)                                                                  \
    {                                                                                              \
        key, rp_json_read_number, AT(member), .null_is_absent = null, .min = G_MINDOUBLE,          \
                                              .max = 1e15,                                         \
                                              .expected = "a positive number of at most 1e15"      \
    }
#define BOOLEAN(key, member)                                                                       \
    {                                                                                              \
        key, rp_json_read_boolean, AT(member)                                                      \
    }
#define OTHER(key, read, null)                                                                     \
    {                                                                                              \
        key, read, .null_is_absent = null                                                          \
    }
#define REFUSED(key, taken, why)                                                                   \
    {                                                                                              \
        key, read_fixed, .expected = taken, .note = why                                            \
    }
#define IGNORED(key, why)                                                                          \
    {                                                                                              \
        key, rp_json_read_ignored, .note = why                                                     \
    }

static const RpJsonField rope_fields[] = {
    OTHER("rope_type", read_rope_type, FALSE),
    OTHER("type", read_rope_type, FALSE), /* the spelling of before 2024 */
    NUMBER("rope_theta", nested_theta, FALSE),
    NUMBER("factor", config.rope.factor, FALSE),
    NUMBER("low_freq_factor", config.rope.low_freq_factor, FALSE),
    NUMBER("high_freq_factor", config.rope.high_freq_factor, FALSE),
    COUNT("original_max_position_embeddings", config.rope.original_max_positions,
          RP_CONFIG_MAX_POSITIONS),

    {"partial_rotary_factor", read_exactly, .expected = "1",
     .note = "transformers turns a part of each head"},

    IGNORED("attention_factor", "of yarn and longrope"),
    IGNORED("beta_fast", "of yarn"),
    IGNORED("beta_slow", "of yarn"),
    IGNORED("mscale", "of yarn"),
    IGNORED("mscale_all_dim", "of yarn"),
    IGNORED("truncate", "of yarn"),
    IGNORED("short_factor", "of longrope"),
    IGNORED("long_factor", "of longrope"),
    IGNORED("mrope_section", "of models that see"),
    IGNORED("mrope_interleaved", "of models that see"),

    {NULL, read_unknown},
};

static gboolean
read_rope(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    RpConfigRaw *raw = value;

    if (raw->rope_key != NULL)
        return rp_json_pull_fail(pull, "either rope_scaling or rope_parameters");
    raw->rope_key = field->key;
    return rp_json_read_record(pull, rope_fields, G_N_ELEMENTS(rope_fields), raw, NULL);
}

static const RpJsonField fields[] = {
    OTHER("architectures", read_architectures, TRUE),
    OTHER("model_type", read_model_type, FALSE),
    COUNT("hidden_size", config.hidden, RP_CONFIG_MAX_SIZE),
    COUNT("num_hidden_layers", config.blocks, RP_CONFIG_MAX_BLOCKS),
    COUNT("num_attention_heads", config.heads, RP_CONFIG_MAX_SIZE),
    NULL_OR_COUNT("num_key_value_heads", config.kv_heads, RP_CONFIG_MAX_SIZE),
    {"head_dim", read_head_dim, .min = 1, .max = RP_CONFIG_MAX_SIZE},
    COUNT("intermediate_size", config.intermediate, RP_CONFIG_MAX_SIZE),
    COUNT("vocab_size", config.vocab, RP_CONFIG_MAX_SIZE),
    COUNT("max_position_embeddings", config.max_positions, RP_CONFIG_MAX_POSITIONS),
    NUMBER("rms_norm_eps", config.rms_norm_eps, FALSE),
    NUMBER("initializer_range", config.initializer_range, FALSE),
    NUMBER("rope_theta", rope_theta, TRUE),
    OTHER("rope_scaling", read_rope, TRUE),
    OTHER("rope_parameters", read_rope, TRUE),
    COUNT("original_max_position_embeddings", outer_original_max_positions,
          RP_CONFIG_MAX_POSITIONS),
    BOOLEAN("tie_word_embeddings", config.tied),
    BOOLEAN("attention_bias", config.attention_bias),
    BOOLEAN("mlp_bias", config.mlp_bias),
    OTHER("layer_types", read_layer_types, TRUE),
    OTHER("hidden_act", read_activation, FALSE),
    OTHER("torch_dtype", read_dtype, TRUE),
    OTHER("dtype", read_dtype, TRUE),
    {"bos_token_id", read_token, AT(config.bos_id), .null_is_absent = TRUE},
    OTHER("eos_token_id", read_eos, TRUE),
    {"pad_token_id", read_pad, AT(config.pad_id), .null_is_absent = TRUE},

    {"attention_dropout", read_exactly, .expected = "0",
     .note = "transformers drops attention in training"},
    {"partial_rotary_factor", read_exactly, .expected = "1",
     .note = "transformers turns a part of each head"},
    REFUSED("use_sliding_window", "false", "transformers hides earlier tokens"),
    REFUSED("is_causal", "true", "without it transformers lets tokens see later ones"),
    REFUSED("per_layer_config", "null", "transformers builds layers that differ"),
    REFUSED("text_config", "null", "transformers reads its sizes from there"),
    REFUSED("decoder", "null", "transformers may read its sizes from there"),
    REFUSED("generator", "null", "transformers may read its sizes from there"),
    REFUSED("encoder", "null", "transformers may read its sizes from there"),
    REFUSED("text_encoder", "null", "transformers may read its sizes from there"),
    REFUSED("quantization_config", "null", "the weights must not be quantized"),
    REFUSED("compression_config", "null", "the weights must not be quantized"),
    REFUSED("fusion_config", "null", "transformers replaces modules by fused ones"),
    REFUSED("transformers_weights", "null", "transformers reads the weights from that file"),
    REFUSED("pruned_heads", "{} or null", "transformers 4 prunes the heads"),
    REFUSED("torchscript", "false or null", "transformers 4 unties the head"),

    IGNORED("use_cache", "for generation"),
    IGNORED("sliding_window", "used only with use_sliding_window or layer_types"),
    IGNORED("max_window_layers", "used only with use_sliding_window"),
    IGNORED("pretraining_tp", "the same product in slices, transformers 4 only"),
    IGNORED("attn_implementation", "which kernel, not which function"),
    IGNORED("_attn_implementation", "which kernel, not which function"),
    IGNORED("experts_implementation", "these models have no experts"),
    IGNORED("gradient_checkpointing", "memory, not values"),
    IGNORED("chunk_size_feed_forward", "not read by these models"),
    IGNORED("distributed_config", "places of weights, not values"),
    IGNORED("output_hidden_states", "more outputs, the same loss"),
    IGNORED("output_attentions", "more outputs, the same loss"),
    IGNORED("tie_last_hidden_states", "more outputs, the same loss"),
    IGNORED("return_dict", "form of the output"),
    IGNORED("use_return_dict", "form of the output"),
    IGNORED("is_encoder_decoder", "not read by these models"),
    IGNORED("is_decoder", "not read by these models"),
    IGNORED("add_cross_attention", "not read by these models"),
    IGNORED("cross_attention_hidden_size", "not read by these models"),
    IGNORED("tie_encoder_decoder", "not read by these models"),
    IGNORED("id2label", "for classification"),
    IGNORED("label2id", "for classification"),
    IGNORED("num_labels", "for classification"),
    IGNORED("problem_type", "for classification"),
    IGNORED("classifier_dropout", "for classification"),
    IGNORED("finetuning_task", "a note"),
    IGNORED("task_specific_params", "a note"),
    IGNORED("transformers_version", "a note"),
    IGNORED("_name_or_path", "a note"),
    IGNORED("name_or_path", "a note"),
    IGNORED("_commit_hash", "a note"),
    IGNORED("auto_map", "code of the repository, run only with trust_remote_code"),
    IGNORED("tokenizer_class", "for the tokenizer"),
    IGNORED("prefix", "for the tokenizer"),
    IGNORED("sep_token_id", "for generation"),
    IGNORED("decoder_start_token_id", "for generation"),
    IGNORED("generation_config", "for generation"),
    IGNORED("use_bfloat16", "not read any more"),

    {NULL, rp_json_read_ignored},
};

gboolean
rp_config_read(RpConfigReader *reader)
{
    return rp_json_read_record(&reader->pull, fields, G_N_ELEMENTS(fields), &reader->raw, NULL);
}

gboolean
rp_hf_config_key(guint index, RpConfigKey *key)
{
    gboolean in_rope = index >= G_N_ELEMENTS(fields) - 1;

    if (in_rope)
        index -= G_N_ELEMENTS(fields) - 1;
    if (in_rope && index >= G_N_ELEMENTS(rope_fields) - 1)
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
    const char **names = g_new0(const char *, RP_N_ARCHITECTURES + 1);

    for (guint i = 0; i < RP_N_ARCHITECTURES && rp_architectures[i].runs; i++)
        names[i] = G_STRUCT_MEMBER(const char *, &rp_architectures[i], member);
    return names;
}
