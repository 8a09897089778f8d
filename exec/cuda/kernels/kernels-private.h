/* The inside of a stream: for kernels.c, matmul.c and stream.c only. */
#pragma once

#include <cublasLt.h>

#include "exec/cuda/cudnn/cudnn.h"
#include "exec/cuda/kernels/kernels.h"

/* A stream's queue holds some thousand commands, and a thread that issues one more waits inside CUDA, where it keeps
 * all other threads off the card: uploads, and other parts of a split card. So operations that are issued and not done
 * are counted, and their issuer waits outside. */
#define RP_CUDA_PACE_OPERATIONS 64 /* from one mark to the next */
#define RP_CUDA_PACE_MARKS 4

struct _RpKernelStream {
    int device;
    RpRuntimeStream *stream; /* borrowed */
    cublasLtHandle_t blas;
    GHashTable *plans; /* matmul.c: how each shape is multiplied; NULL before the first */
    guint rank;        /* rank of a plan's algorithm among cuBLASLt's proposals */
    RpCudnn *cudnn;    /* cudnn.c: NULL where cuDNN was not found */
    cudaEvent_t marks[RP_CUDA_PACE_MARKS]; /* the last that were recorded, in turn */
    guint64 n_operations;
    gboolean records; /* operations are recorded, and do not run: nothing can be waited for */
    char *failure;    /* the first since the last `check`, or NULL */
};

/* Notes a failure, unless there is one already. @reason: CUDA's text */
void rp_cuda_stream_fail(RpKernelStream *stream, const char *operation, const char *reason);

/* To be called for every operation, before it is issued: waits while too many are not done. */
void rp_cuda_stream_pace(RpKernelStream *stream);

/* decode/rows.cu: matmuls whose rows stand alone; they need no workspace */
cudaError_t rp_cuda_matmul_rows(const RpMatmulArgs *args, cudaStream_t stream);

/* matmul.c */
size_t rp_cuda_matmul_workspace(const RpMatmulArgs *args);
char *rp_cuda_matmul_library(void);
void rp_cuda_multiply(RpKernelStream *stream, const RpMatmulArgs *args);
