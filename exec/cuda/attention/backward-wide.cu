/*
 * Like backward.cu, for heads of 64 on Hopper: a block has 256 keys, a warp 32, so that each read of q and d_out from
 * shared memory multiplies twice as many. Scores are computed 8 queries at a time, so that k and v stay in registers.
 */
#define KEYS 256
#include <math.h>

#include "exec/cuda/attention/backward-mma.cuh"

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

/* s, y = q k^T and d_out v^T transposed, of the warp's keys and 8 queries. */
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

/* Half @n of the weights, of 8 queries from @query on. @rows: their lse in shared memory, delta @apart
 * bytes behind. Queries beyond the sequence are all zeros, so that P is 1, but multiplies 0. */
template <typename T, bool MASKED>
static __device__ __forceinline__ void
differentiate(Weights (&weights)[FRAGMENTS], float (&s)[FRAGMENTS][4], float (&y)[FRAGMENTS][4],
              int n, uint32_t rows, uint32_t apart, float scale_log2, int query, int key,
              int window)
{
    const int lane = (int)threadIdx.x & 31;
    const uint32_t place = rows + (uint32_t)((lane & 3) * 2) * 4;
    const float2 lses = load_shared_pair(place), deltas = load_shared_pair(place + apart);

#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float base = (e % 2 ? lses.y : lses.x) * LOG2_E;
            const int i = query + (lane & 3) * 2 + e % 2;
            const int j = key + m * 16 + (e / 2) * 8 + lane / 4;
            float p = fast_exp2(fmaf(s[m][e], scale_log2, -base));

            if (MASKED && (j > i || j <= i - window))
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

/* Computes a warp's P and Y, and adds their products to dk and dv. k is in registers meanwhile: dq
 * has no space for it. Returns before its Y^T is in shared memory for others. */
template <bool MASKED, typename T, int D>
static __device__ __forceinline__ void
differentiate_keys(Keys<D> &keys, const Shared<D> &shared, uint32_t stage,
                   const AttentionGrid &grid, const Steps &at, const LaneOffset<D> &lane,
                   const EightRows &eight)
{
    const int queries = Tile<D>::QUERIES, row = uniform((int)threadIdx.x / 32) * ROWS;
    const uint32_t q_tile = shared.q(stage), o_tile = shared.d_out();
    uint32_t k[FRAGMENTS][D / 16][4];

#pragma unroll
    for (int i = 0; i < FRAGMENTS * D / 16; i++)
        load_matrices(k[i / (D / 16)][i % (D / 16)], lane.at(keys.k, i / (D / 16), i % (D / 16)));
#pragma unroll
    for (int part = 0; part < queries / 16; part++) {
        Weights weights[FRAGMENTS] = {};
        const bool sees = !MASKED || at.query + part * 16 + 15 >= at.begin + row;

        if (sees) {
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int row8 = part * 2 + n;
                float s[FRAGMENTS][4], y[FRAGMENTS][4];

                multiply_scores<T, D>(s, y, k, keys.v, q_tile, o_tile, row8, eight);
                differentiate<T, MASKED>(weights, s, y, n, shared.rows(stage) + (uint32_t)row8 * 32,
                                         Tile<D>::ROW_BYTES / 2, grid.scale_log2,
                                         at.query + row8 * 8, at.begin + row, grid.window);
            }
        }
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
            store_weights<D>(shared.y(), row + m * 16, part, weights[m].y);
        if (sees)
            multiply_part<T, D>(keys, weights, q_tile, o_tile, part, lane);
    }
}

template <typename T, int D>
__global__ void
__launch_bounds__(THREADS, 1)
    differentiate_wide(const RpAttentionArgs args, const AttentionGrid grid,
                       const BackwardScratch scratch, unsigned *numbers, int first_kv_head)
{
    const Shared<D> shared;
    Place place = find_place(args, grid, take_number(numbers, shared.rows(1)));

    place.head += first_kv_head;
    if (place.rank * KEYS >= place.length)
        return;

    const LaneOffset<D> lane;
    const EightRows eight;
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
            differentiate_keys<true, T, D>(keys, shared, stage, grid, at, lane, eight);
        else
            differentiate_keys<false, T, D>(keys, shared, stage, grid, at, lane, eight);
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

    static_assert(Shared<D>::BYTES <= 227 * 1024, "shared memory of a block of sm_90");

    const cudaError_t status =
        attention_allow_shared((const void *)differentiate_wide<T, D>, bytes, &done);

    if (status != cudaSuccess)
        return status;
    return attention_launch(differentiate_wide<T, D>, grid->units * grid->blocks, THREADS, bytes,
                            stream, *args, *grid, *scratch, numbers, (int)first);
}

cudaError_t
attention_backward_wide(const RpAttentionArgs *args, const AttentionGrid *grid,
                        const BackwardScratch *scratch, size_t first, unsigned *numbers,
                        cudaStream_t stream)
{
    const auto run = args->dtype == RP_DTYPE_BF16 ? launch<__nv_bfloat16, 64> : launch<__half, 64>;

    return run(args, grid, scratch, first, numbers, stream);
}
