/**
 * Architectures: a row each, and the tensors of their layers, named as in Hugging Face files.
 *
 * docs/how-to.md describes a new row.
 */
#include <string.h>

#include "core/catalogue/custom.h"
#include "core/catalogue/lora.h"

const RpArchitectureRow rp_architectures[RP_N_ARCHITECTURES + 1] = {
    [RP_ARCHITECTURE_QWEN3] = {.hf_name = "Qwen3ForCausalLM",
                               .model_type = "qwen3",
                               .runs = TRUE,
                               .qk_norm = TRUE,
                               .has_attention_bias = TRUE,
                               .needs_kv_heads = TRUE,
                               .asks_for_window = TRUE,
                               .sliding = RP_SLIDING_LATER,
                               .window = 4096,
                               .head_dim = 128,
                               .max_positions = 32768},
    [RP_ARCHITECTURE_LLAMA] = {.hf_name = "LlamaForCausalLM",
                               .model_type = "llama",
                               .runs = TRUE,
                               .has_attention_bias = TRUE,
                               .has_mlp_bias = TRUE,
                               .max_positions = 2048},
    [RP_ARCHITECTURE_QWEN2] = {.hf_name = "Qwen2ForCausalLM",
                               .model_type = "qwen2",
                               .runs = TRUE,
                               .qkv_bias = TRUE,
                               .needs_kv_heads = TRUE,
                               .asks_for_window = TRUE,
                               .sliding = RP_SLIDING_LATER,
                               .window = 4096,
                               .max_positions = 32768},
    [RP_ARCHITECTURE_MISTRAL] = {.hf_name = "MistralForCausalLM",
                                 .model_type = "mistral",
                                 .runs = TRUE,
                                 .outer_name = "Mistral3ForConditionalGeneration",
                                 .outer_type = "mistral3",
                                 .needs_kv_heads = TRUE,
                                 .sliding = RP_SLIDING_EVERY,
                                 .window = 4096,
                                 .max_positions = 131072},
    [RP_ARCHITECTURE_SMOLLM3] = {.hf_name = "SmolLM3ForCausalLM",
                                 .model_type = "smollm3",
                                 .runs = TRUE,
                                 .has_attention_bias = TRUE,
                                 .has_mlp_bias = TRUE,
                                 .has_no_rope = TRUE,
                                 .needs_kv_heads = TRUE,
                                 .asks_for_window = TRUE,
                                 .sliding = RP_SLIDING_NO_ROPE,
                                 .max_positions = 32768,
                                 .theta = 2e6,
                                 .tied = TRUE,
                                 .pad_id = 128004},
    [RP_ARCHITECTURE_QWEN3_MOE] = {.hf_name = "Qwen3MoeForCausalLM",
                                   .model_type = "qwen3_moe",
                                   .runs = TRUE,
                                   .qk_norm = TRUE,
                                   .apart_experts = TRUE,
                                   .has_attention_bias = TRUE,
                                   .needs_kv_heads = TRUE,
                                   .asks_for_window = TRUE,
                                   .sliding = RP_SLIDING_EVERY,
                                   .window = 4096,
                                   .max_positions = 32768},
    [RP_ARCHITECTURE_GPT_OSS] = {.hf_name = "GptOssForCausalLM",
                                 .model_type = "gpt_oss",
                                 .runs = TRUE,
                                 .sinks = TRUE,
                                 .clamped_swiglu = TRUE,
                                 .fused_experts = TRUE,
                                 .has_attention_bias = TRUE,
                                 .needs_kv_heads = TRUE,
                                 .sliding = RP_SLIDING_ALTERNATE,
                                 .window = 128,
                                 .head_dim = 64,
                                 .max_positions = 131072,
                                 .theta = 150000,
                                 .rms_norm_eps = 1e-5,
                                 .attention_bias = TRUE},
    [RP_ARCHITECTURE_MINISTRAL3] = {.hf_name = "Ministral3ForCausalLM",
                                    .model_type = "ministral3",
                                    .runs = TRUE,
                                    .outer_name = "Mistral3ForConditionalGeneration",
                                    .outer_type = "mistral3",
                                    .needs_kv_heads = TRUE,
                                    .scales_queries = TRUE,
                                    .rope_parameters = TRUE,
                                    .sliding = RP_SLIDING_EVERY,
                                    .head_dim = 128,
                                    .max_positions = 262144,
                                    .rms_norm_eps = 1e-5,
                                    .pad_id = 11},
    [RP_ARCHITECTURE_MELLUM] = {.hf_name = "MellumForCausalLM",
                                .model_type = "mellum",
                                .runs = TRUE,
                                .qk_norm = TRUE,
                                .apart_experts = TRUE,
                                .has_attention_bias = TRUE,
                                .needs_kv_heads = TRUE,
                                .ropes_by_kind = TRUE,
                                .rope_parameters = TRUE,
                                .lists_mlps = TRUE,
                                .sliding = RP_SLIDING_LISTED,
                                .window = 1024,
                                .head_dim = 128,
                                .max_positions = 131072,
                                .norm_topk = TRUE},
    [RP_ARCHITECTURE_QWEN3_5] = {.hf_name = "Qwen3_5ForCausalLM",
                                 .model_type = "qwen3_5_text",
                                 .runs = TRUE,
                                 .outer_name = "Qwen3_5ForConditionalGeneration",
                                 .outer_type = "qwen3_5",
                                 .qk_norm = TRUE,
                                 .zero_norms = TRUE,
                                 .gated_attention = TRUE,
                                 .has_attention_bias = TRUE,
                                 .has_delta = TRUE,
                                 .needs_kv_heads = TRUE,
                                 .head_dim = 256,
                                 .max_positions = 32768,
                                 .rotary = 0.25},
    [RP_ARCHITECTURE_QWEN3_5_MOE] = {.hf_name = "Qwen3_5MoeForCausalLM",
                                     .model_type = "qwen3_5_moe_text",
                                     .runs = TRUE,
                                     .outer_name = "Qwen3_5MoeForConditionalGeneration",
                                     .outer_type = "qwen3_5_moe",
                                     .qk_norm = TRUE,
                                     .apart_experts = TRUE,
                                     .shared_expert = TRUE,
                                     .zero_norms = TRUE,
                                     .gated_attention = TRUE,
                                     .has_attention_bias = TRUE,
                                     .has_delta = TRUE,
                                     .needs_kv_heads = TRUE,
                                     .head_dim = 256,
                                     .max_positions = 32768,
                                     .rotary = 0.25,
                                     .norm_topk = TRUE},
    [RP_ARCHITECTURE_CUSTOM] = {.hf_name = "a program's own architecture",
                                .model_type = "custom",
                                .runs = TRUE},
};

const char *
rp_rope_type_name(RpRopeType type)
{
    static const char *const names[RP_N_ROPE_TYPES] = {
        [RP_ROPE_DEFAULT] = "default", [RP_ROPE_LLAMA3] = "llama3", [RP_ROPE_LINEAR] = "linear",
        [RP_ROPE_DYNAMIC] = "dynamic", [RP_ROPE_YARN] = "yarn",     [RP_ROPE_LONGROPE] = "longrope",
    };

    return names[type];
}

/* ---- tensors ---- */

/* Sizes of the model that make a dimension; 0 ends a shape. */
typedef enum {
    HIDDEN = 1,
    QUERIES,
    Q_ROWS, /* queries, and gates where attention has some */
    KEYS,
    HEAD_DIM,
    HEADS,
    DELTA_COLUMNS,
    DELTA_VALUES,
    DELTA_HEADS,
    DELTA_DIM,
    DELTA_KERNEL,
    ONE,
    MLP,
    TWICE_MLP,
    SHARED_MLP,
    VOCAB,
    EXPERTS
} Size;

/* Properties of the models and blocks that have the tensor: all of these must hold. */
typedef enum {
    ATTENTION_BIAS = 1 << 0,
    MLP_BIAS = 1 << 1,
    QK_NORM = 1 << 2,
    SINKS = 1 << 3,
    DENSE = 1 << 4,
    APART = 1 << 5, /* experts with tensors of their own */
    FUSED = 1 << 6, /* one tensor for all experts */
    QKV_BIAS = 1 << 7,
    ATTENDS = 1 << 8, /* of the block */
    DELTA = 1 << 9,   /* likewise: DeltaNet instead */
    SHARED = 1 << 10  /* an expert that every token has */
} When;

typedef struct {
    RpLayerKind layer;
    RpWeightKind kind;
    const char *name; /* a block's tensor: the part behind "model.layers.N." */
    Size shape[RP_WEIGHT_MAX_RANK];
    When when;
    /* a norm; may have adapters; the same, but only by name; one for each expert, in a stack of its
     * kind; matrices [in,out] */
    enum { PLAIN, NORM, ADAPTED, BY_NAME, EACH, TRANSPOSED } is;
    const char *stack; /* EACH: name of the tensor that may hold them all */
} Tensor;

/* In file order. Rows for EACH expert stand together, and come expert by expert. */
static const Tensor tensors[] = {
    {RP_LAYER_EMBEDDING, RP_WEIGHT_EMBEDDING, "model.embed_tokens.weight", {VOCAB, HIDDEN}},

#define BLOCK(kind, name, ...)                                                                     \
    {                                                                                              \
        RP_LAYER_BLOCK, RP_WEIGHT_##kind, name, __VA_ARGS__                                        \
    }
    BLOCK(INPUT_NORM, "input_layernorm.weight", {HIDDEN}, 0, NORM),
    BLOCK(Q, "self_attn.q_proj.weight", {Q_ROWS, HIDDEN}, ATTENDS, ADAPTED),
    BLOCK(Q_BIAS, "self_attn.q_proj.bias", {Q_ROWS}, ATTENDS | QKV_BIAS),
    BLOCK(K, "self_attn.k_proj.weight", {KEYS, HIDDEN}, ATTENDS, ADAPTED),
    BLOCK(K_BIAS, "self_attn.k_proj.bias", {KEYS}, ATTENDS | QKV_BIAS),
    BLOCK(V, "self_attn.v_proj.weight", {KEYS, HIDDEN}, ATTENDS, ADAPTED),
    BLOCK(V_BIAS, "self_attn.v_proj.bias", {KEYS}, ATTENDS | QKV_BIAS),
    BLOCK(O, "self_attn.o_proj.weight", {HIDDEN, QUERIES}, ATTENDS, ADAPTED),
    BLOCK(O_BIAS, "self_attn.o_proj.bias", {HIDDEN}, ATTENDS | ATTENTION_BIAS),
    BLOCK(Q_NORM, "self_attn.q_norm.weight", {HEAD_DIM}, ATTENDS | QK_NORM, NORM),
    BLOCK(K_NORM, "self_attn.k_norm.weight", {HEAD_DIM}, ATTENDS | QK_NORM, NORM),
    BLOCK(SINKS, "self_attn.sinks", {HEADS}, ATTENDS | SINKS),
    BLOCK(DELTA_QKV, "linear_attn.in_proj_qkv.weight", {DELTA_COLUMNS, HIDDEN}, DELTA, ADAPTED),
    BLOCK(DELTA_Z, "linear_attn.in_proj_z.weight", {DELTA_VALUES, HIDDEN}, DELTA, ADAPTED),
    BLOCK(DELTA_B, "linear_attn.in_proj_b.weight", {DELTA_HEADS, HIDDEN}, DELTA, BY_NAME),
    BLOCK(DELTA_A, "linear_attn.in_proj_a.weight", {DELTA_HEADS, HIDDEN}, DELTA, BY_NAME),
    BLOCK(DELTA_OUT, "linear_attn.out_proj.weight", {HIDDEN, DELTA_VALUES}, DELTA, ADAPTED),
    BLOCK(DELTA_CONV, "linear_attn.conv1d.weight", {DELTA_COLUMNS, ONE, DELTA_KERNEL}, DELTA),
    BLOCK(DELTA_BIAS, "linear_attn.dt_bias", {DELTA_HEADS}, DELTA),
    BLOCK(DELTA_LOG, "linear_attn.A_log", {DELTA_HEADS}, DELTA),
    BLOCK(DELTA_NORM, "linear_attn.norm.weight", {DELTA_DIM}, DELTA, NORM),
    BLOCK(POST_NORM, "post_attention_layernorm.weight", {HIDDEN}, 0, NORM),
    BLOCK(GATE, "mlp.gate_proj.weight", {MLP, HIDDEN}, DENSE, ADAPTED),
    BLOCK(GATE_BIAS, "mlp.gate_proj.bias", {MLP}, DENSE | MLP_BIAS),
    BLOCK(UP, "mlp.up_proj.weight", {MLP, HIDDEN}, DENSE, ADAPTED),
    BLOCK(UP_BIAS, "mlp.up_proj.bias", {MLP}, DENSE | MLP_BIAS),
    BLOCK(DOWN, "mlp.down_proj.weight", {HIDDEN, MLP}, DENSE, ADAPTED),
    BLOCK(DOWN_BIAS, "mlp.down_proj.bias", {HIDDEN}, DENSE | MLP_BIAS),
    BLOCK(ROUTER, "mlp.gate.weight", {EXPERTS, HIDDEN}, APART, BY_NAME),
    BLOCK(GATE_UP, "gate_proj.weight", {MLP, HIDDEN}, APART, EACH, "gate_up_proj"),
    BLOCK(GATE_UP, "up_proj.weight", {MLP, HIDDEN}, APART, EACH, "gate_up_proj"),
    BLOCK(DOWN, "down_proj.weight", {HIDDEN, MLP}, APART, EACH, "down_proj"),
    BLOCK(ROUTER, "mlp.router.weight", {EXPERTS, HIDDEN}, FUSED, BY_NAME),
    BLOCK(ROUTER_BIAS, "mlp.router.bias", {EXPERTS}, FUSED | MLP_BIAS),
    BLOCK(GATE_UP, "mlp.experts.gate_up_proj", {EXPERTS, HIDDEN, TWICE_MLP}, FUSED, TRANSPOSED),
    BLOCK(GATE_UP_BIAS, "mlp.experts.gate_up_proj_bias", {EXPERTS, TWICE_MLP}, FUSED | MLP_BIAS),
    BLOCK(DOWN, "mlp.experts.down_proj", {EXPERTS, MLP, HIDDEN}, FUSED, TRANSPOSED),
    BLOCK(DOWN_BIAS, "mlp.experts.down_proj_bias", {EXPERTS, HIDDEN}, FUSED | MLP_BIAS),
    BLOCK(SHARED_GATE, "mlp.shared_expert.gate_proj.weight", {SHARED_MLP, HIDDEN}, SHARED, ADAPTED),
    BLOCK(SHARED_UP, "mlp.shared_expert.up_proj.weight", {SHARED_MLP, HIDDEN}, SHARED, ADAPTED),
    BLOCK(SHARED_DOWN, "mlp.shared_expert.down_proj.weight", {HIDDEN, SHARED_MLP}, SHARED, ADAPTED),
    BLOCK(SHARED_SCORE, "mlp.shared_expert_gate.weight", {ONE, HIDDEN}, SHARED, BY_NAME),
#undef BLOCK

    {RP_LAYER_HEAD, RP_WEIGHT_FINAL_NORM, "model.norm.weight", {HIDDEN}, 0, NORM},
    {RP_LAYER_HEAD, RP_WEIGHT_HEAD, "lm_head.weight", {VOCAB, HIDDEN}},
};

static guint64
size_of(const RpModel *model, Size size)
{
    switch (size) {
    case HIDDEN:
        return model->hidden;
    case QUERIES:
        return (guint64)model->heads * model->head_dim;
    case Q_ROWS:
        return (guint64)model->heads * model->head_dim *
               (rp_architectures[model->architecture].gated_attention ? 2 : 1);
    case KEYS:
        return (guint64)model->kv_heads * model->head_dim;
    case HEAD_DIM:
        return model->head_dim;
    case HEADS:
        return model->heads;
    case DELTA_COLUMNS:
        return rp_model_delta_columns(model);
    case DELTA_VALUES:
        return (guint64)model->delta_value_heads * model->delta_value_dim;
    case DELTA_HEADS:
        return model->delta_value_heads;
    case DELTA_DIM:
        return model->delta_value_dim;
    case DELTA_KERNEL:
        return model->delta_kernel;
    case ONE:
        return 1;
    case MLP:
        return model->intermediate;
    case TWICE_MLP:
        return 2 * (guint64)model->intermediate;
    case SHARED_MLP:
        return model->shared_intermediate;
    case VOCAB:
        return model->vocab;
    case EXPERTS:
        return model->experts;
    }
    return 1;
}

static guint
what_holds(const RpModel *model, guint layer)
{
    const gboolean delta = rp_model_layer_kind(model, layer) == RP_LAYER_BLOCK &&
                           rp_model_block_is_delta(model, layer - 1);
    const RpArchitectureRow *row = &rp_architectures[model->architecture];

    return (delta ? DELTA : ATTENDS) | (model->attention_bias ? ATTENTION_BIAS : 0) |
           (model->attention_bias || row->qkv_bias ? QKV_BIAS : 0) |
           (model->mlp_bias ? MLP_BIAS : 0) | (row->qk_norm ? QK_NORM : 0) |
           (row->sinks ? SINKS : 0) | (model->shared_intermediate > 0 ? SHARED : 0) |
           (model->experts <= 1  ? DENSE
            : row->fused_experts ? FUSED
                                 : APART);
}

/* ---- weights of a layer ---- */

#define EXPERTS_PREFIX "mlp.experts."

char *const *
rp_lora_targets(const RpLora *lora, const RpModel *model)
{
    static const char *const with_experts[] = {"q_proj",  "k_proj",    "v_proj",
                                               "o_proj",  "mlp.gate",  "gate_proj",
                                               "up_proj", "down_proj", NULL};
    static const char *const with_delta[] = {"q_proj",      "k_proj",    "v_proj",    "o_proj",
                                             "in_proj_qkv", "in_proj_z", "out_proj",  "mlp.gate",
                                             "gate_proj",   "up_proj",   "down_proj", NULL};

    g_return_val_if_fail(lora && model, NULL);
    if (lora->targets == NULL && model->experts > 1 &&
        !rp_architectures[model->architecture].fused_experts)
        return (char *const *)(rp_architectures[model->architecture].has_delta ? with_delta
                                                                               : with_experts);
    return lora->targets;
}

/* A layer being listed. */
typedef struct {
    const RpModel *model;
    guint layer;
    const RpLora *lora;   /* NULL: everything is trained */
    char *const *targets; /* rp_lora_targets() */
    GStringChunk *names;
    GArray *weights;
} List;

/* @infix: behind the block's prefix; @stem: bytes of the row's name, @suffix behind them. (transfer
 * full) */
static char *
name_of(const List *list, const Tensor *tensor, const char *infix, gsize stem, const char *suffix)
{
    const gboolean is_block = tensor->layer == RP_LAYER_BLOCK;
    const gboolean inside = !is_block && g_str_has_prefix(tensor->name, RP_MODEL_PREFIX);
    const gsize skip = inside ? strlen(RP_MODEL_PREFIX) : 0;
    const char *prefix = !is_block && !inside ? ""
                         : list->model->outer ? RP_OUTER_PREFIX
                                              : RP_MODEL_PREFIX;
    g_autofree char *block =
        is_block ? g_strdup_printf("layers.%u.", list->layer - 1) : g_strdup("");

    return g_strdup_printf("%s%s%s%.*s%s", prefix, block, infix, (int)(stem - skip),
                           tensor->name + skip, suffix);
}

static void
add(const List *list, const Tensor *tensor, const char *infix, gsize stem, const char *suffix,
    RpWeight weight)
{
    weight.layer = list->layer;
    weight.elements = weight.shape[0] * weight.shape[1] * weight.shape[2];
    if (list->names != NULL) {
        g_autofree char *name = name_of(list, tensor, infix, stem, suffix);

        weight.name = g_string_chunk_insert(list->names, name);
    }
    g_array_append_val(list->weights, weight);
}

/* Bytes of the name of the row's module. */
static gsize
module_length(const Tensor *tensor)
{
    const char *dot = strrchr(tensor->name, '.');

    return dot != NULL && (strcmp(dot, ".weight") == 0 || strcmp(dot, ".bias") == 0)
               ? (gsize)(dot - tensor->name)
               : strlen(tensor->name);
}

/* Whether @names has the row's module. */
static gboolean
is_named(const List *list, const Tensor *tensor, const char *infix, char *const *names)
{
    g_autofree char *module =
        names != NULL ? name_of(list, tensor, infix, module_length(tensor), "") : NULL;

    return rp_lora_names_module(names, module);
}

static RpWeight
base_of(const List *list, const Tensor *tensor, const char *infix)
{
    RpWeight weight = {.kind = tensor->kind,
                       .norm = tensor->is == NORM,
                       .transposed = tensor->is == TRANSPOSED,
                       .tied = tensor->kind == RP_WEIGHT_HEAD && list->model->tied,
                       .trained =
                           list->lora == NULL || is_named(list, tensor, infix, list->lora->saved)};

    for (guint i = 0; i < RP_WEIGHT_MAX_RANK; i++) {
        weight.shape[i] = size_of(list->model, tensor->shape[i]);
        weight.rank += tensor->shape[i] != 0;
    }
    return weight;
}

static void
add_base(const List *list, const Tensor *tensor, const char *infix)
{
    add(list, tensor, infix, strlen(tensor->name), "", base_of(list, tensor, infix));
}

/* The module of all experts' matrices of a kind. (transfer full) */
static char *
stack_name_of(const List *list, const Tensor *tensor)
{
    const char *name = tensor->stack != NULL ? tensor->stack : tensor->name;
    const Tensor stack = {.layer = RP_LAYER_BLOCK, .name = name};

    return name_of(list, &stack, tensor->stack != NULL ? EXPERTS_PREFIX : "", strlen(name), "");
}

/* The matrices of all experts, of @n rows EACH: expert by expert, those of a kind are a stack. */
static void
add_experts(const List *list, const Tensor *const *rows, guint n)
{
    for (guint expert = 0; expert < list->model->experts; expert++) {
        g_autofree char *infix = g_strdup_printf(EXPERTS_PREFIX "%u.", expert);

        for (guint j = 0; j < n; j++) {
            RpWeight weight = base_of(list, rows[j], infix);
            guint64 before = 0, all = 0;

            for (guint i = 0; i < n; i++) {
                const guint64 out =
                    rows[i]->kind == rows[j]->kind ? size_of(list->model, rows[i]->shape[0]) : 0;

                all += out;
                before += i < j ? out : 0;
            }
            weight.stack[0] = list->model->experts;
            weight.stack[1] = all;
            weight.stack[2] = weight.shape[1];
            weight.offset = (expert * all + before) * weight.shape[1];
            if (list->names != NULL) {
                g_autofree char *name = stack_name_of(list, rows[j]);

                weight.stack_name = g_string_chunk_insert_const(list->names, name);
            }
            add(list, rows[j], infix, strlen(rows[j]->name), "", weight);
        }
    }
}

static void
add_adapter(const List *list, const char *module, RpAdapterPart part, RpWeight weight)
{
    weight.kind = rp_weight_adapter(weight.kind, part);
    weight.trained = TRUE;
    weight.scale = rp_lora_scale(list->lora, module);
    weight.elements = weight.shape[0] * weight.shape[1] * weight.shape[2];
    weight.layer = list->layer;
    if (list->names != NULL) {
        g_autofree char *name =
            g_strconcat(module, part == RP_ADAPTER_A ? RP_LORA_A : RP_LORA_B, NULL);

        weight.name = g_string_chunk_insert(list->names, name);
    }
    g_array_append_val(list->weights, weight);
}

/* A: r x in, and B: out x r. */
static void
add_adapters(const List *list, const Tensor *tensor)
{
    const guint64 out = size_of(list->model, tensor->shape[0]);
    const guint64 in = size_of(list->model, tensor->shape[1]);
    g_autofree char *module = name_of(list, tensor, "", module_length(tensor), "");
    const guint64 rank = rp_lora_rank(list->lora, module);

    add_adapter(list, module, RP_ADAPTER_A,
                (RpWeight){.kind = tensor->kind, .rank = 2, .shape = {rank, in, 1}});
    add_adapter(list, module, RP_ADAPTER_B,
                (RpWeight){.kind = tensor->kind, .rank = 2, .shape = {out, rank, 1}});
}

/* Adapters of the stack that begins with @rows[first], if it is named: A [E,r,in], B [E,out,r]. The
 * stack has them, too, if all of an expert's own matrices that are fused in it are named: then
 * their A's stand below each other, so that r is the sum of theirs, and their B's beside (peft with
 * transformers 5). */
static void
add_expert_adapters(const List *list, const Tensor *const *rows, guint n_rows, guint first)
{
    const Tensor *tensor = rows[first];
    const gboolean apart = tensor->is == EACH;
    const guint64 E = list->model->experts;
    g_autofree char *module = stack_name_of(list, tensor);
    guint64 out = apart ? 0 : size_of(list->model, tensor->shape[2]);
    guint joined = 0, named = 0;

    for (guint i = 0; apart && i < n_rows; i++) {
        if (rows[i]->is != EACH || rows[i]->kind != tensor->kind)
            continue;
        if (i < first)
            return;
        out += size_of(list->model, rows[i]->shape[0]);
        named += is_named(list, rows[i], EXPERTS_PREFIX "0.", list->targets);
        joined++;
    }
    const gboolean whole = rp_lora_names_module(list->targets, module);

    if (!whole && (!apart || named < joined))
        return;
    const guint64 rank = rp_lora_rank(list->lora, module) * (whole ? 1 : joined);
    const guint64 in = size_of(list->model, tensor->shape[1]);

    add_adapter(list, module, RP_ADAPTER_A,
                (RpWeight){.kind = tensor->kind, .rank = 3, .shape = {E, rank, in}});
    add_adapter(list, module, RP_ADAPTER_B,
                (RpWeight){.kind = tensor->kind, .rank = 3, .shape = {E, out, rank}});
}

void
rp_model_add_weights(const RpModel *model, guint layer, const RpLora *lora, GStringChunk *names,
                     GArray *weights)
{
    g_return_if_fail(model && layer < rp_model_n_layers(model) && weights);

    const gboolean adapts = lora != NULL && lora->rank > 0;
    char *const *targets = adapts ? rp_lora_targets(lora, model) : NULL;
    const List list = {model, layer, adapts ? lora : NULL, targets, names, weights};
    const RpLayerKind kind = rp_model_layer_kind(model, layer);
    const guint holds = what_holds(model, layer);
    const Tensor *rows[G_N_ELEMENTS(tensors)];
    guint n_rows = 0;

    if (model->custom != NULL) {
        rp_custom_add_weights(model, layer, names, weights);
        return;
    }
    for (gsize i = 0; i < G_N_ELEMENTS(tensors); i++)
        if (tensors[i].layer == kind && (tensors[i].when & ~holds) == 0)
            rows[n_rows++] = &tensors[i];
    for (guint i = 0, n = 1; i < n_rows; i += n, n = 1) {
        if (rows[i]->is != EACH) {
            add_base(&list, rows[i], "");
            continue;
        }
        while (i + n < n_rows && rows[i + n]->is == EACH)
            n++;
        add_experts(&list, rows + i, n);
    }
    for (guint i = 0; adapts && i < n_rows; i++) {
        if ((rows[i]->is == ADAPTED && targets == NULL) ||
            ((rows[i]->is == ADAPTED || rows[i]->is == BY_NAME) &&
             is_named(&list, rows[i], "", targets)))
            add_adapters(&list, rows[i]);
        if (rows[i]->is == EACH || rows[i]->is == TRANSPOSED)
            add_expert_adapters(&list, rows, n_rows, i);
    }
}

guint64
rp_model_layer_parameters(const RpModel *model, guint layer)
{
    g_autoptr(GArray) weights = g_array_new(FALSE, FALSE, sizeof(RpWeight));
    guint64 sum = 0;

    rp_model_add_weights(model, layer, NULL, NULL, weights);
    for (guint i = 0; i < weights->len; i++)
        sum += g_array_index(weights, RpWeight, i).elements;
    return sum;
}

guint64
rp_model_parameters(const RpModel *model)
{
    guint64 sum = model->tied ? -(guint64)model->vocab * model->hidden : 0;

    for (guint layer = 0; layer < rp_model_n_layers(model); layer++)
        sum += rp_model_layer_parameters(model, layer);
    return sum;
}
