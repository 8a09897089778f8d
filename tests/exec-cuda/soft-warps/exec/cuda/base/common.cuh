/* In place of exec/cuda/base/common.cuh: the part that attention's backward and the delta rule need. */
#pragma once

#include "exec/cuda/attention/mma.cuh"
#include "exec/kernels/args.h"
#include "exec/kernels/delta-args.h"

static inline size_t
ceil_divide(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

static inline bool
is_wide(const void *array)
{
    return (uintptr_t)array % 16 == 0;
}

static inline float
to_float(float x)
{
    return x;
}

static inline float
to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <typename T>
static inline T
from_float(float x)
{
    return T(x);
}

template <int WIDTH, typename T>
static inline T
sum_lanes(T value)
{
    for (int step = WIDTH / 2; step > 0; step /= 2)
        value += soft_shuffle(value, soft_lane() ^ step);
    return value;
}
