/**
 * OpenBLAS, loaded on first use: a program that multiplies nothing does without its memory, its
 * start and its threads.
 */
#pragma once

#include <cblas.h>
#include <glib.h>

typedef struct {
    void (*sgemm)(CBLAS_ORDER order, CBLAS_TRANSPOSE a_form, CBLAS_TRANSPOSE b_form, blasint m,
                  blasint n, blasint k, float alpha, const float *a, blasint a_stride,
                  const float *b, blasint b_stride, float beta, float *c, blasint c_stride);
    void (*set_num_threads)(int n);
    /* (nullable): of OpenBLAS alone, in no header of its own */
    void *(*memory_alloc)(int position);
    void (*memory_free)(void *buffer);
} RpBlas;

/**
 * rp_host_blas:
 *
 * The first call loads it, sets it to one thread for the whole process, and sets
 * OPENBLAS_NUM_THREADS to 1: threads that it starts on being loaded map 128 MiB each, and try for
 * ever where they cannot. Where it does not know the processor, sets OPENBLAS_CORETYPE to kernels that
 * the processor runs.
 *
 * Returns: (nullable): the same for all calls
 */
const RpBlas *rp_host_blas(void);

/* The reason for which there is none, and the remedy. (transfer none) (nullable): there is */
const char *rp_host_blas_problem(void);
