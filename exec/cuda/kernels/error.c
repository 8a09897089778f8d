#include "exec/cuda/kernels/kernels-private.h"

G_DEFINE_QUARK(rp_cuda_error, rp_cuda_error)

gboolean
rp_cuda_ok(cudaError_t status, const char *what, GError **error)
{
    RpCudaError code = RP_CUDA_ERROR_LAUNCH;

    if (status == cudaSuccess)
        return TRUE;
    if (status == cudaErrorMemoryAllocation)
        code = RP_CUDA_ERROR_MEMORY;
    else if (status == cudaErrorNoDevice || status == cudaErrorInvalidDevice ||
             status == cudaErrorInsufficientDriver || status == cudaErrorDevicesUnavailable)
        code = RP_CUDA_ERROR_DEVICE;
    g_set_error(error, RP_CUDA_ERROR, code, "%s: %s", what, cudaGetErrorString(status));
    return FALSE;
}

void
rp_cuda_stream_fail(RpKernelStream *stream, const char *operation, const char *reason)
{
    if (!stream->failure)
        stream->failure = g_strdup_printf("%s: %s", operation, reason);
}
