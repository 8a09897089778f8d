/*
 * The routers' auxiliary loss: each layer's part, and the loss.
 *
 *   forward   counts = those before + choices, sums = those before + sum_t softmax(logits)   =
 *   loss      E sum (counts / N) (sums / N), and its gradient                                 =
 *
 * logits: [T,E]. A warp a token, a block of 8 warps 256 tokens; lane l has experts l, l + 32, ... of
 * at most 512, and its warp's sums in registers. Blocks leave theirs in the workspace, [blocks][E]
 * of each kind; one block adds them up in order, a thread an expert. Integers, and fp32 sums of 32
 * tokens, 8 warps, all blocks. The loss: one warp, double. Bytes: T (E + 2 k) elements.
 * Oracle: exec/host/route.c
 */
#include "exec/cuda/base/common.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define TILE 256 /* tokens of a block */
#define SLOTS (RP_MOST_EXPERTS / 32)

/* exp(logits - the largest) of this lane's experts; 0 beyond the last. Returns: their sum over all */
template <typename T>
__device__ __forceinline__ float
load_exp(const T *row, unsigned experts, float *values)
{
    const unsigned lane = threadIdx.x % 32;
    float largest = -INFINITY, sum = 0;

#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++) {
        values[i] = lane + 32 * i < experts ? to_float(row[lane + 32 * i]) : -INFINITY;
        largest = fmaxf(largest, values[i]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
#pragma unroll
    for (unsigned i = 0; i < SLOTS; i++) {
        values[i] = lane + 32 * i < experts ? exp_for<T>(values[i] - largest) : 0.0f;
        sum += values[i];
    }
    return sum_lanes<32>(sum);
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS) add_tokens_kernel(RpBalanceArgs args, int32_t *counts, float *sums)
{
    __shared__ float shared_sums[WARPS][RP_MOST_EXPERTS];
    __shared__ int shared_counts[RP_MOST_EXPERTS];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned experts = (unsigned)args.experts, choices = (unsigned)args.choices;
    float mine[SLOTS] = {};

    for (unsigned e = threadIdx.x; e < RP_MOST_EXPERTS; e += THREADS)
        shared_counts[e] = 0;
    __syncthreads();
    for (unsigned i = 0; i < TILE / WARPS; i++) {
        const size_t t = (size_t)blockIdx.x * TILE + warp * (TILE / WARPS) + i;
        float values[SLOTS], sum;

        if (t >= args.tokens)
            break;
        if (t % args.sequence >= (size_t)args.lengths[t / args.sequence])
            continue;
        sum = load_exp((const T *)args.logits + t * experts, experts, values);
#pragma unroll
        for (unsigned s = 0; s < SLOTS; s++)
            mine[s] += values[s] / sum;
        if (lane < choices)
            atomicAdd(&shared_counts[args.chosen[t * choices + lane]], 1);
    }
#pragma unroll
    for (unsigned s = 0; s < SLOTS; s++)
        shared_sums[warp][lane + 32 * s] = mine[s];
    __syncthreads();
    for (unsigned e = threadIdx.x; e < experts; e += THREADS) {
        const size_t place = (size_t)blockIdx.x * experts + e;
        float sum = 0;

        for (unsigned w = 0; w < WARPS; w++)
            sum += shared_sums[w][e];
        sums[place] = sum;
        counts[place] = shared_counts[e];
    }
}

static __global__ void
__launch_bounds__(RP_MOST_EXPERTS) add_blocks_kernel(RpBalanceArgs args, size_t blocks,
                                                     const int32_t *counts, const float *sums)
{
    const size_t E = args.experts, e = threadIdx.x;
    int32_t count = 0;
    float sum = 0;

    if (e >= E)
        return;
    for (size_t i = 0; i < blocks; i++) {
        count += counts[i * E + e];
        sum += sums[i * E + e];
    }
    args.counts[e] = args.counts_before[e] + count;
    args.sums[e] = args.sums_before[e] + sum;
}

static size_t
blocks_of(const RpBalanceArgs *args)
{
    return ceil_divide(args->tokens, TILE);
}

size_t
rp_cuda_balance_forward_workspace(const RpBalanceArgs *args)
{
    return 2 * round_to_64(blocks_of(args) * args->experts * sizeof(float));
}

cudaError_t
rp_cuda_balance_forward(const RpBalanceArgs *args, cudaStream_t stream)
{
    const RpBalanceArgs copy = *args;
    const size_t blocks = blocks_of(args);
    const size_t bytes = round_to_64(blocks * args->experts * sizeof(float));
    int32_t *counts = (int32_t *)args->workspace;
    float *sums = (float *)((char *)args->workspace + bytes);

    if (args->experts > RP_MOST_EXPERTS || args->choices > RP_MOST_CHOICES || args->sequence == 0)
        return cudaErrorInvalidValue;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        if (blocks > 0)
            add_tokens_kernel<T><<<(unsigned)blocks, THREADS, 0, stream>>>(copy, counts, sums);
        add_blocks_kernel<<<1, RP_MOST_EXPERTS, 0, stream>>>(copy, blocks, counts, sums);
        return cudaGetLastError();
    });
}

static __global__ void
__launch_bounds__(32) loss_kernel(RpBalanceLossArgs args)
{
    const unsigned lane = threadIdx.x;
    double n = 0, sum = 0;

    for (size_t b = lane; b < args.sequences; b += 32)
        n += args.lengths[b];
    n = sum_lanes<32>(n) * (double)args.layers;
    for (size_t e = lane; e < args.experts; e += 32) {
        const double share = n > 0 ? args.counts[e] / n : 0;

        sum += n > 0 ? share * (args.sums[e] / n) : 0;
        args.d_sums[e] = n > 0 ? (float)(args.scale * (double)args.experts * share / n) : 0.0f;
    }
    sum = sum_lanes<32>(sum);
    if (lane == 0)
        *args.loss = (double)args.experts * sum;
}

cudaError_t
rp_cuda_balance_loss(const RpBalanceLossArgs *args, cudaStream_t stream)
{
    loss_kernel<<<1, 32, 0, stream>>>(*args);
    return cudaGetLastError();
}
