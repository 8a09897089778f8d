/**
 * One description of a model, for all who need one: the catalogue's rows and a config.json are
 * both an RpModel, and its architecture says which tensors its layers have.
 *
 *   layer 0            embedding   model.embed_tokens.weight
 *   layer 1 .. blocks  block       model.layers.<layer - 1>.*
 *   layer blocks + 1   head        model.norm.weight, lm_head.weight
 */
#pragma once

#include "core/base/dtype.h"
#include "core/profile/profile.h"

/* Those that run stand first. */
typedef enum {
    RP_ARCHITECTURE_QWEN3,
    RP_ARCHITECTURE_LLAMA,
    RP_ARCHITECTURE_QWEN3_MOE,
    RP_ARCHITECTURE_GPT_OSS
} RpArchitecture;
#define RP_N_ARCHITECTURES (RP_ARCHITECTURE_GPT_OSS + 1)

/* The row of an architecture. What stands in config.json is in RpModel instead. */
typedef struct {
    const char *hf_name;     /* "Qwen3ForCausalLM" */
    const char *model_type;  /* "qwen3" */
    gboolean runs;           /* exec/network computes it; the others have times and sizes only */
    gboolean qk_norm;        /* RMSNorm over each query and key head */
    gboolean sinks;          /* one learned attention sink a head */
    gboolean clamped_swiglu; /* GPT-OSS's variant, in more element-wise steps */
    gboolean fused_experts;  /* one tensor for all experts instead of three an expert */
    /* What transformers makes of a config.json of it. */
    gboolean has_mlp_bias;   /* reads "mlp_bias" */
    gboolean needs_kv_heads; /* an absent "num_key_value_heads" is not that of heads */
    guint head_dim;          /* where the key is absent; 0 = hidden / heads, which must divide */
    guint max_positions;     /* where the key is absent */
} RpArchitectureRow;

extern const RpArchitectureRow rp_architectures[RP_N_ARCHITECTURES];

typedef enum { RP_ROPE_DEFAULT, RP_ROPE_LLAMA3 } RpRopeType;

/* Rotary position embedding. The last four: of llama3 only, else 0. */
typedef struct {
    RpRopeType type;
    double theta;
    double factor;
    double low_freq_factor;
    double high_freq_factor; /* > low_freq_factor */
    guint original_max_positions;
} RpRope;

#define RP_MODEL_MAX_EOS 8
#define RP_MODEL_NO_TOKEN (-1)

/* A decoder-only transformer with grouped-query attention and SwiGLU. */
typedef struct {
    const char *name;    /* "qwen3-1.7b"; %NULL of a config.json */
    const char *hf_name; /* "Qwen/Qwen3-1.7B" */
    RpArchitecture architecture;
    guint blocks;
    guint hidden;         /* h */
    guint heads;          /* a */
    guint kv_heads;       /* k; divides heads */
    guint head_dim;       /* d, even; heads x head_dim need not be hidden */
    guint intermediate;   /* m, of one expert */
    guint experts;        /* E; 1 = dense */
    guint active_experts; /* E_act; 1 = dense */
    guint vocab;
    guint max_positions;
    guint sliding_window; /* tokens that a sliding block attends to; 0 = every block is full */
    guint sliding_period; /* of each so many blocks the last is full, the others slide */
    double rms_norm_eps;
    double initializer_range; /* standard deviation of random weights */
    RpRope rope;
    gboolean tied;           /* the head multiplies with the embedding matrix */
    gboolean attention_bias; /* of q, k, v and o */
    gboolean mlp_bias;       /* of gate, up and down; of router and experts */
    gboolean has_dtype;      /* whether the config names one */
    RpDtype dtype;           /* of the weights, experts dequantised; RP_DTYPE_FP32 if not named */
    gint64 bos_id;           /* or RP_MODEL_NO_TOKEN */
    gint64 pad_id;           /* its row of the embedding gets no gradient from the input */
    gint64 eos_ids[RP_MODEL_MAX_EOS];
    guint n_eos;
} RpModel;

/* A layer's weights in their order; what a layer lacks (biases, norms) is left out. */
typedef enum {
    RP_WEIGHT_EMBEDDING,
    RP_WEIGHT_INPUT_NORM,
    RP_WEIGHT_Q,
    RP_WEIGHT_Q_BIAS,
    RP_WEIGHT_K,
    RP_WEIGHT_K_BIAS,
    RP_WEIGHT_V,
    RP_WEIGHT_V_BIAS,
    RP_WEIGHT_O,
    RP_WEIGHT_O_BIAS,
    RP_WEIGHT_Q_NORM,
    RP_WEIGHT_K_NORM,
    RP_WEIGHT_SINKS,
    RP_WEIGHT_POST_NORM,
    RP_WEIGHT_ROUTER,
    RP_WEIGHT_ROUTER_BIAS,
    RP_WEIGHT_GATE,
    RP_WEIGHT_GATE_BIAS,
    RP_WEIGHT_UP,
    RP_WEIGHT_UP_BIAS,
    RP_WEIGHT_GATE_UP,
    RP_WEIGHT_GATE_UP_BIAS,
    RP_WEIGHT_DOWN,
    RP_WEIGHT_DOWN_BIAS,
    RP_WEIGHT_FINAL_NORM,
    RP_WEIGHT_HEAD
} RpWeightKind;
/* Behind them the adapters of each kind: its A, its B (core/catalogue/lora.h). */
#define RP_N_BASE_KINDS (RP_WEIGHT_HEAD + 1)
#define RP_N_WEIGHT_KINDS (3 * RP_N_BASE_KINDS)

typedef enum { RP_ADAPTER_A = 1, RP_ADAPTER_B } RpAdapterPart;

static inline RpWeightKind
rp_weight_adapter(RpWeightKind base, RpAdapterPart part)
{
    return (RpWeightKind)((guint)base + (guint)part * RP_N_BASE_KINDS);
}

static inline gboolean
rp_weight_is_adapter(RpWeightKind kind)
{
    return (guint)kind >= RP_N_BASE_KINDS;
}

#define RP_WEIGHT_MAX_RANK 3

typedef struct _RpLora RpLora; /* core/catalogue/lora.h */

typedef struct {
    const char *name; /* in the file: "model.layers.3.self_attn.q_proj.weight" */
    RpWeightKind kind;
    guint layer;
    guint rank; /* 2: rows (output features) x columns (input features); 1: a norm or a bias */
    guint64 shape[RP_WEIGHT_MAX_RANK]; /* 1 behind the rank */
    guint64 elements;
    /* Of an expert's matrix, one of a stack [E,out,in] of its kind; else NULL and zeros. */
    const char *stack_name; /* where one tensor holds them all: "…3.mlp.experts.gate_up_proj" */
    guint64 stack[RP_WEIGHT_MAX_RANK];
    guint64 offset;      /* elements of the stack before it */
    gboolean transposed; /* matrices stand as [in,out] */
    gboolean norm;       /* starts as ones */
    gboolean tied;       /* the head's, where it is the embedding's matrix: not in the file */
    gboolean trained;    /* has a gradient: everything, or with LoRA the adapters only */
    RpDtype storage;     /* of a frozen weight; trained ones have the run's */
} RpWeight;

/* Elements of the stack that it is a piece of, or its own. */
static inline guint64
rp_weight_stack_elements(const RpWeight *weight)
{
    return weight->stack[0] == 0 ? weight->elements
                                 : weight->stack[0] * weight->stack[1] * weight->stack[2];
}

/* Whether there are moments and gradients of it under its own name. */
static inline gboolean
rp_weight_has_state(const RpWeight *weight)
{
    return weight->trained && !weight->tied;
}

/* Embedding, blocks and head. */
guint rp_model_n_layers(const RpModel *model);
RpLayerKind rp_model_layer_kind(const RpModel *model, guint layer);

/**
 * rp_model_layer_class:
 *
 * Layers of one class have the same tensors, sizes and times: the embedding, blocks that attend
 * alike, the head.
 *
 * Returns: the first layer of @layer's class
 */
guint rp_model_layer_class(const RpModel *model, guint layer);

/* Whether block @block (from 0) attends to a sliding window only. */
gboolean rp_model_block_slides(const RpModel *model, guint block);

/**
 * rp_model_add_weights:
 * @lora: (nullable): none, or of rank 0: every tensor is trained. Otherwise the base is frozen, but
 *   for what is saved, and rank-r adapters (lora_A: r x in, lora_B: out x r) of its targets follow
 *   it: of q, k, v, o and, in dense models, gate, up and down. Experts, router, embedding and head
 *   have none.
 * @names: (nullable): keeps their names; without it they have none
 * @weights: (element-type RpWeight): appended to
 *
 * The tensors of one layer in file order. A tied head lists lm_head.weight as well, since the
 * matrix is uploaded once for the embedding and once for the head, and each of the two layers
 * computes a full gradient; the two are summed where they arrive, in host memory.
 */
void rp_model_add_weights(const RpModel *model, guint layer, const RpLora *lora,
                          GStringChunk *names, GArray *weights);

/* Elements of all tensors of one layer, without adapters. */
guint64 rp_model_layer_parameters(const RpModel *model, guint layer);

/**
 * rp_model_profile:
 * @element_bytes: of a hidden state
 *
 * A profile of the model's layers without times: kinds, names, and what they hand on. Numbers of
 * tokens (4 bytes each) go into the embedding, hidden states from layer to layer, and nothing comes
 * out of the head, whose loss is two numbers.
 *
 * Returns: (transfer full)
 */
RpProfile *rp_model_profile(const RpModel *model, guint sequences, guint tokens,
                            gsize element_bytes);

/* Distinct parameters of the model: a tied matrix counts once. */
guint64 rp_model_parameters(const RpModel *model);
