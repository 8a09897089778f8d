/* Between soft-cuda.c and its kernels. */
#pragma once

#include <cuda_runtime.h>
#include <glib.h>

/* @work runs with a copy of @payload when the stream comes to it. */
cudaError_t soft_cuda_issue(cudaStream_t stream, void (*work)(void *payload), const void *payload,
                            size_t bytes);
