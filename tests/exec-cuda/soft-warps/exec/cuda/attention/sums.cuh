/* In place of exec/cuda/attention/sums.cuh: one block runs at a time, so that sums and counts are
 * plain memory. As on cards before sm_90, sums are read and written. */
#pragma once

#include <cuda_runtime.h>

#include "tests/exec-cuda/soft-warps.h"

#define ADDS_IN_PLACE false

static inline float4
load_sums(const float *source)
{
    return *(const float4 *)(const void *)source;
}

static inline void
store_sums(float *target, float4 four)
{
    *(float4 *)(void *)target = four;
}

static inline void
add_to_sums(float *target, float4 four)
{
    soft_fail("sums are added in place");
}

static inline void
order_writes()
{
}

static inline unsigned
load_count(const unsigned *count)
{
    return *count;
}

static inline unsigned
glance_at_count(const unsigned *count)
{
    return *count;
}

static inline void
add_to_count(unsigned *count)
{
    ++*count;
}

static inline void
pause_thread()
{
    soft_fail("a block waits for one of a higher number");
}
