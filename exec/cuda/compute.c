/* Heads of actions (exec/device/action.h), whose targets go up and whose losses come back; places of
 * packed micro-batches. */
#include "core/base/units.h"
#include "exec/cuda/backend-private.h"
#include "exec/device/action.h"
#include "exec/system/clock.h"

/* The loss is on the host. On a thread of CUDA's, where CUDA may not be called. */
static void
pass_loss_on(void *data)
{
    RpCudaLoss *loss = data;
    RpCuda *cuda = loss->cuda;
    GError *error = NULL;

    if (!atomic_load(&cuda->cancelled) &&
        !rp_device_action_take_loss(&cuda->map, loss->iteration, loss->micro_batch, &error))
        cuda->base.failed(cuda->base.failed_data, loss->task, error);
    atomic_store(&loss->back, TRUE);
    atomic_fetch_add(&loss->device->n_losses_back, 1);
}

void
rp_cuda_await_losses(RpCuda *cuda, guint64 iteration)
{
    const struct timespec nap = {.tv_nsec = 100000};
    const guint32 micro_batches = (guint32)(rp_task_map_places(&cuda->map) / RP_BATCH_FEED_RING);

    for (guint32 m = 0; m < micro_batches; m++) {
        const RpCudaLoss *loss = &cuda->calls[rp_task_map_place(&cuda->map, iteration, m)];

        while (!atomic_load(&loss->back) && !atomic_load(&cuda->cancelled))
            (void)nanosleep(&nap, NULL);
    }
}

/* The head was issued: its loss is copied beside the next work. */
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
        !rp_runtime_copy(&device->gpu, cuda->map.losses + action->place * cuda->map.n_losses,
                         action->call.loss, cuda->map.n_losses * sizeof(double), FALSE,
                         device->auxiliary, error) ||
        !rp_runtime_call(&device->gpu, device->auxiliary, pass_loss_on, loss, error))
        return FALSE;
    device->n_losses++;
    return TRUE;
}

static gboolean
set_places(RpDeviceAction *action, const gint32 *places, gsize n, GError **error)
{
    RpCuda *cuda = (RpCuda *)action->backend;
    RpCudaDevice *device = &cuda->devices[action->device];
    const RpTaskMap *map = &cuda->map;
    RpCudaSlot *slot = rp_cuda_slot_fill(cuda, device, places, n * sizeof *places, error);

    if (slot == NULL)
        return FALSE;
    rp_network_kernels(map->network)
        ->fetch(action->call.stream,
                &(RpFetchArgs){.n = n,
                               .from = slot->memory,
                               .to = (int32_t *)(void *)(map->memory[action->device] +
                                                         map->constants[action->device] +
                                                         rp_network_places_byte(map->network))});
    return rp_runtime_record(&device->gpu, slot->read, device->compute, error);
}

static gboolean
begin_head(RpDeviceAction *action, const gint32 *targets, guint n, gboolean packed, gsize n_more,
           GError **error)
{
    RpCuda *cuda = (RpCuda *)action->backend;
    RpCudaDevice *device = &cuda->devices[action->device];
    const RpKernels *kernels = rp_network_kernels(cuda->map.network);
    const gsize tokens = cuda->map.tokens;
    const gsize n_all = n_more > 0 ? 2 * tokens + n_more : (packed ? 2 : 1) * tokens;
    RpCudaSlot *slot = rp_cuda_slot_fill(cuda, device, targets, n_all * sizeof(gint32), error);

    if (slot == NULL)
        return FALSE;
    for (gsize first = 0; n > 0 && first <= (packed ? tokens : 0); first += tokens)
        kernels->fetch(
            action->call.stream,
            &(RpFetchArgs){.n = n, .from = slot->memory + first, .to = device->targets + first});
    if (n_more > 0)
        kernels->fetch(action->call.stream, &(RpFetchArgs){.n = n_more,
                                                           .from = slot->memory + 2 * tokens,
                                                           .to = device->targets + 2 * tokens});
    kernels->fill(action->call.stream,
                  &(RpFillArgs){.dtype = RP_DTYPE_FP32,
                                .n = cuda->map.n_losses * sizeof(double) / sizeof(float),
                                .x = action->call.loss});
    action->call.targets = device->targets;
    return rp_runtime_record(&device->gpu, slot->read, device->compute, error);
}

gboolean
rp_cuda_launch(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, RpTaskPart part,
               GError **error)
{
    static const RpDeviceActionOps ops = {
        .set_places = set_places, .begin_head = begin_head, .send_loss = send_loss};
    RpCuda *cuda = (RpCuda *)backend;

    return rp_cuda_go_on(cuda, error) && rp_runtime_use(&lane->device->gpu, error) &&
           rp_device_action_run(&cuda->map, &ops, backend, lane->device->gpu.index, task, part,
                                error);
}

/* ---- before the first step ---- */

/* Uses the arena beside the constants, and leaves zeros there. */
static gboolean
rehearse(const RpCudaDevice *device, GError **error)
{
    const RpTaskMap *map = &device->cuda->map;
    const guint64 constants = map->constants[device->gpu.index];
    const guint64 end =
        rp_align_up(constants + rp_network_constant_bytes(map->network), RP_BUFFER_ALIGNMENT);
    const gboolean before = constants + end > device->bytes;
    guint8 *memory = device->memory + (before ? 0 : end);
    const guint64 bytes = before ? constants : device->bytes - MIN(end, device->bytes);
    RpKernelStream *stream = map->devices[device->gpu.index].stream;

    if (!rp_runtime_use(&device->gpu, error))
        return FALSE;
    rp_rehearse(map->network, stream, device->memory + constants, memory, bytes);
    if (!rp_network_kernels(map->network)->check(stream, error)) {
        g_prefix_error(error, "device %u: ", device->gpu.index);
        return FALSE;
    }
    return rp_runtime_stream_finish(&device->gpu, device->compute, error) &&
           rp_runtime_clear(&device->gpu, memory, bytes, error);
}

static gpointer
run_rehearsal(gpointer data)
{
    RpCudaDevice *device = data;

    (void)rehearse(device, &device->unrehearsed);
    return NULL;
}

gboolean
rp_cuda_rehearse(RpCuda *cuda, GError **error)
{
    const gint64 begin_ns = rp_clock_ns();
    const guint gpus = cuda->map.gpus;
    g_autofree GThread **threads = g_new(GThread *, gpus);
    GError *first = NULL;

    for (guint g = 0; g < gpus; g++)
        threads[g] = g_thread_new("rehearsal", run_rehearsal, &cuda->devices[g]);
    for (guint g = 0; g < gpus; g++) {
        GError *problem;

        g_thread_join(threads[g]);
        problem = g_steal_pointer(&cuda->devices[g].unrehearsed);
        if (first == NULL)
            first = problem;
        else
            g_clear_error(&problem);
    }
    cuda->load_seconds = (double)(rp_clock_ns() - begin_ns) / (double)RP_NS_PER_S;
    if (first != NULL)
        g_propagate_error(error, first);
    return first == NULL;
}
