/**
 * Sums and copies of gradients in any storage, on the threads of a pool. The bits of the result
 * depend on neither the variant nor the threads.
 */
#pragma once

#include "exec/optim/adamw.h"
#include "exec/optim/pool.h"

/**
 * rp_sums_accumulate:
 * @pool: (nullable): threads to use
 * @ops: variant
 * @added: (array length=n_added): what is added, @n values each, > 0 of them
 * @number: their storage
 * @begin: @sum is overwritten: it is what is added
 *
 * For k = 0, 1, ...: @sum[i] += @added[k][i] for @n values, in fp32. @sum goes through memory once,
 * however many are added.
 */
void rp_sums_accumulate(RpPool *pool, const RpAdamwOps *ops, float *sum, const void *const *added,
                        guint n_added, RpNumber number, gboolean begin, gsize n);

/**
 * rp_sums_widen:
 * @pool: (nullable): threads to use
 * @ops: variant
 *
 * @wide[i] = @values[i] for @n values.
 */
void rp_sums_widen(RpPool *pool, const RpAdamwOps *ops, const void *values, RpNumber number,
                   float *wide, gsize n);
