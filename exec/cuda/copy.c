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
    if (!rp_runtime_take_pinned(&device->gpu, RP_CUDA_SLOTS * cuda->slot_bytes,
                                (void **)&device->pinned, error))
        return FALSE;
    for (guint i = 0; i < RP_CUDA_SLOTS; i++) {
        RpCudaSlot *slot = &device->slots[i];

        slot->memory = (gint32 *)(void *)(device->pinned + i * cuda->slot_bytes);
        if (!rp_runtime_event_new(&device->gpu, FALSE, &slot->read, error))
            return FALSE;
    }
    return TRUE;
}

void
rp_cuda_slots_close(RpCudaDevice *device)
{
    for (guint i = 0; i < RP_CUDA_SLOTS; i++)
        rp_runtime_event_free(device->slots[i].read);
    rp_runtime_give_pinned(device->pinned);
}

/* The loop ends, as the slot's readers depend on no task that is yet to be issued. */
static gboolean
wait_for_slot(RpCuda *cuda, const RpCudaDevice *device, const RpCudaSlot *slot, GError **error)
{
    const struct timespec time = {.tv_nsec = NAP_NS};
    RpRuntimeState state;

    if (!slot->used)
        return TRUE;
    while ((state = rp_runtime_event_state(&device->gpu, slot->read, "a copy before this one",
                                           error)) == RP_RUNTIME_BUSY) {
        if (!rp_cuda_go_on(cuda, error))
            return FALSE;
        (void)nanosleep(&time, NULL);
    }
    return state == RP_RUNTIME_DONE;
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
    RpRuntimeStream *stream = transfer->lane->stream;
    RpCudaSlot *slot = rp_cuda_slot_fill(transfer->cuda, device, source, bytes, error);

    return slot != NULL &&
           rp_runtime_copy(&device->gpu, target, slot->memory, bytes, TRUE, stream, error) &&
           rp_runtime_record(&device->gpu, slot->read, stream, error);
}

static gboolean
move(gpointer user_data, void *target, const void *source, guint64 bytes, GError **error)
{
    const Transfer *transfer = user_data;
    const RpCudaHostArena *host = transfer->cuda->host;
    guint64 n;

    if (transfer->from_caller)
        return move_from_caller(transfer, target, source, bytes, error);
    for (guint64 at = 0; at < bytes; at += n) {
        guint8 *to = (guint8 *)target + at;
        const guint8 *from = (const guint8 *)source + at;

        n = MIN(bytes - at, rp_cuda_host_arena_run(host, transfer->up ? from : to));
        if (!rp_runtime_copy(&transfer->lane->device->gpu, to, from, n, transfer->up,
                             transfer->lane->stream, error))
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

/* Many of these follow each other without a gap. */
static gboolean
is_saved(const RpBackendTask *task)
{
    return task->task.kind == RP_TASK_SAVED_DOWNLOAD || task->task.kind == RP_TASK_SAVED_UPLOAD;
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

    return rp_cuda_go_on(cuda, error) && rp_runtime_use(&lane->device->gpu, error) &&
           rp_task_copy(&cuda->map, task, move, &transfer, error) &&
           (!is_saved(task) || rp_runtime_pass_turn(&lane->device->gpu, lane->stream, error));
}
