/**
 * From types at run time to the loops of one variant, compiled for each as constants. Included
 * by each adamw-*.c behind its step_loop(), publish_loop() and add_squares_loop(), and by nothing
 * else. Sums of two arrays and widening have the same loop in every variant: a compiler vectorises
 * it with the instructions of the variant.
 */
#pragma once

#include "exec/optim/adamw/adamw-private.h"

G_ALWAYS_INLINE static inline void
step_from(const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n,
          RpDtype gradient_dtype)
{
    if (arrays->published == NULL)
        step_loop(factors, arrays, n, gradient_dtype, FALSE, RP_DTYPE_FP32);
    else if (arrays->published_dtype == RP_DTYPE_FP32)
        step_loop(factors, arrays, n, gradient_dtype, TRUE, RP_DTYPE_FP32);
    else if (arrays->published_dtype == RP_DTYPE_BF16)
        step_loop(factors, arrays, n, gradient_dtype, TRUE, RP_DTYPE_BF16);
    else
        step_loop(factors, arrays, n, gradient_dtype, TRUE, RP_DTYPE_FP16);
}

static void
step(const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    switch (arrays->gradient_dtype) {
    case RP_DTYPE_FP32:
        step_from(factors, arrays, n, RP_DTYPE_FP32);
        break;
    case RP_DTYPE_BF16:
        step_from(factors, arrays, n, RP_DTYPE_BF16);
        break;
    case RP_DTYPE_FP16:
        step_from(factors, arrays, n, RP_DTYPE_FP16);
        break;
    }
}

static void
publish(const float *weight, void *published, RpDtype dtype, gsize n)
{
    if (dtype == RP_DTYPE_FP32)
        publish_loop(weight, published, RP_DTYPE_FP32, n);
    else if (dtype == RP_DTYPE_BF16)
        publish_loop(weight, published, RP_DTYPE_BF16, n);
    else
        publish_loop(weight, published, RP_DTYPE_FP16, n);
}

static void
add_squares(double lanes[RP_SUM_LANES], const void *values, RpDtype dtype, gsize n)
{
    if (dtype == RP_DTYPE_FP32)
        add_squares_loop(lanes, values, RP_DTYPE_FP32, n);
    else if (dtype == RP_DTYPE_BF16)
        add_squares_loop(lanes, values, RP_DTYPE_BF16, n);
    else
        add_squares_loop(lanes, values, RP_DTYPE_FP16, n);
}

static double
sum_squares(const void *values, RpDtype dtype, gsize n)
{
    double lanes[RP_SUM_LANES] = {0};

    add_squares(lanes, values, dtype, n);
    return rp_adamw_add_lanes(lanes);
}

G_ALWAYS_INLINE static inline void
add_loop(const void *restrict a, const void *restrict b, RpDtype dtype, float *restrict sum,
         gsize n)
{
    for (gsize i = 0; i < n; i++)
        sum[i] = rp_dtype_get(dtype, a, i) + rp_dtype_get(dtype, b, i);
}

static void
add(const void *a, const void *b, RpDtype dtype, float *sum, gsize n)
{
    if (dtype == RP_DTYPE_FP32)
        add_loop(a, b, RP_DTYPE_FP32, sum, n);
    else if (dtype == RP_DTYPE_BF16)
        add_loop(a, b, RP_DTYPE_BF16, sum, n);
    else
        add_loop(a, b, RP_DTYPE_FP16, sum, n);
}

G_ALWAYS_INLINE static inline void
accumulate_loop(float *restrict sum, const void *restrict values, RpDtype dtype, gsize n)
{
    for (gsize i = 0; i < n; i++)
        sum[i] += rp_dtype_get(dtype, values, i);
}

static void
accumulate(float *sum, const void *values, RpDtype dtype, gsize n)
{
    if (dtype == RP_DTYPE_FP32)
        accumulate_loop(sum, values, RP_DTYPE_FP32, n);
    else if (dtype == RP_DTYPE_BF16)
        accumulate_loop(sum, values, RP_DTYPE_BF16, n);
    else
        accumulate_loop(sum, values, RP_DTYPE_FP16, n);
}

G_ALWAYS_INLINE static inline void
widen_loop(const void *restrict values, RpDtype dtype, float *restrict wide, gsize n)
{
    for (gsize i = 0; i < n; i++)
        wide[i] = rp_dtype_get(dtype, values, i);
}

static void
widen_piece(const void *values, RpDtype dtype, float *wide, gsize n)
{
    if (dtype == RP_DTYPE_FP32)
        widen_loop(values, RP_DTYPE_FP32, wide, n);
    else if (dtype == RP_DTYPE_BF16)
        widen_loop(values, RP_DTYPE_BF16, wide, n);
    else
        widen_loop(values, RP_DTYPE_FP16, wide, n);
}

/* In pieces that stay in the nearest cache, and from there as weights are published: around the
 * caches where the variant can. */
static void
widen(const void *values, RpDtype dtype, float *wide, gsize n)
{
    const char *from = values;
    float piece[RP_WIDEN_PIECE];

    for (gsize i = 0; i < n; i += RP_WIDEN_PIECE) {
        const gsize length = MIN(n - i, RP_WIDEN_PIECE);
        widen_piece(from + i * rp_dtype_size(dtype), dtype, piece, length);
        publish(piece, wide + i, RP_DTYPE_FP32, length);
    }
}
