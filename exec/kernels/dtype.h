/**
 * The number formats of weights: names, sizes, and conversion from and to float.
 *
 *   fp32  1 sign  8 exponent  23 mantissa
 *   bf16  1       8            7            the upper half of fp32
 *   fp16  1       5           10            IEEE 754 binary16
 *
 * Narrowing rounds to nearest, ties to even; what is too large becomes infinite; a NaN stays a NaN
 * (quiet, its upper bits kept); subnormals are exact. Plain integer arithmetic: the same bits on
 * every machine.
 */
#pragma once

#include <glib.h>

typedef enum { RP_DTYPE_FP32, RP_DTYPE_BF16, RP_DTYPE_FP16 } RpDtype;
#define RP_N_DTYPES 3

/* Bytes of an element. */
gsize rp_dtype_size(RpDtype dtype);

/* "fp32", "bf16", "fp16": as our options and profiles spell it. */
const char *rp_dtype_name(RpDtype dtype);
/* "F32", "BF16", "F16": as safetensors spell it. */
const char *rp_dtype_safetensors_name(RpDtype dtype);
/* "float32", "bfloat16", "float16": as config.json spells it. */
const char *rp_dtype_torch_name(RpDtype dtype);

/* The format that one of the three functions above calls @name. Returns: whether there is one. */
gboolean rp_dtype_parse(const char *name, const char *(*spelling)(RpDtype), RpDtype *dtype);

guint16 rp_bf16_from_float(float value);
float rp_float_from_bf16(guint16 bits);
guint16 rp_fp16_from_float(float value);
float rp_float_from_fp16(guint16 bits);

/**
 * rp_dtype_to_float:
 * @source: @n elements of @dtype, little-endian, at any address
 * @values: (out): @n floats; may not overlap @source
 */
void rp_dtype_to_float(RpDtype dtype, const void *source, float *values, gsize n);

/* The other way; @target at any address. */
void rp_dtype_from_float(RpDtype dtype, const float *values, void *target, gsize n);
