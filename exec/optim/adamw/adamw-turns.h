/**
 * The loops of a variant with vectors: two vectors a turn, whose 16-bit weights go to memory around
 * the caches.
 *
 *           |-head-|------- turns, published on whole vectors -------|-tail-|
 *           | one by one |              whole                        | one by one
 *
 * Included by an adamw-*.c and by nothing else, behind its types of vectors, V() and VI(), which name an
 * intrinsic for such vectors and for all their bits, and the functions that differ too much between sets
 * of instructions. Built without contraction to fused multiply-adds: see adamw.h.
 */
#pragma once

#include "exec/optim/adamw/adamw-private.h"

#define WIDTH (sizeof(Floats) / sizeof(float))
#define TURN (2 * WIDTH)
#define N_SUMS (RP_SUM_LANES * sizeof(double) / sizeof(Doubles))
#define AHEAD 512      /* values prefetched ahead: the hardware stops at page borders */
#define LINE_FLOATS 16 /* floats of a cache line */

/* WIDTH values from @i on. */
G_ALWAYS_INLINE static inline Floats
load(RpDtype dtype, const void *values, gsize i)
{
    if (dtype == RP_DTYPE_FP32)
        return V(loadu_ps)((const float *)values + i);
    const Half half = load_half((const uint16_t *)values + i);
    if (dtype == RP_DTYPE_FP16)
        return V(cvtph_ps)(half);
    return (Floats)V(slli_epi32)(V(cvtepu16_epi32)(half), 16);
}

G_ALWAYS_INLINE static inline void
store(float *values, gsize i, Floats vector)
{
    V(storeu_ps)(values + i, vector);
}

/* Rounds to bf16, in the upper halves of 32 bits. */
G_ALWAYS_INLINE static inline Bits
round_to_bf16(Floats values)
{
    const Words bits = (Words)values;

    return keep_nan(values, (Bits)(bits + 0x7fff + (bits >> 16 & 1)));
}

/* Rounds TURN values to a 16-bit @dtype. */
G_ALWAYS_INLINE static inline Bits
narrow(RpDtype dtype, Floats low, Floats high)
{
    if (dtype == RP_DTYPE_FP16)
        return join(V(cvtps_ph)(low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                    V(cvtps_ph)(high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return upper_halves(round_to_bf16(low), round_to_bf16(high));
}

/* Writes TURN values to whole vectors, around the caches. */
G_ALWAYS_INLINE static inline void
stream(RpDtype dtype, void *values, gsize i, Floats low, Floats high)
{
    if (dtype == RP_DTYPE_FP32) {
        V(stream_ps)((float *)values + i, low);
        V(stream_ps)((float *)values + i + WIDTH, high);
    } else {
        VI(stream)((void *)((uint16_t *)values + i), (All)narrow(dtype, low, high));
    }
}

/* Values before @published[i] stands on a vector; at most @n. */
static gsize
head_of(const void *published, RpDtype dtype, gsize n)
{
    const gsize past = (uintptr_t)published % sizeof(Floats);

    return MIN(n, (sizeof(Floats) - past) % sizeof(Floats) / rp_dtype_size(dtype));
}

/* rp_lion_update_one() of a vector of gradients and weights, with moments @m; returns the weights. */
G_ALWAYS_INLINE static inline Floats
update_lion(const RpAdamwFactors *f, Floats gradient, Floats weight, Floats *m)
{
    const Floats zero = {0}, size = zero + f->step_size, down = -size;
    const Floats g = gradient * f->gradient_scale;
    const Floats c = f->beta1 * *m + f->one_minus_beta1 * g;
    const Floats step = (Floats)(((Bits)size & (Bits)(c > zero)) | ((Bits)down & (Bits)(c < zero)));

    *m = f->beta2 * *m + f->one_minus_beta2 * g;
    return weight * f->decay - step;
}

/* rp_adamw_update_one(), with moments @m and @v. */
G_ALWAYS_INLINE static inline Floats
update_adamw(const RpAdamwFactors *f, Floats gradient, Floats weight, Floats *m, Floats *v)
{
    const Floats g = gradient * f->gradient_scale;

    *m = f->beta1 * *m + f->one_minus_beta1 * g;
    *v = f->beta2 * *v + f->one_minus_beta2 * g * g;
    return weight * f->decay -
           f->step_size * *m / (V(sqrt_ps)(*v) * f->root_correction + f->epsilon);
}

/* Either of a vector of @a from @i on; returns the weights. */
G_ALWAYS_INLINE static inline Floats
update(RpUpdateRule rule, const RpAdamwFactors *f, const RpAdamwArrays *a, gsize i,
       RpDtype gradient_dtype)
{
    const Floats gradient = load(gradient_dtype, a->gradient, i);
    const Floats weight = load(RP_DTYPE_FP32, a->weight, i);
    Floats m = load(RP_DTYPE_FP32, a->moment1, i), v, w;

    if (rule == RP_UPDATE_LION) {
        w = update_lion(f, gradient, weight, &m);
    } else {
        v = load(RP_DTYPE_FP32, a->moment2, i);
        w = update_adamw(f, gradient, weight, &m, &v);
        store(a->moment2, i, v);
    }
    store(a->moment1, i, m);
    store(a->weight, i, w);
    return w;
}

/* Value @i of @a by the update @rule, a constant. */
G_ALWAYS_INLINE static inline float
update_one(RpUpdateRule rule, const RpAdamwFactors *f, const RpAdamwArrays *a, gsize i,
           RpDtype gradient_dtype)
{
    const float gradient = rp_dtype_get(gradient_dtype, a->gradient, i);

    return rule == RP_UPDATE_LION
               ? rp_lion_update_one(f, gradient, &a->weight[i], &a->moment1[i])
               : rp_adamw_update_one(f, gradient, &a->weight[i], &a->moment1[i], &a->moment2[i]);
}

/* Values @i up to @end, one by one. */
G_ALWAYS_INLINE static inline void
step_part(RpUpdateRule rule, const RpAdamwFactors *f, const RpAdamwArrays *a, gsize i, gsize end,
          RpDtype gradient_dtype, gboolean publish, RpDtype published_dtype)
{
    for (; i < end; i++) {
        const float w = update_one(rule, f, a, i, gradient_dtype);
        if (publish)
            rp_dtype_set(published_dtype, a->published, i, w);
    }
}

G_ALWAYS_INLINE static inline void
prefetch(const float *values)
{
    for (gsize k = 0; k < TURN; k += LINE_FLOATS)
        _mm_prefetch((const char *)(values + AHEAD + k), _MM_HINT_T0);
}

/* Callers pass constants for @published_dtype, @publish, @gradient_dtype and @rule. */
G_ALWAYS_INLINE static inline void
step_loop(RpDtype published_dtype, gboolean publish, RpDtype gradient_dtype, RpUpdateRule rule,
          const RpAdamwFactors *factors, const RpAdamwArrays *arrays, gsize n)
{
    const RpAdamwFactors f = *factors;
    const RpAdamwArrays a = *arrays;
    gsize i = publish ? head_of(a.published, published_dtype, n) : 0;

    step_part(rule, &f, &a, 0, i, gradient_dtype, publish, published_dtype);
    for (; i + TURN <= n; i += TURN) {
        prefetch(a.weight + i);
        prefetch(a.moment1 + i);
        if (rule == RP_UPDATE_ADAMW)
            prefetch(a.moment2 + i);
        const Floats low = update(rule, &f, &a, i, gradient_dtype);
        const Floats high = update(rule, &f, &a, i + WIDTH, gradient_dtype);
        if (publish)
            stream(published_dtype, a.published, i, low, high);
    }
    step_part(rule, &f, &a, i, n, gradient_dtype, publish, published_dtype);
    if (publish)
        _mm_sfence(); /* before another thread is signalled that the weights are there */
}

/* Callers pass a constant for @dtype. */
G_ALWAYS_INLINE static inline void
publish_loop(RpDtype dtype, const float *weight, void *published, gsize n)
{
    const gsize head = head_of(published, dtype, n);
    gsize i;

    for (i = 0; i < head; i++)
        rp_dtype_set(dtype, published, i, weight[i]);
    for (; i + TURN <= n; i += TURN)
        stream(dtype, published, i, load(RP_DTYPE_FP32, weight, i),
               load(RP_DTYPE_FP32, weight, i + WIDTH));
    for (; i < n; i++)
        rp_dtype_set(dtype, published, i, weight[i]);
    _mm_sfence();
}

G_ALWAYS_INLINE static inline void
add_squares_loop(RpDtype dtype, double *lanes, const void *values, gsize n)
{
    Doubles sums[N_SUMS];
    gsize i = 0;

    memcpy(sums, lanes, sizeof sums);
    for (; i + RP_SUM_LANES <= n; i += RP_SUM_LANES)
        for (gsize part = 0; part < N_SUMS; part += 2) {
            const Floats x = load(dtype, values, i + part / 2 * WIDTH);
            const Doubles low = widen_low(x), high = widen_high(x);

            sums[part] += low * low;
            sums[part + 1] += high * high;
        }
    memcpy(lanes, sums, sizeof sums);
    for (guint lane = 0; i < n; i++, lane++) {
        const double value = rp_dtype_get(dtype, values, i);

        lanes[lane] += value * value;
    }
}
