/*
 * The cache: keys and values to their rows, and attention of one query of each sequence to the keys of its table.
 * Formulas: exec/kernels/decode-args.h.
 *
 *   a block       a part of RP_CACHE_PART keys, of a kv head and up to 4 of its heads, of one sequence
 *   16 groups     of 8 lanes: group s has keys s, s + 16, s + 32 ... of the part, some at a turn, each lane 8 elements in
 *                 64, which it reads STAGES - 1 turns before it takes them
 *   merging       groups of a warp by a tree, warps in order, then parts in order: by a block a head and sequence
 *
 * Where one part has all keys of every sequence, its block stores the result itself, which has the same bits. fp32 sums.
 * Oracle: exec/host/decode.c
 */
#include <math.h>

#include <atomic>

#include "exec/cuda/attention/private.h"
#include "exec/cuda/base/common.cuh"
#include "exec/cuda/grouped/mma.cuh"

#define KEY_LANES 8
#define CACHED_THREADS 128
#define KEY_GROUPS (CACHED_THREADS / KEY_LANES)
#define COPY_THREADS 128
#define MOST_CACHED_SIZE 256 /* of a head */
#define IDLE_BLOCKS 128      /* so many of them leave multiprocessors free; no number depends on it */

template <typename T>
static __global__ void
__launch_bounds__(COPY_THREADS) copy_rows(const RpCacheRowsArgs args, bool wide)
{
    let_next_begin();

    const size_t i = blockIdx.x;
    const T *from = blockIdx.y == 0 ? (const T *)args.k + args.tokens[i] * args.k_stride
                                    : (const T *)args.v + args.tokens[i] * args.v_stride;
    T *to = (T *)(blockIdx.y == 0 ? args.keys : args.values) + args.rows[i] * args.width;

    wait_for_previous(); /* who is older than the call's arrays */
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

/* A lane's elements of a row of D. */
template <typename T, int I>
__device__ __forceinline__ void
load_row(Pack<T> (&row)[I], const T *at, int D, int lane, bool wide)
{
#pragma unroll
    for (int i = 0; i < I; i++) {
        const int first = (i * KEY_LANES + lane) * RP_PACK;

        row[i] = load_pack(at + first, first < D ? (size_t)(D - first) : 0, wide);
    }
}

/* Each thread's places for KEYS keys of its group: of STAGES turns in shared memory, or of two in registers, which are
 * sooner there, but as many blocks do not fit onto a multiprocessor. */
template <typename T, int I, bool SHARED_> struct KeyRing {
    static constexpr bool SHARED = SHARED_;
    static constexpr int PITCH = SHARED ? CACHED_THREADS : 1;              /* from a piece to the next */
    static constexpr int WORDS = (int)sizeof(Pack<T>) / 16;                /* 16 bytes each */
    static constexpr int KEYS = I * WORDS < 4 ? 4 / (I * WORDS) : 1;       /* of a turn */
    static constexpr int PIECES = KEYS * 2 * I * WORDS;                    /* of a turn and thread */
    static constexpr int STAGES = PIECES == 8 && SHARED ? 3 : 2;           /* two blocks of a GeForce card */
    static constexpr int STAGE = PIECES * PITCH, STEP = KEY_GROUPS * KEYS;
    static constexpr int BYTES = STAGES * PIECES * CACHED_THREADS * 16;
};

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

/* One of both rows of a key to its place. */
template <typename Ring, typename T, int I, bool WIDE>
__device__ __forceinline__ void
copy_row(uint4 *to, const T *at, int D, int lane, bool valid)
{
    constexpr int WORDS = Ring::WORDS;

#pragma unroll
    for (int i = 0; i < I; i++) {
        const int first = (i * KEY_LANES + lane) * RP_PACK;
        uint4 *place = to + i * WORDS * Ring::PITCH;

        if (WIDE) {
#pragma unroll
            for (int word = 0; word < WORDS; word++) {
                const uint4 *source = (const uint4 *)(at + first) + word;

                if constexpr (Ring::SHARED)
                    copy_async_16((uint32_t)__cvta_generic_to_shared(place + word * Ring::PITCH),
                                  source, valid && first < D);
                else
                    place[word] = load_if(source, valid && first < D);
            }
        } else {
            const Pack<T> pack = load_pack(at + first, valid && first < D ? (size_t)(D - first) : 0, false);

#pragma unroll
            for (int word = 0; word < WORDS; word++)
                place[word * Ring::PITCH] = ((const uint4 *)&pack)[word];
        }
    }
}

template <typename Ring, typename T, int I>
__device__ __forceinline__ void
read_row(float (&row)[I * RP_PACK], const uint4 *from)
{
    constexpr int WORDS = Ring::WORDS;

#pragma unroll
    for (int i = 0; i < I; i++) {
        Pack<T> pack;

#pragma unroll
        for (int word = 0; word < WORDS; word++)
            ((uint4 *)&pack)[word] = from[(i * WORDS + word) * Ring::PITCH];
#pragma unroll
        for (int e = 0; e < RP_PACK; e++)
            row[i * RP_PACK + e] = to_float(pack.at[e]);
    }
}

/* Adds a turn's keys, of which the query sees those from @first on, before @end. @base: of the thread's first; @from:
 * its place */
template <typename Ring, typename T, int I, int HEADS>
__device__ __forceinline__ void
take_keys(Partial<I> (&of)[HEADS], const float (&q)[HEADS][I * RP_PACK], const uint4 *from,
          int base, int first, int end)
{
    constexpr int KEYS = Ring::KEYS, ROW = I * Ring::WORDS * Ring::PITCH;
    float scores[HEADS][KEYS], row[I * RP_PACK];

#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        const int key = base + j * KEY_GROUPS;

        read_row<Ring, T, I>(row, from + j * 2 * ROW);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float score = 0;

#pragma unroll
            for (int i = 0; i < I * RP_PACK; i++)
                score = fmaf(q[h][i], row[i], score);
            score = sum_lanes<KEY_LANES>(score);
            scores[h][j] = key >= first && key < end ? score : -INFINITY;
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float largest = of[h].largest;

#pragma unroll
        for (int j = 0; j < KEYS; j++)
            largest = fmaxf(largest, scores[h][j]);
        const float old = rise<T>(of[h].largest, largest);

        of[h].largest = largest;
        of[h].weight = __fmul_rn(of[h].weight, old);
#pragma unroll
        for (int i = 0; i < I * RP_PACK; i++)
            of[h].sum[i] = __fmul_rn(of[h].sum[i], old);
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            scores[h][j] = rise<T>(scores[h][j], largest);
            of[h].weight += scores[h][j];
        }
    }
#pragma unroll
    for (int j = 0; j < KEYS; j++) {
        read_row<Ring, T, I>(row, from + (j * 2 + 1) * ROW);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
#pragma unroll
            for (int i = 0; i < I * RP_PACK; i++)
                of[h].sum[i] = fmaf(scores[h][j], row[i], of[h].sum[i]);
        }
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

template <typename T, int I, int HEADS, bool WIDE, bool SHARED>
static __global__ void
__launch_bounds__(CACHED_THREADS, HEADS * I > 4 || sizeof(T) == 4 || !SHARED ? 2 : 4)
    attend(const RpCachedAttentionArgs args)
{
    using Ring = KeyRing<T, I, SHARED>;
    extern __shared__ __align__(16) uint4 cached_ring[];
    __shared__ int blocks[RP_CACHE_PART / RP_CACHE_BLOCK];
    float(*shared)[HEADS][I * KEY_LANES * RP_PACK + 2] =
        (float(*)[HEADS][I * KEY_LANES * RP_PACK + 2])cached_ring; /* once keys have been taken */
    const int D = (int)args.head_size, lane = (int)threadIdx.x % KEY_LANES;
    const int group = (int)threadIdx.x / KEY_LANES, warp = (int)threadIdx.x / 32;
    const int per_kv = (int)(args.heads / args.kv_heads), turns = (per_kv + HEADS - 1) / HEADS;
    const size_t kv_head = blockIdx.y / turns, query = blockIdx.z;
    const size_t head = kv_head * per_kv + blockIdx.y % turns * HEADS;
    const int n_heads = min(HEADS, per_kv - (int)(blockIdx.y % turns) * HEADS);
    const size_t width = args.kv_heads * D;
    const int part = (int)blockIdx.x * RP_CACHE_PART;
    float q[HEADS][I * RP_PACK];
    Partial<I> of[HEADS];
    uint4 next[SHARED ? 1 : Ring::PIECES];
    int first, end;

    let_next_begin();
    visible(args, query, (int)blockIdx.x, &first, &end);
    if (first >= end)
        return;
    if ((int)threadIdx.x * RP_CACHE_BLOCK < end - part)
        blocks[threadIdx.x] =
            args.tables[query * args.most_blocks + part / RP_CACHE_BLOCK + threadIdx.x];
    __syncthreads();
    /* few blocks wait for each key: these come to the L2 cache while others are waited for */
    for (int key = first + (int)threadIdx.x; !SHARED && key < end; key += CACHED_THREADS) {
        const size_t block = (size_t)blocks[(key - part) / RP_CACHE_BLOCK];
        const size_t at = (block * RP_CACHE_BLOCK + key % RP_CACHE_BLOCK) * width + kv_head * D;

        for (int d = 0; d < D; d += 128 / (int)sizeof(T)) {
            prefetch_line((const T *)args.keys + at + d);
            prefetch_line((const T *)args.values + at + d);
        }
    }
    wait_for_previous(); /* who is older than the call's arrays */

    /* groups have keys of the part by their number, whichever of these the query sees */
    const int begin = part + (first - part) / Ring::STEP * Ring::STEP;
    auto copy = [&](int turn) {
        const int base = begin + turn * Ring::STEP;

        if (base < end) {
            uint4 *to =
                SHARED ? cached_ring + turn % Ring::STAGES * Ring::STAGE + threadIdx.x : next;
            const size_t block = (size_t)blocks[(base - part) / RP_CACHE_BLOCK];

#pragma unroll
            for (int j = 0; j < Ring::KEYS; j++) {
                const int key = base + j * KEY_GROUPS + group;
                const size_t row = block * RP_CACHE_BLOCK + key % RP_CACHE_BLOCK;
                const bool valid = key >= first && key < end;

#pragma unroll
                for (int of_v = 0; of_v < 2; of_v++)
                    copy_row<Ring, T, I, WIDE>(
                        to + (j * 2 + of_v) * I * Ring::WORDS * Ring::PITCH,
                        (const T *)(of_v ? args.values : args.keys) + row * width + kv_head * D, D,
                        lane, valid);
            }
        }
        copy_async_commit();
    };

#pragma unroll
    for (int turn = 0; turn < Ring::STAGES - 1; turn++)
        copy(turn);
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        Pack<T> row[I];

        load_row<T, I>(row, (const T *)args.q + (query * args.heads + head + min(h, n_heads - 1)) * D,
                       D, lane, WIDE);
        of[h].largest = -INFINITY;
        of[h].weight = 0;
#pragma unroll
        for (int i = 0; i < I * RP_PACK; i++) {
            q[h][i] = args.scale * to_float(row[i / RP_PACK].at[i % RP_PACK]);
            of[h].sum[i] = 0;
        }
    }
    for (int turn = 0; begin + turn * Ring::STEP < end; turn++) {
        uint4 now[SHARED ? 1 : Ring::PIECES];

#pragma unroll
        for (int i = 0; !SHARED && i < Ring::PIECES; i++)
            now[i] = next[i];
        copy(turn + Ring::STAGES - 1);
        copy_async_wait_but<Ring::STAGES - 1>();
        take_keys<Ring, T, I, HEADS>(
            of, q, SHARED ? cached_ring + turn % Ring::STAGES * Ring::STAGE + threadIdx.x : now,
            begin + turn * Ring::STEP + group, first, end);
    }
    copy_async_wait();
    __syncthreads();
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

    const size_t head = blockIdx.x, query = blockIdx.y;
    const int past = args.positions[query] + 1;
    const int begin = args.window > 0 && past > (int)args.window ? past - (int)args.window : 0;
    const int first = begin / RP_CACHE_PART, end = (past + RP_CACHE_PART - 1) / RP_CACHE_PART;

    wait_for_previous(); /* who is older than the call's arrays */
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

template <typename T, int I, int HEADS, bool WIDE, bool SHARED>
static cudaError_t
attend_by(const RpCachedAttentionArgs *args, cudaStream_t stream)
{
    const size_t turns = ceil_divide(args->heads / args->kv_heads, HEADS);
    const dim3 grid((unsigned)n_parts(args), (unsigned)(args->kv_heads * turns),
                    (unsigned)args->queries);
    constexpr int MERGED = (int)sizeof(float) * CACHED_THREADS / 32 * HEADS * (I * KEY_LANES * RP_PACK + 2);
    constexpr int BYTES = SHARED ? KeyRing<T, I, true>::BYTES : MERGED;
    static std::atomic<uint64_t> allowed;
    cudaError_t status =
        attention_allow_shared((const void *)attend<T, I, HEADS, WIDE, SHARED>, BYTES, &allowed);

    if (status == cudaSuccess)
        status = launch_early(attend<T, I, HEADS, WIDE, SHARED>, grid, CACHED_THREADS, BYTES, stream, *args);
    if (status != cudaSuccess || grid.x == 1)
        return status;
    return launch_early(merge_parts<T>, dim3((unsigned)args->heads, (unsigned)args->queries),
                        CACHED_THREADS, 0, stream, *args, (int)grid.x);
}

template <typename T, int I, int HEADS>
static cudaError_t
attend_width(const RpCachedAttentionArgs *args, cudaStream_t stream)
{
    const bool few = args->queries * args->kv_heads * n_parts(args) <= IDLE_BLOCKS;

    if (!rows_are_wide(args->q, args->head_size) || !is_wide(args->keys) || !is_wide(args->values))
        return attend_by<T, I, HEADS, false, true>(args, stream);
    return few ? attend_by<T, I, HEADS, true, false>(args, stream)
               : attend_by<T, I, HEADS, true, true>(args, stream);
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
