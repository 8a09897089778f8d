/**
 * Number formats of gradients and weights, and their conversions, one value at a time.
 *
 * Every conversion rounds to nearest, ties to even, keeps subnormals, and is free of branches, so
 * that a compiler can vectorise a loop over it. To fp16 the bits are those of the F16C
 * instructions; to bf16 a NaN becomes 0x7fc0, as in PyTorch.
 */
#pragma once

#include <glib.h>
#include <stdint.h>
#include <string.h>

typedef enum { RP_NUMBER_FP32, RP_NUMBER_BF16, RP_NUMBER_FP16 } RpNumber;

/* Bytes of one value. */
static inline gsize
rp_number_bytes(RpNumber number)
{
    return number == RP_NUMBER_FP32 ? 4 : 2;
}

static inline uint32_t
rp_float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float
rp_float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float
rp_number_from_bf16(uint16_t bf16)
{
    return rp_float_from_bits((uint32_t)bf16 << 16);
}

static inline uint16_t
rp_number_to_bf16(float value)
{
    const uint32_t bits = rp_float_bits(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

static inline float
rp_number_from_fp16(uint16_t fp16)
{
    /* the fp16 fields read as an fp32 are 2^112 too small; scaling also settles subnormals */
    const uint32_t shifted = (uint32_t)(fp16 & 0x7fff) << 13;
    const uint32_t scaled = rp_float_bits(rp_float_from_bits(shifted) * 0x1p112f);
    const uint32_t not_finite = shifted >= 0x0f800000 ? 0x7f800000 : 0;
    const uint32_t quiet = shifted > 0x0f800000 ? 0x00400000 : 0;
    return rp_float_from_bits(scaled | not_finite | quiet | (uint32_t)(fp16 & 0x8000) << 16);
}

static inline uint16_t
rp_number_to_fp16(float value)
{
    const uint32_t bits = rp_float_bits(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    /* adding 0.5 shifts a subnormal's mantissa into place and rounds it */
    const uint32_t subnormal =
        rp_float_bits(rp_float_from_bits(magnitude < 0x38800000 ? magnitude : 0) + 0.5f) -
        0x3f000000;
    const uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x1ff);
    uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
    result = magnitude >= 0x47800000 ? 0x7c00 : result;
    result = magnitude > 0x7f800000 ? nan : result;
    return (uint16_t)(result | (bits >> 16 & 0x8000));
}

/* Value @i of the array @values of @number. */
static inline float
rp_number_get(RpNumber number, const void *values, gsize i)
{
    if (number == RP_NUMBER_FP32)
        return ((const float *)values)[i];
    const uint16_t half = ((const uint16_t *)values)[i];
    return number == RP_NUMBER_BF16 ? rp_number_from_bf16(half) : rp_number_from_fp16(half);
}

static inline void
rp_number_set(RpNumber number, void *values, gsize i, float value)
{
    if (number == RP_NUMBER_FP32)
        ((float *)values)[i] = value;
    else
        ((uint16_t *)values)[i] =
            number == RP_NUMBER_BF16 ? rp_number_to_bf16(value) : rp_number_to_fp16(value);
}
