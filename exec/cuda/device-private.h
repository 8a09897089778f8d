/**
 * Small things that the backend's files share about devices and errors.
 */
#pragma once

#include "exec/cuda/device.h"
#include "exec/cuda/kernels/kernels.h"

/* Makes @device (CUDA's number) the calling thread's. */
cudaError_t rp_cuda_use_device(int device);

/* Sets @error from @status: "device 1: cudaMalloc: out of memory (cudaErrorMemoryAllocation)".
 * @device: the plan's. Returns: FALSE unless cudaSuccess */
gboolean rp_cuda_check(guint device, cudaError_t status, const char *what, GError **error);

/* cudaEventQuery() and cudaStreamQuery(), leaving no "not ready" behind for the next launcher of
 * the thread to find. */
cudaError_t rp_cuda_query_event(cudaEvent_t event);
cudaError_t rp_cuda_query_stream(cudaStream_t stream);
