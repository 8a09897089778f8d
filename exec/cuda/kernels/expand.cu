/*
 * Packed weights to a storage that layers read (core/lowbit/lowbit.h).
 *
 *   y[i] = round(value(code[i]) scale[block of i])                                              =
 *   nf4: scale = map[8 bits] nested scale + offset, each operation rounded
 *
 * [matrices,rows,columns]; fp32 arithmetic without fused multiply-adds, so that the bits are the
 * host's. A thread takes packs of eight elements of one row, which have one scale: it reads their
 * quantized values at once, four or eight bytes, and writes 16 bytes of a 16-bit storage. The table
 * for 4-bit values is in shared memory, one entry a bank. Blocks of 256 threads that stride over
 * the tensor. Oracle: exec/host/elements.c
 */
#include <type_traits>

#include "exec/cuda/base/common.cuh"

#define THREADS 256
#define MOST_BLOCKS 4096

/* Addresses of the parts of a tensor, and the division of its rows. */
typedef struct {
    const unsigned char *quantized;
    const unsigned char *scales;
    const float *nested;
    const float *map;
    const float *offset;
    uint32_t packs;        /* packs of all rows */
    uint32_t packs_in_row; /* eight elements, but the last of a row */
    uint32_t rows;         /* rows of a matrix */
    size_t columns;
    uint32_t blocks_in_row;
    uint32_t bands; /* fp8: rows of blocks of a matrix */
} Packed;

static __device__ const float nf4_values[16] = {RP_NF4_VALUES};
static __device__ const float mxfp4_values[16] = {RP_MXFP4_VALUES};

/* The scale of eight elements from @column of @row on. */
template <int FORMAT>
__device__ __forceinline__ float
scale_of(const Packed &packed, uint32_t row, size_t column)
{
    if (FORMAT == RP_LOWBIT_NF4) {
        const size_t block = column / RP_NF4_BLOCK;

        return __fadd_rn(
            __fmul_rn(packed.map[packed.scales[block]], packed.nested[block / RP_NF4_NESTED_BLOCK]),
            *packed.offset);
    }
    if (FORMAT == RP_LOWBIT_NF4_SINGLE)
        return ((const float *)packed.scales)[column / RP_NF4_BLOCK];
    if (FORMAT == RP_LOWBIT_MXFP4) {
        const uint32_t scale =
            packed.scales[(size_t)row * packed.blocks_in_row + column / RP_MXFP4_BLOCK];

        return __uint_as_float(scale == 255 ? 0x7fc00000u : scale == 0 ? 0x00400000u : scale << 23);
    }
    const size_t band =
        (size_t)(row / packed.rows) * packed.bands + row % packed.rows / RP_FP8_BLOCK;

    return ((const float *)packed.scales)[band * packed.blocks_in_row + column / RP_FP8_BLOCK];
}

__device__ __forceinline__ float
from_e4m3(uint32_t code)
{
    const uint32_t magnitude = code & 0x7f;
    const float value = __fmul_rn(__uint_as_float(magnitude << 20), 0x1p120f);

    return __uint_as_float((magnitude == 0x7f ? 0x7fc00000u : __float_as_uint(value)) |
                           (code & 0x80) << 24);
}

/* The values of eight elements, before they are scaled. Parts end at multiples of 64 bytes: bytes
 * beyond a row's end may be read, and are not stored. */
template <int FORMAT>
__device__ __forceinline__ void
load_values(const Packed &packed, const float *table, uint32_t row, size_t column, size_t count,
            bool wide, float values[RP_PACK])
{
    if (FORMAT == RP_LOWBIT_FP8) {
        const unsigned char *quantized = packed.quantized + (size_t)row * packed.columns + column;
        uint2 eight = {0, 0};

        if (wide)
            eight = *(const uint2 *)quantized;
#pragma unroll
        for (int i = 0; i < RP_PACK; i++) {
            uint32_t code = (i < 4 ? eight.x : eight.y) >> i % 4 * 8 & 0xff;

            if (!wide)
                code = (size_t)i < count ? quantized[i] : 0;
            values[i] = from_e4m3(code);
        }
        return;
    }
    const size_t first = FORMAT == RP_LOWBIT_MXFP4
                             ? (size_t)row * packed.blocks_in_row * RP_MXFP4_BLOCK + column
                             : column;
    const uint32_t quantized = *(const uint32_t *)(packed.quantized + first / 2);

#pragma unroll
    for (int i = 0; i < RP_PACK; i++) {
        const int half = FORMAT == RP_LOWBIT_MXFP4 ? i % 2 : 1 - i % 2;

        values[i] = table[quantized >> (i / 2 * 8 + half * 4) & 15];
    }
}

template <typename T, int FORMAT>
static __global__ void
__launch_bounds__(THREADS) expand_kernel(Packed packed, T *y, bool wide)
{
    const bool is_flat = FORMAT == RP_LOWBIT_NF4 || FORMAT == RP_LOWBIT_NF4_SINGLE;
    __shared__ float table[16];

    if (FORMAT != RP_LOWBIT_FP8) {
        if (threadIdx.x < 16)
            table[threadIdx.x] = is_flat ? nf4_values[threadIdx.x] : mxfp4_values[threadIdx.x];
        __syncthreads();
    }
    for (size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x; at < packed.packs;
         at += (size_t)gridDim.x * THREADS) {
        const uint32_t row = is_flat ? 0 : (uint32_t)at / packed.packs_in_row;
        const size_t column = (size_t)((uint32_t)at - row * packed.packs_in_row) * RP_PACK;
        const size_t count = packed.columns - column;
        const float scale = scale_of<FORMAT>(packed, row, column);
        float values[RP_PACK];
        Pack<T> pack;

        load_values<FORMAT>(packed, table, row, column, count, packed.columns % RP_PACK == 0,
                            values);
#pragma unroll
        for (int i = 0; i < RP_PACK; i++)
            pack.at[i] = from_float<T>(__fmul_rn(values[i], scale));
        store_pack(y + (size_t)row * packed.columns + column, pack, count, wide);
    }
}

/* Calls f(constant) with the format as a type. */
template <typename F>
static cudaError_t
for_format(RpLowbit format, F f)
{
    switch (format) {
    case RP_LOWBIT_NF4:
        return f(std::integral_constant<int, RP_LOWBIT_NF4>());
    case RP_LOWBIT_NF4_SINGLE:
        return f(std::integral_constant<int, RP_LOWBIT_NF4_SINGLE>());
    case RP_LOWBIT_MXFP4:
        return f(std::integral_constant<int, RP_LOWBIT_MXFP4>());
    case RP_LOWBIT_FP8:
        return f(std::integral_constant<int, RP_LOWBIT_FP8>());
    }
    return cudaErrorInvalidValue;
}

cudaError_t
rp_cuda_expand(const RpExpandArgs *args, cudaStream_t stream)
{
    const RpLowbitLayout layout = rp_lowbit_layout(args->format, args->shape);
    const bool is_flat = args->format == RP_LOWBIT_NF4 || args->format == RP_LOWBIT_NF4_SINGLE;
    const unsigned char *bytes = (const unsigned char *)args->packed;
    const size_t rows = is_flat ? 1 : args->shape.matrices * args->shape.rows;
    const size_t columns = is_flat ? rp_lowbit_elements(args->shape) : args->shape.columns;
    const size_t packs = rows * ceil_divide(columns, RP_PACK);
    const size_t blocks = ceil_divide(packs, THREADS);
    Packed packed;

    if (packs == 0)
        return cudaSuccess;
    if (packs > UINT32_MAX)
        return cudaErrorInvalidValue;
    packed.quantized = bytes + layout.at[RP_LOWBIT_QUANTIZED];
    packed.scales = bytes + layout.at[RP_LOWBIT_SCALES];
    packed.nested = (const float *)(bytes + layout.at[RP_LOWBIT_NESTED_SCALES]);
    packed.map = (const float *)(bytes + layout.at[RP_LOWBIT_NESTED_MAP]);
    packed.offset = (const float *)(bytes + layout.at[RP_LOWBIT_OFFSET]);
    packed.packs = (uint32_t)packs;
    packed.packs_in_row = (uint32_t)ceil_divide(columns, RP_PACK);
    packed.rows = (uint32_t)args->shape.rows;
    packed.columns = columns;
    packed.blocks_in_row = (uint32_t)ceil_divide(
        columns, args->format == RP_LOWBIT_MXFP4 ? RP_MXFP4_BLOCK : RP_FP8_BLOCK);
    packed.bands = (uint32_t)ceil_divide(args->shape.rows, RP_FP8_BLOCK);
    return for_dtype(args->dtype, [&](auto zero) {
        using T = decltype(zero);

        return for_format(args->format, [&](auto format) {
            expand_kernel<T, decltype(format)::value>
                <<<(unsigned)(blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS), THREADS, 0, stream>>>(
                    packed, (T *)args->y,
                    is_wide(args->y) && (rows == 1 || columns % RP_PACK == 0));
            return cudaGetLastError();
        });
    });
}
