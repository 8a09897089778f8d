/*
 * Pieces that have been split before: words come again and again. Each place is filled once, by the
 * thread that claims it first, and never changes; so readers need no lock, and the memory has an
 * end. The cache saves time only and never changes a result.
 */
#include "text/tokenizer/private.h"

#include <string.h>

#define PLACES (1u << 16)
#define TRIES 4

enum { EMPTY, CLAIMED, FILLED };

/* A cache line. */
typedef struct {
    gint state;
    guint8 length;
    guint8 n;
    guint8 ends[RP_CACHED_SYMBOLS];
    char piece[RP_CACHED_BYTES];
    guint32 ids[RP_CACHED_SYMBOLS];
} Place;

struct _RpPieceCache {
    Place places[PLACES];
};

RpPieceCache *
rp_piece_cache_new(void)
{
    return g_new0(RpPieceCache, 1);
}

void
rp_piece_cache_free(RpPieceCache *cache)
{
    g_free(cache);
}

static guint32
first_place(const char *piece, gsize length)
{
    guint64 hash = length, word;

    for (; length >= 8; piece += 8, length -= 8) {
        memcpy(&word, piece, 8);
        hash = (hash ^ word) * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, piece, length);
    hash = (hash ^ word) * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15);
    return (guint32)(hash >> 40);
}

guint
rp_piece_cache_find(RpPieceCache *cache, const char *piece, gsize length,
                    RpSymbol symbols[RP_CACHED_SYMBOLS])
{
    if (length > RP_CACHED_BYTES)
        return 0;
    const guint32 first = first_place(piece, length);

    for (guint i = 0; i < TRIES; i++) {
        const Place *place = &cache->places[(first + i) % PLACES];

        if (g_atomic_int_get(&place->state) != FILLED)
            return 0;
        if (place->length != length || memcmp(place->piece, piece, length) != 0)
            continue;
        for (guint s = 0; s < place->n; s++)
            symbols[s] = (RpSymbol){place->ids[s], place->ends[s]};
        return place->n;
    }
    return 0;
}

void
rp_piece_cache_add(RpPieceCache *cache, const char *piece, gsize length, const RpSymbol *symbols,
                   guint n)
{
    if (length > RP_CACHED_BYTES || n > RP_CACHED_SYMBOLS || n == 0)
        return;
    const guint32 first = first_place(piece, length);

    for (guint i = 0; i < TRIES; i++) {
        Place *place = &cache->places[(first + i) % PLACES];

        if (!g_atomic_int_compare_and_exchange(&place->state, EMPTY, CLAIMED))
            continue;
        place->length = (guint8)length;
        place->n = (guint8)n;
        memcpy(place->piece, piece, length);
        for (guint s = 0; s < n; s++) {
            place->ids[s] = symbols[s].id;
            place->ends[s] = (guint8)symbols[s].end;
        }
        g_atomic_int_set(&place->state, FILLED);
        return;
    }
}
