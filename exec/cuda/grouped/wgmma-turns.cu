/*
 * Grouped matmul on Hopper by groups of warps that take turns: bf16 or fp16, fp32 sums over k in
 * steps of 64. Oracle: exec/host/grouped-matmul.c
 *
 * Two groups of four warps have tiles of 128 x 128 of C by turns, so that one multiplies while the
 * other stores. Stages go round as in wgmma.cu, and hold the one's tile, then the other's:
 *
 *   stages   | tile 0 | tile 1 | tile 2 | tile 3 |
 *   group 0  | 0 0 0 0|C       | 2 2 2 2|C       |      C: stores a tile
 *   group 1  |        |1 1 1 1 |C       |3 3 3 3 |C
 *
 * A group's turn begins when the other has seen its last stage full: so no barrier of a stage is
 * more than one phase behind, which its parity could not tell.
 *
 * Weight gradients (TN, fp32): another warp has the copy engine read the tile of C behind the
 * stages, to which the group adds its sums there, and write it back, both while others multiply.
 */
#include "exec/cuda/grouped/private.h"
#include "exec/cuda/grouped/wgmma-map.cuh"
#include "exec/cuda/grouped/wgmma-store.cuh"

#define COLUMNS 128
#define TILE_BYTES (ROWS * COLUMNS * 4) /* of C in fp32 */
#define SLICE_BYTES (ROWS * 128)        /* 32 columns of it */

/* Whether there is nothing to do for a tile: no rows are added. */
static __device__ __forceinline__ bool
is_left_alone(const RpGroupedMatmulArgs &args, int k)
{
    return k == 0 && args.accumulate;
}

/* One warp: reads and writes the tiles of C behind the stages. */
template <typename S>
static __device__ __forceinline__ void
carry_sums(const RpGroupedMatmulArgs &args, const CUtensorMap &c_map)
{
    const Ring<S> ring;
    const bool leads = threadIdx.x % 32 == 0;
    Tiles<ROWS, COLUMNS> tiles;
    uint32_t parities = 0; /* a bit a group */

    for (uint32_t group = 0; tiles.next(args); group ^= 1) {
        const int k = problem_of<typename S::T>(args, S::FORM, tiles.expert).k;

        if (is_left_alone(args, k))
            continue;
        if (leads && args.accumulate) {
            barrier_expect(ring.more_full(group), TILE_BYTES);
            for (int i = 0; i < COLUMNS / 32; i++)
                copy_box(ring.more() + (uint32_t)i * SLICE_BYTES, &c_map, tiles.n + i * 32, tiles.m,
                         (int)tiles.expert, ring.more_full(group));
        } else if (leads) {
            barrier_arrive(ring.more_full(group));
        }
        barrier_wait(ring.more_done(group), parities >> group & 1);
        parities ^= 1u << group;
        if (leads) {
            for (int i = 0; i < COLUMNS / 32; i++)
                write_box(&c_map, tiles.n + i * 32, tiles.m, (int)tiles.expert,
                          ring.more() + (uint32_t)i * SLICE_BYTES);
            write_wait();
        }
        __syncwarp();
    }
}

/* Adds 64 rows of sums to the tile behind the stages, or puts them there. Fours as store_fours()
 * has them, in rows of 128 bytes as the engine swizzles them. */
template <typename S>
static __device__ __forceinline__ void
add_sums(const RpGroupedMatmulArgs &args, const float (&d)[S::N][4], uint32_t tile, int first)
{
    const bool odd = threadIdx.x & 1;
    const float scale = args.scale != 0 ? args.scale : 1;
    const uint32_t row = (uint32_t)first + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;

#pragma unroll
    for (int j = 0; j < S::N; j += 2) {
        const uint32_t chunk = (uint32_t)(j + (odd ? 1 : 0)) * 2 + (threadIdx.x & 2) / 2;
        const uint32_t place =
            tile + chunk / 8 * SLICE_BYTES + row * 128 + ((chunk % 8 ^ row % 8) << 4);

#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float4 sums = four_of(d[j], d[j + 1], half, odd);
            float4 four = make_float4(0, 0, 0, 0);

            if (args.accumulate)
                four = load_shared_four(place + (uint32_t)half * 1024);
            four.x = fmaf(sums.x, scale, four.x);
            four.y = fmaf(sums.y, scale, four.y);
            four.z = fmaf(sums.z, scale, four.z);
            four.w = fmaf(sums.w, scale, four.w);
            store_shared_four(place + (uint32_t)half * 1024, four);
        }
    }
}

/* A tile's sums, by the group whose turn it is. */
template <typename S>
static __device__ __forceinline__ void
sum_tile(float (&d)[2][S::N][4], Ring<S> &ring, int extent, uint32_t group)
{
    uint32_t before = 0; /* the barrier of the stage that is multiplied */

    for (int k = 0; k < extent; k += DEPTH) {
        barrier_wait(ring.full(), ring.parity);
        if (S::FORM == RP_MATMUL_TN && extent - k < DEPTH)
            clear_rows<S>(ring.tile(), extent - k, (int)threadIdx.x % 128, 128, 1 + group);
        wgmma_hold(d[0]);
        wgmma_hold(d[1]);
        wgmma_begin();
#pragma unroll
        for (uint32_t part = 0; part < DEPTH / 16; part++) {
            multiply_part<S>(d[0], ring.tile(), 0, part);
            multiply_part<S>(d[1], ring.tile(), 1, part);
        }
        wgmma_commit();
        if (k + DEPTH >= extent)
            release(ring.order(group ^ 1));
        if (k > 0) {
            wgmma_wait_but<1>();
            release(before);
        }
        before = ring.empty();
        ring.turn();
    }
    wgmma_wait_but<0>();
    wgmma_hold(d[0]);
    wgmma_hold(d[1]);
    if (before != 0)
        release(before);
}

template <typename S>
static __device__ __forceinline__ void
take_turns(const RpGroupedMatmulArgs &args)
{
    using T = typename S::T;
    const uint32_t group = threadIdx.x / 128 - 1;
    Ring<S> ring;
    Tiles<ROWS, COLUMNS> tiles;
    uint32_t parity = 0, order = group ^ 1;

    for (uint32_t turn = 0; tiles.next(args); turn ^= 1) {
        const Problem<T> of = problem_of<T>(args, S::FORM, tiles.expert);

        if (turn != group) {
            ring.skip((uint32_t)(of.k + DEPTH - 1) / DEPTH);
            continue;
        }
        barrier_wait(ring.order(group), order);
        order ^= 1;
        if (of.k == 0)
            release(ring.order(group ^ 1));
        if (is_left_alone(args, of.k))
            continue;

        float d[2][S::N][4] = {};

        sum_tile<S>(d, ring, of.k, group);
        if (S::MORE > 0) {
            barrier_wait(ring.more_full(group), parity);
            parity ^= 1;
            add_sums<S>(args, d[0], ring.more(), 0);
            add_sums<S>(args, d[1], ring.more(), 64);
            publish_shared();
            __syncwarp();
            release(ring.more_done(group));
        } else {
            store_rows<S>(args, of, d[0], tiles.m, tiles.n);
            store_rows<S>(args, of, d[1], tiles.m + 64, tiles.n);
        }
    }
}

template <typename S>
static __global__ void
__launch_bounds__(THREADS, 1) multiply_by_turns(const __grid_constant__ RpGroupedMatmulArgs args,
                                                const __grid_constant__ CUtensorMap a_map,
                                                const __grid_constant__ CUtensorMap b_map,
                                                const __grid_constant__ CUtensorMap c_map)
{
    if (threadIdx.x == 0) {
        prefetch_map(&a_map);
        prefetch_map(&b_map);
        make_barriers<S>(4);
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        leave_registers<40>();
        if (threadIdx.x < 32)
            copy_tiles<S>(args, a_map, b_map);
        else if (threadIdx.x < 64 && S::MORE > 0)
            carry_sums<S>(args, c_map);
    } else {
        take_registers<232>();
        take_turns<S>(args);
    }
}

template <typename S>
static cudaError_t
launch_shape(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    static std::atomic<uint64_t> done;
    const size_t tiles = most_tiles(args, ROWS, COLUMNS);
    CUtensorMap a_map, b_map, c_map = {};
    int processors;
    cudaError_t status = grouped_processors(&processors);

    if (status == cudaSuccess)
        status = attention_allow_shared((const void *)multiply_by_turns<S>, (int)S::BYTES, &done);
    if (status != cudaSuccess)
        return status;
    if (!make_maps(args, COLUMNS, &a_map, &b_map) ||
        (S::MORE > 0 &&
         !make_map(&c_map, RP_DTYPE_FP32, args->c, args->n, args->m, args->experts, ROWS)))
        return cudaErrorInvalidValue;
    return attention_launch(multiply_by_turns<S>,
                            (unsigned)(tiles < (size_t)processors ? tiles : (size_t)processors),
                            THREADS, (int)S::BYTES, stream, *args, a_map, b_map, c_map);
}

template <typename T>
static cudaError_t
launch_form(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    switch (args->form) {
    case RP_MATMUL_NT:
        return launch_shape<WgmmaShape<T, RP_MATMUL_NT, COLUMNS, 6>>(args, stream);
    case RP_MATMUL_NN:
        return launch_shape<WgmmaShape<T, RP_MATMUL_NN, COLUMNS, 6>>(args, stream);
    case RP_MATMUL_TN:
        if (args->c_dtype == RP_DTYPE_FP32 && attention_aligned(args->c, 16))
            return launch_shape<WgmmaShape<T, RP_MATMUL_TN, COLUMNS, 4, TILE_BYTES>>(args, stream);
        return launch_shape<WgmmaShape<T, RP_MATMUL_TN, COLUMNS, 6>>(args, stream);
    }
    return cudaErrorInvalidValue;
}

cudaError_t
grouped_matmul_wgmma_turns(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return args->a_dtype == RP_DTYPE_BF16 ? launch_form<__nv_bfloat16>(args, stream)
                                          : launch_form<__half>(args, stream);
}
