/*
 * Kernels that draw a random word for each element.
 *
 *   dropout   y = x / (1 - p), or 0, by a word of Philox for each element                   +=, =
 *   noise     y += m u, u uniform in [-1, 1) by a word of Philox for each element             +=
 *
 * [rows,n]. fp32 arithmetic, rounded once; no sums. A thread takes packs of eight: x may be y. Blocks of 256
 * threads stride over the array. Oracle: exec/host/elements.c
 */
#include "exec/cuda/elements/packs.cuh"

#define RP_SHARED static __device__ __forceinline__
#include "exec/kernels/philox.h"

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

cudaError_t
rp_cuda_dropout(const RpDropoutArgs *args, cudaStream_t stream)
{
    const size_t packs = args->rows * ceil_divide(args->n, RP_PACK);

    if (packs == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        dropout_kernel<decltype(zero)><<<blocks_for(packs * RP_PACK), THREADS, 0, stream>>>(
            *args, packs, rows_are_wide(args->x, args->n) && is_wide(args->y));
        return cudaGetLastError();
    });
}

/* Launched like dropout_kernel(). */
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

cudaError_t
rp_cuda_noise(const RpNoiseArgs *args, cudaStream_t stream)
{
    const size_t packs = args->rows * ceil_divide(args->n, RP_PACK);

    if (packs == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        noise_kernel<decltype(zero)><<<blocks_for(packs * RP_PACK), THREADS, 0, stream>>>(
            *args, packs, rows_are_wide(args->y, args->n));
        return cudaGetLastError();
    });
}
