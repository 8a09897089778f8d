/*
 * Shared by the kernels: storages, packs of eight elements, sums over warps and blocks.
 *
 * Arrays are worked on in packs of RP_PACK elements. @wide says whether packs stand at multiples of
 * 16 bytes, and are then moved in 16-byte pieces, or element by element; it is uniform over a
 * launch and changes no result. Sums over threads are trees of fixed shape.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>
#include <type_traits>

#include "exec/cuda/base/launch.h"

#define RP_PACK 8

static __device__ __forceinline__ float
to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float
to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float
to_float(__half x)
{
    return __half2float(x);
}

template <typename T> __device__ __forceinline__ T from_float(float x);

template <>
__device__ __forceinline__ float
from_float<float>(float x)
{
    return x;
}

template <>
__device__ __forceinline__ __nv_bfloat16
from_float<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

template <>
__device__ __forceinline__ __half
from_float<__half>(float x)
{
    return __float2half_rn(x);
}

/* Eight elements in registers: 16 bytes, or 32 of fp32. */
template <typename T> struct alignas(16) Pack {
    T at[RP_PACK];
};

/* The @count (at most eight) elements at @source; zeros beyond them. Both ways meet in words: the compiler would take
 * elements out of these where they meet, and so wait for each load before the next one begins. */
template <typename T>
__device__ __forceinline__ Pack<T>
load_pack(const T *source, size_t count, bool wide)
{
    typedef typename std::conditional<sizeof(Pack<T>) % sizeof(uint4) == 0, uint4, uint2>::type Words;
    constexpr int N = sizeof(Pack<T>) / sizeof(Words);
    Pack<T> pack;
    Words words[N];

    if (wide && count >= RP_PACK) {
#pragma unroll
        for (int i = 0; i < N; i++)
            words[i] = reinterpret_cast<const Words *>(source)[i];
    } else {
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            pack.at[i] = (size_t)i < count ? source[i] : from_float<T>(0.0f);
        memcpy(words, &pack, sizeof pack);
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if constexpr (sizeof(Words) == sizeof(uint4))
            asm("" : "+r"(words[i].x), "+r"(words[i].y), "+r"(words[i].z), "+r"(words[i].w));
    memcpy(&pack, words, sizeof pack);
    return pack;
}

template <typename T>
__device__ __forceinline__ void
store_pack(T *target, const Pack<T> &pack, size_t count, bool wide)
{
    if (wide && count >= RP_PACK) {
        *reinterpret_cast<Pack<T> *>(target) = pack;
        return;
    }
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        if ((size_t)i < count)
            target[i] = pack.at[i];
}

/* Whether an array may be read in 16-byte pieces, from its beginning on. */
static inline bool
is_wide(const void *array)
{
    return (uintptr_t)array % 16 == 0;
}

/* Rows of @n elements one after another: packs of every row stand well only if rows do. */
static inline bool
rows_are_wide(const void *array, size_t n)
{
    return is_wide(array) && n % RP_PACK == 0;
}

static inline size_t
ceil_divide(size_t n, size_t by)
{
    return (n + by - 1) / by;
}

/* Threads for rows of @n: no more than there are packs, and at most @most, a multiple of 32. */
static inline unsigned
threads_for(size_t n, unsigned most)
{
    const size_t packs = ceil_divide(n > 0 ? n : 1, RP_PACK);
    const size_t turns = ceil_divide(packs, most); /* each of about as many packs */

    return (unsigned)(ceil_divide(packs, 32 * turns) * 32);
}

static inline size_t
round_to_64(size_t bytes)
{
    return ceil_divide(bytes, 64) * 64;
}

/* Sum over the @WIDTH neighbouring lanes of a group, the same in each; WIDTH a power of two. */
template <int WIDTH, typename T>
__device__ __forceinline__ T
sum_lanes(T value)
{
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

/*
 * Sum over a block of THREADS threads, the same in each. @shared: THREADS / 32 values of shared
 * memory, which must not be written again before the block has met once more.
 */
template <int THREADS, typename T>
__device__ __forceinline__ T
sum_block(T value, T *shared)
{
    T sum = 0;

    value = sum_lanes<32>(value);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < THREADS / 32; warp++)
        sum += shared[warp];
    return sum;
}

/* The larger of @most and the bits of a pack's magnitudes. */
template <typename T>
__device__ __forceinline__ unsigned
larger_of(unsigned most, const Pack<T> &pack)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        most = max(most, __float_as_uint(to_float(pack.at[i])) & 0x7fffffffu);
    return most;
}

/* largest[0] = max(largest[0], the lanes' values): all lanes of a warp call it. The present value
 * is read first, as few warps have more. No order changes the result. */
__device__ __forceinline__ void
note_largest(float *largest, unsigned most)
{
    unsigned *const cell = reinterpret_cast<unsigned *>(largest);

    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0 && most > *reinterpret_cast<volatile unsigned *>(cell))
        atomicMax(cell, most);
}

/* The same, called once by all threads of a block of whole warps: one read a block. Where every row is a block, a read
 * a warp of the one cell takes as long as the rows (RMSNorm of 2,048: 62 instead of 38 us). */
static __device__ __forceinline__ void
note_largest_of_block(float *largest, unsigned most)
{
    __shared__ unsigned of_warps[32];

    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0)
        of_warps[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x < 32)
        note_largest(largest, threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0);
}

/* exp, to 2 ulp for fp32; for 16-bit storages as fast as the hardware has it (2^-20 or better near
 * zero). */
template <typename T>
__device__ __forceinline__ float
exp_for(float x)
{
    return sizeof(T) == sizeof(float) ? expf(x) : __expf(x);
}

template <typename T>
__device__ __forceinline__ float
sigmoid(float a)
{
    const float divisor = 1.0f + exp_for<T>(-a);

    return sizeof(T) == sizeof(float) ? 1.0f / divisor : __fdividef(1.0f, divisor);
}

/* Has the L2 cache read the line of 128 bytes that holds @place. */
static __device__ __forceinline__ void
prefetch_line(const void *place)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(place)));
}

/* Lets Hopper start the next kernel, which waits before it reads. */
__device__ __forceinline__ void
let_next_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Hopper starts a kernel before the one in front of it has ended, which that allows; then it waits before it reads what others
 * have written. */
__device__ __forceinline__ void
wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

template <typename... Parameters>
static cudaError_t
launch_early(void (*kernel)(Parameters...), dim3 grid, unsigned threads, size_t shared_bytes,
             cudaStream_t stream, Parameters... parameters)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};
    int device, major = 0;

    if (cudaGetDevice(&device) == cudaSuccess)
        (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = major >= 9 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, parameters...);
}

/* Calls f(T()) with the type of @dtype. */
template <typename F>
static cudaError_t
for_dtype(RpDtype dtype, F f)
{
    switch (dtype) {
    case RP_DTYPE_FP32:
        return f(float());
    case RP_DTYPE_BF16:
        return f(__nv_bfloat16());
    case RP_DTYPE_FP16:
        return f(__half());
    default:
        return cudaErrorInvalidValue;
    }
}
