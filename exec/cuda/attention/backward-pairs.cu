/*
 * Backward by mma.sync for heads of 256, every card since sm_80: backward.cuh with 64 keys a block. Sums of dk and dv
 * of 16 keys would not fit one warp's registers. Four warps make P and dv, the other four Y and dk:
 *
 *   warp w       S = q k^T of 16 keys      P = exp(S - lse), for warp w + 4           to the tile
 *   warp w + 4   d_out v^T of them                                  Y = P (.. - delta)   to the tile
 *   all meet
 *   warp w       dv += P^T d_out of 32 keys, 128 columns      d_out of the next step      dq = Y k, its turn
 *   warp w + 4   dq = Y k, its turn                           dk += Y^T q of 32 keys, 128 columns
 *
 * Both halves of a quarter SM then do different work. A warp of 32 keys and 128 columns reads 20 matrices of shared
 * memory for 64 products, one of 16 and 256 would read 32. k of the first and v of the second are in registers; k is in
 * shared memory too, for dq. P^T stands beside Y^T in the rows of its tile, which has space for 64 queries.
 */
#define KEYS 64
#define WARP_KEYS 16
#include "exec/cuda/attention/backward.cuh"

#define GROUPS 4 /* pairs of warps */
#define FIRST_DONE (GROUPS + 1) /* a barrier; those of pairs are 1 to GROUPS */

namespace
{

constexpr int D = 256, PARTS = Tile<D>::QUERIES / 16;

/* A warp of a pair. */
struct Half {
    static constexpr uint32_t SHARED_BYTES = Shared<D>::BYTES + GROUPS * PARTS * 2 * 32 * 16;
    static constexpr bool SPREADS = true, ENDS_LATE = true;
    int warp;
    uint32_t kept[D / 16][4]; /* k or v of its keys, left operands */
    float sums[2][D / 16][4]; /* of dv or dk */
};

} // namespace

static __device__ __forceinline__ bool
is_second(int warp)
{
    return warp >= GROUPS;
}

/* Place in shared memory of this lane's P of 16 keys and 8 queries, number @n of the step's; both warps of a pair have the
 * same. */
static __device__ __forceinline__ uint32_t
place_of_p(const Shared<D> &shared, int warp, int n)
{
    return shared.rows(2) + (uint32_t)((warp % GROUPS * PARTS * 2 + n) * 32 + ((int)threadIdx.x & 31)) * 16;
}

/* c = (q k^T or d_out v^T) transposed, of 16 keys and the step's queries. */
template <typename T>
static __device__ __forceinline__ void
multiply_half(float (&c)[1][PARTS * 2][4], const Half &half, uint32_t tile, const LaneOffset<D, true> &across)
{
    set_zero(c);
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            uint32_t b[4];

            load_matrices(b, across.at(tile, part, d));
            multiply_add(T(), c[0][2 * part], half.kept[d], b[0], b[1]);
            multiply_add(T(), c[0][2 * part + 1], half.kept[d], b[2], b[3]);
        }
    }
}

/* The first warp's scores become P, which the second finds in shared memory. */
template <bool MASKED>
static __device__ __forceinline__ void
give_weights(float (&s)[PARTS * 2][4], int warp, const Shared<D> &shared, const AttentionGrid &grid,
             const Place &place, const Steps &at, const float2 (&lses)[PARTS * 2])
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int n = 0; n < PARTS * 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = at.query + n * 8 + (lane & 3) * 2 + e % 2;
            const int j = at.begin + warp * ROWS + (e / 2) * 8 + lane / 4;

            s[n][e] = fast_exp2(fmaf(s[n][e], grid.scale_log2, -(e % 2 ? lses[n].y : lses[n].x) * LOG2_E));
            if (MASKED && is_hidden(place, grid.window, i, j))
                s[n][e] = 0;
        }
        store_shared_words(place_of_p(shared, warp, n), s[n]);
    }
}

/* The second warp's products become Y. */
static __device__ __forceinline__ void
take_weights(float (&y)[PARTS * 2][4], int warp, const Shared<D> &shared, const float2 (&deltas)[PARTS * 2])
{
#pragma unroll
    for (int n = 0; n < PARTS * 2; n++) {
        const uint4 p = load_shared_words(place_of_p(shared, warp, n));

        y[n][0] = __uint_as_float(p.x) * (y[n][0] - deltas[n].x);
        y[n][1] = __uint_as_float(p.y) * (y[n][1] - deltas[n].y);
        y[n][2] = __uint_as_float(p.z) * (y[n][2] - deltas[n].x);
        y[n][3] = __uint_as_float(p.w) * (y[n][3] - deltas[n].y);
    }
}

/* Puts a step's P^T and Y^T into the tile. */
template <bool MASKED, typename T>
static __device__ __forceinline__ void
differentiate_keys(Half &half, const Shared<D> &shared, uint32_t stage, const RpAttentionArgs &args,
                   const AttentionGrid &grid, const BackwardScratch &scratch, const Place &place, const Steps &at,
                   const Steps &next, const LaneOffset<D> &lane, const LaneOffset<D, true> &across)
{
    const int warp = half.warp;
    const bool second = is_second(warp);
    float2 rows[PARTS * 2]; /* lse or delta */
    float c[1][PARTS * 2][4];

#pragma unroll
    for (int n = 0; n < PARTS * 2; n++)
        rows[n] = load_shared_pair(shared.rows(stage) + (second ? Tile<D>::ROW_BYTES / 2 : 0) +
                                   (uint32_t)(n * 8 + ((int)threadIdx.x & 3) * 2) * 4);
    multiply_half<T>(c, half, second ? shared.d_out() : shared.q(stage), across);
    if (second) {
        copy_next<T, D, THREADS / 2>(shared, stage ^ 1, args, scratch, place, next);
        meet_some(1 + warp % GROUPS, 64);
        take_weights(c[0], warp, shared, rows);
    } else {
        give_weights<MASKED>(c[0], warp, shared, grid, place, at, rows);
        announce(1 + warp % GROUPS, 64);
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        uint32_t weights[4];

#pragma unroll
        for (int i = 0; i < 4; i++)
            weights[i] = pack(T(), c[0][2 * part + i / 2][i % 2 * 2], c[0][2 * part + i / 2][i % 2 * 2 + 1]);
        store_weights<D>(shared.y(), warp % GROUPS * ROWS, part + (second ? 0 : PARTS), weights);
    }
}

/* sums += P^T d_out or Y^T q. */
template <typename T>
static __device__ __forceinline__ void
add_half(Half &half, const Shared<D> &shared, uint32_t stage, const LaneOffset<D> &lane)
{
    const int warp = half.warp;
    const bool second = is_second(warp);
    const uint32_t tile = (second ? shared.q(stage) : shared.d_out()) + (uint32_t)(warp % 2 * D);
    const LaneOffset<Tile<D>::PITCH> weights_lane;

#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        uint32_t a[2][4];

#pragma unroll
        for (int m = 0; m < 2; m++)
            load_matrices(a[m], weights_lane.at(shared.y(), warp % GROUPS / 2 * 2 + m, part + (second ? 0 : PARTS)));
#pragma unroll
        for (int n = 0; n < D / 32; n++) {
            uint32_t b[4];

            load_matrices_transposed(b, lane.at(tile, part, n));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                multiply_add(T(), half.sums[m][2 * n], a[m], b[0], b[1]);
                multiply_add(T(), half.sums[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Sums and dq; d_out of the next step once the first warps have read it, as the second do not any more. */
template <typename T>
static __device__ __forceinline__ void
end_step(Half &half, const Shared<D> &shared, uint32_t stage, const RpAttentionArgs &args,
         const BackwardScratch &scratch, const Place &place, const Steps &at, const Steps &next, const Share &share,
         int first_head, const LaneOffset<D> &lane)
{
    const bool second = is_second(half.warp);
    const unsigned seen = glance_at_count(share.count);

#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        if (second == (i == 1)) {
            add_half<T>(half, shared, stage, lane);
            if (!second && next.more()) {
                meet_some(FIRST_DONE, THREADS / 2);
                copy_queries<T, D, THREADS / 2>(shared.d_out(), args.d_out, args, place, next);
            }
        } else {
            differentiate_queries<T, D>(args, scratch, shared, place, at, share, seen, first_head, lane);
        }
    }
}

/* Copies k and v, and the first step's queries; then d_out. v is where the next queries and d_out will be. */
template <typename T>
static __device__ __forceinline__ void
load_keys(Half &half, const Shared<D> &shared, const RpAttentionArgs &args, const BackwardScratch &scratch,
          const Place &place, const Steps &at, const LaneOffset<D> &lane)
{
    const size_t k_stride = args.kv_heads * D, v_stride = attention_v_row(args) * D;
    const size_t first = place.start + (size_t)at.begin, column = (size_t)place.head * D;

    static_assert(2 * Tile<D>::QUERY_BYTES >= Tile<D>::KEY_BYTES, "v is there at first");
    copy_tile<D, KEYS, THREADS>(shared.k, (const T *)args.k + first * k_stride + column, k_stride,
                                place.length - at.begin);
    copy_tile<D, KEYS, THREADS>(shared.q(1), (const T *)args.v + first * v_stride + column, v_stride,
                                place.length - at.begin);
    copy_queries<T, D>(shared.q(0), args.q, args, place, at);
    copy_rows<D>(shared.rows(0), args, scratch.delta, place, at);
    half.warp = own_warp();
    set_zero(half.sums);
    copy_async_wait();
    __syncthreads();
#pragma unroll
    for (int d = 0; d < D / 16; d++)
        load_matrices(half.kept[d], lane.at(is_second(half.warp) ? shared.q(1) : shared.k, half.warp % GROUPS, d));
    __syncthreads();
    copy_queries<T, D>(shared.d_out(), args.d_out, args, place, at);
}

template <typename T>
static __device__ __forceinline__ void
store_keys(const Half &half, const RpAttentionArgs &args, const Place &place, const Steps &at)
{
    const size_t stride = attention_v_row(args) * D;
    const int warp = half.warp, row = at.begin + warp % GROUPS / 2 * 32;
    const float factor = is_second(warp) ? args.scale : 1;
    const float factors[2][2] = {{factor, factor}, {factor, factor}};
    T *target = (T *)(is_second(warp) ? args.dk : args.dv) + (place.start + (size_t)row) * stride +
                (size_t)place.head * D + warp % 2 * (D / 2);

    store_rows<T, D / 2>(target, stride, place.length - row, half.sums, factors, true);
}

cudaError_t
attention_backward_pairs(const RpAttentionArgs *args, const AttentionGrid *grid, const BackwardScratch *scratch,
                         size_t first, unsigned *numbers, cudaStream_t stream)
{
    const auto run = args->dtype == RP_DTYPE_BF16 ? launch<__nv_bfloat16, D, Half> : launch<__half, D, Half>;

    return run(args, grid, scratch, first, numbers, stream);
}
