/**
 * Moments in 16 and 8 bits, block by block, in plain loops. Included by each adamw-*.c, or by
 * moment-turns.h, and by nothing else.
 *
 * int8 is the dynamic map: seven decades, each with twice as many values as the one below, evenly spread over it, the
 * zero and the one; signed for the first moment. A block's largest is its one. So the quantized values of a decade lie
 * on a line, in both directions; the published map differs by roundings.
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

#include <float.h>

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

G_ALWAYS_INLINE static inline void
plain_widen_block(const guint16 *restrict packed, float *restrict values)
{
    for (gsize i = 0; i < BLOCK; i++)
        values[i] = rp_float_from_bits((uint32_t)packed[i] << 16);
}

/* ---- int8 ---- */

/* Values have numbers m, of which a decade has base to 2 base - 1: base = 2^k for first moments, quantized to 127 - m
 * and 127 + m, and 2^(k+1) for second ones, quantized to m - 1. The one has 128, or 256.
 *
 * m is the whole part of x * slope + offset, which @last bounds: up to the next border the decade's last
 * value is the nearest. x is above the border of its row; the last row is that of the one, and of all
 * below the first border. Back, by the exponent of m as a float: (m - begin) * step. */
typedef struct {
    float border[DECADES];
    float slope[DECADES];
    float offset[DECADES];
    float last[DECADES];
    float begin[DECADES];
    float step[DECADES];
} Decades;

/* Values of decade k, up to @at, with @n values; row k is at place k + @shift. */
#define EACH(of, n, shift)                                                                         \
    [(0 + (shift)) % DECADES] = of(1e-6, (n)*1.0), [(1 + (shift)) % DECADES] = of(1e-5, (n)*2.0),  \
                     [(2 + (shift)) % DECADES] = of(1e-4, (n)*4.0),                                \
                     [(3 + (shift)) % DECADES] = of(1e-3, (n)*8.0),                                \
                     [(4 + (shift)) % DECADES] = of(1e-2, (n)*16.0),                               \
                     [(5 + (shift)) % DECADES] = of(1e-1, (n)*32.0),                               \
                     [(6 + (shift)) % DECADES] = of(1.0, (n)*64.0), [(7 + (shift)) % DECADES]
/* The first value of a decade, and the last; the middle between the first and the last one below: nothing
 * is below a decade of one or two values. */
#define FIRST(at, n) ((at) * (0.1 + 0.45 / (n)))
#define LAST(at, n) ((at) * (1 - 0.45 / (n)))
#define BORDER(at, n) (float)(((at) < 2e-6 ? 0 : LAST((at) / 10, (n) / 2)) / 2 + FIRST(at, n) / 2)
#define SLOPE(at, n) (float)((n) / (0.9 * (at)))
#define OFFSET(at, n) (float)((n)*8 / 9.0)
#define END(at, n) (float)(2 * (n)-0.5)
#define BEGIN(at, n) (float)((n)*8 / 9.0 - 0.5)
#define STEP(at, n) (float)(0.9 * (at) / (n))

static const Decades signed_decades = {
    .border = {EACH(BORDER, 1, 0) = (float)(1 - 0.225 / 64)},
    .slope = {EACH(SLOPE, 1, 0) = 128.5f},
    .offset = {EACH(OFFSET, 1, 0) = 0.25f},
    .last = {EACH(END, 1, 0) = 128.5f},
    .begin = {EACH(BEGIN, 1, 7) = 0},
    .step = {EACH(STEP, 1, 7) = 1 / 128.0f},
};
static const Decades squares_decades = {
    .border = {EACH(BORDER, 2, 0) = (float)(1 - 0.225 / 128)},
    .slope = {EACH(SLOPE, 2, 0) = 254.5f},
    .offset = {EACH(OFFSET, 2, 0) = 2.25f},
    .last = {EACH(END, 2, 0) = 256.5f},
    .begin = {EACH(BEGIN, 2, 0) = 1},
    .step = {EACH(STEP, 2, 0) = 1 / 255.0f},
};

/* The number of the nearest value of @squares' map to @x, which is 0 to 1; less one of squares. */
G_ALWAYS_INLINE static inline gint32
nearest(gboolean squares, float x)
{
    const Decades *map = squares ? &squares_decades : &signed_decades;
    const float less = squares ? 1 : 0;
    float slope = map->slope[DECADES - 1], offset = map->offset[DECADES - 1];
    float last = map->last[DECADES - 1];

    for (gint32 k = 0; k < DECADES; k++) {
        const gboolean above = x > map->border[k];

        slope = above ? map->slope[k] : slope;
        offset = above ? map->offset[k] : offset;
        last = above ? map->last[k] : last;
    }
    const float place = x * slope + (offset - less), end = last - less;

    return (gint32)(place < end ? place : end);
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

/* Whether blocks are divided by their largest one by one: the inverse of one that is subnormal is none. */
G_ALWAYS_INLINE static inline gboolean
is_unusual(float most)
{
    return !(most >= FLT_MIN && most <= FLT_MAX) && most != 0;
}

G_ALWAYS_INLINE static inline void
plain_encode_block(gboolean squares, const float *restrict values, guint8 *restrict quantized,
                   float *scale)
{
    const float most = largest(values), inverse = 1 / (most > 0 ? most : 1);
    const gboolean unusual = is_unusual(most);

    *scale = most;
    for (gsize i = 0; i < BLOCK; i++) {
        const float magnitude = fabsf(values[i]);
        const float x = unusual ? magnitude / most : magnitude * inverse;
        const gint32 m = nearest(squares, x < 1 ? x : 1); /* also of a NaN */

        if (squares) {
            quantized[i] = (guint8)(x != 0 ? m : 0);
        } else {
            const gint32 below = m < 127 ? m : 127;

            quantized[i] = (guint8)(values[i] < 0 ? 127 - below : 127 + m);
        }
    }
}

G_ALWAYS_INLINE static inline void
plain_decode_block(gboolean squares, const guint8 *restrict quantized, float scale,
                   float *restrict values)
{
    const Decades *map = squares ? &squares_decades : &signed_decades;
    float step[DECADES];

    for (guint k = 0; k < DECADES; k++)
        step[k] = map->step[k] * scale;
    for (gsize i = 0; i < BLOCK; i++) {
        const gint32 d = quantized[i] + (squares ? 1 : -127);
        const float m = (float)ABS(d);
        const uint32_t row = rp_float_bits(m) >> 23 & (DECADES - 1);
        const float magnitude = (m - map->begin[row]) * step[row];
        const float value = d < 0 ? -magnitude : magnitude;

        values[i] = d != 0 ? value : 0;
    }
}
