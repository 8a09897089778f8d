#include "exec/cuda/runtime/check.h"

#include "core/base/quote.h"

/* Adds the remedy, which CUDA's text does not name. */
static const char *
remedy(cudaError_t status)
{
    switch (status) {
    case cudaErrorMemoryAllocation:
        return ": free the device, nvidia-smi shows who has its memory";
    case cudaErrorDevicesUnavailable:
        return ": another program has it to itself, or its compute mode forbids a second one; "
               "nvidia-smi shows both";
    default:
        return "";
    }
}

gboolean
rp_cuda_ok(cudaError_t status, const char *what, GError **error)
{
    RpDeviceError code = RP_DEVICE_ERROR_MISSING;

    if (status == cudaSuccess)
        return TRUE;
    (void)cudaGetLastError();
    if (status == cudaErrorMemoryAllocation)
        code = RP_DEVICE_ERROR_MEMORY;
    return rp_fail(error, RP_DEVICE_ERROR, code, "%s: %s (%s)%s", what, cudaGetErrorString(status),
                   cudaGetErrorName(status), remedy(status));
}
