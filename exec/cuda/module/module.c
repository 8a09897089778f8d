#include "exec/cuda/module/module.h"

#include "exec/kernels/kernels.h"

__attribute__((visibility("default"))) const RpCudaModule *
rp_cuda_module(void)
{
    static const RpCudaModule module = {
        .sizes = RP_CUDA_MODULE_SIZES,
        .devices = rp_cuda_devices,
        .device_count = rp_cuda_device_count,
        .split_devices = rp_cuda_split_devices,
        .no_device_text = rp_cuda_no_device_text,
        .device_info = rp_cuda_device_info,
    };

    return &module;
}
