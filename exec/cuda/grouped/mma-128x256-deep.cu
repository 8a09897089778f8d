/* As mma-128x256.cu, steps of 64 of k: half as many barriers. Shared memory of Hopper. */
#include "exec/cuda/grouped/mma-kernel.cuh"

cudaError_t
grouped_matmul_128x256_deep(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return Launch<128, 256, 2, 4, 64, 4, 1>::run(args, stream);
}
