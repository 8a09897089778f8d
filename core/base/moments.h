/**
 * How the optimizer keeps a parameter between two steps: its own weight and the two moments of its
 * gradient, and so how many bytes it takes on the host.
 *
 *   moments    bytes a parameter                     rounding
 *   fp32       8                                     none
 *   bf16       4                                     stochastic
 *   int8       2, and 8 for each block of 256        to the nearest value of a map
 */
#pragma once

#include <stdint.h>

typedef enum { RP_MOMENTS_FP32, RP_MOMENTS_BF16, RP_MOMENTS_INT8, RP_N_MOMENTS } RpMoments;

/* int8: parameters of a layer, from its first on, that share a scale. */
#define RP_MOMENT_BLOCK 256u

/* Bytes of one moment of one parameter. */
static inline uint64_t
rp_moment_bytes(RpMoments moments)
{
    return moments == RP_MOMENTS_FP32 ? 4 : moments == RP_MOMENTS_BF16 ? 2 : 1;
}

/* What bytes of the first moment (@moment 0) or the second (1) are all filled with where it is zero. */
static inline int
rp_moment_zero(RpMoments moments, unsigned moment)
{
    return moments == RP_MOMENTS_INT8 && moment == 0 ? 127 : 0;
}

/* Scales of one moment of parameters @first to @first + @n of a layer: blocks that hold any. */
static inline uint64_t
rp_moment_scales(RpMoments moments, uint64_t first, uint64_t n)
{
    return moments != RP_MOMENTS_INT8 || n == 0
               ? 0
               : (first + n - 1) / RP_MOMENT_BLOCK - first / RP_MOMENT_BLOCK + 1;
}

/* Bytes of the optimizer's state of @n parameters of a layer: fp32 weights, and both moments. */
static inline uint64_t
rp_optimizer_state_bytes(RpMoments moments, uint64_t n)
{
    return n * (4 + 2 * rp_moment_bytes(moments)) + 2 * 4 * rp_moment_scales(moments, 0, n);
}

/* Bytes that a step of @n parameters reads and writes of it. */
static inline uint64_t
rp_optimizer_state_traffic(RpMoments moments, uint64_t n)
{
    return 2 * rp_optimizer_state_bytes(moments, n);
}
