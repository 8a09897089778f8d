/* In place of the CUDA backend where it is not built: there are no devices. */
#include "core/base/quote.h"
#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "exec/device/error.h"

const RpDeviceOps *
rp_cuda_devices(void)
{
    return NULL;
}

const char *
rp_cuda_missing_text(void)
{
    return "this program was built without CUDA";
}

guint
rp_cuda_device_count(void)
{
    return 0;
}

gboolean
rp_cuda_split_devices(const char *text, guint server, guint n, GError **error)
{
    return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING, "%s", rp_cuda_no_device_text());
}

const char *
rp_cuda_no_device_text(void)
{
    return "this program was built without CUDA";
}

gboolean
rp_cuda_device_info(guint device, RpCudaDeviceInfo *info, GError **error)
{
    return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING,
                   "this program was built without CUDA");
}
