/* The parts of attention: for the .cu files here only. */
#pragma once

#include <atomic>

#include "exec/cuda/base/launch.h"

/* How blocks of threads are laid out: @blocks for each of @units, which are (sequence, one of
 * @heads), in swaths of @swath units; and what else is computed once. */
typedef struct {
    unsigned heads, units, blocks, swath;
    int window;       /* INT_MAX: none */
    float scale_log2; /* scale / ln 2, for exp2 */
} AttentionGrid;

/* @rows: tokens of a block; @unit_bytes: what all blocks of a unit read, a token.
 * Returns: whether a grid has so many blocks */
bool attention_grid(const RpAttentionArgs *args, size_t heads, size_t rows, size_t unit_bytes,
                    AttentionGrid *grid);

/* Allows @kernel so much dynamic shared memory on the current device. @done: one a kernel, zero at
 * first: a bit for each device where that was done. From any thread. */
cudaError_t attention_allow_shared(const void *kernel, int bytes, std::atomic<uint64_t> *done);

/* On tensor cores, for what attention_is_fast(). @delta: [heads,tokens], d_out . out */
cudaError_t attention_forward_fast(const RpAttentionArgs *args, cudaStream_t stream);
cudaError_t attention_backward_fast(const RpAttentionArgs *args, const float *delta,
                                    cudaStream_t stream);

static inline bool
attention_aligned(const void *pointer, size_t bytes)
{
    return (uintptr_t)pointer % bytes == 0;
}

/* Do forward's inputs suit tensor cores? */
static inline bool
attention_is_fast(const RpAttentionArgs *args)
{
    return args->dtype != RP_DTYPE_FP32 && (args->head_size == 64 || args->head_size == 128) &&
           args->scale > 0 && attention_aligned(args->q, 16) && attention_aligned(args->k, 16) &&
           attention_aligned(args->v, 16);
}

template <typename... Parameters>
static inline cudaError_t
attention_launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, int shared_bytes,
                 cudaStream_t stream, Parameters... parameters)
{
    void *pointers[] = {(void *)&parameters...};

    return cudaLaunchKernel((const void *)kernel, dim3(blocks), dim3(threads), pointers,
                            (size_t)shared_bytes, stream);
}
