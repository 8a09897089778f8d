/* Actions, as exec/host/backend.c runs them, but issued. What they find out comes back later. */
#include "exec/cuda/backend-private.h"

#include "exec/cuda/kernels/finite.h"
#include "exec/device/targets.h"

/* One action, while it is issued. */
typedef struct {
    RpCuda *cuda;
    RpCudaDevice *device;
    const RpBackendTask *task;
    RpStageCall call;
    RpFeedCall *feed_call;
    guint m;            /* micro-batch of the feed's call */
    gsize place;        /* of the micro-batch in rings */
    cudaError_t status; /* of the observer's launches */
} Action;

/* ---- layers that break ---- */

/* A layer's output will be there: the device looks at it, and notes the layer if it is broken. */
static void
observe(gpointer user_data, guint layer, const void *output)
{
    Action *action = user_data;
    const RpTaskMap *map = &action->cuda->map;
    guint8 *flag = action->cuda->broken + action->place * map->n_layers + layer;
    cudaError_t status;

    status = rp_cuda_find_broken((int)rp_network_options(map->network)->dtype, output,
                                 rp_network_hidden_bytes(map->network) / map->element_bytes, flag,
                                 action->device->compute);
    if (action->status == cudaSuccess)
        action->status = status;
}

/* Lowest layer that was noted, or G_MAXINT32. All of the micro-batch's layers have run. */
static gint32
take_broken(const RpCuda *cuda, gsize place)
{
    const guint n = cuda->map.n_layers;
    volatile guint8 *flags = cuda->broken + place * n;
    gint32 lowest = G_MAXINT32;

    for (guint l = n; l-- > 0;) {
        if (flags[l] == 0)
            continue;
        lowest = (gint32)l;
        flags[l] = 0;
    }
    return lowest;
}

/* ---- losses ---- */

/* The loss has come home. On a thread of CUDA's, where CUDA may not be called. */
static void CUDART_CB
tell_loss(void *data)
{
    const RpCudaLoss *loss = data;
    RpCuda *cuda = loss->cuda;
    const gsize place = rp_cuda_place(cuda, loss->iteration, loss->micro_batch);

    if (!atomic_load(&cuda->cancelled)) {
        const double value = cuda->losses[place];
        GError *error = NULL;
        guint m;
        RpFeedCall *call = rp_feed_find(cuda->map.feed, loss->iteration, loss->micro_batch, &m);

        call->broken_layer[m] = take_broken(cuda, place);
        if (rp_home_take_loss(cuda->map.home, loss->iteration, loss->micro_batch, value,
                              call->broken_layer[m], &error))
            rp_feed_set_loss(cuda->map.feed, call, m, value);
        else
            cuda->base.failed(cuda->base.failed_data, loss->task, error);
    }
    atomic_fetch_add(&loss->device->n_told, 1);
}

/* The head was issued: its loss follows, beside what comes next. */
static gboolean
send_loss(const Action *action, GError **error)
{
    RpCuda *cuda = action->cuda;
    RpCudaDevice *device = action->device;
    RpCudaLoss *loss = &cuda->calls[action->place];
    const cudaStream_t auxiliary = device->auxiliary;

    if (action->call.loss == NULL)
        return TRUE;
    *loss = (RpCudaLoss){.cuda = cuda,
                         .device = device,
                         .task = action->task->id,
                         .iteration = action->task->task.iteration,
                         .micro_batch = action->task->task.micro_batch};
    if (!rp_cuda_check(device->index, cudaEventRecord(device->head_done, device->compute),
                       "cudaEventRecord", error) ||
        !rp_cuda_check(device->index, cudaStreamWaitEvent(auxiliary, device->head_done, 0),
                       "cudaStreamWaitEvent", error) ||
        !rp_cuda_check(device->index,
                       cudaMemcpyAsync(&cuda->losses[action->place], action->call.loss,
                                       sizeof(double), cudaMemcpyDeviceToHost, auxiliary),
                       "cudaMemcpyAsync", error) ||
        !rp_cuda_check(device->index, cudaLaunchHostFunc(auxiliary, tell_loss, loss),
                       "cudaLaunchHostFunc", error))
        return FALSE;
    device->n_losses++;
    return TRUE;
}

/* @n int32 of a slot, from @first on, to the same place of the device's targets. */
static gboolean
fetch_targets(const RpCudaDevice *device, const RpCudaSlot *slot, gsize first, gsize n,
              GError **error)
{
    return n == 0 || rp_cuda_check(device->index,
                                   rp_cuda_fetch(slot->memory + first, device->targets + first, n,
                                                 device->compute),
                                   "fetching targets", error);
}

/* Targets, those that are masked left out if they are many. */
static gboolean
take_targets(Action *action, GError **error)
{
    RpCuda *cuda = action->cuda;
    RpCudaDevice *device = action->device;
    const gint32 *targets = rp_token_batch_targets(action->feed_call->batch, action->m);
    const guint n = rp_targets_pack(targets, (guint)cuda->tokens, device->packed,
                                    device->packed + cuda->tokens);
    const gboolean all = n == RP_TARGETS_ALL;
    RpCudaSlot *slot = rp_cuda_slot_fill(cuda, device, all ? targets : device->packed,
                                         (all ? 1 : 2) * cuda->tokens * sizeof(gint32), error);

    if (slot == NULL || !fetch_targets(device, slot, 0, all ? cuda->tokens : n, error) ||
        (!all && !fetch_targets(device, slot, cuda->tokens, n, error)) ||
        !rp_cuda_check(device->index, cudaEventRecord(slot->read, device->compute),
                       "cudaEventRecord", error))
        return FALSE;
    action->call.targets = device->targets;
    action->call.rows = all ? NULL : device->targets + cuda->tokens;
    action->call.n_rows = all ? 0 : n;
    return TRUE;
}

/* Targets and a loss of zero: the network's head adds. */
static gboolean
begin_head(Action *action, GError **error)
{
    RpCuda *cuda = action->cuda;
    RpCudaDevice *device = action->device;

    if (!take_targets(action, error))
        return FALSE;
    action->call.scale = rp_home_scale(cuda->map.home, action->task->task.iteration,
                                       rp_task_access(action->task, RP_ROLE_DECISION));
    action->call.loss = device->losses + action->place;
    cuda->kernels->fill(device->kernels, action->call.loss, RP_DTYPE_FP32,
                        sizeof(double) / sizeof(float), 0);
    return TRUE;
}

/* ---- actions ---- */

/* The head runs where its backward does, at once with it; a bound forward leaves it out. */
static gboolean
begin_action(Action *action, RpCuda *cuda, RpCudaDevice *device, const RpBackendTask *task,
             RpTaskPart part, GError **error)
{
    const RpTaskMap *map = &cuda->map;
    const gboolean forward = task->task.kind == RP_TASK_FORWARD;

    *action = (Action){.cuda = cuda,
                       .device = device,
                       .task = task,
                       .call = rp_task_call(map, device->index, task),
                       .place = rp_cuda_place(cuda, task->task.iteration, task->task.micro_batch)};
    action->feed_call =
        rp_feed_find(map->feed, task->task.iteration, task->task.micro_batch, &action->m);
    action->call.stream = device->kernels;
    if (forward || task->task.kind == RP_TASK_FUSED) {
        action->call.observe = observe;
        action->call.observe_data = action;
    }
    return forward || part == RP_PART_LEAD || !rp_task_has_head(map, task) ||
           begin_head(action, error);
}

static void
begin_sums(const Action *action)
{
    const RpCuda *cuda = action->cuda;
    const RpBackendAccess *access = rp_task_access(action->task, RP_ROLE_SUM);

    if (access != NULL && (access->mode & RP_ACCESS_READ) == 0)
        cuda->kernels->fill(action->device->kernels, action->call.sums, RP_DTYPE_FP32,
                            rp_network_elements(cuda->map.network, action->call.layers), 0);
}

/* A loss may be infinite and its gradients finite: the norm is to see it in them. */
static void
break_sums(Action *action)
{
    if (action->call.loss == NULL || action->call.sums == NULL ||
        !rp_home_skips(action->cuda->map.home))
        return;
    const cudaError_t status =
        rp_cuda_break_sum(action->call.loss, action->call.sums, action->device->compute);
    if (action->status == cudaSuccess)
        action->status = status;
}

static void
issue_backward(Action *action, RpTaskPart part)
{
    const RpNetwork *network = action->cuda->map.network;

    if (part != RP_PART_REST)
        rp_network_recompute(network, &action->call);
    if (part == RP_PART_LEAD)
        return;
    begin_sums(action);
    rp_network_backward(network, &action->call);
    break_sums(action);
    rp_task_leave(&action->cuda->map, action->task, action->device->kernels, action->call.sums);
}

static void
issue_fused(Action *action)
{
    begin_sums(action);
    rp_network_fused(action->cuda->map.network, &action->call);
    break_sums(action);
    rp_task_leave(&action->cuda->map, action->task, action->device->kernels, action->call.sums);
}

static gboolean
issue(RpCuda *cuda, RpCudaDevice *device, const RpBackendTask *task, RpTaskPart part,
      GError **error)
{
    Action action;

    if (!begin_action(&action, cuda, device, task, part, error))
        return FALSE;
    if (task->task.kind == RP_TASK_FORWARD)
        rp_network_forward(cuda->map.network, &action.call);
    else if (task->task.kind == RP_TASK_FUSED)
        issue_fused(&action);
    else
        issue_backward(&action, part);
    if (!cuda->kernels->check(device->kernels, error)) {
        g_prefix_error(error, "device %u: ", device->index);
        return FALSE;
    }
    return rp_cuda_check(device->index, action.status, "looking at a layer's output or the loss",
                         error) &&
           send_loss(&action, error);
}

static gboolean
refuse(const RpTask *task, GError **error)
{
    g_set_error(error, RP_CUDA_ERROR, RP_CUDA_ERROR_PLAN,
                "the CUDA backend runs a backward as a whole, and has no %s: use a schedule that "
                "neither splits nor merges actions",
                rp_task_kind_name((RpTaskKind)task->kind));
    return FALSE;
}

gboolean
rp_cuda_launch(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, RpTaskPart part,
               GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    RpCudaDevice *device = lane->device;

    if (!rp_cuda_go_on(cuda, error) ||
        !rp_cuda_check(device->index, rp_cuda_use_device(device->physical), "cudaSetDevice", error))
        return FALSE;
    switch ((RpTaskKind)task->task.kind) {
    case RP_TASK_FORWARD:
    case RP_TASK_BACKWARD:
    case RP_TASK_FUSED:
        return issue(cuda, device, task, part, error);
    default:
        return refuse(&task->task, error);
    }
}
