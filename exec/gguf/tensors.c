/* Tensors of the file, and the rows of weights that they consist of. */
#include "exec/gguf/private.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/base/threads.h"
#include "exec/model/rope-table.h"

#define BLOCK 32 /* values that rows of quantized types are multiples of */
/* Elements that are read, converted and written at a time, and those of them that a thread takes. */
#define PIECE_ELEMENTS ((guint64)1 << 20)
#define THREAD_ELEMENTS ((guint64)1 << 14)

/* ---- names and types ---- */

/* Names by kind; experts' gate and up are two tensors, and the norm before the MLP is the family's. */
static const char *const names[RP_N_BASE_KINDS] = {
    [RP_WEIGHT_EMBEDDING] = "token_embd.weight",
    [RP_WEIGHT_INPUT_NORM] = "attn_norm.weight",
    [RP_WEIGHT_Q] = "attn_q.weight",
    [RP_WEIGHT_Q_BIAS] = "attn_q.bias",
    [RP_WEIGHT_K] = "attn_k.weight",
    [RP_WEIGHT_K_BIAS] = "attn_k.bias",
    [RP_WEIGHT_V] = "attn_v.weight",
    [RP_WEIGHT_V_BIAS] = "attn_v.bias",
    [RP_WEIGHT_O] = "attn_output.weight",
    [RP_WEIGHT_O_BIAS] = "attn_output.bias",
    [RP_WEIGHT_Q_NORM] = "attn_q_norm.weight",
    [RP_WEIGHT_K_NORM] = "attn_k_norm.weight",
    [RP_WEIGHT_SINKS] = "attn_sinks.weight",
    [RP_WEIGHT_ROUTER] = "ffn_gate_inp.weight",
    [RP_WEIGHT_ROUTER_BIAS] = "ffn_gate_inp.bias",
    [RP_WEIGHT_GATE] = "ffn_gate.weight",
    [RP_WEIGHT_GATE_BIAS] = "ffn_gate.bias",
    [RP_WEIGHT_UP] = "ffn_up.weight",
    [RP_WEIGHT_UP_BIAS] = "ffn_up.bias",
    [RP_WEIGHT_DOWN] = "ffn_down.weight",
    [RP_WEIGHT_DOWN_BIAS] = "ffn_down.bias",
    [RP_WEIGHT_FINAL_NORM] = "output_norm.weight",
    [RP_WEIGHT_HEAD] = "output.weight",
};
static const char *const expert_names[RP_N_BASE_KINDS][2] = {
    [RP_WEIGHT_GATE_UP] = {"ffn_gate_exps.weight", "ffn_up_exps.weight"},
    [RP_WEIGHT_GATE_UP_BIAS] = {"ffn_gate_exps.bias", "ffn_up_exps.bias"},
    [RP_WEIGHT_DOWN] = {"ffn_down_exps.weight"},
    [RP_WEIGHT_DOWN_BIAS] = {"ffn_down_exps.bias"},
};

static const char *
base_name(const RpModel *model, RpWeightKind kind, guint half)
{
    if (kind == RP_WEIGHT_POST_NORM)
        return NULL;
    return model->experts > 1 && expert_names[kind][half] != NULL ? expert_names[kind][half]
                                                                  : names[kind];
}

/* (transfer full) */
static char *
name_of(const RpModel *model, const RpWeight *weight, RpWeightKind kind, guint half,
        const char *suffix)
{
    const char *name = base_name(model, kind, half);
    g_autofree char *norm =
        name == NULL ? g_strconcat(rp_gguf_family(model)->post_norm, ".weight", NULL) : NULL;

    if (weight->layer == 0 || weight->layer > model->blocks)
        return g_strconcat(name, suffix, NULL);
    return g_strdup_printf("blk.%u.%s%s", weight->layer - 1, name != NULL ? name : norm, suffix);
}

/* Whether matrices of @kind are those of experts. */
static gboolean
is_expert(const RpModel *model, RpWeightKind kind)
{
    return model->experts > 1 && (kind == RP_WEIGHT_GATE_UP || kind == RP_WEIGHT_DOWN);
}

RpGgufType
rp_gguf_type_of(const RpWeights *weights)
{
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpLowbitSource *packed = rp_weights_packed(weights, i);

        if (packed != NULL && packed->format == RP_LOWBIT_MXFP4 &&
            is_expert(rp_weights_model(weights), rp_weights_nth(weights, i)->kind))
            return RP_GGUF_MXFP4;
    }
    return rp_gguf_type_of_dtype(rp_weights_dtype(weights));
}

/* The type of a matrix of @kind. As llama.cpp's own, the head's of q4_0 has more bits, and rows that are no multiple
 * of a block are fp16. */
static RpGgufType
type_of(const RpWeights *weights, RpWeightKind kind, guint rank, guint64 columns, RpGgufType type)
{
    const RpModel *model = rp_weights_model(weights);
    const gboolean head = kind == RP_WEIGHT_HEAD || (kind == RP_WEIGHT_EMBEDDING && model->tied);

    if (rank < 2 || kind == RP_WEIGHT_ROUTER || kind == RP_WEIGHT_GATE_UP_BIAS ||
        kind == RP_WEIGHT_DOWN_BIAS)
        return RP_GGUF_F32;
    if (type == RP_GGUF_MXFP4 && !is_expert(model, kind))
        return rp_gguf_type_of_dtype(rp_weights_dtype(weights));
    if (type >= RP_GGUF_Q8_0 && columns % BLOCK != 0)
        return RP_GGUF_F16;
    return type == RP_GGUF_Q4_0 && head ? RP_GGUF_Q8_0 : type;
}

/* ---- lists ---- */

static void
clear_tensor(gpointer data)
{
    RpGgufTensor *tensor = data;

    g_free(tensor->name);
    g_free(tensor->values);
}

static GArray *
list_new(void)
{
    GArray *tensors = g_array_new(FALSE, TRUE, sizeof(RpGgufTensor));

    g_array_set_clear_func(tensors, clear_tensor);
    return tensors;
}

/* Rows @half of @n_halves of each matrix of weight @index: of gate and up of GPT-OSS every second row, else those of
 * one half. Sizes that a matrix [out,in] has. */
static RpGgufTensor
tensor_of(const RpWeights *weights, guint index, guint half, guint n_halves)
{
    const RpModel *model = rp_weights_model(weights);
    const RpWeight *weight = rp_weights_nth(weights, index);
    const gboolean interleaved = rp_architectures[model->architecture].fused_experts;
    const gboolean bias = weight->kind == RP_WEIGHT_GATE_UP_BIAS;
    RpGgufTensor tensor = {.rank = weight->rank, .index = index, .step = 1, .factor = 1};

    memcpy(tensor.shape, weight->shape, sizeof tensor.shape);
    if (weight->transposed)
        tensor.shape[1] = weight->shape[2], tensor.shape[2] = weight->shape[1];
    tensor.transposed = weight->transposed;
    tensor.experts = weight->rank == 3 || bias ? tensor.shape[0] : 1;
    tensor.columns = weight->rank == 3           ? tensor.shape[2]
                     : bias || weight->rank == 1 ? 1
                                                 : tensor.shape[1];
    tensor.source_rows = weight->elements / tensor.experts / tensor.columns;
    tensor.rows = tensor.source_rows / n_halves;
    if (n_halves > 1) {
        tensor.first = interleaved ? half : half * tensor.rows;
        tensor.step = interleaved ? n_halves : 1;
        tensor.shape[weight->rank == 3 || bias ? 1 : 0] = tensor.rows;
    }
    return tensor;
}

static gboolean
has_pairs(const RpModel *model, RpWeightKind kind)
{
    return rp_gguf_family(model)->pairs && (kind == RP_WEIGHT_Q || kind == RP_WEIGHT_Q_BIAS ||
                                            kind == RP_WEIGHT_K || kind == RP_WEIGHT_K_BIAS);
}

/* Experts' matrices of Qwen3-MoE stand one by one, those of an expert together. */
static void
stack_experts(RpGgufTensor *tensor, const RpModel *model, guint per_expert)
{
    tensor->experts = model->experts;
    tensor->index_step = per_expert;
    tensor->rank = 3;
    tensor->shape[0] = model->experts;
    tensor->shape[1] = tensor->rows;
    tensor->shape[2] = tensor->columns;
}

static void
add_weight(GArray *tensors, const RpWeights *weights, guint index, RpGgufType type)
{
    const RpModel *model = rp_weights_model(weights);
    const RpWeight *weight = rp_weights_nth(weights, index);
    const gboolean apart = weight->stack[0] > 0;
    const gboolean halves =
        !apart && (weight->kind == RP_WEIGHT_GATE_UP || weight->kind == RP_WEIGHT_GATE_UP_BIAS);

    if (weight->tied && !rp_gguf_family(model)->own_head)
        return;
    for (guint half = 0; half < (halves ? 2 : 1); half++) {
        RpGgufTensor tensor = tensor_of(weights, index, half, halves ? 2 : 1);
        /* an expert's up stands behind its gate in their stack */
        const guint name = halves ? half : weight->offset > 0 ? 1 : 0;

        if (apart)
            stack_experts(&tensor, model, 3);
        tensor.pair_head = has_pairs(model, weight->kind) ? model->head_dim : 0;
        tensor.type = type_of(weights, weight->kind, tensor.rank, tensor.columns, type);
        tensor.name = name_of(model, weight, weight->kind, name, "");
        g_array_append_val(tensors, tensor);
    }
}

/* Frequencies of a llama3 rope as divisors of the usual ones. (transfer full) */
static float *
rope_factors(const RpModel *model)
{
    const RpRope usual = {.theta = model->rope.theta};
    const guint n = model->head_dim / 2;
    g_autofree float *ours = g_new(float, n);
    float *factors = g_new(float, n);

    rp_rope_frequencies(&usual, model->head_dim, 1, factors);
    rp_rope_frequencies(&model->rope, model->head_dim, 1, ours);
    for (guint i = 0; i < n; i++)
        factors[i] /= ours[i];
    return factors;
}

GArray *
rp_gguf_list_model(const RpWeights *weights, RpGgufType type)
{
    const RpModel *model = rp_weights_model(weights);
    GArray *tensors = list_new();

    if (model->rope.type == RP_ROPE_LLAMA3) {
        RpGgufTensor factors = {.name = g_strdup("rope_freqs.weight"),
                                .rank = 1,
                                .shape = {model->head_dim / 2, 1, 1},
                                .values = rope_factors(model)};

        g_array_append_val(tensors, factors);
    }
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        /* of experts' own matrices the first one's stand for all */
        if (weight->offset == 0 || weight->offset < weight->stack[1] * weight->stack[2])
            add_weight(tensors, weights, i, type);
    }
    return tensors;
}

/* ---- adapters ---- */

static void
add_adapter(GArray *tensors, const RpWeights *weights, guint index, RpGgufType type, double alpha)
{
    const RpModel *model = rp_weights_model(weights);
    const RpWeight *weight = rp_weights_nth(weights, index);
    const RpWeightKind kind = (RpWeightKind)(weight->kind % RP_N_BASE_KINDS);
    const gboolean b = weight->kind >= rp_weight_adapter(0, RP_ADAPTER_B);
    const guint halves = kind == RP_WEIGHT_GATE_UP ? 2 : 1;

    for (guint half = 0; half < halves; half++) {
        RpGgufTensor tensor = tensor_of(weights, index, half, b ? halves : 1);

        tensor.type = type;
        tensor.name = name_of(model, weight, kind, half, b ? ".lora_b" : ".lora_a");
        if (b) {
            tensor.pair_head = has_pairs(model, kind) ? model->head_dim : 0;
            tensor.factor = (float)(weight->scale * (double)tensor.columns / alpha);
        }
        g_array_append_val(tensors, tensor);
    }
}

GArray *
rp_gguf_list_adapter(const RpWeights *weights, RpGgufType type, double *alpha, GError **error)
{
    g_autoptr(GArray) tensors = list_new();

    *alpha = 0;
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (weight->trained && !rp_weight_is_adapter(weight->kind)) {
            g_autofree char *shown = rp_quote(weight->name);

            return rp_null(rp_fail(
                error, RP_GGUF_ERROR, RP_GGUF_ERROR_UNSUPPORTED,
                "modules_to_save: tensor %s is trained whole, and llama.cpp's adapters have no "
                "place for it: `roundpipe merge` makes a model that can be exported",
                shown));
        }
        if (!rp_weight_is_adapter(weight->kind))
            continue;
        if (*alpha == 0) /* A: its rows are the rank */
            *alpha = weight->scale * (double)weight->shape[weight->rank - 2];
        add_adapter(tensors, weights, i, type, *alpha);
    }
    return g_steal_pointer(&tensors);
}

/* ---- data ---- */

/* Rows of a tensor that are being made. */
typedef struct {
    const RpWeights *weights;
    const RpGgufTensor *tensor;
    guint64 first, n;    /* rows, counted over all experts */
    guint64 group;       /* rows that a thread takes at once */
    const float *matrix; /* the expert's, where it is transposed */
    guint8 *out;
} Rows;

/* Row @i of a matrix where rows of a head stand as pairs (j, j + d/2). */
static guint64
unpaired(guint64 i, guint64 d)
{
    const guint64 within = i % d;

    return i - within + within % 2 * (d / 2) + within / 2;
}

/* Packed values are those of the model's type wherever they are computed with. */
static void
round_values(RpDtype dtype, float *values, gsize n)
{
    for (gsize i = 0; i < n && dtype != RP_DTYPE_FP32; i++)
        values[i] = dtype == RP_DTYPE_BF16 ? rp_float_from_bf16(rp_bf16_from_float(values[i]))
                                           : rp_float_from_fp16(rp_fp16_from_float(values[i]));
}

static void
read_row(const Rows *rows, guint64 row, float *values)
{
    const RpGgufTensor *tensor = rows->tensor;
    const guint64 expert = row / tensor->rows, i = row % tensor->rows;
    const guint64 at = tensor->pair_head > 0 ? unpaired(i, tensor->pair_head) : i;
    const guint64 source = tensor->first + tensor->step * at;

    if (rows->matrix != NULL)
        for (guint64 k = 0; k < tensor->columns; k++)
            values[k] = rows->matrix[k * tensor->source_rows + source];
    else if (tensor->index_step > 0)
        rp_weights_read(rows->weights, tensor->index + (guint)expert * tensor->index_step,
                        source * tensor->columns, values, tensor->columns);
    else
        rp_weights_read(rows->weights, tensor->index,
                        (expert * tensor->source_rows + source) * tensor->columns, values,
                        tensor->columns);
    if (rp_weights_packed(rows->weights, tensor->index) != NULL)
        round_values(rp_weights_dtype(rows->weights), values, tensor->columns);
    for (guint64 k = 0; tensor->factor != 1 && k < tensor->columns; k++)
        values[k] *= tensor->factor;
}

static gboolean
make_rows(guint piece, gpointer data, GError **error)
{
    const Rows *rows = data;
    const RpGgufTensor *tensor = rows->tensor;
    const guint64 begin = piece * rows->group, n = MIN(rows->group, rows->n - begin);
    g_autofree float *values = g_new(float, n * tensor->columns);

    for (guint64 row = 0; row < n; row++)
        read_row(rows, rows->first + begin + row, values + row * tensor->columns);
    rp_gguf_encode(tensor->type, values, (gsize)(n * tensor->columns),
                   rows->out + rp_gguf_bytes(tensor->type, begin * tensor->columns));
    return TRUE;
}

/* Rows from @rows->first to @end. */
static gboolean
write_rows(Rows *rows, guint64 end, RpGgufFile *file, GError **error)
{
    const RpGgufTensor *tensor = rows->tensor;
    const guint64 step = MAX(1, PIECE_ELEMENTS / tensor->columns);
    g_autofree guint8 *out = g_malloc(rp_gguf_bytes(tensor->type, step * tensor->columns));

    rows->out = out;
    rows->group = MAX(1, THREAD_ELEMENTS / tensor->columns);
    for (; rows->first < end; rows->first += rows->n) {
        rows->n = MIN(step, end - rows->first);
        (void)rp_run_pieces((guint)((rows->n + rows->group - 1) / rows->group), make_rows, rows,
                            NULL);
        if (!rp_gguf_file_write(
                file, out, (gsize)rp_gguf_bytes(tensor->type, rows->n * tensor->columns), error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
write_transposed(Rows *rows, RpGgufFile *file, GError **error)
{
    const RpGgufTensor *tensor = rows->tensor;
    const guint64 elements = tensor->source_rows * tensor->columns;
    g_autofree float *matrix = g_new(float, elements);

    rows->matrix = matrix;
    for (guint64 expert = 0; expert < tensor->experts; expert++) {
        rp_weights_read(rows->weights, tensor->index, expert * elements, matrix, elements);
        if (!write_rows(rows, (expert + 1) * tensor->rows, file, error))
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_gguf_write_tensor(const RpWeights *weights, const RpGgufTensor *tensor, RpGgufFile *file,
                     GError **error)
{
    Rows rows = {.weights = weights, .tensor = tensor};
    const gboolean written =
        tensor->values != NULL
            ? rp_gguf_file_write(file, tensor->values, (gsize)(4 * tensor->shape[0]), error)
        : tensor->transposed ? write_transposed(&rows, file, error)
                             : write_rows(&rows, tensor->experts * tensor->rows, file, error);

    return written && rp_gguf_file_pad(file, error);
}
