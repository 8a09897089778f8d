/* In place of wgmma.cu, where no code is built for compute capability 9.0. */
#include "exec/cuda/grouped/private.h"

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
