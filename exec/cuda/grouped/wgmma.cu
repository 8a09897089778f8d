/*
 * Grouped matmul on Hopper (compute capability 9.0): wgmma from shared memory, which the tensor copy
 * engine fills. bf16 or fp16, fp32 sums over k in steps of 64. Oracle: exec/host/matmul.c
 *
 * A block has tiles of 128 x BN of C, one after another. Two groups of four warps have 64 rows each:
 *
 *   copies     | 0 | 1 | 2 | 3 |   | 4 | 5 | ...      waits until a stage is empty
 *   multiplies |   | 0 | 1 | 2 | 3 |C| 4 | ...        waits until a stage is full; C: stores a tile
 */
#include "exec/cuda/grouped/private.h"
#include "exec/cuda/grouped/wgmma-store.cuh"

template <typename S>
static __device__ __forceinline__ void
multiply_tiles(const RpGroupedMatmulArgs &args)
{
    using T = typename S::T;
    const uint32_t group = threadIdx.x / 128 - 1;
    Ring<S> ring;
    Tiles<ROWS, S::BN> tiles;
    bool more = tiles.next(args);

    while (more) {
        const Problem<T> of = problem_of<T>(args, S::FORM, tiles.expert);
        const int m = tiles.m, n = tiles.n;
        uint32_t before = 0; /* the barrier of the stage that is multiplied */
        float d[S::N][4] = {};

        for (int k = 0; k < of.k; k += DEPTH) {
            barrier_wait(ring.full(), ring.parity);
            if (S::FORM == RP_MATMUL_TN && of.k - k < DEPTH)
                clear_rows<S>(ring.tile(), of.k - k, (int)threadIdx.x - 128, CONSUMERS, 1);
            wgmma_hold(d);
            wgmma_begin();
#pragma unroll
            for (uint32_t part = 0; part < DEPTH / 16; part++)
                multiply_part<S>(d, ring.tile(), group, part);
            wgmma_commit();
            if (k > 0) {
                wgmma_wait_but<1>();
                release(before);
            }
            before = ring.empty();
            ring.turn();
        }
        more = tiles.next(args); /* while the last step is multiplied */
        wgmma_wait_but<0>();
        wgmma_hold(d);
        if (before != 0)
            release(before);
        if (before != 0 || !args.accumulate)
            store_rows<S>(args, of, d, m + (int)group * 64, n, ring.patch());
    }
}

template <typename S>
static __global__ void
__launch_bounds__(THREADS, 1) multiply_on_hopper(const __grid_constant__ RpGroupedMatmulArgs args,
                                                 const __grid_constant__ CUtensorMap a_map,
                                                 const __grid_constant__ CUtensorMap b_map)
{
    make_barriers<S>(CONSUMERS / 32);
    if (threadIdx.x < 128) {
        leave_registers<40>();
        if (threadIdx.x < 32)
            copy_tiles<S>(args, a_map, b_map);
    } else {
        take_registers<232>();
        multiply_tiles<S>(args);
    }
}

template <typename T>
static cudaError_t
launch_form(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    using NT = WgmmaShape<T, RP_MATMUL_NT, 256, 4>;
    using NN = WgmmaShape<T, RP_MATMUL_NN, 256, 4>;
    using TN = WgmmaShape<T, RP_MATMUL_TN, 256, 4>;

    switch (args->form) {
    case RP_MATMUL_NT:
        return launch_blocks<NT>(multiply_on_hopper<NT>, args, stream);
    case RP_MATMUL_NN:
        return launch_blocks<NN>(multiply_on_hopper<NN>, args, stream);
    case RP_MATMUL_TN:
        return launch_blocks<TN>(multiply_on_hopper<TN>, args, stream);
    }
    return cudaErrorInvalidValue;
}

bool
grouped_has_depth(const RpGroupedMatmulArgs *args)
{
    return grouped_is_fast(args) && is_hopper();
}

bool
grouped_has_wgmma(const RpGroupedMatmulArgs *args)
{
    return grouped_has_depth(args) && (args->form == RP_MATMUL_TN || args->k > 0) &&
           find_encode() != nullptr;
}

cudaError_t
grouped_matmul_wgmma_256(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return args->a_dtype == RP_DTYPE_BF16 ? launch_form<__nv_bfloat16>(args, stream)
                                          : launch_form<__half>(args, stream);
}
