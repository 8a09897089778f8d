/**
 * The operations of RpKernels once more: double precision, one loop per index, straight from the
 * formulas in exec/kernels/kernels.h, with whole matrices where the kernels work in blocks.
 */
#pragma once

#include "exec/kernels/kernels.h"

/* c = A B, or += if @accumulate */
void reference_matmul(RpMatmulLayout form, size_t m, size_t n, size_t k, const double *a,
                      const double *b, double *c, gboolean accumulate);

void reference_rmsnorm(size_t rows, size_t n, double epsilon, const double *s, const double *weight,
                       double *y);
/* dx =, d_weight = */
void reference_rmsnorm_backward(size_t rows, size_t n, double epsilon, const double *s,
                                const double *weight, const double *dy, double *dx,
                                double *d_weight);

/* @direction: 1 forward, -1 backward; one frequency per pair */
void reference_rope(size_t tokens, size_t heads, size_t head_size, const int32_t *positions,
                    const double *frequencies, double direction, const double *x, double *y);

/* Only sizes, window, scale and starts of @shape are read. */
void reference_attention(const RpAttentionArgs *shape, const double *q, const double *k,
                         const double *v, double *out, double *lse);
void reference_attention_backward(const RpAttentionArgs *shape, const double *q, const double *k,
                                  const double *v, const double *d_out, double *dq, double *dk,
                                  double *dv);

void reference_swiglu(size_t n, const double *gate, const double *up, double *y);
void reference_swiglu_backward(size_t n, const double *gate, const double *up, const double *dy,
                               double *d_gate, double *d_up);

/* Sum over unmasked tokens; @gradient: [tokens,vocabulary] or NULL. */
double reference_cross_entropy(size_t tokens, size_t vocabulary, const double *logits,
                               const int32_t *labels, double scale, double *gradient);
