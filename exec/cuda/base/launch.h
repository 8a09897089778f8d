/**
 * Launchers of the hand-written CUDA kernels, in plain C: what the .cu files give and kernels.c
 * calls. Formulas, shapes, and what may overlap what: exec/kernels/kernels.h.
 *
 * A dtype is an RpDtype as int: 0 fp32, 1 bf16, 2 fp16. A launcher neither allocates nor waits, and
 * returns what CUDA says of the launch. A workspace is at a multiple of 64 bytes and may be NULL if
 * its function says 0; workspace sizes and orders of sums depend on sizes alone, so that another
 * address, or another GPU, gives the same bits: alignment only decides how wide memory is read.
 */
#pragma once

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* elements.cu */
cudaError_t rp_cuda_convert(int x_dtype, const void *x, int y_dtype, void *y, size_t n,
                            cudaStream_t stream);
cudaError_t rp_cuda_add(int x_dtype, const void *x, int b_dtype, const void *b, int y_dtype,
                        void *y, size_t n, cudaStream_t stream);
/* y[rows[i]] = x[i], rows of @columns elements; no row twice */
cudaError_t rp_cuda_gather(int dtype, size_t n, int begin, const float *x, float *y,
                           cudaStream_t stream);
cudaError_t rp_cuda_scatter(int dtype, size_t n, size_t columns, const int32_t *rows, const void *x,
                            void *y, cudaStream_t stream);
cudaError_t rp_cuda_fill(int dtype, void *x, size_t n, float value, cudaStream_t stream);
cudaError_t rp_cuda_bias_forward(int dtype, size_t tokens, size_t n, const void *bias, void *y,
                                 cudaStream_t stream);
cudaError_t rp_cuda_swiglu_forward(int dtype, size_t n, const void *gate, const void *up, void *y,
                                   cudaStream_t stream);
/* @product: or NULL */
cudaError_t rp_cuda_swiglu_backward(int dtype, size_t n, const void *gate, const void *up,
                                    const void *dy, void *d_gate, void *d_up, void *product,
                                    cudaStream_t stream);

/* reduce.cu */
size_t rp_cuda_bias_backward_workspace(size_t tokens, size_t n);
cudaError_t rp_cuda_bias_backward(int dtype, size_t tokens, size_t n, const void *dy, float *d_bias,
                                  void *workspace, cudaStream_t stream);
size_t rp_cuda_sum_squares_workspace(size_t n);
/* @broken: or NULL */
cudaError_t rp_cuda_sum_squares(int dtype, size_t n, const void *x, double *sum, int32_t *broken,
                                void *workspace, cudaStream_t stream);
/* sums[i] += partials[0,i] + partials[1,i] + ...; @partials: [count,n] */
cudaError_t rp_cuda_add_partials(const float *partials, size_t count, size_t n, float *sums,
                                 cudaStream_t stream);
/* sum[0] += values[0] + values[1] + ... */
cudaError_t rp_cuda_add_doubles(const double *values, size_t n, double *sum, cudaStream_t stream);

/* rmsnorm.cu */
typedef struct {
    int dtype;
    size_t rows, n;
    float epsilon;
    const void *x;          /* [rows,n]; backward: s */
    const void *residual;   /* forward: [rows,n] or NULL */
    void *sum;              /* forward: [rows,n], only with residual */
    const void *weight;     /* [n] */
    void *y;                /* forward: [rows,n] */
    float *rstd;            /* [rows] */
    const void *dy;         /* backward: [rows,n] */
    const void *d_residual; /* backward: [rows,n] or NULL */
    void *dx;               /* backward: [rows,n] */
    float *d_weight;        /* backward: [n], += */
    void *workspace;        /* backward */
} RpCudaRmsnorm;
cudaError_t rp_cuda_rmsnorm_forward(const RpCudaRmsnorm *args, cudaStream_t stream);
size_t rp_cuda_rmsnorm_backward_workspace(size_t rows, size_t n);
cudaError_t rp_cuda_rmsnorm_backward(const RpCudaRmsnorm *args, cudaStream_t stream);

/* rope.cu; @direction: 1 forward, -1 backward */
typedef struct {
    int dtype;
    size_t tokens, heads, head_size;
    const int32_t *positions;     /* [tokens] */
    const float *cosines, *sines; /* [positions,head_size/2] */
    const void *x;                /* [tokens,heads,head_size] */
    void *y;                      /* the same; may be x */
    float direction;
} RpCudaRope;
cudaError_t rp_cuda_rope(const RpCudaRope *args, cudaStream_t stream);

/* norm-rope.cu */
typedef struct {
    int dtype;
    size_t tokens, heads, head_size;
    float epsilon;
    const int32_t *positions;     /* [tokens] */
    const float *cosines, *sines; /* [positions,head_size/2] */
    const void *x;                /* [tokens,heads,head_size] */
    const void *weight;           /* [head_size] */
    void *y;                      /* forward: as x; may be x */
    float *rstd;                  /* [tokens,heads] */
    const void *dy;               /* backward: as x */
    void *dx;                     /* backward: as x; may be dy */
    float *d_weight;              /* backward: [head_size], += */
    void *workspace;              /* backward */
} RpCudaNormRope;
cudaError_t rp_cuda_norm_rope_forward(const RpCudaNormRope *args, cudaStream_t stream);
size_t rp_cuda_norm_rope_backward_workspace(size_t tokens, size_t heads, size_t head_size);
cudaError_t rp_cuda_norm_rope_backward(const RpCudaNormRope *args, cudaStream_t stream);

/* embedding.cu */
cudaError_t rp_cuda_embedding_forward(int dtype, size_t tokens, size_t n, const int32_t *ids,
                                      const void *weight, void *y, cudaStream_t stream);
size_t rp_cuda_embedding_backward_workspace(size_t tokens);
cudaError_t rp_cuda_embedding_backward(int dtype, size_t tokens, size_t n, size_t vocabulary,
                                       const int32_t *ids, const void *dy, float *d_weight,
                                       int32_t padding_id, void *workspace, cudaStream_t stream);

/* cross-entropy.cu */
typedef struct {
    int dtype;
    size_t tokens, vocabulary;
    void *logits;          /* [tokens,vocabulary] */
    const int32_t *labels; /* [tokens] */
    float scale;
    int gradient;
    double *loss;  /* [1], += */
    float *losses; /* [tokens] or NULL */
    void *workspace;
} RpCudaCrossEntropy;
size_t rp_cuda_cross_entropy_workspace(size_t tokens);
cudaError_t rp_cuda_cross_entropy(const RpCudaCrossEntropy *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
