/*
 * Grouped matmul on Hopper by groups of warps that take turns: bf16 or fp16, fp32 sums over k in
 * steps of 64. Oracle: exec/host/matmul.c
 *
 * Two groups of four warps have tiles of 128 x 128 or 192 of C by turns, so that one multiplies while
 * the other stores. Stages go round as in wgmma.cu, and hold the one's tile, then the other's:
 *
 *   stages   | tile 0 | tile 1 | tile 2 | tile 3 |
 *   group 0  | 0 0 0 0|C       | 2 2 2 2|C       |      C: stores a tile
 *   group 1  |        |1 1 1 1 |C       |3 3 3 3 |C
 *
 * A group's turn begins when the other has seen its last stage full: so no barrier of a stage is
 * more than one phase behind, which its parity could not show.
 *
 * Weight gradients (TN, fp32): another warp has the copy engine carry tiles of C to slots behind the
 * stages and back, a slice of 32 columns a slot. The group adds its sums there while the other one
 * multiplies, and slices of later tiles are read already:
 *
 *   slots      | 0 | 1 | 2 | 3 | 4 | 5 | 0 | 1 | ...
 *   tiles      |    tile 0     |    tile 1     | ...
 */
#include "exec/cuda/grouped/private.h"
#include "exec/cuda/grouped/wgmma-store.cuh"

#define COLUMNS 128
#define SLICES (COLUMNS / 32) /* slices of a tile of C in fp32 */
#define SLICE_BYTES (ROWS * 128)
#define SLOTS 6

template <typename T>
using SumShape = WgmmaShape<T, RP_MATMUL_TN, COLUMNS, 4, SLOTS * SLICE_BYTES, 1 + SLOTS>;

/* Whether there is nothing to do for a tile: no rows are added. */
static __device__ __forceinline__ bool
is_left_alone(const RpGroupedMatmulArgs &args, int k)
{
    return k == 0 && args.accumulate;
}

/* Slices of the block's tiles, one after another. */
class Slices
{
  public:
    Tiles<ROWS, COLUMNS> tiles;
    int i; /* slice within the tile */

    __device__ __forceinline__ Slices() : i(SLICES - 1)
    {
    }
    __device__ __forceinline__ bool next(const RpGroupedMatmulArgs &args)
    {
        if (++i < SLICES)
            return true;
        i = 0;
        while (tiles.next(args))
            if (args.offsets[tiles.expert + 1] > args.offsets[tiles.expert] || !args.accumulate)
                return true;
        return false;
    }
};

/* Place of slice @number of all. */
template <typename S> struct Slot {
    uint32_t place, full, done, parity;

    __device__ __forceinline__ Slot(const Ring<S> &ring, uint32_t number)
        : place(ring.more() + number % SLOTS * SLICE_BYTES),
          full(ring.more_barriers(1 + number % SLOTS)), done(full + 8), parity(number / SLOTS & 1)
    {
    }
};

/* One warp: has slices of C read ahead of those that add to them, and written behind them. */
template <typename S>
static __device__ __forceinline__ void
carry_sums(const RpGroupedMatmulArgs &args, const CUtensorMap &map)
{
    const Ring<S> ring;
    const bool leads = threadIdx.x % 32 == 0;
    Slices reads, writes;
    uint32_t ahead = 0;

    auto read = [&] {
        const Slot<S> slot(ring, ahead++);

        if (leads && args.accumulate) {
            barrier_expect(slot.full, SLICE_BYTES);
            copy_box(slot.place, &map, reads.tiles.n + reads.i * 32, reads.tiles.m,
                     (int)reads.tiles.expert, slot.full);
        } else if (leads) {
            barrier_arrive(slot.full);
        }
    };
    bool more = reads.next(args);

    for (; more && ahead < SLOTS - 1; more = reads.next(args))
        read();
    for (uint32_t number = 0; writes.next(args); number++) {
        const Slot<S> slot(ring, number);

        barrier_wait(slot.done, slot.parity);
        if (leads) {
            write_box(&map, writes.tiles.n + writes.i * 32, writes.tiles.m,
                      (int)writes.tiles.expert, slot.place);
            write_wait_but<1>(); /* the one before is out of its slot */
        }
        __syncwarp();
        if (more) {
            read();
            more = reads.next(args);
        }
    }
    if (leads)
        write_wait_but<0>();
}

/* Adds a group's sums to a tile's slices, the first of which is @number, or puts them there. Fours
 * as store_fours() has them, in rows of 128 bytes as the engine swizzles them; odd rows take the
 * other half of eight chunks, so that eight lanes have all banks. */
template <typename S>
static __device__ __forceinline__ void
add_sums(const RpGroupedMatmulArgs &args, const float (&d)[2][S::N][4], const Ring<S> &ring,
         uint32_t number)
{
    const bool odd = threadIdx.x & 1, other = threadIdx.x & 4;
    const float scale = args.scale != 0 ? args.scale : 1;
    const uint32_t row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    const uint32_t chunk = (odd ? 2 : 0) + (threadIdx.x & 2) / 2 + (other ? 4 : 0);
    const uint32_t first = row * 128 + ((chunk ^ row % 8) << 4);

#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        const Slot<S> slot(ring, number + (uint32_t)i);

        barrier_wait(slot.full, slot.parity);
#pragma unroll
        for (int at = 0; at < 8; at++) { /* two of 64 rows, two of 16 columns, two of 8 rows */
            const int j = i * 4 + at / 2 % 2 * 2, half = at % 2;
            const float(&sums)[S::N][4] = d[at / 4];
            const uint32_t place = slot.place + ((first ^ (uint32_t)(at / 2 % 2) * 64) +
                                                 (uint32_t)(at / 4) * 8192 + (uint32_t)half * 1024);
            float low[4], high[4];

#pragma unroll
            for (int e = 0; e < 4; e++) {
                low[e] = other ? sums[j ^ 2][e] : sums[j][e];
                high[e] = other ? sums[(j ^ 2) + 1][e] : sums[j + 1][e];
            }

            const float4 more = four_of(low, high, half, odd);
            float4 four = make_float4(0, 0, 0, 0);

            if (args.accumulate)
                four = load_shared_four(place);
            four.x = fmaf(more.x, scale, four.x);
            four.y = fmaf(more.y, scale, four.y);
            four.z = fmaf(more.z, scale, four.z);
            four.w = fmaf(more.w, scale, four.w);
            store_shared_four(place, four);
        }
        publish_shared();
        __syncwarp();
        release(slot.done);
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
    Tiles<ROWS, S::BN> tiles;
    uint32_t order = group ^ 1, slices = 0;

    for (uint32_t turn = 0; tiles.next(args); turn ^= 1) {
        const Problem<T> of = problem_of<T>(args, S::FORM, tiles.expert);
        const uint32_t before = slices;

        slices += is_left_alone(args, of.k) ? 0 : SLICES;
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
        if (S::MORE_BARRIERS > 1) {
            add_sums<S>(args, d, ring, before);
        } else {
            store_rows<S>(args, of, d[0], tiles.m, tiles.n, ring.patch());
            store_rows<S>(args, of, d[1], tiles.m + 64, tiles.n, ring.patch());
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
    make_barriers<S>(4);
    if (threadIdx.x < 128) {
        leave_registers<40>();
        if (threadIdx.x < 32)
            copy_tiles<S>(args, a_map, b_map);
        else if (threadIdx.x < 64 && S::MORE_BARRIERS > 1)
            carry_sums<S>(args, c_map);
    } else {
        take_registers<232>();
        take_turns<S>(args);
    }
}

template <typename S>
static cudaError_t
launch_turns(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    const CUtensorMap none = {};

    return launch_blocks<S>(multiply_by_turns<S>, args, stream, none);
}

template <typename T>
static cudaError_t
launch_sums(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    CUtensorMap map;

    if (!make_map(&map, RP_DTYPE_FP32, args->c, args->n, args->m, args->experts, ROWS))
        return cudaErrorInvalidValue;
    return launch_blocks<SumShape<T>>(multiply_by_turns<SumShape<T>>, args, stream, map);
}

template <typename T, int BN, int STAGES>
static cudaError_t
launch_form(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    switch (args->form) {
    case RP_MATMUL_NT:
        return launch_turns<WgmmaShape<T, RP_MATMUL_NT, BN, STAGES>>(args, stream);
    case RP_MATMUL_NN:
        return launch_turns<WgmmaShape<T, RP_MATMUL_NN, BN, STAGES>>(args, stream);
    case RP_MATMUL_TN:
        if (args->c_dtype == RP_DTYPE_FP32 && attention_aligned(args->c, 16))
            return launch_sums<T>(args, stream);
        return launch_turns<WgmmaShape<T, RP_MATMUL_TN, BN, STAGES>>(args, stream);
    }
    return cudaErrorInvalidValue;
}

cudaError_t
grouped_matmul_turns_128(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return args->a_dtype == RP_DTYPE_BF16 ? launch_form<__nv_bfloat16, 128, 6>(args, stream)
                                          : launch_form<__half, 128, 6>(args, stream);
}

cudaError_t
grouped_matmul_turns_192(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return args->a_dtype == RP_DTYPE_BF16 ? launch_form<__nv_bfloat16, 192, 5>(args, stream)
                                          : launch_form<__half, 192, 5>(args, stream);
}
