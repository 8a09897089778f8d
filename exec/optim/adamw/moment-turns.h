/**
 * Moments in 16 and 8 bits with vectors, bit for bit as the plain loops round them. Included by an
 * adamw-*.c behind adamw-turns.h and the functions of vectors below it, and by nothing else.
 *
 * Philox multiplies 32 bits by 32, of which vectors have half as many as they have words: a counter
 * takes 64 bits of a vector, and the half that a product leaves above it is never looked at.
 *
 *   even   |c0 of lane 0|  -  |c0 of lane 2|  -  |      interleaved   |lane 0|lane 1|lane 2|lane 3|
 *   odd    |c0 of lane 1|  -  |c0 of lane 3|  -  |
 *
 * The decade of a number is guessed by its logarithm, drawn as a straight line between powers of two. It
 * is that, or the next one: a comparison with one border decides.
 *
 *   decade     k-1  |  k                  |  k+1                |
 *   guess      k-1             |  k                  |  k+1
 */
#pragma once

#include "exec/optim/adamw/moment-plain.h"

/* The low halves count. */
typedef struct {
    Pairs c0, c1, c2, c3;
} Counters;

/* The largest magnitude of a block, as bits: above those of infinity if one is a NaN. */
G_ALWAYS_INLINE static inline uint32_t
largest_bits(const float *values)
{
    const Bits magnitude = (Bits){0} + 0x7fffffff;
    Bits most = {0};
    uint32_t all = 0;

    for (gsize i = 0; i < BLOCK; i += WIDTH)
        most = greatest(most, (Bits)load(RP_DTYPE_FP32, values, i) & magnitude);
    for (gsize i = 0; i < WIDTH; i++)
        all = MAX(all, (uint32_t)most[i]);
    return all;
}

/* ---- bf16 ---- */

/* rp_philox_round(). */
G_ALWAYS_INLINE static inline void
turn(Counters *c, const Pairs key[2])
{
    const Pairs product0 = multiply(c->c0, (Pairs){0} + 0xd2511f53u);
    const Pairs product1 = multiply(c->c2, (Pairs){0} + 0xcd9e8d57u);

    c->c0 = (product1 >> 32) ^ c->c1 ^ key[0];
    c->c1 = product1;
    c->c2 = (product0 >> 32) ^ c->c3 ^ key[1];
    c->c3 = product0;
}

/* Values of two runs, with the two halves of @random. */
G_ALWAYS_INLINE static inline void
round_runs(const float *values, Words random, guint16 *rounded)
{
    const Words low = (Words)load(RP_DTYPE_FP32, values, 0);
    const Words high = (Words)load(RP_DTYPE_FP32, values, LANES);

    keep_halves(rounded, rounded + LANES, (Bits)((low + (random & 0xffff)) >> 16),
                (Bits)((high + (random >> 16)) >> 16));
}

/* A block without NaNs. Counters of @TOGETHER * WIDTH lanes at a time: a product takes long, and others
 * begin meanwhile. */
#define TOGETHER (sizeof(Floats) / 32) /* vectors of 64 bytes have twice as many registers */

G_ALWAYS_INLINE static inline void
round_block(const Counters *first, Pairs keys[RP_PHILOX_ROUNDS][2], const float *values,
            guint16 *rounded)
{
    for (guint32 lane = 0; lane < LANES; lane += TOGETHER * WIDTH) {
        Counters even[TOGETHER], odd[TOGETHER];

        for (guint i = 0; i < TOGETHER; i++) {
            even[i] = odd[i] = *first;
            even[i].c0 = (Pairs)((Words)first->c0 + (lane + i * (guint32)WIDTH));
            odd[i].c0 = even[i].c0 >> 32;
        }
        for (guint round = 0; round < RP_PHILOX_ROUNDS; round++)
            for (guint i = 0; i < TOGETHER; i++) {
                turn(&even[i], keys[round]);
                turn(&odd[i], keys[round]);
            }
        for (guint i = 0; i < TOGETHER; i++) {
            const float *from = values + lane + i * WIDTH;
            guint16 *to = rounded + lane + i * WIDTH;

            round_runs(from, interleave(even[i].c0, odd[i].c0), to);
            round_runs(from + 2 * LANES, interleave(even[i].c1, odd[i].c1), to + 2 * LANES);
            round_runs(from + 4 * LANES, interleave(even[i].c2, odd[i].c2), to + 4 * LANES);
            round_runs(from + 6 * LANES, interleave(even[i].c3, odd[i].c3), to + 6 * LANES);
        }
    }
}

static G_GNUC_NO_INLINE void
round_nans(const RpDraw *draw, guint64 block, const float *values, guint16 *rounded)
{
    plain_round_block(draw, block, values, rounded);
}

static void
round_blocks(const RpDraw *draw, guint64 block, const float *values, guint16 *rounded, gsize n)
{
    Pairs keys[RP_PHILOX_ROUNDS][2];
    Words lanes;

    for (guint32 i = 0; i < WIDTH; i++)
        lanes[i] = i;
    for (uint32_t round = 0; round < RP_PHILOX_ROUNDS; round++) {
        keys[round][0] = (Pairs){0} + ((uint32_t)draw->seed + round * RP_PHILOX_W0);
        keys[round][1] = (Pairs){0} + ((uint32_t)(draw->seed >> 32) + round * RP_PHILOX_W1);
    }
    for (gsize i = 0; i < n; i++, block++) {
        const Counters first = {
            (Pairs)(lanes + draw_counter0(block)), (Pairs){0} + draw_counter1(draw, block),
            (Pairs){0} + (uint32_t)draw->step, (Pairs){0} + draw_counter3(draw)};

        if (largest_bits(values + i * BLOCK) > 0x7f800000)
            round_nans(draw, block, values + i * BLOCK, rounded + i * BLOCK);
        else
            round_block(&first, keys, values + i * BLOCK, rounded + i * BLOCK);
    }
}

/* ---- int8 ---- */

typedef struct {
    Floats begin, per_unit, next, last, base;
    float least;
} Tables;

/* Guesses to the 2^16 steps of upper halves of floats: one for each 3.3 powers of two, as a decade has.
 * Guess 32 + k begins at 6.6e-7 * 10^k; tables have it at k, and guess 31 at 7, as that of one. */
#define GUESSES 154

/* nearest(), by tables. */
G_ALWAYS_INLINE static inline Bits
nearest_turn(const Tables *tables, Floats x)
{
    const Bits guess = (Bits)multiply_upper((Words)x, (Words){0} + (GUESSES << 16)) >> 16;
    const Bits k = add_if_less(guess, lookup(tables->next, guess), x);
    const Floats place = (x - lookup(tables->begin, k)) * lookup(tables->per_unit, k);
    const Bits in_decade = __builtin_convertvector(least(place, lookup(tables->last, k)), Bits);

    return sum_if_less((Bits)lookup(tables->base, k), in_decade, (Floats){0} + tables->least, x);
}

G_ALWAYS_INLINE static inline Bits
encode_turn(gboolean squares, const Tables *tables, const float *values, float divisor)
{
    const Floats zero = {0};
    const Bits v = (Bits)load(RP_DTYPE_FP32, values, 0);
    const Floats x = (Floats)(v & 0x7fffffff) / divisor;
    const Bits m = nearest_turn(tables, x), negative = v >> 31;

    if (squares)
        return sum_if_less(greatest(m - 1, (Bits){0} + 1), (Bits){0}, zero, x);
    return (m ^ negative) - negative + 127;
}

static Tables
tables_of(const Decades *decades)
{
    const Bits base = (Bits)table_of((const float *)(const void *)decades->base);
    float next[DECADES];

    for (guint k = 0; k < DECADES; k++)
        next[k] = decades->border[(k + 1) % DECADES];
    return (Tables){.begin = table_of(decades->begin),
                    .per_unit = table_of(decades->per_unit),
                    .next = table_of(next),
                    .last = __builtin_convertvector(base, Floats) - 0.5f,
                    .base = (Floats)base,
                    .least = decades->border[0]};
}

static G_GNUC_NO_INLINE void
encode_infinities(gboolean squares, const float *values, guint8 *codes, float *scale)
{
    plain_encode_block(squares, values, codes, scale);
}

G_ALWAYS_INLINE static inline void
encode_block(gboolean squares, const float *values, guint8 *codes, float *scale)
{
    const uint32_t most = largest_bits(values);
    const float divisor = most > 0 ? rp_float_from_bits(most) : 1;
    const Tables tables = tables_of(squares ? &squares_decades : &signed_decades);

    if (most >= 0x7f800000) {
        encode_infinities(squares, values, codes, scale);
        return;
    }
    *scale = rp_float_from_bits(most);
    for (gsize i = 0; i < BLOCK; i += 4 * WIDTH)
        keep_bytes(codes + i, encode_turn(squares, &tables, values + i, divisor),
                   encode_turn(squares, &tables, values + i + WIDTH, divisor),
                   encode_turn(squares, &tables, values + i + 2 * WIDTH, divisor),
                   encode_turn(squares, &tables, values + i + 3 * WIDTH, divisor));
}
