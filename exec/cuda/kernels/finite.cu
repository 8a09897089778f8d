/*
 * find:   left[0] = max(left[0], rows - r), r the first row with a value that is infinite or NaN: if
 *         all bits of its exponent are set. Integers, a maximum: any order gives the same. Launch:
 *         blocks of 256, at most 1024 of them, each thread every (blocks x 256)-th piece of 16
 *         bytes; a block writes once, if it has found any.
 * break:  sum[0] = NaN if loss[0] is infinite or NaN. One thread.
 * fetch:  to[i] = from[i]. Launch: blocks of 256, at most 16 of them: PCIe is the limit.
 * The first and the last reach pinned memory of the host by its own address. Oracle:
 * exec/host/elements.c
 */
#include "exec/cuda/base/launch.h"

#define THREADS 256
#define MAX_FIND_BLOCKS 1024
#define MAX_FETCH_BLOCKS 16

/* Whether one of the two 16-bit (the one 32-bit) values of a word is broken. */
template <typename Value>
static __device__ __forceinline__ bool
is_broken(uint32_t word, uint32_t infinity);

template <>
__device__ __forceinline__ bool
is_broken<uint16_t>(uint32_t word, uint32_t infinity)
{
    return (word & infinity) == infinity || ((word >> 16) & infinity) == infinity;
}

template <>
__device__ __forceinline__ bool
is_broken<uint32_t>(uint32_t word, uint32_t infinity)
{
    return (word & infinity) == infinity;
}

/* @n_pieces: pieces of 16 bytes, from the beginning on; the rest is read value by value */
template <typename Value>
static __global__ void
__launch_bounds__(THREADS)
find_broken(const Value *x, size_t n, size_t columns, size_t n_pieces, uint32_t infinity,
            uint32_t *left)
{
    __shared__ uint32_t most;
    const size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const size_t stride = (size_t)gridDim.x * THREADS;
    size_t at = n; /* the piece with this thread's first broken value */

    for (size_t i = first; i < n_pieces; i += stride) {
        const uint4 piece = reinterpret_cast<const uint4 *>(x)[i];
        const bool broken =
            is_broken<Value>(piece.x, infinity) || is_broken<Value>(piece.y, infinity) ||
            is_broken<Value>(piece.z, infinity) || is_broken<Value>(piece.w, infinity);

        if (broken && at == n)
            at = i * (16 / sizeof(Value));
    }
    for (size_t i = n_pieces * (16 / sizeof(Value)) + first; i < n; i += stride)
        if (is_broken<Value>(x[i], infinity) && at == n)
            at = i;
    if (!__syncthreads_or(at < n))
        return;
    if (threadIdx.x == 0)
        most = 0;
    __syncthreads();
    if (at < n) {
        while (!is_broken<Value>(x[at], infinity))
            at++;
        atomicMax(&most, (uint32_t)((n - 1) / columns - at / columns + 1));
    }
    __syncthreads();
    if (threadIdx.x == 0)
        atomicMax(left, most);
}

static __global__ void
break_sum(const double *loss, float *sum)
{
    if (!isfinite(*loss))
        *sum = __int_as_float(0x7fc00000);
}

static __global__ void
__launch_bounds__(THREADS)
fetch(const volatile int32_t *from, int32_t *to, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS)
        to[i] = from[i];
}

static unsigned
count_blocks(size_t n, size_t most)
{
    const size_t blocks = (n + THREADS - 1) / THREADS;

    return (unsigned)(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

template <typename Value>
static cudaError_t
launch_find(const RpFindBrokenArgs *args, uint32_t infinity, cudaStream_t stream)
{
    const size_t n = args->n;
    const size_t n_pieces = (uintptr_t)args->x % 16 == 0 ? n / (16 / sizeof(Value)) : 0;

    find_broken<Value><<<count_blocks(n_pieces > 0 ? n_pieces : n, MAX_FIND_BLOCKS), THREADS, 0,
                   stream>>>((const Value *)args->x, n, args->columns, n_pieces, infinity, args->left);
    return cudaGetLastError();
}

cudaError_t
rp_cuda_find_broken(const RpFindBrokenArgs *args, cudaStream_t stream)
{
    switch (args->dtype) {
    case RP_DTYPE_FP32:
        return launch_find<uint32_t>(args, 0x7f800000, stream);
    case RP_DTYPE_BF16:
        return launch_find<uint16_t>(args, 0x7f80, stream);
    case RP_DTYPE_FP16:
        return launch_find<uint16_t>(args, 0x7c00, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

cudaError_t
rp_cuda_break_sum(const RpBreakSumArgs *args, cudaStream_t stream)
{
    break_sum<<<1, 1, 0, stream>>>(args->loss, args->sum);
    return cudaGetLastError();
}

cudaError_t
rp_cuda_fetch(const RpFetchArgs *args, cudaStream_t stream)
{
    fetch<<<count_blocks(args->n, MAX_FETCH_BLOCKS), THREADS, 0, stream>>>(args->from, args->to,
                                                                           args->n);
    return cudaGetLastError();
}
