/*
 * Faults of a GPU, by LD_PRELOAD: this library stands before CUDA's libraries, which must be linked
 * dynamically. Devices are CUDA's.
 *
 *   CUDA_FAULT=pointer:100:1   matmul 100 of device 1 writes where there is no memory
 *   CUDA_FAULT=status:100:0    matmul 100 of device 0 is not issued, and fails
 *   CUDA_FAULT=busy            devices say that another program has them to itself
 *   CUDA_FAULT_DONE=FILE       is made when matmul 100 is issued so
 *   CUDA_FAULT_COUNT=FILE      at the end, writes the number of matmuls of device 0
 */
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 64
#define NOWHERE ((uintptr_t)1 << 20) /* no allocation begins so low */

typedef cublasStatus_t (*Matmul)(cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *,
                                 cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t,
                                 const void *, const void *, cublasLtMatrixLayout_t, void *,
                                 cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *,
                                 size_t, cudaStream_t);
typedef cudaError_t (*Malloc)(void **, size_t);

static _Atomic unsigned long counts[DEVICES];

/* The function behind this one. */
static void
find(const char *name, void *function)
{
    void *symbol = dlsym(RTLD_NEXT, name);

    if (symbol == NULL) {
        fprintf(stderr, "cuda-fault: no %s\n", name);
        abort();
    }
    memcpy(function, &symbol, sizeof symbol);
}

/* Whether this matmul of the calling thread's device is the one that CUDA_FAULT says. */
static int
is_due(const char *kind)
{
    const char *fault = getenv("CUDA_FAULT");
    const size_t length = strlen(kind);
    unsigned long n, device;
    char *end;

    if (fault == NULL || strncmp(fault, kind, length) != 0 || fault[length] != ':')
        return 0;
    n = strtoul(fault + length + 1, &end, 10);
    device = *end == ':' ? strtoul(end + 1, NULL, 10) : 0;

    int current = 0;
    cudaError_t (*get_device)(int *);

    find("cudaGetDevice", &get_device);
    return get_device(&current) == cudaSuccess && (unsigned long)current == device &&
           atomic_load(&counts[device % DEVICES]) == n;
}

/* That it has gone wrong, and by the file's time, when. */
static void
note(void)
{
    const char *path = getenv("CUDA_FAULT_DONE");
    FILE *file = path != NULL ? fopen(path, "w") : NULL;

    if (file != NULL)
        fclose(file);
}

static void
count(void)
{
    int current = 0;
    cudaError_t (*get_device)(int *);

    find("cudaGetDevice", &get_device);
    if (get_device(&current) == cudaSuccess)
        atomic_fetch_add(&counts[current % DEVICES], 1);
}

cublasStatus_t
cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha,
               const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
               cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
               cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
               const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
               cudaStream_t stream)
{
    Matmul next;

    count();
    if (is_due("status"))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    if (is_due("pointer")) {
        note();
        c = d = (void *)NOWHERE;
    }
    find("cublasLtMatmul", &next);
    return next(handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                algorithm, workspace, workspace_bytes, stream);
}

cudaError_t
cudaMalloc(void **memory, size_t bytes)
{
    const char *fault = getenv("CUDA_FAULT");
    Malloc next;

    if (fault != NULL && strcmp(fault, "busy") == 0)
        return cudaErrorDevicesUnavailable;
    find("cudaMalloc", &next);
    return next(memory, bytes);
}

__attribute__((destructor)) static void
write_count(void)
{
    const char *path = getenv("CUDA_FAULT_COUNT");
    FILE *file = path != NULL ? fopen(path, "w") : NULL;

    if (file == NULL)
        return;
    fprintf(file, "%lu\n", atomic_load(&counts[0]));
    fclose(file);
}
