/**
 * Numbers of 8 bits, which matmuls read, and the scale of a tensor of them.
 *
 *   e4m3  1 sign  4 exponent  3 mantissa   largest 448; no infinity, NaN is 0x7f
 *   e5m2  1       5           2            largest 57344; the upper half of fp16
 *
 *   scale = 2^k, the least with (largest |x|) / scale no larger than the format has, k >= -62;
 *           1 if all are 0, or one is not finite
 *   code  = x / scale, rounded to nearest, ties to even; not finite: NaN
 *
 * A power of two: neither x / scale nor code x scale rounds, and sums of products have the scales taken
 * out of them exactly. Products of two scales are no subnormals, which GPUs may flush to 0.
 *
 * Plain C that GPUs share: who wants functions of another kind defines RP_SHARED before. Free of
 * branches, as core/base/dtype.h. Source: OCP FP8 1.0
 */
#pragma once

#include "core/base/dtype.h"

#ifndef RP_SHARED
#define RP_SHARED static inline
#endif

#define RP_FP8_LEAST_SCALE (127 - 62) /* as an exponent of fp32 */
#define RP_E4M3_LARGEST 448.0f
#define RP_E5M2_LARGEST 57344.0f
#define RP_FP8_NAN 0x7f

/* The name that settings and timing files give to fp8 matmuls. @blocks: used in blocks; @head: in
 * the head, too */
static inline const char *
rp_fp8_name(int blocks, int head)
{
    return head ? "fp8-head" : blocks ? "fp8" : "";
}

/* The exponent, as fp32 has it, of the scale. @largest: bits of the largest magnitude. */
RP_SHARED uint32_t
rp_fp8_scale_exponent(RpDtype code, uint32_t largest)
{
    const uint32_t top = code == RP_DTYPE_E4M3 ? 8 : 15; /* the largest is 1.75 x 2^top */
    const uint32_t exponent = (largest >> 23) + ((largest & 0x7fffff) > 0x600000);
    const uint32_t scale =
        exponent > RP_FP8_LEAST_SCALE + top ? exponent - top : RP_FP8_LEAST_SCALE;

    return largest == 0 || largest >= 0x7f800000 ? 127 : scale;
}

/* 1 / scale */
RP_SHARED uint32_t
rp_fp8_factor_exponent(uint32_t scale_exponent)
{
    return 254 - scale_exponent;
}

static inline float
rp_fp8_scale(RpDtype code, float largest)
{
    return rp_float_from_bits(rp_fp8_scale_exponent(code, rp_float_bits(largest)) << 23);
}

/* Exponent and mantissa stand as fp32 has them, 2^120 too small; NaN has all bits set. */
static inline float
rp_float_from_e4m3(uint8_t code)
{
    const uint32_t magnitude = code & 0x7f;
    const uint32_t scaled = rp_float_bits(rp_float_from_bits(magnitude << 20) * 0x1p120f);
    const uint32_t bits = magnitude == 0x7f ? 0x7fc00000 : scaled;

    return rp_float_from_bits(bits | (uint32_t)(code & 0x80) << 24);
}

static inline float
rp_float_from_e5m2(uint8_t code)
{
    return rp_float_from_fp16((uint16_t)(code << 8));
}

/* @value: no larger than the format has. Below @least, 2^-6 or 2^-14, the format's steps are as
 * wide as those of an fp32 number as large as @step: adding @step leaves just these in the
 * mantissa, rounded. */
static inline uint8_t
rp_fp8_round(float value, uint32_t shift, uint32_t least, float step)
{
    const uint32_t bits = rp_float_bits(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t subnormal =
        rp_float_bits(rp_float_from_bits(magnitude < least ? magnitude : 0) + step) -
        rp_float_bits(step);
    const uint32_t half = (1u << (shift - 1)) - 1;
    const uint32_t normal =
        (magnitude - least + (1u << 23) + half + (magnitude >> shift & 1)) >> shift;

    return (uint8_t)((magnitude < least ? subnormal : normal) | (bits >> 24 & 0x80));
}

/* Rounds; too large values become the largest; infinities and NaN become NaN. */
static inline uint8_t
rp_e4m3_from_float(float value)
{
    const float below = value > RP_E4M3_LARGEST ? RP_E4M3_LARGEST : value;
    const float both = below < -RP_E4M3_LARGEST ? -RP_E4M3_LARGEST : below;
    const uint8_t code = rp_fp8_round(both, 20, 0x3c800000, 16384.0f);

    return (rp_float_bits(value) & 0x7f800000) == 0x7f800000 ? RP_FP8_NAN : code;
}

static inline uint8_t
rp_e5m2_from_float(float value)
{
    const float below = value > RP_E5M2_LARGEST ? RP_E5M2_LARGEST : value;
    const float both = below < -RP_E5M2_LARGEST ? -RP_E5M2_LARGEST : below;
    const uint8_t code = rp_fp8_round(both, 21, 0x38800000, 128.0f);

    return (rp_float_bits(value) & 0x7f800000) == 0x7f800000 ? RP_FP8_NAN : code;
}
