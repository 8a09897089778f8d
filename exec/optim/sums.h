/**
 * Sums and copies of gradients in any storage, on the threads of a pool. The bits of the result
 * depend on neither the variant nor the threads.
 */
#pragma once

#include "exec/optim/adamw/adamw.h"
#include "exec/system/pool.h"

#define RP_GRADIENT_MOST_ROUNDS 4

/* A gradient: one array, or several rounds of it, which are added in fp32, the first one first. */
typedef struct {
    const void *rounds[RP_GRADIENT_MOST_ROUNDS]; /* NULL behind the last */
} RpGradient;

/**
 * rp_gradient_add:
 * @gradient, @added: rp_gradient_is_sum(); the second has as many rounds as the first, or none
 * @first: of their values
 * @sum: (out): @n values
 *
 * @sum = the sum of @gradient's rounds + that of @added's, which may have none; values @first up to
 * @first + @n, at most RP_GRADIENT_PIECE, which stay in the L1 cache.
 */
void rp_gradient_add(const RpAdamwOps *ops, const RpGradient *gradient, const RpGradient *added,
                     RpDtype dtype, gsize first, float *sum, gsize n);
#define RP_GRADIENT_PIECE ((gsize)4096)

static inline gboolean
rp_gradient_is_sum(const RpGradient *gradient, const RpGradient *added)
{
    return gradient->rounds[1] != NULL || added->rounds[0] != NULL;
}

/* Value @first of @values. */
static inline const void *
rp_gradient_at(const void *values, RpDtype dtype, gsize first)
{
    return (const char *)values + first * rp_dtype_size(dtype);
}

/**
 * rp_sums_accumulate:
 * @pool: (nullable): threads to use
 * @ops: variant
 * @added: (array length=n_added): addends, @n values each, > 0 of them
 * @dtype: their storage
 * @begin: @sum is overwritten with the addends' sum
 *
 * For k = 0, 1, ...: @sum[i] += @added[k][i] for @n values, in fp32. @sum goes through memory once,
 * however many are added.
 */
void rp_sums_accumulate(RpPool *pool, const RpAdamwOps *ops, float *sum, const void *const *added,
                        guint n_added, RpDtype dtype, gboolean begin, gsize n);

/**
 * rp_sums_widen:
 * @pool: (nullable): threads to use
 * @ops: variant
 *
 * @wide[i] = @values[i] for @n values.
 */
void rp_sums_widen(RpPool *pool, const RpAdamwOps *ops, const void *values, RpDtype dtype,
                   float *wide, gsize n);
