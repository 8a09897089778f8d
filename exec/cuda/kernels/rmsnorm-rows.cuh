/*
 * Rows of RMSNorm: each thread's elements of one, their sum, reading rows ahead (ring.cuh), and the
 * layout for a size. For rmsnorm.cu only.
 */
#pragma once

#include "exec/cuda/base/ring.cuh"

#define MOST_SHARED_BYTES (99 * 1024) /* a block's, on every GPU since Ampere */

/*
 * Sum over the GROUP threads of a row. @shared is used by groups of more than a warp only, which
 * meet once more before it is written again.
 */
template <int GROUP>
__device__ __forceinline__ float
sum_group(float value, float *shared)
{
    if (GROUP <= 32)
        return sum_lanes<(GROUP < 32 ? GROUP : 32)>(value);
    return sum_block<(GROUP < 32 ? 32 : GROUP)>(value, shared);
}

/* Elements of pack @pack of thread @lane of a group that there are: at most n - first. */
#define FOR_PACKS_OF_ROW(pack, first)                                                              \
    _Pragma("unroll") for (int pack = 0; pack < PACKS;                                             \
                           pack++) if (const size_t first =                                        \
                                           ((size_t)pack * GROUP + lane) * RP_PACK;                \
                                       first < n)

enum { ROW_S, ROW_DY, ROW_D_RESIDUAL, N_ARRAYS }; /* arrays whose rows backward reads */

/*
 * Backward's work on rows: a stage of the ring is a block's part of AT_ONCE rows. There are as many
 * stages as leave shared memory for all threads that fit a multiprocessor's registers.
 */
template <typename T, bool WIDE, int GROUP, int PACKS> struct Shape {
    static constexpr int BLOCK = GROUP > 32 ? GROUP : 256;
    static constexpr int AT_ONCE = BLOCK / GROUP; /* rows */
    static constexpr int PIECES = N_ARRAYS * PACKS * pieces_of<T>;
    static constexpr int STAGES = PIECES <= N_ARRAYS ? 3 : 2;
    static constexpr int STAGE = PIECES * BLOCK; /* slots */
    static constexpr size_t RING_BYTES = (size_t)STAGES * STAGE * sizeof(uint4);
    static constexpr int SHARED = GROUP > 32 ? 2 * (GROUP / 32) : BLOCK *RP_PACK; /* floats */
    static constexpr bool AHEAD = WIDE && RING_BYTES + SHARED * sizeof(float) <= MOST_SHARED_BYTES;
    /* threads of a multiprocessor at once: their registers fit */
    static constexpr int THREADS = AHEAD && PACKS == 1 ? 1024 : 512;
};

/* The first slot of pack @pack of array @array; @stage: of the thread */
template <typename S, typename T>
__device__ __forceinline__ constexpr int
slot_of(int pack, int array)
{
    return (pack * N_ARRAYS + array) * pieces_of<T> * S::BLOCK;
}

/* Starts to copy row @row of @arrays (or NULL each), if there is one. @stage: of the thread */
template <typename T, int GROUP, int PACKS>
__device__ __forceinline__ void
copy_row_ahead(uint4 *stage, const T *const (&arrays)[N_ARRAYS], size_t n, size_t row, size_t end,
               unsigned lane)
{
    using S = Shape<T, true, GROUP, PACKS>;

    if (row < end) {
        FOR_PACKS_OF_ROW(pack, first)
        {
#pragma unroll
            for (int array = 0; array < N_ARRAYS; array++)
                if (arrays[array])
                    copy_ahead<S::BLOCK>(stage + slot_of<S, T>(pack, array),
                                         arrays[array] + row * n + first);
        }
    }
    __pipeline_commit();
}

/* The same for the first rows: all stages but one */
template <typename T, int GROUP, int PACKS>
__device__ __forceinline__ void
copy_first_rows_ahead(uint4 *ring, const T *const (&arrays)[N_ARRAYS], size_t n, size_t row,
                      size_t end, unsigned lane)
{
    using S = Shape<T, true, GROUP, PACKS>;

#pragma unroll
    for (int stage = 0; stage < S::STAGES - 1; stage++)
        copy_row_ahead<T, GROUP, PACKS>(ring + stage * S::STAGE + threadIdx.x, arrays, n,
                                        row + stage * S::AT_ONCE, end, lane);
}

/* Before row @row, of stage @here, is worked on: reads one further ahead, waits for this one. */
template <typename T, int GROUP, int PACKS>
__device__ __forceinline__ void
read_on(uint4 *ring, unsigned here, const T *const (&arrays)[N_ARRAYS], size_t n, size_t row,
        size_t end, unsigned lane)
{
    using S = Shape<T, true, GROUP, PACKS>;
    const unsigned before = here > 0 ? here - 1 : S::STAGES - 1;

    copy_row_ahead<T, GROUP, PACKS>(ring + before * S::STAGE + threadIdx.x, arrays, n,
                                    row + (S::STAGES - 1) * S::AT_ONCE, end, lane);
    __pipeline_wait_prior(S::STAGES - 1);
}

/* Pack @pack of array @array of a row; at @source, if it is not read ahead */
template <typename T, bool WIDE, int GROUP, int PACKS>
__device__ __forceinline__ Pack<T>
pack_of_row(const uint4 *stage, int pack, int array, const T *source, size_t count)
{
    using S = Shape<T, WIDE, GROUP, PACKS>;

    if constexpr (S::AHEAD)
        return take_pack<T, S::BLOCK>(stage + slot_of<S, T>(pack, array));
    else
        return load_pack(source, count, WIDE);
}

/* Calls f.template run<GROUP, PACKS>() with the layout that @n needs; 0, 0: looping. */
template <typename F>
static cudaError_t
for_size(size_t n, F f)
{
    if (n <= 64)
        return f.template run<8, 1>();
    if (n <= 128)
        return f.template run<16, 1>();
    if (n <= 256)
        return f.template run<32, 1>();
    if (n <= 512)
        return f.template run<32, 2>();
    if (n <= 1024)
        return f.template run<128, 1>();
    if (n <= 2048)
        return f.template run<256, 1>();
    if (n <= 4096)
        return f.template run<512, 1>();
    if (n <= 8192)
        return f.template run<512, 2>();
    if (n <= 16384)
        return f.template run<512, 4>();
    return f.template run<0, 0>();
}
