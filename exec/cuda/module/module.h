/**
 * The CUDA backend as a module: a shared library that a program loads when a user requests GPUs, so
 * that other commands neither wait for CUDA's libraries nor hold their memory.
 *
 *   roundpipe          load.c: backend.h and device.h, by way of the table
 *   roundpipe-cuda.so  module.c: the table;  the backend, its kernels, CUDA's libraries
 *
 * Both are of one build, and each has its own copy of the code of other folders that the backend
 * needs.
 */
#pragma once

#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"

#define RP_CUDA_MODULE_FILE "roundpipe-cuda.so"
#define RP_CUDA_MODULE_SYMBOL "rp_cuda_module"

typedef struct {
    gsize sizes[5]; /* RP_CUDA_MODULE_SIZES: sizes of structs that both parts read */
    const RpDeviceOps *(*devices)(void);
    guint (*device_count)(void);
    gboolean (*split_devices)(const char *text, guint server, guint n, GError **error);
    const char *(*no_device_text)(void);
    gboolean (*device_info)(guint device, RpCudaDeviceInfo *info, GError **error);
} RpCudaModule;

#define RP_CUDA_MODULE_SIZES                                                                       \
    {                                                                                              \
        sizeof(RpBackendOps), sizeof(RpDeviceOps), sizeof(RpKernels), sizeof(RpTask),              \
            sizeof(RpCudaDeviceInfo)                                                               \
    }

/* The symbol that the module exports. */
const RpCudaModule *rp_cuda_module(void);
