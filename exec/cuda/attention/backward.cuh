/*
 * Attention backward on tensor cores by mma.sync: one pass, five matmuls (FlashAttention-2, Dao 2023,
 * algorithm 2), in which sums of dq have one order, by turns (turns.cuh).
 *
 *   P = exp(scale q k^T - lse);  delta[i] = d_out[i] . out[i] (the caller's)
 *   Y[i,j] = P[i,j] (d_out[i] . v[j] - delta[i])
 *   dq[i] = scale sum_j Y[i,j] k[j];  dk[j] = scale sum_i Y[i,j] q[i];  dv[j] = sum_i P[i,j]
 * d_out[i]
 *
 * q, d_out, dq: [T,H,D]; k, v, dk, dv: [T,K,D]; bf16 or fp16, D 64 or 128. All =. Sums fp32; P and
 * Y are rounded to the storage before they multiply. Oracle: exec/host/attention.c.
 *
 * A block of 8 warps has KEYS keys of one kv head (backward.cu: 128, backward-wide.cu: 256), and goes through
 * tiles of queries, the last first, of each the group's heads. Scores are computed transposed: an mma leaves P^T
 * and Y^T as the next takes its left operand. Y^T goes through shared memory to become that of dq, of whose tile
 * a warp has 32 x 32.
 *
 *   block 0   | last tile | next to last | ... | first |      keys 0 ..: the most tiles
 *   block 1               | last tile | ...    | second |     a tile behind, for dq's turns
 *
 *   a step    | P, Y, dv, dk, 16 queries at a time | sync | dq = Y k, its turn | sync
 *   copies    | q of the next step                        | d_out of it
 *
 * A warp of 16 keys multiplies them with 16 queries at a time. One of 32 takes 8: each read of q and d_out from
 * shared memory then multiplies twice as many, and k and v stay in registers.
 */
#pragma once

#include <math.h>

#include <type_traits>

#include "exec/cuda/attention/steps.cuh"
#include "exec/cuda/base/common.cuh"

#define WARPS 8
#ifndef WARP_KEYS
#define WARP_KEYS (KEYS / WARPS)
#endif
#define ROWS WARP_KEYS /* keys of a warp */
#define FRAGMENTS (ROWS / 16)
#define THREADS (WARPS * 32)

namespace /* each value of KEYS has its own */
{

template <int D> struct Tile {
    static constexpr int QUERIES = 8192 / D; /* dq's tile is that of 8 warps */
    static constexpr int ACROSS = D / 32;    /* warps that share rows */
    static constexpr int PITCH = QUERIES < 64 ? 64 : QUERIES; /* of rows of Y^T: eight chunks */
    /* bytes of shared memory */
    static constexpr uint32_t QUERY_BYTES = QUERIES * D * 2, KEY_BYTES = KEYS * D * 2;
    static constexpr uint32_t Y_BYTES = KEYS * PITCH * 2, ROW_BYTES = 2 * QUERIES * 4;
};

/* Offsets of the parts of shared memory: k, two stages of q, d_out, Y^T, two of lse and delta. */
template <int D> struct Shared {
    using Of = Tile<D>;
    static constexpr uint32_t BYTES =
        Of::KEY_BYTES + 3 * Of::QUERY_BYTES + Of::Y_BYTES + 2 * Of::ROW_BYTES;
    uint32_t k;

    __device__ __forceinline__ Shared() : k(dynamic_shared())
    {
    }
    __device__ __forceinline__ uint32_t q(uint32_t stage) const
    {
        return k + Of::KEY_BYTES + stage * Of::QUERY_BYTES;
    }
    __device__ __forceinline__ uint32_t d_out() const
    {
        return q(2);
    }
    __device__ __forceinline__ uint32_t y() const
    {
        return q(3);
    }
    __device__ __forceinline__ uint32_t rows(uint32_t stage) const
    {
        return y() + Of::Y_BYTES + stage * Of::ROW_BYTES;
    }
};

/* A warp's keys in registers as left operands, and the sums of their gradients. backward-pairs.cu has another kind,
 * with its own load_keys(), differentiate_keys(), end_step() and store_keys(). */
template <int D> struct Keys {
    static constexpr uint32_t SHARED_BYTES = Shared<D>::BYTES;
    static constexpr bool SPREADS = false; /* whether halves of a block's warps do different work */
    static constexpr bool ENDS_LATE = KEYS < 256; /* whether a turn ends in the middle of the next step */
    uint32_t k; /* in shared memory */
    uint32_t v[FRAGMENTS][D / 16][4];
    float dk[FRAGMENTS][D / 8][4], dv[FRAGMENTS][D / 8][4];
};

/* P^T and Y^T of 16 keys x 16 queries, as left operands. */
struct Weights {
    uint32_t p[4], y[4];
};

} // namespace

/* Starts copying the queries of a step, or their d_out. @N: threads that do: all, or one half of them */
template <typename T, int D, int N = THREADS>
static __device__ __forceinline__ void
copy_queries(uint32_t tile, const void *array, const RpAttentionArgs &args, const Place &place,
             const Steps &at)
{
    const size_t stride = args.heads * D;
    const size_t head = (size_t)head_of(place, at);

    copy_tile<D, Tile<D>::QUERIES, N>(
        tile, (const T *)array + (place.start + (size_t)at.query) * stride + head * D, stride,
        place.length - at.query);
}

/* Starts copying their lse, and behind those their delta. */
template <int D, int N = THREADS>
static __device__ __forceinline__ void
copy_rows(uint32_t rows, const RpAttentionArgs &args, const float *delta, const Place &place,
          const Steps &at)
{
    const int thread = N == THREADS ? (int)threadIdx.x : (int)threadIdx.x % N;
    const int queries = Tile<D>::QUERIES, row = thread % queries;
    const int valid = place.length - at.query;
    const float *values = thread < queries ? args.lse : delta;
    const size_t head = (size_t)head_of(place, at);

    if (thread < 2 * queries)
        copy_async_4(rows + (uint32_t)thread * 4,
                     values + head * args.tokens + place.start +
                         (size_t)(at.query + (row < valid ? row : 0)),
                     row < valid);
}

/* Starts copying q, lse and delta of the step @next, if it is one. */
template <typename T, int D, int N = THREADS>
static __device__ __forceinline__ void
copy_next(const Shared<D> &shared, uint32_t stage, const RpAttentionArgs &args, const BackwardScratch &scratch,
          const Place &place, const Steps &next)
{
    if (next.more()) {
        copy_queries<T, D, N>(shared.q(stage), args.q, args, place, next);
        copy_rows<D, N>(shared.rows(stage), args, scratch.delta, place, next);
    }
}

/* Y^T of 16 keys from @row on and 16 queries, to its tile. */
template <int D>
static __device__ __forceinline__ void
store_weights(uint32_t y_tile, int row, int part, const uint32_t (&y)[4])
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int i = 0; i < 4; i++)
        store_shared(
            y_tile + tile_offset<Tile<D>::PITCH>(row + i % 2 * 8 + lane / 4, part * 2 + i / 2) +
                (uint32_t)(lane & 3) * 4,
            y[i]);
}

/* A warp's 32 x 32 of a tile of dq: c = Y k. */
template <typename T, int D>
static __device__ __forceinline__ void
multiply_queries(float (&c)[8][4], int warp, uint32_t y_tile, uint32_t k_tile,
                 const LaneOffset<Tile<D>::PITCH, true> &y_lane, const LaneOffset<D> &k_lane)
{
    /* in units of 16 */
    const int row = warp / Tile<D>::ACROSS * 2, column = warp % Tile<D>::ACROSS * 2;

#pragma unroll
    for (int i = 0; i < 32; i++)
        c[i / 4][i % 4] = 0;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t a[2][4];

#pragma unroll
        for (int m = 0; m < 2; m++)
            load_matrices_transposed(a[m], y_lane.at(y_tile, k, row + m));
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t b[4];

            load_matrices_transposed(b, k_lane.at(k_tile, k, column + n));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply_add(T(), c[m * 4 + 2 * n], a[m], b[0], b[1]);
                multiply_add(T(), c[m * 4 + 2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* A warp's part of a tile of dq, at its turn. @seen: of the count; @first_head: of the launch */
template <typename T, int D>
static __device__ __forceinline__ void
differentiate_queries(const RpAttentionArgs &args, const BackwardScratch &scratch, const Shared<D> &shared,
                      const Place &place, const Steps &at, const Share &share, unsigned seen, int first_head, const LaneOffset<D> &lane)
{
    const int warp = own_warp();
    const LaneOffset<Tile<D>::PITCH, true> y_lane;
    float c[8][4];

    multiply_queries<T, D>(c, warp, shared.y(), shared.k, y_lane, lane);
    add_queries<T, D, Tile<D>::QUERIES, 4>(
        args, scratch, place, at, share, head_of(place, at) - first_head, seen, c, warp,
        warp / Tile<D>::ACROSS * 32, warp % Tile<D>::ACROSS * 32);
}

/* Copies k and v, and the first step's queries; puts k and v into registers; then copies d_out. */
template <typename T, int D>
static __device__ __forceinline__ void
load_keys(Keys<D> &keys, const Shared<D> &shared, const RpAttentionArgs &args,
          const BackwardScratch &scratch, const Place &place, const Steps &at, const LaneOffset<D> &lane)
{
    const size_t k_stride = args.kv_heads * D, v_stride = attention_v_row(args) * D;
    const size_t first = place.start + (size_t)at.begin, column = (size_t)place.head * D;
    const uint32_t v_tile = shared.d_out(), row = tile_bytes<D>(own_warp() * ROWS);

    static_assert(Tile<D>::QUERY_BYTES + Tile<D>::Y_BYTES >= Tile<D>::KEY_BYTES, "v is there at first");
    copy_tile<D, KEYS, THREADS>(shared.k, (const T *)args.k + first * k_stride + column, k_stride,
                                place.length - at.begin);
    copy_tile<D, KEYS, THREADS>(v_tile, (const T *)args.v + first * v_stride + column, v_stride,
                                place.length - at.begin);
    copy_queries<T, D>(shared.q(0), args.q, args, place, at);
    copy_rows<D>(shared.rows(0), args, scratch.delta, place, at);
    set_zero(keys.dk);
    set_zero(keys.dv);
    copy_async_wait();
    __syncthreads();
    keys.k = shared.k + row;
#pragma unroll
    for (int i = 0; i < FRAGMENTS * D / 16; i++)
        load_matrices(keys.v[i / (D / 16)][i % (D / 16)],
                      lane.at(v_tile + row, i / (D / 16), i % (D / 16)));
    __syncthreads();
    copy_queries<T, D>(shared.d_out(), args.d_out, args, place, at);
}

/* Writes the sums of the block's keys. */
template <typename T, int D>
static __device__ __forceinline__ void
store_keys(const Keys<D> &keys, const RpAttentionArgs &args, const Place &place, const Steps &at)
{
    const int row = at.begin + own_warp() * ROWS;
    const size_t stride = attention_v_row(args) * D;
    const size_t target = (place.start + (size_t)row) * stride + (size_t)place.head * D;
    float scale[FRAGMENTS][2], one[FRAGMENTS][2];

#pragma unroll
    for (int i = 0; i < FRAGMENTS * 2; i++) {
        scale[i / 2][i % 2] = args.scale;
        one[i / 2][i % 2] = 1;
    }
    store_rows<T, D>((T *)args.dk + target, stride, place.length - row, keys.dk, scale, true);
    store_rows<T, D>((T *)args.dv + target, stride, place.length - row, keys.dv, one, true);
}

/* The address that this lane gives to ldmatrix for 8 rows x 32 columns of 64. */
struct EightRows {
    uint32_t row, chunk;

    __device__ __forceinline__ EightRows()
    {
        const uint32_t lane = threadIdx.x & 31;

        row = (lane & 7) * 128;
        chunk = (lane >> 3 ^ (lane & 7)) << 4;
    }
    __device__ __forceinline__ uint32_t at(uint32_t tile, int row8, int column32) const
    {
        return tile + row + (uint32_t)(row8 * 1024) + (chunk ^ (uint32_t)(column32 << 6));
    }
};

/* How a warp reads q and d_out for its scores. */
template <int D>
using Lanes = std::conditional_t<FRAGMENTS == 1, LaneOffset<D, true>, EightRows>;

/* s, y = q k^T and d_out v^T transposed, of the warp's keys and 16 queries, eight and eight. */
template <typename T, int D>
static __device__ __forceinline__ void
multiply_scores(float (&s)[2][FRAGMENTS][4], float (&y)[2][FRAGMENTS][4],
                const uint32_t (&k)[FRAGMENTS][D / 16][4],
                const uint32_t (&v)[FRAGMENTS][D / 16][4], uint32_t q_tile, uint32_t o_tile,
                int part, const LaneOffset<D, true> &across)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        s[i / 4][0][i % 4] = y[i / 4][0][i % 4] = 0;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t q[4], o[4];

        load_matrices(q, across.at(q_tile, part, d));
        load_matrices(o, across.at(o_tile, part, d));
        multiply_add(T(), s[0][0], k[0][d], q[0], q[1]);
        multiply_add(T(), s[1][0], k[0][d], q[2], q[3]);
        multiply_add(T(), y[0][0], v[0][d], o[0], o[1]);
        multiply_add(T(), y[1][0], v[0][d], o[2], o[3]);
    }
}

/* The same of 8 queries. */
template <typename T, int D>
static __device__ __forceinline__ void
multiply_scores(float (&s)[FRAGMENTS][4], float (&y)[FRAGMENTS][4],
                const uint32_t (&k)[FRAGMENTS][D / 16][4],
                const uint32_t (&v)[FRAGMENTS][D / 16][4], uint32_t q_tile, uint32_t o_tile,
                int row8, const EightRows &eight)
{
#pragma unroll
    for (int i = 0; i < FRAGMENTS * 4; i++)
        s[i / 4][i % 4] = y[i / 4][i % 4] = 0;
#pragma unroll
    for (int d = 0; d < D / 32; d++) {
        uint32_t q[4], o[4];

        load_matrices(q, eight.at(q_tile, row8, d));
        load_matrices(o, eight.at(o_tile, row8, d));
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++) {
                multiply_add(T(), s[m], k[m][2 * d + half], q[2 * half], q[2 * half + 1]);
                multiply_add(T(), y[m], v[m][2 * d + half], o[2 * half], o[2 * half + 1]);
            }
        }
    }
}

/* Half @n of the weights, of 8 queries from @query + @first on. @rows: lse from @query on in shared
 * memory, delta @apart bytes behind. Queries beyond the sequence are all zeros, so that P is 1, but
 * multiplies 0. */
template <typename T, bool MASKED>
static __device__ __forceinline__ void
differentiate(Weights (&weights)[FRAGMENTS], float (&s)[FRAGMENTS][4], float (&y)[FRAGMENTS][4],
              int n, uint32_t rows, uint32_t apart, float scale_log2, const Place &place, int query,
              int first, int key, int window)
{
    const int lane = (int)threadIdx.x & 31;
    const uint32_t values = rows + (uint32_t)(first + (lane & 3) * 2) * 4;
    const float2 lses = load_shared_pair(values), deltas = load_shared_pair(values + apart);

#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float base = (e % 2 ? lses.y : lses.x) * LOG2_E;
            const int i = query + first + (lane & 3) * 2 + e % 2;
            const int j = key + m * 16 + (e / 2) * 8 + lane / 4;
            float p = fast_exp2(fmaf(s[m][e], scale_log2, -base));

            if (MASKED && is_hidden(place, window, i, j))
                p = 0;
            s[m][e] = p;
            y[m][e] = p * (y[m][e] - (e % 2 ? deltas.y : deltas.x));
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            weights[m].p[2 * n + half] = pack(T(), s[m][2 * half], s[m][2 * half + 1]);
            weights[m].y[2 * n + half] = pack(T(), y[m][2 * half], y[m][2 * half + 1]);
        }
    }
}

/* dv += P^T d_out, dk += Y^T q, of rows 16 @part of the tiles. */
template <typename T, int D>
static __device__ __forceinline__ void
multiply_part(Keys<D> &keys, const Weights (&weights)[FRAGMENTS], uint32_t q_tile, uint32_t o_tile,
              int part, const LaneOffset<D> &lane)
{
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        uint32_t b[4];

        load_matrices_transposed(b, lane.at(o_tile, part, n / 2));
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++) {
            multiply_add(T(), keys.dv[m][n], weights[m].p, b[0], b[1]);
            multiply_add(T(), keys.dv[m][n + 1], weights[m].p, b[2], b[3]);
        }
    }
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        uint32_t b[4];

        load_matrices_transposed(b, lane.at(q_tile, part, n / 2));
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++) {
            multiply_add(T(), keys.dk[m][n], weights[m].y, b[0], b[1]);
            multiply_add(T(), keys.dk[m][n + 1], weights[m].y, b[2], b[3]);
        }
    }
}

/* Weights of 16 queries, @part of a step's tile. @key: the warp's first */
template <typename T, int D, bool MASKED>
static __device__ __forceinline__ void
weigh(Weights (&weights)[FRAGMENTS], const uint32_t (&k)[FRAGMENTS][D / 16][4],
      const uint32_t (&v)[FRAGMENTS][D / 16][4], const Shared<D> &shared, uint32_t stage, int part,
      const AttentionGrid &grid, const Place &place, const Steps &at, int key,
      const Lanes<D> &lanes)
{
    const uint32_t q_tile = shared.q(stage), o_tile = shared.d_out();
    const uint32_t apart = Tile<D>::ROW_BYTES / 2;

    if constexpr (FRAGMENTS == 1) {
        float s[2][FRAGMENTS][4], y[2][FRAGMENTS][4];

        multiply_scores<T, D>(s, y, k, v, q_tile, o_tile, part, lanes);
#pragma unroll
        for (int n = 0; n < 2; n++)
            differentiate<T, MASKED>(weights, s[n], y[n], n,
                                     shared.rows(stage) + (uint32_t)part * 64, apart,
                                     grid.scale_log2, place, at.query + part * 16, n * 8, key,
                                     grid.window);
    } else {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int row8 = part * 2 + n;
            float s[FRAGMENTS][4], y[FRAGMENTS][4];

            multiply_scores<T, D>(s, y, k, v, q_tile, o_tile, row8, lanes);
            differentiate<T, MASKED>(weights, s, y, n, shared.rows(stage) + (uint32_t)row8 * 32,
                                     apart, grid.scale_log2, place, at.query + row8 * 8, 0, key,
                                     grid.window);
        }
    }
}

/* Computes a warp's P and Y, and adds their products to dk and dv. k is in registers meanwhile: dq
 * has no space for it. Returns before its Y^T is in shared memory for others. */
template <bool MASKED, typename T, int D>
static __device__ __forceinline__ void
differentiate_keys(Keys<D> &keys, const Shared<D> &shared, uint32_t stage,
                   const RpAttentionArgs &args, const AttentionGrid &grid, const BackwardScratch &scratch,
                   const Place &place, const Steps &at, const Steps &next, const LaneOffset<D> &lane,
                   const Lanes<D> &lanes)
{
    const int queries = Tile<D>::QUERIES, row = own_warp() * ROWS;
    const uint32_t q_tile = shared.q(stage), o_tile = shared.d_out();
    uint32_t k[FRAGMENTS][D / 16][4];

#pragma unroll
    for (int i = 0; i < FRAGMENTS * D / 16; i++)
        load_matrices(k[i / (D / 16)][i % (D / 16)], lane.at(keys.k, i / (D / 16), i % (D / 16)));
#pragma unroll
    for (int part = 0; part < queries / 16; part++) {
        const bool sees =
            FRAGMENTS == 1 || !MASKED || at.query + part * 16 + 15 >= at.begin + row;
        Weights weights[FRAGMENTS] = {};

        if (sees)
            weigh<T, D, MASKED>(weights, k, keys.v, shared, stage, part, grid, place, at,
                                at.begin + row, lanes);
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
            store_weights<D>(shared.y(), row + m * 16, part, weights[m].y);
        if (sees)
            multiply_part<T, D>(keys, weights, q_tile, o_tile, part, lane);
    }
}

/* Behind the barrier at which Y^T is there. */
template <typename T, int D>
static __device__ __forceinline__ void
end_step(Keys<D> &keys, const Shared<D> &shared, uint32_t stage, const RpAttentionArgs &args,
         const BackwardScratch &scratch, const Place &place, const Steps &at, const Steps &next, const Share &share,
         int first_head, const LaneOffset<D> &lane)
{
    if (next.more())
        copy_queries<T, D>(shared.d_out(), args.d_out, args, place, next);
    differentiate_queries<T, D>(args, scratch, shared, place, at, share, glance_at_count(share.count), first_head,
                                lane);
}

template <typename T, int D, bool GAPS, typename Own = Keys<D>>
static __global__ void
__launch_bounds__(THREADS, 1)
    differentiate_all(const RpAttentionArgs args, const AttentionGrid grid, const BackwardScratch scratch,
                      unsigned *numbers, int first_kv_head)
{
    const Shared<D> shared;
    Place place = find_place<GAPS>(args, grid, take_number(numbers, shared.rows(1)));

    place.head += first_kv_head;
    if (place.rank * KEYS >= place.length)
        return;

    const LaneOffset<D> lane;
    const Lanes<D> lanes;
    Steps at = begin_steps<Tile<D>::QUERIES, KEYS>(args, place, grid.window);
    Share share = {TURN_ONLY, 0, nullptr};
    Own own;

    load_keys<T>(own, shared, args, scratch, place, at, lane);
    for (uint32_t stage = 0; at.more(); stage ^= 1) {
        const Steps next = next_step<Tile<D>::QUERIES>(at);

        copy_async_wait();
        __syncthreads();
        if (!Own::ENDS_LATE && share.ends() && threadIdx.x == 0)
            end_turn(share.count);
        if (!Own::SPREADS)
            copy_next<T, D>(shared, stage ^ 1, args, scratch, place, next);
        if (is_masked<Tile<D>::QUERIES, KEYS>(place, grid.window, at.query, at.begin))
            differentiate_keys<true, T>(own, shared, stage, args, grid, scratch, place, at, next, lane, lanes);
        else
            differentiate_keys<false, T>(own, shared, stage, args, grid, scratch, place, at, next, lane, lanes);
        __syncthreads();
        /* it takes as long as 600 cycles, in which others multiply */
        if (Own::ENDS_LATE && share.ends() && threadIdx.x == THREADS - 1)
            end_turn(share.count);
        share = share_of<Tile<D>::QUERIES, KEYS>(args, scratch, grid.window, place, at);
        end_step<T>(own, shared, stage, args, scratch, place, at, next, share,
                    first_kv_head * at.group, lane);
        at = next;
    }
    __syncthreads();
    if (share.ends() && threadIdx.x == THREADS - 1)
        end_turn(share.count);
    store_keys<T>(own, args, place, at);
}

template <typename T, int D, typename Own = Keys<D>>
static cudaError_t
launch(const RpAttentionArgs *args, const AttentionGrid *grid, const BackwardScratch *scratch,
       size_t first, unsigned *numbers, cudaStream_t stream)
{
    static std::atomic<uint64_t> done[2];
    const bool gaps = args->gaps != nullptr;
    const auto kernel =
        gaps ? differentiate_all<T, D, true, Own> : differentiate_all<T, D, false, Own>;
    const int bytes = (int)Own::SHARED_BYTES;

    static_assert(Own::SHARED_BYTES <= (KEYS == 256 ? 227 : 99) * 1024,
                  "shared memory of a block of sm_90; since sm_86");

    const cudaError_t status = attention_allow_shared((const void *)kernel, bytes, &done[gaps]);

    if (status != cudaSuccess)
        return status;
    return attention_launch(kernel, grid->units * grid->blocks, THREADS, bytes, stream, *args, *grid,
                            *scratch, numbers, (int)first);
}
