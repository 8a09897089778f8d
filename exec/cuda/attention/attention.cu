/*
 * Attention for any head size up to 3072 and any storage, and the choice between that and tensor
 * cores: bf16 and fp16, D of 64, 128 or 256, scale > 0, arrays but `out` at multiples of 16 bytes. Which
 * one runs depends on sizes and alignment, never on values. Formulas: RpAttentionArgs.
 *
 * q, out, d_out, dq: [T,H,D]; k, v, dk, dv: [T,K,D], v, dq, dk, dv also as columns of wider rows;
 * lse, delta: [H,T] fp32. All =. Arithmetic and sums fp32; dk, dv: over the group's heads, in
 * order. Backward's workspace is delta, and counts and sums for tensor cores. Oracle:
 * exec/host/attention.c.
 *
 * A warp has one query of one head (forward, dq) or one key of one kv head (dk, dv), and goes
 * through the other side 32 tokens at a time: lane l computes the whole score of token l, then the
 * lanes share out D and add up the 32 rows in order. Rows that last, and sums, are in shared memory
 * as fp32.
 */
#include <limits.h>
#include <math.h>

#include "exec/cuda/attention/private.h"
#include "exec/cuda/base/common.cuh"
#include "exec/cuda/runtime/split.h"

#define MAX_WARPS 4
#define MAX_SHARED 49152 /* bytes that every kernel may have without asking */
#define SWATH_BYTES ((size_t)16 << 20) /* bytes that blocks of a swath read */
#define SWATH 16u /* units whose blocks run beside each other: few of each wait for their turn */
#define MOST_SUMS ((size_t)128 << 20) /* bytes of dq's sums at a time, if one kv head's are fewer */

bool
attention_grid(const RpAttentionArgs *args, size_t heads, size_t rows, size_t unit_bytes,
               AttentionGrid *grid)
{
    const size_t units = args->sequences * heads;
    const size_t blocks = ceil_divide(args->max_length, rows);
    const size_t bytes = args->max_length * (unit_bytes > 0 ? unit_bytes : 1);
    size_t swath = bytes < SWATH_BYTES ? SWATH_BYTES / bytes : 1;

    /* whole groups of query heads: they read the same keys */
    swath = ceil_divide(swath, heads / args->kv_heads) * (heads / args->kv_heads);
    if (swath > units)
        swath = units;
    if (units > INT_MAX || blocks > (size_t)INT_MAX / units)
        return false;
    grid->heads = (unsigned)heads;
    grid->units = (unsigned)units;
    grid->blocks = (unsigned)blocks;
    grid->swath = (unsigned)swath;
    grid->window = args->window > 0 && args->window < INT_MAX ? (int)args->window : INT_MAX;
    grid->scale_log2 = args->scale * 1.4426950408889634f;
    return true;
}

cudaError_t
attention_allow_shared(const void *kernel, int bytes, std::atomic<uint64_t> *done)
{
    int device;
    cudaError_t status = rp_cuda_current(&device);
    uint64_t bit;

    if (status != cudaSuccess)
        return status;
    bit = device < 64 ? (uint64_t)1 << device : 0;
    if (done->load(std::memory_order_acquire) & bit)
        return cudaSuccess;
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status == cudaSuccess)
        done->fetch_or(bit, std::memory_order_release);
    return status;
}

/* One warp's token of one head. */
struct Row {
    size_t start;
    int length, token, head;
    int gap, gap_end; /* as in Place */
    float *shared;    /* the warp's own */
};

/* @n: floats of shared memory that a warp needs. Returns: whether there is such a token */
template <bool GAPS>
static __device__ __forceinline__ bool
find_row(const RpAttentionArgs &args, const AttentionGrid &grid, size_t n, Row *row)
{
    extern __shared__ float shared[];
    const int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32;
    const unsigned unit = blockIdx.x % grid.units;
    const unsigned sequence = unit / grid.heads;

    row->start = (size_t)args.starts[sequence];
    row->length = args.starts[sequence + 1] - (int)row->start;
    row->head = (int)(unit % grid.heads);
    row->gap = GAPS ? args.gaps[2 * sequence] : 0;
    row->gap_end = GAPS ? args.gaps[2 * sequence + 1] : 0;
    row->token = (int)(blockIdx.x / grid.units) * warps + warp;
    row->shared = shared + (size_t)warp * n;
    return row->token < row->length;
}

/* Row @token of @head of an array with @heads. */
template <typename T>
static __device__ __forceinline__ const T *
row_of(const RpAttentionArgs &args, const Row &row, const void *array, size_t heads, size_t head,
       int token)
{
    return (const T *)array + ((row.start + (size_t)token) * heads + head) * args.head_size;
}

template <typename T>
static __device__ __forceinline__ void
load_row(float *target, const T *source, size_t n)
{
    for (size_t d = threadIdx.x % 32; d < n; d += 32)
        target[d] = to_float(source[d]);
}

template <typename T>
static __device__ __forceinline__ void
store_row(const void *target, const float *source, size_t n, float factor)
{
    for (size_t d = threadIdx.x % 32; d < n; d += 32)
        ((T *)target)[d] = from_float<T>(source[d] * factor);
}

template <typename T>
static __device__ __forceinline__ float
dot(const float *a, const T *b, size_t n)
{
    float sum = 0;

    for (size_t d = 0; d < n; d++)
        sum = fmaf(a[d], to_float(b[d]), sum);
    return sum;
}

/* target[d] = shrink target[d] + sum over lanes l < n of weight(l) source[l][d] */
template <typename T>
static __device__ __forceinline__ void
add_rows(float *target, float shrink, float weight, const T *source, size_t stride, int n, size_t D)
{
    for (size_t first = 0; first < D; first += 32) {
        const size_t d = first + threadIdx.x % 32;
        float sum = d < D ? target[d] * shrink : 0;

        for (int l = 0; l < n; l++) {
            const float w = __shfl_sync(0xffffffff, weight, l);

            if (d < D)
                sum = fmaf(w, to_float(source[(size_t)l * stride + d]), sum);
        }
        if (d < D)
            target[d] = sum;
    }
}

static __device__ __forceinline__ float
warp_max(float x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, lanes));
    return x;
}

static __device__ __forceinline__ float
warp_add(float x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(0xffffffff, x, lanes);
    return x;
}

/* Blocks of 32 keys begin with the sequence, so that the window moves no sum. */
static __device__ __forceinline__ int
first_key(const Row &row, int window)
{
    return max(row.token + 1 - window, 0) / 32 * 32;
}

/* Whether the row's query sees none of @n keys from @key on, as they are within a gap before it. */
static __device__ __forceinline__ bool
is_behind_gap(const Row &row, int key, int n)
{
    return row.gap_end > 0 && row.token >= row.gap_end && key >= row.gap && key + n <= row.gap_end;
}

template <typename T, bool GAPS>
__global__ void
attend(const RpAttentionArgs args, const AttentionGrid grid)
{
    const size_t D = args.head_size, stride = args.kv_heads * D;
    const int lane = (int)threadIdx.x % 32;
    Row row;

    if (!find_row<GAPS>(args, grid, 2 * D, &row))
        return;

    const size_t head = (size_t)row.head, kv_head = head / (args.heads / args.kv_heads);
    float *q = row.shared, *out = q + D;
    float maximum = -INFINITY, sum = 0;

    load_row(q, row_of<T>(args, row, args.q, args.heads, head, row.token), D);
    for (size_t d = (size_t)lane; d < D; d += 32)
        out[d] = 0;
    __syncwarp();
    for (int key = first_key(row, grid.window); key <= row.token; key += 32) {
        const T *k = row_of<T>(args, row, args.k, args.kv_heads, kv_head, key);
        const T *v = row_of<T>(args, row, args.v, attention_v_row(args), kv_head, key);
        const int j = key + lane;
        const bool seen =
            j <= row.token && j > row.token - grid.window && !is_behind_gap(row, j, 1);
        const float score = seen ? args.scale * dot(q, k + (size_t)lane * stride, D) : -INFINITY;
        const float before = maximum;

        if (is_behind_gap(row, key, 32))
            continue;
        maximum = fmaxf(maximum, warp_max(score));

        /* if all are -infinity, so is lse, and out is not a number */
        const float p = seen ? expf(score - maximum) : 0;
        const float shrink = before == -INFINITY ? 0 : expf(before - maximum);

        sum = sum * shrink + warp_add(p);
        add_rows(out, shrink, p, v, attention_v_row(args) * D, min(32, row.token + 1 - key), D);
    }
    __syncwarp();
    /* an attention sink of the head would join here: sum + exp(logit - maximum) */
    store_row<T>(row_of<T>(args, row, args.out, args.heads, head, row.token), out, D, 1 / sum);
    if (lane == 0)
        args.lse[head * args.tokens + row.start + (size_t)row.token] = maximum + logf(sum);
}

/* delta[h,t] = d_out[t,h] . out[t,h]: a warp each, four elements a lane; and zeros for tensor cores.
 * @wide: D and both arrays are multiples of four elements; changes no bit. */
template <typename T>
__global__ void
sum_products(const RpAttentionArgs args, const BackwardScratch scratch, bool wide)
{
    struct alignas(4 * sizeof(T)) Four {
        T at[4];
    };
    const size_t D = args.head_size;
    const size_t r = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    float sum = 0;

    if (r >= args.tokens * args.heads)
        return;

    const T *a = (const T *)args.d_out + r * D, *b = (const T *)args.out + r * D;

    for (size_t d = threadIdx.x % 32 * 4; d < D; d += 128) {
        Four x, y;

        if (wide) {
            x = *(const Four *)(const void *)(a + d);
            y = *(const Four *)(const void *)(b + d);
        } else {
            for (size_t e = 0; e < 4; e++) {
                x.at[e] = d + e < D ? a[d + e] : from_float<T>(0);
                y.at[e] = d + e < D ? b[d + e] : from_float<T>(0);
            }
        }
        for (int e = 0; e < 4; e++)
            sum = fmaf(to_float(x.at[e]), to_float(y.at[e]), sum);
    }
    sum = warp_add(sum);
    if (threadIdx.x % 32 == 0) {
        const size_t value = r % args.heads * args.tokens + r / args.heads;

        scratch.delta[value] = sum;
        if (scratch.counts != nullptr)
            scratch.counts[value] = 0;
        if (scratch.counts != nullptr && r < args.kv_heads)
            scratch.numbers[r] = 0;
    }
}

template <typename T, bool GAPS>
__global__ void
differentiate_query(const RpAttentionArgs args, const AttentionGrid grid, const float *delta)
{
    const size_t D = args.head_size, stride = args.kv_heads * D;
    const int lane = (int)threadIdx.x % 32;
    Row row;

    if (!find_row<GAPS>(args, grid, 3 * D, &row))
        return;

    const size_t head = (size_t)row.head, kv_head = head / (args.heads / args.kv_heads);
    const size_t value = head * args.tokens + row.start + (size_t)row.token;
    float *q = row.shared, *d_out = q + D, *dq = d_out + D;

    load_row(q, row_of<T>(args, row, args.q, args.heads, head, row.token), D);
    load_row(d_out, row_of<T>(args, row, args.d_out, args.heads, head, row.token), D);
    for (size_t d = (size_t)lane; d < D; d += 32)
        dq[d] = 0;
    __syncwarp();
    for (int key = first_key(row, grid.window); key <= row.token; key += 32) {
        const T *k = row_of<T>(args, row, args.k, args.kv_heads, kv_head, key);
        const T *v = row_of<T>(args, row, args.v, attention_v_row(args), kv_head, key);
        const int j = key + lane;
        float z = 0;

        if (is_behind_gap(row, key, 32))
            continue;
        if (j <= row.token && j > row.token - grid.window && !is_behind_gap(row, j, 1)) {
            const size_t mine = (size_t)lane * stride;
            const float p = expf(args.scale * dot(q, k + mine, D) - args.lse[value]);

            z = args.scale * p *
                (dot(d_out, v + (size_t)lane * attention_v_row(args) * D, D) - delta[value]);
        }
        add_rows(dq, 1, z, k, stride, min(32, row.token + 1 - key), D);
    }
    __syncwarp();
    store_row<T>(row_of<T>(args, row, args.dq, attention_dq_row(args), head, row.token), dq, D, 1);
}

template <typename T, bool GAPS>
__global__ void
differentiate_key(const RpAttentionArgs args, const AttentionGrid grid, const float *delta)
{
    const size_t D = args.head_size, stride = args.heads * D;
    const size_t group = args.heads / args.kv_heads;
    const int lane = (int)threadIdx.x % 32;
    Row row;

    if (!find_row<GAPS>(args, grid, 4 * D, &row))
        return;

    const size_t kv_head = (size_t)row.head;
    const bool within = row.gap_end > 0 && row.token >= row.gap && row.token < row.gap_end;
    const int past = (int)min((long long)row.token + grid.window,
                              (long long)(within ? row.gap_end : row.length));
    float *k = row.shared, *v = k + D, *dk = v + D, *dv = dk + D;

    load_row(k, row_of<T>(args, row, args.k, args.kv_heads, kv_head, row.token), D);
    load_row(v, row_of<T>(args, row, args.v, attention_v_row(args), kv_head, row.token), D);
    for (size_t d = (size_t)lane; d < D; d += 32)
        dk[d] = dv[d] = 0;
    __syncwarp();
    for (size_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int query = row.token; query < past; query += 32) {
            const T *q = row_of<T>(args, row, args.q, args.heads, head, query);
            const T *d_out = row_of<T>(args, row, args.d_out, args.heads, head, query);
            float p = 0, z = 0;

            if (query + lane < past) {
                const size_t value = head * args.tokens + row.start + (size_t)(query + lane);
                const size_t mine = (size_t)lane * stride;

                p = expf(args.scale * dot(k, q + mine, D) - args.lse[value]);
                z = args.scale * p * (dot(v, d_out + mine, D) - delta[value]);
            }
            add_rows(dk, 1, z, q, stride, min(32, past - query), D);
            add_rows(dv, 1, p, d_out, stride, min(32, past - query), D);
        }
    }
    __syncwarp();
    store_row<T>(row_of<T>(args, row, args.dk, attention_v_row(args), kv_head, row.token), dk, D,
                 1);
    store_row<T>(row_of<T>(args, row, args.dv, attention_v_row(args), kv_head, row.token), dv, D,
                 1);
}

/* @n: rows of D floats that a warp keeps in shared memory. Returns: warps of a block; 0 if one is
 * too much */
static unsigned
choose_warps(const RpAttentionArgs *args, size_t n)
{
    const size_t bytes = n * args->head_size * sizeof(float);

    return bytes > MAX_SHARED ? 0 : (unsigned)min(MAX_SHARED / bytes, (size_t)MAX_WARPS);
}

template <typename... Parameters>
static cudaError_t
launch_rows(const RpAttentionArgs *args, size_t heads, size_t n, cudaStream_t stream,
            void (*kernel)(RpAttentionArgs, AttentionGrid, Parameters...), Parameters... parameters)
{
    const unsigned warps = choose_warps(args, n);
    AttentionGrid grid;

    if (warps == 0 || !attention_grid(args, heads, warps, 1, &grid))
        return cudaErrorInvalidValue;
    return attention_launch(kernel, grid.units * grid.blocks, warps * 32,
                            (int)(warps * n * args->head_size * sizeof(float)), stream, *args, grid,
                            parameters...);
}

template <typename T>
static cudaError_t
launch_sum_products(const RpAttentionArgs *args, const BackwardScratch &scratch, cudaStream_t stream)
{
    const size_t blocks = ceil_divide(args->tokens * args->heads, 8);
    const bool wide = args->head_size % 4 == 0 && attention_aligned(args->out, 4 * sizeof(T)) &&
                      attention_aligned(args->d_out, 4 * sizeof(T));

    if (blocks > INT_MAX)
        return cudaErrorInvalidValue;
    return attention_launch(sum_products<T>, (unsigned)blocks, 256, 0, stream, *args, scratch, wide);
}

/* Whether the workspace has space for tensor cores. */
static bool
has_sums(const RpAttentionArgs *args)
{
    return args->dtype != RP_DTYPE_FP32 && attention_has_tiles(args->head_size);
}

static BackwardScratch
find_scratch(const RpAttentionArgs *args)
{
    const size_t values = round_to_64(args->heads * args->tokens * sizeof(float));
    char *memory = (char *)args->workspace;
    BackwardScratch scratch = {(float *)(void *)memory, nullptr, nullptr, nullptr};

    if (has_sums(args)) {
        scratch.counts = (unsigned *)(void *)(memory + values);
        scratch.numbers = (unsigned *)(void *)(memory + 2 * values);
        scratch.sums =
            (float *)(void *)(memory + 2 * values + round_to_64(args->kv_heads * sizeof(unsigned)));
    }
    return scratch;
}

size_t
attention_backward_kv_heads(const RpAttentionArgs *args)
{
    const size_t bytes =
        args->heads / args->kv_heads * args->tokens * args->head_size * sizeof(float);
    const size_t most = bytes < MOST_SUMS ? MOST_SUMS / bytes : 1;

    return ceil_divide(args->kv_heads, ceil_divide(args->kv_heads, most));
}

static bool
has_pairs(const RpAttentionArgs *args)
{
    return args->head_size == 256;
}

static bool
has_mma(const RpAttentionArgs *args)
{
    return args->head_size < 256;
}

#define KEYS_OF_256 ((size_t)64)

typedef struct {
    const char *name;
    bool (*can)(const RpAttentionArgs *args); /* among the shapes of attention_is_fast() */
    cudaError_t (*run)(const RpAttentionArgs *args, const AttentionGrid *grid,
                       const BackwardScratch *scratch, size_t first, unsigned *numbers,
                       cudaStream_t stream);
    size_t keys; /* of a block, where heads are smaller than 256 */
} Variant;

static const Variant variants[RP_N_BACKWARD_VARIANTS] = {
    /* RP_BACKWARD_WGMMA */ {"wgmma", attention_has_wgmma, attention_backward_wgmma, 128},
    /* RP_BACKWARD_WIDE */ {"wide", attention_has_wide, attention_backward_wide, 256},
    /* RP_BACKWARD_MMA */ {"mma", has_mma, attention_backward_mma, 128},
    /* RP_BACKWARD_PAIRS */ {"pairs", has_pairs, attention_backward_pairs, KEYS_OF_256}};

const char *
rp_cuda_backward_variant_name(RpBackwardVariant variant)
{
    return variants[variant].name;
}

bool
rp_cuda_backward_variant_can(RpBackwardVariant variant, const RpAttentionArgs *args)
{
    return attention_backward_is_fast(args) && variants[variant].can(args);
}

cudaError_t
attention_backward_by(RpBackwardVariant variant, const RpAttentionArgs *args, const BackwardScratch *scratch,
                      cudaStream_t stream)
{
    const size_t part = attention_backward_kv_heads(args);
    const size_t keys = args->head_size == 256 ? KEYS_OF_256 : variants[variant].keys;
    cudaError_t status = cudaSuccess;

    for (size_t first = 0; first < args->kv_heads && status == cudaSuccess; first += part) {
        RpAttentionArgs some = *args;
        AttentionGrid grid;

        some.kv_heads = min(part, args->kv_heads - first);
        if (!attention_grid(&some, some.kv_heads, keys, 0, &grid))
            return cudaErrorInvalidValue;
        grid.swath = min(grid.units, SWATH);
        status = variants[variant].run(args, &grid, scratch, first, scratch->numbers + first / part, stream);
    }
    return status;
}

/* @variant: RP_N_BACKWARD_VARIANTS: without tensor cores */
template <typename T>
static cudaError_t
backward(const RpAttentionArgs *args, RpBackwardVariant variant, cudaStream_t stream)
{
    const BackwardScratch scratch = find_scratch(args);
    const bool gaps = args->gaps != nullptr;
    const float *delta = scratch.delta;
    cudaError_t status = launch_sum_products<T>(args, scratch, stream);

    if (status != cudaSuccess)
        return status;
    if (variant < RP_N_BACKWARD_VARIANTS)
        return attention_backward_by(variant, args, &scratch, stream);
    status = launch_rows(args, args->heads, 3, stream,
                         gaps ? differentiate_query<T, true> : differentiate_query<T, false>, delta);
    if (status != cudaSuccess)
        return status;
    return launch_rows(args, args->kv_heads, 4, stream,
                       gaps ? differentiate_key<T, true> : differentiate_key<T, false>, delta);
}

static bool
is_empty(const RpAttentionArgs *args)
{
    return args->tokens == 0 || args->heads == 0 || args->head_size == 0 || args->sequences == 0 ||
           args->max_length == 0;
}

template <typename T>
static cudaError_t
forward(const RpAttentionArgs *args, cudaStream_t stream)
{
    return launch_rows(args, args->heads, 2, stream,
                       args->gaps != nullptr ? attend<T, true> : attend<T, false>);
}

cudaError_t
rp_cuda_attention_forward(const RpAttentionArgs *args, cudaStream_t stream)
{
    if (is_empty(args))
        return cudaSuccess;
    if (attention_is_fast(args))
        return attention_forward_fast(args, stream);
    switch (args->dtype) {
    case RP_DTYPE_FP32:
        return forward<float>(args, stream);
    case RP_DTYPE_BF16:
        return forward<__nv_bfloat16>(args, stream);
    default:
        return forward<__half>(args, stream);
    }
}

size_t
rp_cuda_attention_backward_workspace(const RpAttentionArgs *args)
{
    const size_t values = round_to_64(args->heads * args->tokens * sizeof(float));

    if (!has_sums(args) || is_empty(args))
        return values;
    return 2 * values + round_to_64(args->kv_heads * sizeof(unsigned)) +
           attention_backward_kv_heads(args) * (args->heads / args->kv_heads) * args->tokens *
               args->head_size * sizeof(float);
}

static cudaError_t
backward_by(RpBackwardVariant variant, const RpAttentionArgs *args, cudaStream_t stream)
{
    if (is_empty(args))
        return cudaSuccess;
    switch (args->dtype) {
    case RP_DTYPE_FP32:
        return backward<float>(args, variant, stream);
    case RP_DTYPE_BF16:
        return backward<__nv_bfloat16>(args, variant, stream);
    default:
        return backward<__half>(args, variant, stream);
    }
}

cudaError_t
rp_cuda_attention_backward_by(RpBackwardVariant variant, const RpAttentionArgs *args, cudaStream_t stream)
{
    return rp_cuda_backward_variant_can(variant, args) ? backward_by(variant, args, stream)
                                               : cudaErrorInvalidValue;
}

cudaError_t
rp_cuda_attention_backward(const RpAttentionArgs *args, cudaStream_t stream)
{
    int variant = 0;

    while (variant < RP_N_BACKWARD_VARIANTS && !rp_cuda_backward_variant_can((RpBackwardVariant)variant, args))
        variant++;
    return backward_by((RpBackwardVariant)variant, args, stream);
}
