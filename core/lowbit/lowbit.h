/**
 * Weights in few bits: a row a format (lowbit.c).
 *
 *   nf4         16 values of a normal distribution; blocks of 64 of the flat tensor, whose largest
 *               magnitudes are 8-bit numbers in blocks of 256 around their mean (double
 *               quantisation): 4.127 bits a weight. As bitsandbytes 0.50 on the CPU.
 *   nf4-single  the same with largest magnitudes in fp32: 4.5 bits.
 *   mxfp4       E2M1 times a power of two; blocks of 32 along a row: 4.25 bits. As GPT-OSS is
 *               published; OCP Microscaling 1.0, §5.2 and §6.3.
 *   fp8         E4M3 times an fp32 scale; blocks of 128 x 128 of a matrix: 8.002 bits. As Qwen3-FP8
 *               and DeepSeek-V3 are published ("weight_block_size": [128, 128]).
 *
 * A packed tensor is one piece of memory of parts, each at a multiple of RP_LOWBIT_ALIGNMENT bytes
 * from its beginning, so that it is uploaded by one copy:
 *
 *   |codes              |scales   |nested scales|nested map|offset|
 *    nf4: 2 a byte, the first in the high nibble; mxfp4: the first in the low one; fp8: 1 a byte
 *
 * Plain C without GLib, for hosts and GPUs alike. Bytes, codes and values are the same on every
 * machine.
 */
#pragma once

#include "core/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_LOWBIT_ALIGNMENT 64
#define RP_LOWBIT_NONE SIZE_MAX

#define RP_NF4_BLOCK 64         /* weights of a scale */
#define RP_NF4_NESTED_BLOCK 256 /* scales of a nested scale */
#define RP_NF4_MAP 256          /* values of a scale's 8 bits */
#define RP_MXFP4_BLOCK 32
#define RP_FP8_BLOCK 128 /* rows, and columns */

/* The values of NF4's codes. Source: bitsandbytes, get_4bit_type() */
#define RP_NF4_VALUES                                                                              \
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,                      \
        -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,                 \
        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,    \
        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f
/* The values of E2M1. */
#define RP_MXFP4_VALUES                                                                            \
    0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f,      \
        -4.0f, -6.0f

typedef enum { RP_LOWBIT_NF4, RP_LOWBIT_NF4_SINGLE, RP_LOWBIT_MXFP4, RP_LOWBIT_FP8 } RpLowbit;
#define RP_N_LOWBITS 4

/* Matrices of equal size one after the other; a vector is one row. Each is 1 or more. */
typedef struct {
    size_t matrices, rows, columns;
} RpLowbitShape;

typedef enum {
    RP_LOWBIT_QUANTIZED,
    RP_LOWBIT_SCALES,        /* nf4: 8 bits; nf4-single, fp8: fp32; mxfp4: exponent + 127 */
    RP_LOWBIT_NESTED_SCALES, /* nf4: fp32 */
    RP_LOWBIT_NESTED_MAP,    /* nf4: fp32 [256] */
    RP_LOWBIT_OFFSET,        /* nf4: fp32 [1]; scale = map[8 bits] nested scale + offset */
    RP_N_LOWBIT_PARTS
} RpLowbitPart;

typedef struct {
    size_t at[RP_N_LOWBIT_PARTS];
    size_t bytes[RP_N_LOWBIT_PARTS]; /* 0: the format has no such part */
    size_t total;                    /* a multiple of RP_LOWBIT_ALIGNMENT */
} RpLowbitLayout;

/* "nf4", "nf4-single", "mxfp4", "fp8". */
const char *rp_lowbit_name(RpLowbit format);
/* @format: (out): set on success only. Returns: whether @name is one */
bool rp_lowbit_from_name(const char *name, RpLowbit *format);

static inline size_t
rp_lowbit_elements(RpLowbitShape shape)
{
    return shape.matrices * shape.rows * shape.columns;
}

/* Where the parts of a tensor stand. */
RpLowbitLayout rp_lowbit_layout(RpLowbit format, RpLowbitShape shape);

/**
 * rp_lowbit_expand:
 * @packed: rp_lowbit_layout().total bytes, at a multiple of 4
 * @first: first element to write, any
 * @n: how many
 * @target: element @first, of @dtype
 *
 * value(code) x scale, in fp32 (a rounding; two more for the scale of nf4), then rounded to @dtype.
 */
void rp_lowbit_expand(RpLowbit format, RpLowbitShape shape, const void *packed, RpDtype dtype,
                      size_t first, size_t n, void *target);

/* The first of elements [@first, @first + @n) that is infinite or NaN in @dtype, from the tensor's
 * beginning; or RP_LOWBIT_NONE. */
size_t rp_lowbit_find_broken(RpLowbit format, RpLowbitShape shape, const void *packed,
                             RpDtype dtype, size_t first, size_t n);

/**
 * Packing. A strip is the least that is packed by itself, consecutive elements: a block of nf4, a row
 * of mxfp4, 128 rows of fp8. Different strips may be packed by different threads.
 *
 * A call for all strips, in any pieces; then one of rp_lowbit_pack_end().
 */
size_t rp_lowbit_strips(RpLowbit format, RpLowbitShape shape);

/**
 * rp_lowbit_pack:
 * @dtype: type of @source, [matrices,rows,columns], at any address
 * @first: strips to pack
 * @scales: [strips], in fp32, of nf4; else not used
 *
 * Returns: the first element that is infinite or NaN, or RP_LOWBIT_NONE; @packed is of no use then
 */
size_t rp_lowbit_pack(RpLowbit format, RpLowbitShape shape, RpDtype dtype, const void *source,
                      size_t first, size_t n, void *packed, float *scales);

/* Packs the scales of all strips: changes @scales. */
void rp_lowbit_pack_end(RpLowbit format, RpLowbitShape shape, float *scales, void *packed);

/* How many floats @scales of the two has; 0: it may be NULL. */
size_t rp_lowbit_pack_scales(RpLowbit format, RpLowbitShape shape);

/* The 256 values that nf4's scales are packed with. Source: bitsandbytes, create_dynamic_map() */
const float *rp_nf4_map(void);

#ifdef __cplusplus
}
#endif
