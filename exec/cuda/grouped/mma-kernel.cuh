/* The kernel over tiles (mma-tile.cuh), and its launch: for files that each have one size of tile,
 * so that they compile beside each other. */
#pragma once

#include "exec/cuda/grouped/mma-tile.cuh"
#include "exec/cuda/grouped/private.h"
#include "exec/cuda/grouped/store.cuh"

/* Has the L2 cache read the sums to which the tile at (m, n) is added. */
template <typename S, typename C>
static __device__ __forceinline__ void
prefetch_tile(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of, int m, int n)
{
    constexpr int LINE = 128 / sizeof(C), LINES = S::BN / LINE;

#pragma unroll
    for (int i = 0; i < S::BM * LINES / S::THREADS; i++) {
        const int at = i * S::THREADS + (int)threadIdx.x;
        const int row = m + at / LINES, column = n + at % LINES * LINE;

        if (row < of.m && column < of.n)
            prefetch_line((const C *)args.c + of.c_at + (size_t)row * of.n + column);
    }
}

/* C = or += sums, with scale or bias, of the tile at (m, n). */
template <typename S, typename C>
static __device__ __forceinline__ void
store_tile(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
           const typename S::Word (&sums)[S::M][S::N][S::WORDS], int m, int n)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int first_row = m + warp / S::WIDE * S::M * 16 + lane / 4;
    const int column = n + warp % S::WIDE * S::N * 8 + lane % 4 * 2;
    const float scale = args.scale != 0 ? args.scale : 1;
    C *first = (C *)args.c + of.c_at + (size_t)first_row * of.n + column;
    float2 old[2][S::N]; /* values of a row, and of the next */

    auto load = [&](int at) {
#pragma unroll
        for (int j = 0; j < S::N; j++)
            if (args.accumulate && first_row + at * 8 < of.m && column + j * 8 < of.n)
                old[at % 2][j] = load_pair(first + (size_t)(at * 8) * of.n + j * 8);
    };

#pragma unroll
    for (int j = 0; j < S::N; j++) {
        old[0][j] = make_float2(0, 0);
        if (args.bias && column + j * 8 < of.n)
            old[0][j] = load_pair((const C *)args.bias + of.bias_at + column + j * 8);
        old[1][j] = old[0][j];
    }
    load(0);
#pragma unroll
    for (int at = 0; at < S::M * 2; at++) {
        C *place = first + (size_t)(at * 8) * of.n;

        if (at + 1 < S::M * 2)
            load(at + 1);
#pragma unroll
        for (int j = 0; j < S::N; j++) {
            const float2 sum = pair_of(sums[at / 2][j], at % 2);

            if (first_row + at * 8 < of.m && column + j * 8 < of.n)
                store_pair(place + j * 8, fmaf(sum.x, scale, old[at % 2][j].x),
                           fmaf(sum.y, scale, old[at % 2][j].y));
        }
    }
}

/* Transposes words: lane t of four gets w[t] of all four. */
static __device__ __forceinline__ void
turn_quads(uint32_t (&w)[4])
{
#pragma unroll
    for (int step = 1; step <= 2; step++) { /* between lanes, and words, so far apart */
        const bool upper = threadIdx.x & (unsigned)step;

#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int low = step == 1 ? 2 * i : i, high = low + step;
            const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[low] : w[high], step);

            w[low] = upper ? got : w[low];
            w[high] = upper ? w[high] : got;
        }
    }
}

/* 16-bit C =, where rows of C and of a bias are at multiples of 16 bytes: lanes hand each other words,
 * so that each writes 16 bytes, and four of them 64 of a row. */
template <typename S>
static __device__ __forceinline__ void
store_wide(const RpGroupedMatmulArgs &args, const Problem<typename S::T> &of,
           const typename S::Word (&sums)[S::M][S::N][S::WORDS], int m, int n)
{
    using T = typename S::T;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int row = m + warp / S::WIDE * S::M * 16 + lane / 4;
    const int column = n + warp % S::WIDE * S::N * 8;
    const float scale = args.scale != 0 ? args.scale : 1;

#pragma unroll
    for (int j = 0; j < S::N; j += 4) {
        const int mine = column + (j + lane % 4) * 8; /* columns that this lane writes */
        T *place = (T *)args.c + of.c_at + (size_t)row * of.n + mine;
        float2 more[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = column + (j + i) * 8 + lane % 4 * 2;

            more[i] = args.bias && at < of.n ? load_pair((const T *)args.bias + of.bias_at + at)
                                             : make_float2(0, 0);
        }
#pragma unroll
        for (int at = 0; at < S::M * 2; at++) {
            uint32_t words[4];

#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 sum = pair_of(sums[at / 2][j + i], at % 2);

                words[i] =
                    pack_pair(T(), fmaf(sum.x, scale, more[i].x), fmaf(sum.y, scale, more[i].y));
            }
            turn_quads(words);
            if (row + at * 8 < of.m && mine < of.n)
                *(uint4 *)(void *)(place + (size_t)(at * 8) * of.n) =
                    make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
}

template <typename S>
static __global__ void
__launch_bounds__(S::THREADS, S::BLOCKS)
    multiply_tiles(const __grid_constant__ RpGroupedMatmulArgs args)
{
    using T = typename S::T;
    const uint32_t shared = dynamic_shared();
    const bool wide = !args.accumulate && args.n % 8 == 0 && (uintptr_t)args.c % 16 == 0;
    Tiles<S::BM, S::BN> tiles;

    while (tiles.next(args)) {
        const Problem<T> of = problem_of<T>(args, S::FORM, tiles.expert);
        typename S::Word sums[S::M][S::N][S::WORDS] = {};

        if (S::FORM == RP_MATMUL_TN && of.k == 0 && args.accumulate)
            continue;
        sum_tile<S>(sums, shared, of.a, of.b, tiles.m, tiles.n, of.m, of.n, of.k, [&] {
            if (S::FORM == RP_MATMUL_TN && args.accumulate && args.c_dtype == RP_DTYPE_FP32)
                prefetch_tile<S, float>(args, of, tiles.m, tiles.n);
        });
        if (args.c_dtype == RP_DTYPE_FP32)
            store_tile<S, float>(args, of, sums, tiles.m, tiles.n);
        else if (wide)
            store_wide<S>(args, of, sums, tiles.m, tiles.n);
        else
            store_tile<S, T>(args, of, sums, tiles.m, tiles.n);
    }
}

template <typename S>
static cudaError_t
launch_shape(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    static std::atomic<uint64_t> done;
    const size_t tiles = most_tiles(args, S::BM, S::BN);
    int processors;
    cudaError_t status = rp_cuda_multiprocessors(&processors);

    if (status == cudaSuccess)
        status = attention_allow_shared((const void *)multiply_tiles<S>, (int)S::BYTES, &done);
    if (status != cudaSuccess)
        return status;

    const size_t blocks = (size_t)processors * S::BLOCKS;

    return attention_launch(multiply_tiles<S>, (unsigned)(tiles < blocks ? tiles : blocks),
                            S::THREADS, (int)S::BYTES, stream, *args);
}

/* A size of tile, as in Shape. Arguments for which grouped_is_fast(). */
template <int BM, int BN, int HIGH, int WIDE, int DEPTH, int STAGES, int BLOCKS> struct Launch {
    template <typename T, bool HALF, RpMatmulLayout FORM>
    using Of = Shape<T, HALF, FORM, BM, BN, HIGH, WIDE, DEPTH, STAGES, BLOCKS>;

    template <typename T>
    static cudaError_t in_form(const RpGroupedMatmulArgs *args, cudaStream_t stream)
    {
        switch (args->form) {
        case RP_MATMUL_NT:
            return launch_shape<Of<T, false, RP_MATMUL_NT>>(args, stream);
        case RP_MATMUL_NN:
            return launch_shape<Of<T, false, RP_MATMUL_NN>>(args, stream);
        case RP_MATMUL_TN:
            return launch_shape<Of<T, false, RP_MATMUL_TN>>(args, stream);
        }
        return cudaErrorInvalidValue;
    }

    static cudaError_t run(const RpGroupedMatmulArgs *args, cudaStream_t stream)
    {
        if (args->a_dtype == RP_DTYPE_BF16)
            return in_form<__nv_bfloat16>(args, stream);
        if (!grouped_sums_in_half(args))
            return in_form<__half>(args, stream);
        if (args->form == RP_MATMUL_NT)
            return launch_shape<Of<__half, true, RP_MATMUL_NT>>(args, stream);
        return launch_shape<Of<__half, true, RP_MATMUL_NN>>(args, stream);
    }
};
