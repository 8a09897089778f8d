/*
 * Rotary position embedding, rotate-half as in transformers; backward turns by the opposite angle.
 *
 *   y[i] = x[i] c[i] - x[i+h] s[i];   y[i+h] = x[i+h] c[i] + x[i] s[i],   i < h = R/2             =
 *   y[i] = x[i],   i >= R
 *
 * x, y: [T,H,D], y may be x, tokens of x (backward: of y, too) may stand apart; c, s = tables[positions[t]], [h]. fp32 products, rounded once; no
 * sums. A thread has a pack of eight pairs of one token, its cosines and sines in registers, and
 * turns them in HEADS heads:
 *
 *   block: x = packs of half a head, y = tokens, 256 threads or fewer;  grid: x = tokens, y = heads
 *
 * Oracle: exec/host/norm-rope.c
 */
#include "exec/cuda/base/common.cuh"

#define THREADS 256
#define HEADS 4

template <typename T>
__device__ __forceinline__ void
rotate(const T *x, T *y, size_t half, const Pack<float> &c, const Pack<float> &s, size_t count,
       bool wide)
{
    Pack<T> lower = load_pack(x, count, wide);
    Pack<T> upper = load_pack(x + half, count, wide);

#pragma unroll
    for (int i = 0; i < RP_PACK; i++) {
        const float a = to_float(lower.at[i]);
        const float b = to_float(upper.at[i]);

        lower.at[i] = from_float<T>(a * c.at[i] - b * s.at[i]);
        upper.at[i] = from_float<T>(b * c.at[i] + a * s.at[i]);
    }
    store_pack(y, lower, count, wide);
    store_pack(y + half, upper, count, wide);
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS)
    rope_kernel(size_t tokens, size_t heads, size_t x_heads, size_t y_heads, size_t half, size_t size,
                const int32_t *positions, const float *cosines, const float *sines, const T *x,
                T *y, float direction, bool wide)
{
    const size_t t = (size_t)blockIdx.x * blockDim.y + threadIdx.y;
    const size_t head = (size_t)blockIdx.y * HEADS;
    size_t row;

    if (t >= tokens)
        return;
    row = (size_t)positions[t] * half;
    for (size_t first = threadIdx.x * RP_PACK; first < half; first += blockDim.x * RP_PACK) {
        const size_t count = half - first;
        const Pack<float> c = load_pack(cosines + row + first, count, wide);
        Pack<float> s = load_pack(sines + row + first, count, wide);

#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            s.at[i] *= direction;
#pragma unroll
        for (int i = 0; i < HEADS; i++) {
            const size_t from = (t * x_heads + head + i) * size + first;
            const size_t to = (t * y_heads + head + i) * size + first;

            if (head + i < heads)
                rotate(x + from, y + to, half, c, s, count, wide);
        }
    }
    for (size_t i = 0; i < HEADS && head + i < heads && x != y; i++)
        for (size_t rest = 2 * half + threadIdx.x; rest < size; rest += blockDim.x)
            y[(t * y_heads + head + i) * size + rest] = x[(t * x_heads + head + i) * size + rest];
}

/* @y_heads: from a token of y to the next */
static cudaError_t
rope(const RpRopeArgs *args, size_t y_heads, float direction, cudaStream_t stream)
{
    const size_t x_heads = args->row_heads > 0 ? args->row_heads : args->heads;
    const size_t size = args->head_size, half = (args->rotary > 0 ? args->rotary : size) / 2;
    const size_t packs = ceil_divide(half, RP_PACK);
    const unsigned width = (unsigned)(packs < THREADS ? packs : THREADS);
    const bool wide = rows_are_wide(args->x, half) && size % RP_PACK == 0 && is_wide(args->y) && is_wide(args->cosines) &&
                      is_wide(args->sines);

    if ((args->rotary > 0 ? args->rotary : size) % 2 != 0)
        return cudaErrorInvalidValue;
    if (args->tokens == 0 || args->heads == 0 || half == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);
        const dim3 threads(width, THREADS / width);
        const dim3 blocks((unsigned)ceil_divide(args->tokens, threads.y),
                          (unsigned)ceil_divide(args->heads, HEADS));

        rope_kernel<T><<<blocks, threads, 0, stream>>>(
            args->tokens, args->heads, x_heads, y_heads, half, size, args->positions,
            args->cosines, args->sines, (const T *)args->x, (T *)args->y, direction, wide);
        return cudaGetLastError();
    });
}

cudaError_t
rp_cuda_rope_forward(const RpRopeArgs *args, cudaStream_t stream)
{
    return rope(args, args->heads, 1.0f, stream);
}

cudaError_t
rp_cuda_rope_backward(const RpRopeArgs *args, cudaStream_t stream)
{
    return rope(args, args->row_heads > 0 ? args->row_heads : args->heads, -1.0f, stream);
}
