/* Tiles of 128 x 64 by 4 x 1 warps, 4 stages, 2 blocks on a multiprocessor: for few columns, as of adapters. */
#include "exec/cuda/grouped/mma-kernel.cuh"

cudaError_t
grouped_matmul_128x64(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return Launch<128, 64, 4, 1, 32, 4, 2>::run(args, stream);
}
