/* Tiles of 64 x 128 by 2 x 2 warps, 4 stages, 2 blocks on a multiprocessor: for experts of few rows. */
#include "exec/cuda/grouped/mma-kernel.cuh"

cudaError_t
grouped_matmul_64x128(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return Launch<64, 128, 2, 2, 32, 4, 2>::run(args, stream);
}
