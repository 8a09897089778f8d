/*
 * The parts beside the delta rule; formulas in exec/kernels/delta-args.h.
 *
 *   convolution   a thread has a column of 64 tokens, the taps in registers. Backward: last token to first, with those
 *                 behind the 64 whose slopes dx needs; partial sums of the weights' gradient, [tokens / 64,n K]
 *   gated norm    a warp has a row. Backward: a block a chunk of rows; partial sums in shared memory, a row a warp
 *   gates, copies a thread an element; where a row has one gate, a warp a row
 *
 * fp32; partial sums are added in order (reduce.cu). Oracle: exec/host/gated.c
 */
#include "exec/cuda/base/common.cuh"

#define GATED_THREADS 256
#define CONV_TOKENS 64
#define CONV_TAPS 4 /* the kernel that models have; others take RP_MOST_CONV */
#define NORM_WARPS (GATED_THREADS / 32)
#define MOST_NORM 1024
#define MOST_NORM_CHUNKS 1024

__device__ __forceinline__ float
logistic(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

__device__ __forceinline__ float
silu_slope(float x)
{
    const float s = logistic(x);

    return s * (1.0f + x * (1.0f - s));
}

/* ---- convolution ---- */

/* The sequence of a token. */
__device__ __forceinline__ size_t
sequence_of(const RpConvArgs &args, size_t token)
{
    size_t low = 0, high = args.sequences;

    while (high - low > 1) {
        const size_t middle = (low + high) / 2;

        if ((size_t)args.starts[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

template <typename T, int TAPS>
__device__ __forceinline__ void
load_taps(const RpConvArgs &args, size_t column, float taps[TAPS])
{
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        taps[k] = k < (int)args.kernel
                      ? to_float(((const T *)args.weight)[column * args.kernel + k])
                      : 0.0f;
}

/* x of a token and those before it, in the taps' order; 0 before @begin. Returns: z */
template <typename T, int TAPS>
__device__ __forceinline__ float
convolve(const RpConvArgs &args, size_t token, size_t begin, size_t column,
         const float taps[TAPS], float x[TAPS])
{
    float z = 0;

#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        x[k] = k < (int)args.kernel && token + k + 1 >= begin + args.kernel
                   ? to_float(((const T *)args.x)[(token + k + 1 - args.kernel) * args.n + column])
                   : 0.0f;
        z = fmaf(taps[k], x[k], z);
    }
    return z;
}

template <typename T, int TAPS>
static __global__ void
__launch_bounds__(GATED_THREADS) conv_forward_kernel(const RpConvArgs args)
{
    const size_t column = (size_t)blockIdx.x * GATED_THREADS + threadIdx.x;
    const size_t first = (size_t)blockIdx.y * CONV_TOKENS;
    const size_t end = min(first + CONV_TOKENS, args.tokens);
    size_t s = sequence_of(args, first);
    float taps[TAPS], x[TAPS];

    if (column >= args.n)
        return;
    load_taps<T, TAPS>(args, column, taps);
    for (size_t t = first; t < end; t++) {
        while (s + 1 < args.sequences && (size_t)args.starts[s + 1] <= t)
            s++;
        const float z = convolve<T, TAPS>(args, t, (size_t)args.starts[s], column, taps, x);

        ((T *)args.y)[t * args.n + column] = from_float<T>(z * logistic(z));
    }
}

template <typename T, int TAPS>
static __global__ void
__launch_bounds__(GATED_THREADS) conv_backward_kernel(const RpConvArgs args)
{
    const size_t column = (size_t)blockIdx.x * GATED_THREADS + threadIdx.x;
    const size_t first = (size_t)blockIdx.y * CONV_TOKENS;
    const size_t end = min(first + CONV_TOKENS, args.tokens);
    const size_t beyond = min(end + args.kernel - 1, args.tokens);
    size_t s = sequence_of(args, beyond - 1);
    float taps[TAPS], x[TAPS], slopes[TAPS] = {}, sums[TAPS] = {};

    if (column >= args.n)
        return;
    load_taps<T, TAPS>(args, column, taps);
    for (size_t t = beyond; t-- > first;) {
        float dx = 0;

        while ((size_t)args.starts[s] > t) {
            s--;
#pragma unroll
            for (int k = 0; k < TAPS; k++)
                slopes[k] = 0; /* those of the next sequence */
        }
        const float z = convolve<T, TAPS>(args, t, (size_t)args.starts[s], column, taps, x);

#pragma unroll
        for (int k = TAPS - 1; k > 0; k--)
            slopes[k] = slopes[k - 1];
        slopes[0] = to_float(((const T *)args.dy)[t * args.n + column]) * silu_slope(z);
        if (t >= end)
            continue;
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            sums[k] = fmaf(slopes[0], x[k], sums[k]);
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++)
                if (tap + k + 1 == (int)args.kernel)
                    dx = fmaf(taps[tap], slopes[k], dx);
        }
        ((T *)args.dx)[t * args.n + column] = from_float<T>(dx);
    }
    for (int k = 0; k < TAPS; k++)
        if (k < (int)args.kernel)
            ((float *)args.workspace)[((size_t)blockIdx.y * args.n + column) * args.kernel + k] =
                sums[k];
}

static dim3
conv_grid(const RpConvArgs *args)
{
    return dim3((unsigned)ceil_divide(args->n, GATED_THREADS),
                (unsigned)ceil_divide(args->tokens, CONV_TOKENS));
}

cudaError_t
rp_cuda_conv_forward(const RpConvArgs *args, cudaStream_t stream)
{
    if (args->kernel > RP_MOST_CONV)
        return cudaErrorInvalidValue;
    if (args->tokens == 0 || args->n == 0 || args->sequences == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        if (args->kernel <= CONV_TAPS)
            conv_forward_kernel<T, CONV_TAPS>
                <<<conv_grid(args), GATED_THREADS, 0, stream>>>(*args);
        else
            conv_forward_kernel<T, RP_MOST_CONV>
                <<<conv_grid(args), GATED_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}

size_t
rp_cuda_conv_backward_workspace(const RpConvArgs *args)
{
    return round_to_64(ceil_divide(args->tokens, CONV_TOKENS) * args->n * args->kernel *
                       sizeof(float));
}

cudaError_t
rp_cuda_conv_backward(const RpConvArgs *args, cudaStream_t stream)
{
    if (args->kernel > RP_MOST_CONV)
        return cudaErrorInvalidValue;
    if (args->tokens == 0 || args->n == 0 || args->sequences == 0)
        return cudaSuccess;
    const cudaError_t status = for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        if (args->kernel <= CONV_TAPS)
            conv_backward_kernel<T, CONV_TAPS>
                <<<conv_grid(args), GATED_THREADS, 0, stream>>>(*args);
        else
            conv_backward_kernel<T, RP_MOST_CONV>
                <<<conv_grid(args), GATED_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });

    return status == cudaSuccess && args->d_weight
               ? rp_cuda_add_partials((const float *)args->workspace,
                                      ceil_divide(args->tokens, CONV_TOKENS),
                                      args->n * args->kernel, args->d_weight, stream)
               : status;
}

/* ---- gated norm ---- */

template <typename T>
__device__ __forceinline__ float
rstd_of(const RpGatedNormArgs &args, const T *x)
{
    float squares = 0;

    for (size_t i = threadIdx.x % 32; i < args.n; i += 32)
        squares = fmaf(to_float(x[i]), to_float(x[i]), squares);
    return 1.0f / sqrtf(sum_lanes<32>(squares) / (float)args.n + args.epsilon);
}

template <typename T>
static __global__ void
__launch_bounds__(GATED_THREADS) gated_norm_forward_kernel(const RpGatedNormArgs args)
{
    const size_t row = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;

    if (row >= args.rows)
        return;
    const T *x = (const T *)args.x + row * args.n, *gate = (const T *)args.gate + row * args.n;
    const float rstd = rstd_of(args, x);

    for (size_t i = threadIdx.x % 32; i < args.n; i += 32) {
        const float z = to_float(gate[i]);

        ((T *)args.y)[row * args.n + i] = from_float<T>(to_float(((const T *)args.weight)[i]) *
                                                        (to_float(x[i]) * rstd) *
                                                        (z * logistic(z)));
    }
}

template <typename T>
static __global__ void
__launch_bounds__(GATED_THREADS) gated_norm_backward_kernel(const RpGatedNormArgs args,
                                                            size_t chunk_rows)
{
    extern __shared__ float norm_sums[]; /* [warps,n] */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t end = min((size_t)(blockIdx.x + 1) * chunk_rows, args.rows);
    float *const sums = norm_sums + warp * args.n;

    for (size_t i = lane; i < args.n; i += 32)
        sums[i] = 0;
    for (size_t row = (size_t)blockIdx.x * chunk_rows + warp; row < end; row += NORM_WARPS) {
        const size_t at = row * args.n;
        const T *x = (const T *)args.x + at, *gate = (const T *)args.gate + at;
        const T *dy = (const T *)args.dy + at, *weight = (const T *)args.weight;
        const float rstd = rstd_of(args, x);
        float mean = 0;

        for (size_t i = lane; i < args.n; i += 32) {
            const float z = to_float(gate[i]), h = to_float(x[i]) * rstd;

            mean = fmaf(to_float(dy[i]) * to_float(weight[i]) * (z * logistic(z)), h, mean);
        }
        mean = sum_lanes<32>(mean) / (float)args.n;
        for (size_t i = lane; i < args.n; i += 32) {
            const float z = to_float(gate[i]), h = to_float(x[i]) * rstd, d = to_float(dy[i]);
            const float s = z * logistic(z), w = to_float(weight[i]);

            sums[i] = fmaf(d * h, s, sums[i]);
            ((T *)args.d_gate)[at + i] = from_float<T>(d * w * h * silu_slope(z));
            ((T *)args.dx)[at + i] = from_float<T>(rstd * (d * w * s - h * mean));
        }
    }
    __syncthreads();
    for (size_t i = threadIdx.x; i < args.n; i += GATED_THREADS) {
        float sum = 0;

        for (int w = 0; w < NORM_WARPS; w++)
            sum += norm_sums[w * args.n + i];
        ((float *)args.workspace)[(size_t)blockIdx.x * args.n + i] = sum;
    }
}

cudaError_t
rp_cuda_gated_norm_forward(const RpGatedNormArgs *args, cudaStream_t stream)
{
    if (args->rows == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        gated_norm_forward_kernel<T>
            <<<(unsigned)ceil_divide(args->rows, NORM_WARPS), GATED_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}

static size_t
norm_chunk_rows(const RpGatedNormArgs *args)
{
    const size_t rows = ceil_divide(args->rows, MOST_NORM_CHUNKS);

    return rows > 64 ? rows : 64;
}

size_t
rp_cuda_gated_norm_backward_workspace(const RpGatedNormArgs *args)
{
    return round_to_64(ceil_divide(args->rows, norm_chunk_rows(args)) * args->n * sizeof(float));
}

cudaError_t
rp_cuda_gated_norm_backward(const RpGatedNormArgs *args, cudaStream_t stream)
{
    const size_t chunk_rows = norm_chunk_rows(args), chunks = ceil_divide(args->rows, chunk_rows);

    if (args->n > MOST_NORM)
        return cudaErrorInvalidValue;
    if (args->rows == 0 || args->n == 0)
        return cudaSuccess;
    const cudaError_t status = for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        gated_norm_backward_kernel<T>
            <<<(unsigned)chunks, GATED_THREADS, NORM_WARPS * args->n * sizeof(float), stream>>>(
                *args, chunk_rows);
        return cudaGetLastError();
    });

    return status == cudaSuccess && args->d_weight
               ? rp_cuda_add_partials((const float *)args->workspace, chunks, args->n,
                                      args->d_weight, stream)
               : status;
}

/* ---- gates of heads and rows, and columns ---- */

template <typename T, bool BACKWARD>
static __global__ void
__launch_bounds__(GATED_THREADS) head_gate_kernel(const RpHeadGateArgs args)
{
    const size_t i = (size_t)blockIdx.x * GATED_THREADS + threadIdx.x;

    if (i >= args.rows * args.n)
        return;
    const size_t at = i / args.n * args.gate_stride + i % args.n;
    const float s = logistic(to_float(((const T *)args.gate)[at]));

    if (BACKWARD) {
        const float x = to_float(((const T *)args.x)[i]), dy = to_float(((const T *)args.dy)[i]);

        ((T *)args.dx)[i] = from_float<T>(dy * s);
        ((T *)args.d_gate)[at] = from_float<T>(dy * x * s * (1.0f - s));
    } else {
        ((T *)args.y)[i] = from_float<T>(to_float(((const T *)args.x)[i]) * s);
    }
}

static unsigned
gated_blocks(size_t elements)
{
    return (unsigned)ceil_divide(elements, GATED_THREADS);
}

cudaError_t
rp_cuda_head_gate_forward(const RpHeadGateArgs *args, cudaStream_t stream)
{
    if (args->rows == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        head_gate_kernel<decltype(zero), false>
            <<<gated_blocks(args->rows * args->n), GATED_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_head_gate_backward(const RpHeadGateArgs *args, cudaStream_t stream)
{
    if (args->rows == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        head_gate_kernel<decltype(zero), true>
            <<<gated_blocks(args->rows * args->n), GATED_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}

template <typename T, bool BACKWARD>
static __global__ void
__launch_bounds__(GATED_THREADS) row_gate_kernel(const RpRowGateArgs args)
{
    const size_t row = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;

    if (row >= args.rows)
        return;
    const float s = logistic(to_float(((const T *)args.gate)[row]));
    float sum = 0;

    for (size_t i = threadIdx.x % 32; i < args.n; i += 32) {
        const size_t at = row * args.n + i;
        const float x = to_float(((const T *)args.x)[at]);

        ((T *)args.y)[at] = from_float<T>(x * s);
        if (BACKWARD) {
            const float dy = to_float(((const T *)args.dy)[at]);

            sum += dy * x;
            ((T *)args.dx)[at] = from_float<T>(dy * s);
        }
    }
    if (BACKWARD) {
        sum = sum_lanes<32>(sum);
        if (threadIdx.x % 32 == 0)
            ((T *)args.d_gate)[row] = from_float<T>(sum * s * (1.0f - s));
    }
}

template <bool BACKWARD>
static cudaError_t
launch_row_gate(const RpRowGateArgs *args, cudaStream_t stream)
{
    if (args->rows == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        row_gate_kernel<decltype(zero), BACKWARD>
            <<<(unsigned)ceil_divide(args->rows, NORM_WARPS), GATED_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_row_gate_forward(const RpRowGateArgs *args, cudaStream_t stream)
{
    return launch_row_gate<false>(args, stream);
}

cudaError_t
rp_cuda_row_gate_backward(const RpRowGateArgs *args, cudaStream_t stream)
{
    return launch_row_gate<true>(args, stream);
}

template <typename T>
static __global__ void
__launch_bounds__(GATED_THREADS) columns_kernel(const RpColumnsArgs args)
{
    const size_t i = (size_t)blockIdx.x * GATED_THREADS + threadIdx.x;

    if (i < args.rows * args.n)
        ((T *)args.y)[i / args.n * args.y_stride + i % args.n] =
            ((const T *)args.x)[i / args.n * args.x_stride + i % args.n];
}

cudaError_t
rp_cuda_columns(const RpColumnsArgs *args, cudaStream_t stream)
{
    if (args->rows == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        columns_kernel<decltype(zero)>
            <<<gated_blocks(args->rows * args->n), GATED_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}
