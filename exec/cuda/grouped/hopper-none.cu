/* In place of the kernels for Hopper, where no code is built for compute capability 9.0. */
#include "exec/cuda/attention/private.h"
#include "exec/cuda/grouped/private.h"

bool
attention_has_wgmma(const RpAttentionArgs *args)
{
    return false;
}

cudaError_t
attention_backward_wgmma(const RpAttentionArgs *args, const AttentionGrid *grid,
                         const BackwardScratch *scratch, size_t first, unsigned *numbers,
                         cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}

bool
attention_has_wide(const RpAttentionArgs *args)
{
    return false;
}

cudaError_t
attention_backward_wide(const RpAttentionArgs *args, const AttentionGrid *grid,
                        const BackwardScratch *scratch, size_t first, unsigned *numbers,
                        cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}

bool
grouped_has_depth(const RpGroupedMatmulArgs *args)
{
    return false;
}

cudaError_t
grouped_matmul_128x128_deep(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}

bool
grouped_has_wgmma(const RpGroupedMatmulArgs *args)
{
    return false;
}

cudaError_t
grouped_matmul_turns_128(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}

cudaError_t
grouped_matmul_wgmma_256(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}

cudaError_t
grouped_matmul_turns_192(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return cudaErrorInvalidValue;
}
