/**
 * From types at run time to the loops of one variant, compiled for each as constants. Included by each
 * adamw-*.c behind its step_loop(), publish_loop(), add_squares_loop(), and the *_block() of moment-plain.h
 * or moment-turns.h, and by nothing else. Sums of two arrays and widening have the same loop in every
 * variant: a compiler vectorises it with the instructions of the variant.
 */
#pragma once

#include "exec/optim/adamw/adamw-private.h"

/* @loop with a constant in place of @dtype. */
#define BY_DTYPE(dtype, loop, ...)                                                                 \
    ((dtype) == RP_DTYPE_FP32   ? loop(RP_DTYPE_FP32, __VA_ARGS__)                                 \
     : (dtype) == RP_DTYPE_BF16 ? loop(RP_DTYPE_BF16, __VA_ARGS__)                                 \
                                : loop(RP_DTYPE_FP16, __VA_ARGS__))

G_ALWAYS_INLINE static inline void
step_from(RpDtype gradient_dtype, RpUpdateRule rule, const RpAdamwFactors *factors,
          const RpAdamwArrays *arrays, gsize n)
{
    if (arrays->published == NULL)
        step_loop(RP_DTYPE_FP32, FALSE, gradient_dtype, rule, factors, arrays, n);
    else
        BY_DTYPE(arrays->published_dtype, step_loop, TRUE, gradient_dtype, rule, factors, arrays,
                 n);
}

static void
step(const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    if (factors->rule == RP_UPDATE_LION)
        BY_DTYPE(arrays->gradient_dtype, step_from, RP_UPDATE_LION, factors, arrays, n);
    else
        BY_DTYPE(arrays->gradient_dtype, step_from, RP_UPDATE_ADAMW, factors, arrays, n);
}

static void
publish(const float *weight, void *published, RpDtype dtype, gsize n)
{
    BY_DTYPE(dtype, publish_loop, weight, published, n);
}

static void
add_squares(double lanes[RP_SUM_LANES], const void *values, RpDtype dtype, gsize n)
{
    BY_DTYPE(dtype, add_squares_loop, lanes, values, n);
}

G_ALWAYS_INLINE static inline void
add_loop(RpDtype dtype, const void *restrict a, const void *restrict b, float *restrict sum,
         gsize n)
{
    for (gsize i = 0; i < n; i++)
        sum[i] = rp_dtype_get(dtype, a, i) + rp_dtype_get(dtype, b, i);
}

static void
add(const void *a, const void *b, RpDtype dtype, float *sum, gsize n)
{
    BY_DTYPE(dtype, add_loop, a, b, sum, n);
}

G_ALWAYS_INLINE static inline void
accumulate_loop(RpDtype dtype, float *restrict sum, const void *restrict values, gsize n)
{
    for (gsize i = 0; i < n; i++)
        sum[i] += rp_dtype_get(dtype, values, i);
}

static void
accumulate(float *sum, const void *values, RpDtype dtype, gsize n)
{
    BY_DTYPE(dtype, accumulate_loop, sum, values, n);
}

G_ALWAYS_INLINE static inline void
widen_loop(RpDtype dtype, const void *restrict values, float *restrict wide, gsize n)
{
    for (gsize i = 0; i < n; i++)
        wide[i] = rp_dtype_get(dtype, values, i);
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
        BY_DTYPE(dtype, widen_loop, from + i * rp_dtype_size(dtype), piece, length);
        publish(piece, wide + i, RP_DTYPE_FP32, length);
    }
}

/* ---- moments in 16 and 8 bits, of any length ---- */

static void
unpack_block(RpMoments moments, gboolean squares, const void *packed, const float *scale,
             float *values)
{
    if (moments == RP_MOMENTS_BF16)
        widen_block(packed, values);
    else if (squares)
        decode_block(TRUE, packed, *scale, values);
    else
        decode_block(FALSE, packed, *scale, values);
}

/* @n blocks. */
static void
pack_blocks(RpMoments moments, const RpDraw *draw, guint64 block, const float *values, void *packed,
            float *scales, gsize n)
{
    guint8 *quantized = packed;

    if (moments == RP_MOMENTS_BF16)
        round_blocks(draw, block, values, packed, n);
    else if (draw->moment == 0)
        for (gsize i = 0; i < n; i++)
            encode_block(FALSE, values + i * BLOCK, quantized + i * BLOCK, scales + i);
    else
        for (gsize i = 0; i < n; i++)
            encode_block(TRUE, values + i * BLOCK, quantized + i * BLOCK, scales + i);
}

/* A last block that is shorter is one with zeros behind. */
static void
unpack(RpMoments moments, gboolean squares, const void *packed, const float *scales, float *values,
       gsize n)
{
    const gsize bytes = rp_moment_bytes(moments), a_scale = scales != NULL;
    const gsize whole = n - n % BLOCK;
    const guint8 *from = packed;
    guint16 rest[BLOCK];
    float wide[BLOCK];

    for (gsize i = 0; i < whole; i += BLOCK)
        unpack_block(moments, squares, from + i * bytes, scales + i / BLOCK * a_scale, values + i);
    if (whole == n)
        return;
    memset(rest, 0, sizeof rest);
    memcpy(rest, from + whole * bytes, (n - whole) * bytes);
    unpack_block(moments, squares, rest, scales + whole / BLOCK * a_scale, wide);
    memcpy(values + whole, wide, (n - whole) * sizeof(float));
}

static void
pack(RpMoments moments, const RpDraw *draw, guint64 block, const float *values, void *packed,
     float *scales, gsize n)
{
    const gsize bytes = rp_moment_bytes(moments), n_whole = n / BLOCK, whole = n_whole * BLOCK;
    guint8 *to = packed;
    guint16 rest[BLOCK];
    float wide[BLOCK];

    pack_blocks(moments, draw, block, values, to, scales, n_whole);
    if (whole == n)
        return;
    memset(wide, 0, sizeof wide);
    memcpy(wide, values + whole, (n - whole) * sizeof(float));
    pack_blocks(moments, draw, block + n_whole, wide, rest,
                scales != NULL ? scales + n_whole : NULL, 1);
    memcpy(to + whole * bytes, rest, (n - whole) * bytes);
}

#define RP_ADAMW_VARIANT(variant, packed)                                                          \
    const RpAdamwOps rp_adamw_##variant = {.name = #variant,                                       \
                                           .supported = supported,                                 \
                                           .step = step,                                           \
                                           .publish = publish,                                     \
                                           .add_squares = add_squares,                             \
                                           .add = add,                                             \
                                           .accumulate = accumulate,                               \
                                           .widen = widen,                                         \
                                           .unpack = unpack,                                       \
                                           .pack = pack,                                           \
                                           .step_packed = packed}
