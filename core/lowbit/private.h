/**
 * A format's operations; a row each, one file a family.
 */
#pragma once

#include "core/lowbit/lowbit.h"

#define RP_LOWBIT_TILE 512 /* elements; a multiple of every block */

/* The parts of one tensor. */
typedef struct {
    unsigned char *part[RP_N_LOWBIT_PARTS];
} RpLowbitTensor;

/**
 * RpLowbitFormat:
 * @flat: knows no rows: @shape of the functions is one row of all elements
 * @sizes: bytes of each part; those that are not set are 0
 * @strip_rows: rows of a strip; 0: a strip is a block of @strip_columns
 * @expand: elements [column, column + n) of row @row, counted over all matrices; @column a multiple
 *   of RP_LOWBIT_TILE, @n at most that
 * @pack: elements [0, n) of a strip, read by @load; returns as rp_lowbit_pack(), from the strip on
 */
typedef struct {
    const char *name;
    bool flat;
    bool nested;
    size_t strip_rows;
    size_t strip_columns;
    void (*sizes)(RpLowbitShape shape, size_t bytes[RP_N_LOWBIT_PARTS]);
    void (*expand)(RpLowbitShape shape, const RpLowbitTensor *tensor, size_t row, size_t column,
                   size_t n, float *values);
    size_t (*pack)(RpLowbitShape shape, RpDtype dtype, const unsigned char *source, size_t strip,
                   const RpLowbitTensor *tensor, float *scales);
} RpLowbitFormat;

extern const RpLowbitFormat rp_lowbit_nf4;
extern const RpLowbitFormat rp_lowbit_nf4_single;
extern const RpLowbitFormat rp_lowbit_mxfp4;
extern const RpLowbitFormat rp_lowbit_fp8;

/* nf4.c */
void rp_nf4_pack_scales(RpLowbitShape shape, float *scales, const RpLowbitTensor *tensor);

static inline size_t
rp_lowbit_blocks(size_t n, size_t block)
{
    return n / block + (n % block != 0);
}

static inline bool
rp_lowbit_is_finite(float value)
{
    return (rp_float_bits(value) & 0x7f800000) != 0x7f800000;
}

/* The first of @n values that is not finite, or @n. */
static inline size_t
rp_lowbit_first_broken(const float *values, size_t n)
{
    size_t broken = 0;

    for (size_t i = 0; i < n; i++)
        broken += !rp_lowbit_is_finite(values[i]);
    if (broken == 0)
        return n;
    for (size_t i = 0; i < n; i++)
        if (!rp_lowbit_is_finite(values[i]))
            return i;
    return n;
}

/* The largest magnitude of @n finite values. */
static inline float
rp_lowbit_largest(const float *values, size_t n)
{
    uint32_t largest = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = rp_float_bits(values[i]) & 0x7fffffff;

        largest = bits > largest ? bits : largest;
    }
    return rp_float_from_bits(largest);
}
