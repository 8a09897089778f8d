/**
 * Moments in 16 and 8 bits with vectors, bit for bit as the plain loops round them. Included by
 * packed-turns.h behind adamw-turns.h, and by nothing else.
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

G_ALWAYS_INLINE static inline Bits
greatest(Bits a, Bits b)
{
    return (Bits)V(max_epi32)((All)a, (All)b);
}

/* The upper halves of products of 16 bits. */
G_ALWAYS_INLINE static inline Words
multiply_upper(Words a, Words b)
{
    return (Words)V(mulhi_epu16)((All)a, (All)b);
}

/* Products of the low halves of 64 bits. */
G_ALWAYS_INLINE static inline Pairs
multiply(Pairs a, Pairs b)
{
    return (Pairs)V(mul_epu32)((All)a, (All)b);
}

G_ALWAYS_INLINE static inline void
store_words(uint32_t *words, Words vector)
{
    VI(storeu)((void *)words, (All)vector);
}

G_ALWAYS_INLINE static inline Words
load_words(const uint32_t *words)
{
    return (Words)VI(loadu)((const void *)words);
}

/* The bits of @values and @random, whose upper halves are bf16; NaNs stay NaNs. */
G_ALWAYS_INLINE static inline Bits
add_random(Floats values, Words random)
{
    return keep_nan(values, (Bits)((Words)values + random));
}

/* Writes the upper halves of 32 bits. */
G_ALWAYS_INLINE static inline void
keep_halves(uint16_t *halves, Bits low, Bits high)
{
    VI(storeu)((void *)halves, (All)upper_halves(low, high));
}

/* Writes 4 WIDTH numbers as bytes, each with @more: those below zero as zero. */
G_ALWAYS_INLINE static inline void
keep_bytes(guint8 *bytes, Bits a, Bits b, Bits c, Bits d, gint16 more)
{
    const All low = V(packs_epi32)((All)a, (All)b), high = V(packs_epi32)((All)c, (All)d);
    const All mixed = V(packus_epi16)(V(add_epi16)(low, V(set1_epi16)(more)),
                                      V(add_epi16)(high, V(set1_epi16)(more)));

    VI(storeu)((void *)bytes, in_order(mixed));
}

/* The low halves count. */
typedef struct {
    Pairs c0, c1, c2, c3;
} Counters;

/* The larger magnitudes, as bits: above those of infinity where one is a NaN. */
G_ALWAYS_INLINE static inline Bits
larger(Bits most, Floats values)
{
    return greatest(most, (Bits)values & 0x7fffffff);
}

G_ALWAYS_INLINE static inline uint32_t
largest_of(Bits most)
{
    uint32_t all = 0;

    for (gsize i = 0; i < WIDTH; i++)
        all = MAX(all, (uint32_t)most[i]);
    return all;
}

/* Bits of the largest magnitude of a block. */
G_ALWAYS_INLINE static inline uint32_t
largest_bits(const float *values)
{
    Bits most = {0};

    for (gsize i = 0; i < BLOCK; i += WIDTH)
        most = larger(most, load(RP_DTYPE_FP32, values, i));
    return largest_of(most);
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

/* Random bits of a block: as drawn, a word has those of two runs of values. */
typedef struct {
    uint32_t words[WORDS][LANES];
} Random;

/* Values that are the same for all blocks. */
typedef struct {
    Pairs keys[RP_PHILOX_ROUNDS][2];
    Words lanes;
} Key;

static Key
key_of(guint64 seed)
{
    Key key;

    for (guint32 i = 0; i < WIDTH; i++)
        key.lanes[i] = i;
    for (uint32_t round = 0; round < RP_PHILOX_ROUNDS; round++) {
        key.keys[round][0] = (Pairs){0} + ((uint32_t)seed + round * RP_PHILOX_W0);
        key.keys[round][1] = (Pairs){0} + ((uint32_t)(seed >> 32) + round * RP_PHILOX_W1);
    }
    return key;
}

/* Vectors of lanes at a time, at most: a product takes long, and others begin meanwhile. */
#define TOGETHER (sizeof(Floats) / 32) /* vectors of 64 bytes have twice as many registers */

/* draw_block() of @n lanes from @first on. */
G_ALWAYS_INLINE static inline void
draw_lanes(const Key *key, const RpDraw *draw, guint64 block, guint32 first, guint32 n,
           Random *random)
{
    const Counters all = {(Pairs)(key->lanes + draw_counter0(block)),
                          (Pairs){0} + draw_counter1(draw, block),
                          (Pairs){0} + (uint32_t)draw->step, (Pairs){0} + draw_counter3(draw)};
    const guint together = (guint)MIN(TOGETHER, n / WIDTH);

    for (guint32 lane = first; lane < first + n; lane += together * WIDTH) {
        Counters even[TOGETHER], odd[TOGETHER];

        for (guint i = 0; i < together; i++) {
            even[i] = odd[i] = all;
            even[i].c0 = (Pairs)((Words)all.c0 + (lane + i * (guint32)WIDTH));
            odd[i].c0 = even[i].c0 >> 32;
        }
#pragma GCC unroll 10
        for (guint round = 0; round < RP_PHILOX_ROUNDS; round++)
            for (guint i = 0; i < together; i++) {
                turn(&even[i], key->keys[round]);
                turn(&odd[i], key->keys[round]);
            }
        for (guint i = 0; i < together; i++) {
            const guint32 at = lane + i * (guint32)WIDTH;

            store_words(random->words[0] + at, interleave(even[i].c0, odd[i].c0));
            store_words(random->words[1] + at, interleave(even[i].c1, odd[i].c1));
            store_words(random->words[2] + at, interleave(even[i].c2, odd[i].c2));
            store_words(random->words[3] + at, interleave(even[i].c3, odd[i].c3));
        }
    }
}

/* Takes the halves that belong to run @run of two out of words, as low halves. */
G_ALWAYS_INLINE static inline Words
halves_of(Words words, gsize run)
{
    return run == 0 ? words & 0xffff : words >> 16;
}

static void
round_blocks(const RpDraw *draw, guint64 block, const float *values, guint16 *rounded, gsize n)
{
    const Key key = key_of(draw->seed);

    for (gsize b = 0; b < n; b++) {
        Random random;

        draw_lanes(&key, draw, block + b, 0, LANES, &random);
        for (gsize word = 0; word < WORDS; word++)
            for (gsize lane = 0; lane < LANES; lane += 2 * WIDTH) {
                const Words low = load_words(random.words[word] + lane);
                const Words high = load_words(random.words[word] + lane + WIDTH);

#pragma GCC unroll 2
                for (gsize run = 0; run < 2; run++) {
                    const gsize i = b * BLOCK + (2 * word + run) * LANES + lane;

                    keep_halves(
                        rounded + i,
                        add_random(load(RP_DTYPE_FP32, values, i), halves_of(low, run)),
                        add_random(load(RP_DTYPE_FP32, values, i + WIDTH), halves_of(high, run)));
                }
            }
    }
}

G_ALWAYS_INLINE static inline void
widen_block(const guint16 *packed, float *values)
{
    for (gsize i = 0; i < BLOCK; i += WIDTH)
        store(values, i, load(RP_DTYPE_BF16, packed, i));
}

/* ---- int8 ---- */

typedef struct {
    Floats next, slope, offset, last;
} Tables;

#define LEAST 1e-7f /* below the first border; smaller ones have no guess */

/* Guesses to the 2^16 steps of upper halves of floats: one for each 3.3 powers of two, as a decade has.
 * Guess 32 + k begins at 6.6e-7 * 10^k; tables have it at k, and guess 31 at 7, as that of one. */
#define GUESSES 154

/* nearest(), by tables; with the sign of @v, and the fraction. */
G_ALWAYS_INLINE static inline Floats
nearest_turn(const Tables *tables, Floats x, Bits v)
{
    const Floats from = (Floats)greatest((Bits)x, (Bits)((Floats){0} + LEAST));
    const Bits guess = (Bits)multiply_upper((Words)from, (Words){0} + (GUESSES << 16)) >> 16;
    const Bits k = add_if_less(guess, lookup(tables->next, guess), from);
    const Floats place = from * lookup(tables->slope, k) + lookup(tables->offset, k);

    return with_sign(V(min_ps)(place, lookup(tables->last, k)), v);
}

G_ALWAYS_INLINE static inline Bits
encode_turn(gboolean squares, const Tables *tables, const float *values, float inverse)
{
    const Bits v = (Bits)load(RP_DTYPE_FP32, values, 0), magnitude = v & 0x7fffffff;
    const Floats x = (Floats)magnitude * inverse;

    if (!squares)
        return __builtin_convertvector(nearest_turn(tables, x, v), Bits);
    return zero_unless(__builtin_convertvector(nearest_turn(tables, x, (Bits){0}), Bits), (Bits)x);
}

G_ALWAYS_INLINE static inline Tables
tables_of(gboolean squares)
{
    const Decades *map = squares ? &squares_decades : &signed_decades;
    const float less = squares ? 1 : 0;
    float next[DECADES];

    for (guint k = 0; k < DECADES; k++)
        next[k] = map->border[(k + 1) % DECADES];
    return (Tables){.next = table_of(next),
                    .slope = table_of(map->slope),
                    .offset = table_of(map->offset) - less,
                    .last = table_of(map->last) - less};
}

static G_GNUC_NO_INLINE void
encode_unusual(gboolean squares, const float *values, guint8 *quantized, float *scale)
{
    plain_encode_block(squares, values, quantized, scale);
}

/* @most: of the block. */
G_ALWAYS_INLINE static inline void
encode_with(gboolean squares, uint32_t most_bits, const float *values, guint8 *quantized,
            float *scale)
{
    const float most = rp_float_from_bits(most_bits);
    const float inverse = 1 / (most > 0 ? most : 1);
    const Tables tables = tables_of(squares);

    if (is_unusual(most)) {
        encode_unusual(squares, values, quantized, scale);
        return;
    }
    *scale = most;
    for (gsize i = 0; i < BLOCK; i += 4 * WIDTH)
        keep_bytes(quantized + i, encode_turn(squares, &tables, values + i, inverse),
                   encode_turn(squares, &tables, values + i + WIDTH, inverse),
                   encode_turn(squares, &tables, values + i + 2 * WIDTH, inverse),
                   encode_turn(squares, &tables, values + i + 3 * WIDTH, inverse),
                   squares ? 0 : 127);
}

G_ALWAYS_INLINE static inline void
encode_block(gboolean squares, const float *values, guint8 *quantized, float *scale)
{
    encode_with(squares, largest_bits(values), values, quantized, scale);
}

/* Tables for decoding, times the scale of a block. */
typedef struct {
    Floats begin, step;
} Back;

G_ALWAYS_INLINE static inline Back
back_of(gboolean squares, float scale)
{
    const Decades *map = squares ? &squares_decades : &signed_decades;

    return (Back){table_of(map->begin), table_of(map->step) * scale};
}

G_ALWAYS_INLINE static inline Floats
decode_turn(gboolean squares, const Back *back, const guint8 *quantized)
{
    const Bits d = widen_bytes(quantized) + (squares ? 1 : -127);
    const Floats m = __builtin_convertvector(d, Floats);
    const Bits row = (Bits)m >> 23;
    const Floats begin = lookup(back->begin, row), step = lookup(back->step, row);

    if (squares)
        return (m - begin) * step;
    return (Floats)zero_unless((Bits)((m - with_sign(begin, (Bits)m)) * step), d);
}

G_ALWAYS_INLINE static inline void
decode_block(gboolean squares, const guint8 *quantized, float scale, float *values)
{
    const Back back = back_of(squares, scale);

    for (gsize i = 0; i < BLOCK; i += WIDTH)
        store(values, i, decode_turn(squares, &back, quantized + i));
}
