/*
 * Attention forward on tensor cores, FlashAttention-2 (Dao 2023, algorithm 1).
 *
 *   S = scale q k^T;  lse[i] = log sum_j exp S[i,j];  out[i] = sum_j exp(S[i,j] - lse[i]) v[j]
 *
 * q, out: [T,H,D], k, v: [T,K,D], bf16 or fp16, D 64, 128 or 256; lse: [H,T] fp32. Both =. Sums fp32;
 * exp(S - running maximum) is rounded to the storage before it multiplies v. Oracle:
 * exec/host/attention.c.
 *
 * A block of 4 warps has 128 queries of one head, 32 a warp, and goes through blocks of 64 keys,
 * from the diagonal back; those that no query of it sees are left out, also within a gap. Queries with most keys start
 * first. With D of 256 registers and shared memory hold half of both. Two stages of K and V in shared memory:
 *
 *   keys         |  n: S, softmax, out  | n-1: S, softmax, out |
 *   copies       | K, V of n-1          | K, V of n-2          |
 */
#include <math.h>

#include "exec/cuda/attention/tile.cuh"

#define WARPS 4
#define THREADS (WARPS * 32)

/* Row blocks of 16 queries of a warp, queries and keys of a block. */
template <int D> struct Block {
    static constexpr int M = D > 128 ? 1 : 2, QUERIES = WARPS * 16 * M, KEYS = 32 * M;
};

/* The state of a thread's rows: of mma row block m, row g + 8 half. */
template <int M> struct Softmax {
    float maximum[M][2]; /* largest score before scaling */
    float sum[M][2];     /* sum over this thread's columns; over the quad's at the end */
};

template <int M, int N>
static __device__ __forceinline__ void
mask_scores(float (&s)[M][N][4], const Place &place, int query, int key, int window)
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int i = query + m * 16 + (e / 2) * 8 + lane / 4;
                const int j = key + n * 8 + (lane & 3) * 2 + e % 2;

                if (is_hidden(place, window, i, j))
                    s[m][n][e] = -INFINITY;
            }
        }
    }
}

/* Scores become exp(score - maximum); sums and outputs follow the maximum. */
template <int D, int M, int N>
static __device__ __forceinline__ void
soften(Softmax<M> &state, float (&s)[M][N][4], float (&o)[M][D / 8][4], float scale_log2)
{
    float shrink[M][2];
    bool moved = false;

#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float before = state.maximum[m][half];
            float maximum = before, sum = 0, base;

#pragma unroll
            for (int n = 0; n < N; n++)
                maximum = fmaxf(maximum, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
            maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffff, maximum, 1));
            maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffff, maximum, 2));
            /* a row that has seen nothing yet */
            base = maximum == -INFINITY ? 0 : maximum * scale_log2;
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int e = half * 2; e < half * 2 + 2; e++) {
                    s[m][n][e] = fast_exp2(fmaf(s[m][n][e], scale_log2, -base));
                    sum += s[m][n][e];
                }
            }
            shrink[m][half] = fast_exp2(fmaf(before, scale_log2, -base));
            state.sum[m][half] = state.sum[m][half] * shrink[m][half] + sum;
            state.maximum[m][half] = maximum;
            moved = moved || shrink[m][half] != 1;
        }
    }
    if (!__any_sync(0xffffffff, moved))
        return;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[m][n][e] *= shrink[m][e / 2];
        }
    }
}

/* An attention sink of a head would join here: one more exp(logit - maximum) in each sum. */
template <int M>
static __device__ __forceinline__ void
finish(const Softmax<M> &state, float scale, float *lse, int valid, float (&factor)[M][2])
{
    const int lane = (int)threadIdx.x & 31;

#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = m * 16 + half * 8 + lane / 4;
            float sum = state.sum[m][half];

            sum += __shfl_xor_sync(0xffffffff, sum, 1);
            sum += __shfl_xor_sync(0xffffffff, sum, 2);
            factor[m][half] = 1 / sum;
            if (row < valid && lane % 4 == 0)
                lse[row] = fmaf(state.maximum[m][half], scale, logf(sum));
        }
    }
}

/* Starts copying a block of keys and its values, which lie behind them. */
template <typename T, int D>
static __device__ __forceinline__ void
copy_keys(uint32_t tile, const T *k, const T *v, size_t k_stride, size_t v_stride, int key,
          int length)
{
    constexpr int KEYS = Block<D>::KEYS;

    copy_tile<D, KEYS, THREADS>(tile, k + (size_t)key * k_stride, k_stride, length - key);
    copy_tile<D, KEYS, THREADS>(tile + tile_bytes<D>(KEYS), v + (size_t)key * v_stride, v_stride,
                                length - key);
}

/* The block of keys before @n that some query of the tile sees. */
template <int KEYS>
static __device__ __forceinline__ int
block_before(const Place &place, int query, int n)
{
    const int first = first_in_gap<KEYS>(place), end = end_in_gap<KEYS>(place);

    return first < end && n == end && query >= place.gap_end ? first - 1 : n - 1;
}

template <typename T, int D, bool GAPS>
__global__ void
__launch_bounds__(THREADS, 2) forward_queries(const RpAttentionArgs args, const AttentionGrid grid)
{
    constexpr int M = Block<D>::M, QUERIES = Block<D>::QUERIES, KEYS = Block<D>::KEYS;
    const Place place = find_place<GAPS>(args, grid, blockIdx.x);
    const int query = ((place.length + QUERIES - 1) / QUERIES - 1 - place.rank) * QUERIES;

    if (query < 0)
        return;

    const size_t q_stride = args.heads * D, k_stride = args.kv_heads * D;
    const size_t v_stride = attention_v_row(args) * D;
    const size_t first = (place.start + (size_t)query) * q_stride + (size_t)place.head * D;
    const size_t kv_first = (size_t)place.head / (args.heads / args.kv_heads) * D;
    const T *k = (const T *)args.k + place.start * k_stride + kv_first;
    const T *v = (const T *)args.v + place.start * v_stride + kv_first;
    const uint32_t q_tile = dynamic_shared();
    const uint32_t kv_tiles = q_tile + tile_bytes<D>(QUERIES);
    const LaneOffset<D> lane;
    const LaneOffset<D, true> across;
    const int row = (int)threadIdx.x / 32 * 16 * M; /* first row of the warp, in the block */
    const int n_begin = max(query + 1 - grid.window, 0) / KEYS;
    int n = (min(query + QUERIES, place.length) - 1) / KEYS, next;
    Softmax<M> state;
    float o[M][D / 8][4], factor[M][2];

    set_zero(o);
#pragma unroll
    for (int r = 0; r < 2 * M; r++) {
        state.maximum[r / 2][r % 2] = -INFINITY;
        state.sum[r / 2][r % 2] = 0;
    }
    copy_tile<D, QUERIES, THREADS>(q_tile, (const T *)args.q + first, q_stride,
                                   place.length - query);
    copy_keys<T, D>(kv_tiles, k, v, k_stride, v_stride, n * KEYS, place.length);
    for (int stage = 0; n >= n_begin; n = next, stage ^= 1) {
        const int key = n * KEYS;
        const uint32_t tile = kv_tiles + tile_bytes<D>(stage * 2 * KEYS);
        float s[M][KEYS / 8][4];

        next = block_before<KEYS>(place, query, n);
        copy_async_wait();
        __syncthreads();
        if (next >= n_begin)
            copy_keys<T, D>(kv_tiles + tile_bytes<D>((stage ^ 1) * 2 * KEYS), k, v, k_stride,
                            v_stride, next * KEYS, place.length);
        set_zero(s);
        multiply_tiles<T, D>(s, q_tile + tile_bytes<D>(row), tile, lane, across);
        if (is_masked<QUERIES, KEYS>(place, grid.window, query, key))
            mask_scores(s, place, query + row, key, grid.window);
        soften<D>(state, s, o, grid.scale_log2);
        multiply_weights<T, D>(o, s, tile + tile_bytes<D>(KEYS), lane);
    }
    finish(state, args.scale,
           args.lse + (size_t)place.head * args.tokens + place.start + query + row,
           place.length - query - row, factor);
    store_rows<T, D>((T *)args.out + first + (size_t)row * q_stride, q_stride,
                     place.length - query - row, o, factor, (uintptr_t)args.out % 4 == 0);
}

template <typename T, int D>
static cudaError_t
launch(const RpAttentionArgs *args, cudaStream_t stream)
{
    static std::atomic<uint64_t> done[2];
    const bool gaps = args->gaps != nullptr;
    const auto kernel = gaps ? forward_queries<T, D, true> : forward_queries<T, D, false>;
    const int bytes = (Block<D>::QUERIES + 4 * Block<D>::KEYS) * D * 2;
    AttentionGrid grid;
    cudaError_t status;

    if (!attention_grid(args, args->heads, Block<D>::QUERIES, 2 * D * 2 / (args->heads / args->kv_heads),
                        &grid))
        return cudaErrorInvalidValue;
    status = attention_allow_shared((const void *)kernel, bytes, &done[gaps]);
    if (status != cudaSuccess)
        return status;
    return attention_launch(kernel, grid.units * grid.blocks, THREADS, bytes, stream, *args, grid);
}

cudaError_t
attention_forward_fast(const RpAttentionArgs *args, cudaStream_t stream)
{
    const bool is_bf16 = args->dtype == RP_DTYPE_BF16;

    switch (args->head_size) {
    case 256:
        return is_bf16 ? launch<__nv_bfloat16, 256>(args, stream) : launch<__half, 256>(args, stream);
    case 128:
        return is_bf16 ? launch<__nv_bfloat16, 128>(args, stream) : launch<__half, 128>(args, stream);
    default:
        return is_bf16 ? launch<__nv_bfloat16, 64>(args, stream) : launch<__half, 64>(args, stream);
    }
}
