/**
 * Kernel variants of a grouped matmul on CUDA, for tests and benchmarks that compare them;
 * rp_cuda_grouped_matmul() (exec/cuda/base/launch.h) chooses one.
 */
#pragma once

#include <cuda_runtime.h>

#include "exec/kernels/args.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    RP_GROUPED_ANY,          /* no tensor cores: any storage, size and alignment */
    RP_GROUPED_64X128,       /* mma.sync, by tiles of C: fewest rows lost at ends of experts */
    RP_GROUPED_128X64,       /* few columns */
    RP_GROUPED_128X128,      /* two blocks on a multiprocessor */
    RP_GROUPED_128X256,      /* fewest bytes of shared memory a product */
    RP_GROUPED_128X128_DEEP, /* Hopper: 128x128, its shared memory holds twice the depth */
    RP_GROUPED_WGMMA_256,    /* Hopper: tiles of 128 rows and this many columns */
    RP_GROUPED_TURNS_128,    /* the same, groups of warps by turns */
    RP_GROUPED_TURNS_192,
    RP_N_GROUPED_VARIANTS
} RpGroupedVariant;

/* "any", "64x128", ... */
const char *rp_cuda_grouped_variant_name(RpGroupedVariant variant);

/* The variant that rp_cuda_grouped_matmul() takes; -1: none has these storages. */
int rp_cuda_grouped_variant_of(const RpGroupedMatmulArgs *args);

/* Whether @variant can do @args on the current device. */
bool rp_cuda_grouped_variant_can(RpGroupedVariant variant, const RpGroupedMatmulArgs *args);

/* cudaErrorInvalidValue if @variant cannot. */
cudaError_t rp_cuda_grouped_matmul_by(RpGroupedVariant variant, const RpGroupedMatmulArgs *args,
                                      cudaStream_t stream);

#ifdef __cplusplus
}
#endif
