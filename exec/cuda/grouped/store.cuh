/* Pairs of neighbouring elements, at multiples of a pair. */
#pragma once

#include "exec/cuda/base/common.cuh"

static __device__ __forceinline__ float2
load_pair(const float *source)
{
    return *(const float2 *)source;
}

static __device__ __forceinline__ float2
load_pair(const __nv_bfloat16 *source)
{
    return __bfloat1622float2(*(const __nv_bfloat162 *)source);
}

static __device__ __forceinline__ float2
load_pair(const __half *source)
{
    return __half22float2(*(const __half2 *)source);
}

static __device__ __forceinline__ void
store_pair(float *target, float x, float y)
{
    *(float2 *)target = make_float2(x, y);
}

static __device__ __forceinline__ void
store_pair(__nv_bfloat16 *target, float x, float y)
{
    *(__nv_bfloat162 *)target = __floats2bfloat162_rn(x, y);
}

static __device__ __forceinline__ void
store_pair(__half *target, float x, float y)
{
    *(__half2 *)target = __floats2half2_rn(x, y);
}

/* The bits of a pair, rounded. */
static __device__ __forceinline__ uint32_t
pack_pair(__nv_bfloat16, float x, float y)
{
    const __nv_bfloat162_raw pair = __floats2bfloat162_rn(x, y);

    return (uint32_t)pair.x | (uint32_t)pair.y << 16;
}

static __device__ __forceinline__ uint32_t
pack_pair(__half, float x, float y)
{
    const __half2_raw pair = __floats2half2_rn(x, y);

    return (uint32_t)pair.x | (uint32_t)pair.y << 16;
}
