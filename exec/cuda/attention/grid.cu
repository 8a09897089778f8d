/* Lays out the blocks of attention's kernels, and requests their shared memory. */
#include <limits.h>

#include "exec/cuda/attention/private.h"
#include "exec/cuda/base/common.cuh"
#include "exec/cuda/runtime/split.h"

#define SWATH_BYTES ((size_t)16 << 20)

bool
attention_grid(const RpAttentionArgs *args, size_t heads, size_t rows, size_t unit_bytes,
               AttentionGrid *grid)
{
    const size_t units = args->sequences * heads;
    const size_t blocks = ceil_divide(args->max_length, rows);
    const size_t bytes = args->max_length * (unit_bytes > 0 ? unit_bytes : 1);
    size_t swath = bytes < SWATH_BYTES ? SWATH_BYTES / bytes : 1;

    /* whole groups of query heads: they read the same keys */
    swath = ceil_divide(swath, heads / args->kv_heads) * (heads / args->kv_heads);
    if (swath > units)
        swath = units;
    if (units > INT_MAX || blocks > (size_t)INT_MAX / units)
        return false;
    grid->heads = (unsigned)heads;
    grid->units = (unsigned)units;
    grid->blocks = (unsigned)blocks;
    grid->swath = (unsigned)swath;
    grid->window = args->window > 0 && args->window < INT_MAX ? (int)args->window : INT_MAX;
    grid->scale_log2 = args->scale * 1.4426950408889634f;
    return true;
}

cudaError_t
attention_allow_shared(const void *kernel, int bytes, std::atomic<uint64_t> *done)
{
    int device;
    cudaError_t status = rp_cuda_current(&device);
    uint64_t bit;

    if (status != cudaSuccess)
        return status;
    bit = device < 64 ? (uint64_t)1 << device : 0;
    if (done->load(std::memory_order_acquire) & bit)
        return cudaSuccess;
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status == cudaSuccess)
        done->fetch_or(bit, std::memory_order_release);
    return status;
}
