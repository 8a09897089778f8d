#include "exec/cuda/runtime/device.h"

gboolean
rp_cuda_built(void)
{
    return RP_CUDA_BUILT;
}

const char *
rp_cuda_built_text(void)
{
    return RP_CUDA_TEXT;
}
