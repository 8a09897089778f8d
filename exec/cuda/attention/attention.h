/**
 * Causal attention on CUDA: grouped heads, packed sequences, optional sliding window. Formulas,
 * layouts and meaning are those of RpAttentionArgs (exec/kernels/kernels.h), which exec/host is the
 * oracle of.
 *
 * Two implementations. The fast one: tensor cores, bf16 and fp16, D of 64 or 128, scale > 0, arrays
 * but `out` at multiples of 16 bytes. The other: everything else. Which one runs depends on sizes
 * and on alignment, never on values; each gives the same bits every time, and to a sequence the
 * same bits alone and packed.
 */
#pragma once

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int dtype; /* of all that is void: 0 fp32, 1 bf16, 2 fp16, as RpDtype */
    size_t tokens, sequences, max_length;
    size_t heads, kv_heads, head_size; /* kv_heads divides heads */
    size_t window;                     /* query i sees i - window < key <= i; 0: all key <= i */
    float scale;
    const int32_t *starts; /* [sequences+1], on the device; the last is tokens */
    const void *q;         /* [tokens,heads,D] */
    const void *k, *v;     /* [tokens,kv_heads,D] */
    void *out;             /* [tokens,heads,D], at any multiple of its element; backward: in */
    float *lse;            /* [heads,tokens], natural logarithm; forward: out, backward: in */
    const void *d_out;     /* backward: [tokens,heads,D] */
    void *dq, *dk, *dv;    /* backward: as q, k, v */
    void *workspace;       /* at a multiple of 64 bytes */
    size_t ds_most;        /* backward by cuDNN: bytes of dS at a time; 0: 2 GiB */
} RpCudaAttention;

/**
 * rp_cuda_attention_forward_workspace:
 *
 * Returns: bytes; reads sizes only. 0: `workspace` may be NULL
 */
size_t rp_cuda_attention_forward_workspace(const RpCudaAttention *args);

/**
 * rp_cuda_attention_forward:
 * @stream: of the current device, where all pointers are
 *
 * Writes out and lse. Neither allocates nor waits.
 *
 * Returns: cudaErrorInvalidValue for a head size beyond 3072 or more blocks than a grid has;
 *   else what the launch said
 */
cudaError_t rp_cuda_attention_forward(const RpCudaAttention *args, cudaStream_t stream);

/* As for forward. Backward: heads x tokens floats. */
size_t rp_cuda_attention_backward_workspace(const RpCudaAttention *args);

/* Writes dq, dk and dv, whole. As for forward. */
cudaError_t rp_cuda_attention_backward(const RpCudaAttention *args, cudaStream_t stream);

typedef struct {
    int dtype;
    size_t slices, tokens, n; /* n: of a row; a multiple of 8 */
    const void *x;            /* [slices,tokens,n] */
    void *y;                  /* [tokens] rows of n elements */
    size_t stride;            /* elements from a row of y to the next; a multiple of 8 */
} RpCudaAttentionSlices;

/* y = x[0] + x[1] + ..., in that order in fp32: dk or dv of a kv head. x and y at multiples of 16
 * bytes. slices.cu */
cudaError_t rp_cuda_attention_add_slices(const RpCudaAttentionSlices *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
