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
        key, rp_config_read_fixed, .expected = taken, .note = why                                  \
    }
#define IGNORED(key, why)                                                                          \
    {                                                                                              \
        key, rp_json_read_ignored, .note = why                                                     \
    }

const RpJsonField rp_config_fields[] = {
    OTHER("architectures", rp_config_read_architectures, TRUE),
    OTHER("model_type", rp_config_read_model_type, FALSE),
    COUNT("hidden_size", config.hidden, RP_CONFIG_MAX_SIZE),
    COUNT("num_hidden_layers", config.blocks, RP_CONFIG_MAX_BLOCKS),
    COUNT("num_attention_heads", config.heads, RP_CONFIG_MAX_SIZE),
    NULL_OR_COUNT("num_key_value_heads", config.kv_heads, RP_CONFIG_MAX_SIZE),
    {"head_dim", rp_config_read_head_dim, .min = 1, .max = RP_CONFIG_MAX_SIZE},
    COUNT("intermediate_size", config.intermediate, RP_CONFIG_MAX_SIZE),
    COUNT("vocab_size", config.vocab, RP_CONFIG_MAX_SIZE),
    COUNT("max_position_embeddings", config.max_positions, RP_CONFIG_MAX_POSITIONS),
    NUMBER("rms_norm_eps", config.rms_norm_eps, FALSE),
    NUMBER("initializer_range", config.initializer_range, FALSE),
    NUMBER("rope_theta", rope_theta, TRUE),
    OTHER("rope_scaling", rp_config_read_rope, TRUE),
    OTHER("rope_parameters", rp_config_read_rope, TRUE),
    COUNT("original_max_position_embeddings", outer_original_max_positions,
          RP_CONFIG_MAX_POSITIONS),
    BOOLEAN("tie_word_embeddings", config.tied),
    BOOLEAN("attention_bias", config.attention_bias),
    BOOLEAN("mlp_bias", config.mlp_bias),
    OTHER("layer_types", rp_config_read_layer_types, TRUE),
    OTHER("hidden_act", rp_config_read_activation, FALSE),
    OTHER("torch_dtype", rp_config_read_dtype, TRUE),
    OTHER("dtype", rp_config_read_dtype, TRUE),
    {"bos_token_id", rp_config_read_token, AT(config.bos_id), .null_is_absent = TRUE},
    OTHER("eos_token_id", rp_config_read_eos, TRUE),
    {"pad_token_id", rp_config_read_pad, AT(config.pad_id), .null_is_absent = TRUE},

    {"attention_dropout", rp_config_read_exactly, .expected = "0",
     .note = "transformers drops attention in training"},
    {"partial_rotary_factor", rp_config_read_exactly, .expected = "1",
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

const RpJsonField rp_config_rope_fields[] = {
    OTHER("rope_type", rp_config_read_rope_type, FALSE),
    OTHER("type", rp_config_read_rope_type, FALSE), /* the spelling of before 2024 */
    NUMBER("rope_theta", nested_theta, FALSE),
    NUMBER("factor", config.rope.factor, FALSE),
    NUMBER("low_freq_factor", config.rope.low_freq_factor, FALSE),
    NUMBER("high_freq_factor", config.rope.high_freq_factor, FALSE),
    COUNT("original_max_position_embeddings", config.rope.original_max_positions,
          RP_CONFIG_MAX_POSITIONS),

    {"partial_rotary_factor", rp_config_read_exactly, .expected = "1",
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

    {NULL, rp_config_read_unknown},
};

const guint rp_config_n_fields = G_N_ELEMENTS(rp_config_fields);
const guint rp_config_n_rope_fields = G_N_ELEMENTS(rp_config_rope_fields);

gboolean
rp_hf_config_key(guint index, RpConfigKey *key)
{
    gboolean in_rope = index >= rp_config_n_fields - 1;

    if (in_rope)
        index -= rp_config_n_fields - 1;
    if (in_rope && index >= rp_config_n_rope_fields - 1)
        return FALSE;
    const RpJsonField *field = in_rope ? &rp_config_rope_fields[index] : &rp_config_fields[index];
    *key = (RpConfigKey){field->key,
                         !field->note                          ? RP_CONFIG_KEY_HONOURED
                         : field->read == rp_json_read_ignored ? RP_CONFIG_KEY_IGNORED
                                                               : RP_CONFIG_KEY_REFUSED,
                         in_rope, field->expected, field->note};
    return TRUE;
}
