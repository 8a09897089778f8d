/*
 * Losses of preferences: formulas in exec/kernels/preference.h, all in double.
 *
 *   1  a warp a document: its log-probability, row first + i in lane i % 32, then the lanes together
 *   2  one block: the KL term, then pairs or answers, document d in thread d % 256, then the threads one after the other
 *   3  a warp a document: the weights of its rows; those of no document are 0 before
 *
 * losses, labels, weights: [tokens]; a micro-batch has some thousand rows and documents. Oracle: exec/host/preference.c
 */
#include "exec/cuda/base/common.cuh"

#define RP_SHARED static __host__ __device__ __forceinline__
#include "exec/kernels/preference.h"

#define THREADS 256
#define LANES 32

static __global__ void __launch_bounds__(THREADS)
document_kernel(RpPreferenceArgs args, RpPreferenceDocument *documents)
{
    const size_t d = ((size_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    double logp = 0, n = 0;

    if (d >= args.documents)
        return;
    for (int32_t t = args.first[d] + (int32_t)(threadIdx.x % LANES); t < args.first[d + 1];
         t += LANES)
        if (args.labels[t] != RP_LABEL_MASKED) {
            logp -= (double)args.losses[t];
            n += 1;
        }
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        logp += __shfl_xor_sync(0xffffffffu, logp, step);
        n += __shfl_xor_sync(0xffffffffu, n, step);
    }
    if (threadIdx.x % LANES > 0)
        return;
    documents[d].logp = logp;
    documents[d].n = n;
    documents[d].gradient = 0;
    if (args.logps)
        args.logps[d] = (float)logp;
}

/* A thread's sums. */
struct Sums {
    RpPreferenceSums sums;
    double loss, z, n;
};

/* Adds up the doubles that all threads have in @shared, thread by thread, into those of the first. */
static __device__ void
add_threads(Sums *shared)
{
    const unsigned count = sizeof(Sums) / sizeof(double);

    __syncthreads();
    if (threadIdx.x < count) {
        double sum = 0;

        for (unsigned thread = 0; thread < THREADS; thread++)
            sum += ((const double *)&shared[thread])[threadIdx.x];
        ((double *)&shared[0])[threadIdx.x] = sum;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS)
loss_kernel(RpPreferenceArgs args, RpPreferenceDocument *documents)
{
    __shared__ Sums shared[THREADS];
    const bool kto = args.preference.objective == RP_OBJECTIVE_KTO;
    Sums own = {};
    double z = 0;

    if (kto) {
        for (size_t d = threadIdx.x; d < args.documents; d += THREADS)
            if (args.answers[d] == RP_ANSWER_KL) {
                own.z += documents[d].logp - (double)args.references[d];
                own.n += 1;
            }
        shared[threadIdx.x] = own;
        add_threads(shared);
        z = shared[0].n > 0 && !(shared[0].z < 0) ? shared[0].z / shared[0].n : 0;
        own = Sums{};
        __syncthreads();
    }
    for (size_t d = threadIdx.x; d < args.documents; d += THREADS)
        own.loss += rp_preference_document(&args, z, d, documents, &own.sums);
    if (kto && threadIdx.x == 0) {
        own.sums.kl = z;
        own.sums.n_kl = 1;
    }
    shared[threadIdx.x] = own;
    add_threads(shared);
    if (threadIdx.x < RP_N_PREFERENCE_SUMS)
        ((double *)args.sums)[threadIdx.x] += ((const double *)&shared[0].sums)[threadIdx.x];
    if (threadIdx.x == 0)
        args.loss[0] += shared[0].loss;
}

static __global__ void __launch_bounds__(THREADS)
weights_kernel(RpPreferenceArgs args, const RpPreferenceDocument *documents)
{
    const size_t d = ((size_t)blockIdx.x * THREADS + threadIdx.x) / LANES;

    if (d >= args.documents)
        return;
    const float weight = rp_preference_weight(&args, &documents[d]);

    for (int32_t t = args.first[d] + (int32_t)(threadIdx.x % LANES); t < args.first[d + 1];
         t += LANES)
        if (args.labels[t] != RP_LABEL_MASKED)
            args.weights[t] = weight;
}

size_t
rp_cuda_preference_workspace(const RpPreferenceArgs *args)
{
    return round_to_64(args->documents * sizeof(RpPreferenceDocument));
}

cudaError_t
rp_cuda_preference(const RpPreferenceArgs *args, cudaStream_t stream)
{
    RpPreferenceDocument *documents = (RpPreferenceDocument *)args->workspace;
    const unsigned blocks = (unsigned)ceil_divide(args->documents * LANES, THREADS);
    cudaError_t status = cudaSuccess;

    if (args->documents > 0)
        document_kernel<<<blocks, THREADS, 0, stream>>>(*args, documents);
    loss_kernel<<<1, THREADS, 0, stream>>>(*args, documents);
    if (args->weights && args->tokens > 0) {
        status = cudaMemsetAsync(args->weights, 0, args->tokens * sizeof(float), stream);
        if (status == cudaSuccess && args->documents > 0)
            weights_kernel<<<blocks, THREADS, 0, stream>>>(*args, documents);
    }
    return status == cudaSuccess ? cudaGetLastError() : status;
}
