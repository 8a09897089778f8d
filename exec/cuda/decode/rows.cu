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
 * and X. Other storages, sizes and places: a warp has a row of W. fp32 sums. Oracle: exec/host/matmul.c
 */
#include "exec/cuda/base/common.cuh"

#define WARPS 8
#define PARTS 8
#define DEPTH 32 /* of k that a step has */
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

/* Rows g and g + 8 of W, 8 elements each, of U steps. */
template <int U> struct Weights {
    uint4 low[U], high[U];
};

template <typename T, int U>
__device__ __forceinline__ void
load_steps(Weights<U> &w, const T *low, const T *high, int step, int end, int k, int column)
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int at = (step + u) * DEPTH + column;
        const bool valid = step + u < end && at < k;

        w.low[u] = valid ? load_weights(low + at) : make_uint4(0, 0, 0, 0);
        w.high[u] = valid ? load_weights(high + at) : make_uint4(0, 0, 0, 0);
    }
}

/* sums += steps @step to @step + U of 16 rows and NT x 8 tokens */
template <typename T, int NT, int U>
__device__ __forceinline__ void
multiply_steps(float (&sums)[NT][4], const Weights<U> &w, const T *const (&x)[NT],
               const bool (&valid)[NT], int step, int end, int k, int column)
{
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int at = (step + u) * DEPTH + column;
        const bool inside = step + u < end && at < k;
        uint4 b[NT];

#pragma unroll
        for (int i = 0; i < NT; i++)
            b[i] = inside && valid[i] ? __ldg((const uint4 *)(x[i] + at)) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            multiply_fragment<T>(sums[i], w.low[u].x, w.high[u].x, w.low[u].y, w.high[u].y, b[i].x,
                                 b[i].y);
            multiply_fragment<T>(sums[i], w.low[u].z, w.high[u].z, w.low[u].w, w.high[u].w, b[i].z,
                                 b[i].w);
        }
    }
}

template <typename T, int NT, int U>
__device__ __forceinline__ void
multiply_part(float (&sums)[NT][4], const T *low, const T *high, const T *const (&x)[NT],
              const bool (&valid)[NT], int begin, int end, int k, int column)
{
    Weights<U> now, next;

#pragma unroll
    for (int i = 0; i < NT; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    load_steps<T, U>(now, low, high, begin, end, k, column);
    for (int step = begin; step < end; step += U) {
        load_steps<T, U>(next, low, high, step + U, end, k, column);
        multiply_steps<T, NT, U>(sums, now, x, valid, step, end, k, column);
        now = next;
    }
}

/* The tree of a warp's N parts from @part on. */
template <typename T, int NT, int U, int N> struct Tree {
    static __device__ __forceinline__ void
    sum(float (&sums)[NT][4], const T *low, const T *high, const T *const (&x)[NT],
        const bool (&valid)[NT], int part, int steps, int k, int column)
    {
        float others[NT][4];

        Tree<T, NT, U, N / 2>::sum(sums, low, high, x, valid, part, steps, k, column);
        Tree<T, NT, U, N / 2>::sum(others, low, high, x, valid, part + N / 2, steps, k, column);
#pragma unroll
        for (int i = 0; i < NT; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[i][j] += others[i][j];
        }
    }
};
template <typename T, int NT, int U> struct Tree<T, NT, U, 1> {
    static __device__ __forceinline__ void
    sum(float (&sums)[NT][4], const T *low, const T *high, const T *const (&x)[NT],
        const bool (&valid)[NT], int part, int steps, int k, int column)
    {
        multiply_part<T, NT, U>(sums, low, high, x, valid, part * steps / PARTS,
                                (part + 1) * steps / PARTS, k, column);
    }
};

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

/* @ROWS: of W in 16s; WARPS / ROWS warps share the parts of one. */
template <typename T, int NT, int ROWS, int U>
static __global__ void
__launch_bounds__(WARPS * 32) multiply_rows(const RpMatmulArgs args)
{
    constexpr int SHARES = WARPS / ROWS, TOKENS = NT * 8, PITCH = TOKENS + 1;
    __shared__ float shared[WARPS][16][PITCH];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4, share = warp % SHARES;
    const size_t first_token = (size_t)blockIdx.x * TOKENS;
    const size_t first_row = (size_t)blockIdx.y * (ROWS * 16);
    const size_t row = first_row + warp / SHARES * 16 + g;
    const size_t stride = args.a_stride > 0 ? args.a_stride : args.k;
    const T *low = (const T *)args.b + min(row, args.n - 1) * args.k;
    const T *high = (const T *)args.b + min(row + 8, args.n - 1) * args.k;
    const int k = (int)args.k, steps = (k + DEPTH - 1) / DEPTH;
    const T *x[NT];
    bool valid[NT];
    float sums[NT][4];

#pragma unroll
    for (int i = 0; i < NT; i++) {
        const size_t token = first_token + i * 8 + g;

        valid[i] = token < args.m;
        x[i] = (const T *)args.a + (valid[i] ? token : 0) * stride;
    }
    Tree<T, NT, U, PARTS / SHARES>::sum(sums, low, high, x, valid, share * (PARTS / SHARES), steps,
                                        k, 8 * t);
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
            shared[warp][g + j / 2 * 8][i * 8 + 2 * t + j % 2] = sums[i][j];
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < ROWS * 16 * TOKENS; at += WARPS * 32) {
        const int of = at % (ROWS * 16), token = at / (ROWS * 16), base = of / 16 * SHARES;
        float parts[SHARES];

        if (first_row + of >= args.n || first_token + token >= args.m)
            continue;
#pragma unroll
        for (int s = 0; s < SHARES; s++)
            parts[s] = shared[base + s][of % 16][token];
#pragma unroll
        for (int step = 1; step < SHARES; step *= 2) {
#pragma unroll
            for (int s = 0; s + step < SHARES; s += 2 * step)
                parts[s] += parts[s + step];
        }
        store_sum<T>(args, first_token + token, first_row + of, parts[0]);
    }
}

/* Any storage: X of type A, W of B. */
template <typename A, typename B>
static __global__ void
__launch_bounds__(WARPS * 32) multiply_any_rows(const RpMatmulArgs args)
{
    const size_t row = (size_t)blockIdx.x * WARPS + threadIdx.x / 32;
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
    const dim3 grid((unsigned)ceil_divide(args->m, NT * 8), (unsigned)ceil_divide(args->n, ROWS * 16));

    multiply_rows<T, NT, ROWS, U><<<grid, WARPS * 32, 0, stream>>>(*args);
    return cudaGetLastError();
}

/* More rows of W in a block read X less often; fewer keep all multiprocessors busy. No number depends on it. */
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
        return blocks >= 128 ? launch_rows<T, 4, 2, 2>(args, stream)
                             : launch_rows<T, 4, 1, 2>(args, stream);
    if (blocks >= 128)
        return launch_rows<T, 8, 4, 1>(args, stream);
    return blocks >= 64 ? launch_rows<T, 8, 2, 1>(args, stream)
                        : launch_rows<T, 8, 1, 2>(args, stream);
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
            const dim3 grid((unsigned)ceil_divide(args->n, WARPS),
                            (unsigned)(turns < 1024 ? turns : 1024));

            multiply_any_rows<decltype(x), decltype(w)>
                <<<grid, WARPS * 32, 0, stream>>>(*args);
            return cudaGetLastError();
        });
    });
}
