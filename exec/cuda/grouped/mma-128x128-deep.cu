/* Like mma-128x128.cu, with steps of 64 of k: half as many barriers. It needs Hopper's shared
 * memory. */
#include "exec/cuda/grouped/mma-kernel.cuh"

cudaError_t
grouped_matmul_128x128_deep(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return Launch<128, 128, 2, 2, 64, 3, 2>::run(args, stream);
}
