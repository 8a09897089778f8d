/* The table of kernels: each operation's arguments handed to its launcher, failures noted. */
#include "exec/cuda/kernels/kernels-private.h"

#include "exec/cuda/attention/attention.h"
#include "exec/cuda/base/launch.h"

G_STATIC_ASSERT(RP_DTYPE_FP32 == 0 && RP_DTYPE_BF16 == 1 && RP_DTYPE_FP16 == 2);
G_STATIC_ASSERT(RP_LABEL_MASKED == -100);

static void
note(RpKernelStream *stream, const char *operation, cudaError_t status)
{
    if (status != cudaSuccess)
        rp_cuda_stream_fail(stream, operation, cudaGetErrorString(status));
}

static void
bias_forward(RpKernelStream *stream, const RpBiasArgs *args)
{
    note(stream, "bias forward",
         rp_cuda_bias_forward((int)args->dtype, args->tokens, args->n, args->bias, args->y,
                              stream->stream));
}

static size_t
bias_backward_workspace(const RpBiasArgs *args)
{
    return rp_cuda_bias_backward_workspace(args->tokens, args->n);
}

static void
bias_backward(RpKernelStream *stream, const RpBiasArgs *args)
{
    note(stream, "bias backward",
         rp_cuda_bias_backward((int)args->dtype, args->tokens, args->n, args->dy, args->d_bias,
                               args->workspace, stream->stream));
}

static RpCudaRmsnorm
rmsnorm_of(const RpRmsnormArgs *args)
{
    return (RpCudaRmsnorm){.dtype = (int)args->dtype,
                           .rows = args->rows,
                           .n = args->n,
                           .epsilon = args->epsilon,
                           .x = args->x,
                           .residual = args->residual,
                           .sum = args->sum,
                           .weight = args->weight,
                           .y = args->y,
                           .rstd = args->rstd,
                           .dy = args->dy,
                           .d_residual = args->d_residual,
                           .dx = args->dx,
                           .d_weight = args->d_weight,
                           .workspace = args->workspace};
}

static void
rmsnorm_forward(RpKernelStream *stream, const RpRmsnormArgs *args)
{
    const RpCudaRmsnorm launch = rmsnorm_of(args);

    note(stream, "rmsnorm forward", rp_cuda_rmsnorm_forward(&launch, stream->stream));
}

static size_t
rmsnorm_backward_workspace(const RpRmsnormArgs *args)
{
    return rp_cuda_rmsnorm_backward_workspace(args->rows, args->n);
}

static void
rmsnorm_backward(RpKernelStream *stream, const RpRmsnormArgs *args)
{
    const RpCudaRmsnorm launch = rmsnorm_of(args);

    note(stream, "rmsnorm backward", rp_cuda_rmsnorm_backward(&launch, stream->stream));
}

static cudaError_t
rope(RpKernelStream *stream, const RpRopeArgs *args, float direction)
{
    const RpCudaRope launch = {.dtype = (int)args->dtype,
                               .tokens = args->tokens,
                               .heads = args->heads,
                               .head_size = args->head_size,
                               .positions = args->positions,
                               .cosines = args->cosines,
                               .sines = args->sines,
                               .x = args->x,
                               .y = args->y,
                               .direction = direction};

    g_assert(args->head_size % 2 == 0);
    return rp_cuda_rope(&launch, stream->stream);
}

static void
rope_forward(RpKernelStream *stream, const RpRopeArgs *args)
{
    note(stream, "rope forward", rope(stream, args, 1.0f));
}

static void
rope_backward(RpKernelStream *stream, const RpRopeArgs *args)
{
    note(stream, "rope backward", rope(stream, args, -1.0f));
}

static RpCudaNormRope
norm_rope_of(const RpNormRopeArgs *args)
{
    g_assert(args->head_size % 2 == 0);
    return (RpCudaNormRope){.dtype = (int)args->dtype,
                            .tokens = args->tokens,
                            .heads = args->heads,
                            .head_size = args->head_size,
                            .epsilon = args->epsilon,
                            .positions = args->positions,
                            .cosines = args->cosines,
                            .sines = args->sines,
                            .x = args->x,
                            .weight = args->weight,
                            .y = args->y,
                            .rstd = args->rstd,
                            .dy = args->dy,
                            .dx = args->dx,
                            .d_weight = args->d_weight,
                            .workspace = args->workspace};
}

static void
norm_rope_forward(RpKernelStream *stream, const RpNormRopeArgs *args)
{
    const RpCudaNormRope launch = norm_rope_of(args);

    note(stream, "norm and rope forward", rp_cuda_norm_rope_forward(&launch, stream->stream));
}

static size_t
norm_rope_backward_workspace(const RpNormRopeArgs *args)
{
    return rp_cuda_norm_rope_backward_workspace(args->tokens, args->heads, args->head_size);
}

static void
norm_rope_backward(RpKernelStream *stream, const RpNormRopeArgs *args)
{
    const RpCudaNormRope launch = norm_rope_of(args);

    note(stream, "norm and rope backward", rp_cuda_norm_rope_backward(&launch, stream->stream));
}

static RpCudaAttention
attention_of(const RpAttentionArgs *args)
{
    return (RpCudaAttention){.dtype = (int)args->dtype,
                             .tokens = args->tokens,
                             .sequences = args->sequences,
                             .max_length = args->max_length,
                             .heads = args->heads,
                             .kv_heads = args->kv_heads,
                             .head_size = args->head_size,
                             .window = args->window,
                             .scale = args->scale,
                             .starts = args->starts,
                             .q = args->q,
                             .k = args->k,
                             .v = args->v,
                             .out = args->out,
                             .lse = args->lse,
                             .d_out = args->d_out,
                             .dq = args->dq,
                             .dk = args->dk,
                             .dv = args->dv,
                             .workspace = args->workspace};
}

static gboolean
has_attention(RpAttentionChoice choice)
{
    return choice == RP_ATTENTION_BUILTIN || (choice == RP_ATTENTION_CUDNN && rp_cudnn_available());
}

static size_t
attention_forward_workspace(const RpAttentionArgs *args)
{
    const RpCudaAttention launch = attention_of(args);
    const size_t bytes = rp_cuda_attention_forward_workspace(&launch);

    if (args->choice != RP_ATTENTION_CUDNN)
        return bytes;
    return MAX(bytes, rp_cudnn_forward_workspace(&launch));
}

static void
attention_forward(RpKernelStream *stream, const RpAttentionArgs *args)
{
    const RpCudaAttention launch = attention_of(args);

    if (args->choice == RP_ATTENTION_CUDNN && rp_cudnn_forward(stream->cudnn, &launch))
        return;
    note(stream, "attention forward", rp_cuda_attention_forward(&launch, stream->stream));
}

static size_t
attention_backward_workspace(const RpAttentionArgs *args)
{
    const RpCudaAttention launch = attention_of(args);
    const size_t bytes = rp_cuda_attention_backward_workspace(&launch);

    if (args->choice != RP_ATTENTION_CUDNN)
        return bytes;
    return MAX(bytes, rp_cudnn_backward_workspace(&launch));
}

static void
attention_backward(RpKernelStream *stream, const RpAttentionArgs *args)
{
    const RpCudaAttention launch = attention_of(args);

    if (args->choice == RP_ATTENTION_CUDNN && rp_cudnn_backward(stream->cudnn, &launch))
        return;
    note(stream, "attention backward", rp_cuda_attention_backward(&launch, stream->stream));
}

static void
swiglu_forward(RpKernelStream *stream, const RpSwigluArgs *args)
{
    note(stream, "swiglu forward",
         rp_cuda_swiglu_forward((int)args->dtype, args->n, args->gate, args->up, args->y,
                                stream->stream));
}

static void
swiglu_backward(RpKernelStream *stream, const RpSwigluArgs *args)
{
    note(stream, "swiglu backward",
         rp_cuda_swiglu_backward((int)args->dtype, args->n, args->gate, args->up, args->dy,
                                 args->d_gate, args->d_up, args->product, stream->stream));
}

static void
embedding_forward(RpKernelStream *stream, const RpEmbeddingArgs *args)
{
    note(stream, "embedding forward",
         rp_cuda_embedding_forward((int)args->dtype, args->tokens, args->n, args->ids, args->weight,
                                   args->y, stream->stream));
}

static size_t
embedding_backward_workspace(const RpEmbeddingArgs *args)
{
    return rp_cuda_embedding_backward_workspace(args->tokens);
}

static void
embedding_backward(RpKernelStream *stream, const RpEmbeddingArgs *args)
{
    note(stream, "embedding backward",
         rp_cuda_embedding_backward((int)args->dtype, args->tokens, args->n, args->vocabulary,
                                    args->ids, args->dy, args->d_weight, args->padding_id,
                                    args->workspace, stream->stream));
}

static size_t
cross_entropy_workspace(const RpCrossEntropyArgs *args)
{
    return rp_cuda_cross_entropy_workspace(args->tokens);
}

static void
cross_entropy(RpKernelStream *stream, const RpCrossEntropyArgs *args)
{
    const RpCudaCrossEntropy launch = {.dtype = (int)args->dtype,
                                       .tokens = args->tokens,
                                       .vocabulary = args->vocabulary,
                                       .logits = args->logits,
                                       .labels = args->labels,
                                       .scale = args->scale,
                                       .gradient = args->gradient,
                                       .loss = args->loss,
                                       .losses = args->losses,
                                       .workspace = args->workspace};

    note(stream, "cross entropy", rp_cuda_cross_entropy(&launch, stream->stream));
}

static size_t
sum_squares_workspace(const RpSumSquaresArgs *args)
{
    return rp_cuda_sum_squares_workspace(args->n);
}

static void
sum_squares(RpKernelStream *stream, const RpSumSquaresArgs *args)
{
    note(stream, "sum of squares",
         rp_cuda_sum_squares((int)args->dtype, args->n, args->x, args->sum, args->broken,
                             args->workspace, stream->stream));
}

static void
convert(RpKernelStream *stream, const RpElementsArgs *args)
{
    note(stream, "convert",
         rp_cuda_convert((int)args->x_dtype, args->x, (int)args->y_dtype, args->y, args->n,
                         stream->stream));
}

static void
add(RpKernelStream *stream, const RpElementsArgs *args)
{
    note(stream, "add",
         rp_cuda_add((int)args->x_dtype, args->x, (int)args->b_dtype, args->b, (int)args->y_dtype,
                     args->y, args->n, stream->stream));
}

static void
gather(RpKernelStream *stream, const RpGatherArgs *args)
{
    note(stream, "gather",
         rp_cuda_gather((int)args->dtype, args->n, args->begin, args->x, args->y, stream->stream));
}

static void
scatter(RpKernelStream *stream, const RpScatterArgs *args)
{
    note(stream, "scatter",
         rp_cuda_scatter((int)args->dtype, args->n, args->columns, args->rows, args->x, args->y,
                         stream->stream));
}

static void
fill(RpKernelStream *stream, void *x, RpDtype dtype, size_t n, float value)
{
    note(stream, "fill", rp_cuda_fill((int)dtype, x, n, value, stream->stream));
}

static gboolean
check(RpKernelStream *stream, GError **error)
{
    if (!stream->failure)
        return TRUE;
    g_set_error_literal(error, RP_CUDA_ERROR, RP_CUDA_ERROR_LAUNCH, stream->failure);
    g_clear_pointer(&stream->failure, g_free);
    return FALSE;
}

static const RpKernels kernels = {
    .name = "cuda",
    .matmul_workspace = rp_cuda_matmul_workspace,
    .matmul = rp_cuda_matmul,
    .bias_forward = bias_forward,
    .bias_backward_workspace = bias_backward_workspace,
    .bias_backward = bias_backward,
    .rmsnorm_forward = rmsnorm_forward,
    .rmsnorm_backward_workspace = rmsnorm_backward_workspace,
    .rmsnorm_backward = rmsnorm_backward,
    .rope_forward = rope_forward,
    .rope_backward = rope_backward,
    .norm_rope_forward = norm_rope_forward,
    .norm_rope_backward_workspace = norm_rope_backward_workspace,
    .norm_rope_backward = norm_rope_backward,
    .has_attention = has_attention,
    .attention_forward_workspace = attention_forward_workspace,
    .attention_forward = attention_forward,
    .attention_backward_workspace = attention_backward_workspace,
    .attention_backward = attention_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .embedding_forward = embedding_forward,
    .embedding_backward_workspace = embedding_backward_workspace,
    .embedding_backward = embedding_backward,
    .cross_entropy_workspace = cross_entropy_workspace,
    .cross_entropy = cross_entropy,
    .sum_squares_workspace = sum_squares_workspace,
    .sum_squares = sum_squares,
    .convert = convert,
    .add = add,
    .gather = gather,
    .scatter = scatter,
    .fill = fill,
    .check = check,
};

const RpKernels *
rp_cuda_kernels(void)
{
    return &kernels;
}
