/**
 * The models. Every value is the config.json that is published with the weights; the sums over
 * rp_model_add_weights() equal the published parameter counts (tests/core/test-catalogue.c).
 */
#include "core/catalogue/catalogue.h"

/* h, a, k and m as in core/catalogue/model.h. */
#define SIZES(n, h, a, k, m) .blocks = n, .hidden = h, .heads = a, .kv_heads = k, .intermediate = m

/* Values that all models of a family share. Vocabulary sizes include padding. */
#define ALL .initializer_range = 0.02, .has_dtype = TRUE, .dtype = RP_DTYPE_BF16, .n_eos = 1
#define EXPERTS(all, active) .experts = all, .active_experts = active
#define QWEN3_FAMILY                                                                               \
    ALL, .head_dim = 128, .vocab = 151936, .max_positions = 40960, .rms_norm_eps = 1e-6,           \
         .rope.theta = 1e6, .bos_id = 151643, .eos_ids[0] = 151645, .pad_id = RP_MODEL_NO_TOKEN
#define QWEN3 QWEN3_FAMILY, EXPERTS(1, 1), .architecture = RP_ARCHITECTURE_QWEN3
#define QWEN3_MOE                                                                                  \
    QWEN3_FAMILY, EXPERTS(128, 8), .norm_topk = TRUE, .architecture = RP_ARCHITECTURE_QWEN3_MOE
#define QWEN2(v, positions, eps)                                                                   \
    ALL, EXPERTS(1, 1), .architecture = RP_ARCHITECTURE_QWEN2, .vocab = v,                         \
                        .max_positions = positions, .rms_norm_eps = eps, .rope.theta = 1e6,        \
                        .bos_id = 151643, .eos_ids[0] = 151643, .pad_id = RP_MODEL_NO_TOKEN
#define MISTRAL                                                                                    \
    ALL, EXPERTS(1, 1), .architecture = RP_ARCHITECTURE_MISTRAL, .head_dim = 128,                  \
                        .max_positions = 32768, .rms_norm_eps = 1e-5, .bos_id = 1,                 \
                        .eos_ids[0] = 2, .pad_id = RP_MODEL_NO_TOKEN
#define MINISTRAL3(base)                                                                           \
    ALL, EXPERTS(1, 1), .architecture = RP_ARCHITECTURE_MINISTRAL3, .head_dim = 128,               \
                        .vocab = 131072, .max_positions = 262144, .rms_norm_eps = 1e-5,            \
                        .rope = {.type = RP_ROPE_YARN,                                             \
                                 .theta = base,                                                    \
                                 .factor = 16,                                                     \
                                 .original_max_positions = 16384,                                  \
                                 .beta_fast = 32,                                                  \
                                 .beta_slow = 1,                                                   \
                                 .attention_factor = 1,                                            \
                                 .truncate = TRUE,                                                 \
                                 .query_beta = 0.1},                                               \
                        .bos_id = 1, .eos_ids[0] = 2, .pad_id = 11
#define LLAMA3(d, times)                                                                           \
    ALL, EXPERTS(1, 1), .architecture = RP_ARCHITECTURE_LLAMA, .head_dim = d, .vocab = 128256,     \
                        .max_positions = 131072, .rms_norm_eps = 1e-5,                             \
                        .rope = {.type = RP_ROPE_LLAMA3,                                           \
                                 .theta = 5e5,                                                     \
                                 .factor = times,                                                  \
                                 .low_freq_factor = 1,                                             \
                                 .high_freq_factor = 4,                                            \
                                 .original_max_positions = 8192},                                  \
                        .bos_id = 128000, .eos_ids[0] = 128001, .pad_id = RP_MODEL_NO_TOKEN

/* Weights are published with 4-bit experts; full training has 16-bit ones. Even blocks slide. */
#define GPT_OSS(experts)                                                                           \
    ALL, EXPERTS(experts, 4), .architecture = RP_ARCHITECTURE_GPT_OSS, .head_dim = 64,             \
                              .vocab = 201088, .attention_bias = TRUE, .mlp_bias = TRUE,           \
                              .swiglu_alpha = 1.702, .swiglu_limit = 7, .mxfp4 = TRUE,             \
                              .sliding_window = 128, .sliding_period = 2, .max_positions = 131072, \
                              .rms_norm_eps = 1e-5,                                                \
                              .rope = {.type = RP_ROPE_YARN,                                       \
                                       .theta = 150000,                                            \
                                       .factor = 32,                                               \
                                       .original_max_positions = 4096,                             \
                                       .beta_fast = 32,                                            \
                                       .beta_slow = 1,                                             \
                                       .attention_factor = 1.3465735902799727},                    \
                              .bos_id = RP_MODEL_NO_TOKEN, .eos_ids[0] = 200002, .pad_id = 199999

/* The text part of a model that sees. */
#define QWEN3_5_FAMILY(values)                                                                     \
    ALL, .outer = TRUE, .head_dim = 256, .rotary_dim = 64, .full_period = 4,                       \
         .delta_key_heads = 16, .delta_value_heads = values, .delta_key_dim = 128,                 \
         .delta_value_dim = 128, .delta_kernel = 4, .vocab = 248320, .max_positions = 262144,      \
         .rms_norm_eps = 1e-6, .rope.theta = 1e7, .bos_id = RP_MODEL_NO_TOKEN,                     \
         .eos_ids[0] = 248044, .pad_id = RP_MODEL_NO_TOKEN
#define QWEN3_5(values)                                                                            \
    QWEN3_5_FAMILY(values), EXPERTS(1, 1), .architecture = RP_ARCHITECTURE_QWEN3_5
#define QWEN3_5_MOE(values, shared, all, active)                                                   \
    QWEN3_5_FAMILY(values), EXPERTS(all, active), .norm_topk = TRUE,                               \
                                                  .shared_intermediate = shared,                   \
                                                  .architecture = RP_ARCHITECTURE_QWEN3_5_MOE

static const RpModel models[] = {
    {.name = "qwen2.5-0.5b",
     .hf_name = "Qwen/Qwen2.5-0.5B",
     SIZES(24, 896, 14, 2, 4864),
     .head_dim = 64,
     .tied = TRUE,
     QWEN2(151936, 32768, 1e-6)},
    {.name = "qwen3-0.6b",
     .hf_name = "Qwen/Qwen3-0.6B",
     SIZES(28, 1024, 16, 8, 3072),
     .tied = TRUE,
     QWEN3},
    {.name = "qwen3.5-0.8b",
     .hf_name = "Qwen/Qwen3.5-0.8B",
     SIZES(24, 1024, 8, 2, 3584),
     .tied = TRUE,
     QWEN3_5(16)},
    {.name = "llama-3.2-1b",
     .hf_name = "meta-llama/Llama-3.2-1B",
     SIZES(16, 2048, 32, 8, 8192),
     .tied = TRUE,
     LLAMA3(64, 32)},
    {.name = "qwen2.5-1.5b",
     .hf_name = "Qwen/Qwen2.5-1.5B",
     SIZES(28, 1536, 12, 2, 8960),
     .head_dim = 128,
     .tied = TRUE,
     QWEN2(151936, 131072, 1e-6)},
    {.name = "qwen3-1.7b",
     .hf_name = "Qwen/Qwen3-1.7B",
     SIZES(28, 2048, 16, 8, 6144),
     .tied = TRUE,
     QWEN3},
    {.name = "qwen3.5-2b",
     .hf_name = "Qwen/Qwen3.5-2B",
     SIZES(24, 2048, 8, 2, 6144),
     .tied = TRUE,
     QWEN3_5(16)},
    /* Every fourth block has no rope. */
    {.name = "smollm3-3b",
     .hf_name = "HuggingFaceTB/SmolLM3-3B",
     SIZES(36, 2048, 16, 4, 11008),
     ALL,
     EXPERTS(1, 1),
     .architecture = RP_ARCHITECTURE_SMOLLM3,
     .head_dim = 128,
     .vocab = 128256,
     .tied = TRUE,
     .no_rope_period = 4,
     .max_positions = 65536,
     .rms_norm_eps = 1e-6,
     .rope.theta = 5e6,
     .bos_id = 128000,
     .eos_ids[0] = 128012,
     .pad_id = 128004},
    {.name = "qwen2.5-3b",
     .hf_name = "Qwen/Qwen2.5-3B",
     SIZES(36, 2048, 16, 2, 11008),
     .head_dim = 128,
     .tied = TRUE,
     QWEN2(151936, 32768, 1e-6)},
    /* the text part of Mistral3ForConditionalGeneration */
    {.name = "ministral-3-3b",
     .hf_name = "mistralai/Ministral-3-3B-Base-2512",
     SIZES(26, 3072, 32, 8, 9216),
     .tied = TRUE,
     MINISTRAL3(1e6)},
    {.name = "qwen3-4b",
     .hf_name = "Qwen/Qwen3-4B",
     SIZES(36, 2560, 32, 8, 9728),
     .tied = TRUE,
     QWEN3},
    {.name = "qwen3.5-4b",
     .hf_name = "Qwen/Qwen3.5-4B",
     SIZES(32, 2560, 16, 4, 9216),
     .tied = TRUE,
     QWEN3_5(32)},
    {.name = "mistral-7b-v0.1",
     .hf_name = "mistralai/Mistral-7B-v0.1",
     SIZES(32, 4096, 32, 8, 14336),
     .vocab = 32000,
     .sliding_window = 4096,
     .rope.theta = 1e4,
     MISTRAL},
    {.name = "mistral-7b-v0.3",
     .hf_name = "mistralai/Mistral-7B-v0.3",
     SIZES(32, 4096, 32, 8, 14336),
     .vocab = 32768,
     .rope.theta = 1e6,
     MISTRAL},
    {.name = "qwen2.5-7b",
     .hf_name = "Qwen/Qwen2.5-7B",
     SIZES(28, 3584, 28, 4, 18944),
     .head_dim = 128,
     QWEN2(152064, 131072, 1e-6)},
    {.name = "llama-3.1-8b",
     .hf_name = "meta-llama/Llama-3.1-8B",
     SIZES(32, 4096, 32, 8, 14336),
     LLAMA3(128, 8)},
    {.name = "qwen3-8b", .hf_name = "Qwen/Qwen3-8B", SIZES(36, 4096, 32, 8, 12288), QWEN3},
    {.name = "ministral-3-8b",
     .hf_name = "mistralai/Ministral-3-8B-Base-2512",
     SIZES(34, 4096, 32, 8, 14336),
     MINISTRAL3(1e6)},
    {.name = "qwen3.5-9b",
     .hf_name = "Qwen/Qwen3.5-9B",
     SIZES(32, 4096, 16, 4, 12288),
     QWEN3_5(32)},
    /* The last of each four blocks attends to all, with a rope of its own. */
    {.name = "mellum-2-12b-a2.5b",
     .hf_name = "JetBrains/Mellum2-12B-A2.5B-Base",
     SIZES(28, 2304, 32, 4, 896),
     ALL,
     EXPERTS(64, 8),
     .architecture = RP_ARCHITECTURE_MELLUM,
     .head_dim = 128,
     .dense_intermediate = 7168,
     .norm_topk = TRUE,
     .vocab = 98304,
     .sliding_window = 1024,
     .sliding_period = 4,
     .max_positions = 131072,
     .rms_norm_eps = 1e-6,
     .rope = {.type = RP_ROPE_YARN,
              .theta = 5e5,
              .factor = 16,
              .original_max_positions = 8192,
              .beta_fast = 32,
              .beta_slow = 1,
              .attention_factor = 1.2772588722239782,
              .truncate = TRUE},
     .has_sliding_rope = TRUE,
     .sliding_rope.theta = 5e5,
     .bos_id = 0,
     .eos_ids[0] = 28,
     .pad_id = RP_MODEL_NO_TOKEN},
    {.name = "ministral-3-14b",
     .hf_name = "mistralai/Ministral-3-14B-Base-2512",
     SIZES(40, 5120, 32, 8, 16384),
     MINISTRAL3(1e9)},
    {.name = "qwen3-14b", .hf_name = "Qwen/Qwen3-14B", SIZES(40, 5120, 40, 8, 17408), QWEN3},
    {.name = "qwen2.5-14b",
     .hf_name = "Qwen/Qwen2.5-14B",
     SIZES(48, 5120, 40, 8, 13824),
     .head_dim = 128,
     QWEN2(152064, 131072, 1e-5)},
    {.name = "gpt-oss-20b",
     .hf_name = "openai/gpt-oss-20b",
     SIZES(24, 2880, 64, 8, 2880),
     GPT_OSS(32)},
    {.name = "qwen3.5-27b",
     .hf_name = "Qwen/Qwen3.5-27B",
     SIZES(64, 5120, 24, 4, 17408),
     QWEN3_5(48)},
    {.name = "qwen3-30b-a3b",
     .hf_name = "Qwen/Qwen3-30B-A3B",
     SIZES(48, 2048, 32, 4, 768),
     .dense_intermediate = 6144,
     QWEN3_MOE},
    {.name = "qwen3-32b", .hf_name = "Qwen/Qwen3-32B", SIZES(64, 5120, 64, 8, 25600), QWEN3},
    {.name = "qwen2.5-32b",
     .hf_name = "Qwen/Qwen2.5-32B",
     SIZES(64, 5120, 40, 8, 27648),
     .head_dim = 128,
     QWEN2(152064, 131072, 1e-5)},
    {.name = "qwen3.5-35b-a3b",
     .hf_name = "Qwen/Qwen3.5-35B-A3B",
     SIZES(40, 2048, 16, 2, 512),
     QWEN3_5_MOE(32, 512, 256, 8)},
    {.name = "llama-3.1-70b",
     .hf_name = "meta-llama/Llama-3.1-70B",
     SIZES(80, 8192, 64, 8, 28672),
     LLAMA3(128, 8)},
    {.name = "qwen2.5-72b",
     .hf_name = "Qwen/Qwen2.5-72B",
     SIZES(80, 8192, 64, 8, 29568),
     .head_dim = 128,
     QWEN2(152064, 131072, 1e-5)},
    {.name = "gpt-oss-120b",
     .hf_name = "openai/gpt-oss-120b",
     SIZES(36, 2880, 64, 8, 2880),
     GPT_OSS(128)},
    {.name = "qwen3.5-122b-a10b",
     .hf_name = "Qwen/Qwen3.5-122B-A10B",
     SIZES(48, 3072, 32, 2, 1024),
     QWEN3_5_MOE(64, 1024, 256, 8)},
    {.name = "qwen3-235b-a22b",
     .hf_name = "Qwen/Qwen3-235B-A22B",
     SIZES(94, 4096, 64, 4, 1536),
     .dense_intermediate = 12288,
     QWEN3_MOE},
    {.name = "qwen3.5-397b-a17b",
     .hf_name = "Qwen/Qwen3.5-397B-A17B",
     SIZES(60, 4096, 32, 2, 1024),
     QWEN3_5_MOE(64, 1024, 512, 10)},
};

const RpModel *
rp_model_list(guint *n_models)
{
    *n_models = G_N_ELEMENTS(models);
    return models;
}
