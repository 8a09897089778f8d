#include "exec/host/kernels.h"

#include "exec/host/host-private.h"

static gboolean
check(RpKernelStream *stream, GError **error)
{
    return TRUE;
}

static gboolean
has_attention(RpAttentionChoice choice)
{
    return choice == RP_ATTENTION_BUILTIN;
}

static const RpKernels kernels = {
    .name = "host",
    .matmul_workspace = rp_host_matmul_workspace,
    .matmul = rp_host_matmul,
    .bias_forward = rp_host_bias_forward,
    .bias_backward_workspace = rp_host_bias_backward_workspace,
    .bias_backward = rp_host_bias_backward,
    .rmsnorm_forward = rp_host_rmsnorm_forward,
    .rmsnorm_backward_workspace = rp_host_rmsnorm_backward_workspace,
    .rmsnorm_backward = rp_host_rmsnorm_backward,
    .rope_forward = rp_host_rope_forward,
    .rope_backward = rp_host_rope_backward,
    .norm_rope_forward = rp_host_norm_rope_forward,
    .norm_rope_backward_workspace = rp_host_norm_rope_backward_workspace,
    .norm_rope_backward = rp_host_norm_rope_backward,
    .has_attention = has_attention,
    .attention_forward_workspace = rp_host_attention_forward_workspace,
    .attention_forward = rp_host_attention_forward,
    .attention_backward_workspace = rp_host_attention_backward_workspace,
    .attention_backward = rp_host_attention_backward,
    .swiglu_forward = rp_host_swiglu_forward,
    .swiglu_backward = rp_host_swiglu_backward,
    .embedding_forward = rp_host_embedding_forward,
    .embedding_backward_workspace = rp_host_embedding_backward_workspace,
    .embedding_backward = rp_host_embedding_backward,
    .cross_entropy_workspace = rp_host_cross_entropy_workspace,
    .cross_entropy = rp_host_cross_entropy,
    .sum_squares_workspace = rp_host_sum_squares_workspace,
    .sum_squares = rp_host_sum_squares,
    .convert = rp_host_convert,
    .add = rp_host_add,
    .gather = rp_host_gather,
    .scatter = rp_host_scatter,
    .fill = rp_host_fill,
    .check = check,
};

const RpKernels *
rp_host_kernels(void)
{
    return &kernels;
}
