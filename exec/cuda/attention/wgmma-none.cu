/* In place of backward-wgmma.cu and backward-wide.cu, where no code is built for compute capability 9.0. */
#include "exec/cuda/attention/private.h"

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
