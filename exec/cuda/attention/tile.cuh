/*
 * Tiles of attention in shared memory, and the products that warps make of them.
 *
 * A tile is rows of D 16-bit elements, D 64, 128 or 256, in chunks of 16 bytes. Chunk c of row r stands
 * at place c ^ (r & 7) of its row, so that eight rows of one chunk, which ldmatrix reads at once,
 * lie in different banks, as do neighbouring chunks of a row, which copies write at once.
 */
#pragma once

#include "exec/cuda/attention/mma.cuh"
#include "exec/cuda/attention/private.h"

#define LOG2_E 1.4426950408889634f

template <int D>
static __device__ __forceinline__ uint32_t
tile_bytes(int rows)
{
    return (uint32_t)(rows * D * 2);
}

/* Offset of chunk @chunk of row @row from the tile's beginning. */
template <int D>
static __device__ __forceinline__ uint32_t
tile_offset(int row, int chunk)
{
    return (uint32_t)(row * D * 2 + ((chunk ^ (row & 7)) << 4));
}

/* The address that this lane gives to ldmatrix for 16 rows x 16 columns. Matrices come in the order
 * (rows 0-7, chunk 0), (8-15, 0), (0-7, 1), (8-15, 1); ACROSS: (0-7, 0), (0-7, 1), (8-15, 0),
 * (8-15, 1). An operand of mma has its registers one after another, so that another order would
 * cost moves. */
template <int D, bool ACROSS = false> struct LaneOffset {
    uint32_t row, chunk;

    __device__ __forceinline__ LaneOffset()
    {
        const uint32_t lane = threadIdx.x & 31, upper = lane >> 4, middle = lane >> 3 & 1;

        row = ((lane & 7) + (ACROSS ? upper : middle) * 8) * D * 2;
        chunk = ((ACROSS ? middle : upper) ^ (lane & 7)) << 4;
    }
    /* Rows 16 @row16 .., columns 16 @column16 ..; the places repeat after 128 bytes */
    __device__ __forceinline__ uint32_t at(uint32_t tile, int row16, int column16) const
    {
        return tile + row + (uint32_t)(row16 * 16 * D * 2 + column16 / 4 * 128) +
               (chunk ^ (uint32_t)(column16 % 4 << 5));
    }
};

/* Starts copying @ROWS rows, @stride elements apart; rows from @valid on become 0. @THREADS that follow each other do,
 * from a multiple on. */
template <int D, int ROWS, int THREADS, typename T>
static __device__ __forceinline__ void
copy_tile(uint32_t tile, const T *source, size_t stride, int valid)
{
    const int chunks = D / 8, pass = THREADS / chunks; /* chunks of a row; rows at once */
    const int row = (int)threadIdx.x % THREADS / chunks, chunk = (int)threadIdx.x % chunks;
    const T *from = source + (size_t)row * stride + chunk * 8;

    static_assert((pass % 8 == 0 || pass == 4) && ROWS % pass == 0, "whole passes");
#pragma unroll
    for (int i = 0; i < ROWS / pass; i++) {
        /* places of chunks repeat every eight rows */
        copy_async_16(tile + tile_bytes<D>(i * pass) - (pass == 4 ? tile_bytes<D>(i % 2 * pass) : 0) +
                          tile_offset<D>(row + (pass == 4 ? i % 2 * pass : 0), chunk),
                      from, row + i * pass < valid);
        from += pass * stride;
    }
}

template <int M, int N>
static __device__ __forceinline__ void
set_zero(float (&c)[M][N][4])
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                c[m][n][e] = 0;
        }
    }
}

/* c[16 M, 16 N/2] += A B^T, from the first rows of both tiles, over D. */
template <typename T, int D, int M, int N>
static __device__ __forceinline__ void
multiply_tiles(float (&c)[M][N][4], uint32_t a_tile, uint32_t b_tile, const LaneOffset<D> &lane,
               const LaneOffset<D, true> &across)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];

#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(a[m], lane.at(a_tile, m, k));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];

            load_matrices(b, across.at(b_tile, n / 2, k));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(T(), c[m][n], a[m], b[0], b[1]);
                multiply_add(T(), c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

static __device__ __forceinline__ uint32_t
pack(__nv_bfloat16, float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

static __device__ __forceinline__ uint32_t
pack(__half, float low, float high)
{
    const __half2 pair = __floats2half2_rn(low, high);
    uint32_t bits;

    memcpy(&bits, &pair, sizeof bits);
    return bits;
}

/* c[16 M, D] += p B: p[16 M, 8 K] of the registers, rounded to the storage; B[8 K, D] a tile. */
template <typename T, int D, int M, int K>
static __device__ __forceinline__ void
multiply_weights(float (&c)[M][D / 8][4], const float (&p)[M][K][4], uint32_t b_tile,
                 const LaneOffset<D> &lane)
{
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        uint32_t a[M][4];

#pragma unroll
        for (int m = 0; m < M; m++) {
            a[m][0] = pack(T(), p[m][k][0], p[m][k][1]);
            a[m][1] = pack(T(), p[m][k][2], p[m][k][3]);
            a[m][2] = pack(T(), p[m][k + 1][0], p[m][k + 1][1]);
            a[m][3] = pack(T(), p[m][k + 1][2], p[m][k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4];

            load_matrices_transposed(b, lane.at(b_tile, k / 2, n / 2));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(T(), c[m][n], a[m], b[0], b[1]);
                multiply_add(T(), c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Writes rows below @valid of a warp's 16 M, @stride elements apart, times the row's @factor. Where
 * a thread's c[m][n][e] stand: row 16 m + 8 (e / 2) + g, column 8 n + 2 t + e % 2. @pairs: whether
 * pairs of elements are at multiples of 4 bytes. */
template <typename T, int D, int M>
static __device__ __forceinline__ void
store_rows(T *target, size_t stride, int valid, const float (&c)[M][D / 8][4],
           const float (&factor)[M][2], bool pairs)
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = m * 16 + half * 8 + lane / 4;
            T *place = target + (size_t)row * stride + (lane & 3) * 2;

            if (row >= valid)
                continue;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                const uint32_t bits = pack(T(), c[m][n][half * 2] * factor[m][half],
                                           c[m][n][half * 2 + 1] * factor[m][half]);

                if (pairs) {
                    *(uint32_t *)(void *)(place + n * 8) = bits;
                } else {
                    ((uint16_t *)(void *)place)[n * 8] = (uint16_t)bits;
                    ((uint16_t *)(void *)place)[n * 8 + 1] = (uint16_t)(bits >> 16);
                }
            }
        }
    }
}

/* All threads of a warp have the same @x; this lets the compiler know, so that it keeps one copy a
 * warp. */
static __device__ __forceinline__ int
uniform(int x)
{
    return __shfl_sync(0xffffffff, x, 0);
}

/* A warp's number in its block. It is best not kept: what is computed from it would be, too, in registers. */
static __device__ __forceinline__ int
own_warp()
{
    return uniform((int)threadIdx.x / 32);
}

/* The work of a block of threads; @rank counts the sequence's blocks, most work first. */
struct Place {
    size_t start;
    int length, head, rank;
    int gap, gap_end; /* of the sequence's keys; both 0, which compilers know of kernels without gaps: none */
};

/* Units (sequence, head) go in swaths whose shared arrays fit the L2 cache; within a swath, the
 * first block of every unit, then the second of every unit, ... */
template <bool GAPS>
static __device__ __forceinline__ Place
find_place(const RpAttentionArgs &args, const AttentionGrid &grid, unsigned block)
{
    const unsigned swath_blocks = grid.swath * grid.blocks;
    const unsigned first = block / swath_blocks * grid.swath;
    const unsigned width = min(grid.swath, grid.units - first);
    const unsigned within = block % swath_blocks;
    const unsigned unit = first + within % width;
    const unsigned sequence = unit / grid.heads;
    Place place;

    place.start = (size_t)uniform(args.starts[sequence]);
    place.length = uniform(args.starts[sequence + 1]) - (int)place.start;
    place.head = (int)(unit % grid.heads);
    place.rank = (int)(within / width);
    place.gap = GAPS ? uniform(args.gaps[2 * sequence]) : 0;
    place.gap_end = GAPS ? uniform(args.gaps[2 * sequence + 1]) : 0;
    return place;
}

/* Whether query @i does not see key @j. */
static __device__ __forceinline__ bool
is_hidden(const Place &place, int window, int i, int j)
{
    return j > i || j <= i - window ||
           (j >= place.gap && j < place.gap_end && i >= place.gap_end);
}

/* Whether not all of @Q queries from @query on see all of @K keys from @key on. */
template <int Q, int K>
static __device__ __forceinline__ bool
is_masked(const Place &place, int window, int query, int key)
{
    return key + K - 1 > query || key <= query + Q - 1 - window ||
           (place.gap_end > 0 && key < place.gap_end && key + K > place.gap &&
            query + Q > place.gap_end);
}

/* Blocks of @K keys within the gap: those from the first on before the end, if that is larger. */
template <int K>
static __device__ __forceinline__ int
first_in_gap(const Place &place)
{
    return (place.gap + K - 1) / K;
}

template <int K>
static __device__ __forceinline__ int
end_in_gap(const Place &place)
{
    return place.gap_end / K;
}
