#include "core/base/dtype.h"

#include <glib.h>

#include "core/base/fp8.h"

#if G_BYTE_ORDER != G_LITTLE_ENDIAN
#error "weights are used as they stand in the files: little-endian"
#endif

const char *const rp_dtype_names[RP_N_DTYPES_AND_FP8 + 1] = {
    [RP_DTYPE_FP32] = "fp32", [RP_DTYPE_BF16] = "bf16", [RP_DTYPE_FP16] = "fp16",
    [RP_DTYPE_E4M3] = "e4m3", [RP_DTYPE_E5M2] = "e5m2",
};

static const struct {
    const char *safetensors_name;
    const char *torch_name;
} formats[RP_N_DTYPES] = {
    [RP_DTYPE_FP32] = {"F32", "float32"},
    [RP_DTYPE_BF16] = {"BF16", "bfloat16"},
    [RP_DTYPE_FP16] = {"F16", "float16"},
};

const char *
rp_dtype_name(RpDtype dtype)
{
    g_return_val_if_fail((guint)dtype < RP_N_DTYPES_AND_FP8, NULL);
    return rp_dtype_names[dtype];
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

bool
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

/* memcpy, since tensors of old files need not stand at multiples of their element's size. */
static guint16
load16(const guint8 *source, gsize i)
{
    guint16 bits;

    memcpy(&bits, source + i * sizeof bits, sizeof bits);
    return bits;
}

static void
store16(guint8 *target, gsize i, guint16 bits)
{
    memcpy(target + i * sizeof bits, &bits, sizeof bits);
}

void
rp_dtype_to_float(RpDtype dtype, const void *source, float *values, gsize n)
{
    const guint8 *bytes = source;

    g_return_if_fail((guint)dtype < RP_N_DTYPES_AND_FP8 && ((source && values) || n == 0));

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
    case RP_DTYPE_E4M3:
        for (gsize i = 0; i < n; i++)
            values[i] = rp_float_from_e4m3(bytes[i]);
        break;
    case RP_DTYPE_E5M2:
        for (gsize i = 0; i < n; i++)
            values[i] = rp_float_from_e5m2(bytes[i]);
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
    /* a loop for each, which compilers make vectors of */
    if (dtype == RP_DTYPE_FP32)
        memcpy(target, values, n * sizeof *values);
    else if (dtype == RP_DTYPE_BF16)
        for (gsize i = 0; i < n; i++)
            store16(bytes, i, rp_bf16_from_float(values[i]));
    else
        for (gsize i = 0; i < n; i++)
            store16(bytes, i, rp_fp16_from_float(values[i]));
}
