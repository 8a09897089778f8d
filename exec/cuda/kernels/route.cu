/*
 * Router, and the order of rows.
 *
 *   forward    chosen = the k largest of E logits, then the lowest; weights = softmax            =
 *   backward   d_logits = p (d_weights - sum p d_weights), by the chosen                         =
 *              and the auxiliary loss's part
 *   sort       a stable counting sort of R = T k assignments by expert                           =
 *
 * logits: [T,E], chosen, weights: [T,k]. A warp a token: lane l has experts l, l + 32, ... of at
 * most 512. k times it takes the largest logit as a number of 32 bits that has the logits' order.
 * Sums are trees over the lanes. Bytes: T (E + 2 k) elements and 4 T k; backward T (2 E + 2 k) + ...
 *
 * The sort has tiles of 1024 assignments, a thread each:
 *
 *   count   counts[e,tile] = how many of a tile go to expert e      atomics on integers
 *   scan    counts[e,tile] = ... of all tiles before; totals[e]     a warp an expert
 *   move    rows[a] = first row of e + counts[e,tile] + those before it in the tile
 *
 * Workspace: counts and totals. Oracle: exec/host/route.c
 */
#include "exec/cuda/base/common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define SLOTS (RP_MOST_EXPERTS / 32) /* experts of a lane */
#define ALL 0xffffffffu
#define TILE 1024 /* assignments; threads of a block */
#define TILE_WARPS (TILE / 32)

/* Larger for larger logits, the same for -0 and 0; most of all for NaN; never 0. */
__device__ __forceinline__ unsigned
order_of(float x)
{
    const unsigned bits = __float_as_uint(x == 0.0f ? 0.0f : x);

    return x != x ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Logits of this lane's experts; -inf beyond the last. */
template <typename T>
__device__ __forceinline__ void
load_logits(const T *row, unsigned experts, float *logits)
{
    const unsigned lane = threadIdx.x % 32;

#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++)
        logits[i] = lane + 32 * i < experts ? to_float(row[lane + 32 * i]) : -INFINITY;
}

/* sum_e exp(logits[e] - largest), the same in all lanes */
template <typename T>
__device__ __forceinline__ float
sum_of_exp(const float *logits, unsigned experts, float largest)
{
    const unsigned lane = threadIdx.x % 32;
    float sum = 0;

#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++)
        if (lane + 32 * i < experts)
            sum += exp_for<T>(logits[i] - largest);
    return sum_lanes<32>(sum);
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS) route_kernel(RpRouteArgs args)
{
    const size_t t = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    const unsigned experts = (unsigned)args.experts, choices = (unsigned)args.choices;
    const T *row = (const T *)args.logits + t * experts;
    float logits[SLOTS];
    unsigned keys[SLOTS]; /* 0: chosen already, or none */
    unsigned mine = 0;    /* lane j: the jth choice */
    float value, largest, sum;

    if (t >= args.tokens)
        return;
    load_logits(row, experts, logits);
#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++)
        keys[i] = lane + 32 * i < experts ? order_of(logits[i]) : 0;
    for (unsigned j = 0; j < choices; j++) {
        unsigned best = 0, expert = 0, top;

#pragma unroll
        for (unsigned i = 0; i < SLOTS && 32 * i < experts; i++) {
            if (keys[i] > best) {
                best = keys[i];
                expert = lane + 32 * i;
            }
        }
        top = __reduce_max_sync(ALL, best);
        expert = __reduce_min_sync(ALL, best == top ? expert : ~0u);
#pragma unroll
        for (unsigned i = 0; i < SLOTS && 32 * i < experts; i++)
            keys[i] = lane + 32 * i == expert ? 0 : keys[i];
        mine = lane == j ? expert : mine;
    }
    value = to_float(row[mine]);
    largest = __shfl_sync(ALL, value, 0);
    value = lane < choices ? exp_for<T>(value - largest) : 0.0f;
    sum = args.among_chosen ? sum_lanes<32>(value) : sum_of_exp<T>(logits, experts, largest);
    if (lane < choices) {
        args.chosen[t * choices + lane] = (int32_t)mine;
        ((T *)args.weights)[t * choices + lane] = from_float<T>(value / sum);
    }
}

/* Adds the auxiliary loss's part (balance.cu): q (d_sums - sum q d_sums), q the softmax over all. */
template <typename T>
__device__ __forceinline__ void
add_balance(const RpRouteArgs &args, const float *logits, float largest, float *gradients)
{
    const unsigned lane = threadIdx.x % 32, experts = (unsigned)args.experts;
    const float sum = sum_of_exp<T>(logits, experts, largest);
    float q[SLOTS], d_sums[SLOTS], dot = 0;

#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++) {
        const bool here = lane + 32 * i < experts;

        q[i] = here ? exp_for<T>(logits[i] - largest) / sum : 0.0f;
        d_sums[i] = here ? args.d_sums[lane + 32 * i] : 0.0f;
        dot += q[i] * d_sums[i];
    }
    dot = sum_lanes<32>(dot);
#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++)
        gradients[i] += q[i] * (d_sums[i] - dot);
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS) route_backward_kernel(RpRouteArgs args)
{
    const size_t t = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    const unsigned experts = (unsigned)args.experts, choices = (unsigned)args.choices;
    const T *row = (const T *)args.logits + t * experts;
    T *target = (T *)args.d_logits + t * experts;
    float logits[SLOTS], gradients[SLOTS];
    unsigned mine;
    float value, largest, sum, p, d_weight, dot;

    if (t >= args.tokens)
        return;
    load_logits(row, experts, logits);
    mine = lane < choices ? (unsigned)args.chosen[t * choices + lane] : 0;
    d_weight = lane < choices ? args.d_weights[t * choices + lane] : 0.0f;
    value = to_float(row[mine]);
    __syncwarp(); /* target may be row */
    largest = __shfl_sync(ALL, value, 0);
    value = lane < choices ? exp_for<T>(value - largest) : 0.0f;
    sum = args.among_chosen ? sum_lanes<32>(value) : sum_of_exp<T>(logits, experts, largest);
    p = value / sum;
    dot = sum_lanes<32>(p * d_weight);
#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++)
        gradients[i] = args.among_chosen ? 0.0f : -(exp_for<T>(logits[i] - largest) / sum) * dot;
    for (unsigned j = 0; j < choices; j++) {
        const unsigned expert = __shfl_sync(ALL, mine, j);
        const float gradient = __shfl_sync(ALL, p * (d_weight - dot), j);

#pragma unroll
        for (unsigned i = 0; i < SLOTS && 32 * i < experts; i++)
            gradients[i] = lane + 32 * i == expert ? gradient : gradients[i];
    }
    if (args.d_sums != NULL && t % args.sequence < (size_t)args.lengths[t / args.sequence])
        add_balance<T>(args, logits, largest, gradients);
#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++)
        if (lane + 32 * i < experts)
            target[lane + 32 * i] = from_float<T>(gradients[i]);
}

static bool
is_routable(const RpRouteArgs *args)
{
    return args->experts <= RP_MOST_EXPERTS && args->choices <= RP_MOST_CHOICES &&
           args->choices <= args->experts;
}

template <bool BACKWARD>
static cudaError_t
launch_route(const RpRouteArgs *args, cudaStream_t stream)
{
    const RpRouteArgs copy = *args;

    if (args->tokens == 0 || args->choices == 0)
        return cudaSuccess;
    if (!is_routable(args))
        return cudaErrorInvalidValue;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        (BACKWARD ? route_backward_kernel<T> : route_kernel<T>)<<<(unsigned)ceil_divide(copy.tokens, WARPS), THREADS, 0,
                                                                  stream>>>(copy);
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_route_forward(const RpRouteArgs *args, cudaStream_t stream)
{
    return launch_route<false>(args, stream);
}

cudaError_t
rp_cuda_route_backward(const RpRouteArgs *args, cudaStream_t stream)
{
    return launch_route<true>(args, stream);
}

static __global__ void
__launch_bounds__(TILE)
    count_kernel(size_t n, unsigned experts, const int32_t *chosen, unsigned *counts)
{
    __shared__ unsigned shared[RP_MOST_EXPERTS];
    const size_t a = (size_t)blockIdx.x * TILE + threadIdx.x;

    if (threadIdx.x < RP_MOST_EXPERTS)
        shared[threadIdx.x] = 0;
    __syncthreads();
    if (a < n)
        atomicAdd(&shared[chosen[a]], 1u);
    __syncthreads();
    if (threadIdx.x < experts)
        counts[(size_t)threadIdx.x * gridDim.x + blockIdx.x] = shared[threadIdx.x];
}

/* Sum over this lane and those before it. */
__device__ __forceinline__ unsigned
sum_before(unsigned value)
{
#pragma unroll
    for (unsigned step = 1; step < 32; step *= 2) {
        const unsigned other = __shfl_up_sync(ALL, value, step);

        value += threadIdx.x % 32 >= step ? other : 0;
    }
    return value;
}

static __global__ void
__launch_bounds__(THREADS)
    scan_kernel(unsigned experts, size_t tiles, unsigned *counts, unsigned *totals)
{
    const unsigned e = blockIdx.x * WARPS + threadIdx.x / 32;
    const unsigned lane = threadIdx.x % 32;
    unsigned total = 0;

    if (e >= experts)
        return;
    for (size_t base = 0; base < tiles; base += 32) {
        const size_t i = e * tiles + base + lane;
        const unsigned own = base + lane < tiles ? counts[i] : 0;
        const unsigned sum = sum_before(own);

        if (base + lane < tiles)
            counts[i] = total + sum - own;
        total += __shfl_sync(ALL, sum, 31);
    }
    if (lane == 0)
        totals[e] = total;
}

/* @starts: [RP_MOST_EXPERTS], = sum of the totals before. All threads of the block call it. */
__device__ __forceinline__ void
add_totals(unsigned experts, const unsigned *totals, unsigned *starts)
{
    __shared__ unsigned of_warps[SLOTS];
    const unsigned e = threadIdx.x, warp = e / 32;
    const unsigned own = e < experts ? totals[e] : 0;
    unsigned sum = sum_before(own) - own;

    if (e < RP_MOST_EXPERTS && e % 32 == 31)
        of_warps[warp] = sum + own;
    __syncthreads();
    for (unsigned i = 0; i < SLOTS; i++)
        sum += i < warp ? of_warps[i] : 0;
    if (e < RP_MOST_EXPERTS)
        starts[e] = sum;
}

static __global__ void
__launch_bounds__(TILE)
    move_kernel(RpSortRowsArgs args, const unsigned *counts, const unsigned *totals)
{
    /* choices of an expert in earlier warps, at most TILE */
    __shared__ uint16_t before[TILE_WARPS][RP_MOST_EXPERTS];
    __shared__ unsigned starts[RP_MOST_EXPERTS];
    const size_t n = args.tokens * args.choices;
    const size_t a = (size_t)blockIdx.x * TILE + threadIdx.x;
    const unsigned warp = threadIdx.x / 32;
    const unsigned lower = (1u << threadIdx.x % 32) - 1;
    const bool here = a < n;
    const unsigned e = here ? (unsigned)args.chosen[a] : RP_MOST_EXPERTS;
    const unsigned peers = __match_any_sync(ALL, e);

    for (unsigned i = threadIdx.x; i < TILE_WARPS * RP_MOST_EXPERTS; i += TILE)
        (&before[0][0])[i] = 0;
    add_totals((unsigned)args.experts, totals, starts);
    __syncthreads();
    if (here && (peers & lower) == 0)
        before[warp][e] = (uint16_t)__popc(peers);
    __syncthreads();
    if (threadIdx.x < RP_MOST_EXPERTS) {
        unsigned sum = 0;

        for (unsigned i = 0; i < TILE_WARPS; i++) {
            const unsigned own = before[i][threadIdx.x];

            before[i][threadIdx.x] = (uint16_t)sum;
            sum += own;
        }
    }
    __syncthreads();
    if (here) {
        const unsigned row = starts[e] + counts[(size_t)e * gridDim.x + blockIdx.x] +
                             before[warp][e] + __popc(peers & lower);

        args.rows[a] = (int32_t)row;
        args.assigned[row] = (int32_t)a;
    }
    if (blockIdx.x == 0 && threadIdx.x < args.experts)
        args.offsets[threadIdx.x] = (int32_t)starts[threadIdx.x];
    if (blockIdx.x == 0 && threadIdx.x == 0)
        args.offsets[args.experts] = (int32_t)n;
}

static size_t
tiles_of(const RpSortRowsArgs *args)
{
    return ceil_divide(args->tokens * args->choices, TILE);
}

size_t
rp_cuda_sort_rows_workspace(const RpSortRowsArgs *args)
{
    return round_to_64((tiles_of(args) + 1) * args->experts * sizeof(unsigned));
}

cudaError_t
rp_cuda_sort_rows(const RpSortRowsArgs *args, cudaStream_t stream)
{
    const size_t n = args->tokens * args->choices, tiles = tiles_of(args);
    const unsigned experts = (unsigned)args->experts;
    unsigned *counts = (unsigned *)args->workspace;
    unsigned *totals = counts + tiles * experts;

    if (n == 0)
        return cudaMemsetAsync(args->offsets, 0, (args->experts + 1) * sizeof *args->offsets,
                               stream);
    if (args->experts > RP_MOST_EXPERTS || n > INT32_MAX)
        return cudaErrorInvalidValue;
    count_kernel<<<(unsigned)tiles, TILE, 0, stream>>>(n, experts, args->chosen, counts);
    scan_kernel<<<(unsigned)ceil_divide(experts, WARPS), THREADS, 0, stream>>>(experts, tiles,
                                                                               counts, totals);
    move_kernel<<<(unsigned)tiles, TILE, 0, stream>>>(*args, counts, totals);
    return cudaGetLastError();
}
