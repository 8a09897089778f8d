/* The inside of a stream: for kernels.c, matmul.c and stream.c only. */
#pragma once

#include <cublasLt.h>

#include "exec/cuda/cudnn/cudnn.h"
#include "exec/cuda/kernels/kernels.h"

struct _RpKernelStream {
    int device;
    RpRuntimeStream *stream; /* borrowed */
    cublasLtHandle_t blas;
    GHashTable *plans; /* matmul.c: how each shape is multiplied; NULL before the first */
    guint rank;        /* of a plan's algorithm among those that cuBLASLt proposes */
    RpCudnn *cudnn;    /* cudnn.c: NULL where cuDNN was not found */
    char *failure;     /* the first since `check` was last asked, or NULL */
};

/* Notes a failure, unless there is one already. @reason: CUDA's text */
void rp_cuda_stream_fail(RpKernelStream *stream, const char *operation, const char *reason);

/* matmul.c */
size_t rp_cuda_matmul_workspace(const RpMatmulArgs *args);
char *rp_cuda_matmul_library(void);
void rp_cuda_multiply(RpKernelStream *stream, const RpMatmulArgs *args);
