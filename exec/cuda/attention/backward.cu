/*
 * Attention backward on tensor cores, in two kernels, so that every sum stays in registers and has
 * one order: no atomics (FlashAttention-2, Dao 2023, algorithm 2, has them for dq).
 *
 *   P = exp(scale q k^T - lse);  delta[i] = d_out[i] . out[i] (the caller's)
 *   Y[i,j] = P[i,j] (d_out[i] . v[j] - delta[i])
 *   dq[i] = scale sum_j Y[i,j] k[j];  dk[j] = scale sum_i Y[i,j] q[i];  dv[j] = sum_i P[i,j]
 * d_out[i]
 *
 * q, d_out, dq: [T,H,D]; k, v, dk, dv: [T,K,D]; bf16 or fp16, D 64 or 128. All =. Sums fp32; P and
 * Y are rounded to the storage before they multiply. Oracle: exec/host/attention.c.
 *
 * differentiate_keys: 4 warps have 64 keys of one kv head, 16 a warp, and go through the group's
 * heads and their blocks of 64 queries, from the diagonal on. Scores are computed transposed: what
 * an mma leaves of P^T and Y^T is what the next takes as its left operand.
 * differentiate_queries: 4 warps have 128 queries of one head, 32 a warp, and go through blocks of
 * keys from the diagonal back. Both copy the next block while they compute one.
 */
#include <math.h>

#include "exec/cuda/attention/tile.cuh"

#define WARPS 4
#define THREADS (WARPS * 32)

/* Of differentiate_keys. */
#define KEYS 64
#define QUERIES 64

/* Of differentiate_queries: queries of a block, and keys that it takes at once. */
#define ROWS 128
#define COLUMNS(D) ((D) == 128 ? 32 : 64)

/* Where the blocks of queries that differentiate_keys goes through begin. */
struct QueryBlock {
    int head, query;
};

/* Starts copying queries, their d_out, lse and delta, in this order. */
template <typename T, int D>
static __device__ __forceinline__ void
copy_queries(uint32_t tile, const RpAttentionArgs &args, const float *delta, const Place &place,
             QueryBlock at)
{
    const size_t stride = args.heads * D;
    const size_t token = place.start + (size_t)at.query;
    const size_t first = token * stride + (size_t)at.head * D;
    const int valid = place.length - at.query;
    const int row = (int)threadIdx.x % QUERIES;
    const float *values = (int)threadIdx.x < QUERIES ? args.lse : delta;

    copy_tile<D, QUERIES, THREADS>(tile, (const T *)args.q + first, stride, valid);
    copy_tile<D, QUERIES, THREADS>(tile + tile_bytes<D>(QUERIES), (const T *)args.d_out + first,
                                   stride, valid);
    copy_async_4(tile + tile_bytes<D>(2 * QUERIES) + threadIdx.x * 4,
                 values + (size_t)at.head * args.tokens + token + (row < valid ? row : 0),
                 row < valid);
}

/* Of P^T and d_out v^T makes P^T and Y^T: rows keys, columns queries. Queries beyond the sequence
 * are all zeros, so that P is 1, but multiplies 0, and Y is 0. */
static __device__ __forceinline__ void
differentiate_transposed(float (&s)[1][QUERIES / 8][4], float (&y)[1][QUERIES / 8][4], uint32_t lse,
                         float scale_log2, bool masked, int query, int key, int window)
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int n = 0; n < QUERIES / 8; n++) {
        const uint32_t place = lse + (uint32_t)(n * 8 + (lane & 3) * 2) * 4;
        const float2 lses = load_shared_pair(place);
        const float2 deltas = load_shared_pair(place + QUERIES * 4);

#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float base = (e % 2 ? lses.y : lses.x) * LOG2_E;
            const int i = query + n * 8 + (lane & 3) * 2 + e % 2;
            const int j = key + (e / 2) * 8 + lane / 4;

            s[0][n][e] = fast_exp2(fmaf(s[0][n][e], scale_log2, -base));
            if (masked && (j > i || j <= i - window))
                s[0][n][e] = 0;
            y[0][n][e] = s[0][n][e] * (y[0][n][e] - (e % 2 ? deltas.y : deltas.x));
        }
    }
}

template <typename T, int D>
__global__ void
__launch_bounds__(THREADS, D == 128 ? 2 : 3)
    differentiate_keys(const RpAttentionArgs args, const AttentionGrid grid, const float *delta)
{
    const Place place = find_place(args, grid);
    const int key = place.rank * KEYS;

    if (key >= place.length)
        return;

    const size_t stride = args.kv_heads * D;
    const size_t first = (place.start + (size_t)key) * stride + (size_t)place.head * D;
    const int group = (int)(args.heads / args.kv_heads);
    const uint32_t k_tile = dynamic_shared(), v_tile = k_tile + tile_bytes<D>(KEYS);
    const uint32_t q_tiles = v_tile + tile_bytes<D>(KEYS);
    const uint32_t stage_bytes = tile_bytes<D>(2 * QUERIES) + 2 * QUERIES * 4;
    const LaneOffset<D> lane;
    const int row = (int)threadIdx.x / 32 * 16; /* of the warp, in the block */
    /* the last query that sees one of the keys: the last key's own window ends there */
    const int past = (int)min((long long)key + KEYS - 1 + grid.window, (long long)place.length);
    const QueryBlock end = {place.head * group + group, past};
    QueryBlock at = {place.head * group, key};
    float dk[1][D / 8][4], dv[1][D / 8][4];

    set_zero(dk);
    set_zero(dv);
    copy_tile<D, KEYS, THREADS>(k_tile, (const T *)args.k + first, stride, place.length - key);
    copy_tile<D, KEYS, THREADS>(v_tile, (const T *)args.v + first, stride, place.length - key);
    copy_queries<T, D>(q_tiles, args, delta, place, at);
    for (uint32_t stage = 0; at.head < end.head; stage ^= 1) {
        const uint32_t q_tile = q_tiles + stage * stage_bytes;
        const uint32_t o_tile = q_tile + tile_bytes<D>(QUERIES);
        const QueryBlock now = at;
        const bool masked = now.query == key || key <= now.query + QUERIES - 1 - grid.window;
        float s[1][QUERIES / 8][4], y[1][QUERIES / 8][4];

        at.query += QUERIES;
        if (at.query >= end.query)
            at = {at.head + 1, key};
        copy_async_wait();
        __syncthreads();
        if (at.head < end.head)
            copy_queries<T, D>(q_tiles + (stage ^ 1) * stage_bytes, args, delta, place, at);
        set_zero(s);
        multiply_tiles<T, D>(s, k_tile + tile_bytes<D>(row), q_tile, lane);
        set_zero(y);
        multiply_tiles<T, D>(y, v_tile + tile_bytes<D>(row), o_tile, lane);
        differentiate_transposed(s, y, o_tile + tile_bytes<D>(QUERIES), grid.scale_log2, masked,
                                 now.query, key + row, grid.window);
        multiply_weights<T, D>(dv, s, o_tile, lane);
        multiply_weights<T, D>(dk, y, q_tile, lane);
    }

    const float scale[1][2] = {{args.scale, args.scale}}, one[1][2] = {{1, 1}};
    const size_t target = first + (size_t)row * stride;

    store_rows<T, D>((T *)args.dk + target, stride, place.length - key - row, dk, scale, true);
    store_rows<T, D>((T *)args.dv + target, stride, place.length - key - row, dv, one, true);
}

/* Of scores and d_out v^T makes Y, in y: rows queries. @lse: log2. */
template <int N>
static __device__ __forceinline__ void
differentiate(const float (&s)[2][N][4], float (&y)[2][N][4], const float (&lse)[2][2],
              const float (&delta)[2][2], float scale_log2, bool masked, int query, int key,
              int window)
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int i = query + m * 16 + (e / 2) * 8 + lane / 4;
                const int j = key + n * 8 + (lane & 3) * 2 + e % 2;
                float p = fast_exp2(fmaf(s[m][n][e], scale_log2, -lse[m][e / 2]));

                if (masked && (j > i || j <= i - window))
                    p = 0;
                y[m][n][e] = p * (y[m][n][e] - delta[m][e / 2]);
            }
        }
    }
}

/* A thread's 4 rows of lse (in log2) and delta, 0 from @valid on. */
static __device__ __forceinline__ void
load_rows(const float *lse, const float *delta, int valid, float (&lses)[2][2],
          float (&deltas)[2][2])
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int r = 0; r < 4; r++) {
        const int row = r * 8 + lane / 4;

        lses[r / 2][r % 2] = row < valid ? lse[row] * LOG2_E : 0;
        deltas[r / 2][r % 2] = row < valid ? delta[row] : 0;
    }
}

/* Starts copying a block of keys and its values, which lie behind them. */
template <typename T, int D>
static __device__ __forceinline__ void
copy_keys(uint32_t tile, const T *k, const T *v, size_t stride, int key, int length)
{
    const size_t first = (size_t)key * stride;

    copy_tile<D, COLUMNS(D), THREADS>(tile, k + first, stride, length - key);
    copy_tile<D, COLUMNS(D), THREADS>(tile + tile_bytes<D>(COLUMNS(D)), v + first, stride,
                                      length - key);
}

template <typename T, int D>
__global__ void
__launch_bounds__(THREADS, 2)
    differentiate_queries(const RpAttentionArgs args, const AttentionGrid grid, const float *delta)
{
    const Place place = find_place(args, grid);
    const int query = ((place.length + ROWS - 1) / ROWS - 1 - place.rank) * ROWS;

    if (query < 0)
        return;

    const int columns = COLUMNS(D);
    const size_t q_stride = args.heads * D, kv_stride = args.kv_heads * D;
    const size_t first = (place.start + (size_t)query) * q_stride + (size_t)place.head * D;
    const size_t kv_first =
        place.start * kv_stride + (size_t)place.head / (args.heads / args.kv_heads) * D;
    const T *k = (const T *)args.k + kv_first, *v = (const T *)args.v + kv_first;
    const uint32_t q_tile = dynamic_shared(), o_tile = q_tile + tile_bytes<D>(ROWS);
    const uint32_t kv_tiles = o_tile + tile_bytes<D>(ROWS);
    const LaneOffset<D> lane;
    const int row = (int)threadIdx.x / 32 * 32; /* of the warp, in the block */
    const size_t value = (size_t)place.head * args.tokens + place.start + (size_t)(query + row);
    const int valid = place.length - query - row;
    const int n_begin = max(query + 1 - grid.window, 0) / columns;
    int n = (min(query + ROWS, place.length) - 1) / columns;
    float dq[2][D / 8][4], lses[2][2], deltas[2][2];

    set_zero(dq);
    copy_tile<D, ROWS, THREADS>(q_tile, (const T *)args.q + first, q_stride, place.length - query);
    copy_tile<D, ROWS, THREADS>(o_tile, (const T *)args.d_out + first, q_stride,
                                place.length - query);
    copy_keys<T, D>(kv_tiles, k, v, kv_stride, n * columns, place.length);
    load_rows(args.lse + value, delta + value, valid, lses, deltas);
    for (int stage = 0; n >= n_begin; n--, stage ^= 1) {
        const int key = n * columns;
        const uint32_t tile = kv_tiles + tile_bytes<D>(stage * 2 * columns);
        const bool masked = key + columns - 1 > query || key <= query + ROWS - 1 - grid.window;
        float s[2][columns / 8][4], y[2][columns / 8][4];

        copy_async_wait();
        __syncthreads();
        if (n > n_begin)
            copy_keys<T, D>(kv_tiles + tile_bytes<D>((stage ^ 1) * 2 * columns), k, v, kv_stride,
                            key - columns, place.length);
        set_zero(s);
        multiply_tiles<T, D>(s, q_tile + tile_bytes<D>(row), tile, lane);
        set_zero(y);
        multiply_tiles<T, D>(y, o_tile + tile_bytes<D>(row), tile + tile_bytes<D>(columns), lane);
        differentiate(s, y, lses, deltas, grid.scale_log2, masked, query + row, key, grid.window);
        multiply_weights<T, D>(dq, y, tile, lane);
    }

    const float scale[2][2] = {{args.scale, args.scale}, {args.scale, args.scale}};

    store_rows<T, D>((T *)args.dq + first + (size_t)row * q_stride, q_stride, valid, dq, scale,
                     true);
}

template <typename T, int D>
static cudaError_t
launch_keys(const RpAttentionArgs *args, const float *delta, cudaStream_t stream)
{
    static std::atomic<uint64_t> done;
    const int bytes = (2 * KEYS + 4 * QUERIES) * D * 2 + 4 * QUERIES * 4;
    const size_t group = args->heads / args->kv_heads;
    AttentionGrid grid;
    cudaError_t status;

    if (!attention_grid(args, args->kv_heads, KEYS, 4 * D * group, &grid))
        return cudaErrorInvalidValue;
    status = attention_allow_shared((const void *)differentiate_keys<T, D>, bytes, &done);
    if (status != cudaSuccess)
        return status;
    return attention_launch(differentiate_keys<T, D>, grid.units * grid.blocks, THREADS, bytes,
                            stream, *args, grid, delta);
}

template <typename T, int D>
static cudaError_t
launch_queries(const RpAttentionArgs *args, const float *delta, cudaStream_t stream)
{
    static std::atomic<uint64_t> done;
    const int bytes = (2 * ROWS + 4 * COLUMNS(D)) * D * 2;
    const size_t group = args->heads / args->kv_heads;
    AttentionGrid grid;
    cudaError_t status;

    if (!attention_grid(args, args->heads, ROWS, 4 * D / group, &grid))
        return cudaErrorInvalidValue;
    status = attention_allow_shared((const void *)differentiate_queries<T, D>, bytes, &done);
    if (status != cudaSuccess)
        return status;
    return attention_launch(differentiate_queries<T, D>, grid.units * grid.blocks, THREADS, bytes,
                            stream, *args, grid, delta);
}

template <typename T, int D>
static cudaError_t
launch(const RpAttentionArgs *args, const float *delta, cudaStream_t stream)
{
    const cudaError_t status = launch_keys<T, D>(args, delta, stream);

    return status == cudaSuccess ? launch_queries<T, D>(args, delta, stream) : status;
}

cudaError_t
attention_backward_fast(const RpAttentionArgs *args, const float *delta, cudaStream_t stream)
{
    if (args->head_size == 128)
        return args->dtype == RP_DTYPE_BF16 ? launch<__nv_bfloat16, 128>(args, delta, stream)
                                : launch<__half, 128>(args, delta, stream);
    return args->dtype == RP_DTYPE_BF16 ? launch<__nv_bfloat16, 64>(args, delta, stream)
                            : launch<__half, 64>(args, delta, stream);
}
