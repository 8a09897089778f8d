/*
 * FP8: E4M3 (1 sign, 4 exponent, 3 mantissa; largest 448, no infinity) times an fp32 scale, blocks of
 * 128 x 128 of each matrix; those at its right and lower edge may be smaller.
 *
 *   factor = (1 / largest |x|) 448, as torch divides (1 for a block of zeros);
 *   code = x factor, rounded to nearest, ties to even;  scale = 1 / factor
 *
 * Largest magnitudes below 2^-100 count as 2^-100, so that the factor is finite.
 * Source: transformers integrations/finegrained_fp8.py (Fp8Quantize); OCP FP8 1.0
 */
#include "core/base/fp8.h"
#include "core/lowbit/private.h"

#define LEAST 0x1p-100f

static void
sizes(RpLowbitShape shape, size_t bytes[RP_N_LOWBIT_PARTS])
{
    bytes[RP_LOWBIT_QUANTIZED] = rp_lowbit_elements(shape);
    bytes[RP_LOWBIT_SCALES] = shape.matrices * rp_lowbit_blocks(shape.rows, RP_FP8_BLOCK) *
                              rp_lowbit_blocks(shape.columns, RP_FP8_BLOCK) * sizeof(float);
}

/* The first scale of a row's band of blocks; @row counts over all matrices. */
static const float *
scales_of(RpLowbitShape shape, const RpLowbitTensor *tensor, size_t row)
{
    const size_t bands = rp_lowbit_blocks(shape.rows, RP_FP8_BLOCK);
    const size_t band = row / shape.rows * bands + row % shape.rows / RP_FP8_BLOCK;

    return (const float *)tensor->part[RP_LOWBIT_SCALES] +
           band * rp_lowbit_blocks(shape.columns, RP_FP8_BLOCK);
}

static void
expand(RpLowbitShape shape, const RpLowbitTensor *tensor, size_t row, size_t column, size_t n,
       float *values)
{
    const float *scales = scales_of(shape, tensor, row) + column / RP_FP8_BLOCK;
    const unsigned char *quantized =
        tensor->part[RP_LOWBIT_QUANTIZED] + row * shape.columns + column;

    for (size_t i = 0; i < n; i += RP_FP8_BLOCK) {
        const size_t end = n - i < RP_FP8_BLOCK ? n : i + RP_FP8_BLOCK;

        for (size_t k = i; k < end; k++)
            values[k] = rp_float_from_e4m3(quantized[k]) * scales[i / RP_FP8_BLOCK];
    }
}

/* A block's part of one row, as floats. */
typedef struct {
    float values[RP_FP8_BLOCK];
} Line;

static size_t
pack_block(RpLowbitShape shape, RpDtype dtype, const unsigned char *source, size_t first_row,
           size_t rows, size_t column, size_t n, unsigned char *quantized, float *scale)
{
    float largest = 0;
    Line line;

    for (size_t row = first_row; row < first_row + rows; row++) {
        const size_t at = row * shape.columns + column;

        rp_dtype_to_float(dtype, source + at * rp_dtype_size(dtype), line.values, n);
        const size_t broken = rp_lowbit_first_broken(line.values, n);
        if (broken < n)
            return at + broken;
        const float here = rp_lowbit_largest(line.values, n);
        largest = here > largest ? here : largest;
    }
    const float divisor = largest > LEAST ? largest : LEAST;
    const float factor = largest > 0 ? 1.0f / divisor * RP_E4M3_LARGEST : 1;
    *scale = 1.0f / factor;
    for (size_t row = first_row; row < first_row + rows; row++) {
        const size_t at = row * shape.columns + column;

        rp_dtype_to_float(dtype, source + at * rp_dtype_size(dtype), line.values, n);
        for (size_t i = 0; i < n; i++)
            quantized[at + i] = rp_e4m3_from_float(line.values[i] * factor);
    }
    return RP_LOWBIT_NONE;
}

static size_t
pack(RpLowbitShape shape, RpDtype dtype, const unsigned char *source, size_t strip,
     const RpLowbitTensor *tensor, float *scales)
{
    const size_t bands = rp_lowbit_blocks(shape.rows, RP_FP8_BLOCK);
    const size_t blocks = rp_lowbit_blocks(shape.columns, RP_FP8_BLOCK);
    const size_t in_matrix = strip % bands * RP_FP8_BLOCK;
    const size_t first_row = strip / bands * shape.rows + in_matrix;
    const size_t rows =
        shape.rows - in_matrix < RP_FP8_BLOCK ? shape.rows - in_matrix : RP_FP8_BLOCK;
    size_t first = RP_LOWBIT_NONE;

    for (size_t b = 0; b < blocks; b++) {
        const size_t column = b * RP_FP8_BLOCK;
        const size_t left = shape.columns - column;
        const size_t broken =
            pack_block(shape, dtype, source, first_row, rows, column,
                       left < RP_FP8_BLOCK ? left : RP_FP8_BLOCK, tensor->part[RP_LOWBIT_QUANTIZED],
                       (float *)tensor->part[RP_LOWBIT_SCALES] + strip * blocks + b);

        first = broken < first ? broken : first;
    }
    return first;
}

const RpLowbitFormat rp_lowbit_fp8 = {
    .name = "fp8",
    .strip_rows = RP_FP8_BLOCK,
    .sizes = sizes,
    .expand = expand,
    .pack = pack,
};
