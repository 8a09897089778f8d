/**
 * Elementwise sums of gradients in any storage. In fp32, rounded once; on the calling thread.
 */
#pragma once

#include "exec/optim/number.h"

/* sum[i] = a[i] + b[i] */
void rp_sums_add(const void *a, const void *b, RpNumber number, float *sum, gsize n);

/* a[i] = round(a[i] + b[i]) */
void rp_sums_accumulate(void *a, const void *b, RpNumber number, gsize n);

/* y[i] = a[i] */
void rp_sums_widen(const void *a, RpNumber number, float *y, gsize n);
