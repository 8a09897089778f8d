/*
 * Low-bit formats: expands packed weights to a storage that layers read, and quantizes to fp8 for
 * matmuls.
 *
 *   expand     y = value(code) scale, rounded; formats: core/lowbit/lowbit.h, which does it        =
 *   largest    largest[0] = max(largest[0], max_i |x[i]|): bits of magnitudes are in its order
 *   quantise   codes[r,c] = turned[c,r] = x[r,c] / scale; scale and codes: core/base/fp8.h         =
 *
 * The transposed array is written by strips of columns, so that successive writes are close.
 */
#include "core/base/fp8.h"
#include "exec/host/host-private.h"

#define STRIP 64 /* columns */

void
rp_host_expand(RpKernelStream *stream, const RpExpandArgs *args)
{
    rp_lowbit_expand(args->format, args->shape, args->packed, args->dtype, 0,
                     rp_lowbit_elements(args->shape), args->y);
}

void
rp_host_largest(RpKernelStream *stream, const RpLargestArgs *args)
{
    uint32_t largest = rp_float_bits(*args->largest);
    float buffer[RP_TILE];

    for (size_t first = 0; first < args->n; first += RP_TILE) {
        const size_t n = MIN(RP_TILE, args->n - first);
        const float *x = rp_host_load(args->dtype, args->x, first, n, buffer);

        for (size_t i = 0; i < n; i++) {
            const uint32_t bits = rp_float_bits(x[i]) & 0x7fffffff;

            largest = bits > largest ? bits : largest;
        }
    }
    *args->largest = rp_float_from_bits(largest);
}

static void
encode(RpDtype code, const float *x, float factor, size_t n, uint8_t *quantized)
{
    if (code == RP_DTYPE_E4M3)
        for (size_t i = 0; i < n; i++)
            quantized[i] = rp_e4m3_from_float(x[i] * factor);
    else
        for (size_t i = 0; i < n; i++)
            quantized[i] = rp_e5m2_from_float(x[i] * factor);
}

void
rp_host_quantise(RpKernelStream *stream, const RpQuantiseArgs *args)
{
    const float scale = rp_fp8_scale(args->code, *args->largest);
    uint8_t quantized[STRIP];
    float buffer[STRIP];

    *args->scale = scale;
    for (size_t column = 0; column < args->columns; column += STRIP) {
        const size_t n = MIN(STRIP, args->columns - column);

        for (size_t row = 0; row < args->rows; row++) {
            const size_t at = row * args->columns + column;

            encode(args->code, rp_host_load(args->dtype, args->x, at, n, buffer), 1.0f / scale, n,
                   quantized);
            if (args->quantized != NULL)
                memcpy(args->quantized + at, quantized, n);
            for (size_t i = 0; i < n && args->transposed != NULL; i++)
                args->transposed[(column + i) * args->rows + row] = quantized[i];
        }
    }
}
