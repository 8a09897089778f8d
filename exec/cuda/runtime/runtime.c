#include "exec/cuda/runtime/runtime.h"

#include "core/base/quote.h"
#include "exec/cuda/runtime/check.h"
#include "exec/cuda/runtime/split.h"

static gboolean
check(const RpRuntimeGpu *gpu, cudaError_t status, const char *what, GError **error)
{
    if (rp_cuda_ok(status, what, error))
        return TRUE;
    g_prefix_error(error, "device %u: ", gpu->index);
    return FALSE;
}

/* Leaves no "not ready" behind for the next launcher of the thread to find. */
static RpRuntimeState
state_of(const RpRuntimeGpu *gpu, cudaError_t status, const char *what, GError **error)
{
    if (status == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return RP_RUNTIME_BUSY;
    }
    return check(gpu, status, what, error) ? RP_RUNTIME_DONE : RP_RUNTIME_FAILED;
}

gboolean
rp_runtime_use(const RpRuntimeGpu *gpu, GError **error)
{
    return check(gpu, rp_cuda_use(gpu->physical), "cudaSetDevice", error);
}

/* ---- memory ---- */

gboolean
rp_runtime_take(const RpRuntimeGpu *gpu, guint64 bytes, void **memory, GError **error)
{
    const cudaError_t status = cudaMalloc(memory, bytes);

    if (status != cudaSuccess)
        *memory = NULL;
    return check(gpu, status, "cudaMalloc", error);
}

void
rp_runtime_give(void *memory)
{
    (void)cudaFree(memory);
}

static gboolean
finish_device(const RpRuntimeGpu *gpu, GError **error)
{
    return check(gpu, cudaDeviceSynchronize(), "cudaDeviceSynchronize", error);
}

gboolean
rp_runtime_clear(const RpRuntimeGpu *gpu, void *memory, guint64 bytes, GError **error)
{
    return check(gpu, cudaMemset(memory, 0, bytes), "cudaMemset", error) &&
           finish_device(gpu, error);
}

gboolean
rp_runtime_upload(const RpRuntimeGpu *gpu, void *to, const void *from, guint64 bytes,
                  GError **error)
{
    /* the last pieces of pageable memory may be under way on return */
    return check(gpu, cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy", error) &&
           finish_device(gpu, error);
}

gboolean
rp_runtime_memory(const RpRuntimeGpu *gpu, gsize *free_bytes, gsize *total_bytes, GError **error)
{
    if (!check(gpu, cudaMemGetInfo(free_bytes, total_bytes), "cudaMemGetInfo", error))
        return FALSE;
    /* parts of a card have equal shares of its free memory */
    *free_bytes /= (gsize)rp_cuda_parts_per_card();
    *total_bytes /= (gsize)rp_cuda_parts_per_card();
    return TRUE;
}

gboolean
rp_runtime_take_pinned(const RpRuntimeGpu *gpu, guint64 bytes, void **memory, GError **error)
{
    return check(gpu, cudaHostAlloc(memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                 "cudaHostAlloc", error);
}

void
rp_runtime_give_pinned(void *memory)
{
    if (memory != NULL)
        (void)cudaFreeHost(memory);
}

/* Clears the thread's last error, so that its next call does not report this one. */
static const char *
problem_of(cudaError_t status)
{
    if (status == cudaSuccess)
        return NULL;
    (void)cudaGetLastError();
    return cudaGetErrorString(status);
}

const char *
rp_runtime_pin(void *memory, guint64 bytes)
{
    return problem_of(cudaHostRegister(memory, bytes, cudaHostRegisterPortable));
}

const char *
rp_runtime_unpin(void *memory)
{
    return problem_of(cudaHostUnregister(memory));
}

/* ---- streams ---- */

gboolean
rp_runtime_stream_new(const RpRuntimeGpu *gpu, gboolean urgent, RpRuntimeStream **stream,
                      GError **error)
{
    int least, greatest;

    return check(gpu, cudaDeviceGetStreamPriorityRange(&least, &greatest),
                 "cudaDeviceGetStreamPriorityRange", error) &&
           check(gpu, rp_cuda_stream(stream, urgent ? greatest : least),
                 "cudaStreamCreateWithPriority", error);
}

void
rp_runtime_stream_free(RpRuntimeStream *stream)
{
    if (stream != NULL)
        (void)cudaStreamDestroy(stream);
}

RpRuntimeState
rp_runtime_stream_state(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, const char *what,
                        GError **error)
{
    return state_of(gpu, cudaStreamQuery(stream), what, error);
}

gboolean
rp_runtime_stream_finish(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, GError **error)
{
    return check(gpu, cudaStreamSynchronize(stream), "cudaStreamSynchronize", error);
}

gboolean
rp_runtime_copy(const RpRuntimeGpu *gpu, void *to, const void *from, guint64 bytes, gboolean up,
                RpRuntimeStream *stream, GError **error)
{
    const enum cudaMemcpyKind kind = up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;

    return check(gpu, cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync", error);
}

gboolean
rp_runtime_call(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, void (*function)(void *data),
                void *data, GError **error)
{
    return check(gpu, cudaLaunchHostFunc(stream, function, data), "cudaLaunchHostFunc", error);
}

static void
pass_turn(void *data)
{
}

gboolean
rp_runtime_pass_turn(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, GError **error)
{
    return rp_cuda_parts_per_card() == 1 || rp_runtime_call(gpu, stream, pass_turn, NULL, error);
}

/* ---- events ---- */

gboolean
rp_runtime_event_new(const RpRuntimeGpu *gpu, gboolean timed, RpRuntimeEvent **event,
                     GError **error)
{
    return check(gpu,
                 cudaEventCreateWithFlags(event, timed ? cudaEventDefault : cudaEventDisableTiming),
                 "cudaEventCreate", error);
}

void
rp_runtime_event_free(RpRuntimeEvent *event)
{
    if (event != NULL)
        (void)cudaEventDestroy(event);
}

gboolean
rp_runtime_record(const RpRuntimeGpu *gpu, RpRuntimeEvent *event, RpRuntimeStream *stream,
                  GError **error)
{
    return check(gpu, cudaEventRecord(event, stream), "cudaEventRecord", error);
}

gboolean
rp_runtime_wait(const RpRuntimeGpu *gpu, RpRuntimeStream *stream, RpRuntimeEvent *event,
                gboolean foreign, GError **error)
{
    /* CUDA does not say which of two devices has failed */
    return check(gpu, cudaStreamWaitEvent(stream, event, 0),
                 foreign ? "cudaStreamWaitEvent, for an event of another device"
                         : "cudaStreamWaitEvent",
                 error);
}

RpRuntimeState
rp_runtime_event_state(const RpRuntimeGpu *gpu, RpRuntimeEvent *event, const char *what,
                       GError **error)
{
    return state_of(gpu, cudaEventQuery(event), what, error);
}

gboolean
rp_runtime_elapsed_ns(const RpRuntimeGpu *gpu, RpRuntimeEvent *from, RpRuntimeEvent *to, double *ns,
                      GError **error)
{
    float ms;

    if (!check(gpu, cudaEventElapsedTime(&ms, from, to), "cudaEventElapsedTime", error))
        return FALSE;
    *ns = (double)ms * 1e6;
    return TRUE;
}

/* ---- devices ---- */

guint
rp_cuda_device_count(void)
{
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return (guint)MAX(0, rp_cuda_parts(count));
}

const char *
rp_cuda_no_device_text(void)
{
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);

    if (status == cudaSuccess)
        return count > 0 ? NULL : cudaGetErrorString(cudaErrorNoDevice);
    return problem_of(status);
}

gboolean
rp_cuda_device_info(guint device, RpCudaDeviceInfo *info, GError **error)
{
    const RpRuntimeGpu gpu = {device, (int)device};
    const guint count = rp_cuda_device_count();
    struct cudaDeviceProp properties;
    gsize free_bytes, total_bytes;
    int multiprocessors = 0;

    if (device >= count)
        return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING,
                       "there is no device %u: CUDA finds %u of them", device, count);
    if (!check(&gpu, cudaGetDeviceProperties(&properties, rp_cuda_card_of(gpu.physical)),
               "cudaGetDeviceProperties", error) ||
        !check(&gpu, rp_cuda_multiprocessors_of(gpu.physical, &multiprocessors),
               "cudaDeviceGetAttribute", error) ||
        !rp_runtime_use(&gpu, error) || !rp_runtime_memory(&gpu, &free_bytes, &total_bytes, error))
        return FALSE;
    *info = (RpCudaDeviceInfo){
        .memory_bytes = total_bytes,
        .free_bytes = free_bytes,
        .sm = (guint)(properties.major * 10 + properties.minor),
        .multiprocessors = (guint)multiprocessors,
    };
    (void)rp_cuda_name(gpu.physical, info->name, sizeof info->name); /* requested before, too */
    g_snprintf(info->pci_address, sizeof info->pci_address, "%04x:%02x:%02x.0",
               (guint)properties.pciDomainID & 0xffff, (guint)properties.pciBusID & 0xff,
               (guint)properties.pciDeviceID & 0xff);
    return TRUE;
}
