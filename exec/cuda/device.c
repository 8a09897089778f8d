#include "exec/cuda/device.h"

#include "exec/cuda/device-private.h"

cudaError_t
rp_cuda_use_device(int device)
{
    int current;
    cudaError_t status = cudaGetDevice(&current); /* far cheaper than setting it */

    if (status == cudaSuccess && current == device)
        return cudaSuccess;
    return cudaSetDevice(device);
}

/* What CUDA's text leaves open. */
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
rp_cuda_check(guint device, cudaError_t status, const char *what, GError **error)
{
    RpCudaError code = RP_CUDA_ERROR_DEVICE;

    if (status == cudaSuccess)
        return TRUE;
    if (status == cudaErrorMemoryAllocation)
        code = RP_CUDA_ERROR_MEMORY;
    g_set_error(error, RP_CUDA_ERROR, code, "device %u: %s: %s (%s)%s", device, what,
                cudaGetErrorString(status), cudaGetErrorName(status), remedy(status));
    return FALSE;
}

cudaError_t
rp_cuda_query_event(cudaEvent_t event)
{
    const cudaError_t status = cudaEventQuery(event);

    if (status == cudaErrorNotReady)
        (void)cudaGetLastError();
    return status;
}

cudaError_t
rp_cuda_query_stream(cudaStream_t stream)
{
    const cudaError_t status = cudaStreamQuery(stream);

    if (status == cudaErrorNotReady)
        (void)cudaGetLastError();
    return status;
}

guint
rp_cuda_device_count(void)
{
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (guint)MAX(0, count);
}

const char *
rp_cuda_no_device_text(void)
{
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);

    if (status == cudaSuccess)
        return count > 0 ? NULL : cudaGetErrorString(cudaErrorNoDevice);
    (void)cudaGetLastError();
    return cudaGetErrorString(status);
}

gboolean
rp_cuda_device_info(guint device, RpCudaDeviceInfo *info, GError **error)
{
    const guint count = rp_cuda_device_count();
    struct cudaDeviceProp properties;
    gsize free_bytes, total_bytes;

    if (device >= count) {
        g_set_error(error, RP_CUDA_ERROR, RP_CUDA_ERROR_DEVICE,
                    "there is no device %u: CUDA finds %u of them", device, count);
        return FALSE;
    }
    if (!rp_cuda_check(device, cudaGetDeviceProperties(&properties, (int)device),
                       "cudaGetDeviceProperties", error) ||
        !rp_cuda_check(device, rp_cuda_use_device((int)device), "cudaSetDevice", error) ||
        !rp_cuda_check(device, cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo", error))
        return FALSE;
    *info = (RpCudaDeviceInfo){
        .memory_bytes = total_bytes,
        .free_bytes = free_bytes,
        .sm = (guint)(properties.major * 10 + properties.minor),
        .multiprocessors = (guint)properties.multiProcessorCount,
    };
    g_strlcpy(info->name, properties.name, sizeof info->name);
    return TRUE;
}
