/*
 * Backward by mma.sync for heads of 256, every card since sm_80: backward.cuh with 64 keys a block. Two warps share
 * 16 keys, since sums of dk and dv of 256 columns would not fit one's registers. Each computes one of the two
 * products of scores, and sums one of the two gradients:
 *
 *   warp w       S = q k^T      P = exp(S - lse), for warp w + 4       dv += P^T d_out
 *   warp w + 4   d_out v^T                            Y = P (.. - delta)       dk += Y^T q
 *   all                                                                        dq = Y k, its turn
 *
 * k of the first and v of the second are in registers; k is in shared memory too, for dq.
 */
#define KEYS 64
#define WARP_KEYS 16
#include "exec/cuda/attention/backward.cuh"

#define GROUPS 4 /* pairs of warps */

namespace
{

constexpr int D = 256, PARTS = Tile<D>::QUERIES / 16;
constexpr uint32_t P_BYTES = GROUPS * PARTS * 8 * 32 * 4;
constexpr uint32_t SHARED_BYTES = Shared<D>::BYTES + P_BYTES;

/* A warp of a pair. */
struct Half {
    bool second;               /* w + 4 */
    int row;                   /* its first key in the block */
    uint32_t kept[D / 16][4];  /* k or v of its keys, left operands */
    float sums[1][D / 8][4];   /* of dv or dk */
};

} // namespace

/* Place of element @i of this lane's P of a part in shared memory; both warps of a pair have the same. */
static __device__ __forceinline__ uint32_t
place_of_p(const Shared<D> &shared, int row, int part, int i)
{
    return shared.rows(2) + (uint32_t)(((row / 16 * PARTS + part) * 8 + i) * 32 + ((int)threadIdx.x & 31)) * 4;
}

/* c = (q k^T or d_out v^T) transposed, of 16 keys and 16 queries, eight and eight. */
template <typename T>
static __device__ __forceinline__ void
multiply_half(float (&c)[2][4], const Half &half, uint32_t tile, int part, const LaneOffset<D, true> &across)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        c[i / 4][i % 4] = 0;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t b[4];

        load_matrices(b, across.at(tile, part, d));
        multiply_add(T(), c[0], half.kept[d], b[0], b[1]);
        multiply_add(T(), c[1], half.kept[d], b[2], b[3]);
    }
}

/* The first warp's scores become P, which the second finds in shared memory. @key: of the warp's first row */
template <bool MASKED>
static __device__ __forceinline__ void
give_weights(float (&s)[2][4], const Shared<D> &shared, uint32_t rows, int part, const AttentionGrid &grid,
             int query, int key, int row)
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float2 lses = load_shared_pair(rows + (uint32_t)(part * 16 + n * 8 + (lane & 3) * 2) * 4);

#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = query + part * 16 + n * 8 + (lane & 3) * 2 + e % 2;
            const int j = key + (e / 2) * 8 + lane / 4;
            uint32_t bits;
            float p = fast_exp2(fmaf(s[n][e], grid.scale_log2, -(e % 2 ? lses.y : lses.x) * LOG2_E));

            if (MASKED && (j > i || j <= i - grid.window))
                p = 0;
            s[n][e] = p;
            memcpy(&bits, &p, sizeof bits);
            store_shared(place_of_p(shared, row, part, n * 4 + e), bits);
        }
    }
}

/* The second warp's products become Y. */
static __device__ __forceinline__ void
take_weights(float (&y)[2][4], const Shared<D> &shared, uint32_t rows, int part, int row)
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float2 deltas = load_shared_pair(rows + Tile<D>::ROW_BYTES / 2 +
                                               (uint32_t)(part * 16 + n * 8 + (lane & 3) * 2) * 4);

#pragma unroll
        for (int e = 0; e < 4; e++) {
            const uint32_t bits = load_shared(place_of_p(shared, row, part, n * 4 + e));
            float p;

            memcpy(&p, &bits, sizeof p);
            y[n][e] = p * (y[n][e] - (e % 2 ? deltas.y : deltas.x));
        }
    }
}

/* sums += c^T (d_out or q), of rows 16 @part of the tile. */
template <typename T>
static __device__ __forceinline__ void
add_half(Half &half, const uint32_t (&c)[4], uint32_t tile, int part, const LaneOffset<D> &lane)
{
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
        uint32_t b[4];

        load_matrices_transposed(b, lane.at(tile, part, n / 2));
        multiply_add(T(), half.sums[0][n], c, b[0], b[1]);
        multiply_add(T(), half.sums[0][n + 1], c, b[2], b[3]);
    }
}

/* Both products and sums of a step. Returns before Y^T is in shared memory for others. */
template <bool MASKED, typename T>
static __device__ __forceinline__ void
differentiate_half(Half &half, const Shared<D> &shared, uint32_t stage, const AttentionGrid &grid,
                   const Steps &at, const LaneOffset<D> &lane, const LaneOffset<D, true> &across)
{
    const uint32_t q_tile = shared.q(stage), o_tile = shared.d_out(), rows = shared.rows(stage);
    float c[PARTS][2][4];

#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        multiply_half<T>(c[part], half, half.second ? o_tile : q_tile, part, across);
        if (!half.second)
            give_weights<MASKED>(c[part], shared, rows, part, grid, at.query, at.begin + half.row, half.row);
    }
    __syncthreads();
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        uint32_t weights[4];

        if (half.second)
            take_weights(c[part], shared, rows, part, half.row);
#pragma unroll
        for (int i = 0; i < 4; i++)
            weights[i] = pack(T(), c[part][i / 2][i % 2 * 2], c[part][i / 2][i % 2 * 2 + 1]);
        if (half.second)
            store_weights<D>(shared.y(), half.row, part, weights);
        add_half<T>(half, weights, half.second ? q_tile : o_tile, part, lane);
    }
}

/* Copies k and v, and the first step's queries; then d_out. v is where the next queries and d_out will be. */
template <typename T>
static __device__ __forceinline__ void
load_half(Half &half, const Shared<D> &shared, const RpAttentionArgs &args, const BackwardScratch &scratch,
          const Place &place, const Steps &at, const LaneOffset<D> &lane)
{
    const size_t k_stride = args.kv_heads * D, v_stride = attention_v_row(args) * D;
    const size_t first = place.start + (size_t)at.begin, column = (size_t)place.head * D;
    const int warp = uniform((int)threadIdx.x / 32);

    static_assert(2 * Tile<D>::QUERY_BYTES >= Tile<D>::KEY_BYTES, "v is there at first");
    half.second = warp >= GROUPS;
    half.row = warp % GROUPS * ROWS;
    copy_tile<D, KEYS, THREADS>(shared.k, (const T *)args.k + first * k_stride + column, k_stride,
                                place.length - at.begin);
    copy_tile<D, KEYS, THREADS>(shared.q(1), (const T *)args.v + first * v_stride + column, v_stride,
                                place.length - at.begin);
    copy_queries<T, D>(shared.q(0), args.q, args, place, at);
    copy_rows<D>(shared.rows(0), args, scratch.delta, place, at);
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        half.sums[0][i / 4][i % 4] = 0;
    copy_async_wait();
    __syncthreads();
#pragma unroll
    for (int d = 0; d < D / 16; d++)
        load_matrices(half.kept[d],
                      lane.at((half.second ? shared.q(1) : shared.k) + tile_bytes<D>(half.row), 0, d));
    __syncthreads();
    copy_queries<T, D>(shared.d_out(), args.d_out, args, place, at);
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS, 1)
    differentiate_pairs(const RpAttentionArgs args, const AttentionGrid grid, const BackwardScratch scratch,
                        unsigned *numbers, int first_kv_head)
{
    const Shared<D> shared;
    Place place = find_place(args, grid, take_number(numbers, shared.rows(1)));

    place.head += first_kv_head;
    if (place.rank * KEYS >= place.length)
        return;

    const LaneOffset<D> lane;
    const LaneOffset<D, true> across;
    const LaneOffset<Tile<D>::PITCH, true> y_lane;
    Steps at = begin_steps<Tile<D>::QUERIES>(args, place, grid.window);
    Share before = {TURN_ONLY, 0, nullptr};
    Half half;

    load_half<T>(half, shared, args, scratch, place, at, lane);
    for (uint32_t stage = 0; at.more; stage ^= 1) {
        const Steps next = next_step<Tile<D>::QUERIES>(at);

        copy_async_wait();
        __syncthreads();
        if (before.ends() && threadIdx.x == 0)
            end_turn(before.count);
        if (next.more) {
            copy_queries<T, D>(shared.q(stage ^ 1), args.q, args, place, next);
            copy_rows<D>(shared.rows(stage ^ 1), args, scratch.delta, place, next);
        }
        if (is_masked<Tile<D>::QUERIES>(at, grid.window))
            differentiate_half<true, T>(half, shared, stage, grid, at, lane, across);
        else
            differentiate_half<false, T>(half, shared, stage, grid, at, lane, across);
        __syncthreads();
        if (next.more)
            copy_queries<T, D>(shared.d_out(), args.d_out, args, place, next);
        before = share_of<Tile<D>::QUERIES>(args, scratch, grid.window, place, at);
        differentiate_queries<T, D>(args, scratch, shared, place, at, before, first_kv_head * at.group,
                                    y_lane, lane);
        at = next;
    }
    __syncthreads();
    if (before.ends() && threadIdx.x == 0)
        end_turn(before.count);

    const size_t stride = attention_v_row(args) * D;
    const int row = at.begin + half.row;
    const float factor = half.second ? args.scale : 1;
    const float factors[1][2] = {{factor, factor}};
    T *target = (T *)(half.second ? args.dk : args.dv) + (place.start + (size_t)row) * stride + (size_t)place.head * D;

    store_rows<T, D>(target, stride, place.length - row, half.sums, factors, true);
}

template <typename T>
static cudaError_t
launch_pairs(const RpAttentionArgs *args, const AttentionGrid *grid, const BackwardScratch *scratch,
             size_t first, unsigned *numbers, cudaStream_t stream)
{
    static std::atomic<uint64_t> done;

    static_assert(SHARED_BYTES <= 99 * 1024, "shared memory of a block since sm_86");

    const cudaError_t status = attention_allow_shared((const void *)differentiate_pairs<T>, SHARED_BYTES, &done);

    if (status != cudaSuccess)
        return status;
    return attention_launch(differentiate_pairs<T>, grid->units * grid->blocks, THREADS, (int)SHARED_BYTES, stream,
                            *args, *grid, *scratch, numbers, (int)first);
}

cudaError_t
attention_backward_pairs(const RpAttentionArgs *args, const AttentionGrid *grid, const BackwardScratch *scratch,
                         size_t first, unsigned *numbers, cudaStream_t stream)
{
    return args->dtype == RP_DTYPE_BF16
               ? launch_pairs<__nv_bfloat16>(args, grid, scratch, first, numbers, stream)
               : launch_pairs<__half>(args, grid, scratch, first, numbers, stream);
}
