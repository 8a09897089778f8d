/*
 * Quantization to fp8 for matmuls, and the amax for their scale (core/base/fp8.h).
 *
 *   largest    largest[0] = max(largest[0], max_i |x[i]|): bits of magnitudes are in its order
 *   quantise   quantized[r,c] = transposed[c,r] = x[r,c] / scale, of x in e4m3 x[r,c]                      =
 *
 * largest: blocks of 256 threads that stride over packs; a warp's maximum joins by an atomic one, whose
 * result no order changes.
 *
 * quantise reads x once and writes both. A block of 256 threads has a tile of 128 x 128; a thread,
 * 4 rows x 8 columns twice:
 *
 *            8 columns             column 0   |r0 r1 r2 r3|     a word of shared memory each,
 *   4 rows  |c0 .. c7|  -> transposed ->  1   |r0 r1 r2 r3|     at word (column, row / 4 ^ swizzle):
 *           |c0 .. c7|                   ..                    a warp then writes 128 rows of a
 *           |c0 .. c7|                                         column of transposed, 128 bytes
 *
 * On sm_80 and 86, which have no such conversion, CUDA's header does it by integers. Values that
 * are not finite are looked for only if the amax shows that there are some: the same for a whole
 * launch. Oracle: exec/host/elements.c
 */
#include <cuda_fp8.h>

#include "exec/cuda/base/common.cuh"

#define RP_SHARED static __host__ __device__ __forceinline__
#include "core/base/fp8.h"

#define THREADS 256
#define MOST_BLOCKS 2048
#define TILE 128
#define WORDS (TILE / 4) /* words of a column: four rows each */
#define PATCHES 2        /* patches of 4 x 8, a thread's */

/* Fp8 values that are taken as they are. */
template <> struct alignas(8) Pack<unsigned char> {
    unsigned char at[RP_PACK];
};

template <>
__device__ __forceinline__ unsigned char
from_float<unsigned char>(float)
{
    return 0;
}

template <typename T>
static __global__ void
__launch_bounds__(THREADS) largest_kernel(size_t n, const T *x, float *largest, bool wide)
{
    const size_t stride = (size_t)gridDim.x * THREADS * RP_PACK;
    unsigned most = 0;

#pragma unroll 4
    for (size_t first = ((size_t)blockIdx.x * THREADS + threadIdx.x) * RP_PACK; first < n;
         first += stride)
        most = larger_of(most, load_pack(x + first, n - first, wide));
    note_largest_of_block(largest, most);
}

/* Packs four fp8 values into a word, the first in the lowest byte. */
template <bool E5M2>
__device__ __forceinline__ unsigned
encode_four(const float *x)
{
    const __nv_fp8_interpretation_t format = E5M2 ? __NV_E5M2 : __NV_E4M3;
    const unsigned low = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, format);
    const unsigned high = __nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE, format);

    return low | high << 16;
}

/* Values that are not finite become NaN. */
__device__ __forceinline__ unsigned
break_four(unsigned quantized, const float *x)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (!isfinite(x[i]))
            quantized = (quantized & ~(0xffu << i * 8)) | (unsigned)RP_FP8_NAN << i * 8;
    return quantized;
}

/* Quantizes eight neighbours. */
template <typename T, bool E5M2>
__device__ __forceinline__ uint2
encode_pack(const Pack<T> &pack, float factor, bool broken)
{
    uint2 quantized;

    if constexpr (sizeof(T) == 1) {
        memcpy(&quantized, pack.at, sizeof quantized);
    } else {
        float x[RP_PACK];

#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            x[i] = to_float(pack.at[i]) * factor;
        quantized.x = encode_four<E5M2>(x);
        quantized.y = encode_four<E5M2>(x + 4);
        if (broken) {
            quantized.x = break_four(quantized.x, x);
            quantized.y = break_four(quantized.y, x + 4);
        }
    }
    return quantized;
}

/* Transposes rows of four fp8 values: word i of @rows has row i. */
__device__ __forceinline__ void
turn_four(const unsigned (&rows)[4], unsigned *columns)
{
    const unsigned low01 = __byte_perm(rows[0], rows[1], 0x5140);  /* 00 10 01 11 */
    const unsigned high01 = __byte_perm(rows[0], rows[1], 0x7362); /* 02 12 03 13 */
    const unsigned low23 = __byte_perm(rows[2], rows[3], 0x5140);
    const unsigned high23 = __byte_perm(rows[2], rows[3], 0x7362);

    columns[0] = __byte_perm(low01, low23, 0x5410);
    columns[1] = __byte_perm(low01, low23, 0x7632);
    columns[2] = __byte_perm(high01, high23, 0x5410);
    columns[3] = __byte_perm(high01, high23, 0x7632);
}

/* The place of four rows of a column in the tile: no two threads of a warp write to one bank, nor
 * read from one. */
__device__ __forceinline__ unsigned
word_of(unsigned column, unsigned four)
{
    return column * WORDS + (four ^ (column / RP_PACK * 2 % WORDS));
}

template <typename T> struct Quantise {
    size_t rows, columns;
    const T *x;
    const float *largest;
    unsigned char *quantized, *transposed;
    float *scale;
};

/* WIDE: packs of x, of eight fp8 values, and of four transposed ones stand at multiples of their
 * sizes, and are complete or absent. Else values go one by one. */
template <bool WIDE, typename T>
__device__ __forceinline__ Pack<T>
load_row(const Quantise<T> &args, size_t row, size_t column)
{
    const T *source = args.x + row * args.columns + column;
    const bool here = row < args.rows && column < args.columns;

    if constexpr (WIDE)
        return here ? *reinterpret_cast<const Pack<T> *>(source) : Pack<T>{};
    else
        return load_pack(source, here ? args.columns - column : 0, false);
}

template <bool WIDE, typename T>
__device__ __forceinline__ void
store_codes(const Quantise<T> &args, size_t row, size_t column, uint2 quantized)
{
    unsigned char *target = args.quantized + row * args.columns + column;

    if (row >= args.rows || column >= args.columns)
        return;
    if constexpr (WIDE) {
        *reinterpret_cast<uint2 *>(target) = quantized;
    } else {
        for (int i = 0; i < RP_PACK; i++)
            if (column + i < args.columns)
                target[i] = (unsigned char)((i < 4 ? quantized.x : quantized.y) >> i % 4 * 8);
    }
}

/* Stores the transpose of a tile in shared memory whose columns and rows begin at @column and
 * @row. */
template <bool WIDE, typename T>
__device__ __forceinline__ void
store_transposed(const Quantise<T> &args, const unsigned *tile, size_t column, size_t row)
{
    const unsigned lane = threadIdx.x % 32;
    const size_t first = row + lane * 4;

#pragma unroll 4
    for (unsigned c = threadIdx.x / 32; c < TILE; c += THREADS / 32) {
        const unsigned word = tile[word_of(c, lane)];
        unsigned char *target = args.transposed + (column + c) * args.rows + first;

        if (column + c >= args.columns || first >= args.rows)
            continue;
        if constexpr (WIDE) {
            *reinterpret_cast<unsigned *>(target) = word;
        } else {
            for (int i = 0; i < 4; i++)
                if (first + i < args.rows)
                    target[i] = (unsigned char)(word >> i * 8);
        }
    }
}

template <typename T, bool E5M2, bool WIDE>
static __global__ void
__launch_bounds__(THREADS, WIDE && sizeof(T) == 2 ? 3 : 2) quantise_kernel(const Quantise<T> args)
{
    __shared__ unsigned tile[TILE * WORDS];
    const unsigned largest = __float_as_uint(*args.largest);
    const unsigned exponent = rp_fp8_scale_exponent(E5M2 ? RP_DTYPE_E5M2 : RP_DTYPE_E4M3, largest);
    const float factor = __uint_as_float(rp_fp8_factor_exponent(exponent) << 23);
    const bool broken = largest >= 0x7f800000u;
    const unsigned c = threadIdx.x % (TILE / RP_PACK) * RP_PACK;
    const unsigned strand = threadIdx.x / (TILE / RP_PACK);
    const size_t column = (size_t)blockIdx.x * TILE, row = (size_t)blockIdx.y * TILE;
    Pack<T> packs[PATCHES][4];

    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *args.scale = sizeof(T) == 1 ? *args.largest : __uint_as_float(exponent << 23);
#pragma unroll
    for (int patch = 0; patch < PATCHES; patch++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            packs[patch][i] = load_row<WIDE>(
                args, row + (patch * (WORDS / PATCHES) + strand) * 4 + i, column + c);
#pragma unroll
    for (int patch = 0; patch < PATCHES; patch++) {
        const unsigned four = patch * (WORDS / PATCHES) + strand;
        unsigned low[4], high[4], columns[RP_PACK];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint2 quantized = encode_pack<T, E5M2>(packs[patch][i], factor, broken);

            low[i] = quantized.x;
            high[i] = quantized.y;
            if (args.quantized)
                store_codes<WIDE>(args, row + four * 4 + i, column + c, quantized);
        }
        turn_four(low, columns);
        turn_four(high, columns + 4);
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            tile[word_of(c + i, four)] = columns[i];
    }
    if (!args.transposed)
        return;
    __syncthreads();
    store_transposed<WIDE>(args, tile, column, row);
}

cudaError_t
rp_cuda_largest(const RpLargestArgs *args, cudaStream_t stream)
{
    const size_t blocks = ceil_divide(args->n, THREADS * RP_PACK * 4);

    if (args->n == 0)
        return cudaSuccess;
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        largest_kernel<T>
            <<<(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS, 0, stream>>>(
                args->n, (const T *)args->x, args->largest, is_wide(args->x));
        return cudaGetLastError();
    });
}

static bool
is_at_multiple(const void *array, size_t bytes)
{
    return (uintptr_t)array % bytes == 0;
}

template <typename T, bool E5M2>
static cudaError_t
quantise(const RpQuantiseArgs *args, dim3 blocks, cudaStream_t stream)
{
    const Quantise<T> all = {args->rows,      args->columns,    (const T *)args->x, args->largest,
                             args->quantized, args->transposed, args->scale};

    if (rows_are_wide(args->x, args->columns) && is_at_multiple(args->quantized, RP_PACK) &&
        is_at_multiple(args->transposed, 4) && args->rows % 4 == 0)
        quantise_kernel<T, E5M2, true><<<blocks, THREADS, 0, stream>>>(all);
    else
        quantise_kernel<T, E5M2, false><<<blocks, THREADS, 0, stream>>>(all);
    return cudaGetLastError();
}

cudaError_t
rp_cuda_quantise(const RpQuantiseArgs *args, cudaStream_t stream)
{
    const dim3 blocks((unsigned)ceil_divide(args->columns, TILE),
                      (unsigned)ceil_divide(args->rows, TILE));

    if (args->rows == 0 || args->columns == 0)
        return cudaSuccess;
    if (blocks.y > 65535)
        return cudaErrorInvalidValue;
    if (args->dtype == RP_DTYPE_E4M3)
        return quantise<unsigned char, false>(args, blocks, stream);
    return for_dtype(args->dtype, [=](auto zero) {
        using T = decltype(zero);

        return args->code == RP_DTYPE_E4M3 ? quantise<T, false>(args, blocks, stream)
                                           : quantise<T, true>(args, blocks, stream);
    });
}
