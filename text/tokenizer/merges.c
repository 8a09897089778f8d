/* Pairs of tokens and their merges: an open-addressing table. */
#include "text/tokenizer/private.h"

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
