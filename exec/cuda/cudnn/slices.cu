/*
 * The gradient of a kv head that was computed in slices of its query heads:
 *
 *   y[t,i] = sum_s x[s,t,i]
 *
 * x: [slices,T,n]; y: T rows of n, @stride apart. =. Sums fp32, in order of s. A thread has eight
 * neighbouring elements. Oracle: that of attention's backward, exec/host/attention.c.
 */
#include <limits.h>

#include "exec/cuda/cudnn/slices.h"
#include "exec/cuda/base/common.cuh"

#define THREADS 256

template <typename T>
__global__ void
add_slices(const RpCudaAttentionSlices args)
{
    const size_t pack = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t packs = args.n / RP_PACK; /* packs of a row */
    const size_t token = pack / packs, slice = args.tokens * args.n;
    const T *x = (const T *)args.x + pack * RP_PACK;
    T *y = (T *)args.y + token * args.stride + pack % packs * RP_PACK;
    float sums[RP_PACK] = {0};
    Pack<T> sum;

    if (token >= args.tokens)
        return;
    for (size_t s = 0; s < args.slices; s++) {
        const Pack<T> terms = load_pack(x + s * slice, RP_PACK, true);

#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            sums[i] += to_float(terms.at[i]);
    }
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        sum.at[i] = from_float<T>(sums[i]);
    store_pack(y, sum, RP_PACK, true);
}

cudaError_t
rp_cuda_attention_add_slices(const RpCudaAttentionSlices *args, cudaStream_t stream)
{
    const size_t blocks = ceil_divide(args->tokens * (args->n / RP_PACK), THREADS);

    if (blocks == 0)
        return cudaSuccess;
    if (blocks > INT_MAX || args->n % RP_PACK != 0 || args->stride % RP_PACK != 0 ||
        !is_wide(args->x) || !is_wide(args->y))
        return cudaErrorInvalidValue;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        add_slices<T><<<(unsigned)blocks, THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}
