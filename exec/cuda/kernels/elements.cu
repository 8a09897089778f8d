/*
 * What works element by element.
 *
 *   convert   y[i] = x[i];  add: y[i] = x[i] + b[i], each of any storage                         =
 *   fill      x[i] = value                                                                      =
 *   gather    y[i] += round(x[i]), or = round(x[i]); x, y fp32                               +=, =
 *   scatter   y[rows[i],c] = x[i,c]                                                             =
 *   bias      y[t,o] += bias[o]                                                                +=
 *   SwiGLU    y = gate s up;  d_gate = dy up s (1 + gate (1 - s)),  d_up = dy gate s             =
 *             s = 1 / (1 + exp(-gate));  backward may give y again, as product: the same bits
 *
 * n elements, or [tokens,n]. fp32 arithmetic, rounded once; no sums. A thread takes packs of eight:
 * it reads a pack of every input before it writes, so outputs may be inputs. Blocks of 256 threads
 * that stride over the array; bias: a thread keeps its columns and strides over tokens.
 * Oracle: exec/host/elements.c, bias in exec/host/matmul.c
 */
#include "exec/cuda/base/common.cuh"
#include "exec/cuda/base/launch.h"

#define THREADS 256
#define MOST_BLOCKS 4096

static unsigned
blocks_for(size_t n)
{
    const size_t blocks = ceil_divide(ceil_divide(n, RP_PACK), THREADS);

    return (unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS);
}

/* For every pack of this thread: @first its first element, @count its elements. */
#define FOR_PACKS(first, count, n)                                                                 \
    for (size_t first = ((size_t)blockIdx.x * THREADS + threadIdx.x) * RP_PACK, count;             \
         first < (n) && (count = (n)-first, true);                                                 \
         first += (size_t)gridDim.x * THREADS * RP_PACK)

template <typename T>
__device__ __forceinline__ void
load_floats_of(const void *array, size_t first, size_t count, bool wide, float *values)
{
    const Pack<T> pack = load_pack((const T *)array + first, count, wide);

#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        values[i] = to_float(pack.at[i]);
}

/* The storage is the same for a whole launch: a branch that all threads take alike. */
__device__ __forceinline__ void
load_floats(int dtype, const void *array, size_t first, size_t count, bool wide, float *values)
{
    if (dtype == 0)
        load_floats_of<float>(array, first, count, wide, values);
    else if (dtype == 1)
        load_floats_of<__nv_bfloat16>(array, first, count, wide, values);
    else
        load_floats_of<__half>(array, first, count, wide, values);
}

template <typename T>
__device__ __forceinline__ void
store_floats_of(void *array, size_t first, size_t count, bool wide, const float *values)
{
    Pack<T> pack;

#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        pack.at[i] = from_float<T>(values[i]);
    store_pack((T *)array + first, pack, count, wide);
}

__device__ __forceinline__ void
store_floats(int dtype, void *array, size_t first, size_t count, bool wide, const float *values)
{
    if (dtype == 0)
        store_floats_of<float>(array, first, count, wide, values);
    else if (dtype == 1)
        store_floats_of<__nv_bfloat16>(array, first, count, wide, values);
    else
        store_floats_of<__half>(array, first, count, wide, values);
}

static __global__ void __launch_bounds__(THREADS)
convert_kernel(int x_dtype, const void *x, int y_dtype, void *y, size_t n, bool wide)
{
    FOR_PACKS(first, count, n)
    {
        float values[RP_PACK];

        load_floats(x_dtype, x, first, count, wide, values);
        store_floats(y_dtype, y, first, count, wide, values);
    }
}

static __global__ void __launch_bounds__(THREADS)
add_kernel(int x_dtype, const void *x, int b_dtype, const void *b, int y_dtype, void *y, size_t n,
           bool wide)
{
    FOR_PACKS(first, count, n)
    {
        float values[RP_PACK], others[RP_PACK];

        load_floats(x_dtype, x, first, count, wide, values);
        load_floats(b_dtype, b, first, count, wide, others);
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            values[i] += others[i];
        store_floats(y_dtype, y, first, count, wide, values);
    }
}

static __global__ void __launch_bounds__(THREADS)
fill_kernel(int dtype, void *x, size_t n, float value, bool wide)
{
    FOR_PACKS(first, count, n)
    {
        float values[RP_PACK];

#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            values[i] = value;
        store_floats(dtype, x, first, count, wide, values);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
bias_kernel(size_t tokens, size_t n, const T *bias, T *y, bool wide)
{
    const size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * RP_PACK;
    const size_t count = n - first;
    Pack<T> add;

    if (first >= n)
        return;
    add = load_pack(bias + first, count, wide);
#pragma unroll 4
    for (size_t t = (size_t)blockIdx.y * blockDim.y + threadIdx.y; t < tokens;
         t += (size_t)gridDim.y * blockDim.y) {
        Pack<T> pack = load_pack(y + t * n + first, count, wide);

#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            pack.at[i] = from_float<T>(to_float(pack.at[i]) + to_float(add.at[i]));
        store_pack(y + t * n + first, pack, count, wide);
    }
}

template <typename T>
__device__ __forceinline__ float
sigmoid(float a)
{
    const float divisor = 1.0f + exp_for<T>(-a);

    return sizeof(T) == sizeof(float) ? 1.0f / divisor : __fdividef(1.0f, divisor);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
swiglu_kernel(size_t n, const T *gate, const T *up, T *y, bool wide)
{
    FOR_PACKS(first, count, n)
    {
        const Pack<T> gates = load_pack(gate + first, count, wide);
        const Pack<T> ups = load_pack(up + first, count, wide);
        Pack<T> pack;

#pragma unroll
        for (int i = 0; i < RP_PACK; i++) {
            const float a = to_float(gates.at[i]);

            pack.at[i] = from_float<T>(a * sigmoid<T>(a) * to_float(ups.at[i]));
        }
        store_pack(y + first, pack, count, wide);
    }
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
swiglu_backward_kernel(size_t n, const T *gate, const T *up, const T *dy, T *d_gate, T *d_up,
                       T *product, bool wide)
{
    FOR_PACKS(first, count, n)
    {
        const Pack<T> gates = load_pack(gate + first, count, wide);
        const Pack<T> ups = load_pack(up + first, count, wide);
        const Pack<T> dys = load_pack(dy + first, count, wide);
        Pack<T> d_gates, d_ups, products;

#pragma unroll
        for (int i = 0; i < RP_PACK; i++) {
            const float a = to_float(gates.at[i]);
            const float d = to_float(dys.at[i]);
            const float s = sigmoid<T>(a);

            d_gates.at[i] = from_float<T>(d * to_float(ups.at[i]) * s * (1.0f + a * (1.0f - s)));
            d_ups.at[i] = from_float<T>(d * (a * s));
            products.at[i] = from_float<T>(a * s * to_float(ups.at[i]));
        }
        store_pack(d_gate + first, d_gates, count, wide);
        store_pack(d_up + first, d_ups, count, wide);
        if (product)
            store_pack(product + first, products, count, wide);
    }
}

static size_t
dtype_size(int dtype)
{
    return dtype == 0 ? 4 : 2;
}

extern "C" cudaError_t
rp_cuda_convert(int x_dtype, const void *x, int y_dtype, void *y, size_t n, cudaStream_t stream)
{
    if (n == 0 || (x_dtype == y_dtype && x == y))
        return cudaSuccess;
    if (x_dtype == y_dtype)
        return cudaMemcpyAsync(y, x, n * dtype_size(x_dtype), cudaMemcpyDeviceToDevice, stream);
    convert_kernel<<<blocks_for(n), THREADS, 0, stream>>>(x_dtype, x, y_dtype, y, n,
                                                          is_wide(x) && is_wide(y));
    return cudaGetLastError();
}

extern "C" cudaError_t
rp_cuda_add(int x_dtype, const void *x, int b_dtype, const void *b, int y_dtype, void *y, size_t n,
            cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    add_kernel<<<blocks_for(n), THREADS, 0, stream>>>(x_dtype, x, b_dtype, b, y_dtype, y, n,
                                                      is_wide(x) && is_wide(b) && is_wide(y));
    return cudaGetLastError();
}

extern "C" cudaError_t
rp_cuda_fill(int dtype, void *x, size_t n, float value, cudaStream_t stream)
{
    if (n == 0)
        return cudaSuccess;
    fill_kernel<<<blocks_for(n), THREADS, 0, stream>>>(dtype, x, n, value, is_wide(x));
    return cudaGetLastError();
}

/* A thread moves a word of a row and strides over all. */
template <typename Word>
__global__ void
scatter_kernel(const int32_t *rows, const Word *x, Word *y, size_t n, size_t columns)
{
    const size_t stride = (size_t)gridDim.x * THREADS;

    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n * columns; i += stride)
        y[(size_t)rows[i / columns] * columns + i % columns] = x[i];
}

template <typename Word>
static cudaError_t
scatter(const int32_t *rows, const void *x, void *y, size_t n, size_t row_bytes,
        cudaStream_t stream)
{
    const size_t columns = row_bytes / sizeof(Word);

    scatter_kernel<Word><<<blocks_for(n * columns * RP_PACK), THREADS, 0, stream>>>(
        rows, (const Word *)x, (Word *)y, n, columns);
    return cudaGetLastError();
}

/* Storing and loading rounds; fp32 comes back as it was. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
gather_kernel(const float *x, float *y, size_t n, bool begin, bool wide)
{
    FOR_PACKS(first, count, n)
    {
        const Pack<float> pack = load_pack(x + first, count, wide);
        Pack<float> sum = {};

        if (!begin)
            sum = load_pack(y + first, count, wide);
#pragma unroll
        for (int i = 0; i < RP_PACK; i++) {
            const float rounded = to_float(from_float<T>(pack.at[i]));

            sum.at[i] = begin ? rounded : sum.at[i] + rounded;
        }
        store_pack(y + first, sum, count, wide);
    }
}

extern "C" cudaError_t
rp_cuda_gather(int dtype, size_t n, int begin, const float *x, float *y, cudaStream_t stream)
{
    const bool wide = is_wide(x) && is_wide(y);
    const unsigned blocks = blocks_for(n);

    if (n == 0)
        return cudaSuccess;
    if (dtype == 0)
        gather_kernel<float><<<blocks, THREADS, 0, stream>>>(x, y, n, begin != 0, wide);
    else if (dtype == 1)
        gather_kernel<__nv_bfloat16><<<blocks, THREADS, 0, stream>>>(x, y, n, begin != 0, wide);
    else
        gather_kernel<__half><<<blocks, THREADS, 0, stream>>>(x, y, n, begin != 0, wide);
    return cudaGetLastError();
}

extern "C" cudaError_t
rp_cuda_scatter(int dtype, size_t n, size_t columns, const int32_t *rows, const void *x, void *y,
                cudaStream_t stream)
{
    const size_t row_bytes = columns * dtype_size(dtype);

    if (n == 0 || columns == 0)
        return cudaSuccess;
    if (row_bytes % sizeof(uint4) == 0 && is_wide(x) && is_wide(y))
        return scatter<uint4>(rows, x, y, n, row_bytes, stream);
    if (dtype == 0)
        return scatter<uint32_t>(rows, x, y, n, row_bytes, stream);
    return scatter<uint16_t>(rows, x, y, n, row_bytes, stream);
}

extern "C" cudaError_t
rp_cuda_bias_forward(int dtype, size_t tokens, size_t n, const void *bias, void *y,
                     cudaStream_t stream)
{
    const dim3 threads(32, THREADS / 32);
    const size_t rows = ceil_divide(tokens, threads.y);
    const dim3 blocks((unsigned)ceil_divide(n, RP_PACK * threads.x),
                      (unsigned)(rows < 512 ? rows : 512));

    if (tokens == 0 || n == 0)
        return cudaSuccess;
    return for_dtype(dtype, [=](auto zero) {
        using T = decltype(zero);

        bias_kernel<T><<<blocks, threads, 0, stream>>>(tokens, n, (const T *)bias, (T *)y,
                                                       is_wide(bias) && rows_are_wide(y, n));
        return cudaGetLastError();
    });
}

extern "C" cudaError_t
rp_cuda_swiglu_forward(int dtype, size_t n, const void *gate, const void *up, void *y,
                       cudaStream_t stream)
{
    const bool wide = is_wide(gate) && is_wide(up) && is_wide(y);

    if (n == 0)
        return cudaSuccess;
    return for_dtype(dtype, [=](auto zero) {
        using T = decltype(zero);

        swiglu_kernel<T><<<blocks_for(n), THREADS, 0, stream>>>(n, (const T *)gate, (const T *)up,
                                                                (T *)y, wide);
        return cudaGetLastError();
    });
}

extern "C" cudaError_t
rp_cuda_swiglu_backward(int dtype, size_t n, const void *gate, const void *up, const void *dy,
                        void *d_gate, void *d_up, void *product, cudaStream_t stream)
{
    const bool wide = is_wide(gate) && is_wide(up) && is_wide(dy) && is_wide(d_gate) &&
                      is_wide(d_up) && is_wide(product);

    if (n == 0)
        return cudaSuccess;
    return for_dtype(dtype, [=](auto zero) {
        using T = decltype(zero);

        swiglu_backward_kernel<T><<<blocks_for(n), THREADS, 0, stream>>>(
            n, (const T *)gate, (const T *)up, (const T *)dy, (T *)d_gate, (T *)d_up, (T *)product,
            wide);
        return cudaGetLastError();
    });
}
