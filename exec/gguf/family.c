/* Architectures as llama.cpp has them: names, and the values that it takes for granted. */
#include "exec/gguf/private.h"

#include <math.h>
#include <string.h>

#include "core/base/quote.h"

/* llama.cpp's GPT-OSS has these built in, and YaRN of every architecture the last two. */
#define SWIGLU_ALPHA 1.702
#define SWIGLU_LIMIT 7
#define BETA_FAST 32
#define BETA_SLOW 1

static const RpGgufFamily families[RP_N_ARCHITECTURES + 1] = {
    [RP_ARCHITECTURE_QWEN3] = {.name = "qwen3", .post_norm = "ffn_norm"},
    [RP_ARCHITECTURE_LLAMA] = {.name = "llama",
                               .post_norm = "ffn_norm",
                               .pairs = TRUE,
                               .o_bias = TRUE,
                               .mlp_bias = TRUE,
                               .rope_factors = TRUE},
    [RP_ARCHITECTURE_QWEN2] = {.name = "qwen2", .post_norm = "ffn_norm", .hidden_heads = TRUE},
    [RP_ARCHITECTURE_MISTRAL] = {.name = "llama",
                                 .post_norm = "ffn_norm",
                                 .pairs = TRUE,
                                 .o_bias = TRUE,
                                 .mlp_bias = TRUE,
                                 .rope_factors = TRUE},
    [RP_ARCHITECTURE_SMOLLM3] = {.name = "smollm3",
                                 .post_norm = "ffn_norm",
                                 .pairs = TRUE,
                                 .no_rope_period = 4},
    [RP_ARCHITECTURE_QWEN3_MOE] = {.name = "qwen3moe", .post_norm = "ffn_norm"},
    [RP_ARCHITECTURE_GPT_OSS] = {.name = "gpt-oss",
                                 .post_norm = "post_attention_norm",
                                 .o_bias = TRUE,
                                 .mlp_bias = TRUE,
                                 .own_head = TRUE},
};

const RpGgufFamily *
rp_gguf_family(const RpModel *model)
{
    return &families[model->architecture];
}

/* ---- what llama.cpp computes ---- */

static gboolean
slides_otherwise(const RpModel *model)
{
    for (guint block = 0; block < model->blocks; block++)
        if (rp_model_block_slides(model, block) != (block % 2 == 0))
            return TRUE;
    return FALSE;
}

static const char *
find_rope_problem(const RpModel *model, const RpGgufFamily *family)
{
    const RpRope *rope = &model->rope;

    switch (rope->type) {
    case RP_ROPE_LLAMA3:
        return family->rope_factors ? NULL
                                    : "rope_type: expected none, linear or yarn, found llama3";
    case RP_ROPE_DYNAMIC:
        return "rope_type: expected none, linear, llama3 or yarn, found dynamic";
    case RP_ROPE_LONGROPE:
        return "rope_type: expected none, linear, llama3 or yarn, found longrope";
    case RP_ROPE_YARN:
        if (rope->beta_fast != BETA_FAST || rope->beta_slow != BETA_SLOW)
            return "beta_fast, beta_slow: expected 32 and 1, found others";
        return NULL;
    default:
        return NULL;
    }
}

static const char *
find_problem(const RpModel *model)
{
    const RpArchitectureRow *row = &rp_architectures[model->architecture];
    const RpGgufFamily *family = rp_gguf_family(model);

    if (model->attention_bias && !family->o_bias)
        return "attention_bias: expected false, found true";
    if (model->mlp_bias && !family->mlp_bias)
        return "mlp_bias: expected false, found true";
    if (family->hidden_heads && (guint64)model->heads * model->head_dim != model->hidden)
        return "head_dim: expected hidden_size / num_attention_heads, found another";
    if (model->no_rope_period != family->no_rope_period)
        return "no_rope_layers: expected every fourth, found others";
    if (row->clamped_swiglu &&
        ((float)model->swiglu_alpha != (float)SWIGLU_ALPHA || model->swiglu_limit != SWIGLU_LIMIT))
        return "swiglu_alpha, swiglu_limit: expected 1.702 and 7, found others";
    if (row->sinks && !(model->attention_bias && model->mlp_bias))
        return "attention_bias: expected true, found false";
    if (row->sinks && slides_otherwise(model))
        return "layer_types: expected sliding_attention and full_attention by turns, found others";
    if (model->experts > 1 && !row->sinks && !model->norm_topk)
        return "norm_topk_prob: expected true, found false";
    return find_rope_problem(model, family);
}

gboolean
rp_gguf_check_model(const RpModel *model, GError **error)
{
    const char *hf_name = rp_architectures[model->architecture].hf_name;

    if (rp_gguf_family(model)->name == NULL)
        return rp_fail(
            error, RP_GGUF_ERROR, RP_GGUF_ERROR_UNSUPPORTED,
            "config.json: architectures: expected a family that is written for llama.cpp "
            "(Llama, Mistral, Qwen2, Qwen3, Qwen3-MoE, SmolLM3, GPT-OSS), found %s",
            hf_name);
    const char *problem = find_problem(model);
    return problem == NULL ||
           rp_fail(error, RP_GGUF_ERROR, RP_GGUF_ERROR_UNSUPPORTED,
                   "config.json: %s: llama.cpp computes no other %s", problem, hf_name);
}

char *
rp_gguf_difference(const RpModel *model)
{
    const RpRope *rope = &model->rope;

    if (!rp_architectures[model->architecture].sinks && model->sliding_window > 0)
        return g_strdup_printf(
            "llama.cpp has no sliding window for this family: answers may differ "
            "behind the first %u tokens",
            model->sliding_window);
    if (rope->type == RP_ROPE_YARN && !rope->truncate)
        return g_strdup("llama.cpp rounds the bounds of YaRN's ramp, which \"truncate\": false "
                        "forbids: logits differ a little");
    return NULL;
}

/* ---- metadata ---- */

/* llama.cpp multiplies cosines and sines by 1 + 0.1 ln factor itself. */
static void
add_yarn(RpGgufFile *file, const char *prefix, const RpRope *rope)
{
    const double usual = 1 + 0.1 * log(rope->factor);
    const double wanted = rope->attention_factor > 0 ? rope->attention_factor : 1;
    g_autofree char *length = g_strconcat(prefix, ".rope.scaling.original_context_length", NULL);
    g_autofree char *attention = g_strconcat(prefix, ".rope.scaling.attn_factor", NULL);

    rp_gguf_add_uint(file, length, rope->original_max_positions);
    if ((float)(wanted / usual) != 1)
        rp_gguf_add_float(file, attention, wanted / usual);
}

static void
add_rope(RpGgufFile *file, const char *prefix, const RpModel *model)
{
    const RpRope *rope = &model->rope;
    g_autofree char *dimensions = g_strconcat(prefix, ".rope.dimension_count", NULL);
    g_autofree char *base = g_strconcat(prefix, ".rope.freq_base", NULL);
    g_autofree char *type = g_strconcat(prefix, ".rope.scaling.type", NULL);
    g_autofree char *factor = g_strconcat(prefix, ".rope.scaling.factor", NULL);

    rp_gguf_add_uint(file, dimensions, model->head_dim);
    rp_gguf_add_float(file, base, rope->theta);
    if (rope->type != RP_ROPE_LINEAR && rope->type != RP_ROPE_YARN)
        return; /* llama3 is a tensor of factors */
    rp_gguf_add_text(file, type, rp_rope_type_name(rope->type));
    rp_gguf_add_float(file, factor, rope->factor);
    if (rope->type == RP_ROPE_YARN)
        add_yarn(file, prefix, rope);
}

void
rp_gguf_add_model(RpGgufFile *file, const RpModel *model)
{
    const RpArchitectureRow *row = &rp_architectures[model->architecture];
    const char *prefix = rp_gguf_family(model)->name;
    const gboolean dense = model->experts <= 1;
    const struct {
        const char *key;
        guint value;
        gboolean is_there;
    } sizes[] = {
        {"vocab_size", model->vocab, TRUE},
        {"context_length", rp_model_positions(model), TRUE},
        {"embedding_length", model->hidden, TRUE},
        {"block_count", model->blocks, TRUE},
        {"feed_forward_length",
         model->dense_intermediate > 0 ? model->dense_intermediate : model->intermediate, TRUE},
        {"attention.head_count", model->heads, TRUE},
        {"attention.head_count_kv", model->kv_heads, TRUE},
        {"attention.key_length", model->head_dim, TRUE},
        {"attention.value_length", model->head_dim, TRUE},
        {"attention.sliding_window", model->sliding_window, row->sinks},
        {"expert_count", model->experts, !dense},
        {"expert_used_count", model->active_experts, !dense},
        {"expert_feed_forward_length", model->intermediate, !dense},
    };
    g_autofree char *epsilon = g_strconcat(prefix, ".attention.layer_norm_rms_epsilon", NULL);

    for (guint i = 0; i < G_N_ELEMENTS(sizes); i++) {
        g_autofree char *key = g_strdup_printf("%s.%s", prefix, sizes[i].key);

        if (sizes[i].is_there)
            rp_gguf_add_uint(file, key, sizes[i].value);
    }
    rp_gguf_add_float(file, epsilon, model->rms_norm_eps);
    add_rope(file, prefix, model);
}
