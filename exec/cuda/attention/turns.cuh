/*
 * Sums of dq to which blocks of keys add by turns, so that two runs add in the same order.
 *
 * Each tile of queries of each head has a count in global memory, 0 at first. Among the blocks
 * whose keys such a tile sees, the one of the first keys has turn 0, and so on. Each of a block's
 * eight warps adds its part of the tile when the count is the turn; when all have, one thread
 * counts:
 *
 *   keys 0   | = part, count = 1 |
 *   keys 1   | waits             | += part, count = 2 |
 *   keys 2                       | waits              | adds sums to its part, writes dq |
 *
 * Nobody waits for ever: blocks take numbers in the order in which they begin to run, and wait only
 * for blocks of lower numbers, so that one that runs, the lowest, waits for none.
 *
 * A warp's part is eight fragments of 16 x 8 (mma.cuh), of which it adds eight fours a lane. Sums
 * of a whole tile stand as the warps have them: a four is a lane's of one fragment, so that its
 * registers follow each other, as an addition of four takes them, and none is moved. The sums of a
 * sequence's last tile, which may have fewer rows, stand in rows of D, since those of another
 * sequence may follow: a four is then of fragments 2p and 2p + 1, row g or g + 8.
 */
#pragma once

#include "exec/cuda/attention/sums.cuh"
#include "exec/cuda/attention/tile.cuh"

typedef enum {
    TURN_FIRST, /* sums = part */
    TURN_NEXT,  /* sums += part */
    TURN_LAST,  /* part += sums */
    TURN_ONLY   /* no other block has a part */
} Turn;

/* Number of blocks that have begun before this one. @place: in shared memory, not written before
 * all threads have met again; here they meet too. */
static __device__ __forceinline__ unsigned
take_number(unsigned *numbers, uint32_t place)
{
    if (threadIdx.x == 0)
        store_shared(place, atomicAdd(numbers, 1));
    __syncthreads();
    return (unsigned)uniform((int)load_shared(place));
}

static __device__ __forceinline__ bool
turn_reads(Turn turn)
{
    return turn == TURN_LAST || (turn == TURN_NEXT && !ADDS_IN_PLACE);
}

/* A whole warp calls it; it returns once @count is @before. @seen: the result of glance_at_count().
 * A warp that only writes need not read the count again: no write is moved before a branch. */
static __device__ __forceinline__ void
await_turn(Turn turn, const unsigned *count, unsigned before, unsigned seen)
{
    if (seen < before || turn_reads(turn))
        while (load_count(count) < before)
            pause_thread();
    __syncwarp();
}

/* One thread calls it: a thread that sees the count also sees all writes before the block's last
 * barrier. */
static __device__ __forceinline__ void
end_turn(unsigned *count)
{
    order_writes();
    add_to_count(count);
}

/* Place of a warp's sums of a whole tile. */
struct WholeTile {
    float *sums; /* the warp's */

    /* Element @e of four @i. */
    static __device__ __forceinline__ float &of(float (&c)[8][4], int i, int e)
    {
        return c[i][e];
    }
    __device__ __forceinline__ float *at(int i) const
    {
        return sums + i * 128 + (threadIdx.x & 31) * 4;
    }
    __device__ __forceinline__ bool has(int i) const
    {
        return true;
    }
};

/* The same in rows, ACROSS fragments beside each other. */
template <int ACROSS> struct TileRows {
    float *sums; /* the warp's first row */
    int stride, valid;

    static __device__ __forceinline__ float &of(float (&c)[8][4], int i, int e)
    {
        return c[i / 2 * 2 + e / 2][i % 2 * 2 + e % 2];
    }
    __device__ __forceinline__ int row(int i) const
    {
        return i / ACROSS * 16 + i % 2 * 8 + ((int)threadIdx.x & 31) / 4;
    }
    __device__ __forceinline__ float *at(int i) const
    {
        return sums +
               (size_t)(row(i) * stride + i / 2 % (ACROSS / 2) * 16 + ((int)threadIdx.x & 3) * 4);
    }
    __device__ __forceinline__ bool has(int i) const
    {
        return row(i) < valid;
    }
};

/* c += sums, of fours @first and the next. */
template <typename Sums>
static __device__ __forceinline__ void
take_sums(float (&c)[8][4], int first, const Sums &sums)
{
    float4 before[2] = {};

#pragma unroll
    for (int i = 0; i < 2; i++)
        if (sums.has(first + i))
            before[i] = load_sums(sums.at(first + i));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        Sums::of(c, first + i, 0) += before[i].x;
        Sums::of(c, first + i, 1) += before[i].y;
        Sums::of(c, first + i, 2) += before[i].z;
        Sums::of(c, first + i, 3) += before[i].w;
    }
}

/* sums = c, or += @IN_PLACE, of the first @N fours. */
template <bool IN_PLACE, int N, typename Sums>
static __device__ __forceinline__ void
give_sums(float (&c)[8][4], const Sums &sums)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float4 four =
            make_float4(Sums::of(c, i, 0), Sums::of(c, i, 1), Sums::of(c, i, 2), Sums::of(c, i, 3));

        if (!sums.has(i))
            continue;
        if (IN_PLACE)
            add_to_sums(sums.at(i), four);
        else
            store_sums(sums.at(i), four);
    }
}

template <typename Sums>
static __device__ __forceinline__ void
take_turn(Turn turn, float (&c)[8][4], const Sums &sums)
{
    if (turn == TURN_NEXT && ADDS_IN_PLACE) {
        give_sums<true, 8>(c, sums);
        return;
    }
    if (turn_reads(turn)) {
#pragma unroll
        for (int first = 0; first < 8; first += 2)
            take_sums(c, first, sums);
    }
    if (turn != TURN_LAST)
        give_sums<false, 8>(c, sums);
}

/* Writes a warp's part of dq, those rows below @valid. */
template <typename T, int ACROSS>
static __device__ __forceinline__ void
store_queries(T *target, size_t stride, int valid, const float (&c)[8][4], float scale)
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = n / ACROSS * 16 + half * 8 + lane / 4;

            if (row < valid)
                *(uint32_t *)(void *)(target + (size_t)row * stride + n % ACROSS * 8 +
                                      (lane & 3) * 2) =
                    pack(T(), c[n][2 * half] * scale, c[n][2 * half + 1] * scale);
        }
    }
}
