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
#include "core/lowbit/lowbit.h"
#include "core/profile/profile.h"

/* The architectures that run stand first. */
typedef enum {
    RP_ARCHITECTURE_QWEN3,
    RP_ARCHITECTURE_LLAMA,
    RP_ARCHITECTURE_QWEN2,
    RP_ARCHITECTURE_MISTRAL,
    RP_ARCHITECTURE_SMOLLM3,
    RP_ARCHITECTURE_QWEN3_MOE,
    RP_ARCHITECTURE_GPT_OSS,
    RP_ARCHITECTURE_MINISTRAL3,
    RP_ARCHITECTURE_MELLUM,
    RP_ARCHITECTURE_QWEN3_5,
    RP_ARCHITECTURE_QWEN3_5_MOE,
    RP_ARCHITECTURE_CUSTOM /* of the caller's program: RpModel.custom */
} RpArchitecture;
#define RP_N_ARCHITECTURES RP_ARCHITECTURE_CUSTOM /* which transformers has */

/* Blocks that attend to a sliding window where config.json has no "layer_types". */
typedef enum {
    RP_SLIDING_NONE,      /* none; there is no window */
    RP_SLIDING_EVERY,     /* all, and "layer_types" is not read */
    RP_SLIDING_LATER,     /* blocks from "max_window_layers" on */
    RP_SLIDING_ALTERNATE, /* the first of two */
    RP_SLIDING_NO_ROPE,   /* blocks without rope */
    RP_SLIDING_LISTED     /* none; there is a window for those that the list has */
} RpSlidingRule;

/* A dense MLP computes gate and up of this many tokens of a micro-batch at once. If there are more
 * it does so tile by tile, and its backward makes them again (exec/network/block.c). */
#define RP_MLP_MOST_ROWS 65536
#define RP_MLP_TILE_ROWS 16384

/* The row of an architecture. Keys of config.json are in RpModel instead. */
typedef struct {
    const char *hf_name;     /* "Qwen3ForCausalLM" */
    const char *model_type;  /* "qwen3" */
    gboolean runs;           /* exec/network computes it; the others have times and sizes only */
    gboolean qk_norm;        /* RMSNorm over each query and key head */
    gboolean qkv_bias;       /* q, k and v have one, whatever the model says of attention_bias */
    gboolean sinks;          /* one learned attention sink a head */
    gboolean clamped_swiglu; /* GPT-OSS's variant, in more element-wise steps */
    gboolean fused_experts;  /* one tensor for all experts instead of three an expert */
    gboolean apart_experts;  /* three tensors an expert, of "moe_intermediate_size" */
    /* One more expert, which every token has, behind a gate; no MLP is dense, and the weights of chosen experts are
     * divided by their sum, whatever the config says. */
    gboolean shared_expert;
    gboolean zero_norms; /* norms multiply by 1 + weight, but DeltaNet's do not */
    gboolean
        gated_attention; /* q has twice its rows: of each head queries, then gates of its output */
    /* The class that has it as text part of a larger model, whose sizes stand in "text_config"; or NULL. Its
     * tensors have RP_OUTER_PREFIX instead of RP_MODEL_PREFIX. Rows may share a class: the type of "text_config" tells
     * them apart, and the first is meant where there is none. */
    const char *outer_name; /* "Qwen3_5ForConditionalGeneration" */
    const char *outer_type; /* "qwen3_5" */
    /* How transformers reads its config.json. */
    gboolean has_attention_bias; /* reads "attention_bias" */
    gboolean has_mlp_bias;       /* reads "mlp_bias" */
    gboolean has_no_rope;        /* reads "no_rope_layers" and "no_rope_layer_interval" */
    gboolean needs_kv_heads;     /* an absent "num_key_value_heads" is not that of heads */
    gboolean asks_for_window;    /* "use_sliding_window" must be true for a window */
    gboolean scales_queries;     /* reads "llama_4_scaling_beta" of its rope */
    gboolean ropes_by_kind;      /* "rope_parameters" has a rope for each kind of block */
    gboolean rope_parameters;    /* knows that spelling of the rope alone */
    gboolean lists_mlps;         /* "mlp_layer_types" in place of "decoder_sparse_step" */
    gboolean has_delta;          /* reads "linear_…" and "full_attention_interval" */
    RpSlidingRule sliding;
    /* Values that it takes where the key is absent. */
    guint window;
    guint head_dim; /* 0 = hidden / heads, which must divide */
    guint max_positions;
    double theta;        /* 0 = 10000 */
    double rotary;       /* share of a head that is rotated; 0 = all */
    double rms_norm_eps; /* 0 = 1e-6 */
    gboolean attention_bias;
    gboolean tied;
    gboolean norm_topk;
    guint pad_id; /* 0 = none */
} RpArchitectureRow;

extern const RpArchitectureRow rp_architectures[RP_N_ARCHITECTURES + 1];

typedef struct _RpCustomArchitecture RpCustomArchitecture; /* core/catalogue/custom.h */

typedef enum {
    RP_ROPE_DEFAULT,
    RP_ROPE_LLAMA3,
    RP_ROPE_LINEAR,
    RP_ROPE_DYNAMIC,
    RP_ROPE_YARN,
    RP_ROPE_LONGROPE
} RpRopeType;
#define RP_N_ROPE_TYPES (RP_ROPE_LONGROPE + 1)

#define RP_ROPE_MAX_PAIRS 128 /* limit of a longrope's head */

/* "llama3", as config.json has it. */
const char *rp_rope_type_name(RpRopeType type);

/* Rotary position embedding. Fields that its type does not name are 0. */
typedef struct {
    RpRopeType type;
    double theta;
    double factor;                /* llama3, linear, dynamic, yarn; 1 or more */
    double low_freq_factor;       /* llama3 */
    double high_freq_factor;      /* llama3; > low_freq_factor */
    guint original_max_positions; /* llama3, yarn; dynamic, longrope: beyond it they change */
    double beta_fast, beta_slow;  /* yarn */
    double attention_factor;      /* yarn, longrope: factor of cosines and sines */
    gboolean truncate;            /* yarn: the ramp's bounds are whole numbers */
    double
        query_beta; /* queries x 1 + this x ln(1 + floor(position / original_max_positions)); 0: not */
    float short_factor[RP_ROPE_MAX_PAIRS], long_factor[RP_ROPE_MAX_PAIRS]; /* longrope, a pair */
} RpRope;

#define RP_MODEL_MAX_EOS 8
#define RP_MODEL_NO_TOKEN (-1)

/* A decoder-only transformer with grouped-query attention and SwiGLU. */
typedef struct {
    const char *name;    /* "qwen3-1.7b"; %NULL of a config.json */
    const char *hf_name; /* "Qwen/Qwen3-1.7B" */
    RpArchitecture architecture;
    const RpCustomArchitecture *custom; /* %NULL: it is one that transformers has */
    guint blocks;
    guint hidden;              /* h */
    guint heads;               /* a */
    guint kv_heads;            /* k; divides heads */
    guint head_dim;            /* d, even; heads x head_dim need not be hidden */
    guint intermediate;        /* m, of one expert */
    guint experts;             /* E; 1 = dense */
    guint active_experts;      /* E_act; 1 = dense */
    guint shared_intermediate; /* m of the expert that every token has; 0 = none */
    guint dense_intermediate;  /* Qwen3-MoE: "intermediate_size", which no block has; else 0 */
    gboolean norm_topk;     /* Qwen3-MoE: weights of a token's experts are divided by their sum */
    double router_aux_loss; /* coefficient, where the config asks for that loss; else 0 */
    double swiglu_alpha, swiglu_limit; /* clamped SwiGLU; else 0 */
    gboolean mxfp4; /* "quantization_config" says that the experts' matrices are packed so */
    guint vocab;
    guint max_positions;
    guint sliding_window; /* tokens that a sliding block attends to; 0 = every block is full */
    guint sliding_from;   /* blocks before it are full */
    guint sliding_period; /* from there on the last of each period is full; 0 = none is */
    guint no_rope_period; /* the last block of each period has no rope; 0 = all have */
    gboolean outer;       /* text part of a larger model: RpArchitectureRow.outer_name */
    guint rotary_dim;     /* elements of a head that rope rotates, the first; 0 = all */
    guint
        full_period; /* the last block of each period attends, others have DeltaNet; 0 = all attend */
    guint delta_key_heads, delta_value_heads; /* DeltaNet; the former divides the latter */
    guint delta_key_dim, delta_value_dim;     /* sizes of its heads */
    guint delta_kernel;                       /* tokens that its convolution reads */
    double rms_norm_eps;
    double initializer_range; /* standard deviation of random weights */
    RpRope rope;
    gboolean has_sliding_rope; /* blocks with a window have a rope of their own */
    RpRope sliding_rope;       /* if they have */
    gboolean tied;             /* the head multiplies with the embedding matrix */
    gboolean attention_bias;   /* on q, k, v and o; see also RpArchitectureRow.qkv_bias */
    gboolean mlp_bias;         /* on gate, up and down; on router and experts */
    gboolean has_dtype;        /* whether the config names one */
    RpDtype dtype;             /* the weights', experts dequantised; RP_DTYPE_FP32 if not named */
    gint64 bos_id;             /* or RP_MODEL_NO_TOKEN */
    gint64 pad_id;             /* its row of the embedding gets no gradient from the input */
    gint64 eos_ids[RP_MODEL_MAX_EOS];
    guint n_eos;
} RpModel;

/* A layer's weights in their order, without those that it lacks (biases, norms). */
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
    RP_WEIGHT_DELTA_QKV,
    RP_WEIGHT_DELTA_Z,
    RP_WEIGHT_DELTA_B,
    RP_WEIGHT_DELTA_A,
    RP_WEIGHT_DELTA_OUT,
    RP_WEIGHT_DELTA_CONV,
    RP_WEIGHT_DELTA_BIAS,
    RP_WEIGHT_DELTA_LOG,
    RP_WEIGHT_DELTA_NORM,
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
    RP_WEIGHT_SHARED_GATE,
    RP_WEIGHT_SHARED_UP,
    RP_WEIGHT_SHARED_DOWN,
    RP_WEIGHT_SHARED_SCORE,
    RP_WEIGHT_FINAL_NORM,
    RP_WEIGHT_HEAD
} RpWeightKind;

/* Whether it is a matrix of the expert that every token has. */
static inline gboolean
rp_weight_is_shared(RpWeightKind base)
{
    return base >= RP_WEIGHT_SHARED_GATE && base <= RP_WEIGHT_SHARED_SCORE;
}

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

/* Names of a model's tensors begin so, but the head's; and those of the text part of a larger model. */
#define RP_MODEL_PREFIX "model."
#define RP_OUTER_PREFIX "model.language_model."

typedef struct _RpLora RpLora; /* core/catalogue/lora.h */

typedef struct {
    const char *name; /* in the file: "model.layers.3.self_attn.q_proj.weight" */
    RpWeightKind kind;
    guint layer;
    guint rank; /* 2: rows (output features) x columns (input features); 1: a norm or a bias */
    guint64 shape[RP_WEIGHT_MAX_RANK]; /* 1 behind the rank */
    guint64 elements;
    /* An expert's matrix is one of a stack [E,out,in] of its kind; others have NULL and zeros
     * here. */
    const char *stack_name; /* where one tensor holds them all: "…3.mlp.experts.gate_up_proj" */
    guint64 stack[RP_WEIGHT_MAX_RANK];
    guint64 offset;      /* elements of the stack before it */
    gboolean transposed; /* matrices stand as [in,out] */
    gboolean norm;       /* starts as ones, or where norms are zero-centred as zeros */
    double deviation;    /* of random values of a custom layer; 0: it starts as ones, or zeros */
    gboolean tied;       /* the head's, where it is the embedding's matrix: not in the file */
    gboolean trained;    /* has a gradient: everything, or with LoRA the adapters only */
    double scale;        /* an adapter's s, which multiplies B A; else 0 */
    RpDtype storage;     /* a frozen weight's; trained ones have the run's */
    gboolean is_packed;  /* a frozen one, on the host and when uploaded: it expands to @storage */
    RpLowbit format;     /* if it is */
    gboolean one_scale;  /* fp8: its file has one scale for all blocks */
} RpWeight;

/* Its matrices as they are packed: the stack that it is a piece of, or its own. */
RpLowbitShape rp_weight_lowbit_shape(const RpWeight *weight);

/**
 * rp_weight_packs:
 *
 * Whether a base in @format has the weight packed: matrices of the linear layers of blocks, as
 * bitsandbytes and transformers do; not the router, the embedding and the head. In mxfp4 of a model
 * with experts theirs alone, as GPT-OSS is published. Rows of mxfp4 must be multiples of 32. In fp8 matrices of a row
 * for each head, or one, stay as they are, as Qwen3.5 is published.
 */
gboolean rp_weight_packs(const RpModel *model, const RpWeight *weight, RpLowbit format);

/* Whether `matmul: fp8` is for it: a matrix of a linear layer or the head; experts', that of tokens' shared expert, and
 * DeltaNet's narrow ones are multiplied in 16 bits. */
gboolean rp_weight_multiplies_fp8(const RpWeight *weight);

/* Packs a weight: mxfp4 stands as [out,in] always, as it is read. */
void rp_weight_pack(RpWeight *weight, RpLowbit format);

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

/* Whether a sequence of @tokens is rotated by other frequencies than a shorter one. */
static inline gboolean
rp_rope_stretches(const RpRope *rope, guint tokens)
{
    return (rope->type == RP_ROPE_DYNAMIC || rope->type == RP_ROPE_LONGROPE) &&
           tokens > rope->original_max_positions;
}

/* Positions that the rope is made for: `max_position_embeddings`, or the original ones as many times as they
 * are scaled, which a config may not say again. */
static inline guint
rp_model_positions(const RpModel *model)
{
    const guint original = model->rope.original_max_positions > 0
                               ? model->rope.original_max_positions
                               : model->max_positions;
    const double scaled = model->rope.factor > 1 ? model->rope.factor * original : 0;

    return MAX(model->max_positions, (guint)MIN(scaled, (double)G_MAXINT32));
}

/* Rows of a hidden state [rows,hidden] of so many sequences: a token each, or a sample of a custom architecture. */
static inline guint64
rp_model_rows(const RpModel *model, guint sequences, guint tokens)
{
    return (guint64)sequences * (model->custom != NULL ? 1 : tokens);
}

/* Words that a sample may have: ids are less than the vocabulary, other words are any. */
static inline guint
rp_model_words(const RpModel *model)
{
    return model->custom != NULL ? G_MAXUINT : model->vocab;
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
/* Keys that a query of it sees, itself included; 0 = all. */
guint rp_model_block_window(const RpModel *model, guint block);
/* Whether it has DeltaNet instead of attention. */
gboolean rp_model_block_is_delta(const RpModel *model, guint block);
/* Elements of a head that are rotated. */
guint rp_model_rotary_dim(const RpModel *model);
/* Columns of DeltaNet's q, k and v together, through which its convolution goes. */
guint64 rp_model_delta_columns(const RpModel *model);
/* Whether its queries and keys are rotated by their positions. */
gboolean rp_model_block_has_rope(const RpModel *model, guint block);

/* Tables of ropes: of blocks without a window, then of those with one if that is another, each of keys (and queries)
 * and then, if queries are scaled by their positions, of queries. */
guint rp_model_n_rope_tables(const RpModel *model);
/* The table of a block's queries, or keys. */
guint rp_model_rope_table(const RpModel *model, guint block, gboolean queries);
/* @queries: (out): whether it is scaled for them */
const RpRope *rp_model_nth_rope(const RpModel *model, guint table, gboolean *queries);

/**
 * rp_model_add_weights:
 * @lora: (nullable): none, or of rank 0: every tensor is trained. Otherwise the base is frozen, but
 *   for saved modules, and rank-r adapters (lora_A: r x in, lora_B: out x r) of its targets follow
 *   it: of q, k, v, o, DeltaNet's in_proj_qkv, in_proj_z and out_proj, and, in dense models, gate, up and down. Router and experts have them by name
 *   only, experts in stacks: lora_A [E,r,in], lora_B [E,out,r]. Embedding and head have none.
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
 * @element_bytes: size of an element of a hidden state
 *
 * A profile of the model's layers without times: kinds, names, and the sizes of their outputs.
 * Numbers of tokens (4 bytes each) go into the embedding, hidden states from layer to layer, and
 * nothing comes out of the head, whose loss is two numbers.
 *
 * Returns: (transfer full)
 */
RpProfile *rp_model_profile(const RpModel *model, guint sequences, guint tokens,
                            gsize element_bytes);

/* Distinct parameters of the model: a tied matrix counts once. */
guint64 rp_model_parameters(const RpModel *model);
