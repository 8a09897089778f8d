/*
 * Kernels that work element by element.
 *
 *   convert   y[i] = x[i];  add: y[i] = x[i] + b[i], each of any storage                         =
 *   fill      x[i] = value                                                                      =
 *   gather    y[i] += round(x[i]), or = round(x[i]); x, y fp32                               +=, =
 *   scatter   y[rows[i],c] = x[i,c]                                                             =
 *   bias      y[t,o] += bias[o]                                                                +=
 *   dropout   y = x / (1 - p), or 0, by a word of Philox for each element                   +=, =
 *   noise     y += m u, u uniform in [-1, 1) by a word of Philox for each element             +=
 *   SwiGLU    y = gate s up;  d_gate = dy up s (1 + gate (1 - s)),  d_up = dy gate s             =
 *             s = 1 / (1 + exp(-gate));  backward may give y again, as product: the same bits
 *
 * n elements, or [tokens,n]. fp32 arithmetic, rounded once; no sums. A thread takes packs of eight:
 * it reads a pack of every input before it writes, so outputs may be inputs. Blocks of 256 threads
 * stride over the array; bias: a thread keeps its columns and strides over tokens.
 * Oracle: exec/host/elements.c, bias in exec/host/matmul.c
 */
#include "exec/cuda/base/common.cuh"

#define RP_SHARED static __device__ __forceinline__
#include "exec/kernels/philox.h"

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
         first < (n) && (count = (n)-first, true); first += (size_t)gridDim.x * THREADS * RP_PACK)

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
    if (dtype == RP_DTYPE_FP32)
        load_floats_of<float>(array, first, count, wide, values);
    else if (dtype == RP_DTYPE_BF16)
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
    if (dtype == RP_DTYPE_FP32)
        store_floats_of<float>(array, first, count, wide, values);
    else if (dtype == RP_DTYPE_BF16)
        store_floats_of<__nv_bfloat16>(array, first, count, wide, values);
    else
        store_floats_of<__half>(array, first, count, wide, values);
}

static __global__ void
__launch_bounds__(THREADS)
    convert_kernel(int x_dtype, const void *x, int y_dtype, void *y, size_t n, bool wide)
{
    FOR_PACKS(first, count, n)
    {
        float values[RP_PACK];

        load_floats(x_dtype, x, first, count, wide, values);
        store_floats(y_dtype, y, first, count, wide, values);
    }
}

static __global__ void
__launch_bounds__(THREADS) add_kernel(int x_dtype, const void *x, int b_dtype, const void *b,
                                      int y_dtype, void *y, size_t n, bool wide)
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

static __global__ void
__launch_bounds__(THREADS) fill_kernel(int dtype, void *x, size_t n, float value, bool wide)
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
static __global__ void
__launch_bounds__(THREADS) bias_kernel(size_t tokens, size_t n, const T *bias, T *y, bool wide)
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

/* A pack is eight elements of one row: two counters. No multiplication joins an addition: the bits
 * are the host's. */
template <typename T>
static __global__ void
__launch_bounds__(THREADS) dropout_kernel(const RpDropoutArgs args, size_t packs, bool wide)
{
    const size_t in_row = (args.n + RP_PACK - 1) / RP_PACK;

    for (size_t p = (size_t)blockIdx.x * THREADS + threadIdx.x; p < packs;
         p += (size_t)gridDim.x * THREADS) {
        const size_t row = p / in_row, first = p % in_row * RP_PACK, count = args.n - first;
        const size_t at = row * args.n + first;
        const Pack<T> pack = load_pack((const T *)args.x + at, count, wide);
        Pack<T> sum = {};

        if (args.accumulate)
            sum = load_pack((const T *)args.y + at, count, wide);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t words[4] = {(uint32_t)(first / 4) + half, args.row + (uint32_t)row, args.step,
                                 0};

            rp_philox_stir(words, args.key);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int i = half * 4 + j;
                const float kept =
                    words[j] >= args.threshold ? __fmul_rn(to_float(pack.at[i]), args.scale) : 0.0f;

                sum.at[i] =
                    from_float<T>(args.accumulate ? __fadd_rn(to_float(sum.at[i]), kept) : kept);
            }
        }
        store_pack((T *)args.y + at, sum, count, wide);
    }
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS) noise_kernel(const RpNoiseArgs args, size_t packs, bool wide)
{
    const size_t in_row = (args.n + RP_PACK - 1) / RP_PACK;

    for (size_t p = (size_t)blockIdx.x * THREADS + threadIdx.x; p < packs;
         p += (size_t)gridDim.x * THREADS) {
        const size_t row = p / in_row, first = p % in_row * RP_PACK, count = args.n - first;
        T *at = (T *)args.y + row * args.n + first;
        Pack<T> sum = load_pack((const T *)at, count, wide);

#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t words[4] = {(uint32_t)(first / 4) + half, args.row + (uint32_t)row, args.step,
                                 1};

            rp_philox_stir(words, args.key);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float u = __fmul_rn(__int2float_rn((int)words[j]), 0x1p-31f);
                T *y = &sum.at[half * 4 + j];

                *y = from_float<T>(__fadd_rn(to_float(*y), __fmul_rn(u, args.magnitude)));
            }
        }
        store_pack(at, sum, count, wide);
    }
}

/* Address of element @first of gate or up, the first of a pack. */
__device__ __forceinline__ size_t
place_of(size_t first, unsigned packs_of_row)
{
    return packs_of_row == 0 ? first
                             : first + (size_t)((unsigned)(first / RP_PACK) / packs_of_row) *
                                           packs_of_row * RP_PACK;
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS)
    swiglu_kernel(size_t n, unsigned packs_of_row, const T *gate, const T *up, T *y,
                  bool y_in_place, float *largest, bool wide)
{
    unsigned most = 0;

    let_next_begin();
    wait_for_previous();
    FOR_PACKS(first, count, n)
    {
        const size_t at = place_of(first, packs_of_row);
        const Pack<T> gates = load_pack(gate + at, count, wide);
        const Pack<T> ups = load_pack(up + at, count, wide);
        Pack<T> pack;

#pragma unroll
        for (int i = 0; i < RP_PACK; i++) {
            const float a = to_float(gates.at[i]);

            pack.at[i] = from_float<T>(a * sigmoid<T>(a) * to_float(ups.at[i]));
        }
        store_pack(y + (y_in_place ? at : first), pack, count, wide);
        if (largest)
            most = larger_of(most, pack);
    }
    if (largest)
        note_largest(largest, most);
}

/* Addresses for the amax of three outputs; or NULL each. */
typedef struct {
    float *d_gate, *d_up, *product;
} Largest;

template <typename T>
static __global__ void
__launch_bounds__(THREADS)
    swiglu_backward_kernel(size_t n, unsigned packs_of_row, const T *gate, const T *up, const T *dy,
                           T *d_gate, T *d_up, T *product, Largest largest, bool wide)
{
    unsigned most[3] = {};

    FOR_PACKS(first, count, n)
    {
        const size_t at = place_of(first, packs_of_row);
        const Pack<T> gates = load_pack(gate + at, count, wide);
        const Pack<T> ups = load_pack(up + at, count, wide);
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
        store_pack(d_gate + at, d_gates, count, wide);
        store_pack(d_up + at, d_ups, count, wide);
        if (product)
            store_pack(product + first, products, count, wide);
        if (largest.d_gate) {
            most[0] = larger_of(most[0], d_gates);
            most[1] = larger_of(most[1], d_ups);
            most[2] = larger_of(most[2], products);
        }
    }
    if (largest.d_gate) {
        note_largest(largest.d_gate, most[0]);
        note_largest(largest.d_up, most[1]);
        if (largest.product)
            note_largest(largest.product, most[2]);
    }
}

cudaError_t
rp_cuda_convert(const RpElementsArgs *args, cudaStream_t stream)
{
    if (args->n == 0 || (args->x_dtype == args->y_dtype && args->x == args->y))
        return cudaSuccess;
    if (args->x_dtype == args->y_dtype)
        return cudaMemcpyAsync(args->y, args->x, args->n * rp_dtype_size(args->x_dtype),
                               cudaMemcpyDeviceToDevice, stream);
    convert_kernel<<<blocks_for(args->n), THREADS, 0, stream>>>(
        args->x_dtype, args->x, args->y_dtype, args->y, args->n,
        is_wide(args->x) && is_wide(args->y));
    return cudaGetLastError();
}

cudaError_t
rp_cuda_add(const RpElementsArgs *args, cudaStream_t stream)
{
    if (args->n == 0)
        return cudaSuccess;
    add_kernel<<<blocks_for(args->n), THREADS, 0, stream>>>(
        args->x_dtype, args->x, args->b_dtype, args->b, args->y_dtype, args->y, args->n,
        is_wide(args->x) && is_wide(args->b) && is_wide(args->y));
    return cudaGetLastError();
}

cudaError_t
rp_cuda_fill(const RpFillArgs *args, cudaStream_t stream)
{
    if (args->n == 0)
        return cudaSuccess;
    fill_kernel<<<blocks_for(args->n), THREADS, 0, stream>>>(args->dtype, args->x, args->n,
                                                             args->value, is_wide(args->x));
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
static __global__ void
__launch_bounds__(THREADS) gather_kernel(const float *x, float *y, size_t n, bool begin, bool wide)
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

cudaError_t
rp_cuda_gather(const RpGatherArgs *args, cudaStream_t stream)
{
    if (args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        gather_kernel<decltype(zero)><<<blocks_for(args->n), THREADS, 0, stream>>>(
            args->x, args->y, args->n, args->begin, is_wide(args->x) && is_wide(args->y));
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_scatter(const RpScatterArgs *args, cudaStream_t stream)
{
    const size_t row_bytes = args->columns * rp_dtype_size(args->dtype);

    if (args->n == 0 || args->columns == 0)
        return cudaSuccess;
    if (row_bytes % sizeof(uint4) == 0 && is_wide(args->x) && is_wide(args->y))
        return scatter<uint4>(args->rows, args->x, args->y, args->n, row_bytes, stream);
    if (args->dtype == RP_DTYPE_FP32)
        return scatter<uint32_t>(args->rows, args->x, args->y, args->n, row_bytes, stream);
    return scatter<uint16_t>(args->rows, args->x, args->y, args->n, row_bytes, stream);
}

cudaError_t
rp_cuda_bias_forward(const RpBiasArgs *args, cudaStream_t stream)
{
    const dim3 threads(32, THREADS / 32);
    const size_t rows = ceil_divide(args->tokens, threads.y);
    const dim3 blocks((unsigned)ceil_divide(args->n, RP_PACK * threads.x),
                      (unsigned)(rows < 512 ? rows : 512));

    if (args->tokens == 0 || args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        bias_kernel<T><<<blocks, threads, 0, stream>>>(
            args->tokens, args->n, (const T *)args->bias, (T *)args->y,
            is_wide(args->bias) && rows_are_wide(args->y, args->n));
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_swiglu_forward(const RpSwigluArgs *args, cudaStream_t stream)
{
    const bool wide = is_wide(args->gate) && is_wide(args->up) && is_wide(args->y);

    if (args->n == 0)
        return cudaSuccess;
    if (args->row % RP_PACK != 0)
        return cudaErrorInvalidValue;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return launch_early(swiglu_kernel<T>, dim3(blocks_for(args->n)), THREADS, 0, stream, args->n,
                            (unsigned)(args->row / RP_PACK), (const T *)args->gate,
                            (const T *)args->up, (T *)args->y, args->y == args->gate,
                            args->largest, (bool)wide);
    });
}

cudaError_t
rp_cuda_swiglu_backward(const RpSwigluArgs *args, cudaStream_t stream)
{
    const bool wide = is_wide(args->gate) && is_wide(args->up) && is_wide(args->dy) &&
                      is_wide(args->d_gate) && is_wide(args->d_up) && is_wide(args->product);

    if (args->n == 0)
        return cudaSuccess;
    if (args->row % RP_PACK != 0)
        return cudaErrorInvalidValue;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        swiglu_backward_kernel<T><<<blocks_for(args->n), THREADS, 0, stream>>>(
            args->n, (unsigned)(args->row / RP_PACK), (const T *)args->gate, (const T *)args->up,
            (const T *)args->dy, (T *)args->d_gate, (T *)args->d_up, (T *)args->product,
            Largest{args->d_gate_largest, args->d_up_largest, args->largest}, wide);
        return cudaGetLastError();
    });
}

/* @kernel(zero, blocks, packs): launches for the type of @zero */
template <typename Args, typename Kernel>
static cudaError_t
launch_draws(const Args *args, Kernel kernel)
{
    const size_t packs = args->rows * ceil_divide(args->n, RP_PACK);

    if (packs == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        kernel(zero, blocks_for(packs * RP_PACK), packs);
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_dropout(const RpDropoutArgs *args, cudaStream_t stream)
{
    return launch_draws(args, [=](auto zero, unsigned blocks, size_t packs) {
        dropout_kernel<decltype(zero)><<<blocks, THREADS, 0, stream>>>(
            *args, packs, rows_are_wide(args->x, args->n) && is_wide(args->y));
    });
}

cudaError_t
rp_cuda_noise(const RpNoiseArgs *args, cudaStream_t stream)
{
    return launch_draws(args, [=](auto zero, unsigned blocks, size_t packs) {
        noise_kernel<decltype(zero)>
            <<<blocks, THREADS, 0, stream>>>(*args, packs, rows_are_wide(args->y, args->n));
    });
}
