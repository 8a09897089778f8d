/*
 * Code of attention's backward by mma.sync for any number of keys a block, KEYS (backward.cu: 128,
 * backward-wide.cu: 256): shared memory, copies, and dq = Y k.
 */
#pragma once

#include "exec/cuda/attention/steps.cuh"
#include "exec/cuda/base/common.cuh"

#define WARPS 8
#define ROWS (KEYS / WARPS) /* keys of a warp */
#define FRAGMENTS (ROWS / 16)
#define THREADS (WARPS * 32)

namespace /* each value of KEYS has its own */
{

template <int D> struct Tile {
    static constexpr int QUERIES = 8192 / D; /* dq's tile is that of 8 warps */
    static constexpr int ACROSS = D / 32;    /* warps that share rows */
    /* bytes of shared memory */
    static constexpr uint32_t QUERY_BYTES = QUERIES * D * 2, KEY_BYTES = KEYS * D * 2;
    static constexpr uint32_t Y_BYTES = KEYS * QUERIES * 2, ROW_BYTES = 2 * QUERIES * 4;
};

/* Offsets of the parts of shared memory: k, two stages of q, d_out, Y^T, two of lse and delta. */
template <int D> struct Shared {
    using Of = Tile<D>;
    static constexpr uint32_t BYTES =
        Of::KEY_BYTES + 3 * Of::QUERY_BYTES + Of::Y_BYTES + 2 * Of::ROW_BYTES;
    uint32_t k;

    static_assert(Of::QUERY_BYTES + Of::Y_BYTES >= Of::KEY_BYTES, "v is there at first");

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

/* A warp's keys in registers as left operands, and the sums of their gradients. */
template <int D> struct Keys {
    uint32_t k; /* in shared memory */
    uint32_t v[FRAGMENTS][D / 16][4];
    float dk[FRAGMENTS][D / 8][4], dv[FRAGMENTS][D / 8][4];
};

/* P^T and Y^T of 16 keys x 16 queries, as left operands. */
struct Weights {
    uint32_t p[4], y[4];
};

} // namespace

/* Starts copying the queries of a step, or their d_out. */
template <typename T, int D>
static __device__ __forceinline__ void
copy_queries(uint32_t tile, const void *array, const RpAttentionArgs &args, const Place &place,
             const Steps &at)
{
    const size_t stride = args.heads * D;
    const size_t head = (size_t)head_of(place, at);

    copy_tile<D, Tile<D>::QUERIES, THREADS>(
        tile, (const T *)array + (place.start + (size_t)at.query) * stride + head * D, stride,
        place.length - at.query);
}

/* Starts copying their lse, and behind those their delta. */
template <int D>
static __device__ __forceinline__ void
copy_rows(uint32_t rows, const RpAttentionArgs &args, const float *delta, const Place &place,
          const Steps &at)
{
    const int queries = Tile<D>::QUERIES, row = (int)threadIdx.x % queries;
    const int valid = place.length - at.query;
    const float *values = (int)threadIdx.x < queries ? args.lse : delta;
    const size_t head = (size_t)head_of(place, at);

    if ((int)threadIdx.x < 2 * queries)
        copy_async_4(rows + threadIdx.x * 4,
                     values + head * args.tokens + place.start +
                         (size_t)(at.query + (row < valid ? row : 0)),
                     row < valid);
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
            y_tile + tile_offset<Tile<D>::QUERIES>(row + i % 2 * 8 + lane / 4, part * 2 + i / 2) +
                (uint32_t)(lane & 3) * 4,
            y[i]);
}

/* A warp's 32 x 32 of a tile of dq: c = Y k. */
template <typename T, int D>
static __device__ __forceinline__ void
multiply_queries(float (&c)[8][4], uint32_t y_tile, uint32_t k_tile,
                 const LaneOffset<Tile<D>::QUERIES, true> &y_lane, const LaneOffset<D> &k_lane)
{
    const int warp = uniform((int)threadIdx.x / 32);
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

/* A warp's part of a tile of dq, at its turn. @first_head: of the launch */
template <typename T, int D>
static __device__ __forceinline__ void
differentiate_queries(const RpAttentionArgs &args, const BackwardScratch &scratch,
                      const Shared<D> &shared, const Place &place, const Steps &at,
                      const Share &share, int first_head,
                      const LaneOffset<Tile<D>::QUERIES, true> &y_lane, const LaneOffset<D> &lane)
{
    const int warp = uniform((int)threadIdx.x / 32);
    const unsigned seen = glance_at_count(share.count);
    float c[8][4];

    multiply_queries<T, D>(c, shared.y(), shared.k, y_lane, lane);
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
    const uint32_t v_tile = shared.d_out(),
                   row = tile_bytes<D>(uniform((int)threadIdx.x / 32) * ROWS);

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
store_keys(const RpAttentionArgs &args, const Place &place, const Steps &at, const Keys<D> &keys)
{
    const int row = at.begin + uniform((int)threadIdx.x / 32) * ROWS;
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
