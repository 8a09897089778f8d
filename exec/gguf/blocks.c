/* The number formats of GGUF, and blocks of quantized values as gguf's reference makes them. */
#include "exec/gguf/private.h"

#include <math.h>

#define BLOCK 32
#define E8M0_BIAS 127

const char *const rp_gguf_type_names[RP_N_GGUF_TYPES + 1] = {
    [RP_GGUF_F32] = "f32",   [RP_GGUF_F16] = "f16",   [RP_GGUF_BF16] = "bf16",
    [RP_GGUF_Q8_0] = "q8_0", [RP_GGUF_Q4_0] = "q4_0", [RP_GGUF_MXFP4] = "mxfp4",
};

RpGgufType
rp_gguf_type_of_dtype(RpDtype dtype)
{
    return dtype == RP_DTYPE_BF16   ? RP_GGUF_BF16
           : dtype == RP_DTYPE_FP16 ? RP_GGUF_F16
                                    : RP_GGUF_F32;
}

guint64
rp_gguf_bytes(RpGgufType type, guint64 n)
{
    switch (type) {
    case RP_GGUF_F32:
        return 4 * n;
    case RP_GGUF_F16:
    case RP_GGUF_BF16:
        return 2 * n;
    case RP_GGUF_Q8_0:
        return n / BLOCK * (2 + BLOCK);
    case RP_GGUF_Q4_0:
        return n / BLOCK * (2 + BLOCK / 2);
    case RP_GGUF_MXFP4:
        return n / BLOCK * (1 + BLOCK / 2);
    }
    g_assert_not_reached();
}

/* Writes the scale, and returns what values are multiplied by. A scale whose inverse overflows is 0 in fp16, too. */
static float
put_scale(float scale, guint8 *out)
{
    const float inverse = scale == 0 ? 0 : 1 / scale;
    const guint16 half = rp_fp16_from_float(scale);

    out[0] = (guint8)half;
    out[1] = (guint8)(half >> 8);
    return isfinite(inverse) ? inverse : 0;
}

static void
encode_q8_0(const float *x, guint8 *out)
{
    float most = 0;

    for (guint i = 0; i < BLOCK; i++)
        most = MAX(most, fabsf(x[i]));

    const float inverse = put_scale(most / 127, out);

    for (guint i = 0; i < BLOCK; i++)
        out[2 + i] = (guint8)(gint8)roundf(x[i] * inverse);
}

static void
put_nibbles(const guint8 quantized[BLOCK], guint8 *out)
{
    for (guint i = 0; i < BLOCK / 2; i++)
        out[i] = (guint8)(quantized[i] | quantized[BLOCK / 2 + i] << 4);
}

static void
encode_q4_0(const float *x, guint8 *out)
{
    float most = x[0];
    guint8 quantized[BLOCK];

    for (guint i = 1; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];

    const float inverse = put_scale(most / -8, out);

    for (guint i = 0; i < BLOCK; i++)
        quantized[i] = (guint8)MIN(15.0f, truncf(x[i] * inverse + 8.5f));
    put_nibbles(quantized, out + 2);
}

static void
encode_mxfp4(const float *x, guint8 *out)
{
    static const gint8 twice[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    float most = 0;
    guint8 quantized[BLOCK];

    for (guint i = 0; i < BLOCK; i++)
        most = MAX(most, fabsf(x[i]));
    out[0] = most > 0 ? (guint8)MAX(0, floorf(log2f(most)) - 2 + E8M0_BIAS) : 0;

    const float half = ldexpf(1, out[0] - E8M0_BIAS - 1);

    for (guint i = 0; i < BLOCK; i++) {
        float least = INFINITY;

        for (guint8 v = 0; v < G_N_ELEMENTS(twice); v++) {
            const float off = fabsf(half * twice[v] - x[i]);

            if (off < least)
                least = off, quantized[i] = v;
        }
    }
    put_nibbles(quantized, out + 1);
}

void
rp_gguf_encode(RpGgufType type, const float *values, gsize n, guint8 *out)
{
    static const RpDtype dtypes[] = {[RP_GGUF_F32] = RP_DTYPE_FP32,
                                     [RP_GGUF_F16] = RP_DTYPE_FP16,
                                     [RP_GGUF_BF16] = RP_DTYPE_BF16};
    static void (*const encoders[RP_N_GGUF_TYPES])(const float *, guint8 *) = {
        [RP_GGUF_Q8_0] = encode_q8_0,
        [RP_GGUF_Q4_0] = encode_q4_0,
        [RP_GGUF_MXFP4] = encode_mxfp4,
    };
    const gsize block = (gsize)rp_gguf_bytes(type, BLOCK);

    if (type < RP_GGUF_Q8_0) {
        rp_dtype_from_float(dtypes[type], values, out, n);
        return;
    }
    for (gsize i = 0; i < n / BLOCK; i++)
        encoders[type](values + i * BLOCK, out + i * block);
}
