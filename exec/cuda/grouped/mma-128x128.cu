/* Tiles of 128 x 128 by 2 x 2 warps, 3 stages, 2 blocks on a multiprocessor: one stores while the other multiplies. */
#include "exec/cuda/grouped/mma-kernel.cuh"

cudaError_t
grouped_matmul_128x128(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return Launch<128, 128, 2, 2, 32, 3, 2>::run(args, stream);
}
