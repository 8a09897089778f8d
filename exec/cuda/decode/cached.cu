/*
 * The cache: keys and values to their rows, and attention of one query of each sequence to the keys of its table.
 * Formulas: exec/kernels/decode-args.h.
 *
 *   a block       a part of RP_CACHE_PART keys, of a kv head and up to 4 of its heads, of one sequence
 *   16 groups     of 8 lanes: group s has keys s, s + 16, s + 32 ... of the part, some at once, each lane 8 elements in 64
 *   merging       groups of a warp by a tree, warps in order, then parts in order: by a block a head and sequence
 *
 * Where one part has all keys of every sequence, its block stores the result itself, which has the same bits. fp32 sums.
 * Oracle: exec/host/decode.c
 */
#include <math.h>

#include "exec/cuda/base/common.cuh"

#define KEY_LANES 8
#define CACHED_THREADS 128
#define KEY_GROUPS (CACHED_THREADS / KEY_LANES)
#define COPY_THREADS 128
#define MOST_CACHED_SIZE 256 /* of a head */

template <typename T>
static __global__ void
__launch_bounds__(COPY_THREADS) copy_rows(const RpCacheRowsArgs args, bool wide)
{
    let_next_begin();
    wait_for_previous();

    const size_t i = blockIdx.x;
    const T *from = blockIdx.y == 0 ? (const T *)args.k + args.tokens[i] * args.k_stride
                                    : (const T *)args.v + args.tokens[i] * args.v_stride;
    T *to = (T *)(blockIdx.y == 0 ? args.keys : args.values) + args.rows[i] * args.width;

    for (size_t at = threadIdx.x * RP_PACK; at < args.width; at += COPY_THREADS * RP_PACK)
        store_pack(to + at, load_pack(from + at, args.width - at, wide), args.width - at, wide);
}

extern "C" cudaError_t
rp_cuda_cache_rows(const RpCacheRowsArgs *args, cudaStream_t stream)
{
    const bool wide = rows_are_wide(args->k, args->k_stride) && rows_are_wide(args->v, args->v_stride) &&
                      rows_are_wide(args->keys, args->width) && is_wide(args->values);

    if (args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        return launch_early(copy_rows<decltype(zero)>, dim3((unsigned)args->n, 2), COPY_THREADS, 0,
                            stream, *args, (bool)wide);
    });
}

/* ---- attention ---- */

/* Result of some keys for one head: out = sum / weight, relative to exp(largest). Lanes have I x 8 of its elements. */
template <int I> struct Partial {
    float largest, weight;
    float sum[I * RP_PACK];
};

template <typename T>
__device__ __forceinline__ float
rise(float from, float to)
{
    return from == -INFINITY ? 0.0f : exp_for<T>(from - to);
}

/* @from: lanes that are @step away */
template <typename T, int I>
__device__ __forceinline__ void
merge_lanes(Partial<I> &of, int step)
{
    const float other = __shfl_xor_sync(0xffffffffu, of.largest, step);
    const float largest = fmaxf(of.largest, other);
    const float mine = rise<T>(of.largest, largest), its = rise<T>(other, largest);

    of.weight = of.weight * mine + __shfl_xor_sync(0xffffffffu, of.weight, step) * its;
#pragma unroll
    for (int i = 0; i < I * RP_PACK; i++)
        of.sum[i] = of.sum[i] * mine + __shfl_xor_sync(0xffffffffu, of.sum[i], step) * its;
    of.largest = largest;
}

/* 16 bytes, or zeros. A branch would make each load wait for the one before. */
__device__ __forceinline__ uint4
load_if(const void *at, bool valid)
{
    uint4 value;

    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.u32 p, %5, 0;\n"
                 "mov.u32 %0, 0;\n"
                 "mov.u32 %1, 0;\n"
                 "mov.u32 %2, 0;\n"
                 "mov.u32 %3, 0;\n"
                 "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
                 : "l"(at), "r"((unsigned)valid)
                 : "memory");
    return value;
}

/* A lane's elements of a row of D; zeros unless @valid. */
template <typename T, int I, bool WIDE>
__device__ __forceinline__ void
load_row(Pack<T> (&row)[I], const T *at, int D, int lane, bool valid)
{
#pragma unroll
    for (int i = 0; i < I; i++) {
        const int first = (i * KEY_LANES + lane) * RP_PACK;

        if (WIDE) {
            uint4 *to = (uint4 *)&row[i];

#pragma unroll
            for (int part = 0; part < (int)(sizeof(Pack<T>) / 16); part++)
                to[part] = load_if((const uint4 *)(at + first) + part, valid && first < D);
        } else {
            row[i] = load_pack(at + first, valid && first < D ? (size_t)(D - first) : 0, false);
        }
    }
}

/* Adds KEYS keys of each group, of which it may not see all. */
template <typename T, int I, int HEADS, int KEYS>
__device__ __forceinline__ void
take_keys(Partial<I> (&of)[HEADS], const float (&q)[HEADS][I * RP_PACK],
          const Pack<T> (&k)[KEYS][I], const Pack<T> (&v)[KEYS][I], const bool (&valid)[KEYS])
{
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float scores[KEYS], largest = of[h].largest;

#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            float score = 0;

#pragma unroll
            for (int i = 0; i < I * RP_PACK; i++)
                score = fmaf(q[h][i], to_float(k[j][i / RP_PACK].at[i % RP_PACK]), score);
            score = sum_lanes<KEY_LANES>(score);
            scores[j] = valid[j] ? score : -INFINITY;
            largest = fmaxf(largest, scores[j]);
        }
        const float old = rise<T>(of[h].largest, largest);

        of[h].weight *= old;
#pragma unroll
        for (int i = 0; i < I * RP_PACK; i++)
            of[h].sum[i] *= old;
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const float p = rise<T>(scores[j], largest);

            of[h].weight += p;
#pragma unroll
            for (int i = 0; i < I * RP_PACK; i++)
                of[h].sum[i] = fmaf(p, to_float(v[j][i / RP_PACK].at[i % RP_PACK]), of[h].sum[i]);
        }
        of[h].largest = largest;
    }
}

/* Bounds of a part's keys that the query sees. */
__device__ __forceinline__ void
visible(const RpCachedAttentionArgs &args, size_t query, int part, int *first, int *end)
{
    const int past = args.positions[query] + 1;
    const int begin = args.window > 0 && past > (int)args.window ? past - (int)args.window : 0;

    *first = max(part * RP_CACHE_PART, begin);
    *end = min((part + 1) * RP_CACHE_PART, past);
}

/* Floats of a part's result: largest, weight, sums. */
__device__ __forceinline__ float *
partial_of(const RpCachedAttentionArgs &args, size_t query, size_t head, size_t parts, size_t part)
{
    return (float *)args.workspace +
           ((query * args.heads + head) * parts + part) * (args.head_size + 2);
}

template <typename T>
__device__ __forceinline__ void
store_out(const RpCachedAttentionArgs &args, size_t query, size_t head, int d, float largest,
          float weight, float sum)
{
    ((T *)args.out)[(query * args.heads + head) * args.head_size + d] = from_float<T>(sum / weight);
    if (d == 0)
        args.lse[head * args.queries + query] = largest + logf(weight);
}

template <typename T, int I, int HEADS, int KEYS, bool WIDE>
static __global__ void
__launch_bounds__(CACHED_THREADS) attend(const RpCachedAttentionArgs args)
{
    __shared__ float shared[CACHED_THREADS / 32][HEADS][I * KEY_LANES * RP_PACK + 2];
    const int D = (int)args.head_size, lane = (int)threadIdx.x % KEY_LANES;
    const int group = (int)threadIdx.x / KEY_LANES, warp = (int)threadIdx.x / 32;
    const int per_kv = (int)(args.heads / args.kv_heads), turns = (per_kv + HEADS - 1) / HEADS;
    const size_t kv_head = blockIdx.y / turns, query = blockIdx.z;
    const size_t head = kv_head * per_kv + blockIdx.y % turns * HEADS;
    const int n_heads = min(HEADS, per_kv - (int)(blockIdx.y % turns) * HEADS);
    const size_t width = args.kv_heads * D;
    float q[HEADS][I * RP_PACK];
    Partial<I> of[HEADS];
    int first, end;

    let_next_begin();
    wait_for_previous();
    visible(args, query, (int)blockIdx.x, &first, &end);
    if (first >= end)
        return;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        Pack<T> row[I];

        load_row<T, I, WIDE>(row, (const T *)args.q + (query * args.heads + head + min(h, n_heads - 1)) * D, D, lane, true);
        of[h].largest = -INFINITY;
        of[h].weight = 0;
#pragma unroll
        for (int i = 0; i < I * RP_PACK; i++) {
            q[h][i] = args.scale * to_float(row[i / RP_PACK].at[i % RP_PACK]);
            of[h].sum[i] = 0;
        }
    }
    /* groups have keys of the part by their number, whichever of these the query sees */
    for (int base = (int)blockIdx.x * RP_CACHE_PART; base < end; base += KEY_GROUPS * KEYS) {
        Pack<T> k[KEYS][I], v[KEYS][I];
        bool valid[KEYS];

        if (base + KEY_GROUPS * KEYS <= first)
            continue;
        /* of one block */
        const size_t row = (size_t)args.tables[query * args.most_blocks + base / RP_CACHE_BLOCK] *
                               RP_CACHE_BLOCK +
                           base % RP_CACHE_BLOCK;

#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const int key = j * KEY_GROUPS + group;
            const size_t at = (row + key) * width + kv_head * D;

            valid[j] = base + key >= first && base + key < end;
            load_row<T, I, WIDE>(k[j], (const T *)args.keys + at, D, lane, valid[j]);
            load_row<T, I, WIDE>(v[j], (const T *)args.values + at, D, lane, valid[j]);
        }
        take_keys<T, I, HEADS, KEYS>(of, q, k, v, valid);
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        merge_lanes<T, I>(of[h], KEY_LANES);
        merge_lanes<T, I>(of[h], 2 * KEY_LANES);
        if (threadIdx.x % 32 >= KEY_LANES)
            continue;
        float *to = shared[warp][h];

        to[0] = of[h].largest;
        to[1] = of[h].weight;
#pragma unroll
        for (int i = 0; i < I * RP_PACK; i++)
            to[2 + (i / RP_PACK * KEY_LANES + lane) * RP_PACK + i % RP_PACK] = of[h].sum[i];
    }
    __syncthreads();
    for (int at = (int)threadIdx.x; at < n_heads * D; at += CACHED_THREADS) {
        const int h = at / D, d = at % D;
        float largest = -INFINITY, weight = 0, sum = 0;

        for (int w = 0; w < CACHED_THREADS / 32; w++)
            largest = fmaxf(largest, shared[w][h][0]);
        for (int w = 0; w < CACHED_THREADS / 32; w++) {
            const float factor = rise<T>(shared[w][h][0], largest);

            weight = fmaf(shared[w][h][1], factor, weight);
            sum = fmaf(shared[w][h][2 + d], factor, sum);
        }
        if (gridDim.x == 1) {
            store_out<T>(args, query, head + h, d, largest, weight, sum);
            continue;
        }
        float *to = partial_of(args, query, head + h, gridDim.x, blockIdx.x);

        to[2 + d] = sum;
        if (d == 0) {
            to[0] = largest;
            to[1] = weight;
        }
    }
}

/* A block has a head of a sequence. */
template <typename T>
static __global__ void
__launch_bounds__(CACHED_THREADS) merge_parts(const RpCachedAttentionArgs args, int parts)
{
    let_next_begin();
    wait_for_previous();
    const size_t head = blockIdx.x, query = blockIdx.y;
    const int past = args.positions[query] + 1;
    const int begin = args.window > 0 && past > (int)args.window ? past - (int)args.window : 0;
    const int first = begin / RP_CACHE_PART, end = (past + RP_CACHE_PART - 1) / RP_CACHE_PART;

    for (int d = (int)threadIdx.x; d < (int)args.head_size; d += CACHED_THREADS) {
        float largest = -INFINITY, weight = 0, sum = 0;

        for (int part = first; part < end; part++)
            largest = fmaxf(largest, partial_of(args, query, head, parts, part)[0]);
        for (int part = first; part < end; part++) {
            const float *of = partial_of(args, query, head, parts, part);
            const float factor = rise<T>(of[0], largest);

            weight = fmaf(of[1], factor, weight);
            sum = fmaf(of[2 + d], factor, sum);
        }
        store_out<T>(args, query, head, d, largest, weight, sum);
    }
}

static size_t
n_parts(const RpCachedAttentionArgs *args)
{
    return ceil_divide(args->longest, RP_CACHE_PART);
}

extern "C" size_t
rp_cuda_attention_cached_workspace(const RpCachedAttentionArgs *args)
{
    return n_parts(args) <= 1 ? 0
                              : args->queries * args->heads * n_parts(args) *
                                    (args->head_size + 2) * sizeof(float);
}

template <typename T, int I, int HEADS, bool WIDE>
static cudaError_t
attend_by(const RpCachedAttentionArgs *args, cudaStream_t stream)
{
    const size_t turns = ceil_divide(args->heads / args->kv_heads, HEADS);
    const dim3 grid((unsigned)n_parts(args), (unsigned)(args->kv_heads * turns),
                    (unsigned)args->queries);
    const cudaError_t status =
        launch_early(attend<T, I, HEADS, (I > 1 || sizeof(T) == 4) ? 2 : 4, WIDE>, grid,
                     CACHED_THREADS, 0, stream, *args);

    if (status != cudaSuccess || grid.x == 1)
        return status;
    return launch_early(merge_parts<T>, dim3((unsigned)args->heads, (unsigned)args->queries),
                        CACHED_THREADS, 0, stream, *args, (int)grid.x);
}

template <typename T, int I, int HEADS>
static cudaError_t
attend_width(const RpCachedAttentionArgs *args, cudaStream_t stream)
{
    if (rows_are_wide(args->q, args->head_size) && is_wide(args->keys) && is_wide(args->values))
        return attend_by<T, I, HEADS, true>(args, stream);
    return attend_by<T, I, HEADS, false>(args, stream);
}

/* The number of heads of a block depends on the model alone. */
template <typename T, int I, int MOST>
static cudaError_t
attend_heads(const RpCachedAttentionArgs *args, cudaStream_t stream)
{
    const size_t heads = args->heads / args->kv_heads;

    if (heads == 1)
        return attend_width<T, I, 1>(args, stream);
    if (heads == 2 || MOST == 2)
        return attend_width<T, I, 2>(args, stream);
    return attend_width<T, I, MOST>(args, stream);
}

extern "C" cudaError_t
rp_cuda_attention_cached(const RpCachedAttentionArgs *args, cudaStream_t stream)
{
    if (args->head_size == 0 || args->head_size > MOST_CACHED_SIZE || args->kv_heads == 0 ||
        args->queries > 65535)
        return cudaErrorInvalidValue;
    if (args->queries == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        if (args->head_size <= 64)
            return attend_heads<T, 1, 4>(args, stream);
        if (args->head_size <= 128)
            return attend_heads<T, 2, 4>(args, stream);
        return attend_heads<T, 4, 2>(args, stream);
    });
}
