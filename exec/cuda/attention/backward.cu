/* Backward by mma.sync with 128 keys a block, 16 a warp: heads of 64 and 128, every card since sm_80. */
#define KEYS 128
#include "exec/cuda/attention/backward.cuh"

cudaError_t
attention_backward_mma(const RpAttentionArgs *args, const AttentionGrid *grid,
                       const BackwardScratch *scratch, size_t first, unsigned *numbers,
                       cudaStream_t stream)
{
    const bool is_bf16 = args->dtype == RP_DTYPE_BF16, is_wide = args->head_size == 128;
    const auto run = is_wide   ? is_bf16 ? launch<__nv_bfloat16, 128> : launch<__half, 128>
                       : is_bf16 ? launch<__nv_bfloat16, 64>
                               : launch<__half, 64>;

    return run(args, grid, scratch, first, numbers, stream);
}
