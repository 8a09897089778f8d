/**
 * From run-time number types to the loops of one variant, compiled for each as constants. Included
 * by each adamw-*.c behind its step_loop(), publish_loop() and sum_squares_loop(), and by nothing
 * else.
 */
#pragma once

#include "exec/optim/adamw-private.h"

G_ALWAYS_INLINE static inline void
step_from(const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n,
          RpNumber gradient_number)
{
    if (arrays->published == NULL)
        step_loop(factors, arrays, n, gradient_number, FALSE, RP_NUMBER_FP32);
    else if (arrays->published_number == RP_NUMBER_FP32)
        step_loop(factors, arrays, n, gradient_number, TRUE, RP_NUMBER_FP32);
    else if (arrays->published_number == RP_NUMBER_BF16)
        step_loop(factors, arrays, n, gradient_number, TRUE, RP_NUMBER_BF16);
    else
        step_loop(factors, arrays, n, gradient_number, TRUE, RP_NUMBER_FP16);
}

static void
step(const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    switch (arrays->gradient_number) {
    case RP_NUMBER_FP32:
        step_from(factors, arrays, n, RP_NUMBER_FP32);
        break;
    case RP_NUMBER_BF16:
        step_from(factors, arrays, n, RP_NUMBER_BF16);
        break;
    case RP_NUMBER_FP16:
        step_from(factors, arrays, n, RP_NUMBER_FP16);
        break;
    }
}

static void
publish(const float *weight, void *published, RpNumber number, gsize n)
{
    if (number == RP_NUMBER_FP32)
        publish_loop(weight, published, RP_NUMBER_FP32, n);
    else if (number == RP_NUMBER_BF16)
        publish_loop(weight, published, RP_NUMBER_BF16, n);
    else
        publish_loop(weight, published, RP_NUMBER_FP16, n);
}

static double
sum_squares(const void *values, RpNumber number, gsize n)
{
    if (number == RP_NUMBER_FP32)
        return sum_squares_loop(values, RP_NUMBER_FP32, n);
    if (number == RP_NUMBER_BF16)
        return sum_squares_loop(values, RP_NUMBER_BF16, n);
    return sum_squares_loop(values, RP_NUMBER_FP16, n);
}
