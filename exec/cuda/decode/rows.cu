/*
 * Matmuls of which each row comes out the same whatever other rows there are, as generating needs it: Y = X W^T, W [n,k],
 * X [m,k] of few tokens m; with all else that RpMatmulArgs has in layout NT.
 *
 * Tensor cores by mma.sync.m16n8k16, W on their side of 16 rows, tokens on that of 8. k is cut into 8 parts whatever m is,
 * whose sums are added as a tree; within a part the instructions follow each other in k. A block of 8 warps has 16 to 64
 * rows of W and up to 64 tokens:
 *
 *   few tokens    16 rows: a warp a part          more tokens    64 rows: a warp 4 parts of 16 rows
 *   warp   0   1   2   3   4   5   6   7          warps 0 1 | 2 3 | 4 5 | 6 7: rows
 *   sum    ((p0+p1)+(p2+p3))+((p4+p5)+(p6+p7))    (p0+p1)+(p2+p3) in warp 0, the rest in warp 1
 *
 * Each lane reads 16 bytes of a row: 8 neighbours in k, which two instructions take as if they were theirs, the same of W
 * and X. W goes straight to registers, a stage ahead, X through shared memory. Other storages, sizes and places: a warp has a row of W. fp32 sums. Oracle: exec/host/matmul.c
 */
#include <atomic>

#include "exec/cuda/attention/private.h"
#include "exec/cuda/base/common.cuh"

#define ROW_WARPS 8
#define ROW_PARTS 8
#define ROW_DEPTH 32 /* of k that a step has */
#define ANY_TOKENS 8

__device__ __forceinline__ uint4
load_weights(const void *at)
{
    uint4 value;

    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at));
    return value;
}

template <typename T>
__device__ __forceinline__ void
multiply_fragment(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                  unsigned b1);

template <>
__device__ __forceinline__ void
multiply_fragment<__nv_bfloat16>(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                 unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void
multiply_fragment<__half>(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                          unsigned b0, unsigned b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* 16 bytes to shared memory, or zeros. */
__device__ __forceinline__ void
copy_async(void *to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}

/* A block's share of the work: SHARES warps divide k, and each stage has U steps of every share. */
template <typename T, int NT, int SHARES, int U> struct Tile {
    static constexpr int TOKENS = NT * 8, PIECE = ROW_DEPTH * U; /* elements of a share and token in a stage */
    /* rows of X stand so that lanes of two rows read all banks */
    static constexpr int PITCH = PIECE * SHARES + (PIECE * SHARES * 2 % 128 == 0 ? 32 : 0);
    static constexpr int STAGE = TOKENS * PITCH; /* elements */
    static constexpr int STAGES = 2;
};

/* The steps of a share: those of its parts. */
template <int SHARES>
__device__ __forceinline__ int
first_step(int steps, int share)
{
    return share * (ROW_PARTS / SHARES) * steps / ROW_PARTS;
}

/* A thread copies the same 16 bytes of a stage's rows, of every STEP-th token. */
template <typename T, int NT, int SHARES, int U> struct Loader {
    using Of = Tile<T, NT, SHARES, U>;
    static constexpr int PACKS = Of::PIECE / 8, ROW = PACKS * SHARES; /* 16 bytes each */
    static constexpr int STEP = ROW_WARPS * 32 / ROW, N = Of::TOKENS / STEP;

    const T *from;
    size_t step; /* elements from a token to the thread's next */
    T *to;
    int k_left;    /* elements of k from the thread's first on, within the share */
    unsigned here; /* bits of its tokens that there are */

    __device__ __forceinline__
    Loader(const RpMatmulArgs &args, T *shared, size_t stride, size_t first_token, int steps)
    {
        static_assert(ROW_WARPS * 32 % ROW == 0 && Of::TOKENS % STEP == 0, "threads fill rows");
        const int pack = (int)threadIdx.x % PACKS, share = (int)threadIdx.x / PACKS % SHARES;
        const int token = (int)threadIdx.x / ROW;
        const int first = first_step<SHARES>(steps, share) * ROW_DEPTH + pack * 8;

        here = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            here |= first_token + token + i * STEP < args.m ? 1u << i : 0;
        k_left = min((int)args.k, first_step<SHARES>(steps, share + 1) * ROW_DEPTH) - first;
        from = (const T *)args.a + (first_token + token) * stride + first;
        step = STEP * stride;
        to = shared + token * Of::PITCH + share * Of::PIECE + pack * 8;
    }

    /* The next stage, which is number @stage. */
    __device__ __forceinline__ void
    load(const T *any, int stage)
    {
        T *at = to + stage % Of::STAGES * Of::STAGE;

#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool valid = k_left > 0 && (here >> i & 1) != 0;

            copy_async(at + i * STEP * Of::PITCH, valid ? from + i * step : any, valid);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
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

template <int NT>
__device__ __forceinline__ void
set_sums(float (&to)[NT][4], const float (&a)[NT][4], const float (&b)[NT][4])
{
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            to[i][j] = a[i][j] + b[i][j];
    }
}

/* Ends part @part of a share's N, as the tree has it. @sums: of the part, then 0, or after the last the whole; @one, @two: sums
 * that wait for their neighbours */
template <int NT, int N>
__device__ __forceinline__ void
end_part(int part, float (&sums)[NT][4], float (&one)[NT][4], float (&two)[NT][4])
{
    if (N == 1)
        return;
    if (part % 2 == 1)
        set_sums(sums, one, sums);
    if (part == N - 1) {
        if (N == 4)
            set_sums(sums, two, sums);
        return;
    }
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (part % 2 == 1)
                two[i][j] = sums[i][j];
            else
                one[i][j] = sums[i][j];
            sums[i][j] = 0;
        }
    }
}

/* sums += one step of 16 rows and NT x 8 tokens. @x: of the lane's first token, in shared memory */
template <typename T, int NT, int PITCH>
__device__ __forceinline__ void
multiply_step(float (&sums)[NT][4], const uint4 &low, const uint4 &high, const T *x)
{
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const uint4 b = *(const uint4 *)(x + i * 8 * PITCH);

        multiply_fragment<T>(sums[i], low.x, high.x, low.y, high.y, b.x, b.y);
        multiply_fragment<T>(sums[i], low.z, high.z, low.w, high.w, b.z, b.w);
    }
}

/* Sums of a warp over the parts of its share. */
template <typename T, int NT, int SHARES, int U>
__device__ __forceinline__ void
multiply_share(float (&sums)[NT][4], T *shared, const RpMatmulArgs &args, size_t stride,
               size_t first_token, const T *low, const T *high, int share, int g, int t)
{
    using Of = Tile<T, NT, SHARES, U>;
    constexpr int N = ROW_PARTS / SHARES;
    const int k = (int)args.k, steps = (k + ROW_DEPTH - 1) / ROW_DEPTH;
    const int begin = first_step<SHARES>(steps, share), end = first_step<SHARES>(steps, share + 1);
    const int stages = ((steps + SHARES - 1) / SHARES + U - 1) / U; /* no share has more */
    int part = 0, part_end = (share * N + 1) * steps / ROW_PARTS;
    float one[NT][4], two[NT][4];
    Weights<U> now, next;
    Loader<T, NT, SHARES, U> loader(args, shared, stride, first_token, steps);

#pragma unroll
    for (int i = 0; i < NT; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    while (N > 1 && part < N && part_end == begin) { /* without a step */
        end_part<NT, N>(part++, sums, one, two);
        part_end = (share * N + part + 1) * steps / ROW_PARTS;
    }
    load_weights_of<T, U>(now, low, high, begin, end, k, 8 * t);
    wait_for_previous(); /* weights are nobody's */
    loader.load((const T *)args.a, 0);
    for (int stage = 0; stage < stages; stage++) {
        const T *x = shared + stage % Of::STAGES * Of::STAGE + g * Of::PITCH + share * Of::PIECE + 8 * t;

        load_weights_of<T, U>(next, low, high, begin + (stage + 1) * U, end, k, 8 * t);
        if (stage + 1 < stages)
            loader.load((const T *)args.a, stage + 1);
        else
            asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int step = begin + stage * U + u;

            if (step >= end)
                break;
            multiply_step<T, NT, Of::PITCH>(sums, now.low[u], now.high[u], x + u * ROW_DEPTH);
            while (N > 1 && step + 1 == part_end && part < N) {
                end_part<NT, N>(part++, sums, one, two);
                part_end = (share * N + part + 1) * steps / ROW_PARTS;
            }
        }
        now = next;
        __syncthreads();
    }
}

/* @sum: over k. Stores C[token,row]. */
template <typename T>
__device__ __forceinline__ void
store_sum(const RpMatmulArgs &args, size_t token, size_t row, float sum)
{
    const size_t at = token * (args.c_stride > 0 ? args.c_stride : args.n) + row;
    T *place = (T *)args.c + at;

    if (args.scale != 0)
        sum *= args.scale;
    if (args.accumulate)
        sum += to_float(*place);
    if (args.residual)
        sum += to_float(((const T *)args.residual)[at]);
    if (args.bias)
        sum += to_float(((const T *)args.bias)[row]);
    *place = from_float<T>(sum);
}

/* @ROWS: of W in 16s; ROW_WARPS / ROWS warps share the parts of one. */
template <typename T, int NT, int ROWS, int U>
static __global__ void
__launch_bounds__(ROW_WARPS * 32, ROWS <= 2 ? 2 : 1) multiply_rows(const RpMatmulArgs args)
{
    constexpr int SHARES = ROW_WARPS / ROWS, TOKENS = NT * 8, PITCH = TOKENS + 1;
    extern __shared__ __align__(128) unsigned char rows_shared[];
    float(*parts)[16][PITCH] = (float(*)[16][PITCH])rows_shared; /* once X has been read */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    const size_t first_token = (size_t)blockIdx.x * TOKENS;
    const size_t first_row = (size_t)blockIdx.y * (ROWS * 16);
    const size_t row = first_row + warp / SHARES * 16 + g;
    const size_t stride = args.a_stride > 0 ? args.a_stride : args.k;
    const T *low = (const T *)args.b + min(row, args.n - 1) * args.k;
    const T *high = (const T *)args.b + min(row + 8, args.n - 1) * args.k;
    float sums[NT][4];

    let_next_begin();
    multiply_share<T, NT, SHARES, U>(sums, (T *)rows_shared, args, stride, first_token, low, high,
                                     warp % SHARES, g, t);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            parts[warp][g + j / 2 * 8][i * 8 + 2 * t + j % 2] = sums[i][j];
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < ROWS * 16 * TOKENS; at += ROW_WARPS * 32) {
        const int of = at % (ROWS * 16), token = at / (ROWS * 16), base = of / 16 * SHARES;
        float sum[SHARES];

        if (first_row + of >= args.n || first_token + token >= args.m)
            continue;
#pragma unroll
        for (int s = 0; s < SHARES; s++)
            sum[s] = parts[base + s][of % 16][token];
#pragma unroll
        for (int step = 1; step < SHARES; step *= 2) {
#pragma unroll
            for (int s = 0; s + step < SHARES; s += 2 * step)
                sum[s] += sum[s + step];
        }
        store_sum<T>(args, first_token + token, first_row + of, sum[0]);
    }
}

/* Any storage: X of type A, W of B. */
template <typename A, typename B>
static __global__ void
__launch_bounds__(ROW_WARPS * 32) multiply_any_rows(const RpMatmulArgs args)
{
    const size_t row = (size_t)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    const size_t stride = args.a_stride > 0 ? args.a_stride : args.k;
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
            const float sum = sum_lanes<32>(sums[i]);

            if (lane == 0 && first + i < args.m)
                store_sum<A>(args, first + i, row, sum);
        }
    }
}

template <typename T, int NT, int ROWS, int U>
static cudaError_t
launch_rows(const RpMatmulArgs *args, cudaStream_t stream)
{
    using Of = Tile<T, NT, ROW_WARPS / ROWS, U>;
    static std::atomic<uint64_t> allowed;
    const size_t parts = sizeof(float) * ROW_WARPS * 16 * (NT * 8 + 1);
    const size_t stages = sizeof(T) * Of::STAGES * Of::STAGE;
    const size_t bytes = parts > stages ? parts : stages;
    const dim3 grid((unsigned)ceil_divide(args->m, NT * 8),
                    (unsigned)ceil_divide(args->n, ROWS * 16));
    const cudaError_t status = attention_allow_shared(
        (const void *)multiply_rows<T, NT, ROWS, U>, (int)bytes, &allowed);

    if (status != cudaSuccess)
        return status;
    return launch_early(multiply_rows<T, NT, ROWS, U>, grid, ROW_WARPS * 32, bytes, stream, *args);
}

/* Whether a block may have so much shared memory: GeForce cards have 99 KiB. */
static bool
fits_shared(size_t bytes)
{
    int device, most = 0;

    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
               cudaSuccess &&
           (size_t)most >= bytes;
}

/* More rows of W in a block read X less often; fewer keep all multiprocessors busy, and longer stages those that have one
 * block. As measured on an H200; no number depends on it. */
template <typename T>
static cudaError_t
multiply_fast(const RpMatmulArgs *args, cudaStream_t stream)
{
    const size_t blocks = ceil_divide(args->m, 64) * ceil_divide(args->n, 64);

    if (args->m <= 8)
        return launch_rows<T, 1, 1, 4>(args, stream);
    if (args->m <= 16)
        return launch_rows<T, 2, 1, 4>(args, stream);
    if (args->m <= 32)
        return blocks >= 128 ? launch_rows<T, 4, 4, 2>(args, stream)
                             : launch_rows<T, 4, 1, 2>(args, stream);
    if (blocks >= 96)
        return launch_rows<T, 8, 4, 4>(args, stream);
    if (blocks <= 32 && fits_shared(sizeof(T) * 2 * Tile<T, 8, ROW_WARPS, 2>::STAGE))
        return launch_rows<T, 8, 1, 2>(args, stream);
    return launch_rows<T, 8, 1, 1>(args, stream);
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
    if (args->form != RP_MATMUL_NT || args->c_dtype != args->a_dtype)
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
                <<<grid, ROW_WARPS * 32, 0, stream>>>(*args);
            return cudaGetLastError();
        });
    });
}
