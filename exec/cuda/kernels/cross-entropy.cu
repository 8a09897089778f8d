/*
 * Cross-entropy of a chunk of logits, and its gradient in their place.
 *
 *   loss[0] += sum over unmasked t of  log sum_v exp(logits[t,v]) - logits[t,labels[t]]         +=
 *   logits[t,v] = scale (exp(logits[t,v]) / sum_w exp(logits[t,w]) - [v = labels[t]]), masked 0  =
 *
 * Smoothed by e: (1 - e) [v = label] + e / vocabulary stands for [v = label], and the loss takes the
 * mean of the logits with weight e. With weights of tokens, scale weights[t] stands for scale.
 *
 * logits: [tokens,vocabulary]. One block of 1024 threads a token:
 *
 *   1  largest logit so far and sum of exp(logit - largest), a thread each, in fp32; then together
 *   2  the gradient, if asked for
 *
 * The row is kept in shared memory as far as it fits, so that most of it is read from memory once
 * (152k values of 16 bits are 304 KB; a block may have 227 KB on sm_90, 99 KB on sm_86 and sm_89).
 * The part that fits changes no sum. Losses of tokens, in double, go to the workspace and are added
 * up in a fixed order by one block. Oracle: exec/host/vocabulary.c
 */
#include <float.h>

#include "exec/cuda/base/common.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)
#define STATIC_BYTES 1024 /* shared memory that the kernel declares itself, and CUDA's part */

#define BATCH 4 /* packs that a thread reads before it looks at the first */

/* sum of exp(x - largest) over the values so far */
struct Softmax {
    float largest, sum;
};

template <typename T>
__device__ __forceinline__ void
see(Softmax &seen, float largest, float sum)
{
    const float most = fmaxf(seen.largest, largest);

    seen.sum = seen.sum * exp_for<T>(seen.largest - most) + sum * exp_for<T>(largest - most);
    seen.largest = most;
}

/* @count: of the values of all packs */
template <typename T, int N>
__device__ __forceinline__ void
see_packs(Softmax &seen, const Pack<T> (&packs)[N], size_t count)
{
    float largest = -FLT_MAX;
    float sum = 0;

#pragma unroll
    for (int p = 0; p < N; p++)
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            if (N > 1 || (size_t)i < count)
                largest = fmaxf(largest, to_float(packs[p].at[i])); /* passes NaNs over: the sum has them */
    if (largest > seen.largest) {
        seen.sum *= exp_for<T>(seen.largest - largest);
        seen.largest = largest;
    }
#pragma unroll
    for (int p = 0; p < N; p++)
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            if (N > 1 || (size_t)i < count)
                sum += exp_for<T>(to_float(packs[p].at[i]) - seen.largest);
    seen.sum += sum;
}

/* The same in every thread of the block. */
template <typename T>
__device__ __forceinline__ Softmax
see_block(Softmax seen)
{
    __shared__ Softmax shared[WARPS];
    Softmax whole;

#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float largest = __shfl_xor_sync(0xffffffffu, seen.largest, step);
        const float sum = __shfl_xor_sync(0xffffffffu, seen.sum, step);

        see<T>(seen, largest, sum);
    }
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = seen;
    __syncthreads();
    whole = shared[threadIdx.x % 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float largest = __shfl_xor_sync(0xffffffffu, whole.largest, step);
        const float sum = __shfl_xor_sync(0xffffffffu, whole.sum, step);

        see<T>(whole, largest, sum);
    }
    return whole;
}

/* factor exp(logit - largest) - less */
template <typename T>
__device__ __forceinline__ Pack<T>
gradient_of(const Pack<T> &logits, float largest, float factor, float less)
{
    Pack<T> pack;

#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        pack.at[i] = from_float<T>(factor * exp_for<T>(to_float(logits.at[i]) - largest) - less);
    return pack;
}

template <typename T>
__device__ __forceinline__ float
sum_pack(const Pack<T> &pack, size_t count)
{
    float sum = 0;

#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        if ((size_t)i < count)
            sum += to_float(pack.at[i]);
    return sum;
}

/* Sums over all threads of the block, in a fixed order; each thread gets the same sum. */
__device__ __forceinline__ double
sum_block(double sum)
{
    __shared__ double shared[WARPS];

#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = shared[threadIdx.x % 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

template <typename T>
__device__ __forceinline__ void
zero_row(T *row, size_t vocabulary, bool wide)
{
    Pack<T> zeros;

#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        zeros.at[i] = from_float<T>(0.0f);
    for (size_t first = threadIdx.x * RP_PACK; first < vocabulary; first += THREADS * RP_PACK)
        store_pack(row + first, zeros, vocabulary - first, wide);
}

/* Calls @each with the first of BATCH packs, THREADS apart, that are whole, then with one pack each that is left: wherever
 * rows stand, values are added in one order. */
template <typename Each>
__device__ __forceinline__ void
for_packs(size_t vocabulary, const Each &each)
{
    const unsigned packs = (unsigned)((vocabulary + RP_PACK - 1) / RP_PACK), whole = (unsigned)(vocabulary / RP_PACK);
    unsigned pack = threadIdx.x;

    for (; pack + (BATCH - 1) * THREADS < whole; pack += BATCH * THREADS)
        each(std::integral_constant<int, BATCH>(), pack);
    for (; pack < packs; pack += THREADS)
        each(std::integral_constant<int, 1>(), pack);
}

/* N packs from @pack on, all on their way before one is waited for; those below @kept from @keep. */
template <typename T, int N>
__device__ __forceinline__ void
load_packs(const T *row, unsigned pack, size_t count, bool wide, const Pack<T> *keep, size_t kept,
           Pack<T> (&values)[N])
{
    const Pack<T> *const packs = (const Pack<T> *)(const void *)row;

    if (N > 1 && wide) {
#pragma unroll
        for (unsigned i = 0; i < N; i++)
            values[i] = pack + i * THREADS < kept ? keep[pack + i * THREADS] : packs[pack + i * THREADS];
        return;
    }
#pragma unroll
    for (unsigned i = 0; i < N; i++)
        values[i] = pack + i * THREADS < kept
                        ? keep[pack + i * THREADS]
                        : load_pack(row + (size_t)(pack + i * THREADS) * RP_PACK, N > 1 ? RP_PACK : count, wide);
}

/* Shared memory: the row's first @kept packs. A thread reads only packs that it wrote itself. */
template <typename T, bool SMOOTHS>
static __global__ void __launch_bounds__(THREADS)
token_kernel(size_t vocabulary, T *logits, const int32_t *labels, float scale, const float *weights,
             int gradient, double *token_losses, float *losses, size_t kept, bool wide, float smoothing)
{
    extern __shared__ uint4 memory[];
    Pack<T> *keep = reinterpret_cast<Pack<T> *>(memory);
    const size_t t = blockIdx.x;
    const size_t label = (size_t)labels[t];
    const bool masked = labels[t] == RP_LABEL_MASKED;
    T *row = logits + t * vocabulary;
    Softmax softmax = {-FLT_MAX, 0.0f};
    float at_label = NAN; /* a label that is no token: the loss says so */
    double loss = 0, total = 0;

    if (masked) {
        if (gradient)
            zero_row(row, vocabulary, wide);
    } else {
        if (label < vocabulary)
            at_label = to_float(row[label]);
        for_packs(vocabulary, [&](auto batch, unsigned pack) {
            constexpr int N = decltype(batch)::value;
            const size_t count = vocabulary - (size_t)pack * RP_PACK;
            Pack<T> values[N];

            load_packs(row, pack, count, wide, keep, 0, values);
#pragma unroll
            for (int i = 0; i < N; i++)
                if (pack + i * THREADS < kept)
                    keep[pack + i * THREADS] = values[i];
            see_packs<T, N>(softmax, values, count);
            if (SMOOTHS)
                for (int i = 0; i < N; i++)
                    total += (double)sum_pack(values[i], N > 1 ? RP_PACK : count);
        });
        softmax = see_block<T>(softmax);
        if (SMOOTHS) {
            const double e = (double)smoothing;

            total = (1 - e) * (double)at_label + e * (sum_block(total) / (double)vocabulary);
        } else {
            total = (double)at_label;
        }
        loss = log((double)softmax.sum) + ((double)softmax.largest - total);
    }
    if (threadIdx.x == 0) {
        token_losses[t] = loss;
        if (losses)
            losses[t] = (float)loss;
    }
    if (masked || !gradient)
        return;
    if (weights)
        scale *= weights[t];
    const float inverse = 1.0f / softmax.sum, each = smoothing / (float)vocabulary;

    for_packs(vocabulary, [&](auto batch, unsigned pack) {
        constexpr int N = decltype(batch)::value;
        const size_t count = vocabulary - (size_t)pack * RP_PACK;
        Pack<T> values[N];

        load_packs(row, pack, count, wide, keep, kept, values);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const size_t first = (size_t)(pack + i * THREADS) * RP_PACK;

            store_pack(row + first, gradient_of(values[i], softmax.largest, scale * inverse, scale * each),
                       N > 1 ? RP_PACK : count, wide);
        }
    });
    /* by the thread that wrote the label's pack */
    if (label < vocabulary && threadIdx.x == label / RP_PACK % THREADS)
        row[label] = from_float<T>(
            scale * (exp_for<T>(at_label - softmax.largest) * inverse - (each + (1.0f - smoothing))));
}

size_t
rp_cuda_cross_entropy_workspace(const RpCrossEntropyArgs *args)
{
    return round_to_64(args->tokens * sizeof(double));
}

/* Number of packs of @pack_bytes of a row of @packs that a block of the current device may keep. */
static cudaError_t
packs_to_keep(size_t packs, size_t pack_bytes, size_t *kept)
{
    int device = 0;
    int most = 0;
    cudaError_t status = cudaGetDevice(&device);

    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status != cudaSuccess)
        return status;
    *kept = most > STATIC_BYTES ? ((size_t)most - STATIC_BYTES) / pack_bytes : 0;
    if (*kept > packs)
        *kept = packs;
    return cudaSuccess;
}

template <typename T, bool SMOOTHS>
static cudaError_t
launch(const RpCrossEntropyArgs *args, cudaStream_t stream)
{
    const size_t vocabulary = args->vocabulary;
    const bool wide = rows_are_wide(args->logits, vocabulary);
    size_t kept = 0;
    cudaError_t status;

    if (args->gradient) {
        status = packs_to_keep(ceil_divide(vocabulary, RP_PACK), sizeof(Pack<T>), &kept);
        if (status == cudaSuccess)
            status = cudaFuncSetAttribute(token_kernel<T, SMOOTHS>,
                                          cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          (int)(kept * sizeof(Pack<T>)));
        if (status != cudaSuccess)
            return status;
    }
    token_kernel<T, SMOOTHS><<<(unsigned)args->tokens, THREADS, kept * sizeof(Pack<T>), stream>>>(
        vocabulary, (T *)args->logits, args->labels, args->scale, args->weights, args->gradient,
        (double *)args->workspace, args->losses, kept, wide, args->smoothing);
    return cudaGetLastError();
}

cudaError_t
rp_cuda_cross_entropy(const RpCrossEntropyArgs *args, cudaStream_t stream)
{
    cudaError_t status;

    if (args->tokens == 0)
        return cudaSuccess;
    status = for_dtype(args->dtype, [=](auto zero) {
        return args->smoothing > 0 ? launch<decltype(zero), true>(args, stream)
                                   : launch<decltype(zero), false>(args, stream);
    });
    return status == cudaSuccess && args->loss ? rp_cuda_add_doubles((const double *)args->workspace,
                                                       args->tokens, args->loss, stream)
                                 : status;
}
