/* Transfers. */
#include "exec/cuda/backend-private.h"

#include <string.h>
#include <time.h>

#define NAP_NS 20000

typedef struct {
    RpCuda *cuda;
    RpBackendLane *lane;
    gboolean up;
    gboolean from_caller; /* not pinned, and gone before the copy has run */
} Transfer;

/* ---- from the caller: token ids and targets ---- */

gboolean
rp_cuda_slots_open(RpCuda *cuda, RpCudaDevice *device, GError **error)
{
    if (!rp_cuda_check(device->index,
                       cudaHostAlloc((void **)&device->pinned, RP_CUDA_SLOTS * cuda->slot_bytes,
                                     cudaHostAllocPortable | cudaHostAllocMapped),
                       "cudaHostAlloc", error))
        return FALSE;
    for (guint i = 0; i < RP_CUDA_SLOTS; i++) {
        RpCudaSlot *slot = &device->slots[i];

        slot->memory = (gint32 *)(void *)(device->pinned + i * cuda->slot_bytes);
        if (!rp_cuda_check(device->index,
                           cudaEventCreateWithFlags(&slot->read, cudaEventDisableTiming),
                           "cudaEventCreate", error))
            return FALSE;
    }
    return TRUE;
}

void
rp_cuda_slots_close(RpCudaDevice *device)
{
    for (guint i = 0; i < RP_CUDA_SLOTS && device->slots[i].read != NULL; i++)
        (void)cudaEventDestroy(device->slots[i].read);
    if (device->pinned != NULL)
        (void)cudaFreeHost(device->pinned);
}

/* What reads a slot depends on nothing that is yet to be issued, so this ends. */
static gboolean
wait_for_slot(RpCuda *cuda, const RpCudaDevice *device, const RpCudaSlot *slot, GError **error)
{
    const struct timespec time = {.tv_nsec = NAP_NS};
    cudaError_t status;

    if (!slot->used)
        return TRUE;
    while ((status = rp_cuda_query_event(slot->read)) == cudaErrorNotReady) {
        if (!rp_cuda_go_on(cuda, error))
            return FALSE;
        (void)nanosleep(&time, NULL);
    }
    return rp_cuda_check(device->index, status, "a copy before this one", error);
}

RpCudaSlot *
rp_cuda_slot_fill(RpCuda *cuda, RpCudaDevice *device, const void *source, gsize bytes,
                  GError **error)
{
    RpCudaSlot *slot = &device->slots[device->n_slots_taken % RP_CUDA_SLOTS];

    g_assert(bytes <= cuda->slot_bytes);
    if (!wait_for_slot(cuda, device, slot, error))
        return NULL;
    memcpy(slot->memory, source, bytes);
    slot->used = TRUE;
    device->n_slots_taken++;
    return slot;
}

/* ---- copies ---- */

static gboolean
move_from_caller(const Transfer *transfer, void *target, const void *source, guint64 bytes,
                 GError **error)
{
    RpCudaDevice *device = transfer->lane->device;
    const cudaStream_t stream = transfer->lane->stream;
    RpCudaSlot *slot = rp_cuda_slot_fill(transfer->cuda, device, source, bytes, error);

    return slot != NULL &&
           rp_cuda_check(
               device->index,
               cudaMemcpyAsync(target, slot->memory, bytes, cudaMemcpyHostToDevice, stream),
               "cudaMemcpyAsync", error) &&
           rp_cuda_check(device->index, cudaEventRecord(slot->read, stream), "cudaEventRecord",
                         error);
}

static gboolean
move(gpointer user_data, void *target, const void *source, guint64 bytes, GError **error)
{
    const Transfer *transfer = user_data;
    const RpCudaHostArena *host = transfer->cuda->host;
    const enum cudaMemcpyKind kind = transfer->up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    guint64 n;

    if (transfer->from_caller)
        return move_from_caller(transfer, target, source, bytes, error);
    for (guint64 at = 0; at < bytes; at += n) {
        guint8 *to = (guint8 *)target + at;
        const guint8 *from = (const guint8 *)source + at;

        n = MIN(bytes - at, rp_cuda_host_arena_run(host, transfer->up ? from : to));
        if (!rp_cuda_check(transfer->lane->device->index,
                           cudaMemcpyAsync(to, from, n, kind, transfer->lane->stream),
                           "cudaMemcpyAsync", error))
            return FALSE;
    }
    return TRUE;
}

static gboolean
is_from_caller(const RpBackendTask *task)
{
    return (task->task.kind == RP_TASK_ACTIVATION_UPLOAD ||
            task->task.kind == RP_TASK_STASH_UPLOAD) &&
           rp_task_access(task, RP_ROLE_HOST) == NULL;
}

gboolean
rp_cuda_copy(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    Transfer transfer = {
        .cuda = cuda,
        .lane = lane,
        .up = lane->kind == RP_LANE_ACTIVATION_UP || lane->kind == RP_LANE_PARAMETER_UP,
        .from_caller = is_from_caller(task),
    };

    return rp_cuda_go_on(cuda, error) &&
           rp_cuda_check(lane->device->index, rp_cuda_use_device(lane->device->physical),
                         "cudaSetDevice", error) &&
           rp_task_copy(&cuda->map, task, move, &transfer, error);
}
