/*
 * RMSNorm.
 *
 *   forward   y = weight x rstd,  rstd = 1 / sqrt(mean x^2 + epsilon)                          =
 *   backward  dx = rstd (g - h mean(g h)) + d_residual,  h = x rstd,  g = dy weight           =
 *             d_weight += sum over rows of dy h                                              +=
 *
 * x, y, dx: [rows,n]. fp32 sums. A group of threads holds a row in registers, PACKS packs of eight
 * a thread, and reads it once:
 *
 *   n <=   64   128   256   512 | 1024  2048  4096  8192  16384 | more
 *   group   8    16    32    32 |  128   256   512   512    512 | 512, looping, reads twice
 *   packs   1     1     1     2 |    1     1     1     2      4 |
 *           a part of a warp    |      a block                  |
 *                                             backward: <- here | looping
 *   forward                     |  128   128   128   256    512
 *                               |    1     2     4     4      4 |   more of a row is on its way at a time
 *
 * Small groups: 256 threads a block, 256 / group rows at a time. Backward: a block has a chunk of
 * consecutive rows, sums dy h of its columns in registers (looping: in the workspace) and writes
 * them to partials, [chunks,n]; reduce.cu adds those up in order. It reads its rows ahead
 * where packs stand at multiples of 16 bytes and a ring fits shared memory; fmaf()
 * says where products are fused, so that every way of reading gives the same bits.
 * Oracle: exec/host/norm-rope.c
 */
#include <cuda_pipeline.h>

#include "exec/cuda/base/common.cuh"

#define LOOP_THREADS 512
/* Backward keeps more: past this, registers would spill. */
#define MOST_BACKWARD 8192

/*
 * Reading ahead: a thread has 16-byte slots of shared memory, into which packs are copied while
 * those before are worked on. Only the thread itself reads its slots: no barrier is needed, and
 * neighbouring threads have neighbouring slots.
 *
 *   slots    [stages][pieces of a stage][THREADS]; a pack: 1 piece, 2 of fp32
 *   step i   starts to copy what step i + stages - 1 needs, where step i - 1 has read; waits for
 *            its own. Every step commits, even if there is nothing to copy.
 */

/* Slots of a thread that a pack takes. */
template <typename T> constexpr int pieces_of = (int)(sizeof(Pack<T>) / sizeof(uint4));

/* @slot: of the calling thread, the pack's first */
template <int THREADS, typename T>
__device__ __forceinline__ void
copy_ahead(uint4 *slot, const T *source)
{
#pragma unroll
    for (int piece = 0; piece < pieces_of<T>; piece++)
        __pipeline_memcpy_async(slot + piece * THREADS,
                                reinterpret_cast<const uint4 *>(source) + piece, sizeof(uint4));
}

template <typename T, int THREADS>
__device__ __forceinline__ Pack<T>
take_pack(const uint4 *slot)
{
    Pack<T> pack;

#pragma unroll
    for (int piece = 0; piece < pieces_of<T>; piece++)
        reinterpret_cast<uint4 *>(&pack)[piece] = slot[piece * THREADS];
    return pack;
}

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

/* The same of the forward, which keeps less. */
template <typename F>
static cudaError_t
for_forward_size(size_t n, F f)
{
    if (n <= 1024 || n > 8192)
        return for_size(n, f);
    if (n <= 2048)
        return f.template run<128, 2>();
    if (n <= 4096)
        return f.template run<128, 4>();
    return f.template run<256, 4>();
}

/* Without a shift -0 stays -0. */
template <typename T>
__device__ __forceinline__ float
shifted(T weight, float shift)
{
    return shift != 0 ? to_float(weight) + shift : to_float(weight);
}

template <typename T> struct Forward {
    size_t rows, n;
    float epsilon, shift;
    const T *x, *weight;
    T *y;
    float *rstd;
    bool wide;
    float *largest; /* amax of y; or NULL */
};

template <typename T> struct Backward {
    size_t rows, n, chunk_rows;
    float shift;
    const T *s, *weight, *dy, *d_residual;
    const float *rstd;
    T *dx;
    float *partials;
    bool wide;
    float *largest; /* amax of dx; or NULL */
};

template <typename T>
__device__ __forceinline__ float
add_squares(float sum, const Pack<T> &pack)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        sum += to_float(pack.at[i]) * to_float(pack.at[i]);
    return sum;
}

/* Returns the stored values. */
template <typename T>
__device__ __forceinline__ Pack<T>
store_normed(const Forward<T> &args, size_t index, size_t count, Pack<T> x, const Pack<T> &weight, float rstd)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        x.at[i] = from_float<T>(shifted(weight.at[i], args.shift) * (to_float(x.at[i]) * rstd));
    store_pack(args.y + index, x, count, args.wide);
    return x;
}

template <typename T, int GROUP, int PACKS>
static __global__ void
__launch_bounds__(GROUP > 32 ? GROUP : 256) forward_kernel(const Forward<T> args)
{
    __shared__ float shared[GROUP > 32 ? GROUP / 32 : 1];
    const size_t n = args.n;
    const unsigned lane = threadIdx.x % GROUP;
    const size_t row = (size_t)blockIdx.x * (blockDim.x / GROUP) + threadIdx.x / GROUP;
    const bool here = row < args.rows; /* all threads stay: lanes are summed by whole warps */
    Pack<T> x[PACKS], weight[PACKS];
    float squares = 0;
    unsigned most = 0;
    float rstd;

    /* zeros behind the row: under a condition each would be waited for by itself */
    const auto load = [&](Pack<T>(&packs)[PACKS], const T *source) {
#pragma unroll
        for (int pack = 0; pack < PACKS; pack++) {
            const size_t first = ((size_t)pack * GROUP + lane) * RP_PACK;

            packs[pack] = load_pack(source + first, here && first < n ? n - first : 0, args.wide);
        }
    };

    let_next_begin();
    load(weight, args.weight); /* while others are waited for */
    wait_for_previous();
    load(x, args.x + row * n);
#pragma unroll
    for (int pack = 0; pack < PACKS; pack++)
        squares = add_squares(squares, x[pack]);
    rstd = 1.0f / sqrtf(sum_group<GROUP>(squares, shared) / (float)n + args.epsilon);
    if (here) {
        if (lane == 0)
            args.rstd[row] = rstd;
        FOR_PACKS_OF_ROW(pack, first)
        {
            const Pack<T> y = store_normed(args, row * n + first, n - first, x[pack], weight[pack], rstd);

            if (args.largest)
                most = larger_of(most, y);
        }
    }
    if (args.largest)
        note_largest_of_block(args.largest, most);
}

/* Rows that do not fit registers: x is read again. */
template <typename T>
static __global__ void
__launch_bounds__(LOOP_THREADS) forward_loop_kernel(const Forward<T> args)
{
    __shared__ float shared[LOOP_THREADS / 32];
    const size_t row = blockIdx.x;
    float squares = 0;
    unsigned most = 0;
    float rstd;

    for (size_t first = threadIdx.x * RP_PACK; first < args.n; first += LOOP_THREADS * RP_PACK)
        squares = add_squares(squares,
                              load_pack(args.x + row * args.n + first, args.n - first, args.wide));
    rstd = 1.0f / sqrtf(sum_block<LOOP_THREADS>(squares, shared) / (float)args.n + args.epsilon);
    if (threadIdx.x == 0)
        args.rstd[row] = rstd;
    for (size_t first = threadIdx.x * RP_PACK; first < args.n; first += LOOP_THREADS * RP_PACK) {
        const size_t index = row * args.n + first, count = args.n - first;

        most = larger_of(most, store_normed(args, index, count, load_pack(args.x + index, count, args.wide),
                                            load_pack(args.weight + first, count, args.wide), rstd));
    }
    if (args.largest)
        note_largest_of_block(args.largest, most);
}

/* One pack of a row's gradient sum: g h, over its elements */
template <typename T>
__device__ __forceinline__ float
add_products(float sum, const Pack<T> &s, const Pack<T> &dy, const Pack<T> &weight, float shift,
             float rstd)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        sum = fmaf(to_float(dy.at[i]) * shifted(weight.at[i], shift), to_float(s.at[i]) * rstd, sum);
    return sum;
}

/* dx of a pack; adds dy h to @partial. */
template <typename T>
__device__ __forceinline__ Pack<T>
differentiate(const Pack<T> &s, const Pack<T> &dy, const Pack<T> &weight, const Pack<T> &residual,
              float shift, float rstd, float mean, float *partial)
{
    Pack<T> dx;

#pragma unroll
    for (int i = 0; i < RP_PACK; i++) {
        const float d = to_float(dy.at[i]);
        const float h = to_float(s.at[i]) * rstd;
        const float part = fmaf(d, shifted(weight.at[i], shift), -(h * mean));

        partial[i] = fmaf(d, h, partial[i]);
        dx.at[i] = from_float<T>(fmaf(rstd, part, to_float(residual.at[i])));
    }
    return dx;
}

/*
 * The sums of all groups of a block become one row of partials, group after group. Columns are
 * handed over in @shared, which all groups share: GROUP * RP_PACK floats a group.
 */
template <int GROUP, int PACKS>
__device__ __forceinline__ void
store_partials(float *partials, size_t n, const float (*sums)[RP_PACK], float *shared)
{
    const unsigned lane = threadIdx.x % GROUP;

    if constexpr (GROUP > 32) {
        FOR_PACKS_OF_ROW(pack, first)
        {
#pragma unroll
            for (int i = 0; i < RP_PACK; i++)
                if (first + i < n)
                    partials[first + i] = sums[pack][i];
        }
    } else {
#pragma unroll
        for (int pack = 0; pack < PACKS; pack++) {
            const size_t begin = (size_t)pack * GROUP * RP_PACK;

            __syncthreads();
#pragma unroll
            for (int i = 0; i < RP_PACK; i++)
                shared[threadIdx.x * RP_PACK + i] = sums[pack][i];
            __syncthreads();
            if (threadIdx.x < GROUP * RP_PACK && begin + threadIdx.x < n) {
                float sum = 0;

                for (unsigned group = 0; group < blockDim.x / GROUP; group++)
                    sum += shared[group * GROUP * RP_PACK + threadIdx.x];
                partials[begin + threadIdx.x] = sum;
            }
        }
    }
}

template <typename T, bool WIDE, int GROUP, int PACKS>
static __global__ void
__launch_bounds__(Shape<T, WIDE, GROUP, PACKS>::BLOCK,
                  Shape<T, WIDE, GROUP, PACKS>::THREADS / Shape<T, WIDE, GROUP, PACKS>::BLOCK)
    backward_kernel(const Backward<T> args)
{
    using S = Shape<T, WIDE, GROUP, PACKS>;
    __shared__ float shared[S::SHARED];
    extern __shared__ uint4 ring[];
    const size_t n = args.n;
    const unsigned lane = threadIdx.x % GROUP;
    const size_t start = (size_t)blockIdx.x * args.chunk_rows;
    const size_t end = start + args.chunk_rows < args.rows ? start + args.chunk_rows : args.rows;
    const size_t first_row = start + threadIdx.x / GROUP;
    const T *const arrays[N_ARRAYS] = {args.s, args.dy, args.d_residual};
    float sums[PACKS][RP_PACK] = {};
    Pack<T> weight[PACKS];
    float next_rstd = first_row < end ? args.rstd[first_row] : 0.0f;
    unsigned here = 0; /* the stage of this row */
    /* half of the buffer in use: as they alternate, one barrier a row is enough */
    unsigned turn = 0;
    unsigned most = 0;

    if constexpr (S::AHEAD)
        copy_first_rows_ahead<T, GROUP, PACKS>(ring, arrays, n, first_row, end, lane);
    FOR_PACKS_OF_ROW(pack, first)
    weight[pack] = load_pack(args.weight + first, n - first, WIDE);
    /* all threads stay: lanes are summed by whole warps */
    for (size_t base = start; base < end; base += S::AT_ONCE) {
        const size_t row = base + threadIdx.x / GROUP;
        const uint4 *stage = ring + here * S::STAGE + threadIdx.x;
        const float rstd = next_rstd;
        Pack<T> s[PACKS], dy[PACKS];
        float products = 0;
        float mean;

        next_rstd = row + S::AT_ONCE < end ? args.rstd[row + S::AT_ONCE] : 0.0f;
        if constexpr (S::AHEAD) {
            read_on<T, GROUP, PACKS>(ring, here, arrays, n, row, end, lane);
            here = here + 1 < S::STAGES ? here + 1 : 0;
        }
        if (row < end) {
            FOR_PACKS_OF_ROW(pack, first)
            {
                const size_t index = row * n + first;

                s[pack] = pack_of_row<T, WIDE, GROUP, PACKS>(stage, pack, ROW_S, args.s + index,
                                                             n - first);
                dy[pack] = pack_of_row<T, WIDE, GROUP, PACKS>(stage, pack, ROW_DY, args.dy + index,
                                                              n - first);
                products = add_products(products, s[pack], dy[pack], weight[pack], args.shift, rstd);
            }
        }
        mean = sum_group<GROUP>(products, shared + turn * (GROUP > 32 ? GROUP / 32 : 0)) / (float)n;
        turn ^= 1;
        if (row < end) {
            FOR_PACKS_OF_ROW(pack, first)
            {
                const size_t index = row * n + first;
                Pack<T> residual = {};

                if (args.d_residual)
                    residual = pack_of_row<T, WIDE, GROUP, PACKS>(
                        stage, pack, ROW_D_RESIDUAL, args.d_residual + index, n - first);

                const Pack<T> dx = differentiate(s[pack], dy[pack], weight[pack], residual,
                                                 args.shift, rstd, mean, sums[pack]);

                store_pack(args.dx + index, dx, n - first, WIDE);
                if (args.largest)
                    most = larger_of(most, dx);
            }
        }
    }
    if (args.largest)
        note_largest(args.largest, most);
    store_partials<GROUP, PACKS>(args.partials + (size_t)blockIdx.x * n, n, sums, shared);
}

template <typename T>
static __global__ void
__launch_bounds__(LOOP_THREADS) backward_loop_kernel(const Backward<T> args)
{
    __shared__ float shared[2 * (LOOP_THREADS / 32)];
    const size_t n = args.n;
    const size_t start = (size_t)blockIdx.x * args.chunk_rows;
    const size_t end = start + args.chunk_rows < args.rows ? start + args.chunk_rows : args.rows;
    float *partials = args.partials + (size_t)blockIdx.x * n;
    unsigned turn = 0, most = 0;

    for (size_t row = start; row < end; row++) {
        const float rstd = args.rstd[row];
        float products = 0;
        float mean;

        for (size_t first = threadIdx.x * RP_PACK; first < n; first += LOOP_THREADS * RP_PACK)
            products =
                add_products(products, load_pack(args.s + row * n + first, n - first, args.wide),
                             load_pack(args.dy + row * n + first, n - first, args.wide),
                             load_pack(args.weight + first, n - first, args.wide), args.shift, rstd);
        mean = sum_block<LOOP_THREADS>(products, shared + turn * (LOOP_THREADS / 32)) / (float)n;
        turn ^= 1;
        for (size_t first = threadIdx.x * RP_PACK; first < n; first += LOOP_THREADS * RP_PACK) {
            const size_t index = row * n + first;
            const size_t count = n - first;
            Pack<T> residual = {};
            float sums[RP_PACK];

            if (args.d_residual)
                residual = load_pack(args.d_residual + index, count, args.wide);
#pragma unroll
            for (int i = 0; i < RP_PACK; i++)
                sums[i] = row > start && first + i < n ? partials[first + i] : 0.0f;

            const Pack<T> dx = differentiate(load_pack(args.s + index, count, args.wide),
                                             load_pack(args.dy + index, count, args.wide),
                                             load_pack(args.weight + first, count, args.wide),
                                             residual, args.shift, rstd, mean, sums);

            store_pack(args.dx + index, dx, count, args.wide);
            most = larger_of(most, dx);
#pragma unroll
            for (int i = 0; i < RP_PACK; i++)
                if (first + i < n)
                    partials[first + i] = sums[i];
        }
    }
    if (args.largest)
        note_largest(args.largest, most);
}

template <typename T> struct LaunchForward {
    Forward<T> args;
    cudaStream_t stream;

    template <int GROUP, int PACKS> cudaError_t run() const
    {
        if constexpr (GROUP == 0) {
            forward_loop_kernel<<<(unsigned)args.rows, LOOP_THREADS, 0, stream>>>(args);
        } else {
            constexpr int BLOCK = GROUP > 32 ? GROUP : 256;
            const size_t blocks = ceil_divide(args.rows, BLOCK / GROUP);

            return launch_early(forward_kernel<T, GROUP, PACKS>, dim3((unsigned)blocks), BLOCK, 0,
                                stream, args);
        }
        return cudaGetLastError();
    }
};

template <typename T> struct LaunchBackward {
    Backward<T> args;
    size_t chunks;
    cudaStream_t stream;

    template <bool WIDE, int GROUP, int PACKS> cudaError_t run_rows() const
    {
        using S = Shape<T, WIDE, GROUP, PACKS>;
        void (*const kernel)(Backward<T>) = backward_kernel<T, WIDE, GROUP, PACKS>;
        const size_t bytes = S::AHEAD ? S::RING_BYTES : 0;

        if (bytes > 0) {
            cudaError_t status = cudaFuncSetAttribute(
                kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);

            if (status == cudaSuccess) /* the rings of several blocks */
                status =
                    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared);
            if (status != cudaSuccess)
                return status;
        }
        kernel<<<(unsigned)chunks, S::BLOCK, bytes, stream>>>(args);
        return cudaGetLastError();
    }

    template <int GROUP, int PACKS> cudaError_t run() const
    {
        if constexpr (GROUP == 0 || GROUP * PACKS * RP_PACK > MOST_BACKWARD) {
            backward_loop_kernel<<<(unsigned)chunks, LOOP_THREADS, 0, stream>>>(args);
            return cudaGetLastError();
        } else {
            return args.wide ? run_rows<true, GROUP, PACKS>() : run_rows<false, GROUP, PACKS>();
        }
    }
};

cudaError_t
rp_cuda_rmsnorm_forward(const RpRmsnormArgs *args, cudaStream_t stream)
{
    const size_t n = args->n;
    const bool wide = rows_are_wide(args->x, n) && is_wide(args->weight) && is_wide(args->y);

    if (args->rows == 0 || n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return for_forward_size(n, LaunchForward<T>{{args->rows, n, args->epsilon, args->shift, (const T *)args->x,
                                             (const T *)args->weight, (T *)args->y, args->rstd,
                                             wide, args->largest},
                                            stream});
    });
}

/*
 * Many blocks, but many rows each as well: partials are written and read once a chunk. Where there
 * are many rows: about as many chunks as blocks are held at once by a GPU of 128 multiprocessors.
 */
static size_t
rows_of_chunk(size_t rows, size_t n)
{
    const size_t most_chunks = n <= 512             ? 512
                               : n <= 1024          ? 1024
                               : n <= 2048          ? 512
                               : n <= MOST_BACKWARD ? 256
                                                    : 128;
    const size_t least_rows = n <= 512 ? 32 : 4;
    const size_t chunk_rows = ceil_divide(rows, most_chunks);

    return chunk_rows > least_rows ? chunk_rows : least_rows;
}

size_t
rp_cuda_rmsnorm_backward_workspace(const RpRmsnormArgs *args)
{
    const size_t chunks = ceil_divide(args->rows, rows_of_chunk(args->rows, args->n));

    return round_to_64(chunks * args->n * sizeof(float));
}

cudaError_t
rp_cuda_rmsnorm_backward(const RpRmsnormArgs *args, cudaStream_t stream)
{
    const size_t n = args->n;
    const size_t chunk_rows = rows_of_chunk(args->rows, n);
    const size_t chunks = ceil_divide(args->rows, chunk_rows);
    const bool wide = rows_are_wide(args->x, n) && is_wide(args->weight) && is_wide(args->dy) &&
                      is_wide(args->d_residual) && is_wide(args->dx);
    float *partials = (float *)args->workspace;
    cudaError_t status;

    if (args->rows == 0 || n == 0)
        return cudaSuccess;
    status = for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return for_size(n, LaunchBackward<T>{{args->rows, n, chunk_rows, args->shift, (const T *)args->x,
                                              (const T *)args->weight, (const T *)args->dy,
                                              (const T *)args->d_residual, args->rstd,
                                              (T *)args->dx, partials, wide, args->largest},
                                             chunks,
                                             stream});
    });
    return status == cudaSuccess && args->d_weight
               ? rp_cuda_add_partials(partials, chunks, n, args->d_weight, stream)
               : status;
}
