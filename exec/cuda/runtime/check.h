/* CUDA's failures as errors. */
#pragma once

#include <cuda_runtime.h>

#include "exec/device/error.h"

/* Sets @error from @status: "cudaMalloc: out of memory (cudaErrorMemoryAllocation)", and the remedy
 * where it is known; the thread's last error is cleared. Returns: FALSE unless cudaSuccess */
gboolean rp_cuda_ok(cudaError_t status, const char *what, GError **error);
