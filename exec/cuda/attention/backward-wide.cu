/* Backward by mma.sync with 256 keys a block, 32 a warp: heads of 64 on Hopper. */
#define KEYS 256
#include "exec/cuda/attention/backward.cuh"

cudaError_t
attention_backward_wide(const RpAttentionArgs *args, const AttentionGrid *grid,
                        const BackwardScratch *scratch, size_t first, unsigned *numbers,
                        cudaStream_t stream)
{
    const auto run = args->dtype == RP_DTYPE_BF16 ? launch<__nv_bfloat16, 64> : launch<__half, 64>;

    return run(args, grid, scratch, first, numbers, stream);
}
