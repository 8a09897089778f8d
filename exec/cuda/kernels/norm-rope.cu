/*
 * RMSNorm of heads, then rope: q/k norm, in one pass over memory in each direction.
 *
 *   forward   n = weight x rstd;  y[i] = n[i] c[i] - n[i+h] s[i],  y[i+h] = n[i+h] c[i] + n[i] s[i]
 *   backward  g = dy rotated by the opposite angle;  dx = rstd (g weight - k mean(g weight k)),
 *             k = x rstd                                                                        =
 *             d_weight += sum over heads and tokens of g k                                     +=
 *
 * x, y, dx: [T,H,D], tokens of x and dx may stand apart; h = D/2. fp32 sums; n and g are rounded to the storage, as by rmsnorm.cu and
 * rope.cu one after the other. A group of threads has HEADS heads of one token, an item; a thread a
 * pack of eight columns of the lower half and the same of the upper, so both of each pair:
 *
 *   h <=   32  64  128 | more, or a part of a head that is rotated, or a shift of weights
 *   group   4   8   16 | rmsnorm.cu and rope.cu
 *
 * WIDE: halves of heads stand at multiples of 16 bytes and are whole packs: fewer registers, the
 * same bits, and fmaf() says where products are fused, so that no compiler chooses for either.
 *
 * Blocks of 128 threads. Backward: a block has a chunk of consecutive items, sums g k of its
 * columns in registers and writes them to partials, [chunks,D]; reduce.cu adds those up in order.
 * Oracle: exec/host/norm-rope.c
 */
#include "exec/cuda/base/common.cuh"

#define THREADS 128
#define FORWARD_BLOCKS 5 /* blocks of a multiprocessor at once: their registers fit */
#define BACKWARD_BLOCKS 4
#define HEADS 2 /* heads of an item: read together, and under the same angles */
#define MOST_HALF 128
#define MOST_CHUNKS 1024
#define LEAST_ITEMS 64 /* items of a chunk */

template <typename T> struct Turn {
    size_t tokens, heads, half;
    size_t row_heads;   /* from a token of x, dy and dx to the next */
    size_t parts;       /* items of a token */
    size_t items;       /* items of all tokens */
    size_t chunk_items; /* backward */
    float epsilon;
    const int32_t *positions;
    const float *cosines, *sines;
    const T *x, *weight;
    const T *dy; /* backward */
    T *out;      /* y, or dx */
    float *rstd;
    float *partials; /* backward */
    float *largest;  /* backward, of out; or NULL */
};

/* The @count elements at @source; zeros beyond them. WIDE: none or eight. */
template <bool WIDE, typename T>
__device__ __forceinline__ Pack<T>
load(const T *source, size_t count)
{
    if constexpr (WIDE)
        return count > 0 ? *reinterpret_cast<const Pack<T> *>(source) : Pack<T>{};
    else
        return load_pack(source, count, false);
}

template <bool WIDE, typename T>
__device__ __forceinline__ void
store(T *target, const Pack<T> &pack, size_t count)
{
    if constexpr (WIDE)
        *reinterpret_cast<Pack<T> *>(target) = pack;
    else
        store_pack(target, pack, count, false);
}

/* Both halves of a thread's part of a head. */
template <typename T> struct Halves {
    Pack<T> lower, upper;
};

template <bool WIDE, typename T>
__device__ __forceinline__ Halves<T>
load_halves(const T *head, size_t half, size_t first, size_t count)
{
    return {load<WIDE>(head + first, count), load<WIDE>(head + half + first, count)};
}

/* @count: > 0 */
template <bool WIDE, typename T>
__device__ __forceinline__ void
store_halves(T *head, size_t half, size_t first, const Halves<T> &halves, size_t count)
{
    store<WIDE>(head + first, halves.lower, count);
    store<WIDE>(head + half + first, halves.upper, count);
}

template <typename T>
__device__ __forceinline__ void
turn(Halves<T> &halves, const Pack<float> &c, const Pack<float> &s, float direction)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++) {
        const float a = to_float(halves.lower.at[i]);
        const float b = to_float(halves.upper.at[i]);
        const float sine = s.at[i] * direction;

        halves.lower.at[i] = from_float<T>(fmaf(a, c.at[i], -(b * sine)));
        halves.upper.at[i] = from_float<T>(fmaf(b, c.at[i], a * sine));
    }
}

template <typename T>
__device__ __forceinline__ float
sum_squares(float sum, const Pack<T> &pack)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        sum = fmaf(to_float(pack.at[i]), to_float(pack.at[i]), sum);
    return sum;
}

template <typename T>
__device__ __forceinline__ void
scale(Pack<T> &pack, const Pack<T> &weight, float rstd)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        pack.at[i] = from_float<T>(to_float(weight.at[i]) * (to_float(pack.at[i]) * rstd));
}

template <bool WIDE, int GROUP, typename T>
static __global__ void
__launch_bounds__(THREADS, FORWARD_BLOCKS) forward_kernel(const Turn<T> args)
{
    let_next_begin();

    const size_t half = args.half;
    const size_t first = threadIdx.x % GROUP * RP_PACK;
    const size_t item = (size_t)blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP;
    const size_t t = item / args.parts;
    const size_t head = item % args.parts * HEADS;
    /* elements of this thread; all threads stay, since lanes are summed by whole warps */
    const size_t count = item < args.items && first < half ? half - first : 0;
    const size_t row = t * args.heads + head;
    const size_t x_row = t * args.row_heads + head;
    const size_t angles = count > 0 ? (size_t)args.positions[t] * half + first : 0;
    const Halves<T> weight = load_halves<WIDE>(args.weight, half, first, count);
    const Pack<float> c = load<WIDE>(args.cosines + angles, count);
    const Pack<float> s = load<WIDE>(args.sines + angles, count);
    Halves<T> x[HEADS];

    wait_for_previous(); /* who writes neither weights nor angles */
#pragma unroll
    for (int i = 0; i < HEADS; i++)
        x[i] = load_halves<WIDE>(args.x + (x_row + i) * 2 * half, half, first,
                                 head + i < args.heads ? count : 0);
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        const float squares =
            sum_lanes<GROUP>(sum_squares(sum_squares(0.0f, x[i].lower), x[i].upper));
        const float rstd = 1.0f / sqrtf(squares / (float)(2 * half) + args.epsilon);

        if (count == 0 || head + i >= args.heads)
            continue;
        if (first == 0)
            args.rstd[row + i] = rstd;
        scale(x[i].lower, weight.lower, rstd);
        scale(x[i].upper, weight.upper, rstd);
        turn(x[i], c, s, 1.0f);
        store_halves<WIDE>(args.out + (row + i) * 2 * half, half, first, x[i], count);
    }
}

/* g weight k, over a pack */
template <typename T>
__device__ __forceinline__ float
add_products(float sum, const Pack<T> &x, const Pack<T> &g, const Pack<T> &weight, float rstd)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        sum = fmaf(to_float(g.at[i]) * to_float(weight.at[i]), to_float(x.at[i]) * rstd, sum);
    return sum;
}

/* @g becomes dx; adds g k to @sums. */
template <typename T>
__device__ __forceinline__ void
differentiate(Pack<T> &g, const Pack<T> &x, const Pack<T> &weight, float rstd, float mean,
              float *sums)
{
#pragma unroll
    for (int i = 0; i < RP_PACK; i++) {
        const float d = to_float(g.at[i]);
        const float k = to_float(x.at[i]) * rstd;

        sums[i] = fmaf(d, k, sums[i]);
        g.at[i] = from_float<T>(rstd * fmaf(d, to_float(weight.at[i]), -(k * mean)));
    }
}

/* The sums of all groups of a block, of one half, group after group. @shared: THREADS * RP_PACK */
template <int GROUP>
__device__ __forceinline__ void
store_partials(float *partials, size_t half, const float *sums, float *shared)
{
    __syncthreads();
#pragma unroll
    for (int i = 0; i < RP_PACK; i++)
        shared[threadIdx.x * RP_PACK + i] = sums[i];
    __syncthreads();
    if (threadIdx.x < GROUP * RP_PACK && threadIdx.x < half) {
        float sum = 0;

        for (unsigned group = 0; group < THREADS / GROUP; group++)
            sum += shared[group * GROUP * RP_PACK + threadIdx.x];
        partials[threadIdx.x] = sum;
    }
}

template <bool WIDE, int GROUP, typename T>
static __global__ void
__launch_bounds__(THREADS, BACKWARD_BLOCKS) backward_kernel(const Turn<T> args)
{
    __shared__ float shared[THREADS * RP_PACK];
    const size_t half = args.half;
    const size_t first = threadIdx.x % GROUP * RP_PACK;
    const size_t width = first < half ? half - first : 0;
    const size_t start = (size_t)blockIdx.x * args.chunk_items;
    const size_t end =
        start + args.chunk_items < args.items ? start + args.chunk_items : args.items;
    const Halves<T> weight = load_halves<WIDE>(args.weight, half, first, width);
    float lower_sums[RP_PACK] = {};
    float upper_sums[RP_PACK] = {};
    unsigned most = 0;

    for (size_t base = start; base < end; base += THREADS / GROUP) {
        const size_t item = base + threadIdx.x / GROUP;
        const size_t t = item / args.parts;
        const size_t head = item % args.parts * HEADS;
        const size_t count = item < end ? width : 0;
        const size_t row = t * args.heads + head;
        const size_t x_row = t * args.row_heads + head;
        const size_t angles = count > 0 ? (size_t)args.positions[t] * half + first : 0;
        const Pack<float> c = load<WIDE>(args.cosines + angles, count);
        const Pack<float> s = load<WIDE>(args.sines + angles, count);

        Halves<T> x[HEADS], g[HEADS];
        float rstd[HEADS];

#pragma unroll
        for (int i = 0; i < HEADS; i++) {
            const size_t offset = (x_row + i) * 2 * half;
            const size_t there = head + i < args.heads ? count : 0;

            x[i] = load_halves<WIDE>(args.x + offset, half, first, there);
            g[i] = load_halves<WIDE>(args.dy + offset, half, first, there);
            rstd[i] = there > 0 ? args.rstd[row + i] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < HEADS; i++) {
            float mean;

            turn(g[i], c, s, -1.0f);
            mean = add_products(0.0f, x[i].lower, g[i].lower, weight.lower, rstd[i]);
            mean = add_products(mean, x[i].upper, g[i].upper, weight.upper, rstd[i]);
            mean = sum_lanes<GROUP>(mean) / (float)(2 * half);
            if (count == 0 || head + i >= args.heads)
                continue;
            differentiate(g[i].lower, x[i].lower, weight.lower, rstd[i], mean, lower_sums);
            differentiate(g[i].upper, x[i].upper, weight.upper, rstd[i], mean, upper_sums);
            store_halves<WIDE>(args.out + (x_row + i) * 2 * half, half, first, g[i], count);
            if (args.largest)
                most = larger_of(larger_of(most, g[i].lower), g[i].upper);
        }
    }
    if (args.largest)
        note_largest(args.largest, most);

    float *partials = args.partials + (size_t)blockIdx.x * 2 * half;

    store_partials<GROUP>(partials, half, lower_sums, shared);
    store_partials<GROUP>(partials + half, half, upper_sums, shared);
}

/* Calls f.template run<GROUP>() with the group that half a head needs. */
template <typename F>
static cudaError_t
for_half(size_t half, F f)
{
    if (half <= 32)
        return f.template run<4>();
    if (half <= 64)
        return f.template run<8>();
    return f.template run<16>();
}

template <typename T> struct LaunchForward {
    Turn<T> args;
    bool wide;
    cudaStream_t stream;

    template <int GROUP> cudaError_t run() const
    {
        const size_t blocks = ceil_divide(args.items, THREADS / GROUP);

        return launch_early(wide ? forward_kernel<true, GROUP, T> : forward_kernel<false, GROUP, T>,
                            dim3((unsigned)blocks), THREADS, 0, stream, args);
    }
};

template <typename T> struct LaunchBackward {
    Turn<T> args;
    bool wide;
    cudaStream_t stream;

    template <int GROUP> cudaError_t run() const
    {
        const size_t chunks = ceil_divide(args.items, args.chunk_items);

        if (wide)
            backward_kernel<true, GROUP><<<(unsigned)chunks, THREADS, 0, stream>>>(args);
        else
            backward_kernel<false, GROUP><<<(unsigned)chunks, THREADS, 0, stream>>>(args);
        return cudaGetLastError();
    }
};

static size_t
items_of(size_t tokens, size_t heads)
{
    return tokens * ceil_divide(heads, HEADS);
}

static size_t
items_of_chunk(size_t items)
{
    const size_t chunk_items = ceil_divide(items, MOST_CHUNKS);

    return chunk_items > LEAST_ITEMS ? chunk_items : LEAST_ITEMS;
}

template <typename T>
static Turn<T>
turn_of(const RpNormRopeArgs *args, const void *dy, void *out)
{
    const size_t half = args->head_size / 2;
    const size_t items = items_of(args->tokens, args->heads);

    return {args->tokens,
            args->heads,
            half,
            args->row_heads > 0 ? args->row_heads : args->heads,
            ceil_divide(args->heads, HEADS),
            items,
            items_of_chunk(items),
            args->epsilon,
            args->positions,
            args->cosines,
            args->sines,
            (const T *)args->x,
            (const T *)args->weight,
            (const T *)dy,
            (T *)out,
            args->rstd,
            (float *)args->workspace,
            args->largest};
}

/* @dy: or NULL */
static bool
all_wide(const RpNormRopeArgs *args, const void *dy, const void *out)
{
    return rows_are_wide(args->x, args->head_size / 2) && is_wide(args->weight) && is_wide(dy) &&
           is_wide(out) && is_wide(args->cosines) && is_wide(args->sines);
}

static RpRmsnormArgs
norm_of(const RpNormRopeArgs *args)
{
    RpRmsnormArgs norm = {};

    norm.dtype = args->dtype;
    norm.rows = args->tokens * args->heads;
    norm.n = args->head_size;
    norm.epsilon = args->epsilon;
    norm.shift = args->shift;
    norm.x = args->x;
    norm.weight = args->weight;
    norm.y = args->y;
    norm.rstd = args->rstd;
    norm.dy = args->dx; /* rotated back there */
    norm.dx = args->dx;
    norm.d_weight = args->d_weight;
    norm.workspace = args->workspace;
    norm.largest = args->largest;
    return norm;
}

static RpRopeArgs
rope_of(const RpNormRopeArgs *args, const void *x, void *y)
{
    RpRopeArgs rope = {};

    rope.dtype = args->dtype;
    rope.tokens = args->tokens;
    rope.heads = args->heads;
    rope.head_size = args->head_size;
    rope.rotary = args->rotary;
    rope.positions = args->positions;
    rope.cosines = args->cosines;
    rope.sines = args->sines;
    rope.x = x;
    rope.y = y;
    return rope;
}

static cudaError_t
forward_one_by_one(const RpNormRopeArgs *args, cudaStream_t stream)
{
    RpRmsnormArgs norm = norm_of(args);
    const RpRopeArgs rope = rope_of(args, args->y, args->y);

    norm.largest = NULL;

    const cudaError_t status = rp_cuda_rmsnorm_forward(&norm, stream);

    return status == cudaSuccess ? rp_cuda_rope_forward(&rope, stream) : status;
}

static cudaError_t
backward_one_by_one(const RpNormRopeArgs *args, cudaStream_t stream)
{
    const RpRmsnormArgs norm = norm_of(args);
    const RpRopeArgs rope = rope_of(args, args->dy, args->dx);
    const cudaError_t status = rp_cuda_rope_backward(&rope, stream);

    return status == cudaSuccess ? rp_cuda_rmsnorm_backward(&norm, stream) : status;
}

static bool
is_apart(const RpNormRopeArgs *args)
{
    return args->head_size / 2 > MOST_HALF || args->rotary > 0 || args->shift != 0;
}

cudaError_t
rp_cuda_norm_rope_forward(const RpNormRopeArgs *args, cudaStream_t stream)
{
    const size_t half = args->head_size / 2;

    if (args->head_size % 2 != 0)
        return cudaErrorInvalidValue;
    if (args->tokens == 0 || args->heads == 0 || half == 0)
        return cudaSuccess;
    if (is_apart(args))
        return args->row_heads == 0 ? forward_one_by_one(args, stream) : cudaErrorInvalidValue;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return for_half(half, LaunchForward<T>{turn_of<T>(args, NULL, args->y),
                                               all_wide(args, NULL, args->y), stream});
    });
}

size_t
rp_cuda_norm_rope_backward_workspace(const RpNormRopeArgs *args)
{
    const size_t items = items_of(args->tokens, args->heads);
    const RpRmsnormArgs norm = norm_of(args);

    if (is_apart(args))
        return rp_cuda_rmsnorm_backward_workspace(&norm);
    return round_to_64(ceil_divide(items, items_of_chunk(items)) * args->head_size * sizeof(float));
}

cudaError_t
rp_cuda_norm_rope_backward(const RpNormRopeArgs *args, cudaStream_t stream)
{
    const size_t half = args->head_size / 2;
    const size_t items = items_of(args->tokens, args->heads);
    cudaError_t status;

    if (args->head_size % 2 != 0)
        return cudaErrorInvalidValue;
    if (args->tokens == 0 || args->heads == 0 || half == 0)
        return cudaSuccess;
    if (is_apart(args))
        return args->row_heads == 0 ? backward_one_by_one(args, stream) : cudaErrorInvalidValue;
    status = for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return for_half(half, LaunchBackward<T>{turn_of<T>(args, args->dy, args->dx),
                                                all_wide(args, args->dy, args->dx), stream});
    });
    return status == cudaSuccess && args->d_weight
               ? rp_cuda_add_partials((const float *)args->workspace,
                                      ceil_divide(items, items_of_chunk(items)), args->head_size,
                                      args->d_weight, stream)
               : status;
}
