/**
 * Steps of whole blocks whose moments are kept in 16 or 8 bits, in one pass. Included by an adamw-*.c
 * behind adamw-turns.h, and by nothing else.
 *
 * Roots and quotients take one unit of a processor for long; widening, drawing and rounding have the others
 * meanwhile. So a block is stepped beside the draws of the next one, a quarter beside a quarter:
 *
 *   step    |b, values 0..63      |64..127             |128..191            |192..255
 *   draw    |b+1: moment 1, 0..15 |moment 1, 16..31    |moment 2, 0..15     |moment 2, 16..31 of 32 lanes
 *
 * int8 needs a block's amax before any of it is rounded: a second loop.
 */
#pragma once

#include "exec/optim/adamw/moment-turns.h"

#define QUARTERS 4
#define QUARTER (BLOCK / QUARTERS)

/* Moments of the vector from value @i of @p on, as the step leaves them; writes the weights. */
G_ALWAYS_INLINE static inline void
update_packed(RpUpdateRule rule, RpDtype gradient_dtype, const RpAdamwFactors *f,
              const RpAdamwPacked *p, gsize i, Floats *m, Floats *v)
{
    const Floats gradient = load(gradient_dtype, p->gradient, i);
    const Floats weight = load(RP_DTYPE_FP32, p->weight, i);

    store(p->weight, i,
          rule == RP_UPDATE_LION ? update_lion(f, gradient, weight, m)
                                 : update_adamw(f, gradient, weight, m, v));
}

/* ---- bf16 ---- */

/* Quarter @q of the draws of block @block. */
G_ALWAYS_INLINE static inline void
draw_quarter(RpUpdateRule rule, const Key *key, const RpAdamwPacked *p, guint64 block, guint q,
             Random random[2])
{
    const guint moment = q / 2;

    if (rule == RP_UPDATE_ADAMW || moment == 0)
        draw_lanes(key, &p->draw[moment], block, q % 2 * (LANES / 2), LANES / 2, &random[moment]);
}

/* The values of words @q of @random in a block that begins at @first. */
G_ALWAYS_INLINE static inline void
step_quarter(RpUpdateRule rule, RpDtype gradient_dtype, const RpAdamwFactors *f,
             const RpAdamwPacked *p, gsize first, gsize q, const Random random[2])
{
    guint16 *kept1 = p->kept[0], *kept2 = p->kept[1];

    for (gsize lane = 0; lane < LANES; lane += 2 * WIDTH)
#pragma GCC unroll 2
        for (gsize run = 0; run < 2; run++) {
            const gsize i = first + (2 * q + run) * LANES + lane;
            Bits sum1[2], sum2[2];

#pragma GCC unroll 2
            for (gsize k = 0; k < 2; k++) {
                const gsize at = lane + k * WIDTH;
                Floats m = load(RP_DTYPE_BF16, kept1, i + k * WIDTH), v;

                if (rule == RP_UPDATE_ADAMW)
                    v = load(RP_DTYPE_BF16, kept2, i + k * WIDTH);
                update_packed(rule, gradient_dtype, f, p, i + k * WIDTH, &m, &v);
                sum1[k] = add_random(m, halves_of(load_words(random[0].words[q] + at), run));
                if (rule == RP_UPDATE_ADAMW)
                    sum2[k] = add_random(v, halves_of(load_words(random[1].words[q] + at), run));
            }
            keep_halves(kept1 + i, sum1[0], sum1[1]);
            if (rule == RP_UPDATE_ADAMW)
                keep_halves(kept2 + i, sum2[0], sum2[1]);
        }
}

G_ALWAYS_INLINE static inline void
step_bf16(RpUpdateRule rule, RpDtype gradient_dtype, const RpAdamwFactors *f,
          const RpAdamwPacked *p, gsize n)
{
    const Key key = key_of(p->draw[0].seed);
    const gsize n_blocks = n / BLOCK;
    Random random[2][2];

    for (guint q = 0; q < QUARTERS; q++)
        draw_quarter(rule, &key, p, p->block, q, random[0]);
    for (gsize b = 0; b < n_blocks; b++)
        for (guint q = 0; q < QUARTERS; q++) {
            if (b + 1 < n_blocks)
                draw_quarter(rule, &key, p, p->block + b + 1, q, random[(b + 1) % 2]);
            prefetch(p->weight + b * BLOCK + q * QUARTER);
            prefetch(p->weight + b * BLOCK + q * QUARTER + QUARTER / 2);
            step_quarter(rule, gradient_dtype, f, p, b * BLOCK, q, random[b % 2]);
        }
}

/* ---- int8 ---- */

G_ALWAYS_INLINE static inline void
step_int8(RpUpdateRule rule, RpDtype gradient_dtype, const RpAdamwFactors *f,
          const RpAdamwPacked *p, gsize n)
{
    for (gsize first = 0; first < n; first += BLOCK) {
        const gsize b = first / BLOCK;
        guint8 *codes1 = (guint8 *)p->kept[0] + first, *codes2 = (guint8 *)p->kept[1] + first;
        const Back back1 = back_of(FALSE, p->scale[0][b]);
        Bits most1 = {0}, most2 = {0};
        float room1[BLOCK], room2[BLOCK];
        Back back2;

        if (rule == RP_UPDATE_ADAMW)
            back2 = back_of(TRUE, p->scale[1][b]);
        for (gsize i = 0; i < BLOCK; i += TURN) {
            prefetch(p->weight + first + i);
            for (gsize k = i; k < i + TURN; k += WIDTH) {
                Floats m = decode_turn(FALSE, &back1, codes1 + k), v;

                if (rule == RP_UPDATE_ADAMW)
                    v = decode_turn(TRUE, &back2, codes2 + k);
                update_packed(rule, gradient_dtype, f, p, first + k, &m, &v);
                store(room1, k, m);
                most1 = larger(most1, m);
                if (rule == RP_UPDATE_ADAMW) {
                    store(room2, k, v);
                    most2 = larger(most2, v);
                }
            }
        }
        encode_with(FALSE, largest_of(most1), room1, codes1, &p->scale[0][b]);
        if (rule == RP_UPDATE_ADAMW)
            encode_with(TRUE, largest_of(most2), room2, codes2, &p->scale[1][b]);
    }
}

G_ALWAYS_INLINE static inline void
step_packed_by(RpDtype gradient_dtype, const RpAdamwFactors *factors, const RpAdamwPacked *packed,
               gsize n)
{
    const RpAdamwFactors f = *factors;
    const RpAdamwPacked p = *packed;

    if (p.moments == RP_MOMENTS_BF16 && f.rule == RP_UPDATE_ADAMW)
        step_bf16(RP_UPDATE_ADAMW, gradient_dtype, &f, &p, n);
    else if (p.moments == RP_MOMENTS_BF16)
        step_bf16(RP_UPDATE_LION, gradient_dtype, &f, &p, n);
    else if (f.rule == RP_UPDATE_ADAMW)
        step_int8(RP_UPDATE_ADAMW, gradient_dtype, &f, &p, n);
    else
        step_int8(RP_UPDATE_LION, gradient_dtype, &f, &p, n);
}

static void
step_packed(const RpAdamwFactors *factors, const RpAdamwPacked *packed, gsize n)
{
    if (packed->gradient_dtype == RP_DTYPE_BF16)
        step_packed_by(RP_DTYPE_BF16, factors, packed, n);
    else if (packed->gradient_dtype == RP_DTYPE_FP16)
        step_packed_by(RP_DTYPE_FP16, factors, packed, n);
    else
        step_packed_by(RP_DTYPE_FP32, factors, packed, n);
}
