/* Backward by wgmma of heads of 256, 64 keys a block. */
#define HEAD_SIZE 256
#define KEYS 64
#include "exec/cuda/attention/backward-wgmma.cuh"

cudaError_t
attention_backward_wgmma_256(const RpAttentionArgs *args, const AttentionGrid *grid,
                             const BackwardScratch *scratch, size_t first, unsigned *numbers,
                             cudaStream_t stream)
{
    const auto run = args->dtype == RP_DTYPE_BF16 ? launch<__nv_bfloat16> : launch<__half>;

    return run(args, grid, scratch, first, numbers, stream);
}
