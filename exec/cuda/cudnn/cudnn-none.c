/* In place of cudnn.c where cuDNN was not found: it does nothing. */
#include "exec/cuda/cudnn/cudnn.h"

gboolean
rp_cudnn_available(void)
{
    return FALSE;
}

RpCudnn *
rp_cudnn_new(RpRuntimeStream *stream)
{
    return NULL;
}

void
rp_cudnn_free(RpCudnn *cudnn)
{
}

size_t
rp_cudnn_workspace(const RpAttentionArgs *args)
{
    return 0;
}

gboolean
rp_cudnn_attend(RpCudnn *cudnn, const RpAttentionArgs *args)
{
    return FALSE;
}

guint64
rp_cudnn_runs(const RpCudnn *cudnn)
{
    return 0;
}

const char *
rp_cudnn_reason(const RpCudnn *cudnn)
{
    return "this program was built without cuDNN";
}
