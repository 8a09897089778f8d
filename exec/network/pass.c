/*
 * Kernels with their operands filled in: dtype, weights, tables and workspace. When a pass
 * measures, only the workspace is asked for.
 */
#include <math.h>

#include "core/base/units.h"
#include "exec/network/private.h"

static void *
take(RpRoom *room, gsize bytes)
{
    void *taken = (void *)(room->base + room->used);

    room->used += rp_align_up(bytes, RP_NETWORK_ALIGNMENT);
    room->peak = MAX(room->peak, room->used);
    return taken;
}

void *
rp_pass_take(const RpPass *pass, RpRoom *room, size_t n)
{
    return take(room, n * rp_dtype_size(pass->network->options.dtype));
}

float *
rp_pass_take_floats(RpRoom *room, size_t n)
{
    return take(room, n * sizeof(float));
}

gboolean
rp_pass_has(const RpPass *pass, RpWeightKind kind)
{
    return pass->layout->place[kind].byte != RP_LAYOUT_NONE;
}

static const void *
weight_of(const RpPass *pass, RpWeightKind kind)
{
    return (const void *)(pass->parameters + pass->layout->place[kind].byte);
}

static gboolean
is_trained(const RpPass *pass, RpWeightKind kind)
{
    return pass->layout->place[kind].element != RP_LAYOUT_NONE;
}

/* Its gradient's sum. */
static float *
sum_of(const RpPass *pass, RpWeightKind kind)
{
    return (float *)(pass->sums + pass->layout->place[kind].element * sizeof(float));
}

/* The same of @n elements; a kernel that adds up more than it makes leaves a frozen norm's where
 * nobody looks. */
static float *
sum_or_scratch(RpPass *pass, RpWeightKind kind, size_t n)
{
    return is_trained(pass, kind) ? sum_of(pass, kind) : rp_pass_take_floats(&pass->scratch, n);
}

static RpKernelStream *
stream_of(const RpPass *pass)
{
    return pass->call->stream;
}

static void
measure(RpPass *pass, size_t workspace)
{
    pass->kernel_bytes = MAX(pass->kernel_bytes, workspace);
}

static void
matmul(RpPass *pass, RpMatmulArgs args)
{
    const RpKernels *kernels = pass->network->kernels;

    args.workspace = pass->kernel_workspace;
    args.half_sums = pass->network->options.half_sums;
    if (pass->measuring)
        measure(pass, kernels->matmul_workspace(&args));
    else
        kernels->matmul(stream_of(pass), &args);
}

void
rp_pass_linear(RpPass *pass, const RpLinear *linear, size_t rows, const void *x, void *y)
{
    const RpDtype dtype = pass->network->options.dtype;
    const gboolean has_bias = rp_pass_has(pass, linear->bias);

    matmul(pass, (RpMatmulArgs){.form = RP_MATMUL_NT,
                                .m = rows,
                                .n = linear->out,
                                .k = linear->in,
                                .a = x,
                                .b = weight_of(pass, linear->weight),
                                .c = y,
                                .bias = has_bias ? weight_of(pass, linear->bias) : NULL,
                                .a_dtype = dtype,
                                .b_dtype = pass->layout->place[linear->weight].storage,
                                .c_dtype = dtype});
}

static void
bias_backward(RpPass *pass, const RpLinear *linear, size_t rows, const void *dy)
{
    const RpKernels *kernels = pass->network->kernels;
    const RpBiasArgs args = {.dtype = pass->network->options.dtype,
                             .tokens = rows,
                             .n = linear->out,
                             .dy = dy,
                             .d_bias = sum_of(pass, linear->bias),
                             .workspace = pass->kernel_workspace};

    if (pass->measuring)
        measure(pass, kernels->bias_backward_workspace(&args));
    else
        kernels->bias_backward(stream_of(pass), &args);
}

void
rp_pass_linear_sums(RpPass *pass, const RpLinear *linear, size_t rows, const void *x,
                    const void *dy)
{
    const RpDtype dtype = pass->network->options.dtype;

    if (is_trained(pass, linear->bias))
        bias_backward(pass, linear, rows, dy);
    if (!is_trained(pass, linear->weight))
        return;
    matmul(pass, (RpMatmulArgs){.form = RP_MATMUL_TN,
                                .m = linear->out,
                                .n = linear->in,
                                .k = rows,
                                .a = dy,
                                .b = x,
                                .c = sum_of(pass, linear->weight),
                                .a_dtype = dtype,
                                .b_dtype = dtype,
                                .c_dtype = RP_DTYPE_FP32,
                                .accumulate = TRUE});
}

void
rp_pass_linear_input(RpPass *pass, const RpLinear *linear, size_t rows, const void *dy, void *dx,
                     gboolean accumulate)
{
    const RpDtype dtype = pass->network->options.dtype;

    matmul(pass, (RpMatmulArgs){.form = RP_MATMUL_NN,
                                .m = rows,
                                .n = linear->in,
                                .k = linear->out,
                                .a = dy,
                                .b = weight_of(pass, linear->weight),
                                .c = dx,
                                .a_dtype = dtype,
                                .b_dtype = pass->layout->place[linear->weight].storage,
                                .c_dtype = dtype,
                                .accumulate = accumulate});
}

void
rp_pass_linear_backward(RpPass *pass, const RpLinear *linear, size_t rows, const void *x,
                        const void *dy, void *dx, gboolean accumulate)
{
    rp_pass_linear_sums(pass, linear, rows, x, dy);
    rp_pass_linear_input(pass, linear, rows, dy, dx, accumulate);
}

static void
complete_norm(const RpPass *pass, RpWeightKind kind, RpRmsnormArgs *args)
{
    args->dtype = pass->network->options.dtype;
    args->epsilon = (float)pass->network->config.rms_norm_eps;
    args->weight = weight_of(pass, kind);
    args->workspace = pass->kernel_workspace;
}

void
rp_pass_norm(RpPass *pass, RpWeightKind kind, RpRmsnormArgs args)
{
    complete_norm(pass, kind, &args);
    if (!pass->measuring)
        pass->network->kernels->rmsnorm_forward(stream_of(pass), &args);
}

void
rp_pass_norm_backward(RpPass *pass, RpWeightKind kind, RpRmsnormArgs args)
{
    const RpKernels *kernels = pass->network->kernels;

    complete_norm(pass, kind, &args);
    args.d_weight = sum_or_scratch(pass, kind, args.n);
    if (pass->measuring)
        measure(pass, kernels->rmsnorm_backward_workspace(&args));
    else
        kernels->rmsnorm_backward(stream_of(pass), &args);
}

static const void *
constant(const RpPass *pass, gsize offset)
{
    return (const guint8 *)pass->call->constants + offset;
}

static RpRopeArgs
rope_args(const RpPass *pass, size_t heads, const void *x, void *y)
{
    const RpNetwork *network = pass->network;

    return (RpRopeArgs){.dtype = network->options.dtype,
                        .tokens = network->tokens,
                        .heads = heads,
                        .head_size = network->config.head_dim,
                        .positions = constant(pass, network->constants.positions),
                        .cosines = constant(pass, network->constants.cosines),
                        .sines = constant(pass, network->constants.sines),
                        .x = x,
                        .y = y};
}

void
rp_pass_rope(RpPass *pass, size_t heads, const void *x, void *y)
{
    if (pass->measuring)
        return;
    RpRopeArgs args = rope_args(pass, heads, x, y);
    pass->network->kernels->rope_forward(stream_of(pass), &args);
}

void
rp_pass_rope_backward(RpPass *pass, size_t heads, void *d)
{
    if (pass->measuring)
        return;
    RpRopeArgs args = rope_args(pass, heads, d, d);
    pass->network->kernels->rope_backward(stream_of(pass), &args);
}

static void
complete_norm_rope(const RpPass *pass, RpWeightKind kind, RpNormRopeArgs *args)
{
    const RpNetwork *network = pass->network;

    args->dtype = network->options.dtype;
    args->tokens = network->tokens;
    args->head_size = network->config.head_dim;
    args->epsilon = (float)network->config.rms_norm_eps;
    args->weight = weight_of(pass, kind);
    args->workspace = pass->kernel_workspace;
    if (pass->measuring)
        return;
    args->positions = constant(pass, network->constants.positions);
    args->cosines = constant(pass, network->constants.cosines);
    args->sines = constant(pass, network->constants.sines);
}

void
rp_pass_norm_rope(RpPass *pass, RpWeightKind kind, RpNormRopeArgs args)
{
    complete_norm_rope(pass, kind, &args);
    if (!pass->measuring)
        pass->network->kernels->norm_rope_forward(stream_of(pass), &args);
}

void
rp_pass_norm_rope_backward(RpPass *pass, RpWeightKind kind, RpNormRopeArgs args)
{
    const RpKernels *kernels = pass->network->kernels;

    complete_norm_rope(pass, kind, &args);
    args.d_weight = sum_or_scratch(pass, kind, args.head_size);
    if (pass->measuring)
        measure(pass, kernels->norm_rope_backward_workspace(&args));
    else
        kernels->norm_rope_backward(stream_of(pass), &args);
}

static void
complete_attention(const RpPass *pass, RpAttentionArgs *args)
{
    const RpNetwork *network = pass->network;
    const RpModel *config = &network->config;

    args->dtype = network->options.dtype;
    args->tokens = network->tokens;
    args->sequences = network->options.sequences;
    args->max_length = network->options.tokens;
    args->heads = config->heads;
    args->kv_heads = config->kv_heads;
    args->head_size = config->head_dim;
    args->scale = 1.0f / sqrtf((float)config->head_dim);
    args->choice = network->options.attention;
    args->workspace = pass->kernel_workspace;
    if (!pass->measuring)
        args->starts = constant(pass, network->constants.starts);
}

void
rp_pass_attention(RpPass *pass, RpAttentionArgs args)
{
    const RpKernels *kernels = pass->network->kernels;

    complete_attention(pass, &args);
    if (pass->measuring)
        measure(pass, kernels->attention_forward_workspace(&args));
    else
        kernels->attention_forward(stream_of(pass), &args);
}

void
rp_pass_attention_backward(RpPass *pass, RpAttentionArgs args)
{
    const RpKernels *kernels = pass->network->kernels;

    complete_attention(pass, &args);
    if (pass->measuring)
        measure(pass, kernels->attention_backward_workspace(&args));
    else
        kernels->attention_backward(stream_of(pass), &args);
}

static size_t
mlp_elements(const RpPass *pass)
{
    return pass->network->tokens * pass->network->config.intermediate;
}

void
rp_pass_swiglu(RpPass *pass, const void *gate, const void *up, void *y)
{
    if (!pass->measuring)
        pass->network->kernels->swiglu_forward(
            stream_of(pass), &(RpSwigluArgs){.dtype = pass->network->options.dtype,
                                             .n = mlp_elements(pass),
                                             .gate = gate,
                                             .up = up,
                                             .y = y});
}

void
rp_pass_swiglu_backward(RpPass *pass, void *gate, void *up, void *d)
{
    if (!pass->measuring)
        pass->network->kernels->swiglu_backward(
            stream_of(pass), &(RpSwigluArgs){.dtype = pass->network->options.dtype,
                                             .n = mlp_elements(pass),
                                             .gate = gate,
                                             .up = up,
                                             .dy = d,
                                             .d_gate = gate,
                                             .d_up = up,
                                             .product = d});
}

void
rp_pass_add(RpPass *pass, const void *x, void *y)
{
    const RpNetwork *network = pass->network;
    const RpDtype dtype = network->options.dtype;

    if (!pass->measuring)
        network->kernels->add(stream_of(pass),
                              &(RpElementsArgs){.n = network->tokens * network->config.hidden,
                                                .x = y,
                                                .b = x,
                                                .y = y,
                                                .x_dtype = dtype,
                                                .b_dtype = dtype,
                                                .y_dtype = dtype});
}

static RpEmbeddingArgs
embedding_args(const RpPass *pass, const void *ids)
{
    const RpNetwork *network = pass->network;

    return (RpEmbeddingArgs){.dtype = network->options.dtype,
                             .tokens = network->tokens,
                             .n = network->config.hidden,
                             .vocabulary = network->config.vocab,
                             .ids = ids,
                             .padding_id = (int32_t)network->config.pad_id,
                             .workspace = pass->kernel_workspace};
}

static void
embedding_forward(RpPass *pass, const void *ids, RpRoom *kept, void *y)
{
    RpEmbeddingArgs args = embedding_args(pass, ids);

    args.weight = weight_of(pass, RP_WEIGHT_EMBEDDING);
    args.y = y;
    if (y && !pass->measuring)
        pass->network->kernels->embedding_forward(stream_of(pass), &args);
}

static void
embedding_backward(RpPass *pass, const void *ids, RpRoom *kept, const void *dy, void *dx)
{
    const RpKernels *kernels = pass->network->kernels;
    RpEmbeddingArgs args = embedding_args(pass, ids);

    args.dy = dy;
    args.d_weight = sum_of(pass, RP_WEIGHT_EMBEDDING);
    if (!is_trained(pass, RP_WEIGHT_EMBEDDING))
        return;
    if (pass->measuring)
        measure(pass, kernels->embedding_backward_workspace(&args));
    else
        kernels->embedding_backward(stream_of(pass), &args);
}

const RpLayerOps rp_embedding_ops = {
    .name = "embed", .forward = embedding_forward, .backward = embedding_backward};

void
rp_pass_cross_entropy(RpPass *pass, RpCrossEntropyArgs args)
{
    const RpKernels *kernels = pass->network->kernels;

    args.dtype = pass->network->options.dtype;
    args.vocabulary = pass->network->config.vocab;
    args.workspace = pass->kernel_workspace;
    if (pass->measuring)
        measure(pass, kernels->cross_entropy_workspace(&args));
    else
        kernels->cross_entropy(stream_of(pass), &args);
}

void
rp_pass_gather(RpPass *pass, size_t n, const int32_t *rows, const void *hidden, void *packed)
{
    const RpNetwork *network = pass->network;

    network->kernels->embedding_forward(stream_of(pass),
                                        &(RpEmbeddingArgs){.dtype = network->options.dtype,
                                                           .tokens = n,
                                                           .n = network->config.hidden,
                                                           .vocabulary = network->tokens,
                                                           .ids = rows,
                                                           .weight = hidden,
                                                           .y = packed,
                                                           .padding_id = -1});
}

void
rp_pass_scatter(RpPass *pass, size_t n, const int32_t *rows, const void *packed, void *hidden)
{
    const RpNetwork *network = pass->network;

    network->kernels->scatter(stream_of(pass), &(RpScatterArgs){.dtype = network->options.dtype,
                                                                .n = n,
                                                                .columns = network->config.hidden,
                                                                .rows = rows,
                                                                .x = packed,
                                                                .y = hidden});
}

void
rp_pass_clear_hidden(RpPass *pass, void *hidden)
{
    const RpNetwork *network = pass->network;

    network->kernels->fill(stream_of(pass),
                           &(RpFillArgs){.dtype = network->options.dtype,
                                         .n = network->tokens * network->config.hidden,
                                         .x = hidden});
}
