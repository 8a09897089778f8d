/**
 * Kernel variants of attention's backward on tensor cores, the fastest first, for tests and
 * benchmarks that compare them; rp_cuda_attention_backward() (exec/cuda/base/launch.h) takes the
 * first that can.
 */
#pragma once

#include <cuda_runtime.h>

#include "exec/kernels/args.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    RP_BACKWARD_WGMMA, /* Hopper: heads of 128 and 256 */
    RP_BACKWARD_WIDE,  /* Hopper: heads of 64, by mma.sync */
    RP_BACKWARD_MMA,   /* mma.sync, every card since sm_80: heads of 64 and 128 */
    RP_BACKWARD_PAIRS, /* the same with heads of 256 */
    RP_N_BACKWARD_VARIANTS
} RpBackwardVariant;

/* "wgmma", "wide", "mma", "pairs" */
const char *rp_cuda_backward_variant_name(RpBackwardVariant variant);

/* Whether @variant can do @args on the current device. */
bool rp_cuda_backward_variant_can(RpBackwardVariant variant, const RpAttentionArgs *args);

/* cudaErrorInvalidValue if @variant cannot. */
cudaError_t rp_cuda_attention_backward_by(RpBackwardVariant variant, const RpAttentionArgs *args,
                                          cudaStream_t stream);

#ifdef __cplusplus
}
#endif
