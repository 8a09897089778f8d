/*
 * Matmuls of rows in tiles, for more tokens (rows.cu).
 */
#pragma once

#include "exec/cuda/decode/rows.cuh"

/* A block's tile: HIGH x WIDE warps, each with M x 16 rows of W and N x 8 tokens; a stage has a unit of k. */
template <typename T_, int M_, int N_, int HIGH_, int WIDE_, int STAGES_, int BLOCKS_> struct RowTile {
    using T = T_;
    static constexpr int M = M_, N = N_, HIGH = HIGH_, WIDE = WIDE_, STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_; /* on a multiprocessor */
    static constexpr int ROWS = HIGH * M * 16, TOKENS = WIDE * N * 8;
    static constexpr int PACKS = ROW_UNIT * 4, PASS = ROW_THREADS / PACKS; /* 16 bytes of a row; rows copied at once */
    static constexpr int GROUP = N < 4 ? N : 4; /* fragments of X that are read together */
    /* a step's rows of 64 bytes; the next stands so that a row's copies go to all banks */
    static constexpr uint32_t W_STEP = ROWS * 64 + 64, X_STEP = TOKENS * 64 + 64;
    static constexpr uint32_t STAGE_BYTES = ROW_UNIT * (W_STEP + X_STEP), BYTES = STAGES * STAGE_BYTES;
    static constexpr int SUM_PITCH = ROWS + 4; /* floats of a token */

    static_assert(HIGH * WIDE == ROW_WARPS && ROWS % PASS == 0 && TOKENS % PASS == 0, "all warps");
    static_assert(BYTES <= 99 * 1024 && SUM_PITCH * TOKENS * 4 <= BYTES, "GeForce cards have 99 KiB");
};

/* A thread copies 16 bytes of rows row, row + PASS, ... of a matrix of @extent rows. */
template <typename S, int COUNT> struct RowCopier {
    const typename S::T *from;
    size_t stride; /* from a row to the thread's next */
    uint32_t to;
    int rows_left;

    __device__ __forceinline__
    RowCopier(const void *matrix, size_t row_stride, size_t first, size_t extent, uint32_t step)
    {
        const int pack = (int)threadIdx.x % S::PACKS, row = (int)threadIdx.x / S::PACKS;

        stride = S::PASS * row_stride;
        from = (const typename S::T *)matrix + (first + row) * row_stride + pack * 8;
        to = shared_address() + pack / 4 * step + row * 64 + pack % 4 * 16;
        rows_left = (int)min(extent - first, (size_t)COUNT) - row;
    }

    /* The next unit, to the stage that is @stage bytes away. FULL: all of it is there; else what is @inside of k is, and
     * @any may be read. */
    template <bool FULL>
    __device__ __forceinline__ void
    copy(uint32_t stage, bool inside, const void *any)
    {
        const typename S::T *row = from;

#pragma unroll
        for (int i = 0; i < COUNT; i += S::PASS, row += stride) {
            const bool valid = FULL || (inside && i < rows_left);

            copy_async_16(to + stage + i * 64, valid ? row : any, valid);
        }
        from += ROW_UNIT * ROW_DEPTH;
    }
};

template <typename S>
__device__ __forceinline__ void
end_row_part(float (&totals)[S::M][S::N][4], float (&sums)[S::M][S::N][4])
{
#pragma unroll
    for (int i = 0; i < S::M; i++) {
#pragma unroll
        for (int j = 0; j < S::N; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                totals[i][j][c] += sums[i][j][c];
                sums[i][j][c] = 0;
            }
        }
    }
}

/* A warp multiplies these at once: all of its W of a step, and a group of its X. */
template <typename S> struct Fragments {
    uint4 low[S::M], high[S::M], x[S::GROUP];
};

/* @w, @x: the lane's first pieces of the step */
template <typename S>
__device__ __forceinline__ void
load_fragments(Fragments<S> &to, const uint4 *w, const uint4 *x, int group)
{
#pragma unroll
    for (int i = 0; group == 0 && i < S::M; i++) {
        to.low[i] = w[i * 16 * 4];
        to.high[i] = w[i * 16 * 4 + 8 * 4];
    }
#pragma unroll
    for (int j = 0; j < S::GROUP; j++)
        to.x[j] = x[(group * S::GROUP + j) * 8 * 4];
}

/* The unit before which the sums of parts end. */
struct PartEnds {
    int units, part, end;

    __device__ __forceinline__ explicit PartEnds(int units_) : units(units_), part(0), end(0)
    {
        advance();
    }

    /* To the next part that has a unit. */
    __device__ __forceinline__ void
    advance()
    {
        const int last = end;

        while (part < ROW_PARTS && end == last)
            end = first_unit(units, ++part);
    }
};

/*
 * @totals = the warp's part of the tile, over k. Fragments are read a group ahead, stages copied STAGES - 1 ahead. All
 * threads.
 */
template <typename S>
__device__ __forceinline__ void
sum_row_tile(float (&totals)[S::M][S::N][4], const RpMatmulArgs &args, size_t first_row,
             size_t first_token)
{
    constexpr int GROUPS = S::N / S::GROUP, PLACE = (int)S::STAGE_BYTES / 16;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int pack = (int)threadIdx.x % S::PACKS, units = units_of(args);
    const uint4 *w = row_shared + lane + warp / S::WIDE * S::M * 16 * 4;
    const uint4 *x = row_shared + lane + (ROW_UNIT * S::W_STEP) / 16 + warp % S::WIDE * S::N * 8 * 4;
    const uint32_t zero = zero_of(args);
    const bool full = first_row + S::ROWS <= args.n && first_token + S::TOKENS <= args.m &&
                      args.k % (ROW_UNIT * ROW_DEPTH) == 0;
    RowCopier<S, S::ROWS> w_copier(args.b, args.k, first_row, args.n, S::W_STEP);
    RowCopier<S, S::TOKENS> x_copier(args.a, stride_of(args), first_token, args.m, S::X_STEP);
    float sums[S::M][S::N][4] = {};
    Fragments<S> now, next;
    PartEnds ends(units);
    int place = 0;

    auto copy_w = [&](int unit, uint32_t stage) {
        if (full && unit < units)
            w_copier.template copy<true>(stage, true, args.b);
        else if (unit < units)
            w_copier.template copy<false>(stage, (unit * S::PACKS + pack) * 8 < (int)args.k, args.b);
    };
    auto copy_x = [&](int unit, uint32_t stage) {
        stage += ROW_UNIT * S::W_STEP;
        if (full && unit < units)
            x_copier.template copy<true>(stage, true, args.a);
        else if (unit < units)
            x_copier.template copy<false>(stage, (unit * S::PACKS + pack) * 8 < (int)args.k, args.a);
        copy_async_commit();
    };

#pragma unroll
    for (int unit = 0; unit < S::STAGES; unit++)
        copy_w(unit, unit * S::STAGE_BYTES);
    wait_for_previous(); /* weights are nobody's */
#pragma unroll
    for (int unit = 0; unit < S::STAGES; unit++)
        copy_x(unit, unit * S::STAGE_BYTES);
    copy_async_wait_but<S::STAGES - 1>();
    __syncthreads();
    load_fragments<S>(now, w, x, 0);
    for (int unit = 0; unit < units; unit++) {
        const int next_place = place == (S::STAGES - 1) * PLACE ? 0 : place + PLACE;

#pragma unroll
        for (int u = 0; u < ROW_UNIT; u++) {
#pragma unroll
            for (int group = 0; group < GROUPS; group++) {
                const int u_next = group == GROUPS - 1 ? u + 1 : u, to = (group + 1) % GROUPS;

                next = now;
                if (u_next < ROW_UNIT) {
                    load_fragments<S>(next, w + place + u_next * (S::W_STEP / 16),
                                      x + place + u_next * (S::X_STEP / 16), to);
                } else {
                    copy_async_wait_but<S::STAGES - 2>();
                    __syncthreads();
                    load_fragments<S>(next, w + next_place, x + next_place, to);
                    copy_w(unit + S::STAGES, (uint32_t)place * 16);
                    copy_x(unit + S::STAGES, (uint32_t)place * 16);
                }
                multiply_step<typename S::T, S::M, S::GROUP>(sums, group * S::GROUP, now.low, now.high,
                                                             now.x, zero);
                now = next;
            }
        }
        place = next_place;
        if (unit + 1 == ends.end) {
            end_row_part<S>(totals, sums);
            ends.advance();
        }
    }
    copy_async_wait();
    __syncthreads();
}

template <typename S>
static __global__ void
__launch_bounds__(ROW_THREADS, S::BLOCKS) multiply_row_tiles(const RpMatmulArgs args, bool wide)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int row = warp / S::WIDE * S::M * 16 + lane / 4;
    const int token = warp % S::WIDE * S::N * 8 + lane % 4 * 2;
    const size_t first_token = (size_t)blockIdx.x * S::TOKENS;
    const size_t first_row = (size_t)blockIdx.y * S::ROWS;
    float totals[S::M][S::N][4] = {};
    float *tile = (float *)row_shared;

    let_next_begin();
    sum_row_tile<S>(totals, args, first_row, first_token);
#pragma unroll
    for (int i = 0; i < S::M; i++) {
#pragma unroll
        for (int j = 0; j < S::N; j++) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                tile[(token + j * 8 + c % 2) * S::SUM_PITCH + row + i * 16 + c / 2 * 8] =
                    totals[i][j][c];
        }
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < S::TOKENS * S::ROWS / RP_PACK; at += ROW_THREADS) {
        const int of = at % (S::ROWS / RP_PACK) * RP_PACK, t = at / (S::ROWS / RP_PACK);
        float sums[RP_PACK];

        if (first_row + of >= args.n || first_token + t >= args.m)
            continue;
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            sums[i] = tile[t * S::SUM_PITCH + of + i];
        store_sums<typename S::T>(args, first_token + t, first_row + of, sums,
                                  args.n - first_row - of, wide);
    }
}
