/*
 * Attention backward on tensor cores: one pass, five matmuls (FlashAttention-2, Dao 2023,
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
 * A block of 8 warps has 128 keys of one kv head, 16 a warp, and goes through tiles of queries, the
 * last first, of each the group's heads. Scores are computed transposed: an mma leaves P^T and Y^T
 * as the next takes its left operand. Y^T goes through shared memory to become that of dq, of whose
 * tile a warp has 32 x 32.
 *
 *   block 0   | last tile | next to last | ... | first |      keys 0 ..: the most tiles
 *   block 1               | last tile | ...    | second |     a tile behind, for dq's turns
 *
 *   a step    | P, Y, dv, dk, 16 queries at a time | sync | dq = Y k, its turn | sync
 *   copies    | q of the next step                        | d_out of it
 */
#include <math.h>

#include "exec/cuda/attention/steps.cuh"
#include "exec/cuda/base/common.cuh"

#define WARPS (KEYS / 16)
#define THREADS (WARPS * 32)
#define SWATH 16u /* units whose blocks run beside each other: few of each wait for turns */
#define MOST_SUMS ((size_t)128 << 20) /* bytes of dq's sums at a time, if one kv head's are fewer */

template <int D> struct Tile {
    static constexpr int QUERIES = 8192 / D; /* dq's tile is that of 8 warps */
    static constexpr int ACROSS = D / 32;    /* of which so many share rows */
    /* bytes of shared memory */
    static constexpr uint32_t QUERY_BYTES = QUERIES * D * 2, KEY_BYTES = KEYS * D * 2;
    static constexpr uint32_t Y_BYTES = KEYS * QUERIES * 2, ROW_BYTES = 2 * QUERIES * 4;
};

/* Where the parts of shared memory begin: k, two stages of q, d_out, Y^T, two of lse and delta. */
template <int D> struct Shared {
    using Of = Tile<D>;
    static constexpr uint32_t BYTES =
        Of::KEY_BYTES + 3 * Of::QUERY_BYTES + Of::Y_BYTES + 2 * Of::ROW_BYTES;
    uint32_t k;

    static_assert(BYTES <= 99 * 1024, "shared memory of a block since sm_86");
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

/* The block's keys, v in registers as left operands, and the sums of their gradients. */
template <int D> struct Keys {
    uint32_t k; /* a warp's, in shared memory */
    uint32_t v[D / 16][4];
    float dk[1][D / 8][4], dv[1][D / 8][4];
};

/* Of 16 keys x 16 queries, q k^T and d_out v^T transposed; then P^T and Y^T. */
struct Scores {
    float s[2][4], y[2][4];
};

/* The same as left operands. */
struct Weights {
    uint32_t p[4], y[4];
};

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

template <typename T, int D>
static __device__ __forceinline__ void
multiply_scores(Scores &scores, const uint32_t (&k)[D / 16][4], const uint32_t (&v)[D / 16][4],
                uint32_t q_tile, uint32_t o_tile, int part, const LaneOffset<D, true> &across)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        scores.s[i / 4][i % 4] = scores.y[i / 4][i % 4] = 0;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t q[4], o[4];

        load_matrices(q, across.at(q_tile, part, d));
        load_matrices(o, across.at(o_tile, part, d));
        multiply_add(T(), scores.s[0], k[d], q[0], q[1]);
        multiply_add(T(), scores.s[1], k[d], q[2], q[3]);
        multiply_add(T(), scores.y[0], v[d], o[0], o[1]);
        multiply_add(T(), scores.y[1], v[d], o[2], o[3]);
    }
}

/* @rows: lse of the 16 queries in shared memory, delta @apart bytes behind. Queries beyond the
 * sequence are all zeros, so that P is 1, but multiplies 0, and Y is 0. */
template <typename T, bool MASKED>
static __device__ __forceinline__ Weights
differentiate(Scores &scores, uint32_t rows, uint32_t apart, float scale_log2, int query, int key,
              int window)
{
    const int lane = (int)threadIdx.x & 31;
    Weights weights;

#pragma unroll
    for (int n = 0; n < 2; n++) {
        const uint32_t place = rows + (uint32_t)(n * 8 + (lane & 3) * 2) * 4;
        const float2 lses = load_shared_pair(place), deltas = load_shared_pair(place + apart);

#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float base = (e % 2 ? lses.y : lses.x) * LOG2_E;
            const int i = query + n * 8 + (lane & 3) * 2 + e % 2;
            const int j = key + (e / 2) * 8 + lane / 4;
            float p = fast_exp2(fmaf(scores.s[n][e], scale_log2, -base));

            if (MASKED && (j > i || j <= i - window))
                p = 0;
            scores.s[n][e] = p;
            scores.y[n][e] = p * (scores.y[n][e] - (e % 2 ? deltas.y : deltas.x));
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            weights.p[2 * n + half] = pack(T(), scores.s[n][2 * half], scores.s[n][2 * half + 1]);
            weights.y[2 * n + half] = pack(T(), scores.y[n][2 * half], scores.y[n][2 * half + 1]);
        }
    }
    return weights;
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

/* c[16,D] += a[16,16] B, of rows 16 @part of a tile. */
template <typename T, int D>
static __device__ __forceinline__ void
multiply_part(float (&c)[1][D / 8][4], const uint32_t (&a)[4], uint32_t tile, int part,
              const LaneOffset<D> &lane)
{
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        uint32_t b[4];

        load_matrices_transposed(b, lane.at(tile, part, n / 2));
        multiply_add(T(), c[0][n], a, b[0], b[1]);
        multiply_add(T(), c[0][n + 1], a, b[2], b[3]);
    }
}

/* A warp's 32 x 32 of a tile of dq: c = Y k. */
template <typename T, int D>
static __device__ __forceinline__ void
multiply_queries(float (&c)[8][4], uint32_t y_tile, uint32_t k_tile,
                 const LaneOffset<Tile<D>::QUERIES, true> &y_lane, const LaneOffset<D> &k_lane)
{
    const int warp = uniform((int)threadIdx.x / 32);
    const int row = warp / Tile<D>::ACROSS * 2, column = warp % Tile<D>::ACROSS * 2; /* of 16 */

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

/* A warp's P, Y, and what they add to dk and dv; the next scores are multiplied before the last are
 * used. k is in registers meanwhile: dq has no room for it. Returns before its Y^T is in shared
 * memory for others. */
template <bool MASKED, typename T, int D>
static __device__ __forceinline__ void
differentiate_keys(Keys<D> &keys, const Shared<D> &shared, uint32_t stage,
                   const AttentionGrid &grid, const Steps &at, const LaneOffset<D> &lane,
                   const LaneOffset<D, true> &across)
{
    const int queries = Tile<D>::QUERIES, row = uniform((int)threadIdx.x / 32) * 16;
    const uint32_t q_tile = shared.q(stage), o_tile = shared.d_out();
    uint32_t k[D / 16][4];
    Scores scores;

#pragma unroll
    for (int d = 0; d < D / 16; d++)
        load_matrices(k[d], lane.at(keys.k, 0, d));
#pragma unroll
    for (int part = 0; part < queries / 16; part++) {
        multiply_scores<T, D>(scores, k, keys.v, q_tile, o_tile, part, across);

        const Weights weights = differentiate<T, MASKED>(
            scores, shared.rows(stage) + (uint32_t)part * 64, Tile<D>::ROW_BYTES / 2,
            grid.scale_log2, at.query + part * 16, at.begin + row, grid.window);

        store_weights<D>(shared.y(), row, part, weights.y);
        multiply_part<T, D>(keys.dv, weights.p, o_tile, part, lane);
        multiply_part<T, D>(keys.dk, weights.y, q_tile, part, lane);
    }
}

/* A warp's part of a tile of dq, at its turn. @first_head: of the launch */
template <typename T, int D>
static __device__ __forceinline__ void
differentiate_queries(const RpAttentionArgs &args, const BackwardRoom &room,
                      const Shared<D> &shared, const Place &place, const Steps &at,
                      const Share &share, int first_head,
                      const LaneOffset<Tile<D>::QUERIES, true> &y_lane, const LaneOffset<D> &lane)
{
    const int warp = uniform((int)threadIdx.x / 32);
    const unsigned seen = glance_at_count(share.count);
    float c[8][4];

    multiply_queries<T, D>(c, shared.y(), shared.k, y_lane, lane);
    add_queries<T, D, Tile<D>::QUERIES, 4>(
        args, room, place, at, share, head_of(place, at) - first_head, seen, c, warp,
        warp / Tile<D>::ACROSS * 32, warp % Tile<D>::ACROSS * 32);
}

/* Copies k and v, and the first step's queries; puts k and v into registers; then copies d_out. */
template <typename T, int D>
static __device__ __forceinline__ void
load_keys(Keys<D> &keys, const Shared<D> &shared, const RpAttentionArgs &args,
          const BackwardRoom &room, const Place &place, const Steps &at, const LaneOffset<D> &lane)
{
    const size_t k_stride = args.kv_heads * D, v_stride = attention_v_row(args) * D;
    const size_t first = place.start + (size_t)at.begin, column = (size_t)place.head * D;
    const uint32_t v_tile = shared.d_out(),
                   row = tile_bytes<D>(uniform((int)threadIdx.x / 32) * 16);

    copy_tile<D, KEYS, THREADS>(shared.k, (const T *)args.k + first * k_stride + column, k_stride,
                                place.length - at.begin);
    copy_tile<D, KEYS, THREADS>(v_tile, (const T *)args.v + first * v_stride + column, v_stride,
                                place.length - at.begin);
    copy_queries<T, D>(shared.q(0), args.q, args, place, at);
    copy_rows<D>(shared.rows(0), args, room.delta, place, at);
    set_zero(keys.dk);
    set_zero(keys.dv);
    copy_async_wait();
    __syncthreads();
    keys.k = shared.k + row;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        load_matrices(keys.v[k], lane.at(v_tile + row, 0, k));
    __syncthreads();
    copy_queries<T, D>(shared.d_out(), args.d_out, args, place, at);
}

template <typename T, int D>
__global__ void
__launch_bounds__(THREADS, 1)
    differentiate_all(const RpAttentionArgs args, const AttentionGrid grid, const BackwardRoom room,
                      unsigned *numbers, int first_kv_head)
{
    const Shared<D> shared;
    Place place = find_place(args, grid, take_number(numbers, shared.rows(1)));

    place.head += first_kv_head;
    if (place.rank * KEYS >= place.length)
        return;

    const LaneOffset<D> lane;
    const LaneOffset<D, true> across;
    const LaneOffset<Tile<D>::QUERIES, true> y_lane;
    Steps at = begin_steps<Tile<D>::QUERIES>(args, place, grid.window);
    Share before = {TURN_ONLY, 0, nullptr};
    Keys<D> keys;

    load_keys<T, D>(keys, shared, args, room, place, at, lane);
    for (uint32_t stage = 0; at.more; stage ^= 1) {
        const Steps next = next_step<Tile<D>::QUERIES>(at);

        copy_async_wait();
        __syncthreads();
        if (before.ends() && threadIdx.x == 0)
            end_turn(before.count);
        if (next.more) {
            copy_queries<T, D>(shared.q(stage ^ 1), args.q, args, place, next);
            copy_rows<D>(shared.rows(stage ^ 1), args, room.delta, place, next);
        }
        if (is_masked<Tile<D>::QUERIES>(at, grid.window))
            differentiate_keys<true, T, D>(keys, shared, stage, grid, at, lane, across);
        else
            differentiate_keys<false, T, D>(keys, shared, stage, grid, at, lane, across);
        __syncthreads();
        if (next.more)
            copy_queries<T, D>(shared.d_out(), args.d_out, args, place, next);
        before = share_of<Tile<D>::QUERIES>(args, room, grid.window, place, at);
        differentiate_queries<T, D>(args, room, shared, place, at, before, first_kv_head * at.group,
                                    y_lane, lane);
        at = next;
    }
    __syncthreads();
    if (before.ends() && threadIdx.x == 0)
        end_turn(before.count);

    const float scale[1][2] = {{args.scale, args.scale}}, one[1][2] = {{1, 1}};
    const int row = at.begin + uniform((int)threadIdx.x / 32) * 16;
    const size_t stride = attention_v_row(args) * D;
    const size_t target = (place.start + (size_t)row) * stride + (size_t)place.head * D;

    store_rows<T, D>((T *)args.dk + target, stride, place.length - row, keys.dk, scale, true);
    store_rows<T, D>((T *)args.dv + target, stride, place.length - row, keys.dv, one, true);
}

size_t
attention_backward_kv_heads(const RpAttentionArgs *args)
{
    const size_t bytes =
        args->heads / args->kv_heads * args->tokens * args->head_size * sizeof(float);
    const size_t most = bytes < MOST_SUMS ? MOST_SUMS / bytes : 1;

    return ceil_divide(args->kv_heads, ceil_divide(args->kv_heads, most));
}

template <typename T, int D>
static cudaError_t
launch(const RpAttentionArgs *args, const AttentionGrid *grid, const BackwardRoom *room,
       size_t first, unsigned *numbers, cudaStream_t stream)
{
    static std::atomic<uint64_t> done;
    const int bytes = (int)Shared<D>::BYTES;
    const cudaError_t status =
        attention_allow_shared((const void *)differentiate_all<T, D>, bytes, &done);

    if (status != cudaSuccess)
        return status;
    return attention_launch(differentiate_all<T, D>, grid->units * grid->blocks, THREADS, bytes,
                            stream, *args, *grid, *room, numbers, (int)first);
}

static cudaError_t
attention_backward_mma(const RpAttentionArgs *args, const AttentionGrid *grid,
                       const BackwardRoom *room, size_t first, unsigned *numbers,
                       cudaStream_t stream)
{
    const bool is_bf16 = args->dtype == RP_DTYPE_BF16, is_wide = args->head_size == 128;
    const auto run = is_wide   ? is_bf16 ? launch<__nv_bfloat16, 128> : launch<__half, 128>
                       : is_bf16 ? launch<__nv_bfloat16, 64>
                               : launch<__half, 64>;

    return run(args, grid, room, first, numbers, stream);
}

static bool
always(const RpAttentionArgs *args)
{
    return true;
}

typedef struct {
    const char *name;
    bool (*can)(const RpAttentionArgs *args); /* of what attention_is_fast() */
    cudaError_t (*run)(const RpAttentionArgs *args, const AttentionGrid *grid,
                       const BackwardRoom *room, size_t first, unsigned *numbers,
                       cudaStream_t stream);
} Way;

static const Way ways[RP_N_BACKWARD_WAYS] = {
    /* RP_BACKWARD_WGMMA */ {"wgmma", attention_has_wgmma, attention_backward_wgmma},
    /* RP_BACKWARD_MMA */ {"mma", always, attention_backward_mma}};

const char *
rp_cuda_backward_way_name(RpBackwardWay way)
{
    return ways[way].name;
}

bool
rp_cuda_backward_way_can(RpBackwardWay way, const RpAttentionArgs *args)
{
    return attention_backward_is_fast(args) && ways[way].can(args);
}

cudaError_t
attention_backward_by(RpBackwardWay way, const RpAttentionArgs *args, const BackwardRoom *room,
                      cudaStream_t stream)
{
    const size_t part = attention_backward_kv_heads(args);
    cudaError_t status = cudaSuccess;

    for (size_t first = 0; first < args->kv_heads && status == cudaSuccess; first += part) {
        RpAttentionArgs some = *args;
        AttentionGrid grid;

        some.kv_heads = min(part, args->kv_heads - first);
        if (!attention_grid(&some, some.kv_heads, KEYS, 0, &grid))
            return cudaErrorInvalidValue;
        grid.swath = min(grid.units, SWATH);
        status = ways[way].run(args, &grid, room, first, room->numbers + first / part, stream);
    }
    return status;
}
