/*
 * The parts beside the delta rule; formulas in exec/kernels/delta-args.h.
 *
 *   convolution   a thread has a few columns of 64 tokens; taps, and the window of x that they meet, are in registers.
 *                 Backward: last token to first, with those behind the 64 whose slopes dx needs; partial sums of the
 *                 weights' gradient, [tokens / 64,n K], where it is wanted
 *   gated norm    a warp has a row, or two of 128. Backward: a block a chunk of rows; partial sums in registers where a
 *                 lane has one piece of a row, else in shared memory, a row a warp
 *   gates, copies a warp has a row
 *
 * fp32; partial sums are added in order (reduce.cu). Oracle: exec/host/gated.c
 */
#include "exec/cuda/base/common.cuh"

#define GATED_THREADS 256
#define CONV_TOKENS 64
#define CONV_TAPS 4   /* the kernel that models have; others take RP_MOST_CONV */
#define CONV_COLUMNS 4 /* of a thread, where arrays allow it */
#define CONV_AHEAD 4   /* tokens that are loaded before the first of them is used */
#define NORM_WARPS (GATED_THREADS / 32)
#define MOST_NORM 1024
#define MOST_NORM_CHUNKS 2048

/* Results that are rounded to 16 bits take the processor's exponential and reciprocal. */
template <typename T>
__device__ __forceinline__ float
logistic(float x)
{
    return sizeof(T) < sizeof(float) ? __fdividef(1.0f, 1.0f + __expf(-x)) : 1.0f / (1.0f + expf(-x));
}

template <typename T>
__device__ __forceinline__ float
silu_slope(float x)
{
    const float s = logistic<T>(x);

    return s * (1.0f + x * (1.0f - s));
}

/* W neighbours of a row; @wide: arrays stand where these can be read and written as one. */
template <typename T, int W> struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Few {
    T at[W];
};

template <typename T, int W>
__device__ __forceinline__ Few<T, W>
load_few(const void *array, size_t at, bool wide = true)
{
    const T *const source = (const T *)array + at;
    Few<T, W> few;

    if (wide)
        return *reinterpret_cast<const Few<T, W> *>(source);
#pragma unroll
    for (int w = 0; w < W; w++)
        few.at[w] = source[w];
    return few;
}

template <typename T, int W>
__device__ __forceinline__ void
store_few(void *array, size_t at, const Few<T, W> &few, bool wide = true)
{
    T *const target = (T *)array + at;

    if (wide) {
        if constexpr (sizeof few == sizeof(uint2)) /* the compiler would write each element by itself */
            __stcg(reinterpret_cast<uint2 *>(target), reinterpret_cast<const uint2 &>(few));
        else
            *reinterpret_cast<Few<T, W> *>(target) = few;
        return;
    }
#pragma unroll
    for (int w = 0; w < W; w++)
        target[w] = few.at[w];
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

/* Taps and the window of x that they meet: the last of both is that of the token itself. */
template <int TAPS, int W> struct Window {
    float taps[TAPS][W], x[TAPS][W];

    template <typename T> __device__ __forceinline__ void load_taps(const RpConvArgs &args, size_t column)
    {
        const int none = TAPS - (int)args.kernel;

#pragma unroll
        for (int k = 0; k < TAPS; k++)
#pragma unroll
            for (int w = 0; w < W; w++)
                taps[k][w] = k < none ? 0.0f
                                      : to_float(((const T *)args.weight)[(column + w) * args.kernel + k - none]);
    }

    template <typename T> __device__ __forceinline__ void set(int k, const Few<T, W> &few)
    {
#pragma unroll
        for (int w = 0; w < W; w++)
            x[k][w] = to_float(few.at[w]);
    }

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int i = 0; i < TAPS * W; i++)
            x[i / W][i % W] = 0;
    }

    /* Leaves out the window's first @none. */
    __device__ __forceinline__ float convolve(int w, int none) const
    {
        float z = 0;

#pragma unroll
        for (int k = 0; k < TAPS; k++)
            z = fmaf(taps[k][w], k >= none ? x[k][w] : 0.0f, z);
        return z;
    }
};

template <typename T, int TAPS, int W>
static __global__ void
__launch_bounds__(GATED_THREADS) conv_forward_kernel(const RpConvArgs args)
{
    const size_t column = ((size_t)blockIdx.x * GATED_THREADS + threadIdx.x) * W;
    const size_t first = (size_t)blockIdx.y * CONV_TOKENS;
    const size_t end = min(first + CONV_TOKENS, args.tokens);
    size_t s = sequence_of(args, first);
    size_t next = s + 1 < args.sequences ? (size_t)args.starts[s + 1] : args.tokens;
    Window<TAPS, W> window;

    if (column >= args.n)
        return;
    window.template load_taps<T>(args, column);
    window.clear();
#pragma unroll
    for (int k = 1; k < TAPS; k++)
        if (first + k >= (size_t)args.starts[s] + TAPS)
            window.set(k, load_few<T, W>(args.x, (first + k - TAPS) * args.n + column));
    for (size_t t = first; t < end; t += CONV_AHEAD) {
        Few<T, W> x[CONV_AHEAD], y;

#pragma unroll
        for (int i = 0; i < CONV_AHEAD; i++) /* a branch would wait for each load by itself */
            x[i] = load_few<T, W>(args.x, min(t + i, end - 1) * args.n + column);
#pragma unroll
        for (int i = 0; i < CONV_AHEAD; i++) {
            if (t + i >= end)
                break;
            if (t + i >= next) {
                window.clear();
                while (++s + 1 < args.sequences && (size_t)args.starts[s + 1] <= t + i)
                    ;
                next = s + 1 < args.sequences ? (size_t)args.starts[s + 1] : args.tokens;
            }
#pragma unroll
            for (int w = 0; w < W; w++)
#pragma unroll
                for (int k = 0; k + 1 < TAPS; k++)
                    window.x[k][w] = window.x[k + 1][w];
            window.set(TAPS - 1, x[i]);
#pragma unroll
            for (int w = 0; w < W; w++) {
                const float z = window.convolve(w, 0);

                y.at[w] = from_float<T>(z * logistic<T>(z));
            }
            store_few<T, W>(args.y, (t + i) * args.n + column, y);
        }
    }
}

/* A column's way back: the slopes of a token and those behind it, and SUMS of the weights' gradient. */
template <int TAPS, int W, bool SUMS> struct WayBack {
    float slopes[TAPS][W], sums[TAPS][W];

    /* One token back. @x, @dy: the first x that its taps meet, and its own dy. EDGE: the window's first @none may be
     * of the sequence before, the token behind of another one (@leaves), and the slope alone be wanted (!@sums_too) */
    template <bool EDGE, typename T>
    __device__ __forceinline__ Few<T, W> step(Window<TAPS, W> &window, const Few<T, W> &x, const Few<T, W> &dy,
                                              int none = 0, bool leaves = false, bool sums_too = true)
    {
        Few<T, W> dx;

#pragma unroll
        for (int w = 0; w < W; w++) {
            float d = 0;

#pragma unroll
            for (int k = TAPS - 1; k > 0; k--) {
                window.x[k][w] = window.x[k - 1][w];
                slopes[k][w] = EDGE && leaves ? 0.0f : slopes[k - 1][w];
            }
            window.x[0][w] = to_float(x.at[w]);
            slopes[0][w] = to_float(dy.at[w]) * silu_slope<T>(window.convolve(w, EDGE ? none : 0));
#pragma unroll
            for (int k = 0; k < TAPS; k++) {
                if (SUMS && (!EDGE || sums_too))
                    sums[k][w] = fmaf(slopes[0][w], EDGE && k < none ? 0.0f : window.x[k][w], sums[k][w]);
                d = fmaf(window.taps[TAPS - 1 - k][w], slopes[k][w], d);
            }
            dx.at[w] = from_float<T>(d);
        }
        return dx;
    }
};

template <typename T, int TAPS, int W, bool SUMS>
static __global__ void
__launch_bounds__(GATED_THREADS) conv_backward_kernel(const RpConvArgs args)
{
    const size_t column = ((size_t)blockIdx.x * GATED_THREADS + threadIdx.x) * W;
    const size_t first = (size_t)blockIdx.y * CONV_TOKENS;
    const size_t end = min(first + CONV_TOKENS, args.tokens);
    const size_t beyond = min(end + args.kernel - 1, args.tokens);
    size_t s = sequence_of(args, beyond - 1), begin = (size_t)args.starts[s];
    WayBack<TAPS, W, SUMS> back = {};
    Window<TAPS, W> window;

    if (column >= args.n)
        return;
    window.template load_taps<T>(args, column);
    window.clear();
#pragma unroll
    for (int k = 1; k < TAPS; k++)
        if (beyond + k >= TAPS)
            window.set(k - 1, load_few<T, W>(args.x, (beyond + k - TAPS) * args.n + column));
    for (size_t t = beyond; t > first; t -= min(t, (size_t)CONV_AHEAD)) {
        Few<T, W> x[CONV_AHEAD], dy[CONV_AHEAD];

#pragma unroll
        for (int i = 0; i < CONV_AHEAD; i++) { /* without branches, as above */
            dy[i] = load_few<T, W>(args.dy, (t > first + i ? t - 1 - i : first) * args.n + column);
            x[i] = load_few<T, W>(args.x, (t >= TAPS + i ? t - TAPS - i : 0) * args.n + column);
        }
        if (t <= end && t >= first + CONV_AHEAD && t >= begin + TAPS - 1 + CONV_AHEAD) {
#pragma unroll
            for (int i = 0; i < CONV_AHEAD; i++)
                store_few<T, W>(args.dx, (t - 1 - i) * args.n + column,
                                back.template step<false>(window, x[i], dy[i]));
            continue;
        }
#pragma unroll
        for (int i = 0; i < CONV_AHEAD; i++) {
            if (t <= first + i)
                break;
            const size_t token = t - 1 - i;
            const bool leaves = begin > token;

            while (begin > token)
                begin = (size_t)args.starts[--s];
            const int none = begin + TAPS - 1 > token ? (int)(begin + TAPS - 1 - token) : 0;
            const Few<T, W> dx = back.template step<true>(window, x[i], dy[i], none, leaves, token < end);

            if (token < end)
                store_few<T, W>(args.dx, token * args.n + column, dx);
        }
    }
    const int unused = TAPS - (int)args.kernel;

    for (int w = 0; SUMS && w < W; w++)
#pragma unroll
        for (int k = 0; k < TAPS; k++)
            if (k >= unused)
                ((float *)args.workspace)[((size_t)blockIdx.y * args.n + column + w) * args.kernel + k - unused] =
                    back.sums[k][w];
}

/* Whether arrays may be read in pieces of CONV_COLUMNS columns. */
static bool
conv_is_wide(const RpConvArgs *args)
{
    return args->n % CONV_COLUMNS == 0 && is_wide(args->x) && is_wide(args->y) && is_wide(args->dy) &&
           is_wide(args->dx);
}

template <int W>
static dim3
conv_grid(const RpConvArgs *args)
{
    return dim3((unsigned)ceil_divide(args->n, GATED_THREADS * W),
                (unsigned)ceil_divide(args->tokens, CONV_TOKENS));
}

template <typename T, bool BACKWARD, int TAPS, int W>
static cudaError_t
launch_conv(const RpConvArgs *args, cudaStream_t stream)
{
    if (BACKWARD && args->d_weight)
        conv_backward_kernel<T, TAPS, W, true><<<conv_grid<W>(args), GATED_THREADS, 0, stream>>>(*args);
    else if (BACKWARD)
        conv_backward_kernel<T, TAPS, W, false><<<conv_grid<W>(args), GATED_THREADS, 0, stream>>>(*args);
    else
        conv_forward_kernel<T, TAPS, W><<<conv_grid<W>(args), GATED_THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}

template <bool BACKWARD>
static cudaError_t
run_conv(const RpConvArgs *args, cudaStream_t stream)
{
    if (args->kernel > RP_MOST_CONV)
        return cudaErrorInvalidValue;
    if (args->tokens == 0 || args->n == 0 || args->sequences == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return args->kernel > CONV_TAPS ? launch_conv<T, BACKWARD, RP_MOST_CONV, 1>(args, stream)
               : conv_is_wide(args)     ? launch_conv<T, BACKWARD, CONV_TAPS, CONV_COLUMNS>(args, stream)
                                        : launch_conv<T, BACKWARD, CONV_TAPS, 1>(args, stream);
    });
}

cudaError_t
rp_cuda_conv_forward(const RpConvArgs *args, cudaStream_t stream)
{
    return run_conv<false>(args, stream);
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
    const cudaError_t status = run_conv<true>(args, stream);

    return status == cudaSuccess && args->d_weight && args->tokens > 0
               ? rp_cuda_add_partials((const float *)args->workspace,
                                      ceil_divide(args->tokens, CONV_TOKENS),
                                      args->n * args->kernel, args->d_weight, stream)
               : status;
}

/* ---- gated norm ---- */

/* ROW_LANES of a warp have a row. ONE: it is W elements of each, which stay in registers. */
template <typename T, int W, int ROW_LANES, bool ONE>
static __global__ void
__launch_bounds__(GATED_THREADS) gated_norm_forward_kernel(const RpGatedNormArgs args, bool wide)
{
    const size_t row = ((size_t)blockIdx.x * GATED_THREADS + threadIdx.x) / ROW_LANES, n = ONE ? ROW_LANES * W : args.n;
    const size_t lane = threadIdx.x % ROW_LANES * W, at = row * n;
    const bool here = row < args.rows; /* all threads stay: lanes are summed by whole warps */
    float squares = 0;

    for (size_t i = lane; here && i < n; i += ROW_LANES * W) {
        const Few<T, W> x = load_few<T, W>(args.x, at + i, wide);

#pragma unroll
        for (int w = 0; w < W; w++)
            squares = fmaf(to_float(x.at[w]), to_float(x.at[w]), squares);
    }
    const float rstd = 1.0f / sqrtf(sum_lanes<ROW_LANES>(squares) / (float)n + args.epsilon);

    for (size_t i = lane; here && i < n; i += ROW_LANES * W) {
        const Few<T, W> x = load_few<T, W>(args.x, at + i, wide), gate = load_few<T, W>(args.gate, at + i, wide);
        const Few<T, W> weight = load_few<T, W>(args.weight, i, wide);
        Few<T, W> y;

#pragma unroll
        for (int w = 0; w < W; w++) {
            const float z = to_float(gate.at[w]);

            y.at[w] = from_float<T>(to_float(weight.at[w]) * (to_float(x.at[w]) * rstd) * (z * logistic<T>(z)));
        }
        store_few<T, W>(args.y, at + i, y, wide);
    }
}

template <typename T, int W, int ROW_LANES, bool ONE>
static __global__ void
__launch_bounds__(GATED_THREADS) gated_norm_backward_kernel(const RpGatedNormArgs args,
                                                            size_t chunk_rows, bool wide)
{
    extern __shared__ float norm_sums[]; /* [rows at once,n] */
    const size_t n = ONE ? ROW_LANES * W : args.n, lane = threadIdx.x % ROW_LANES * W;
    const size_t start = (size_t)blockIdx.x * chunk_rows, end = min(start + chunk_rows, args.rows);
    float *const sums = norm_sums + threadIdx.x / ROW_LANES * n;
    float own[W] = {};

    for (size_t i = lane; i < n; i += ROW_LANES * W)
        for (int w = 0; w < W; w++)
            sums[i + w] = 0;
    for (size_t first = start; first < end; first += GATED_THREADS / ROW_LANES) {
        const size_t row = first + threadIdx.x / ROW_LANES, at = row * n;
        const bool here = row < end;
        float squares = 0, mean = 0;

        for (size_t i = lane; here && i < n; i += ROW_LANES * W) {
            const Few<T, W> x = load_few<T, W>(args.x, at + i, wide), gate = load_few<T, W>(args.gate, at + i, wide);
            const Few<T, W> dy = load_few<T, W>(args.dy, at + i, wide), weight = load_few<T, W>(args.weight, i, wide);

#pragma unroll
            for (int w = 0; w < W; w++) {
                const float z = to_float(gate.at[w]);

                squares = fmaf(to_float(x.at[w]), to_float(x.at[w]), squares);
                mean = fmaf(to_float(dy.at[w]) * to_float(weight.at[w]) * (z * logistic<T>(z)), to_float(x.at[w]),
                            mean);
            }
        }
        const float rstd = 1.0f / sqrtf(sum_lanes<ROW_LANES>(squares) / (float)n + args.epsilon);

        mean = sum_lanes<ROW_LANES>(mean) * rstd / (float)n;
        for (size_t i = lane; here && i < n; i += ROW_LANES * W) {
            const Few<T, W> x = load_few<T, W>(args.x, at + i, wide), gate = load_few<T, W>(args.gate, at + i, wide);
            const Few<T, W> dy = load_few<T, W>(args.dy, at + i, wide), weight = load_few<T, W>(args.weight, i, wide);
            Few<T, W> d_gate, dx;

#pragma unroll
            for (int w = 0; w < W; w++) {
                const float z = to_float(gate.at[w]), h = to_float(x.at[w]) * rstd, d = to_float(dy.at[w]);
                const float s = z * logistic<T>(z), g = d * to_float(weight.at[w]);
                float &sum = ONE ? own[w] : sums[i + w];

                sum = fmaf(d * h, s, sum);
                d_gate.at[w] = from_float<T>(g * h * silu_slope<T>(z));
                dx.at[w] = from_float<T>(rstd * (g * s - h * mean));
            }
            store_few<T, W>(args.d_gate, at + i, d_gate, wide);
            store_few<T, W>(args.dx, at + i, dx, wide);
        }
    }
    for (int w = 0; ONE && w < W; w++)
        sums[lane + w] = own[w];
    __syncthreads();
    for (size_t i = threadIdx.x; i < n; i += GATED_THREADS) {
        float sum = 0;

        for (int r = 0; r < GATED_THREADS / ROW_LANES; r++)
            sum += norm_sums[r * n + i];
        ((float *)args.workspace)[(size_t)blockIdx.x * n + i] = sum;
    }
}

/* Elements of a lane in a row; a function of n alone, as the order of sums follows. */
static bool
takes_four(size_t n)
{
    return n % 128 == 0;
}

static bool
norm_is_wide(const RpGatedNormArgs *args)
{
    return takes_four(args->n) && is_wide(args->x) && is_wide(args->gate) && is_wide(args->weight) &&
           is_wide(args->y) && is_wide(args->dy) && is_wide(args->d_gate) && is_wide(args->dx);
}

/* Rows that a block has at once. */
static size_t
norm_rows(const RpGatedNormArgs *args)
{
    return GATED_THREADS / (args->n == 128 ? 16 : 32);
}

static unsigned
row_blocks(size_t rows)
{
    return (unsigned)ceil_divide(rows, NORM_WARPS);
}

cudaError_t
rp_cuda_gated_norm_forward(const RpGatedNormArgs *args, cudaStream_t stream)
{
    if (args->rows == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        (args->n == 128        ? gated_norm_forward_kernel<T, 8, 16, true>
         : takes_four(args->n) ? gated_norm_forward_kernel<T, 4, 32, false>
                               : gated_norm_forward_kernel<T, 1, 32, false>)<<<
            (unsigned)ceil_divide(args->rows, norm_rows(args)), GATED_THREADS, 0, stream>>>(*args, norm_is_wide(args));
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

        (args->n == 128        ? gated_norm_backward_kernel<T, 8, 16, true>
         : takes_four(args->n) ? gated_norm_backward_kernel<T, 4, 32, false>
                               : gated_norm_backward_kernel<T, 1, 32, false>)<<<
            (unsigned)chunks, GATED_THREADS, norm_rows(args) * args->n * sizeof(float), stream>>>(
            *args, chunk_rows, norm_is_wide(args));
        return cudaGetLastError();
    });

    return status == cudaSuccess && args->d_weight
               ? rp_cuda_add_partials((const float *)args->workspace, chunks, args->n,
                                      args->d_weight, stream)
               : status;
}

/* ---- gates of heads and rows, and columns ---- */

template <typename T, int W, bool BACKWARD>
static __global__ void
__launch_bounds__(GATED_THREADS) head_gate_kernel(const RpHeadGateArgs args)
{
    const size_t row = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;

    if (row >= args.rows)
        return;
    for (size_t i = threadIdx.x % 32 * W; i < args.n; i += 32 * W) {
        const size_t at = row * args.n + i, gate_at = row * args.gate_stride + i;
        const Few<T, W> gate = load_few<T, W>(args.gate, gate_at), x = load_few<T, W>(args.x, at);
        Few<T, W> y, d_gate;

        if (BACKWARD)
            y = load_few<T, W>(args.dy, at);
#pragma unroll
        for (int w = 0; w < W; w++) {
            const float s = logistic<T>(to_float(gate.at[w])), dy = BACKWARD ? to_float(y.at[w]) : 0.0f;

            d_gate.at[w] = from_float<T>(dy * to_float(x.at[w]) * s * (1.0f - s));
            y.at[w] = from_float<T>((BACKWARD ? dy : to_float(x.at[w])) * s);
        }
        store_few<T, W>(BACKWARD ? args.dx : args.y, at, y);
        if (BACKWARD)
            store_few<T, W>(args.d_gate, gate_at, d_gate);
    }
}

template <bool BACKWARD>
static cudaError_t
launch_head_gate(const RpHeadGateArgs *args, cudaStream_t stream)
{
    const bool wide = takes_four(args->n) && args->gate_stride % 4 == 0 && is_wide(args->x) && is_wide(args->gate) &&
                      is_wide(args->y) && is_wide(args->dy) && is_wide(args->dx) && is_wide(args->d_gate);

    if (args->rows == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        (wide ? head_gate_kernel<T, 4, BACKWARD>
              : head_gate_kernel<T, 1, BACKWARD>)<<<row_blocks(args->rows), GATED_THREADS, 0, stream>>>(*args);
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_head_gate_forward(const RpHeadGateArgs *args, cudaStream_t stream)
{
    return launch_head_gate<false>(args, stream);
}

cudaError_t
rp_cuda_head_gate_backward(const RpHeadGateArgs *args, cudaStream_t stream)
{
    return launch_head_gate<true>(args, stream);
}

template <typename T, bool BACKWARD>
static __global__ void
__launch_bounds__(GATED_THREADS) row_gate_kernel(const RpRowGateArgs args)
{
    const size_t row = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;

    if (row >= args.rows)
        return;
    const float s = logistic<T>(to_float(((const T *)args.gate)[row]));
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
            <<<row_blocks(args->rows), GATED_THREADS, 0, stream>>>(*args);
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

template <typename T, int W>
static __global__ void
__launch_bounds__(GATED_THREADS) columns_kernel(const RpColumnsArgs args)
{
    const size_t row = (size_t)blockIdx.x * NORM_WARPS + threadIdx.x / 32;

    if (row >= args.rows)
        return;
    for (size_t i = threadIdx.x % 32 * W; i < args.n; i += 32 * W)
        store_few<T, W>(args.y, row * args.y_stride + i, load_few<T, W>(args.x, row * args.x_stride + i));
}

cudaError_t
rp_cuda_columns(const RpColumnsArgs *args, cudaStream_t stream)
{
    const bool wide = takes_four(args->n) && args->x_stride % 4 == 0 && args->y_stride % 4 == 0 && is_wide(args->x) &&
                      is_wide(args->y);

    if (args->rows == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        (wide ? columns_kernel<T, 4> : columns_kernel<T, 1>)<<<row_blocks(args->rows), GATED_THREADS, 0, stream>>>(
            *args);
        return cudaGetLastError();
    });
}
