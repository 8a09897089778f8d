/*
 * Shared by kernels that work element by element: their threads take packs of eight elements and stride over the array,
 * in blocks of 256.
 */
#pragma once

#include "exec/cuda/base/common.cuh"

#define THREADS 256
#define MOST_BLOCKS 4096

static unsigned
blocks_for(size_t n)
{
    const size_t blocks = ceil_divide(ceil_divide(n, RP_PACK), THREADS);

    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

/* For every pack of this thread: @first its first element, @count its elements. */
#define FOR_PACKS(first, count, n)                                                                 \
    for (size_t first = ((size_t)blockIdx.x * THREADS + threadIdx.x) * RP_PACK, count;             \
         first < (n) && (count = (n)-first, true); first += (size_t)gridDim.x * THREADS * RP_PACK)
