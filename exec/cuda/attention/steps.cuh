/*
 * Steps of a block of keys in attention's backward: it visits the tiles of queries that see its
 * keys, the last first, and in each tile the heads of its group; and it takes its turn at a tile's
 * dq (turns.cuh).
 *
 *   keys 0 ..     | last tile | next to last | ... | first |   the most tiles: begins first
 *   keys KEYS ..              | last tile | ...    | second |  a step behind, for its turns
 *
 * Keys within a gap begin with the last tile that has a query before the gap's end.
 */
#pragma once

#include "exec/cuda/attention/tile.cuh"
#include "exec/cuda/attention/turns.cuh"

struct Steps {
    int begin;       /* the first tile's query, the block's first key */
    int group, head; /* query heads of the group: their number, the present one */
    int query;       /* the tile's first */

    /* Whether this is a step. It is no member, which a kernel without registers left would keep in local memory, and
     * read behind all its additions to dq. */
    __device__ __forceinline__ bool more() const
    {
        return query >= begin;
    }
};

/* @BLOCK: keys of one */
template <int QUERIES, int BLOCK>
static __device__ __forceinline__ Steps
begin_steps(const RpAttentionArgs &args, const Place &place, int window)
{
    Steps at;

    at.begin = place.rank * BLOCK;
    at.group = (int)(args.heads / args.kv_heads);
    at.head = 0;
    /* the last query that sees one of the keys: the last key's own window ends there */
    at.query = (int)min((long long)at.begin + BLOCK - 1 + window, (long long)place.length) - 1;
    if (place.rank >= first_in_gap<BLOCK>(place) && place.rank < end_in_gap<BLOCK>(place))
        at.query = place.gap_end - 1;
    at.query = at.query / QUERIES * QUERIES;
    return at;
}

template <int QUERIES>
static __device__ __forceinline__ Steps
next_step(Steps at)
{
    if (++at.head == at.group) {
        at.head = 0;
        at.query -= QUERIES;
    }
    return at;
}

/* The head's number among all query heads. */
static __device__ __forceinline__ int
head_of(const Place &place, const Steps &at)
{
    return place.head * at.group + at.head;
}

/* A block's turn at the dq of a step's tile. */
struct Share {
    Turn turn;
    unsigned before; /* how many have theirs before */
    unsigned *count;

    /* Whether somebody waits for its end. */
    __device__ __forceinline__ bool ends() const
    {
        return turn == TURN_FIRST || turn == TURN_NEXT;
    }
};

template <int QUERIES, int BLOCK>
static __device__ __forceinline__ Share
share_of(const RpAttentionArgs &args, const BackwardScratch &scratch, int window, const Place &place,
         const Steps &at)
{
    const int first = max(at.query + 1 - window, 0) / BLOCK; /* blocks of keys that see it */
    const int last = (min(at.query + QUERIES, place.length) - 1) / BLOCK;
    const int end = end_in_gap<BLOCK>(place);
    /* blocks before this one that do not see it */
    const int left_out = place.rank >= end && at.query >= place.gap_end
                             ? max(end - first_in_gap<BLOCK>(place), 0)
                             : 0;
    Share share;

    share.turn = first == last         ? TURN_ONLY
                 : place.rank == first ? TURN_FIRST
                 : place.rank == last  ? TURN_LAST
                                       : TURN_NEXT;
    share.before = (unsigned)(place.rank - first - left_out);
    share.count =
        scratch.counts + (size_t)head_of(place, at) * args.tokens + place.start + (size_t)at.query;
    return share;
}

/* Adds a warp's part of a tile of dq by its turn: 32 x 32 or 16 x 64 (ACROSS 4 or 8 fragments), from
 * @row and @column on, @part of the tile's eight. @head: of the launch; @seen: of the count */
template <typename T, int D, int QUERIES, int ACROSS>
static __device__ __forceinline__ void
add_queries(const RpAttentionArgs &args, const BackwardScratch &scratch, const Place &place,
            const Steps &at, const Share &share, int head, unsigned seen, float (&c)[8][4],
            int part, int row, int column)
{
    const size_t token = place.start + (size_t)at.query;
    const int valid = place.length - at.query;

    if (share.turn != TURN_ONLY) {
        float *sums = scratch.sums + ((size_t)head * args.tokens + token) * D;

        await_turn(share.turn, share.count, share.before, seen);
        if (valid >= QUERIES)
            take_turn(share.turn, c, WholeTile{sums + part * (8 * 128)});
        else
            take_turn(share.turn, c,
                      TileRows<ACROSS>{sums + (size_t)row * D + column, D, valid - row});
    }
    if (!share.ends())
        store_queries<T, ACROSS>(
            (T *)args.dq +
                ((token + (size_t)row) * attention_dq_row(args) + (size_t)head_of(place, at)) * D +
                (size_t)column,
            attention_dq_row(args) * D, valid - row, c, args.scale);
}
