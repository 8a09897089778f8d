/*
 * A matmul for each expert, in any storage, size and alignment, and the choice between that and
 * tensor cores (mma.cu, wgmma.cu). Which one runs depends on sizes, alignment and the GPU, never on
 * values. Formulas: RpGroupedMatmulArgs.
 *
 *   A, B: both bf16, both fp16 or both fp32;  C: the same, or fp32.  fp32 sums over k, ascending
 *
 * Blocks of 256 threads have tiles of 64 x 64 of C, 4 x 4 a thread, and go through k in steps of
 * 16, which shared memory holds as fp32. Oracle: exec/host/matmul.c
 */
#include <limits.h>

#include "exec/cuda/grouped/place.cuh"
#include "exec/cuda/grouped/private.h"
#include "exec/cuda/grouped/variants.h"

#define TILE 64
#define DEPTH 16
#define THREADS 256
#define MOST_BLOCKS 65536

/* Returns element (i, l) of a matrix [extent,k], or [k,extent] if @transposed (transposed); 0
 * outside. */
template <typename T>
static __device__ __forceinline__ float
element(const T *matrix, bool transposed, int extent, int k, int i, int l)
{
    if (i >= extent || l >= k)
        return 0;
    return to_float(matrix[transposed ? (size_t)l * extent + i : (size_t)i * k + l]);
}

/* Neighbouring threads read neighbouring elements. */
template <typename T>
static __device__ __forceinline__ void
load_tile(float (&tile)[DEPTH][TILE], const T *matrix, bool transposed, int extent, int k, int first,
          int step)
{
#pragma unroll
    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        const int at = transposed ? i % TILE : i / DEPTH;
        const int l = transposed ? i / TILE : i % DEPTH;

        tile[l][at] = element(matrix, transposed, extent, k, first + at, step + l);
    }
}

template <typename T>
static __device__ __forceinline__ void
multiply_tile(const RpGroupedMatmulArgs &args, const Problem<T> &of, int m, int n,
              float (&sums)[4][4])
{
    __shared__ float a[DEPTH][TILE], b[DEPTH][TILE];
    const int row = (int)threadIdx.x / 16, column = (int)threadIdx.x % 16;

    for (int step = 0; step < of.k; step += DEPTH) {
        __syncthreads();
        load_tile(a, of.a, args.form == RP_MATMUL_TN, of.m, of.k, m, step);
        load_tile(b, of.b, args.form != RP_MATMUL_NT, of.n, of.k, n, step);
        __syncthreads();
#pragma unroll
        for (int l = 0; l < DEPTH; l++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sums[i][j] = fmaf(a[l][row + i * 16], b[l][column + j * 16], sums[i][j]);
            }
        }
    }
}

template <typename T, typename C>
static __global__ void
__launch_bounds__(THREADS) multiply_any(const RpGroupedMatmulArgs args)
{
    const float scale = args.scale != 0 ? args.scale : 1;
    Tiles<TILE, TILE> tiles;

    while (tiles.next(args)) {
        const Problem<T> of = problem_of<T>(args, args.form, tiles.expert);
        const int row = tiles.m + (int)threadIdx.x / 16, column = tiles.n + (int)threadIdx.x % 16;
        float sums[4][4] = {};

        if (args.form == RP_MATMUL_TN && of.k == 0 && args.accumulate)
            continue;
        multiply_tile(args, of, tiles.m, tiles.n, sums);
#pragma unroll
        for (int at = 0; at < 16; at++) {
            const int i = row + at / 4 * 16, j = column + at % 4 * 16;
            float sum = sums[at / 4][at % 4] * scale;

            if (i >= of.m || j >= of.n)
                continue;

            C *place = (C *)args.c + of.c_at + (size_t)i * of.n + j;

            if (args.accumulate)
                sum += to_float(*place);
            if (args.bias)
                sum += to_float(((const C *)args.bias)[of.bias_at + j]);
            *place = from_float<C>(sum);
        }
    }
}

static bool
is_known(const RpGroupedMatmulArgs *args)
{
    const size_t most = INT_MAX - 1024; /* so that no index of a tile runs over */

    return args->a_dtype == args->b_dtype &&
           (args->c_dtype == args->a_dtype || args->c_dtype == RP_DTYPE_FP32) &&
           args->rows <= most && args->m <= most && args->n <= most && args->k <= most &&
           args->experts <= most && most_tiles(args, 16, 16) <= most &&
           !(args->bias && (args->accumulate || args->scale != 0 || args->form == RP_MATMUL_TN));
}

static bool
is_empty(const RpGroupedMatmulArgs *args)
{
    if (args->experts == 0 || args->n == 0)
        return true;
    if (args->form == RP_MATMUL_TN)
        return args->m == 0 || (args->rows == 0 && args->accumulate);
    return args->rows == 0;
}

template <typename T, typename C>
static cudaError_t
launch_any(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    const size_t tiles = most_tiles(args, TILE, TILE);

    return attention_launch(multiply_any<T, C>,
                            (unsigned)(tiles < MOST_BLOCKS ? tiles : MOST_BLOCKS), THREADS, 0,
                            stream, *args);
}

static cudaError_t
multiply_any_storage(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    return for_dtype(
        args->a_dtype,
        [=](auto zero) {
            using T = decltype(zero);

            if (args->c_dtype == RP_DTYPE_FP32)
                return launch_any<T, float>(args, stream);
            return launch_any<T, T>(args, stream);
        });
}

static bool
is_any(const RpGroupedMatmulArgs *args)
{
    return true;
}

static const struct {
    const char *name;
    bool (*can)(const RpGroupedMatmulArgs *args);
    cudaError_t (*launch)(const RpGroupedMatmulArgs *args, cudaStream_t stream);
} variants[RP_N_GROUPED_VARIANTS] = {
    {"any", is_any, multiply_any_storage},
    {"64x128", grouped_is_fast, grouped_matmul_64x128},
    {"128x64", grouped_is_fast, grouped_matmul_128x64},
    {"128x128", grouped_is_fast, grouped_matmul_128x128},
    {"128x256", grouped_is_fast, grouped_matmul_128x256},
    {"128x128-deep", grouped_has_depth, grouped_matmul_128x128_deep},
    {"wgmma-128x256", grouped_has_wgmma, grouped_matmul_wgmma_256},
    {"wgmma-turns-128", grouped_has_wgmma, grouped_matmul_turns_128},
    {"wgmma-turns-192", grouped_has_wgmma, grouped_matmul_turns_192},
};

const char *
rp_cuda_grouped_variant_name(RpGroupedVariant variant)
{
    return variants[variant].name;
}

bool
rp_cuda_grouped_variant_can(RpGroupedVariant variant, const RpGroupedMatmulArgs *args)
{
    return is_known(args) && variants[variant].can(args);
}

static size_t
mean_rows(const RpGroupedMatmulArgs *args)
{
    return args->rows / (args->experts > 0 ? args->experts : 1);
}

/* If grouped_has_wgmma(): the first of those that compute the fewest unused columns. */
static RpGroupedVariant
wgmma_of(const RpGroupedMatmulArgs *args)
{
    static const struct {
        RpGroupedVariant variant;
        size_t columns;
    } widths[] = {
        {RP_GROUPED_TURNS_192, 192}, {RP_GROUPED_WGMMA_256, 256}, {RP_GROUPED_TURNS_128, 128}};
    RpGroupedVariant best = RP_GROUPED_TURNS_128;
    size_t fewest = SIZE_MAX;

    if (args->form == RP_MATMUL_TN && args->c_dtype == RP_DTYPE_FP32)
        return RP_GROUPED_TURNS_128;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const size_t columns = ceil_divide(args->n, widths[i].columns) * widths[i].columns;

        if (columns < fewest) {
            fewest = columns;
            best = widths[i].variant;
        }
    }
    return best;
}

int
rp_cuda_grouped_variant_of(const RpGroupedMatmulArgs *args)
{
    if (!is_known(args))
        return -1;
    if (!grouped_is_fast(args))
        return RP_GROUPED_ANY;
    if (args->n <= 64)
        return RP_GROUPED_128X64;
    /* All variants by mma.sync have the same bits; those by wgmma have others, and their choice depends on rows. */
    if (args->alone)
        return mean_rows(args) <= 64 ? RP_GROUPED_64X128 : RP_GROUPED_128X128;
    if ((args->form == RP_MATMUL_TN ? args->m : mean_rows(args)) <= 64)
        return RP_GROUPED_64X128;
    if (grouped_has_wgmma(args))
        return wgmma_of(args);
    return grouped_has_depth(args) ? RP_GROUPED_128X128_DEEP : RP_GROUPED_128X128;
}

cudaError_t
rp_cuda_grouped_matmul_by(RpGroupedVariant variant, const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    if (!rp_cuda_grouped_variant_can(variant, args))
        return cudaErrorInvalidValue;
    return is_empty(args) ? cudaSuccess : variants[variant].launch(args, stream);
}

size_t
rp_cuda_grouped_matmul_workspace(const RpGroupedMatmulArgs *args)
{
    return 0;
}

cudaError_t
rp_cuda_grouped_matmul(const RpGroupedMatmulArgs *args, cudaStream_t stream)
{
    const int variant = rp_cuda_grouped_variant_of(args);

    return variant < 0 ? cudaErrorInvalidValue
                   : rp_cuda_grouped_matmul_by((RpGroupedVariant)variant, args, stream);
}
