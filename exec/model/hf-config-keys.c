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

#include <string.h>

#define AT(member) G_STRUCT_OFFSET(RpConfigRaw, member)

#define HONOURED(name)                                                                             \
    {                                                                                              \
        name, RP_CONFIG_KEY_HONOURED, FALSE, NULL, NULL                                            \
    }
#define IN_ROPE(name)                                                                              \
    {                                                                                              \
        name, RP_CONFIG_KEY_HONOURED, TRUE, NULL, NULL                                             \
    }

#define COUNT(name, member, max)                                                                   \
    {                                                                                              \
        HONOURED(name), RP_CONFIG_COUNT, AT(member), max, FALSE, NULL                              \
    }
#define SIZE(name, member) COUNT(name, member, RP_CONFIG_MAX_SIZE)
#define NUMBER(name, member, null)                                                                 \
    {                                                                                              \
        HONOURED(name), RP_CONFIG_POSITIVE, AT(member), 0, null, NULL                              \
    }
#define BOOLEAN(name, member)                                                                      \
    {                                                                                              \
        HONOURED(name), RP_CONFIG_BOOLEAN, AT(member), 0, FALSE, NULL                              \
    }
#define OTHER(name, null, read)                                                                    \
    {                                                                                              \
        HONOURED(name), RP_CONFIG_OTHER, 0, 0, null, read                                          \
    }
#define ROPE_NUMBER(name, member)                                                                  \
    {                                                                                              \
        IN_ROPE(name), RP_CONFIG_POSITIVE, AT(member), 0, FALSE, NULL                              \
    }
#define ROPE_OTHER(name, read)                                                                     \
    {                                                                                              \
        IN_ROPE(name), RP_CONFIG_OTHER, 0, 0, FALSE, read                                          \
    }
#define REFUSED(name, taken, why)                                                                  \
    {                                                                                              \
        {name, RP_CONFIG_KEY_REFUSED, FALSE, taken, why}, RP_CONFIG_FIXED, 0, 0, FALSE, NULL       \
    }
#define REFUSED_NUMBER(name, taken, in_rope, why)                                                  \
    {                                                                                              \
        {name, RP_CONFIG_KEY_REFUSED, in_rope, taken, why}, RP_CONFIG_EXACTLY, 0, 0, FALSE, NULL   \
    }
#define IGNORED(name, why)                                                                         \
    {                                                                                              \
        {name, RP_CONFIG_KEY_IGNORED, FALSE, NULL, why}, RP_CONFIG_SKIP, 0, 0, FALSE, NULL         \
    }
#define ROPE_IGNORED(name, why)                                                                    \
    {                                                                                              \
        {name, RP_CONFIG_KEY_IGNORED, TRUE, NULL, why}, RP_CONFIG_SKIP, 0, 0, FALSE, NULL          \
    }

static const RpConfigField fields[] = {
    OTHER("architectures", TRUE, rp_config_read_architectures),
    OTHER("model_type", FALSE, rp_config_read_model_type),
    SIZE("hidden_size", config.hidden),
    COUNT("num_hidden_layers", config.blocks, RP_CONFIG_MAX_BLOCKS),
    SIZE("num_attention_heads", config.heads),
    {HONOURED("num_key_value_heads"), RP_CONFIG_COUNT, AT(config.kv_heads), RP_CONFIG_MAX_SIZE,
     TRUE, NULL},
    OTHER("head_dim", FALSE, rp_config_read_head_dim),
    SIZE("intermediate_size", config.intermediate),
    SIZE("vocab_size", config.vocab),
    COUNT("max_position_embeddings", config.max_positions, RP_CONFIG_MAX_POSITIONS),
    NUMBER("rms_norm_eps", config.rms_norm_eps, FALSE),
    NUMBER("initializer_range", config.initializer_range, FALSE),
    NUMBER("rope_theta", rope_theta, TRUE),
    OTHER("rope_scaling", TRUE, rp_config_read_rope),
    OTHER("rope_parameters", TRUE, rp_config_read_rope),
    {HONOURED("original_max_position_embeddings"), RP_CONFIG_COUNT,
     AT(outer_original_max_positions), RP_CONFIG_MAX_POSITIONS, FALSE, NULL},
    BOOLEAN("tie_word_embeddings", config.tied),
    BOOLEAN("attention_bias", config.attention_bias),
    BOOLEAN("mlp_bias", config.mlp_bias),
    OTHER("layer_types", TRUE, rp_config_read_layer_types),
    OTHER("hidden_act", FALSE, rp_config_read_activation),
    OTHER("torch_dtype", TRUE, rp_config_read_dtype),
    OTHER("dtype", TRUE, rp_config_read_dtype),
    OTHER("bos_token_id", TRUE, rp_config_read_bos),
    OTHER("eos_token_id", TRUE, rp_config_read_eos),
    OTHER("pad_token_id", TRUE, rp_config_read_pad),

    ROPE_OTHER("rope_type", rp_config_read_rope_type),
    ROPE_OTHER("type", rp_config_read_rope_type), /* the spelling of before 2024 */
    ROPE_NUMBER("rope_theta", nested_theta),
    ROPE_NUMBER("factor", config.rope.factor),
    ROPE_NUMBER("low_freq_factor", config.rope.low_freq_factor),
    ROPE_NUMBER("high_freq_factor", config.rope.high_freq_factor),
    {IN_ROPE("original_max_position_embeddings"), RP_CONFIG_COUNT,
     AT(config.rope.original_max_positions), RP_CONFIG_MAX_POSITIONS, FALSE, NULL},

    REFUSED_NUMBER("attention_dropout", "0", FALSE, "transformers drops attention in training"),
    REFUSED_NUMBER("partial_rotary_factor", "1", FALSE, "transformers turns a part of each head"),
    REFUSED_NUMBER("partial_rotary_factor", "1", TRUE, "transformers turns a part of each head"),
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

    ROPE_IGNORED("attention_factor", "of yarn and longrope"),
    ROPE_IGNORED("beta_fast", "of yarn"),
    ROPE_IGNORED("beta_slow", "of yarn"),
    ROPE_IGNORED("mscale", "of yarn"),
    ROPE_IGNORED("mscale_all_dim", "of yarn"),
    ROPE_IGNORED("truncate", "of yarn"),
    ROPE_IGNORED("short_factor", "of longrope"),
    ROPE_IGNORED("long_factor", "of longrope"),
    ROPE_IGNORED("mrope_section", "of models that see"),
    ROPE_IGNORED("mrope_interleaved", "of models that see"),
};

const RpConfigField *
rp_config_field(const char *name, gboolean in_rope)
{
    for (gsize i = 0; i < G_N_ELEMENTS(fields); i++)
        if (!fields[i].key.in_rope == !in_rope && strcmp(fields[i].key.name, name) == 0)
            return &fields[i];
    return NULL;
}

const RpConfigKey *
rp_hf_config_key(guint index)
{
    return index < G_N_ELEMENTS(fields) ? &fields[index].key : NULL;
}
