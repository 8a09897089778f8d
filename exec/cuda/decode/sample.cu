/*
 * Sampling: a block has a row of logits. Formulas: RpSampleArgs; the arithmetic is that of exec/kernels/sample.h, whole
 * numbers whose sums have no order, and so the ids are the host's for the same logits.
 *
 * Instead of sorting, a search divides the row by how far logits are below the largest, and then narrows the key (a logit as
 * a whole number) by 4 bits in each pass over the row, from the highest on: each thread has 16 sums in registers, of counts
 * or weights of keys that begin as the key so far and go on with each of the 16 digits. Most keys are passed over then.
 *
 *   top_k    the key of which the k-th largest is, and how many of it are among them
 *   top_p    the key in which weights of larger ones and of it reach what is needed
 *   target   the key in which they exceed the target; of equal keys the id by its rank
 */
#include "exec/cuda/base/common.cuh"

#define RP_SHARED static __device__ __forceinline__
#define RP_TIMES(a, b) __fmul_rn(a, b)
#define RP_PLUS(a, b) __fadd_rn(a, b)
#include "exec/kernels/sample.h"

#define SAMPLE_THREADS 1024
#define SAMPLE_DIGITS 16

typedef unsigned long long Sum;

/* The keys that may be chosen: those above `key`, and the first `ties` that are equal to it. */
typedef struct {
    uint32_t key;
    Sum ties;
} Limit;

typedef struct {
    Sum warps[SAMPLE_THREADS / 32][SAMPLE_DIGITS];
    Sum sums[SAMPLE_DIGITS];
    Sum best[SAMPLE_THREADS / 32];
} SampleShared;

/* Where a search ended: the sum of larger keys, and of those before the search's value. */
typedef struct {
    uint32_t key;
    Sum above;
} Found;

/* The lowest bits of a key that its sign says, as its storage has fewer than 32: whole digits. */
template <typename T> struct LowBits {
    static constexpr int alike = 0;
};
template <> struct LowBits<__nv_bfloat16> {
    static constexpr int alike = 16;
};
template <> struct LowBits<__half> {
    static constexpr int alike = 12;
};

/* A row of logits. */
template <typename T> struct Row {
    const T *at;
    size_t n;
    bool wide;

    /* Calls f(key, id) for each of them; the thread's next AHEAD packs are read at once. */
    template <int AHEAD = 1, typename F>
    __device__ __forceinline__ void
    for_keys(F f) const
    {
        constexpr size_t STEP = SAMPLE_THREADS * RP_PACK;

        for (size_t begin = threadIdx.x * RP_PACK; begin < n; begin += AHEAD * STEP) {
            Pack<T> packs[AHEAD];

#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const size_t first = begin + a * STEP;

                packs[a] = load_pack(at + first, first < n ? n - first : 0, wide);
            }
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const size_t first = begin + a * STEP;

#pragma unroll
                for (int i = 0; i < RP_PACK; i++)
                    if (first + i < n)
                        f(rp_sample_key(to_float(packs[a].at[i])), first + i);
            }
        }
    }
};

/* The largest key, with the lowest id: the complement of the id stands behind the key. */
template <typename T>
static __device__ Sum
find_largest(const Row<T> &row, SampleShared &shared)
{
    uint32_t largest = 0, id = threadIdx.x * RP_PACK;

    row.template for_keys<5>([&](uint32_t key, size_t v) { /* ids rise */
        id = key > largest ? (uint32_t)v : id;
        largest = max(key, largest);
    });
    Sum best = (Sum)largest << 32 | (uint32_t)~id;

#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        best = max(best, __shfl_xor_sync(0xffffffffu, best, step));
    if (threadIdx.x % 32 == 0)
        shared.best[threadIdx.x / 32] = best;
    __syncthreads();
    for (int w = 0; w < SAMPLE_THREADS / 32; w++)
        best = max(best, shared.best[w]);
    __syncthreads();
    return best;
}

/* Adds the threads' sums; all threads have them in @shared. */
static __device__ void
add_digits(Sum (&sums)[SAMPLE_DIGITS], SampleShared &shared)
{
#pragma unroll
    for (int d = 0; d < SAMPLE_DIGITS; d++) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            sums[d] += __shfl_xor_sync(0xffffffffu, sums[d], step);
        if (threadIdx.x % 32 == 0)
            shared.warps[threadIdx.x / 32][d] = sums[d];
    }
    __syncthreads();
    if (threadIdx.x < SAMPLE_DIGITS) {
        Sum sum = 0;

        for (int w = 0; w < SAMPLE_THREADS / 32; w++)
            sum += shared.warps[w][threadIdx.x];
        shared.sums[threadIdx.x] = sum;
    }
    __syncthreads();
}

/* Which of 16 divisions a key is in, the largest in the first. */
__device__ __forceinline__ unsigned
division_of(uint32_t key, uint32_t largest, float scale)
{
    const float below = (rp_sample_logit(largest) - rp_sample_logit(key)) * scale;

    return below < SAMPLE_DIGITS - 1 ? (unsigned)below : SAMPLE_DIGITS - 1;
}

/* Finds which of the sums exceeds @value, from @first on in steps of @step. @above: (inout): the sum before it */
static __device__ unsigned
find_digit(const SampleShared &shared, int first, int step, Sum value, Sum *above)
{
    int digit = first;

    while (digit != SAMPLE_DIGITS - 1 - first && *above + shared.sums[digit] <= value) {
        *above += shared.sums[digit];
        digit += step;
    }
    return (unsigned)digit;
}

/*
 * Finds the key in which sums from the largest key on exceed @value. Sums are of counts, or of weights; of the
 * limit's key there are so many as its ties.
 */
template <typename T, bool WEIGHTS>
static __device__ Found
search(const Row<T> &row, const RpSampleChoice &choice, uint32_t largest, Limit limit,
       Sum value, SampleShared &shared)
{
    constexpr int LAST = LowBits<T>::alike;
    const float scale = (float)(SAMPLE_DIGITS / (28 * choice.temperature));
    const Sum ties = limit.ties * (WEIGHTS ? rp_sample_weight(&choice, limit.key, largest) : 1);
    const unsigned limit_in = division_of(limit.key, largest, scale);
    Found found = {0, 0};
    unsigned in = 0;

    for (int shift = 32; shift >= LAST; shift -= 4) { /* the divisions, then digits */
        Sum sums[SAMPLE_DIGITS] = {};

        row.for_keys([&](uint32_t key, size_t) {
            if (key <= limit.key ||
                (shift < 28 && key >> (shift + 4) != found.key >> (shift + 4)))
                return;
            const unsigned division = division_of(key, largest, scale);

            if (shift < 32 && division != in)
                return;
            const Sum weight = WEIGHTS ? rp_sample_weight(&choice, key, largest) : 1;
            const unsigned digit = shift == 32 ? division : key >> shift & (SAMPLE_DIGITS - 1);

#pragma unroll
            for (int d = 0; d < SAMPLE_DIGITS; d++)
                sums[d] += digit == d ? weight : 0;
        });
        add_digits(sums, shared);
        if (threadIdx.x == 0 && shift == 32)
            shared.sums[limit_in] += ties;
        else if (threadIdx.x == 0 && limit_in == in &&
                 (shift == 28 || limit.key >> (shift + 4) == found.key >> (shift + 4)))
            shared.sums[limit.key >> shift & (SAMPLE_DIGITS - 1)] += ties;
        __syncthreads();
        if (shift == 32)
            in = find_digit(shared, 0, 1, value, &found.above);
        else
            found.key |= find_digit(shared, SAMPLE_DIGITS - 1, -1, value, &found.above) << shift;
        __syncthreads();
    }
    if (found.key != 0 && found.key >> 31 == 0)
        found.key |= (1u << LAST) - 1; /* those of negative numbers */
    return found;
}

/* Sum of weights within the limit. */
template <typename T>
static __device__ Sum
weigh(const Row<T> &row, const RpSampleChoice &choice, uint32_t largest, Limit limit,
      SampleShared &shared)
{
    Sum sums[SAMPLE_DIGITS] = {};

    row.for_keys([&](uint32_t key, size_t) {
        sums[0] += key > limit.key ? rp_sample_weight(&choice, key, largest) : 0;
    });
    add_digits(sums, shared);
    const Sum sum = shared.sums[0] + limit.ties * rp_sample_weight(&choice, limit.key, largest);

    __syncthreads();
    return sum;
}

template <typename T>
static __device__ Sum
count(const Row<T> &row, uint32_t key, SampleShared &shared)
{
    Sum sums[SAMPLE_DIGITS] = {};

    row.for_keys([&](uint32_t of, size_t) { sums[0] += of == key; });
    add_digits(sums, shared);
    const Sum sum = shared.sums[0];

    __syncthreads();
    return sum;
}

/* Writes the id of the @rank-th of equal keys. */
template <typename T>
static __device__ void
write_id(const Row<T> &row, uint32_t key, Sum rank, int32_t *id, SampleShared &shared)
{
    Sum before = 0;

    for (size_t first = 0; first < row.n; first += SAMPLE_THREADS) {
        const size_t v = first + threadIdx.x;
        const bool is = v < row.n && rp_sample_key(to_float(row.at[v])) == key;
        const unsigned lanes = __ballot_sync(0xffffffffu, is);
        Sum mine = before;

        if (threadIdx.x % 32 == 0)
            shared.best[threadIdx.x / 32] = (Sum)__popc(lanes);
        __syncthreads();
        for (int w = 0; w < SAMPLE_THREADS / 32; w++) {
            mine += w < (int)threadIdx.x / 32 ? shared.best[w] : 0;
            before += shared.best[w];
        }
        mine += (Sum)__popc(lanes & ((1u << threadIdx.x % 32) - 1));
        if (is && mine == rank)
            *id = (int32_t)v;
        __syncthreads();
        if (before > rank)
            return;
    }
}

template <typename T>
static __global__ void
__launch_bounds__(SAMPLE_THREADS) sample(const RpSampleArgs args, bool wide)
{
    __shared__ SampleShared shared;
    const size_t n = args.vocabulary;
    const Row<T> row = {(const T *)args.logits + blockIdx.x * n, n, wide};
    const RpSampleChoice choice = args.choices[blockIdx.x];

    wait_for_previous(); /* who is older than the call's arrays */
    const Sum best = find_largest(row, shared);
    const uint32_t largest = (uint32_t)(best >> 32);
    Limit limit = {0, 0};
    Sum sum, needed, target;
    Found found;

    if (rp_sample_is_greedy(&choice)) {
        if (threadIdx.x == 0)
            args.ids[blockIdx.x] = (int32_t)~(uint32_t)best;
        return;
    }
    if (choice.top_k > 0 && choice.top_k < n) {
        limit.ties = count(row, 0, shared);
        found = search<T, false>(row, choice, largest, limit, choice.top_k - 1, shared);
        limit.key = found.key;
        limit.ties = choice.top_k - found.above;
    } else {
        limit.ties = count(row, 0, shared);
    }
    sum = weigh(row, choice, largest, limit, shared);
    needed = rp_sample_needed(&choice, sum);
    if (needed < sum) {
        found = search<T, true>(row, choice, largest, limit, needed - 1, shared);
        const Sum weight = rp_sample_weight(&choice, found.key, largest);

        limit.key = found.key;
        limit.ties = (needed - found.above + weight - 1) / weight;
        sum = found.above + limit.ties * weight;
    }
    target = rp_sample_target(&choice, sum);
    found = search<T, true>(row, choice, largest, limit, target, shared);
    write_id(row, found.key,
             (target - found.above) / rp_sample_weight(&choice, found.key, largest),
             &args.ids[blockIdx.x], shared);
}

extern "C" cudaError_t
rp_cuda_sample(const RpSampleArgs *args, cudaStream_t stream)
{
    if (args->vocabulary == 0)
        return cudaErrorInvalidValue;
    if (args->rows == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        return launch_early(sample<decltype(zero)>, dim3((unsigned)args->rows), SAMPLE_THREADS, 0,
                            stream, *args, rows_are_wide(args->logits, args->vocabulary));
    });
}
