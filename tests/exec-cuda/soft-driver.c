/* The part of the driver that splits a card (exec/cuda/runtime/split.c): each part is one of the devices of threads. */
#include <cuda.h>
#include <string.h>

#include "tests/exec-cuda/soft-cuda-private.h"
#include "tests/exec-cuda/soft-cuda.h"

#define MULTIPROCESSORS 64
#define UNIT 8 /* fewer multiprocessors are rounded up to it */

static gboolean old_driver;
static guint n_contexts;

void
soft_cuda_age_driver(gboolean old)
{
    old_driver = old;
}

static CUresult
device_get(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult
retain(CUcontext *context, CUdevice device)
{
    *context = NULL;
    return CUDA_SUCCESS;
}

static CUresult
set_current(CUcontext context)
{
    return (CUresult)cudaSetDevice((int)GPOINTER_TO_UINT(context) - 1);
}

static CUresult
get_resource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    memset(resource, 0, sizeof *resource);
    resource->type = type;
    resource->sm.smCount = MULTIPROCESSORS;
    return CUDA_SUCCESS;
}

static CUresult
split(CUdevResource *result, unsigned *n, const CUdevResource *input, CUdevResource *rest,
      unsigned flags, unsigned least)
{
    const unsigned each = (least + UNIT - 1) / UNIT * UNIT;

    *n = MIN(*n, input->sm.smCount / each);
    for (unsigned i = 0; i < *n; i++) {
        result[i] = *input;
        result[i].sm.smCount = each;
    }
    return *n > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
}

static CUresult
describe(CUdevResourceDesc *description, CUdevResource *resources, unsigned n)
{
    return n > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult
create(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device, unsigned flags)
{
    *green = GUINT_TO_POINTER(++n_contexts);
    return flags == CU_GREEN_CTX_DEFAULT_STREAM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult
context_of(CUcontext *context, CUgreenCtx green)
{
    *context = (CUcontext)(gpointer)green;
    return CUDA_SUCCESS;
}

/* The backend makes streams for the calling thread's part alone. */
static CUresult
stream_create(CUstream *stream, CUgreenCtx green, unsigned flags, int priority)
{
    int device;

    if (cudaGetDevice(&device) != cudaSuccess || device + 1 != (int)GPOINTER_TO_UINT(green) ||
        flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_CONTEXT;
    return (CUresult)cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, priority);
}

cudaError_t
cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                 unsigned long long flags,
                                 enum cudaDriverEntryPointQueryResult *found)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } functions[] = {
        {"cuDeviceGet", (void (*)(void))device_get},
        {"cuDevicePrimaryCtxRetain", (void (*)(void))retain},
        {"cuCtxSetCurrent", (void (*)(void))set_current},
        {"cuDeviceGetDevResource", (void (*)(void))get_resource},
        {"cuDevSmResourceSplitByCount", (void (*)(void))split},
        {"cuDevResourceGenerateDesc", (void (*)(void))describe},
        {"cuGreenCtxCreate", (void (*)(void))create},
        {"cuCtxFromGreenCtx", (void (*)(void))context_of},
        {"cuGreenCtxStreamCreate", (void (*)(void))stream_create},
    };

    *found = cudaDriverEntryPointSymbolNotFound;
    for (gsize i = 0; i < G_N_ELEMENTS(functions); i++)
        if (strcmp(functions[i].name, name) == 0 &&
            (!old_driver || strstr(name, "Green") == NULL)) {
            memcpy(function, &functions[i].function, sizeof *function);
            *found = cudaDriverEntryPointSuccess;
        }
    return cudaSuccess;
}
