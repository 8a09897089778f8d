/**
 * Moments in 16 and 8 bits, block by block, in plain loops. Included by each adamw-*.c, or by
 * moment-turns.h, and by nothing else.
 *
 * int8 is the dynamic map: seven decades, each with twice as many values as the one below, evenly
 * spread over it, the zero and the one; signed for the first moment. A block's largest is its one.
 *
 *   first moment     codes   0..126 -means   127: 0   128..254 means   255: 1
 *   second moment    codes   0: 0   1..254 means   255: 1
 *
 * A second moment above zero stays above zero: a gradient that once was would otherwise be divided by
 * epsilon alone.
 *
 * Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, section 2; create_dynamic_map()
 * of bitsandbytes. bf16: Zamirai et al., Revisiting BFloat16 Training, section 4
 */
#pragma once

#include "exec/kernels/philox.h"
#include "exec/optim/adamw/adamw-private.h"

#define BLOCK ((gsize)RP_MOMENT_BLOCK)
#define WORDS 4u
#define LANES (RP_MOMENT_BLOCK / (2 * WORDS)) /* a word has the bits of two values */
#define DECADES 8                             /* the last is the one alone */

/* ---- bf16 ---- */

/* The counter of the first lane of block @block; lanes count on in its first word. */
G_ALWAYS_INLINE static inline uint32_t
draw_counter0(guint64 block)
{
    return (uint32_t)block * LANES;
}

G_ALWAYS_INLINE static inline uint32_t
draw_counter1(const RpDraw *draw, guint64 block)
{
    return (uint32_t)(block >> 27) ^ (uint32_t)(draw->step >> 32) << 16;
}

G_ALWAYS_INLINE static inline uint32_t
draw_counter3(const RpDraw *draw)
{
    return draw->layer * 2 + draw->moment; /* a model has not 2^30 layers */
}

/* 16 random bits for each value of block @block. */
G_ALWAYS_INLINE static inline void
draw_block(const RpDraw *draw, guint64 block, guint16 *restrict bits)
{
    uint32_t c[WORDS][LANES];

    for (guint32 lane = 0; lane < LANES; lane++) {
        c[0][lane] = draw_counter0(block) + lane;
        c[1][lane] = draw_counter1(draw, block);
        c[2][lane] = (uint32_t)draw->step;
        c[3][lane] = draw_counter3(draw);
    }
    for (uint32_t round = 0; round < RP_PHILOX_ROUNDS; round++)
        for (guint32 lane = 0; lane < LANES; lane++)
            rp_philox_round(&c[0][lane], &c[1][lane], &c[2][lane], &c[3][lane],
                            (uint32_t)draw->seed + round * RP_PHILOX_W0,
                            (uint32_t)(draw->seed >> 32) + round * RP_PHILOX_W1);
    for (guint32 word = 0; word < WORDS; word++)
        for (guint32 lane = 0; lane < LANES; lane++) {
            bits[2 * word * LANES + lane] = (guint16)c[word][lane];
            bits[(2 * word + 1) * LANES + lane] = (guint16)(c[word][lane] >> 16);
        }
}

/* Up with the probability of the part that is cut off; a NaN stays one. */
G_ALWAYS_INLINE static inline void
plain_round_block(const RpDraw *draw, guint64 block, const float *restrict values,
                  guint16 *restrict rounded)
{
    guint16 random[BLOCK];

    draw_block(draw, block, random);
    for (gsize i = 0; i < BLOCK; i++) {
        const uint32_t bits = rp_float_bits(values[i]);
        const uint32_t up = (bits + random[i]) >> 16;
        const uint32_t nan = bits >> 16 | 0x40;

        rounded[i] = (guint16)((bits & 0x7fffffff) > 0x7f800000 ? nan : up);
    }
}

/* ---- int8 ---- */

/* Of decade k: where it begins, its values to a unit, the middle between its first value and the last
 * one of the decade below, and the
 * number of the first. */
typedef struct {
    float begin[DECADES];
    float per_unit[DECADES];
    float border[DECADES];
    gint32 base[DECADES];
} Decades;

/* @n values in a decade from @at up: the first, and the last. */
#define FIRST(at, n) ((at) * (0.1 + 0.45 / (n)))
#define LAST(at, n) ((at) * (1 - 0.45 / (n)))
#define BORDER(at, n) (float)((LAST((at) / 10, (n) / 2) + FIRST(at, n)) / 2)
#define PER_UNIT(at, n) (float)((n) / (0.9 * (at)))
#define DECADES_OF(n)                                                                              \
    {                                                                                              \
        .begin = {1e-7f, 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f},                          \
        .per_unit = {PER_UNIT(1e-6, (n)*1.0),  PER_UNIT(1e-5, (n)*2.0),                            \
                     PER_UNIT(1e-4, (n)*4.0),  PER_UNIT(1e-3, (n)*8.0),                            \
                     PER_UNIT(1e-2, (n)*16.0), PER_UNIT(1e-1, (n)*32.0),                           \
                     PER_UNIT(1.0, (n)*64.0),  0.0f},                                              \
        .border = {(float)(FIRST(1e-6, (n)*1.0) / 2),                                              \
                   BORDER(1e-5, (n)*2.0),                                                          \
                   BORDER(1e-4, (n)*4.0),                                                          \
                   BORDER(1e-3, (n)*8.0),                                                          \
                   BORDER(1e-2, (n)*16.0),                                                         \
                   BORDER(1e-1, (n)*32.0),                                                         \
                   BORDER(1.0, (n)*64.0),                                                          \
                   (float)(1 - 0.225 / (64 * (n)))},                                               \
        .base = {(n), (n)*2, (n)*4, (n)*8, (n)*16, (n)*32, (n)*64, (n)*128},                       \
    }

static const Decades signed_decades = DECADES_OF(1), squares_decades = DECADES_OF(2);

/* The nearest value of @squares' map to |@x| <= 1: values are numbered from the first of a decade on,
 * a power of two; 0: zero, and one behind the last: one. */
G_ALWAYS_INLINE static inline gint32
nearest(gboolean squares, float x)
{
    const Decades *map = squares ? &squares_decades : &signed_decades;
    float begin = map->begin[0], per_unit = map->per_unit[0];
    gint32 base = map->base[0];

    for (gint32 k = 1; k < DECADES; k++) {
        const gboolean above = x > map->border[k];

        begin = above ? map->begin[k] : begin;
        per_unit = above ? map->per_unit[k] : per_unit;
        base = above ? map->base[k] : base;
    }
    const float place = (x - begin) * per_unit;
    const float low = place > 0 ? place : 0;
    const float last = (float)base - 0.5f;
    const gint32 inside = base + (gint32)(low < last ? low : last);

    return x > map->border[0] ? inside : 0;
}

/* The largest magnitude of a block. */
G_ALWAYS_INLINE static inline float
largest(const float *restrict values)
{
    uint32_t most = 0;

    for (gsize i = 0; i < BLOCK; i++) {
        const uint32_t bits = rp_float_bits(values[i]) & 0x7fffffff;

        most = bits > most ? bits : most;
    }
    return rp_float_from_bits(most);
}

G_ALWAYS_INLINE static inline void
plain_encode_block(gboolean squares, const float *restrict values, guint8 *restrict codes,
                   float *scale)
{
    const float most = largest(values);
    const float divisor = most > 0 ? most : 1;

    *scale = most;
    for (gsize i = 0; i < BLOCK; i++) {
        const float magnitude = fabsf(values[i]) / divisor;
        const float x = magnitude < 1 ? magnitude : 1; /* also of a NaN */
        const gint32 m = nearest(squares, x);

        if (squares) {
            const gint32 above = m > 2 ? m - 1 : 1;

            codes[i] = (guint8)(x > 0 ? above : 0);
        } else {
            const gint32 below = m < 127 ? m : 127;

            codes[i] = (guint8)(values[i] < 0 ? 127 - below : 127 + m);
        }
    }
}

G_ALWAYS_INLINE static inline void
plain_decode_block(const float *restrict map, const guint8 *restrict codes, float scale,
                   float *restrict values)
{
    for (gsize i = 0; i < BLOCK; i++)
        values[i] = map[codes[i]] * scale;
}
