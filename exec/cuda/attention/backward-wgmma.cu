/* Backward by wgmma of heads of 128, 128 keys a block; and which variants Hopper has. */
#define HEAD_SIZE 128
#define KEYS 128
#include "exec/cuda/attention/backward-wgmma.cuh"

static bool
has_wgmma(const RpAttentionArgs *args, size_t head_size)
{
    return args->head_size == head_size && is_hopper() && find_encode() != nullptr;
}

bool
attention_has_wgmma(const RpAttentionArgs *args)
{
    return has_wgmma(args, 128);
}

bool
attention_has_wgmma_256(const RpAttentionArgs *args)
{
    return has_wgmma(args, 256);
}

bool
attention_has_wide(const RpAttentionArgs *args)
{
    return args->head_size == 64 && is_hopper();
}

cudaError_t
attention_backward_wgmma(const RpAttentionArgs *args, const AttentionGrid *grid,
                         const BackwardScratch *scratch, size_t first, unsigned *numbers,
                         cudaStream_t stream)
{
    const auto run = args->dtype == RP_DTYPE_BF16 ? launch<__nv_bfloat16> : launch<__half>;

    return run(args, grid, scratch, first, numbers, stream);
}
