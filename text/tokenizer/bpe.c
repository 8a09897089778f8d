/*
 * Byte-pair encoding of one piece: of all pairs of neighbours that merge, the one of lowest rank is
 * merged first, of equal ranks the leftmost, until none is left.
 *
 *   h e l l o      ranks: l+l 1, he 2, he+ll 3
 *   h e ll o
 *   he  ll o
 *   hell   o
 *
 * Pairs wait in a heap, so a piece of n bytes takes n log n however it merges.
 */
#include "text/tokenizer/private.h"

#include <string.h>

/* Pairs of tokens and their merges: an open-addressing table. Most pairs that are looked up do not
 * merge, and a table of a hundred thousand merges is larger than a processor's cache. So a pair is
 * looked up in a filter first: bits by hash, eight a slot. */

#define FIRST_BITS 10
#define FILTER_BITS 3

static inline guint64
hash_pair(guint64 pair)
{
    return pair * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15);
}

static RpMerge *
find_slot(const RpMerges *merges, guint64 pair)
{
    const gsize n = (gsize)1 << (64 - merges->shift);
    gsize slot = (gsize)(hash_pair(pair) >> merges->shift);

    while (merges->slots[slot].rank != RP_TOKEN_NONE && merges->slots[slot].pair != pair)
        slot = (slot + 1) & (n - 1);
    return &merges->slots[slot];
}

/* Puts a new merge in, or another one of the same pair. */
static void
put(RpMerges *merges, const RpMerge *merge)
{
    const gsize bit = (gsize)(hash_pair(merge->pair) >> (merges->shift - FILTER_BITS));

    merges->filter[bit / 8] |= (guint8)(1u << bit % 8);
    *find_slot(merges, merge->pair) = *merge;
}

static void
grow(RpMerges *merges)
{
    const RpMerges old = *merges;
    const gsize n_old = old.slots != NULL ? (gsize)1 << (64 - old.shift) : 0;
    const gsize n = n_old > 0 ? 2 * n_old : (gsize)1 << FIRST_BITS;

    merges->shift = n_old > 0 ? old.shift - 1 : 64 - FIRST_BITS;
    merges->slots = g_new(RpMerge, n);
    merges->filter = g_new0(guint8, (n << FILTER_BITS) / 8);
    for (gsize i = 0; i < n; i++)
        merges->slots[i].rank = RP_TOKEN_NONE;
    for (gsize i = 0; i < n_old; i++)
        if (old.slots[i].rank != RP_TOKEN_NONE)
            put(merges, &old.slots[i]);
    g_free(old.slots);
    g_free(old.filter);
}

void
rp_merges_add(RpMerges *merges, guint32 left, guint32 right, guint32 rank, guint32 id)
{
    const RpMerge merge = {(guint64)left << 32 | right, rank, id};

    if (merges->slots == NULL || 2 * (guint64)merges->n >= (guint64)1 << (64 - merges->shift))
        grow(merges);
    merges->n += find_slot(merges, merge.pair)->rank == RP_TOKEN_NONE;
    put(merges, &merge);
}

static inline const RpMerge *
find_pair(const RpMerges *merges, guint32 left, guint32 right)
{
    const guint64 pair = (guint64)left << 32 | right;

    if (merges->slots == NULL)
        return NULL;
    const gsize bit = (gsize)(hash_pair(pair) >> (merges->shift - FILTER_BITS));

    if ((merges->filter[bit / 8] >> bit % 8 & 1) == 0)
        return NULL;
    const RpMerge *slot = find_slot(merges, pair);

    return slot->rank != RP_TOKEN_NONE ? slot : NULL;
}

void
rp_merges_clear(RpMerges *merges)
{
    g_clear_pointer(&merges->slots, g_free);
    g_clear_pointer(&merges->filter, g_free);
}

/*
 * Pieces that have been split before: words come again and again. Each place is filled once, by the
 * thread that claims it first, and never changes; so readers need no lock, and the memory has an
 * end. The cache saves time only and never changes a result.
 */

#define PLACES (1u << 16)
#define TRIES 4

enum { EMPTY, CLAIMED, FILLED };

/* Two cache lines. */
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

/* A symbol of the piece; those that merge into it are skipped. */
typedef struct {
    guint32 id;
    guint32 end; /* in the piece */
    guint32 previous, next;
    guint32 rank;   /* rank of the merge with the next; RP_TOKEN_NONE: they do not merge */
    guint32 merged; /* the token of this merge */
} Link;

/* The heap's keys are rank << 32 | index of the left symbol; a key is out of date if this symbol has
 * another rank by now. */
typedef struct {
    const RpTokenizer *tokenizer;
    Link *links;
    guint32 n;
    guint64 *heap;
    gsize n_keys;
} Merging;

void
rp_merge_work_init(RpMergeWork *work)
{
    *work = (RpMergeWork){
        .symbols = g_array_new(FALSE, FALSE, sizeof(RpSymbol)),
        .links = g_array_new(FALSE, FALSE, sizeof(Link)),
        .heap = g_array_new(FALSE, FALSE, sizeof(guint64)),
    };
}

void
rp_merge_work_clear(RpMergeWork *work)
{
    g_array_unref(work->symbols);
    g_array_unref(work->links);
    g_array_unref(work->heap);
}

/* ---- the first symbols ---- */

static void
append(Merging *merging, guint32 id, gsize end)
{
    const guint32 n = merging->n++;

    merging->links[n] = (Link){
        .id = id, .end = (guint32)end, .previous = n > 0 ? n - 1 : RP_TOKEN_NONE, .next = n + 1};
}

/* A character that the vocabulary lacks becomes bytes, the unknown token, or nothing.
 * @unknown: whether the last symbol is the unknown token */
static void
append_unknown(Merging *merging, const char *piece, gsize start, gsize end, gboolean *unknown)
{
    const RpTokenizer *tokenizer = merging->tokenizer;
    gboolean bytes = tokenizer->byte_fallback;

    for (gsize i = start; i < end && bytes; i++)
        bytes = tokenizer->fallback_ids[(guint8)piece[i]] != RP_TOKEN_NONE;
    if (bytes) {
        for (gsize i = start; i < end; i++)
            append(merging, tokenizer->fallback_ids[(guint8)piece[i]], i + 1);
        *unknown = FALSE;
    } else if (tokenizer->unk != RP_TOKEN_NONE) {
        if (*unknown && tokenizer->fuse_unk)
            merging->links[merging->n - 1].end = (guint32)end;
        else
            append(merging, tokenizer->unk, end);
        *unknown = TRUE;
    }
}

static void
append_first(Merging *merging, const char *piece, gsize length)
{
    const RpTokenizer *tokenizer = merging->tokenizer;
    gboolean unknown = FALSE;

    for (gsize start = 0, end; start < length; start = end) {
        const guint8 first = (guint8)piece[start];
        const gboolean one = tokenizer->byte_level || first < 0x80;

        end = one ? start + 1 : (gsize)(g_utf8_next_char(piece + start) - piece);
        const guint32 id =
            one ? tokenizer->byte_ids[first]
                : rp_vocabulary_find(&tokenizer->vocabulary, piece + start, end - start);

        if (id == RP_TOKEN_NONE) {
            append_unknown(merging, piece, start, end, &unknown);
            continue;
        }
        append(merging, id, end);
        unknown = FALSE;
    }
    if (merging->n > 0)
        merging->links[merging->n - 1].next = RP_TOKEN_NONE;
}

/* ---- merges ---- */

static void
push(Merging *merging, guint64 key)
{
    guint64 *heap = merging->heap;
    gsize at = merging->n_keys++;

    for (; at > 0 && heap[(at - 1) / 2] > key; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = key;
}

static guint64
pop(Merging *merging)
{
    guint64 *heap = merging->heap;
    const gsize n = --merging->n_keys;
    const guint64 first = heap[0], last = heap[n];
    gsize at = 0;

    for (gsize child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return first;
}

/* Looks for the merge of symbol @i with the next. */
static void
find_merge(Merging *merging, guint32 i)
{
    Link *link = &merging->links[i];
    const RpMerge *merge =
        link->next != RP_TOKEN_NONE
            ? find_pair(&merging->tokenizer->merges, link->id, merging->links[link->next].id)
            : NULL;

    link->rank = RP_TOKEN_NONE;
    if (merge != NULL) {
        link->rank = merge->rank;
        link->merged = merge->id;
        push(merging, (guint64)merge->rank << 32 | i);
    }
}

/* Merges symbol @i with the next. */
static void
merge(Merging *merging, guint32 i)
{
    Link *links = merging->links, *link = &links[i], *gone = &links[link->next];

    link->id = link->merged;
    link->end = gone->end;
    link->next = gone->next;
    gone->rank = RP_TOKEN_NONE;
    if (link->next != RP_TOKEN_NONE)
        links[link->next].previous = i;
    find_merge(merging, i);
    if (link->previous != RP_TOKEN_NONE)
        find_merge(merging, link->previous);
}

void
rp_bpe_merge(const RpTokenizer *tokenizer, const char *piece, gsize length, RpMergeWork *work)
{
    /* as many symbols as bytes at most; each merge takes one key and gives two at most */
    g_array_set_size(work->links, (guint)length);
    g_array_set_size(work->heap, 2 * (guint)length);
    Merging merging = {.tokenizer = tokenizer,
                       .links = (Link *)(void *)work->links->data,
                       .heap = (guint64 *)(void *)work->heap->data};

    append_first(&merging, piece, length);
    for (guint32 i = 0; i < merging.n; i++)
        find_merge(&merging, i);
    while (merging.n_keys > 0) {
        const guint64 key = pop(&merging);

        if (merging.links[(guint32)key].rank == (guint32)(key >> 32))
            merge(&merging, (guint32)key);
    }
    g_array_set_size(work->symbols, merging.n);
    RpSymbol *symbols = (RpSymbol *)(void *)work->symbols->data;
    guint n = 0;

    for (guint32 i = merging.n > 0 ? 0 : RP_TOKEN_NONE; i != RP_TOKEN_NONE;
         i = merging.links[i].next)
        symbols[n++] = (RpSymbol){merging.links[i].id, merging.links[i].end};
    g_array_set_size(work->symbols, n);
}
