/*
 * Matmuls of which each row comes out the same whatever other rows there are, as generating needs it: Y = X W^T, W [n,k],
 * X [m,k] of few tokens m or many; with all else that RpMatmulArgs has in layout NT.
 *
 * Tensor cores by mma.sync.m16n8k16, W on their side of 16 rows, tokens on that of 8. k is cut into 8 parts whatever m is,
 * whose sums are added in order; within a part the instructions follow each other in k:
 *
 *   up to 8 tokens a block has 16 rows of W, and then others, a warp a part of k; W goes straight to registers, a stage
 *                  ahead. Each warp has its part of X in shared memory, and waits for others when sums are added
 *   few tokens     the same, but X comes in stages, too, and all W of 16 rows is on its way to the L2 cache before the
 *                  block waits for those who make X
 *   more tokens    a block has a tile of 64 or 128 rows of W, as many tokens or half, and all of k; both through shared
 *                  memory, all stages but one ahead
 *
 * Each lane reads 16 bytes of a row: 8 neighbours in k, which two instructions take as if they were theirs, the same of W
 * and X. Other storages, sizes and places: a warp has a row of W. fp32 sums. Oracle: exec/host/matmul.c
 */
#include "exec/cuda/decode/row-tiles.cuh"

#define FEW_BLOCKS 2 /* on a multiprocessor */
#define ANY_TOKENS 8
#define LEAST_TOKENS 8 /* of an instruction */

/* ---- few tokens ---- */

/* A block's share of the work: each stage has U steps of every part. */
template <int NT, int U> struct Few {
    static constexpr int TOKENS = NT * 8, PIECE = ROW_DEPTH * U; /* elements of a part and token in a stage */
    /* rows of X stand so that lanes of two rows read all banks */
    static constexpr int PITCH = PIECE * ROW_PARTS + 32;
    static constexpr int STAGES = 2, STAGE_BYTES = TOKENS * PITCH * 2, SUM_PITCH = TOKENS + 1;
    static constexpr int SUM_BYTES = (int)sizeof(float) * ROW_PARTS * 16 * SUM_PITCH;
    static constexpr int BYTES = STAGES * STAGE_BYTES > SUM_BYTES ? STAGES * STAGE_BYTES : SUM_BYTES;

    static_assert(PIECE * ROW_PARTS * 2 % 128 == 0, "a pitch of half the banks more");
};

/* A thread copies the same 16 bytes of a stage's rows, of every STEP-th token. */
template <typename T, int NT, int U> struct Loader {
    using Of = Few<NT, U>;
    static constexpr int PACKS = Of::PIECE / 8, ROW = PACKS * ROW_PARTS; /* 16 bytes each */
    static constexpr int STEP = ROW_THREADS / ROW, N = Of::TOKENS / STEP;

    const T *from;
    size_t step; /* elements from a token to the thread's next */
    uint32_t to;
    int k_left;    /* elements of k from the thread's first on, within the part */
    unsigned here; /* bits of its tokens that there are */

    __device__ __forceinline__
    Loader(const RpMatmulArgs &args, uint32_t shared, size_t first_token, int units)
    {
        static_assert(ROW_THREADS % ROW == 0 && Of::TOKENS % STEP == 0, "threads fill rows");
        const int pack = (int)threadIdx.x % PACKS, part = (int)threadIdx.x / PACKS % ROW_PARTS;
        const int token = (int)threadIdx.x / ROW;
        const int first = first_unit(units, part) * ROW_UNIT * ROW_DEPTH + pack * 8;

        here = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            here |= first_token + token + i * STEP < args.m ? 1u << i : 0;
        k_left = min((int)args.k, first_unit(units, part + 1) * ROW_UNIT * ROW_DEPTH) - first;
        from = (const T *)args.a + (first_token + token) * stride_of(args) + first;
        step = STEP * stride_of(args);
        to = shared + 2 * (token * Of::PITCH + part * Of::PIECE + pack * 8);
    }

    /* The next stage, which is number @stage. */
    __device__ __forceinline__ void
    load(const T *any, int stage)
    {
        const uint32_t at = to + stage % Of::STAGES * Of::STAGE_BYTES;

#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool valid = k_left > 0 && (here >> i & 1) != 0;

            copy_async_16(at + 2 * i * STEP * Of::PITCH, valid ? from + i * step : any, valid);
        }
        copy_async_commit();
        from += Of::PIECE;
        k_left -= Of::PIECE;
    }
};

/* Rows g and g + 8 of W, 8 elements each, of U steps. */
template <int U> struct Weights {
    uint4 low[U], high[U];
};

template <typename T, int U>
__device__ __forceinline__ void
load_weights_of(Weights<U> &w, const T *low, const T *high, int step, int end, int k, int column)
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int at = (step + u) * ROW_DEPTH + column;
        const bool valid = step + u < end && at < k;

        w.low[u] = valid ? load_weights(low + at) : make_uint4(0, 0, 0, 0);
        w.high[u] = valid ? load_weights(high + at) : make_uint4(0, 0, 0, 0);
    }
}

/* Has the L2 cache read what a warp's part has of 16 rows of W, from step @begin to @end. */
template <typename T>
__device__ __forceinline__ void
prefetch_part(const RpMatmulArgs &args, size_t first_row, int begin, int end)
{
    constexpr int LINE = 128 / (int)sizeof(T);
    const int first = begin * ROW_DEPTH, last = min(end * ROW_DEPTH, (int)args.k);
    const int lines = (last - first + LINE - 1) / LINE;

    for (int i = (int)threadIdx.x % 32; i < 16 * lines; i += 32)
        prefetch_line((const T *)args.b + min(first_row + i / lines, args.n - 1) * args.k + first +
                      i % lines * LINE);
}

/* A warp's part of 16 rows of W. */
template <typename T, int U> struct PartOfRows {
    const T *low, *high; /* rows g and g + 8 */
    Weights<U> now;      /* the next steps */

    /* The rows from @first_row on, whose W begins to come. */
    __device__ __forceinline__ void
    begin(const RpMatmulArgs &args, size_t first_row, int begin, int end)
    {
        const int lane = (int)threadIdx.x % 32;

        low = (const T *)args.b + min(first_row + lane / 4, args.n - 1) * args.k;
        high = (const T *)args.b + min(first_row + lane / 4 + 8, args.n - 1) * args.k;
        load_weights_of<T, U>(now, low, high, begin, end, (int)args.k, lane % 4 * 8);
    }
};

/* Sums of a warp over its part, of steps @begin to @end. */
template <typename T, int NT, int U>
__device__ __forceinline__ void
multiply_part(float (&sums)[1][NT][4], PartOfRows<T, U> &rows, const RpMatmulArgs &args,
              size_t first_token, int units, int part, int begin, int end)
{
    using Of = Few<NT, U>;
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const int most = (units + ROW_PARTS - 1) / ROW_PARTS * ROW_UNIT, stages = (most + U - 1) / U;
    Weights<U> next;
    Loader<T, NT, U> loader(args, shared_address(), first_token, units);

    loader.load((const T *)args.a, 0);
    for (int stage = 0; stage < stages; stage++) {
        const uint4 *x = row_shared + stage % Of::STAGES * (Of::STAGE_BYTES / 16) +
                         (g * Of::PITCH + part * Of::PIECE) / 8 + t;

        load_weights_of<T, U>(next, rows.low, rows.high, begin + (stage + 1) * U, end, (int)args.k,
                              8 * t);
        if (stage + 1 < stages)
            loader.load((const T *)args.a, stage + 1);
        else
            copy_async_commit();
        copy_async_wait_but<1>();
        __syncthreads();
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (begin + stage * U + u >= end)
                break;
            const uint4 low[1] = {rows.now.low[u]}, high[1] = {rows.now.high[u]};
            uint4 tokens[NT];

#pragma unroll
            for (int i = 0; i < NT; i++)
                tokens[i] = x[(u * ROW_DEPTH + i * 8 * Of::PITCH) / 8];
            multiply_step<T, 1, NT>(sums, 0, low, high, tokens, zero_of(args));
        }
        rows.now = next;
        __syncthreads();
    }
}

/* A block has every gridDim.y-th 16 rows of W: the next ones are on their way before these are stored. */
template <typename T, int NT, int U>
static __global__ void
__launch_bounds__(ROW_THREADS, FEW_BLOCKS) multiply_rows(const RpMatmulArgs args, bool wide)
{
    using Of = Few<NT, U>;
    float(*parts)[16][Of::SUM_PITCH] =
        (float(*)[16][Of::SUM_PITCH])row_shared; /* once X has been read */
    const int warp = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    const int units = units_of(args), begin = first_unit(units, warp) * ROW_UNIT;
    const int end = first_unit(units, warp + 1) * ROW_UNIT;
    const size_t first_token = (size_t)blockIdx.x * Of::TOKENS;
    PartOfRows<T, U> rows;

    let_next_begin();
    rows.begin(args, (size_t)blockIdx.y * 16, begin, end);
    prefetch_part<T>(args, (size_t)blockIdx.y * 16, begin + U, end);
    wait_for_previous(); /* weights are nobody's */
    for (size_t row = (size_t)blockIdx.y * 16; row < args.n; row += (size_t)gridDim.y * 16) {
        float sums[1][NT][4] = {};

        multiply_part<T, NT, U>(sums, rows, args, first_token, units, warp, begin, end);
        if (row + (size_t)gridDim.y * 16 < args.n) {
            rows.begin(args, row + (size_t)gridDim.y * 16, begin, end);
            prefetch_part<T>(args, row + (size_t)gridDim.y * 16, begin + U, end);
        }
        copy_async_wait();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < NT; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                parts[warp][g + j / 2 * 8][i * 8 + 2 * t + j % 2] = sums[0][i][j];
        }
        __syncthreads();
        for (int at = (int)threadIdx.x; at < 2 * Of::TOKENS; at += ROW_THREADS) {
            const int of = at % 2 * RP_PACK, token = at / 2;
            float sum[RP_PACK] = {};

            if (row + of >= args.n || first_token + token >= args.m)
                continue;
#pragma unroll
            for (int part = 0; part < ROW_PARTS; part++) {
#pragma unroll
                for (int i = 0; i < RP_PACK; i++)
                    sum[i] += parts[part][of + i][token];
            }
            store_sums<T>(args, first_token + token, row + of, sum, args.n - row - of, wide);
        }
        __syncthreads();
    }
}

/* ---- up to 8 tokens ---- */

/* Sums of a block's 16 rows: those of two turns stand in front of X. */
struct LeastSums {
    float of[ROW_PARTS][16][LEAST_TOKENS + 1];
};

/* Elements from a token of X to the next: lanes of two tokens read all banks. */
__host__ __device__ __forceinline__ int
pitch_of(const RpMatmulArgs &args)
{
    constexpr int UNIT = ROW_UNIT * ROW_DEPTH;

    return ((int)args.k + UNIT - 1) / UNIT * UNIT + 32;
}

static size_t
least_bytes(const RpMatmulArgs &args)
{
    return 2 * sizeof(LeastSums) + args.m * (size_t)pitch_of(args) * 2;
}

/* Copies the warp's part of X, from step @begin to @end. */
template <typename T>
__device__ __forceinline__ void
copy_part(const RpMatmulArgs &args, int begin, int end)
{
    const int first = begin * ROW_DEPTH + (int)threadIdx.x % 32 * 8, k = (int)args.k;

    for (int token = 0; token < (int)args.m; token++) {
        const T *x = (const T *)args.a + token * stride_of(args);
        const uint32_t to =
            shared_address() + 2 * (uint32_t)(sizeof(LeastSums) + token * pitch_of(args));

        for (int at = first; at < end * ROW_DEPTH; at += 32 * 8)
            copy_async_16(to + 2 * at, at < k ? x + at : x, at < k);
    }
    copy_async_wait();
    __syncwarp();
}

/* Adds the parts of row threadIdx.x % 16 and token threadIdx.x / 16, and stores them. */
template <typename T>
__device__ __forceinline__ void
add_parts(const RpMatmulArgs &args, size_t first_row, const LeastSums &sums, bool wide)
{
    const int token = (int)threadIdx.x / 16;
    const size_t row = first_row + threadIdx.x % 16 / RP_PACK * RP_PACK;
    float sum = 0, pack[RP_PACK];

#pragma unroll
    for (int part = 0; part < ROW_PARTS; part++)
        sum += sums.of[part][threadIdx.x % 16][token];
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        pack[i] = __shfl_sync(0xffffffffu, sum, i, RP_PACK);
    if (threadIdx.x % RP_PACK == 0 && token < (int)args.m && row < args.n)
        store_sums<T>(args, token, row, pack, args.n - row, wide);
}

/* A block has every gridDim.x-th 16 rows of W, as multiply_rows has. */
template <typename T, int U>
static __global__ void
__launch_bounds__(ROW_THREADS, FEW_BLOCKS) multiply_least_rows(const RpMatmulArgs args, bool wide)
{
    LeastSums *const sums = (LeastSums *)row_shared;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int units = units_of(args), begin = first_unit(units, warp) * ROW_UNIT;
    const int end = first_unit(units, warp + 1) * ROW_UNIT;
    const uint4 *x = (const uint4 *)(sums + 2) + (g * pitch_of(args) + begin * ROW_DEPTH) / 8 + t;
    const size_t stride = (size_t)gridDim.x * 16;
    PartOfRows<T, U> rows;
    int turn = 0;

    let_next_begin();
    rows.begin(args, (size_t)blockIdx.x * 16, begin, end);
    wait_for_previous(); /* weights are nobody's */
    copy_part<T>(args, begin, end);
    for (size_t row = (size_t)blockIdx.x * 16; row < args.n; row += stride, turn ^= 1) {
        float sum[1][1][4] = {};

        for (int step = begin; step < end; step += U) {
            Weights<U> next;

            load_weights_of<T, U>(next, rows.low, rows.high, step + U, end, (int)args.k, 8 * t);
#pragma unroll
            for (int u = 0; u < U; u++) {
                if (step + u >= end)
                    break;
                const uint4 low[1] = {rows.now.low[u]}, high[1] = {rows.now.high[u]};
                const uint4 tokens[1] = {g < (int)args.m ? x[(step - begin + u) * (ROW_DEPTH / 8)]
                                                         : make_uint4(0, 0, 0, 0)};

                multiply_step<T, 1, 1>(sum, 0, low, high, tokens, zero_of(args));
            }
            rows.now = next;
        }
        if (row + stride < args.n)
            rows.begin(args, row + stride, begin, end);
#pragma unroll
        for (int j = 0; j < 4; j++)
            sums[turn].of[warp][g + j / 2 * 8][2 * t + j % 2] = sum[0][0][j];
        __syncthreads();
        if (threadIdx.x < 16 * LEAST_TOKENS)
            add_parts<T>(args, row, sums[turn], wide);
    }
}

/* ---- any storage ---- */

/* X of type A, W of B. */
template <typename A, typename B>
static __global__ void
__launch_bounds__(ROW_WARPS * 32) multiply_any_rows(const RpMatmulArgs args)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    const size_t stride = stride_of(args);
    const int lane = (int)threadIdx.x % 32;

    if (row >= args.n)
        return;
    const B *w = (const B *)args.b + row * args.k;

    for (size_t first = (size_t)blockIdx.y * ANY_TOKENS; first < args.m;
         first += (size_t)gridDim.y * ANY_TOKENS) {
        float sums[ANY_TOKENS] = {};

        for (size_t l = lane; l < args.k; l += 32) {
            const float weight = to_float(w[l]);

#pragma unroll
            for (int i = 0; i < ANY_TOKENS; i++)
                if (first + i < args.m)
                    sums[i] =
                        fmaf(to_float(((const A *)args.a)[(first + i) * stride + l]), weight, sums[i]);
        }
#pragma unroll
        for (int i = 0; i < ANY_TOKENS; i++) {
            float sum[RP_PACK] = {sum_lanes<32>(sums[i])};

            if (lane == 0 && first + i < args.m)
                store_sums<A>(args, first + i, row, sum, 1, false);
        }
    }
}

/* ---- launching ---- */

/* Whether what is stored may be in 16-byte pieces. */
static bool
stores_wide(const RpMatmulArgs *args)
{
    return rows_are_wide(args->c, args->n) && args->c_stride % RP_PACK == 0 && is_wide(args->residual) &&
           is_wide(args->bias);
}

static size_t
multiprocessors()
{
    int device, count = 0;

    if (cudaGetDevice(&device) == cudaSuccess)
        (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count > 0 ? (size_t)count : 1;
}

/* @blocks: for each @tokens */
static cudaError_t
launch_rows(void (*kernel)(RpMatmulArgs, bool), size_t blocks, size_t tokens, int bytes,
            std::atomic<uint64_t> *allowed, const RpMatmulArgs *args, cudaStream_t stream)
{
    const dim3 grid((unsigned)ceil_divide(args->m, tokens), (unsigned)blocks);
    const cudaError_t status = attention_allow_shared((const void *)kernel, bytes, allowed);

    if (status != cudaSuccess)
        return status;
    return launch_early(kernel, grid, ROW_THREADS, (size_t)bytes, stream, *args, stores_wide(args));
}

template <typename T, int NT, int U>
static cudaError_t
launch_few(const RpMatmulArgs *args, cudaStream_t stream)
{
    using Of = Few<NT, U>;
    static std::atomic<uint64_t> allowed;
    const size_t wanted = ceil_divide(args->n, 16), most = multiprocessors() * FEW_BLOCKS;
    const size_t turns = args->m > Of::TOKENS ? 1 : ceil_divide(wanted, most);

    return launch_rows(multiply_rows<T, NT, U>, ceil_divide(wanted, turns), Of::TOKENS,
                       Of::BYTES, &allowed, args, stream);
}

template <typename T, int U>
static cudaError_t
launch_least(const RpMatmulArgs *args, cudaStream_t stream)
{
    const size_t wanted = ceil_divide(args->n, 16), most = multiprocessors() * FEW_BLOCKS;
    const size_t blocks = ceil_divide(wanted, ceil_divide(wanted, most));

    return launch_early(multiply_least_rows<T, U>, dim3((unsigned)blocks), ROW_THREADS,
                        least_bytes(*args), stream, *args, stores_wide(args));
}

template <typename S>
static cudaError_t
launch_tiles(const RpMatmulArgs *args, cudaStream_t stream)
{
    static std::atomic<uint64_t> allowed;

    return launch_rows(multiply_row_tiles<S>, ceil_divide(args->n, S::ROWS), S::TOKENS, S::BYTES,
                       &allowed, args, stream);
}

/* Whether a multiprocessor is one of those that multiply so fast that tiles must be large: they have more shared memory
 * than GeForce cards' 99 KiB. */
static bool
is_large(size_t bytes)
{
    int device, most = 0;

    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
               cudaSuccess &&
           (size_t)most >= bytes;
}

/* Larger tiles read less, smaller ones keep all multiprocessors busy. As measured on an H200; no number depends on it. */
template <typename T>
static cudaError_t
multiply_fast(const RpMatmulArgs *args, cudaStream_t stream)
{
    using Wide = RowTile<T, 2, 8, 4, 2, 3, 1>;
    using Narrow = RowTile<T, 2, 2, 2, 4, 5, 2>;
    using Low = RowTile<T, 1, 2, 4, 2, 6, 2>;
    const bool large = is_large(Few<8, 2>::BYTES);
    const size_t tiles = ceil_divide(args->m, 64) * ceil_divide(args->n, 64);

    if (args->m <= LEAST_TOKENS && least_bytes(*args) <= 48 * 1024)
        return launch_least<T, 4>(args, stream);
    if (args->m <= 8)
        return launch_few<T, 1, 4>(args, stream);
    if (args->m <= 16)
        return launch_few<T, 2, 4>(args, stream);
    if (args->m <= 32)
        return tiles >= 128 ? launch_tiles<Low>(args, stream) : launch_few<T, 4, 2>(args, stream);
    if (args->m > 64 && tiles >= (large ? 160 : 2048))
        return launch_tiles<Wide>(args, stream);
    if (tiles >= 96)
        return launch_tiles<Narrow>(args, stream);
    return tiles <= 32 && large ? launch_few<T, 8, 2>(args, stream) : launch_few<T, 8, 1>(args, stream);
}

static bool
is_fast(const RpMatmulArgs *args)
{
    return args->a_dtype != RP_DTYPE_FP32 && args->a_dtype == args->b_dtype &&
           args->c_dtype == args->a_dtype && args->k % 8 == 0 && args->a_stride % 8 == 0 &&
           is_wide(args->a) && is_wide(args->b) && args->k < ((size_t)1 << 30) &&
           ceil_divide(args->n, 16) < 65536;
}

extern "C" cudaError_t
rp_cuda_matmul_rows(const RpMatmulArgs *args, cudaStream_t stream)
{
    if (args->form != RP_MATMUL_NT || args->c_dtype != args->a_dtype || !args->alone) /* zero_of() */
        return cudaErrorInvalidValue;
    if (args->m == 0 || args->n == 0)
        return cudaSuccess;
    if (is_fast(args))
        return args->a_dtype == RP_DTYPE_BF16 ? multiply_fast<__nv_bfloat16>(args, stream)
                                              : multiply_fast<__half>(args, stream);
    return for_dtype(args->a_dtype, [=](auto x) {
        return for_dtype(args->b_dtype, [=](auto w) {
            const size_t turns = ceil_divide(args->m, ANY_TOKENS);
            const dim3 grid((unsigned)ceil_divide(args->n, ROW_WARPS),
                            (unsigned)(turns < 1024 ? turns : 1024));

            multiply_any_rows<decltype(x), decltype(w)>
                <<<grid, ROW_THREADS, 0, stream>>>(*args);
            return cudaGetLastError();
        });
    });
}
