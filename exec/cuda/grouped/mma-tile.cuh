/*
 * A tile of C from tensor cores, mma.sync (sm_80 and later): bf16 or fp16, fp32 sums, or fp16 ones.
 *
 * STAGES tiles of A and B, DEPTH deep in k, stand in shared memory; copies (cp.async) are STAGES - 1
 * ahead of the warps, and fragments one step of 16 ahead of mma:
 *
 *   stage      |   0   |   1   |   2   |   0   | ...           one barrier a stage
 *   fragments  |0,0 0,1|1,0 1,1|2,0 2,1|3,0 3,1|
 *   copied     |  2    |  3    |  4    |  5    |
 *
 * A tile of an operand lies as the operand does: rows of k, or (transposed) rows of m or n;
 * ldmatrix transposes it where mma needs the other layout. Chunks of 16 bytes stand at places that
 * eight rows, which ldmatrix reads at once, have in different banks. Elements outside of the
 * matrices are 0.
 */
#pragma once

#include <type_traits>

#include "exec/cuda/grouped/mma.cuh"
#include "exec/cuda/grouped/place.cuh"

#define NEAR_END 4

/* Elements (row g + 8 half, columns 2t and 2t + 1) of a fragment of C. */
static __device__ __forceinline__ float2
pair_of(const float (&c)[4], int half)
{
    return make_float2(c[half * 2], c[half * 2 + 1]);
}

static __device__ __forceinline__ float2
pair_of(const uint32_t (&c)[2], int half)
{
    const __half2_raw pair = {(unsigned short)c[half], (unsigned short)(c[half] >> 16)};

    return __half22float2(pair);
}

/* Layout of a tile of @EXTENT of m or n, @DEPTH of k, in shared memory. */
template <bool TRANSPOSED, int EXTENT, int DEPTH_> struct Layout {
    static constexpr int DEPTH = DEPTH_;
    static constexpr int COLUMNS = TRANSPOSED ? EXTENT : DEPTH;
    static constexpr int ROWS = TRANSPOSED ? DEPTH : EXTENT;
    static constexpr uint32_t ROW_BYTES = COLUMNS * 2;
    static constexpr uint32_t BYTES = ROWS * ROW_BYTES;

    static_assert(COLUMNS == 32 || COLUMNS % 64 == 0, "eight rows take all banks once");

    /* The place of chunk 0 in its row; chunk c stands at c ^ this. */
    static __device__ __forceinline__ uint32_t place(uint32_t row)
    {
        return COLUMNS == 32 ? row / 2 & 3 : row & 7;
    }
};

/* Copies a thread's part of each tile: chunk `chunk` of rows `row`, row + PASS, ... */
template <typename T, bool TRANSPOSED, typename L, int THREADS> struct Copier {
    static constexpr int CHUNKS = L::COLUMNS / 8, PASS = THREADS / CHUNKS;

    static_assert(PASS % 8 == 0 && L::ROWS % PASS == 0, "places repeat from pass to pass");

    const T *from; /* source of the next step */
    size_t stride;
    uint32_t to;
    int row, left; /* rows of the matrix from the tile's first on; columns, if transposed */

    /* @first: of m or n, of which there are @extent */
    __device__ __forceinline__ Copier(const T *matrix, int first, int extent, int k)
    {
        const int chunk = (int)threadIdx.x % CHUNKS;

        row = (int)threadIdx.x / CHUNKS;
        stride = (size_t)(TRANSPOSED ? extent : k);
        left = extent - first;
        from = matrix + (TRANSPOSED ? (size_t)row * stride + first : (size_t)(first + row) * stride) +
               chunk * 8;
        to = (uint32_t)row * L::ROW_BYTES + (((uint32_t)chunk ^ L::place((uint32_t)row)) << 4);
    }

    /* @k_left: from the step's first on; > 0 */
    __device__ __forceinline__ void copy(uint32_t tile, int k_left)
    {
        const int column = (int)threadIdx.x % CHUNKS * 8;
        const int rows = TRANSPOSED ? k_left : left;
        const bool inside = column < (TRANSPOSED ? left : k_left);

#pragma unroll
        for (int i = 0; i < L::ROWS / PASS; i++)
            copy_async_16(tile + to + (uint32_t)(i * PASS) * L::ROW_BYTES,
                          from + (size_t)(i * PASS) * stride, inside && row + i * PASS < rows);
        from += TRANSPOSED ? L::DEPTH * stride : L::DEPTH;
    }
};

/* Addresses at which a lane reads fragments of 16 of m or n x 16 of k, from the warp's @first on.
 * The second of the four 8x8 matrices is the next 8 of m in A, and the next 8 of k in B, as mma
 * takes them. */
template <bool TRANSPOSED, typename L, bool OF_B> struct Reader {
    uint32_t row, chunk, first;

    __device__ __forceinline__ explicit Reader(int first_)
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t second = lane / 8 & 1, third = lane / 16; /* bits of the lane's matrix */
        const uint32_t at = lane % 8 + (TRANSPOSED == OF_B ? second : third) * 8;

        first = (uint32_t)first_;
        row = (at + (TRANSPOSED ? 0 : first)) * L::ROW_BYTES;
        chunk = ((TRANSPOSED == OF_B ? third : second) ^ L::place(at)) << 4;
    }

    __device__ __forceinline__ void read(uint32_t (&r)[4], uint32_t tile, int block, int step) const
    {
        if (TRANSPOSED)
            load_matrices_transposed(r, tile + row + (uint32_t)step * 16 * L::ROW_BYTES +
                                            (((first / 8 + (uint32_t)block * 2) << 4) ^ chunk));
        else
            load_matrices(r, tile + row + (uint32_t)block * 16 * L::ROW_BYTES +
                                 (chunk ^ (uint32_t)step << 5));
    }
};

/* BM x BN of C by HIGH x WIDE warps. */
template <typename T_, bool HALF_, RpMatmulLayout FORM_, int BM_, int BN_, int HIGH_, int WIDE_,
          int DEPTH_, int STAGES_, int BLOCKS_>
struct Shape {
    using T = T_;
    static constexpr RpMatmulLayout FORM = FORM_;
    static constexpr int BM = BM_, BN = BN_, HIGH = HIGH_, WIDE = WIDE_;
    static constexpr int DEPTH = DEPTH_, STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_; /* on a multiprocessor */
    static constexpr int THREADS = HIGH * WIDE * 32;
    static constexpr int M = BM / HIGH / 16, N = BN / WIDE / 8; /* fragments of a warp's C */
    static constexpr int WORDS = HALF_ ? 2 : 4;                 /* words of a fragment of C */
    using Word = std::conditional_t<HALF_, uint32_t, float>;
    using A = Layout<FORM == RP_MATMUL_TN, BM, DEPTH>;
    using B = Layout<FORM != RP_MATMUL_NT, BN, DEPTH>;
    static constexpr uint32_t STAGE_BYTES = A::BYTES + B::BYTES;
    static constexpr uint32_t BYTES = STAGES * STAGE_BYTES;

    static_assert(BYTES + 1024 <= (DEPTH == 32 ? 100 : 228) * 1024 / BLOCKS,
                  "shared memory of sm_86 and sm_120; deeper ones are Hopper's");
};

/* @sums = A B of the tile at (m, n), over k. @shared: S::BYTES; @near_end: called when NEAR_END steps
 * are left. All threads. */
template <typename S, typename F>
static __device__ __forceinline__ void
sum_tile(typename S::Word (&sums)[S::M][S::N][S::WORDS], uint32_t shared,
         const typename S::T *a_matrix, const typename S::T *b_matrix, int m, int n, int m_extent,
         int n_extent, int k, F near_end)
{
    using T = typename S::T;
    constexpr bool A_TRANSPOSED = S::FORM == RP_MATMUL_TN, B_TRANSPOSED = S::FORM != RP_MATMUL_NT;
    const int warp = (int)threadIdx.x / 32, steps = (k + S::DEPTH - 1) / S::DEPTH;
    const Reader<A_TRANSPOSED, typename S::A, false> a_reader(warp / S::WIDE * S::M * 16);
    const Reader<B_TRANSPOSED, typename S::B, true> b_reader(warp % S::WIDE * S::N * 8);
    Copier<T, A_TRANSPOSED, typename S::A, S::THREADS> a_copier(a_matrix, m, m_extent, k);
    Copier<T, B_TRANSPOSED, typename S::B, S::THREADS> b_copier(b_matrix, n, n_extent, k);
    uint32_t a[2][S::M][4], b[2][S::N / 2][4];
    uint32_t read = shared, write = shared;

    auto copy = [&](int step) {
        if (step < steps) {
            a_copier.copy(write, k - step * S::DEPTH);
            b_copier.copy(write + S::A::BYTES, k - step * S::DEPTH);
        }
        copy_async_commit();
        write = write + S::STAGE_BYTES == shared + S::BYTES ? shared : write + S::STAGE_BYTES;
    };
    auto load = [&](int buffer, int step) {
#pragma unroll
        for (int i = 0; i < S::M; i++)
            a_reader.read(a[buffer][i], read, i, step);
#pragma unroll
        for (int j = 0; j < S::N / 2; j++)
            b_reader.read(b[buffer][j], read + S::A::BYTES, j, step);
    };

#pragma unroll
    for (int step = 0; step < S::STAGES - 1; step++)
        copy(step);
    copy_async_wait_but<S::STAGES - 2>();
    __syncthreads();
    load(0, 0);
    for (int step = 0; step < steps; step++) {
#pragma unroll
        for (int part = 0; part < S::DEPTH / 16; part++) {
            if (part == S::DEPTH / 16 - 1) {
                copy_async_wait_but<S::STAGES - 2>();
                __syncthreads();
                read = read + S::STAGE_BYTES == shared + S::BYTES ? shared : read + S::STAGE_BYTES;
            }
            load((part + 1) % 2, (part + 1) % (S::DEPTH / 16));
            if (part == 0) {
                copy(step + S::STAGES - 1);
                if (step == max(steps - NEAR_END, 0))
                    near_end();
            }
#pragma unroll
            for (int i = 0; i < S::M; i++) {
#pragma unroll
                for (int j = 0; j < S::N; j++)
                    multiply_add(T(), sums[i][j], a[part % 2][i], b[part % 2][j / 2][j % 2 * 2],
                                 b[part % 2][j / 2][j % 2 * 2 + 1]);
            }
        }
    }
    /* the next tile is copied to where others may still read */
    copy_async_wait_but<0>();
    __syncthreads();
}
