/*
 * Byte-pair encoding of one piece: of all pairs of neighbours that merge, the one of lowest rank is
 * merged first, of equal ranks the leftmost, until none is left.
 *
 *   h e l l o      ranks: l+l 1, he 2, he+ll 3
 *   h e ll o
 *   he  ll o
 *   hell   o
 *
 * Short pieces look for the lowest rank among all pairs; long ones keep a heap of them, n log n.
 * Most tokenizers need none of it: longest.c.
 */
#include "text/tokenizer/private.h"

#include <string.h>

/* Pairs of tokens and their merges: an open-addressing table. */

#define FIRST_BITS 10

static RpMerge *
find_slot(const RpMerges *merges, guint64 pair)
{
    const gsize n = (gsize)1 << (64 - merges->shift);
    gsize slot = (gsize)((pair * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15)) >> merges->shift);

    while (merges->slots[slot].rank != RP_TOKEN_NONE && merges->slots[slot].pair != pair)
        slot = (slot + 1) & (n - 1);
    return &merges->slots[slot];
}

static void
grow(RpMerges *merges)
{
    const RpMerges old = *merges;
    const gsize n_old = old.slots != NULL ? (gsize)1 << (64 - old.shift) : 0;
    const gsize n = n_old > 0 ? 2 * n_old : (gsize)1 << FIRST_BITS;

    merges->shift = n_old > 0 ? old.shift - 1 : 64 - FIRST_BITS;
    merges->slots = g_new(RpMerge, n);
    for (gsize i = 0; i < n; i++)
        merges->slots[i].rank = RP_TOKEN_NONE;
    for (gsize i = 0; i < n_old; i++)
        if (old.slots[i].rank != RP_TOKEN_NONE)
            *find_slot(merges, old.slots[i].pair) = old.slots[i];
    g_free(old.slots);
}

void
rp_merges_add(RpMerges *merges, guint32 left, guint32 right, guint32 rank, guint32 id)
{
    const guint64 pair = (guint64)left << 32 | right;

    if (merges->slots == NULL || 2 * (guint64)merges->n >= (guint64)1 << (64 - merges->shift))
        grow(merges);
    RpMerge *slot = find_slot(merges, pair);

    merges->n += slot->rank == RP_TOKEN_NONE;
    *slot = (RpMerge){pair, rank, id};
}

const RpMerge *
rp_merges_find(const RpMerges *merges, guint32 left, guint32 right)
{
    if (merges->slots == NULL)
        return NULL;
    const RpMerge *slot = find_slot(merges, (guint64)left << 32 | right);

    return slot->rank != RP_TOKEN_NONE ? slot : NULL;
}

gsize
rp_merges_n_slots(const RpMerges *merges)
{
    return merges->slots != NULL ? (gsize)1 << (64 - merges->shift) : 0;
}

void
rp_merges_clear(RpMerges *merges)
{
    g_clear_pointer(&merges->slots, g_free);
}

/*
 * Pieces that have been split before: words come again and again. Each place is filled once, by the
 * thread that claims it first, and never changes; so readers need no lock, and the memory has an
 * end. The cache saves time only and never changes a result.
 */

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

#define SHORT_SYMBOLS 64

/* A symbol of a long piece, at the index of its first byte. */
typedef struct {
    guint32 id;
    guint32 previous;
    guint32 next;
    guint32 rank; /* rank of the merge with the next; RP_TOKEN_NONE: they do not merge */
} Link;

void
rp_merge_work_init(RpMergeWork *work)
{
    *work = (RpMergeWork){
        .symbols = g_array_new(FALSE, FALSE, sizeof(RpSymbol)),
        .links = g_array_new(FALSE, FALSE, sizeof(Link)),
        .heap = g_array_new(FALSE, FALSE, sizeof(guint64)),
        .dead = g_array_new(FALSE, TRUE, sizeof(guint64)),
        .numbers = g_array_new(FALSE, FALSE, sizeof(guint32)),
    };
}

void
rp_merge_work_clear(RpMergeWork *work)
{
    g_array_unref(work->symbols);
    g_array_unref(work->links);
    g_array_unref(work->heap);
    g_array_unref(work->dead);
    g_array_unref(work->numbers);
}

/* ---- the first symbols ---- */

static void
append(GArray *symbols, guint32 id, gsize end)
{
    const RpSymbol symbol = {id, (guint32)end};

    g_array_append_val(symbols, symbol);
}

void
rp_bpe_append_unknown(const RpTokenizer *tokenizer, GArray *symbols, const char *piece, gsize start,
                      gsize end, gboolean *unknown)
{
    gboolean bytes = tokenizer->byte_fallback;

    for (gsize i = start; i < end && bytes; i++)
        bytes = tokenizer->fallback_ids[(guint8)piece[i]] != RP_TOKEN_NONE;
    if (bytes) {
        for (gsize i = start; i < end; i++)
            append(symbols, tokenizer->fallback_ids[(guint8)piece[i]], i + 1);
        *unknown = FALSE;
    } else if (tokenizer->unk != RP_TOKEN_NONE) {
        if (*unknown && tokenizer->fuse_unk)
            g_array_index(symbols, RpSymbol, symbols->len - 1).end = (guint32)end;
        else
            append(symbols, tokenizer->unk, end);
        *unknown = TRUE;
    }
}

static void
append_first(const RpTokenizer *tokenizer, GArray *symbols, const char *piece, gsize length)
{
    gboolean unknown = FALSE;

    for (gsize start = 0, end; start < length; start = end) {
        end = tokenizer->byte_level ? start + 1 : (gsize)(g_utf8_next_char(piece + start) - piece);
        const guint32 id = tokenizer->byte_level ? tokenizer->byte_ids[(guint8)piece[start]]
                                                 : rp_vocabulary_find(&tokenizer->vocabulary,
                                                                      piece + start, end - start);

        if (id == RP_TOKEN_NONE) {
            rp_bpe_append_unknown(tokenizer, symbols, piece, start, end, &unknown);
            continue;
        }
        append(symbols, id, end);
        unknown = FALSE;
    }
}

/* ---- short pieces ---- */

static guint32
rank_of(const RpTokenizer *tokenizer, const RpSymbol *left)
{
    const RpMerge *merge = rp_merges_find(&tokenizer->merges, left[0].id, left[1].id);

    return merge != NULL ? merge->rank : RP_TOKEN_NONE;
}

static void
merge_short(const RpTokenizer *tokenizer, GArray *array)
{
    RpSymbol *symbols = (RpSymbol *)(void *)array->data;
    guint32 ranks[SHORT_SYMBOLS];
    guint n = array->len;

    for (guint i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(tokenizer, &symbols[i]);
    while (n > 1) {
        guint at = 0;

        for (guint i = 1; i + 1 < n; i++)
            if (ranks[i] < ranks[at])
                at = i;
        if (ranks[at] == RP_TOKEN_NONE)
            break;
        symbols[at].id = rp_merges_find(&tokenizer->merges, symbols[at].id, symbols[at + 1].id)->id;
        symbols[at].end = symbols[at + 1].end;
        memmove(&symbols[at + 1], &symbols[at + 2], (n - at - 2) * sizeof *symbols);
        memmove(&ranks[at], &ranks[at + 1], (n - at - 2) * sizeof *ranks);
        n--;
        if (at + 1 < n)
            ranks[at] = rank_of(tokenizer, &symbols[at]);
        if (at > 0)
            ranks[at - 1] = rank_of(tokenizer, &symbols[at - 1]);
    }
    g_array_set_size(array, n);
}

/* ---- long pieces: a binary heap of rank << 32 | index of the left symbol ---- */

static void
sift_down(guint64 *heap, gsize n, gsize at)
{
    const guint64 key = heap[at];

    for (gsize child; (child = 2 * at + 1) < n; at = child) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= key)
            break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

static void
push(GArray *heap, guint64 key)
{
    g_array_append_val(heap, key);
    guint64 *keys = (guint64 *)(void *)heap->data;
    gsize at = heap->len - 1;

    for (; at > 0 && keys[(at - 1) / 2] > key; at = (at - 1) / 2)
        keys[at] = keys[(at - 1) / 2];
    keys[at] = key;
}

static guint64
pop(GArray *heap)
{
    guint64 *keys = (guint64 *)(void *)heap->data;
    const guint64 first = keys[0];

    keys[0] = keys[heap->len - 1];
    g_array_set_size(heap, heap->len - 1);
    if (heap->len > 0)
        sift_down(keys, heap->len, 0);
    return first;
}

/* Sees whether link @i merges with the next. Returns: its key, or G_MAXUINT64 */
static guint64
judge(const RpTokenizer *tokenizer, Link *links, guint32 i)
{
    const RpMerge *merge =
        links[i].next != RP_TOKEN_NONE
            ? rp_merges_find(&tokenizer->merges, links[i].id, links[links[i].next].id)
            : NULL;

    links[i].rank = merge != NULL ? merge->rank : RP_TOKEN_NONE;
    return merge != NULL ? (guint64)merge->rank << 32 | i : G_MAXUINT64;
}

static void
fill_heap(const RpTokenizer *tokenizer, const GArray *symbols, Link *links, GArray *heap)
{
    for (guint i = 0; i < symbols->len; i++)
        links[i] = (Link){.id = g_array_index(symbols, RpSymbol, i).id,
                          .previous = i > 0 ? i - 1 : RP_TOKEN_NONE,
                          .next = i + 1 < symbols->len ? i + 1 : RP_TOKEN_NONE};
    for (guint i = 0; i < symbols->len; i++) {
        const guint64 key = judge(tokenizer, links, i);

        if (key != G_MAXUINT64)
            g_array_append_val(heap, key);
    }
    for (gsize i = heap->len / 2; i-- > 0;)
        sift_down((guint64 *)(void *)heap->data, heap->len, i);
}

static void
merge_long(const RpTokenizer *tokenizer, RpMergeWork *work)
{
    GArray *symbols = work->symbols, *heap = work->heap;

    g_array_set_size(work->links, symbols->len);
    g_array_set_size(heap, 0);
    Link *links = (Link *)(void *)work->links->data;
    RpSymbol *symbol = (RpSymbol *)(void *)symbols->data;

    fill_heap(tokenizer, symbols, links, heap);
    while (heap->len > 0) {
        const guint64 key = pop(heap);
        const guint32 i = (guint32)key;

        if (links[i].rank != (guint32)(key >> 32))
            continue; /* one of the two is another by now */
        const guint32 gone = links[i].next, after = links[gone].next;
        const guint32 before = links[i].previous;
        guint64 next_key;

        links[i].id = rp_merges_find(&tokenizer->merges, links[i].id, links[gone].id)->id;
        symbol[i].end = symbol[gone].end;
        links[i].next = after;
        links[gone].rank = RP_TOKEN_NONE;
        if (after != RP_TOKEN_NONE)
            links[after].previous = i;
        if ((next_key = judge(tokenizer, links, i)) != G_MAXUINT64)
            push(heap, next_key);
        if (before != RP_TOKEN_NONE && (next_key = judge(tokenizer, links, before)) != G_MAXUINT64)
            push(heap, next_key);
    }

    guint n = 0;

    for (guint32 i = 0; i != RP_TOKEN_NONE; i = links[i].next)
        symbol[n++] = (RpSymbol){links[i].id, symbol[i].end};
    g_array_set_size(symbols, n);
}

void
rp_bpe_merge(const RpTokenizer *tokenizer, const char *piece, gsize length, RpMergeWork *work)
{
    g_array_set_size(work->symbols, 0);
    append_first(tokenizer, work->symbols, piece, length);
    if (work->symbols->len <= SHORT_SYMBOLS)
        merge_short(tokenizer, work->symbols);
    else
        merge_long(tokenizer, work);
}
