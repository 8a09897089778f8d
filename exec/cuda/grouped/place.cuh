/*
 * Chooses the tile of C that a block of threads works on. Tiles are numbered over the experts,
 * ascending; within an expert in swaths of SWATH rows of tiles, a swath column by column, so that
 * blocks that run at the same time share columns of B, whose matrix is read once a swath:
 *
 *          n                      n
 *     0  2  4  6             12 13 14 15       (of 5 rows of tiles in swaths of 4: here 2, 1)
 *     1  3  5  7
 *
 * The number of tiles follows from offsets, which blocks read themselves: block b takes tiles b,
 * b + blocks, ..., until there is none. So a launch needs no word from the device, and its sums no
 * order beyond that of a tile.
 */
#pragma once

#include "exec/cuda/base/common.cuh"

#define SWATH 8

/* C[m,n] = A B over k, of one expert. */
template <typename T> struct Problem {
    const T *a, *b;
    size_t c_at, bias_at; /* its first elements */
    int first;            /* first of the expert's rows */
    int m, n, k;
};

template <typename T>
static __device__ __forceinline__ Problem<T>
problem_of(const RpGroupedMatmulArgs &args, RpMatmulLayout form, unsigned expert)
{
    const size_t first = (size_t)args.offsets[expert], e = expert;
    const int rows = args.offsets[expert + 1] - (int)first;
    const bool adds = form == RP_MATMUL_TN;
    Problem<T> of;

    of.first = (int)first;
    of.m = adds ? (int)args.m : rows;
    of.n = (int)args.n;
    of.k = adds ? rows : (int)args.k;
    of.a = (const T *)args.a + first * (adds ? args.m : args.k);
    of.b = (const T *)args.b + (adds ? first * args.n : e * args.n * args.k);
    of.c_at = adds ? e * args.m * args.n : first * args.n;
    of.bias_at = e * args.n;
    return of;
}

/* Goes through the tiles of M x N that a block has. Whole warps, of which each has its own. */
template <int M, int N> class Tiles
{
  public:
    unsigned expert; /* expert of the tile */
    int m, n;        /* its first row and column in the expert's C */

    __device__ __forceinline__ Tiles() : base(0), before(0), index(blockIdx.x)
    {
    }

    /* The block's next tile. Returns: whether there is one; the same in each thread */
    __device__ __forceinline__ bool next(const RpGroupedMatmulArgs &args)
    {
        const unsigned lane = threadIdx.x % 32, wide = ((unsigned)args.n + N - 1) / N;

        for (; base < args.experts; base += 32) {
            const unsigned mine = base + lane;
            const unsigned high = mine < args.experts ? tile_rows(args, mine) : 0;
            unsigned past = high * wide;

#pragma unroll
            for (unsigned step = 1; step < 32; step *= 2) {
                const unsigned other = __shfl_up_sync(0xffffffffu, past, step);

                past += lane >= step ? other : 0;
            }

            const unsigned found = __ballot_sync(0xffffffffu, index < before + past);

            if (found) {
                const int at = __ffs((int)found) - 1;

                expert = base + (unsigned)at;
                set_place(index - before - __shfl_sync(0xffffffffu, past - high * wide, at),
                          __shfl_sync(0xffffffffu, high, at), wide);
                index += gridDim.x;
                return true;
            }
            before += __shfl_sync(0xffffffffu, past, 31);
        }
        return false;
    }

  private:
    unsigned base;   /* first of 32 experts, one of which may have the next tile */
    unsigned before; /* tiles of the experts before those */
    unsigned index;  /* number of the next tile */

    static __device__ __forceinline__ unsigned tile_rows(const RpGroupedMatmulArgs &args,
                                                         unsigned expert)
    {
        const unsigned rows = (unsigned)(args.offsets[expert + 1] - args.offsets[expert]);

        return ((args.form == RP_MATMUL_TN ? (unsigned)args.m : rows) + M - 1) / M;
    }

    __device__ __forceinline__ void set_place(unsigned local, unsigned high, unsigned wide)
    {
        const unsigned swath = local / (SWATH * wide), within = local % (SWATH * wide);
        const unsigned width = min((unsigned)SWATH, high - swath * SWATH);

        m = (int)((swath * SWATH + within % width) * M);
        n = (int)(within / width * N);
    }
};

/* Tiles that there are at most, whatever the offsets. */
static inline size_t
most_tiles(const RpGroupedMatmulArgs *args, size_t m, size_t n)
{
    const size_t taken = args->experts < args->rows ? args->experts : args->rows;
    const size_t high = args->form == RP_MATMUL_TN ? args->experts * ceil_divide(args->m, m)
                                                   : (args->rows + taken * (m - 1)) / m;

    return high * ceil_divide(args->n, n);
}
