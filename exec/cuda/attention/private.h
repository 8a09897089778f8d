/* The parts of attention: for the .cu files here only. */
#pragma once

#include <atomic>

#include "exec/cuda/attention/variants.h"
#include "exec/cuda/base/launch.h"

/* Layout of blocks of threads: @blocks for each of @units, which are (sequence, one of
 * @heads), in swaths of @swath units; and other values that are computed once. */
typedef struct {
    unsigned heads, units, blocks, swath;
    int window;       /* INT_MAX: none */
    float scale_log2; /* scale / ln 2, for exp2 */
} AttentionGrid;

/* @rows: tokens of a block; @unit_bytes: bytes a token that all blocks of a unit read.
 * Returns: whether a grid may have that many blocks */
bool attention_grid(const RpAttentionArgs *args, size_t heads, size_t rows, size_t unit_bytes,
                    AttentionGrid *grid);

/* Allows @kernel @bytes of dynamic shared memory on the current device. @done: one a kernel, zero
 * at first: a bit for each device where that was done. From any thread. */
cudaError_t attention_allow_shared(const void *kernel, int bytes, std::atomic<uint64_t> *done);

/* Workspace of the backward; tensor cores use counts, numbers and sums (turns.cuh). */
typedef struct {
    float *delta;      /* [heads,tokens]: d_out . out */
    unsigned *counts;  /* [heads,tokens], zeros: at a tile's first token */
    unsigned *numbers; /* [kv_heads], zeros: one a launch */
    float *sums;       /* [heads of a launch,tokens,head_size], not initialised */
} BackwardScratch;

/* Runs on tensor cores, for shapes of attention_is_fast(). @scratch: delta, counts and numbers are
 * there */
cudaError_t attention_forward_fast(const RpAttentionArgs *args, cudaStream_t stream);
cudaError_t attention_backward_by(RpBackwardVariant variant, const RpAttentionArgs *args,
                                  const BackwardScratch *scratch, cudaStream_t stream);
/* Backward of kv heads from @first on. */
cudaError_t attention_backward_mma(const RpAttentionArgs *args, const AttentionGrid *grid,
                                   const BackwardScratch *scratch, size_t first, unsigned *numbers,
                                   cudaStream_t stream);
/* The same with heads of 256. */
cudaError_t attention_backward_pairs(const RpAttentionArgs *args, const AttentionGrid *grid,
                                     const BackwardScratch *scratch, size_t first,
                                     unsigned *numbers, cudaStream_t stream);
/* The same on Hopper; where it is not built, it is nowhere. */
bool attention_has_wgmma(const RpAttentionArgs *args);
cudaError_t attention_backward_wgmma(const RpAttentionArgs *args, const AttentionGrid *grid,
                                     const BackwardScratch *scratch, size_t first,
                                     unsigned *numbers, cudaStream_t stream);
bool attention_has_wide(const RpAttentionArgs *args);
cudaError_t attention_backward_wide(const RpAttentionArgs *args, const AttentionGrid *grid,
                                    const BackwardScratch *scratch, size_t first, unsigned *numbers,
                                    cudaStream_t stream);
/* Number of kv heads of a launch of backward: limited, so that sums of dq are not too large. */
size_t attention_backward_kv_heads(const RpAttentionArgs *args);

/* Heads from a token to the next: of v, dk and dv, of dq. */
static __host__ __device__ __forceinline__ size_t
attention_v_row(const RpAttentionArgs &args)
{
    return args.row_heads > 0 ? args.row_heads : args.kv_heads;
}

static __host__ __device__ __forceinline__ size_t
attention_dq_row(const RpAttentionArgs &args)
{
    return args.row_heads > 0 ? args.row_heads : args.heads;
}

static inline bool
attention_aligned(const void *pointer, size_t bytes)
{
    return (uintptr_t)pointer % bytes == 0;
}

/* Whether tensor cores do heads of that size. */
static inline bool
attention_has_tiles(size_t head_size)
{
    return head_size == 64 || head_size == 128 || head_size == 256;
}

/* Do forward's inputs suit tensor cores? */
static inline bool
attention_is_fast(const RpAttentionArgs *args)
{
    return args->dtype != RP_DTYPE_FP32 && attention_has_tiles(args->head_size) &&
           args->scale > 0 && attention_aligned(args->q, 16) && attention_aligned(args->k, 16) &&
           attention_aligned(args->v, 16);
}

static inline bool
attention_backward_is_fast(const RpAttentionArgs *args)
{
    return attention_is_fast(args) && attention_aligned(args->d_out, 16) &&
           attention_aligned(args->dq, 16) && attention_aligned(args->dk, 16) &&
           attention_aligned(args->dv, 16);
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
