/* dk or dv of a kv head that was computed in slices of its query heads, added up. */
#pragma once

#include <cuda_runtime.h>

#include "core/base/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    RpDtype dtype;
    size_t slices, tokens, n; /* n: of a row; a multiple of 8 */
    const void *x;            /* [slices,tokens,n] */
    void *y;                  /* [tokens] rows of n elements */
    size_t stride;            /* elements from a row of y to the next; a multiple of 8 */
} RpCudaAttentionSlices;

/* y = x[0] + x[1] + ..., in that order in fp32. x and y at multiples of 16 bytes. */
cudaError_t rp_cuda_attention_add_slices(const RpCudaAttentionSlices *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
