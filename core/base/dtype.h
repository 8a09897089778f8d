/**
 * The number formats of weights and gradients: names, sizes, and conversion from and to float.
 *
 *   fp32  1 sign  8 exponent  23 mantissa
 *   bf16  1       8            7            the upper half of fp32
 *   fp16  1       5           10            IEEE 754 binary16
 *
 * and of the quantized values that matmuls may read (core/base/fp8.h): e4m3, e5m2.
 *
 * Narrowing rounds to nearest, ties to even; too large values become infinite; a NaN stays a NaN
 * (quiet, its upper bits kept); subnormals are exact. The bits are those of the F16C instructions,
 * on every machine. Conversions of one value are free of branches, so that a compiler can vectorise
 * a loop over them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef enum {
    RP_DTYPE_FP32,
    RP_DTYPE_BF16,
    RP_DTYPE_FP16,
    RP_N_DTYPES, /* formats of weights and activations; quantized ones follow, which need a scale */
    RP_DTYPE_E4M3 = RP_N_DTYPES,
    RP_DTYPE_E5M2,
} RpDtype;
#define RP_N_DTYPES_AND_FP8 5

/* Bytes of an element. */
static inline size_t
rp_dtype_size(RpDtype dtype)
{
    return dtype == RP_DTYPE_FP32 ? 4 : dtype < RP_N_DTYPES ? 2 : 1;
}

/* "fp32", "bf16", "fp16", "e4m3", "e5m2": as our options and profiles spell it. */
const char *rp_dtype_name(RpDtype dtype);
extern const char *const rp_dtype_names[RP_N_DTYPES_AND_FP8 + 1]; /* the same; the last is NULL */
/* "F32", "BF16", "F16": as safetensors spells it; quantized formats have none. */
const char *rp_dtype_safetensors_name(RpDtype dtype);
/* "float32", "bfloat16", "float16": as config.json spells it; quantized formats have none. */
const char *rp_dtype_torch_name(RpDtype dtype);

/* The format, not a quantized one, that one of the three functions above calls @name. Returns:
 * whether there is one. */
bool rp_dtype_parse(const char *name, const char *(*spelling)(RpDtype), RpDtype *dtype);

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

static inline uint16_t
rp_bf16_from_float(float value)
{
    const uint32_t bits = rp_float_bits(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t nan = bits >> 16 | 0x0040; /* the upper half alone might be infinite */

    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline float
rp_float_from_bf16(uint16_t bits)
{
    return rp_float_from_bits((uint32_t)bits << 16);
}

static inline uint16_t
rp_fp16_from_float(float value)
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

static inline float
rp_float_from_fp16(uint16_t bits)
{
    /* the fp16 fields read as an fp32 are 2^112 too small; scaling also settles subnormals */
    const uint32_t shifted = (uint32_t)(bits & 0x7fff) << 13;
    const uint32_t scaled = rp_float_bits(rp_float_from_bits(shifted) * 0x1p112f);
    const uint32_t not_finite = shifted >= 0x0f800000 ? 0x7f800000 : 0;
    const uint32_t quiet = shifted > 0x0f800000 ? 0x00400000 : 0;

    return rp_float_from_bits(scaled | not_finite | quiet | (uint32_t)(bits & 0x8000) << 16);
}

/* Value @i of the array @values, which is aligned to its elements and not quantized. */
static inline float
rp_dtype_get(RpDtype dtype, const void *values, size_t i)
{
    if (dtype == RP_DTYPE_FP32)
        return ((const float *)values)[i];
    const uint16_t half = ((const uint16_t *)values)[i];
    return dtype == RP_DTYPE_BF16 ? rp_float_from_bf16(half) : rp_float_from_fp16(half);
}

static inline void
rp_dtype_set(RpDtype dtype, void *values, size_t i, float value)
{
    if (dtype == RP_DTYPE_FP32)
        ((float *)values)[i] = value;
    else
        ((uint16_t *)values)[i] =
            dtype == RP_DTYPE_BF16 ? rp_bf16_from_float(value) : rp_fp16_from_float(value);
}

/**
 * rp_dtype_to_float:
 * @source: @n elements of @dtype, little-endian, at any address
 * @values: (out): @n floats; may not overlap @source
 */
void rp_dtype_to_float(RpDtype dtype, const void *source, float *values, size_t n);

/* The other direction; @target at any address. */
void rp_dtype_from_float(RpDtype dtype, const float *values, void *target, size_t n);
