/* Tiles of 128 x 256 by 2 x 4 warps, 4 stages, 1 block on a multiprocessor: the fewest bytes a product. */
#include "exec/cuda/grouped/mma-kernel.cuh"

cudaError_t
grouped_matmul_128x256(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return Launch<128, 256, 2, 4, 32, 4, 1>::run(args, stream);
}
