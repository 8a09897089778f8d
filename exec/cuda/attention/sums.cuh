/*
 * Sums and counts in global memory that blocks of one launch share: in L2, where all see them
 * (PTX ISA, memory consistency model). Sums are handled by fours, at multiples of 16 bytes.
 */
#pragma once

#include <cuda_runtime.h>

/* Reads from L2, as other blocks' sums are there and not in this multiprocessor's L1. */
static __device__ __forceinline__ float4
load_sums(const float *source)
{
    return __ldcg((const float4 *)(const void *)source);
}

static __device__ __forceinline__ void
store_sums(float *target, float4 four)
{
    __stcg((float4 *)(void *)target, four);
}

/* Whether add_to_sums() is there: since sm_90. */
#if __CUDA_ARCH__ >= 900
#define ADDS_IN_PLACE true
#else
#define ADDS_IN_PLACE false
#endif

/* target += four, without reading it. */
static __device__ __forceinline__ void
add_to_sums(float *target, float4 four)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(target)),
                 "f"(four.x), "f"(four.y), "f"(four.z), "f"(four.w)
                 : "memory");
#endif
}

/* Orders this thread's writes: earlier ones are seen before later ones. */
static __device__ __forceinline__ void
order_writes()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* A count that other blocks add to; nothing after it happens before it. */
static __device__ __forceinline__ unsigned
load_count(const unsigned *count)
{
    unsigned n;

    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(n)
                 : "l"(__cvta_generic_to_global(count))
                 : "memory");
    return n;
}

/* The same without that promise, and without waiting until @return is used. */
static __device__ __forceinline__ unsigned
glance_at_count(const unsigned *count)
{
    unsigned n;

    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                 : "=r"(n)
                 : "l"(__cvta_generic_to_global(count))
                 : "memory");
    return n;
}

/* Adds without waiting for the result. */
static __device__ __forceinline__ void
add_to_count(unsigned *count)
{
    asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(count))
                 : "memory");
}

static __device__ __forceinline__ void
pause_thread()
{
    __nanosleep(32);
}
