/**
 * Numbers at random from a fixed seed, the same on every machine: for searches that must find the
 * same from the same input. Private to sim/.
 *
 * Source: splitmix64, Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
 * OOPSLA 2014.
 */
#pragma once

#include <glib.h>

typedef struct {
    guint64 state;
} RpRandom;

static inline guint64
rp_random_next(RpRandom *random)
{
    guint64 z = random->state += G_GUINT64_CONSTANT(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * G_GUINT64_CONSTANT(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * G_GUINT64_CONSTANT(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* From 0 to @n - 1. */
static inline guint
rp_random_below(RpRandom *random, guint n)
{
    return (guint)((rp_random_next(random) >> 32) * n >> 32);
}

/**
 * rp_random_excess:
 * @scale: >= 0
 *
 * By how much worse an annealing step may be: exponentially distributed, piecewise linear, mean
 * about 1.5 @scale. In whole numbers, so that no mathematical library has a say in it.
 */
static inline gint64
rp_random_excess(RpRandom *random, gint64 scale)
{
    const guint64 bits = rp_random_next(random);
    guint halvings = 0;

    while (halvings < 20 && (bits >> halvings & 1) != 0)
        halvings++;
    return (gint64)((double)scale * (halvings + (double)(bits >> 48) / 65536));
}
