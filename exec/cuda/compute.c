/* Heads of actions (exec/device/action.h), whose targets go up and whose losses come back. */
#include "exec/cuda/backend-private.h"

/* The loss is on the host. On a thread of CUDA's, where CUDA may not be called. */
static void
pass_loss_on(void *data)
{
    const RpCudaLoss *loss = data;
    RpCuda *cuda = loss->cuda;
    GError *error = NULL;

    if (!atomic_load(&cuda->cancelled) &&
        !rp_device_action_take_loss(&cuda->map, loss->iteration, loss->micro_batch, &error))
        cuda->base.failed(cuda->base.failed_data, loss->task, error);
    atomic_fetch_add(&loss->device->n_losses_back, 1);
}

/* The head was issued: its loss follows, beside what comes next. */
static gboolean
send_loss(const RpDeviceAction *action, GError **error)
{
    RpCuda *cuda = (RpCuda *)action->backend;
    RpCudaDevice *device = &cuda->devices[action->device];
    RpCudaLoss *loss = &cuda->calls[action->place];

    *loss = (RpCudaLoss){.cuda = cuda,
                         .device = device,
                         .task = action->task->id,
                         .iteration = action->task->task.iteration,
                         .micro_batch = action->task->task.micro_batch};
    if (!rp_runtime_record(&device->gpu, device->head_done, device->compute, error) ||
        !rp_runtime_wait(&device->gpu, device->auxiliary, device->head_done, FALSE, error) ||
        !rp_runtime_copy(&device->gpu, &cuda->map.losses[action->place], action->call.loss,
                         sizeof(double), FALSE, device->auxiliary, error) ||
        !rp_runtime_call(&device->gpu, device->auxiliary, pass_loss_on, loss, error))
        return FALSE;
    device->n_losses++;
    return TRUE;
}

static gboolean
begin_head(RpDeviceAction *action, const gint32 *targets, guint n, gboolean packed, GError **error)
{
    RpCuda *cuda = (RpCuda *)action->backend;
    RpCudaDevice *device = &cuda->devices[action->device];
    const RpKernels *kernels = rp_network_kernels(cuda->map.network);
    const gsize tokens = cuda->map.tokens;
    RpCudaSlot *slot =
        rp_cuda_slot_fill(cuda, device, targets, (packed ? 2 : 1) * tokens * sizeof(gint32), error);

    if (slot == NULL)
        return FALSE;
    for (gsize first = 0; n > 0 && first <= (packed ? tokens : 0); first += tokens)
        kernels->fetch(
            action->call.stream,
            &(RpFetchArgs){.n = n, .from = slot->memory + first, .to = device->targets + first});
    kernels->fill(action->call.stream, &(RpFillArgs){.dtype = RP_DTYPE_FP32,
                                                     .n = sizeof(double) / sizeof(float),
                                                     .x = action->call.loss});
    action->call.targets = device->targets;
    return rp_runtime_record(&device->gpu, slot->read, device->compute, error);
}

gboolean
rp_cuda_launch(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, RpTaskPart part,
               GError **error)
{
    static const RpDeviceActionOps ops = {.begin_head = begin_head, .send_loss = send_loss};
    RpCuda *cuda = (RpCuda *)backend;

    return rp_cuda_go_on(cuda, error) && rp_runtime_use(&lane->device->gpu, error) &&
           rp_device_action_run(&cuda->map, &ops, backend, lane->device->gpu.index, task, part,
                                error);
}
