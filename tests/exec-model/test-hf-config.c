#include "tests/rp-test.h"

#include <glib/gstdio.h>

#include "exec/model/hf-config.h"

typedef struct {
    RpModel config;
    GError *error;
    char *text;
} Fixture;

static void
teardown(Fixture *f)
{
    g_clear_error(&f->error);
    g_free(f->text);
}

static gboolean
parse(Fixture *f, const char *text)
{
    g_clear_error(&f->error);
    gboolean good = rp_hf_config_parse("FILE", text, strlen(text), &f->config, &f->error);
    assert_true(good == (f->error == NULL));
    if (!good)
        assert_null(strchr(f->error->message, '\n'));
    return good;
}

/* Published with Qwen/Qwen3-0.6B. */
static const char qwen3_06b[] =
    "{\n  \"architectures\": [\n    \"Qwen3ForCausalLM\"\n  ],\n"
    "  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n"
    "  \"bos_token_id\": 151643,\n  \"eos_token_id\": 151645,\n  \"head_dim\": 128,\n"
    "  \"hidden_act\": \"silu\",\n  \"hidden_size\": 1024,\n  \"initializer_range\": 0.02,\n"
    "  \"intermediate_size\": 3072,\n  \"max_position_embeddings\": 40960,\n"
    "  \"max_window_layers\": 28,\n  \"model_type\": \"qwen3\",\n"
    "  \"num_attention_heads\": 16,\n  \"num_hidden_layers\": 28,\n"
    "  \"num_key_value_heads\": 8,\n  \"rms_norm_eps\": 1e-06,\n  \"rope_scaling\": null,\n"
    "  \"rope_theta\": 1000000,\n  \"sliding_window\": null,\n"
    "  \"tie_word_embeddings\": true,\n  \"torch_dtype\": \"bfloat16\",\n"
    "  \"transformers_version\": \"4.51.0\",\n  \"use_cache\": true,\n"
    "  \"use_sliding_window\": false,\n  \"vocab_size\": 151936\n}\n";

/* Published with meta-llama/Llama-3.1-8B. */
static const char llama_31_8b[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false,"
    "\"attention_dropout\": 0.0, \"bos_token_id\": 128000, \"eos_token_id\": 128001,"
    "\"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": 0.02,"
    "\"intermediate_size\": 14336, \"max_position_embeddings\": 131072, \"mlp_bias\": false,"
    "\"model_type\": \"llama\", \"num_attention_heads\": 32, \"num_hidden_layers\": 32,"
    "\"num_key_value_heads\": 8, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05,"
    "\"rope_scaling\": {\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
    "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"},"
    "\"rope_theta\": 500000.0, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\","
    "\"transformers_version\": \"4.43.0.dev0\", \"use_cache\": true, \"vocab_size\": 128256}";

/* Published with openai/gpt-oss-20b, and its config as transformers 5 saves it. */
#define GPT_OSS_TYPES                                                                              \
    "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\","           \
    "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\""
#define GPT_OSS(more)                                                                              \
    "{\"architectures\":[\"GptOssForCausalLM\"],\"attention_bias\":true,"                          \
    "\"attention_dropout\":0.0,\"eos_token_id\":200002,\"head_dim\":64,\"hidden_act\":\"silu\","   \
    "\"hidden_size\":2880,\"initializer_range\":0.02,\"intermediate_size\":2880,\"layer_types\":"  \
    "[" GPT_OSS_TYPES "," GPT_OSS_TYPES "," GPT_OSS_TYPES                                          \
    "],\"max_position_embeddings\":131072,\"model_type\":\"gpt_oss\",\"num_attention_heads\":64,"  \
    "\"num_hidden_layers\":24,\"num_key_value_heads\":8,\"num_local_experts\":32,"                 \
    "\"output_router_logits\":false,\"pad_token_id\":199999,"                                      \
    "\"quantization_config\":{\"modules_to_not_convert\":[\"model.layers.*.self_attn\"],"          \
    "\"quant_method\":\"mxfp4\"},\"rms_norm_eps\":1e-05,\"router_aux_loss_coef\":0.9,"             \
    "\"sliding_window\":128,\"swiglu_limit\":7.0,\"tie_word_embeddings\":false,"                   \
    "\"use_cache\":true,\"vocab_size\":201088," more "}"
static const char gpt_oss_20b[] =
    GPT_OSS("\"experts_per_token\":4,\"num_experts_per_tok\":4,\"initial_context_length\":4096,"
            "\"rope_scaling\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,"
            "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\",\"truncate\":false},"
            "\"rope_theta\":150000,\"torch_dtype\":\"bfloat16\"");
static const char gpt_oss_20b_of_5[] =
    GPT_OSS("\"num_experts_per_tok\":4,\"swiglu_alpha\":1.702,\"dtype\":\"bfloat16\","
            "\"rope_parameters\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":32.0,"
            "\"original_max_position_embeddings\":4096,\"rope_type\":\"yarn\","
            "\"rope_theta\":150000,\"truncate\":false}");

/* Published with Qwen/Qwen3-30B-A3B, with the keys of transformers 5. */
#define QWEN3_MOE_REST                                                                             \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"attention_bias\":false,"                       \
    "\"bos_token_id\":151643,\"decoder_sparse_step\":1,\"eos_token_id\":151645,\"head_dim\":128,"  \
    "\"hidden_size\":2048,\"intermediate_size\":6144,\"max_position_embeddings\":40960,"           \
    "\"max_window_layers\":48,\"mlp_only_layers\":[],\"model_type\":\"qwen3_moe\","                \
    "\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"num_attention_heads\":32,"            \
    "\"num_experts_per_tok\":8,\"num_hidden_layers\":48,\"num_key_value_heads\":4,"                \
    "\"rms_norm_eps\":1e-06,\"router_aux_loss_coef\":0.001,\"sliding_window\":null,"               \
    "\"use_sliding_window\":false,\"vocab_size\":151936,"
static const char qwen3_30b_a3b[] =
    QWEN3_MOE_REST "\"num_experts\":128,\"rope_scaling\":null,\"rope_theta\":1000000.0,"
                   "\"torch_dtype\":\"bfloat16\"}";
static const char qwen3_30b_a3b_of_5[] =
    QWEN3_MOE_REST "\"num_local_experts\":128,\"rope_parameters\":{\"rope_theta\":1000000.0,"
                   "\"rope_type\":\"default\"},\"dtype\":\"bfloat16\"}";

/* Published with Qwen/Qwen3.5-0.8B, without its part that sees. */
static const char qwen3_5_08b[] =
    "{\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"image_token_id\":248056,"
    "\"model_type\":\"qwen3_5\",\"text_config\":{\"attention_bias\":false,"
    "\"attention_dropout\":0.0,\"attn_output_gate\":true,\"dtype\":\"bfloat16\","
    "\"eos_token_id\":248044,\"full_attention_interval\":4,\"head_dim\":256,"
    "\"hidden_act\":\"silu\",\"hidden_size\":1024,\"initializer_range\":0.02,"
    "\"intermediate_size\":3584,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,"
    "\"linear_num_key_heads\":16,\"linear_num_value_heads\":16,\"linear_value_head_dim\":128,"
    "\"max_position_embeddings\":262144,\"mlp_only_layers\":[],\"model_type\":\"qwen3_5_text\","
    "\"mtp_num_hidden_layers\":1,\"num_attention_heads\":8,\"num_hidden_layers\":24,"
    "\"num_key_value_heads\":2,\"rms_norm_eps\":1e-06,\"tie_word_embeddings\":true,"
    "\"vocab_size\":248320,\"rope_parameters\":{\"mrope_interleaved\":true,"
    "\"mrope_section\":[11,11,10],\"rope_type\":\"default\",\"rope_theta\":10000000,"
    "\"partial_rotary_factor\":0.25}},\"tie_word_embeddings\":true,\"video_token_id\":248057,"
    "\"vision_config\":{\"depth\":12,\"hidden_size\":768}}";

#define SIZES                                                                                      \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"                        \
    "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":256"
#define LLAMA_NAMES "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
#define QWEN3_NAMES "\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\","
#define LLAMA(more) "{" LLAMA_NAMES SIZES more "}"
#define QWEN3(more) "{" QWEN3_NAMES SIZES more "}"
#define DENSE(hf, type, more)                                                                      \
    "{\"architectures\":[\"" hf "ForCausalLM\"],\"model_type\":\"" type "\"," SIZES more "}"
#define LLAMA3                                                                                     \
    "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4,"                                   \
    "\"original_max_position_embeddings\":128"

/* As transformers 5.3 saves the text part of Ministral 3. */
static const char ministral_3_3b[] =
    "{\"architectures\":[\"Ministral3ForCausalLM\"],\"attention_dropout\":0.0,\"bos_token_id\":1,"
    "\"dtype\":\"bfloat16\",\"eos_token_id\":2,\"head_dim\":128,\"hidden_act\":\"silu\","
    "\"hidden_size\":3072,\"initializer_range\":0.02,\"intermediate_size\":9216,"
    "\"max_position_embeddings\":262144,\"model_type\":\"ministral3\",\"num_attention_heads\":32,"
    "\"num_hidden_layers\":26,\"num_key_value_heads\":8,\"pad_token_id\":11,\"rms_norm_eps\":1e-05,"
    "\"rope_parameters\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":16.0,"
    "\"llama_4_scaling_beta\":0.1,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
    "\"original_max_position_embeddings\":16384,\"rope_theta\":1000000.0,\"rope_type\":\"yarn\","
    "\"type\":\"yarn\"},\"sliding_window\":null,\"tie_word_embeddings\":true,\"vocab_size\":"
    "131072}";

RP_TEST_OF(reads_the_published_configs_as_the_catalogue_has_them, Fixture *f)
{
    static const struct {
        const char *model;
        const char *text;
    } cases[] = {{"gpt-oss-20b", gpt_oss_20b},       {"gpt-oss-20b", gpt_oss_20b_of_5},
                 {"qwen3-30b-a3b", qwen3_30b_a3b},   {"qwen3-30b-a3b", qwen3_30b_a3b_of_5},
                 {"ministral-3-3b", ministral_3_3b}, {"qwen3-0.6b", qwen3_06b},
                 {"qwen3.5-0.8b", qwen3_5_08b},      {"llama-3.1-8b", llama_31_8b}};

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        assert_true(parse(f, cases[i].text));
        g_autofree char *read = rp_hf_config_to_json(&f->config);
        g_autofree char *made = rp_hf_config_to_json(rp_model_find(cases[i].model, NULL));
        assert_string_equal(read, made);
        assert_true(f->config.mxfp4 == g_str_has_prefix(cases[i].model, "gpt-oss"));
    }
    assert_int_equal(f->config.rope.type, RP_ROPE_LLAMA3);
    assert_true(f->config.rope.factor == 8 && f->config.rope.low_freq_factor == 1);
    assert_true(f->config.rope.high_freq_factor == 4 && f->config.rope.theta == 500000);
    assert_int_equal(f->config.rope.original_max_positions, 8192);
    assert_int_equal(f->config.head_dim, 128); /* derived: 4096 / 32 */
    assert_true(f->config.has_dtype && f->config.dtype == RP_DTYPE_BF16);
}

RP_TEST_OF(takes_absent_keys_as_transformers_does, Fixture *f)
{
    assert_true(parse(f, LLAMA("")));
    assert_int_equal(f->config.head_dim, 16);
    assert_int_equal(f->config.max_positions, 2048);
    assert_true(f->config.rms_norm_eps == 1e-6 && f->config.rope.theta == 10000);
    assert_true(f->config.initializer_range == 0.02);
    assert_false(f->config.tied || f->config.attention_bias || f->config.mlp_bias);
    assert_false(f->config.has_dtype);
    assert_int_equal(f->config.pad_id, RP_MODEL_NO_TOKEN);
    assert_int_equal(f->config.n_eos, 0);
    assert_true(parse(f, QWEN3("")));
    assert_int_equal(f->config.head_dim, 128); /* not 64 / 4 */
    assert_int_equal(f->config.max_positions, 32768);
    assert_true(parse(f, "{\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":2,"
                         "\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":9,"
                         "\"num_key_value_heads\":null,\"head_dim\":null,\"rope_scaling\":null}"));
    assert_int_equal(f->config.kv_heads, 4);
}

RP_TEST_OF(takes_absent_keys_of_each_family_as_transformers_does, Fixture *f)
{
    assert_true(parse(f, DENSE("Mistral", "mistral", "")));
    assert_int_equal(f->config.sliding_window, 4096);
    assert_true(rp_model_block_window(&f->config, 1) == 4096);
    assert_int_equal(f->config.max_positions, 131072);
    assert_int_equal(f->config.head_dim, 16);
    assert_true(parse(f, DENSE("Mistral", "mistral", ",\"sliding_window\":null")));
    assert_int_equal(f->config.sliding_window, 0);

    assert_true(parse(f, DENSE("Qwen2", "qwen2", ",\"sliding_window\":4096")));
    assert_int_equal(f->config.sliding_window, 0); /* not used */
    assert_int_equal(f->config.head_dim, 16);
    assert_true(
        parse(f, DENSE("Qwen2", "qwen2", ",\"use_sliding_window\":true,\"max_window_layers\":1")));
    assert_int_equal(rp_model_block_window(&f->config, 0), 0);
    assert_int_equal(rp_model_block_window(&f->config, 1), 4096);
    assert_true(parse(f, DENSE("Qwen2", "qwen2", ",\"use_sliding_window\":true")));
    assert_int_equal(f->config.sliding_window, 0); /* from the 28th block on */

    assert_true(parse(f, DENSE("SmolLM3", "smollm3", ",\"pad_token_id\":null")));
    assert_true(f->config.tied && f->config.rope.theta == 2e6);
    assert_int_equal(f->config.pad_id, RP_MODEL_NO_TOKEN);
    assert_int_equal(f->config.no_rope_period, 4);
    assert_true(parse(f, DENSE("SmolLM3", "smollm3",
                               ",\"pad_token_id\":2,\"no_rope_layers\":[1,0,1],"
                               "\"use_sliding_window\":true,\"sliding_window\":3")));
    assert_true(rp_model_block_has_rope(&f->config, 0) && !rp_model_block_has_rope(&f->config, 1));
    assert_int_equal(rp_model_block_window(&f->config, 0), 0);
    assert_int_equal(rp_model_block_window(&f->config, 1), 3);

    assert_true(
        parse(f, DENSE("GptOss", "gpt_oss",
                       ",\"num_experts\":4,\"num_experts_per_tok\":2,\"rope_scaling\":{}")));
    assert_true(f->config.attention_bias && f->config.mlp_bias && f->config.rms_norm_eps == 1e-5);
    assert_true(f->config.swiglu_alpha == 1.702 && f->config.swiglu_limit == 7);
    assert_true(f->config.rope.theta == 150000);
    assert_int_equal(rp_model_block_window(&f->config, 0), 128);
    assert_int_equal(rp_model_block_window(&f->config, 1), 0);
}

RP_TEST_OF(fills_in_yarn_as_transformers_does, Fixture *f)
{
    const RpRope *rope = &f->config.rope;

    assert_true(parse(f, LLAMA(",\"max_position_embeddings\":77,\"rope_scaling\":{\"rope_type\":"
                               "\"yarn\",\"factor\":32,\"beta_fast\":null}")));
    assert_true(rope->beta_fast == 32 && rope->beta_slow == 1 && rope->truncate);
    assert_int_equal(rope->original_max_positions, 77);
    assert_true(ABS(rope->attention_factor - 1.3465735902799727) < 1e-15);
    assert_true(parse(f, LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":40,"
                               "\"mscale\":0.707,\"mscale_all_dim\":1.414},"
                               "\"original_max_position_embeddings\":99")));
    assert_int_equal(rope->original_max_positions, 99);
    assert_true(ABS(rope->attention_factor - 0.8285998406217638) < 1e-12);
    assert_true(parse(f, LLAMA(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":40,"
                               "\"mscale\":0.707,\"attention_factor\":1.25}")));
    assert_true(rope->attention_factor == 1.25);
}

RP_TEST_OF(reads_the_spelling_of_transformers_5, Fixture *f)
{
    assert_true(parse(f, LLAMA(",\"dtype\":\"float16\",\"rope_parameters\":{\"rope_theta\":5e5,"
                               "\"rope_type\":\"llama3\",\"factor\":32,\"low_freq_factor\":1,"
                               "\"high_freq_factor\":4,"
                               "\"original_max_position_embeddings\":8192}")));
    assert_int_equal(f->config.dtype, RP_DTYPE_FP16);
    assert_true(f->config.rope.theta == 5e5 && f->config.rope.factor == 32);
    assert_true(parse(f, QWEN3(",\"rope_parameters\":{\"rope_theta\":1e6,\"rope_type\":"
                               "\"default\"},\"layer_types\":[\"full_attention\","
                               "\"full_attention\"]")));
    assert_true(f->config.rope.theta == 1e6 && f->config.rope.type == RP_ROPE_DEFAULT);
}

/* Their coefficients where the file has none: transformers' of each architecture. */
RP_TEST_OF(takes_the_auxiliary_loss_where_it_is_asked_for, Fixture *f)
{
#define ROUTED(hf, type, more)                                                                     \
    DENSE(hf, type, ",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8" more)
#define ASKED ",\"output_router_logits\":true"
    static const struct {
        const char *text;
        double want;
    } cases[] = {
        {ROUTED("Qwen3Moe", "qwen3_moe", ",\"router_aux_loss_coef\":0.5"), 0},
        {ROUTED("Qwen3Moe", "qwen3_moe", ASKED), 0.001},
        {ROUTED("Qwen3Moe", "qwen3_moe", ASKED ",\"router_aux_loss_coef\":0.5"), 0.5},
        {ROUTED("Qwen3Moe", "qwen3_moe", ASKED ",\"router_aux_loss_coef\":0"), 0},
        {ROUTED("GptOss", "gpt_oss", ASKED ",\"rope_parameters\":{\"rope_theta\":1e4}"), 0.9},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        if (!parse(f, cases[i].text))
            fail_msg("%s: %s", cases[i].text, f->error->message);
        assert_true(f->config.router_aux_loss == cases[i].want);
    }
}

RP_TEST_OF(reads_what_it_wrote, Fixture *f)
{
    static const char *const texts[] = {
        qwen3_06b,
        llama_31_8b,
        LLAMA(",\"attention_bias\":true,\"mlp_bias\":true,\"head_dim\":6,\"pad_token_id\":3,"
              "\"eos_token_id\":[1,2,5],\"rms_norm_eps\":1.25e-5,\"torch_dtype\":\"float32\""),
        QWEN3(",\"attention_bias\":true,\"head_dim\":8,\"eos_token_id\":0"),
        gpt_oss_20b,
        qwen3_30b_a3b,
        QWEN3(",\"use_sliding_window\":true,\"max_window_layers\":1,\"sliding_window\":7"),
        DENSE("Qwen2", "qwen2",
              ",\"use_sliding_window\":true,\"sliding_window\":7,\"layer_types\":["
              "\"sliding_attention\",\"full_attention\"]"),
        DENSE("Mistral", "mistral", ""),
        DENSE("Mistral", "mistral", ",\"sliding_window\":null"),
        DENSE("SmolLM3", "smollm3", ",\"pad_token_id\":null,\"no_rope_layer_interval\":2"),
        DENSE("SmolLM3", "smollm3", ",\"pad_token_id\":3,\"no_rope_layers\":[0,0]"),
        DENSE("GptOss", "gpt_oss",
              ",\"num_experts\":4,\"num_experts_per_tok\":2,\"layer_types\":["
              "\"full_attention\",\"full_attention\"],\"rope_parameters\":{"
              "\"rope_theta\":1e4}"),
        DENSE("GptOss", "gpt_oss",
              ",\"num_experts\":4,\"num_experts_per_tok\":2,\"output_router_logits\":true,"
              "\"rope_parameters\":{\"rope_theta\":1e4}"),
        LLAMA(",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}"),
        LLAMA(",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":1.5}"),
        LLAMA(",\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":0.7,"
              "\"mscale_all_dim\":1.1,\"attention_factor\":null}"),
        LLAMA(",\"head_dim\":4,\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1.1],"
              "\"long_factor\":[1e-6,1e6]},\"original_max_position_embeddings\":128"),
    };

    for (gsize i = 0; i < G_N_ELEMENTS(texts); i++) {
        if (!parse(f, texts[i]))
            fail_msg("%s: %s", texts[i], f->error->message);
        g_autofree char *first = rp_hf_config_to_json(&f->config);
        if (!parse(f, first))
            fail_msg("%s: %s", first, f->error->message);
        g_autofree char *second = rp_hf_config_to_json(&f->config);
        assert_string_equal(first, second);
    }
}

static char *
refusal(const char *text, gpointer data)
{
    Fixture *f = data;

    (void)parse(f, text);
    return rp_test_refusal(&f->error);
}

/* There is no "did you mean": Gemma computes something else, and so does what transformers refuses. */
RP_TEST(refuses_what_is_not_implemented)
{
    rp_test_lines("tests/exec-model/messages.txt", "hf-config: not implemented", refusal, *state);
}

RP_TEST(refuses_wrong_values)
{
    rp_test_lines("tests/exec-model/messages.txt", "hf-config: wrong values", refusal, *state);
}

RP_TEST(takes_what_changes_nothing)
{
    static const char *const texts[] = {
        LLAMA(",\"is_causal\":true,\"per_layer_config\":null,\"text_config\":null,"
              "\"quantization_config\":null,\"attention_dropout\":0.0,\"pruned_heads\":{},"
              "\"sliding_window\":4096,\"pretraining_tp\":2,\"use_cache\":false,"
              "\"partial_rotary_factor\":1.0,\"torchscript\":false,\"nobody_reads_this\":[1]"),
        LLAMA(",\"rope_scaling\":{\"type\":\"llama3\",\"rope_type\":\"llama3\"," LLAMA3
              "},\"original_max_position_embeddings\":128"),
        QWEN3(",\"rope_parameters\":{\"rope_type\":\"default\",\"mrope_section\":[1,2],"
              "\"rope_theta\":1e6},\"original_max_position_embeddings\":77"),
    };

    for (gsize i = 0; i < G_N_ELEMENTS(texts); i++) {
        Fixture *f = *state;
        if (!parse(f, texts[i]))
            fail_msg("%s", f->error->message);
    }
}

#define MELLUM(more)                                                                               \
    "{\"architectures\":[\"MellumForCausalLM\"],\"model_type\":\"mellum\"," SIZES                  \
    ",\"num_local_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8" more "}"

RP_TEST_OF(keeps_a_rope_for_each_kind_of_block, Fixture *f)
{
    assert_true(parse(f, MELLUM(",\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
                                "\"mlp_layer_types\":[\"sparse\",\"sparse\"],\"rope_parameters\":{"
                                "\"full_attention\":{\"rope_type\":\"yarn\",\"factor\":4,"
                                "\"original_max_position_embeddings\":64,\"rope_theta\":5e4},"
                                "\"sliding_attention\":{\"rope_theta\":7.0}}")));
    g_autofree char *written = rp_hf_config_to_json(&f->config);
    const RpModel read = f->config;

    assert_int_equal(read.sliding_window, 1024);
    assert_true(read.has_sliding_rope && read.norm_topk);
    assert_int_equal(read.rope.type, RP_ROPE_YARN);
    assert_true(read.rope.theta == 5e4 && read.rope.original_max_positions == 64);
    assert_int_equal(read.sliding_rope.type, RP_ROPE_DEFAULT);
    assert_true(read.sliding_rope.theta == 7);
    assert_true(parse(f, written));
    assert_memory_equal(&f->config, &read, sizeof read);
    /* as transformers without any */
    assert_true(parse(f, MELLUM("")));
    assert_true(f->config.rope.theta == 5e5 && f->config.sliding_rope.theta == 1e4);
    assert_int_equal(f->config.sliding_window, 0);
    assert_true(parse(f, "{\"model_type\":\"mistral3\",\"text_config\":{" SIZES "}}"));
    assert_int_equal(f->config.architecture, RP_ARCHITECTURE_MISTRAL);
    assert_true(f->config.outer);
    assert_true(parse(f, DENSE("Ministral3", "ministral3", "")));
    assert_true(f->config.rope.query_beta == 0.1 && f->config.rope.original_max_positions == 16384);
    assert_true(f->config.rope.theta == 1e6 && f->config.pad_id == 11);
}

/* The page names each key; one that is refused has a row of its own. */
RP_TEST_OF(the_page_lists_every_key, Fixture *f)
{
    RpConfigKey key;

    assert_true(
        g_file_get_contents(RP_SOURCE_ROOT "/docs/checkpoint-format.md", &f->text, NULL, NULL));
    for (guint i = 0; rp_hf_config_key(i, &key); i++) {
        g_autofree char *name = g_strdup_printf(key.in_rope ? "`%s` of a rope" : "`%s`", key.name);
        g_autofree char *row = key.fate == RP_CONFIG_KEY_REFUSED
                                   ? g_strdup_printf("| %s | %s | %s |\n", name, key.taken, key.why)
                               : key.fate == RP_CONFIG_KEY_IGNORED
                                   ? g_strdup(name)
                                   : g_strdup_printf("`%s`", key.name);
        if (strstr(f->text, row) == NULL)
            fail_msg("docs/checkpoint-format.md lacks %s", row);
    }
}

/* Other values stay as they are written. */
RP_TEST(takes_another_quantization)
{
    static const char text[] =
        "{ \"a\" : [1,  2.50],\"quantization_config\":{\"b\":1}, \"text_config\":"
        "{\"quantization_config\":null,\"c\\u0041\":{\"text_config\":1}}}\n";
    GError *error = NULL;
    g_autofree char *none = rp_hf_config_requantise("x", text, strlen(text), NULL, &error);
    g_autofree char *own = rp_hf_config_requantise("x", text, strlen(text), "{\"d\": 3}", &error);

    rp_assert_no_error(error);
    assert_string_equal(none, "{\n  \"a\": [1,  2.50],\n  \"text_config\": {\n"
                              "    \"c\\u0041\": {\"text_config\":1}\n  }\n}\n");
    assert_string_equal(own,
                        "{\n  \"quantization_config\": {\"d\": 3},\n  \"a\": [1,  2.50],\n"
                        "  \"text_config\": {\n    \"c\\u0041\": {\"text_config\":1}\n  }\n}\n");
    assert_null(rp_hf_config_requantise("x", text, strlen(text) - 3, NULL, &error));
    assert_non_null(error);
    g_clear_error(&error);
}

RP_TEST(refuses_a_config_cut_at_any_byte)
{
    for (gsize n = 0; n < strlen(llama_31_8b); n++) {
        g_autofree char *cut = g_strndup(llama_31_8b, n);
        assert_false(parse(*state, cut));
    }
}

RP_TEST_OF(runs_every_model_of_the_catalogue, Fixture *f)
{
    guint n;
    const RpModel *models = rp_model_list(&n);

    for (guint i = 0; i < n; i++) {
        g_clear_error(&f->error);
        assert_true(rp_hf_config_check_runs(&models[i], &f->error));
    }
}

RP_TEST_OF(saves_and_loads, Fixture *f)
{
    g_autofree char *directory = g_dir_make_tmp("rp-config-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(directory, "config.json", NULL);
    RpModel loaded;

    assert_true(parse(f, qwen3_06b));
    gboolean good = rp_hf_config_save(&f->config, path, &f->error) &&
                    rp_hf_config_load(directory, &loaded, &f->error);
    g_remove(path);
    g_rmdir(directory);
    assert_true(good);
    f->text = rp_hf_config_to_json(&loaded);
    g_autofree char *expected = rp_hf_config_to_json(&f->config);
    assert_string_equal(f->text, expected);
    rp_refuses("config.json: cannot be opened", rp_hf_config_load, path, &loaded);
    rp_refuses("cannot write \"", rp_hf_config_save, &f->config, path);
}

RP_TEST_STATE(Fixture, rp_test_no_state, teardown)
