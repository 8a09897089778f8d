#include "exec/kernels/dtype.h"

#include <string.h>

#if G_BYTE_ORDER != G_LITTLE_ENDIAN
#error "weights are used as they stand in the files: little-endian"
#endif

typedef struct {
    gsize size;
    const char *name;
    const char *safetensors_name;
    const char *torch_name;
} Format;

static const Format formats[RP_N_DTYPES] = {
    [RP_DTYPE_FP32] = {4, "fp32", "F32", "float32"},
    [RP_DTYPE_BF16] = {2, "bf16", "BF16", "bfloat16"},
    [RP_DTYPE_FP16] = {2, "fp16", "F16", "float16"},
};

gsize
rp_dtype_size(RpDtype dtype)
{
    g_return_val_if_fail((guint)dtype < RP_N_DTYPES, 0);
    return formats[dtype].size;
}

const char *
rp_dtype_name(RpDtype dtype)
{
    g_return_val_if_fail((guint)dtype < RP_N_DTYPES, NULL);
    return formats[dtype].name;
}

const char *
rp_dtype_safetensors_name(RpDtype dtype)
{
    g_return_val_if_fail((guint)dtype < RP_N_DTYPES, NULL);
    return formats[dtype].safetensors_name;
}

const char *
rp_dtype_torch_name(RpDtype dtype)
{
    g_return_val_if_fail((guint)dtype < RP_N_DTYPES, NULL);
    return formats[dtype].torch_name;
}

gboolean
rp_dtype_parse(const char *name, const char *(*spelling)(RpDtype), RpDtype *dtype)
{
    g_return_val_if_fail(name && spelling && dtype, FALSE);

    for (guint i = 0; i < RP_N_DTYPES; i++) {
        if (strcmp(name, spelling((RpDtype)i)) == 0) {
            *dtype = (RpDtype)i;
            return TRUE;
        }
    }
    return FALSE;
}

static guint32
bits_of(float value)
{
    guint32 bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float
float_of(guint32 bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

guint16
rp_bf16_from_float(float value)
{
    guint32 bits = bits_of(value);

    if ((bits & 0x7fffffff) > 0x7f800000)
        return (guint16)((bits >> 16) | 0x0040); /* a NaN whose upper half alone would be inf */
    return (guint16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float
rp_float_from_bf16(guint16 bits)
{
    return float_of((guint32)bits << 16);
}

/* The lowest @shift bits of @mantissa are rounded away; 1 <= @shift <= 31. */
static guint32
round_shift(guint32 mantissa, guint shift)
{
    guint32 half = (guint32)1 << (shift - 1);
    guint32 odd = (mantissa >> shift) & 1;

    return (mantissa + half - 1 + odd) >> shift;
}

guint16
rp_fp16_from_float(float value)
{
    guint32 bits = bits_of(value);
    guint32 sign = (bits >> 16) & 0x8000;
    guint32 magnitude = bits & 0x7fffffff;
    guint32 exponent = magnitude >> 23;
    guint32 mantissa = (magnitude & 0x7fffff) | 0x800000;

    if (magnitude > 0x7f800000)
        return (guint16)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x47800000) /* 2^16, and infinity */
        return (guint16)(sign | 0x7c00);
    /* the carry of the rounding runs into the exponent, up to infinity: as it must */
    if (magnitude >= 0x38800000) /* 2^-14, the smallest normal number */
        return (guint16)(sign | round_shift(magnitude - ((127u - 15u) << 23), 13));
    if (magnitude < 0x33000000) /* 2^-25, half of the smallest subnormal */
        return (guint16)sign;
    /* mantissa x 2^(exponent - 150) in units of 2^-24 */
    return (guint16)(sign | round_shift(mantissa, 126 - exponent));
}

float
rp_float_from_fp16(guint16 bits)
{
    guint32 sign = (guint32)(bits & 0x8000) << 16;
    guint32 exponent = (bits >> 10) & 0x1f;
    guint32 mantissa = bits & 0x3ff;

    if (exponent == 0x1f)
        return float_of(sign | 0x7f800000 | (mantissa << 13));
    if (exponent == 0) {
        float value = (float)mantissa * 0x1p-24f; /* exact */
        return sign ? -value : value;
    }
    return float_of(sign | ((exponent + 127 - 15) << 23) | (mantissa << 13));
}

/* memcpy, since tensors of old files need not stand at multiples of their element's size. */
static guint16
load16(const guint8 *source, gsize i)
{
    guint16 bits;

    memcpy(&bits, source + i * sizeof bits, sizeof bits);
    return bits;
}

void
rp_dtype_to_float(RpDtype dtype, const void *source, float *values, gsize n)
{
    const guint8 *bytes = source;

    g_return_if_fail((guint)dtype < RP_N_DTYPES && ((source && values) || n == 0));

    if (n == 0)
        return;
    switch (dtype) {
    case RP_DTYPE_FP32:
        memcpy(values, source, n * sizeof *values);
        break;
    case RP_DTYPE_BF16:
        for (gsize i = 0; i < n; i++)
            values[i] = rp_float_from_bf16(load16(bytes, i));
        break;
    case RP_DTYPE_FP16:
        for (gsize i = 0; i < n; i++)
            values[i] = rp_float_from_fp16(load16(bytes, i));
        break;
    }
}

void
rp_dtype_from_float(RpDtype dtype, const float *values, void *target, gsize n)
{
    guint8 *bytes = target;

    g_return_if_fail((guint)dtype < RP_N_DTYPES && ((target && values) || n == 0));

    if (n == 0)
        return;
    if (dtype == RP_DTYPE_FP32) {
        memcpy(target, values, n * sizeof *values);
        return;
    }
    for (gsize i = 0; i < n; i++) {
        guint16 bits =
            dtype == RP_DTYPE_BF16 ? rp_bf16_from_float(values[i]) : rp_fp16_from_float(values[i]);
        memcpy(bytes + i * sizeof bits, &bits, sizeof bits);
    }
}
