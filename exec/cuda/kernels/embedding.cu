/*
 * Embedding.
 *
 *   forward    y[t] = weight[ids[t]]                                                             =
 *   backward   d_weight[ids[t]] += dy[t], t ascending, not for the padding id                   +=
 *
 * weight: [vocabulary,n], y, dy: [tokens,n]; d_weight fp32, and so are the sums.
 *
 * Backward sorts the tokens by id, stably, and gives each id's run to one block a strip of columns,
 * which adds the run's rows in order:
 *
 *   ids     7 3 7 9 3        sorted   3 3 7 7 9
 *   tokens  0 1 2 3 4                 1 4 0 2 3
 *                                     ^   ^   ^   blocks that begin here work, the others leave
 *
 * The sort is by digits of 8 bits, lowest first. Per digit: every tile of 256 tokens counts its
 * digits (counts: [256,tiles]); one block sums those up; tiles move their tokens. Integers only.
 * Workspace: ids and tokens, twice, and counts. Oracle: exec/host/vocabulary.c
 */
#include "exec/cuda/base/common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define DIGITS 256
#define BITS 8
#define SCAN_THREADS 1024

template <typename T>
static __global__ void
__launch_bounds__(THREADS)
    look_up_kernel(size_t n, const int32_t *ids, const T *weight, T *y, bool wide)
{
    const size_t t = blockIdx.x;
    const T *row = weight + (size_t)ids[t] * n;

    for (size_t first = threadIdx.x * RP_PACK; first < n; first += blockDim.x * RP_PACK)
        store_pack(y + t * n + first, load_pack(row + first, n - first, wide), n - first, wide);
}

/*
 * Rank of this thread's @digit among equal digits of its tile, by thread; those that are not
 * @here do not count. On return counts[0][d] is how often the tile has digit d.
 */
__device__ __forceinline__ unsigned
rank_in_tile(unsigned digit, bool here, unsigned (*counts)[DIGITS])
{
    const unsigned warp = threadIdx.x / 32;
    const unsigned lower = (1u << threadIdx.x % 32) - 1;
    const unsigned peers = __match_any_sync(0xffffffffu, here ? digit : DIGITS);
    unsigned before = 0;
    unsigned rank;

    for (unsigned i = 0; i < WARPS; i++)
        counts[i][threadIdx.x] = 0;
    __syncthreads();
    if (here && (peers & lower) == 0)
        counts[warp][digit] = __popc(peers);
    __syncthreads();
    for (unsigned i = 0; here && i < warp; i++)
        before += counts[i][digit];
    rank = before + __popc(peers & lower);
    __syncthreads();
    for (unsigned i = 1; i < WARPS; i++)
        counts[0][threadIdx.x] += counts[i][threadIdx.x];
    __syncthreads();
    return rank;
}

static __global__ void
__launch_bounds__(THREADS)
    count_kernel(size_t tokens, const int32_t *ids, unsigned shift, unsigned *counts)
{
    __shared__ unsigned shared[WARPS][DIGITS];
    const size_t t = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const bool here = t < tokens;

    rank_in_tile(here ? (unsigned)ids[t] >> shift & (DIGITS - 1) : 0, here, shared);
    counts[(size_t)threadIdx.x * gridDim.x + blockIdx.x] = shared[0][threadIdx.x];
}

/* One block: counts[i] = counts[0] + ... + counts[i-1] */
static __global__ void
__launch_bounds__(SCAN_THREADS) scan_kernel(unsigned *counts, size_t n)
{
    __shared__ unsigned shared[SCAN_THREADS / 32];
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    unsigned total = 0;

    for (size_t base = 0; base < n; base += SCAN_THREADS) {
        const size_t i = base + threadIdx.x;
        const unsigned own = i < n ? counts[i] : 0;
        unsigned sum = own;
        unsigned of_warp = 0;

        for (unsigned step = 1; step < 32; step *= 2) {
            const unsigned other = __shfl_up_sync(0xffffffffu, sum, step);

            sum += lane >= step ? other : 0;
        }
        if (lane == 31)
            shared[warp] = sum;
        __syncthreads();
        for (unsigned w = 0; w < SCAN_THREADS / 32; w++) {
            if (w == warp)
                sum += of_warp;
            of_warp += shared[w];
        }
        if (i < n)
            counts[i] = total + sum - own;
        total += of_warp;
        __syncthreads();
    }
}

/* @tokens_in: NULL: in order */
static __global__ void
__launch_bounds__(THREADS)
    move_kernel(size_t tokens, const int32_t *ids_in, const int32_t *tokens_in, unsigned shift,
                const unsigned *counts, int32_t *ids_out, int32_t *tokens_out)
{
    __shared__ unsigned shared[WARPS][DIGITS];
    const size_t t = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const bool here = t < tokens;
    const int32_t id = here ? ids_in[t] : 0;
    const unsigned digit = (unsigned)id >> shift & (DIGITS - 1);
    const unsigned rank = rank_in_tile(digit, here, shared);

    if (here) {
        const size_t place = counts[(size_t)digit * gridDim.x + blockIdx.x] + rank;

        ids_out[place] = id;
        tokens_out[place] = tokens_in ? tokens_in[t] : (int32_t)t;
    }
}

/* The first place after @begin with another id than there, by doubling steps and then halving them:
 * most runs are short, some very long. */
__device__ __forceinline__ size_t
end_of_run(const int32_t *ids, size_t begin, size_t tokens)
{
    const int32_t id = ids[begin];
    size_t end = begin + 1; /* all before it are of the run */
    size_t step = 1;

    while (end < tokens && ids[end + step <= tokens ? end + step - 1 : tokens - 1] == id) {
        end = end + step <= tokens ? end + step : tokens;
        step *= 2;
    }
    /* the run ends within [end, end + step) */
    while (step > 1) {
        step /= 2;
        if (end + step <= tokens && ids[end + step - 1] == id)
            end += step;
    }
    return end;
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS)
    add_rows_kernel(size_t tokens, size_t n, const int32_t *ids, const int32_t *order, const T *dy,
                    float *d_weight, int32_t padding_id, bool wide)
{
    const size_t begin = blockIdx.x;
    const int32_t id = ids[begin];
    const size_t first = ((size_t)blockIdx.y * blockDim.x + threadIdx.x) * RP_PACK;
    const size_t count = n - first;
    size_t end;
    Pack<float> sums;
    float *target;

    if (id == padding_id || (begin > 0 && ids[begin - 1] == id) || first >= n)
        return;
    end = end_of_run(ids, begin, tokens);
    target = d_weight + (size_t)id * n + first;
    sums = load_pack(target, count, wide);
#pragma unroll 4
    for (size_t i = begin; i < end; i++) {
        const Pack<T> pack = load_pack(dy + (size_t)order[i] * n + first, count, wide);

#pragma unroll
        for (int j = 0; j < RP_PACK; j++)
            sums.at[j] += to_float(pack.at[j]);
    }
    store_pack(target, sums, count, wide);
}

cudaError_t
rp_cuda_embedding_forward(const RpEmbeddingArgs *args, cudaStream_t stream)
{
    const size_t n = args->n;

    if (args->tokens == 0 || n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        look_up_kernel<T><<<(unsigned)args->tokens, threads_for(n, THREADS), 0, stream>>>(
            n, args->ids, (const T *)args->weight, (T *)args->y,
            rows_are_wide(args->weight, n) && is_wide(args->y));
        return cudaGetLastError();
    });
}

/* The parts of the workspace. */
typedef struct {
    int32_t *ids[2], *order[2];
    unsigned *counts;
} Lists;

static size_t
list_bytes(size_t tokens)
{
    return round_to_64(tokens * sizeof(int32_t));
}

static size_t
counts_of(size_t tokens)
{
    return ceil_divide(tokens, THREADS) * DIGITS;
}

size_t
rp_cuda_embedding_backward_workspace(const RpEmbeddingArgs *args)
{
    return 4 * list_bytes(args->tokens) + counts_of(args->tokens) * sizeof(unsigned);
}

/* Sorts. Returns: which of the two lists of @lists holds the result. */
static int
sort_tokens(size_t tokens, size_t vocabulary, const int32_t *ids, const Lists *lists,
            cudaStream_t stream)
{
    const unsigned tiles = (unsigned)ceil_divide(tokens, THREADS);
    const int32_t *ids_in = ids;
    const int32_t *order_in = NULL;
    int into = 0;

    for (unsigned shift = 0; shift == 0 || (vocabulary - 1) >> shift > 0; shift += BITS) {
        count_kernel<<<tiles, THREADS, 0, stream>>>(tokens, ids_in, shift, lists->counts);
        scan_kernel<<<1, SCAN_THREADS, 0, stream>>>(lists->counts, counts_of(tokens));
        move_kernel<<<tiles, THREADS, 0, stream>>>(tokens, ids_in, order_in, shift, lists->counts,
                                                   lists->ids[into], lists->order[into]);
        ids_in = lists->ids[into];
        order_in = lists->order[into];
        into ^= 1;
    }
    return into ^ 1;
}

cudaError_t
rp_cuda_embedding_backward(const RpEmbeddingArgs *args, cudaStream_t stream)
{
    const size_t tokens = args->tokens, n = args->n, bytes = list_bytes(tokens);
    char *place = (char *)args->workspace;
    const Lists lists = {{(int32_t *)place, (int32_t *)(place + bytes)},
                         {(int32_t *)(place + 2 * bytes), (int32_t *)(place + 3 * bytes)},
                         (unsigned *)(place + 4 * bytes)};
    const unsigned threads = threads_for(n, THREADS);
    const dim3 blocks((unsigned)tokens, (unsigned)ceil_divide(n, (size_t)threads * RP_PACK));
    int sorted;

    if (tokens == 0 || n == 0 || args->vocabulary == 0)
        return cudaSuccess;
    if (tokens > INT32_MAX)
        return cudaErrorInvalidValue;
    sorted = sort_tokens(tokens, args->vocabulary, args->ids, &lists, stream);
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        add_rows_kernel<T><<<blocks, threads, 0, stream>>>(
            tokens, n, lists.ids[sorted], lists.order[sorted], (const T *)args->dy, args->d_weight,
            args->padding_id, rows_are_wide(args->dy, n) && is_wide(args->d_weight));
        return cudaGetLastError();
    });
}
