/**
 * Launchers of the hand-written kernels, rp_cuda_<operation>(), one for each row of
 * exec/kernels/args.h; kernels.c puts them into the table. A launcher neither allocates nor waits,
 * and returns CUDA's status of the launch. Workspace sizes and orders of sums depend on sizes
 * alone, so that another address, or another GPU, gives the same bits: alignment only decides how
 * wide memory is read.
 */
#pragma once

#include <cuda_runtime.h>

#include "exec/kernels/args.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RP_CUDA_LAUNCHER(name, Args, words)                                                        \
    cudaError_t rp_cuda_##name(const Args *args, cudaStream_t stream);
#define RP_CUDA_LAUNCHERS(name, Args, words)                                                       \
    size_t rp_cuda_##name##_workspace(const Args *args);                                           \
    RP_CUDA_LAUNCHER(name, Args, words)
RP_LAUNCHED_KERNELS(RP_CUDA_LAUNCHER, RP_CUDA_LAUNCHERS)
/* The built-in attention (exec/cuda/attention/attention.cu). */
RP_CUDA_LAUNCHER(attention_forward, RpAttentionArgs, )
RP_CUDA_LAUNCHERS(attention_backward, RpAttentionArgs, )

/* reduce.cu: sums[i] += partials[0,i] + partials[1,i] + ...; @partials: [count,n] */
cudaError_t rp_cuda_add_partials(const float *partials, size_t count, size_t n, float *sums,
                                 cudaStream_t stream);
/* sum[0] += values[0] + values[1] + ... */
cudaError_t rp_cuda_add_doubles(const double *values, size_t n, double *sum, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
