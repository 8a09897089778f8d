/*
 * MXFP4: E2M1 times 2^(scale - 127), blocks of 32 along a row; a row's last block may be shorter and
 * is filled with zeros.
 *
 *   scale - 127 = floor(log2(largest |x|)) - 2, from -127 to 125;  code = x / 2^(scale - 127) rounded
 *   to the nearest of 0 .5 1 1.5 2 3 4 6, ties to the even code, larger magnitudes to 6
 *
 * A scale of 255 is NaN.
 * Source: OCP Microscaling Formats 1.0, §5.3.3, §5.4.1 and §6.3
 */
#include "core/lowbit/private.h"

static const float mxfp4_values[16] = {RP_MXFP4_VALUES};

static void
sizes(RpLowbitShape shape, size_t bytes[RP_N_LOWBIT_PARTS])
{
    const size_t blocks =
        shape.matrices * shape.rows * rp_lowbit_blocks(shape.columns, RP_MXFP4_BLOCK);

    bytes[RP_LOWBIT_QUANTIZED] = blocks * RP_MXFP4_BLOCK / 2;
    bytes[RP_LOWBIT_SCALES] = blocks;
}

/* 2^(scale - 127); the smallest is subnormal. */
static float
power_of_two(unsigned char scale)
{
    if (scale == 255)
        return rp_float_from_bits(0x7fc00000);
    return rp_float_from_bits(scale == 0 ? 0x00400000 : (uint32_t)scale << 23);
}

static void
expand(RpLowbitShape shape, const RpLowbitTensor *tensor, size_t row, size_t column, size_t n,
       float *values)
{
    const size_t first =
        row * rp_lowbit_blocks(shape.columns, RP_MXFP4_BLOCK) + column / RP_MXFP4_BLOCK;

    for (size_t i = 0; i < n; i += RP_MXFP4_BLOCK) {
        const size_t block = first + i / RP_MXFP4_BLOCK;
        const size_t count = n - i < RP_MXFP4_BLOCK ? n - i : RP_MXFP4_BLOCK;
        const float scale = power_of_two(tensor->part[RP_LOWBIT_SCALES][block]);
        const unsigned char *quantized =
            tensor->part[RP_LOWBIT_QUANTIZED] + block * (RP_MXFP4_BLOCK / 2);

        for (size_t k = 0; k < count; k++)
            values[i + k] = mxfp4_values[quantized[k / 2] >> k % 2 * 4 & 15] * scale;
    }
}

static void
pack_block(const float values[RP_MXFP4_BLOCK], unsigned char *quantized, unsigned char *scale)
{
    const uint32_t exponent = rp_float_bits(rp_lowbit_largest(values, RP_MXFP4_BLOCK)) >> 23;
    const uint32_t biased = exponent > 2 ? exponent - 2 : 0;
    /* 2^(127 - biased); 2^127 if biased is 0 */
    const float factor = rp_float_from_bits((254 - biased) << 23);
    unsigned char code[RP_MXFP4_BLOCK];

    for (size_t i = 0; i < RP_MXFP4_BLOCK; i++) {
        const uint32_t bits = rp_float_bits(values[i] * factor);
        const float x = rp_float_from_bits(bits & 0x7fffffff);
        const int magnitude = (x > 0.25f) + (x >= 0.75f) + (x > 1.25f) + (x >= 1.75f) + (x > 2.5f) +
                              (x >= 3.5f) + (x > 5.0f);

        code[i] = (unsigned char)(magnitude | (int)(bits >> 28 & 8));
    }
    for (size_t i = 0; i < RP_MXFP4_BLOCK; i += 2)
        quantized[i / 2] = (unsigned char)(code[i] | code[i + 1] << 4);
    *scale = (unsigned char)biased;
}

static size_t
pack(RpLowbitShape shape, RpDtype dtype, const unsigned char *source, size_t strip,
     const RpLowbitTensor *tensor, float *scales)
{
    const size_t blocks = rp_lowbit_blocks(shape.columns, RP_MXFP4_BLOCK);
    const size_t first = strip * shape.columns;

    for (size_t b = 0; b < blocks; b++) {
        const size_t at = first + b * RP_MXFP4_BLOCK;
        const size_t left = first + shape.columns - at;
        const size_t n = left < RP_MXFP4_BLOCK ? left : RP_MXFP4_BLOCK;
        const size_t block = strip * blocks + b;
        float values[RP_MXFP4_BLOCK] = {0};

        rp_dtype_to_float(dtype, source + at * rp_dtype_size(dtype), values, n);
        const size_t broken = rp_lowbit_first_broken(values, n);
        if (broken < n)
            return at + broken;
        pack_block(values, tensor->part[RP_LOWBIT_QUANTIZED] + block * (RP_MXFP4_BLOCK / 2),
                   &tensor->part[RP_LOWBIT_SCALES][block]);
    }
    return RP_LOWBIT_NONE;
}

const RpLowbitFormat rp_lowbit_mxfp4 = {
    .name = "mxfp4",
    .strip_rows = 1,
    .sizes = sizes,
    .expand = expand,
    .pack = pack,
};
