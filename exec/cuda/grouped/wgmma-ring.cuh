/*
 * The stages of A and B that the tensor copy engine fills and wgmma reads, on Hopper: one warp
 * copies tiles that groups of four warps multiply. Each stage has a barrier that counts its bytes,
 * and one at which the warps arrive that have read it.
 *
 * A tile of the last rows of an expert has the first ones of the next, which are multiplied, but
 * not stored. Where rows are summed (TN) they are set to 0 in shared memory first. The engine
 * fills with 0 beyond the ends of m, n and k.
 */
#pragma once

#include "exec/cuda/base/tensor-map.cuh"
#include "exec/cuda/base/wgmma.cuh"
#include "exec/cuda/grouped/mma.cuh"
#include "exec/cuda/grouped/place.cuh"

#define ROWS 128
#define DEPTH 64
#define CONSUMERS 256
#define THREADS (128 + CONSUMERS)
#define BOX_BYTES (64 * DEPTH * 2) /* 64 of m or n */
#define PATCH_BYTES (16 * 64 * 2)  /* part of C that a warp stores */

/* Tiles of ROWS x BN of C, from STAGES stages; behind them MORE bytes of shared memory, and MORE_BARRIERS
 * pairs of barriers. */
template <typename T_, RpMatmulLayout FORM_, int BN_, int STAGES_,
          uint32_t MORE_ = CONSUMERS / 32 * PATCH_BYTES, int MORE_BARRIERS_ = 1>
struct WgmmaShape {
    using T = T_;
    static constexpr RpMatmulLayout FORM = FORM_;
    static constexpr int BN = BN_, STAGES = STAGES_, N = BN / 8;
    static constexpr int BOXES = ROWS / 64 + BN / 64; /* boxes of 64 rows or columns */
    static constexpr uint32_t A_BYTES = ROWS / 64 * BOX_BYTES, B_BYTES = BN / 64 * BOX_BYTES;
    static constexpr uint32_t STAGE_BYTES = A_BYTES + B_BYTES, MORE = MORE_;
    static constexpr int MORE_BARRIERS = MORE_BARRIERS_;
    static constexpr uint32_t BYTES =
        STAGES * STAGE_BYTES + MORE + (STAGES + MORE_BARRIERS) * 16 + 1024;
    static constexpr bool A_TRANSPOSED = FORM == RP_MATMUL_TN, B_TRANSPOSED = FORM != RP_MATMUL_NT;

    static_assert(BYTES <= 227 * 1024, "shared memory of a block");
};

/* The stages, in turn, and their barriers. */
template <typename S> struct Ring {
    uint32_t shared, stage, parity;

    __device__ __forceinline__ Ring()
        : shared((dynamic_shared() + 1023) & ~1023u), stage(0), parity(0)
    {
    }
    __device__ __forceinline__ uint32_t tile() const
    {
        return shared + stage * S::STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t full() const
    {
        return more() + S::MORE + stage * 16;
    }
    __device__ __forceinline__ uint32_t empty() const
    {
        return full() + 8;
    }
    /* Barriers begin after the stages, at a multiple of 1024. */
    __device__ __forceinline__ uint32_t more() const
    {
        return shared + S::STAGES * S::STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t patch() const
    {
        return more() + (threadIdx.x / 32 - 4) * PATCH_BYTES;
    }
    /* Pair @i of the barriers behind those of stages; the first: whether it is group 0's or 1's turn. */
    __device__ __forceinline__ uint32_t more_barriers(uint32_t i) const
    {
        return more() + S::MORE + (S::STAGES + i) * 16;
    }
    __device__ __forceinline__ uint32_t order(uint32_t group) const
    {
        return more_barriers(0) + group * 8;
    }
    __device__ __forceinline__ void skip(uint32_t stages)
    {
        stage += stages;
        parity ^= stage / S::STAGES & 1;
        stage %= S::STAGES;
    }
    __device__ __forceinline__ void turn()
    {
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

/* Starts the copies of a step: A's and B's boxes, @k from the expert's first on. */
template <typename S>
static __device__ __forceinline__ void
copy_step(const Ring<S> &ring, const CUtensorMap &a_map, const CUtensorMap &b_map, int first, int m,
          int n, int k, int expert)
{
    const uint32_t a = ring.tile(), b = a + S::A_BYTES;

    barrier_expect(ring.full(), S::STAGE_BYTES);
    if (S::A_TRANSPOSED) {
#pragma unroll
        for (int i = 0; i < ROWS / 64; i++)
            copy_box(a + i * BOX_BYTES, &a_map, m + i * 64, first + k, 0, ring.full());
    } else {
        copy_box(a, &a_map, k, first + m, 0, ring.full());
    }
    if (S::B_TRANSPOSED) {
#pragma unroll
        for (int j = 0; j < S::BN / 64; j++)
            copy_box(b + j * BOX_BYTES, &b_map, n + j * 64, S::A_TRANSPOSED ? first + k : k,
                     S::A_TRANSPOSED ? 0 : expert, ring.full());
    } else {
        copy_box(b, &b_map, k, n, expert, ring.full());
    }
}

/* One warp calls it. */
template <typename S>
static __device__ __forceinline__ void
copy_tiles(const RpGroupedMatmulArgs &args, const CUtensorMap &a_map, const CUtensorMap &b_map)
{
    Ring<S> ring;
    Tiles<ROWS, S::BN> tiles;

    while (tiles.next(args)) {
        const Problem<typename S::T> of = problem_of<typename S::T>(args, S::FORM, tiles.expert);

        for (int k = 0; k < of.k; k += DEPTH) {
            barrier_wait(ring.empty(), ring.parity ^ 1);
            if (threadIdx.x == 0)
                copy_step(ring, a_map, b_map, of.first, tiles.m, tiles.n, k, (int)tiles.expert);
            __syncwarp();
            ring.turn();
        }
    }
}

/* Rows of k from @valid on become 0, in all boxes of a stage that lie in rows of k: by @threads
 * threads, of which this is @thread, and which meet at @barrier. */
template <typename S>
static __device__ __forceinline__ void
clear_rows(uint32_t tile, int valid, int thread, int threads, uint32_t barrier)
{
    const int pieces = (DEPTH - valid) * 8;

    for (int i = thread; i < S::BOXES * pieces; i += threads)
        clear_shared_16(tile + (uint32_t)(i / pieces * BOX_BYTES + valid * 128 + i % pieces * 16));
    publish_shared();
    meet(barrier, (uint32_t)threads);
}

/* d += A B of a part of 16 of a stage, of its @half of the rows. */
template <typename S>
static __device__ __forceinline__ void
multiply_part(float (&d)[S::N][4], uint32_t tile, uint32_t half, uint32_t part)
{
    const uint32_t a = tile + half * BOX_BYTES + part * (S::A_TRANSPOSED ? 2048 : 32);
    const uint32_t b = tile + S::A_BYTES + part * (S::B_TRANSPOSED ? 2048 : 32);

    wgmma<S::A_TRANSPOSED, S::B_TRANSPOSED>(typename S::T(), d, describe_matrix(a, BOX_BYTES),
                                    describe_matrix(b, BOX_BYTES));
}

/* This warp has read the stage, which may be filled again. */
static __device__ __forceinline__ void
release(uint32_t empty)
{
    if (threadIdx.x % 32 == 0)
        barrier_arrive(empty);
}

/* All threads, at the beginning. @warps: that read a stage */
template <typename S>
static __device__ __forceinline__ void
make_barriers(uint32_t warps)
{
    Ring<S> ring;

    if (threadIdx.x == 0) {
        for (int stage = 0; stage < S::STAGES; stage++) {
            barrier_init(ring.full(), 1);
            barrier_init(ring.empty(), warps);
            ring.turn();
        }
        barrier_init(ring.order(0), 4);
        barrier_init(ring.order(1), 4);
        for (uint32_t i = 1; i < S::MORE_BARRIERS; i++) {
            barrier_init(ring.more_barriers(i), 1);
            barrier_init(ring.more_barriers(i) + 8, 4);
        }
        barrier_publish();
    }
    __syncthreads();
}

/* Makes the tensor maps of A and B, for tiles of @columns columns. */
static inline bool
make_maps(const RpGroupedMatmulArgs *args, int columns, CUtensorMap *a, CUtensorMap *b)
{
    const RpDtype dtype = args->a_dtype;

    switch (args->form) {
    case RP_MATMUL_NT:
        return make_map(a, dtype, args->a, args->k, args->rows, 1, ROWS) &&
               make_map(b, dtype, args->b, args->k, args->n, args->experts, columns);
    case RP_MATMUL_NN:
        return make_map(a, dtype, args->a, args->k, args->rows, 1, ROWS) &&
               make_map(b, dtype, args->b, args->n, args->k, args->experts, DEPTH);
    case RP_MATMUL_TN:
        return make_map(a, dtype, args->a, args->m, args->rows, 1, DEPTH) &&
               make_map(b, dtype, args->b, args->n, args->rows, 1, DEPTH);
    }
    return false;
}

/* Blocks of @kernel over the tiles of @args, no more than run at once; @more: maps beyond those of A
 * and B. */
template <typename S, typename... More>
static inline cudaError_t
launch_blocks(void (*kernel)(RpGroupedMatmulArgs, CUtensorMap, CUtensorMap, More...),
              const RpGroupedMatmulArgs *args, cudaStream_t stream, More... more)
{
    static std::atomic<uint64_t> done;
    const size_t tiles = most_tiles(args, ROWS, S::BN);
    CUtensorMap a_map, b_map;
    int processors;
    cudaError_t status = rp_cuda_multiprocessors(&processors);

    if (status == cudaSuccess)
        status = attention_allow_shared((const void *)kernel, (int)S::BYTES, &done);
    if (status != cudaSuccess)
        return status;
    if (!make_maps(args, S::BN, &a_map, &b_map))
        return cudaErrorInvalidValue;
    return attention_launch(kernel,
                            (unsigned)(tiles < (size_t)processors ? tiles : (size_t)processors),
                            THREADS, (int)S::BYTES, stream, *args, a_map, b_map, more...);
}
