/* XXH64: four sums over words of 8 bytes, stirred together at the end. */
#include "core/base/hash.h"

#include <string.h>

#define P1 G_GUINT64_CONSTANT(0x9e3779b185ebca87)
#define P2 G_GUINT64_CONSTANT(0xc2b2ae3d27d4eb4f)
#define P3 G_GUINT64_CONSTANT(0x165667b19e3779f9)
#define P4 G_GUINT64_CONSTANT(0x85ebca77c2b2ae63)
#define P5 G_GUINT64_CONSTANT(0x27d4eb2f165667c5)

#define STRIPE_BYTES 32

static guint64
load64(const guint8 *at)
{
    guint64 little;

    memcpy(&little, at, sizeof little);
    return GUINT64_FROM_LE(little);
}

static guint32
load32(const guint8 *at)
{
    guint32 little;

    memcpy(&little, at, sizeof little);
    return GUINT32_FROM_LE(little);
}

static guint64
rotate(guint64 x, guint bits)
{
    return x << bits | x >> (64 - bits);
}

static guint64
add_word(guint64 sum, guint64 word)
{
    return rotate(sum + word * P2, 31) * P1;
}

static guint64
merge(guint64 hash, guint64 sum)
{
    return (hash ^ add_word(0, sum)) * P1 + P4;
}

static guint64
add_rest(guint64 hash, const guint8 *at, gsize n)
{
    for (; n >= 8; n -= 8, at += 8)
        hash = rotate(hash ^ add_word(0, load64(at)), 27) * P1 + P4;
    if (n >= 4) {
        hash = rotate(hash ^ load32(at) * P1, 23) * P2 + P3;
        at += 4;
        n -= 4;
    }
    for (; n > 0; n--, at++)
        hash = rotate(hash ^ *at * P5, 11) * P1;
    return hash;
}

guint64
rp_hash64(const void *bytes, gsize length, guint64 seed)
{
    const guint8 *at = bytes;
    gsize n = length;
    guint64 hash = seed + P5;

    if (n >= STRIPE_BYTES) {
        guint64 a = seed + P1 + P2, b = seed + P2, c = seed, d = seed - P1;
        for (; n >= STRIPE_BYTES; n -= STRIPE_BYTES, at += STRIPE_BYTES) {
            a = add_word(a, load64(at));
            b = add_word(b, load64(at + 8));
            c = add_word(c, load64(at + 16));
            d = add_word(d, load64(at + 24));
        }
        hash = rotate(a, 1) + rotate(b, 7) + rotate(c, 12) + rotate(d, 18);
        hash = merge(merge(merge(merge(hash, a), b), c), d);
    }
    hash = add_rest(hash + length, at, n);
    hash = (hash ^ hash >> 33) * P2;
    hash = (hash ^ hash >> 29) * P3;
    return hash ^ hash >> 32;
}
