/* The kernel over tiles (mma-tile.cuh), and its launch: for files that each have one size of tile,
 * so that they compile beside each other. */
#pragma once

#include "exec/cuda/grouped/mma-tile.cuh"
#include "exec/cuda/grouped/private.h"
#include "exec/cuda/grouped/store.cuh"

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
    float2 old[S::N];

#pragma unroll
    for (int j = 0; j < S::N; j++) {
        old[j] = make_float2(0, 0);
        if (args.bias && column + j * 8 < of.n)
            old[j] = load_pair((const C *)args.bias + of.bias_at + column + j * 8);
    }
#pragma unroll
    for (int i = 0; i < S::M; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first_row + i * 16 + half * 8;
            C *place = (C *)args.c + of.c_at + (size_t)row * of.n + column;

            if (row >= of.m)
                continue;
#pragma unroll
            for (int j = 0; j < S::N; j++)
                if (args.accumulate && column + j * 8 < of.n)
                    old[j] = load_pair(place + j * 8);
#pragma unroll
            for (int j = 0; j < S::N; j++) {
                const float2 sum = pair_of(sums[i][j], half);

                if (column + j * 8 < of.n)
                    store_pair(place + j * 8, fmaf(sum.x, scale, old[j].x),
                               fmaf(sum.y, scale, old[j].y));
            }
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
    Tiles<S::BM, S::BN> tiles;

    while (tiles.next(args)) {
        const Problem<T> of = problem_of<T>(args, S::FORM, tiles.expert);
        typename S::Word sums[S::M][S::N][S::WORDS] = {};

        if (S::FORM == RP_MATMUL_TN && of.k == 0 && args.accumulate)
            continue;
        sum_tile<S>(sums, shared, of.a, of.b, tiles.m, tiles.n, of.m, of.n, of.k);
        if (args.c_dtype == RP_DTYPE_FP32)
            store_tile<S, float>(args, of, sums, tiles.m, tiles.n);
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
    cudaError_t status = grouped_processors(&processors);

    if (status == cudaSuccess)
        status = attention_allow_shared((const void *)multiply_tiles<S>, (int)S::BYTES, &done);
    if (status != cudaSuccess)
        return status;

    const size_t blocks = (size_t)processors * S::BLOCKS;

    return attention_launch(multiply_tiles<S>, (unsigned)(tiles < blocks ? tiles : blocks),
                            S::THREADS, (int)S::BYTES, stream, *args);
}

/* A size of tile, as in Shape. Arguments for which grouped_is_fast(). */
template <int BM, int BN, int HIGH, int WIDE, int STAGES, int BLOCKS> struct Launch {
    template <typename T, bool HALF, RpMatmulForm FORM>
    using Of = Shape<T, HALF, FORM, BM, BN, HIGH, WIDE, STAGES, BLOCKS>;

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
