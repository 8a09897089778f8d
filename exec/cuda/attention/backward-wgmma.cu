/* Backward by wgmma of heads of 128, 128 keys a block; and what Hopper has. */
#define HEAD_SIZE 128
#define KEYS 128
#include "exec/cuda/attention/backward-wgmma.cuh"

bool
attention_has_wgmma(const RpAttentionArgs *args)
{
    return (args->head_size == 128 || args->head_size == 256) && is_hopper() && find_encode() != nullptr;
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
    const auto run = args->head_size == 256           ? attention_backward_wgmma_256
                     : args->dtype == RP_DTYPE_BF16 ? launch<__nv_bfloat16>
                                                    : launch<__half>;

    return run(args, grid, scratch, first, numbers, stream);
}
