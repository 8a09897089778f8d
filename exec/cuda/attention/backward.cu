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
#define KEYS 128
#include <math.h>

#include "exec/cuda/attention/backward-mma.cuh"

/* q k^T and d_out v^T of 16 keys x 16 queries, transposed; then P^T and Y^T. */
struct Scores {
    float s[2][4], y[2][4];
};

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

/* Computes a warp's P and Y, and adds their products to dk and dv; the next scores are multiplied
 * before the last are used. k is in registers meanwhile: dq has no space for it. Returns before its
 * Y^T is in shared memory for others. */
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
        multiply_scores<T, D>(scores, k, keys.v[0], q_tile, o_tile, part, across);

        const Weights weights = differentiate<T, MASKED>(
            scores, shared.rows(stage) + (uint32_t)part * 64, Tile<D>::ROW_BYTES / 2,
            grid.scale_log2, at.query + part * 16, at.begin + row, grid.window);

        store_weights<D>(shared.y(), row, part, weights.y);
        multiply_part<T, D>(keys.dv, weights.p, o_tile, part, lane);
        multiply_part<T, D>(keys.dk, weights.y, q_tile, part, lane);
    }
}

template <typename T, int D>
__global__ void
__launch_bounds__(THREADS, 1)
    differentiate_all(const RpAttentionArgs args, const AttentionGrid grid, const BackwardScratch scratch,
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

    load_keys<T, D>(keys, shared, args, scratch, place, at, lane);
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
            differentiate_keys<true, T, D>(keys, shared, stage, grid, at, lane, across);
        else
            differentiate_keys<false, T, D>(keys, shared, stage, grid, at, lane, across);
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
    store_keys<T, D>(args, place, at, keys);
}

template <typename T, int D>
static cudaError_t
launch(const RpAttentionArgs *args, const AttentionGrid *grid, const BackwardScratch *scratch,
       size_t first, unsigned *numbers, cudaStream_t stream)
{
    static std::atomic<uint64_t> done;
    const int bytes = (int)Shared<D>::BYTES;

    static_assert(Shared<D>::BYTES <= 99 * 1024, "shared memory of a block since sm_86");

    const cudaError_t status =
        attention_allow_shared((const void *)differentiate_all<T, D>, bytes, &done);

    if (status != cudaSuccess)
        return status;
    return attention_launch(differentiate_all<T, D>, grid->units * grid->blocks, THREADS, bytes,
                            stream, *args, *grid, *scratch, numbers, (int)first);
}

cudaError_t
attention_backward_mma(const RpAttentionArgs *args, const AttentionGrid *grid,
                       const BackwardScratch *scratch, size_t first, unsigned *numbers,
                       cudaStream_t stream)
{
    const bool is_bf16 = args->dtype == RP_DTYPE_BF16, is_wide = args->head_size == 128;
    const auto run = is_wide   ? is_bf16 ? launch<__nv_bfloat16, 128> : launch<__half, 128>
                       : is_bf16 ? launch<__nv_bfloat16, 64>
                               : launch<__half, 64>;

    return run(args, grid, scratch, first, numbers, stream);
}
