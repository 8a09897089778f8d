/**
 * Small kernels of the backend itself: looking for values that are not finite, passing on a loss
 * that is not, and fetching targets. The first and the last work with pinned host memory, which the
 * device reaches by the same address.
 */
#pragma once

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets @flag[0] to 1 if one of @n values of @x is infinite or NaN, else leaves it alone. @dtype:
 * RpDtype as int; @flag: device or pinned host memory. */
cudaError_t rp_cuda_find_broken(int dtype, const void *x, size_t n, unsigned char *flag,
                                cudaStream_t stream);

/* Sets @sum[0] to NaN if @loss[0] is infinite or NaN, else leaves it alone. Both: device memory. */
cudaError_t rp_cuda_break_sum(const double *loss, float *sum, cudaStream_t stream);

/* @to[0 .. n) = @from[0 .. n); @from in pinned host memory. Needs no copy engine, which may be busy
 * with parameters for a while. */
cudaError_t rp_cuda_fetch(const int32_t *from, int32_t *to, size_t n, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
