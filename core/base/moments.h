/**
 * Optimizer state: the weight and the moments of its gradient that the optimizer keeps of each
 * parameter between two steps, and so the bytes that a parameter takes on the host.
 *
 *   update   moments    kept as  bytes each                            rounding
 *   AdamW    2          fp32     4                                     none
 *   Lion     1          bf16     2                                     stochastic
 *                       int8     1, and 4 for each block of 256        to the nearest value of a map
 *
 * The weight is kept as fp32 or bf16.
 */
#pragma once

#include <stdint.h>

typedef enum { RP_UPDATE_ADAMW, RP_UPDATE_LION, RP_N_UPDATES } RpUpdateRule;

typedef enum { RP_MOMENTS_FP32, RP_MOMENTS_BF16, RP_MOMENTS_INT8, RP_N_MOMENTS } RpMoments;

/* All zero: AdamW, everything in fp32. */
typedef struct {
    RpUpdateRule rule;
    RpMoments master; /* how weights are kept: not int8 */
    RpMoments moments;
    int shared; /* bf16: they are the newest that devices read, and nothing beside */
} RpStateFormat;

/* Forms, but how weights that devices read are shared, each with a name: X(name, rule, moments, master) */
#define RP_STATE_FORMATS(X)                                                                        \
    X("adamw_fp32", RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_FP32)                             \
    X("adamw_bf16", RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_FP32)                             \
    X("adamw_int8", RP_UPDATE_ADAMW, RP_MOMENTS_INT8, RP_MOMENTS_FP32)                             \
    X("adamw_fp32_master_bf16", RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_BF16)                 \
    X("adamw_bf16_master_bf16", RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_BF16)                 \
    X("adamw_int8_master_bf16", RP_UPDATE_ADAMW, RP_MOMENTS_INT8, RP_MOMENTS_BF16)                 \
    X("lion_fp32", RP_UPDATE_LION, RP_MOMENTS_FP32, RP_MOMENTS_FP32)                               \
    X("lion_bf16", RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_FP32)                               \
    X("lion_int8", RP_UPDATE_LION, RP_MOMENTS_INT8, RP_MOMENTS_FP32)                               \
    X("lion_fp32_master_bf16", RP_UPDATE_LION, RP_MOMENTS_FP32, RP_MOMENTS_BF16)                   \
    X("lion_bf16_master_bf16", RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_BF16)                   \
    X("lion_int8_master_bf16", RP_UPDATE_LION, RP_MOMENTS_INT8, RP_MOMENTS_BF16)
#define RP_N_MASTERS 2 /* RP_MOMENTS_FP32, RP_MOMENTS_BF16 */

#define RP_STATE_FORMAT_FP32 ((RpStateFormat){RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_FP32, 0})
#define RP_OPTIMIZER_MOST_MOMENTS 2

/* int8: parameters of a layer, from its first on, that share a scale. */
#define RP_MOMENT_BLOCK 256u

/* Moments of a parameter. */
static inline unsigned
rp_optimizer_moments(RpStateFormat form)
{
    return form.rule == RP_UPDATE_LION ? 1 : 2;
}

/* Whether the same values are kept, in the same bits, wherever. */
static inline int
rp_state_format_equal(RpStateFormat a, RpStateFormat b)
{
    return a.rule == b.rule && a.master == b.master && a.moments == b.moments;
}

/* Bytes of one moment of one parameter, or of its weight. */
static inline uint64_t
rp_moment_bytes(RpMoments moments)
{
    return moments == RP_MOMENTS_FP32 ? 4 : moments == RP_MOMENTS_BF16 ? 2 : 1;
}

/* The byte that fills a first moment (@moment 0) or a second one (1) whose values are all zero. */
static inline int
rp_moment_zero(RpMoments moments, unsigned moment)
{
    return moments == RP_MOMENTS_INT8 && moment == 0 ? 127 : 0;
}

/* Scales of one moment of parameters @first to @first + @n of a layer: blocks that hold any. */
static inline uint64_t
rp_moment_scales(RpMoments moments, uint64_t first, uint64_t n)
{
    return moments != RP_MOMENTS_INT8 || n == 0
               ? 0
               : (first + n - 1) / RP_MOMENT_BLOCK - first / RP_MOMENT_BLOCK + 1;
}

/* Bytes of the optimizer's state of @n parameters of a layer: weights, and all moments. */
static inline uint64_t
rp_optimizer_state_bytes(RpStateFormat form, uint64_t n)
{
    const uint64_t moments = rp_optimizer_moments(form);
    const uint64_t weight = form.shared ? 0 : rp_moment_bytes(form.master);

    return n * (weight + moments * rp_moment_bytes(form.moments)) +
           moments * 4 * rp_moment_scales(form.moments, 0, n);
}

/* Bytes that a step of @n parameters reads of it, and of shared weights. */
static inline uint64_t
rp_optimizer_state_read(RpStateFormat form, uint64_t n)
{
    return rp_optimizer_state_bytes(form, n) + (form.shared ? n * rp_moment_bytes(form.master) : 0);
}

/* Bytes that it reads and writes; but shared weights that it writes, which it publishes. */
static inline uint64_t
rp_optimizer_state_traffic(RpStateFormat form, uint64_t n)
{
    return rp_optimizer_state_read(form, n) + rp_optimizer_state_bytes(form, n);
}
