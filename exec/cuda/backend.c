#include "exec/cuda/backend.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/base/units.h"
#include "exec/cuda/backend-private.h"
#include "exec/cuda/probe.h"
#include "exec/device/task-map.h"
#include "exec/system/clock.h"

#define SIDE_ALIGNMENT 256

/* ---- devices ---- */

/* CUDA's message does not say how much memory there is. @bytes: requested now; @needed_bytes: with
 * the bytes taken before */
static gboolean
take_memory(const RpCudaDevice *device, void **memory, guint64 bytes, guint64 needed_bytes,
            GError **error)
{
    gsize free_bytes, total_bytes;
    g_autoptr(GError) problem = NULL;

    if (rp_runtime_take(&device->gpu, bytes, memory, &problem))
        return TRUE;
    if (!g_error_matches(problem, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY) ||
        !rp_runtime_memory(&device->gpu, &free_bytes, &total_bytes, NULL)) {
        g_propagate_error(error, g_steal_pointer(&problem));
        return FALSE;
    }
    return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
                   "device %u: the plan needs %" G_GUINT64_FORMAT " bytes, of %" G_GUINT64_FORMAT
                   " bytes %" G_GUINT64_FORMAT
                   " are free: use more stages or smaller micro-batches, or free the device",
                   device->gpu.index, needed_bytes, (guint64)total_bytes,
                   (guint64)free_bytes + device->bytes);
}

static gboolean
open_arena(RpCudaDevice *device, guint64 bytes, GError **error)
{
    if (bytes == 0)
        return TRUE;
    if (!take_memory(device, (void **)&device->memory, bytes, bytes, error))
        return FALSE;
    device->bytes = bytes;
    return rp_runtime_clear(&device->gpu, device->memory, bytes, error);
}

/* Takes device memory that the plan does not count: targets, sums of squares and losses. */
static gboolean
open_side(RpCuda *cuda, RpCudaDevice *device, GError **error)
{
    const gsize target_bytes = rp_align_up(cuda->map.head_numbers * sizeof(gint32), SIDE_ALIGNMENT);
    const gsize loss_bytes = rp_task_map_places(&cuda->map) * cuda->map.n_losses * sizeof(double);

    const gsize square_bytes =
        rp_align_up(rp_task_map_squares_workspace(&cuda->map), SIDE_ALIGNMENT);
    const gsize side_bytes = target_bytes + square_bytes + loss_bytes;
    RpTaskDevice *mapped = &cuda->map.devices[device->gpu.index];

    if (!take_memory(device, &device->side, side_bytes, device->bytes + side_bytes, error))
        return FALSE;
    device->targets = device->side;
    mapped->squares_workspace = (guint8 *)device->side + target_bytes;
    mapped->losses = (double *)(void *)((guint8 *)device->side + target_bytes + square_bytes);
    return rp_runtime_stream_new(&device->gpu, FALSE, &device->auxiliary, error) &&
           rp_runtime_event_new(&device->gpu, FALSE, &device->head_done, error) &&
           rp_cuda_slots_open(cuda, device, error) && rp_cuda_clock_open(cuda, device, error);
}

static gboolean
open_device(RpCuda *cuda, RpCudaDevice *device, guint64 bytes, GError **error)
{
    return rp_runtime_use(&device->gpu, error) && open_arena(device, bytes, error) &&
           open_side(cuda, device, error);
}

static gboolean
fill_constants(const RpCuda *cuda, GError **error)
{
    const gsize bytes = rp_network_constant_bytes(cuda->map.network);
    void *constants = g_aligned_alloc0(1, bytes, 64);
    gboolean done = TRUE;

    rp_network_fill_constants(cuda->map.network, constants);
    for (guint g = 0; g < cuda->map.gpus && done; g++)
        done = rp_runtime_use(&cuda->devices[g].gpu, error) &&
               rp_runtime_upload(&cuda->devices[g].gpu,
                                 cuda->devices[g].memory + cuda->map.constants[g], constants, bytes,
                                 error);
    g_aligned_free(constants);
    return done;
}

static void
close_device(RpCudaDevice *device)
{
    pthread_mutex_destroy(&device->clock_lock);
    pthread_mutex_destroy(&device->anchor_lock);
    if (device->memory == NULL && device->side == NULL)
        return; /* do not wake it up */
    (void)rp_runtime_use(&device->gpu, NULL);
    rp_cuda_clock_close(device);
    rp_cuda_slots_close(device);
    rp_runtime_event_free(device->head_done);
    rp_runtime_stream_free(device->auxiliary);
    rp_runtime_give(device->side);
    rp_runtime_give(device->memory);
}

/* ---- the host ---- */

/* Losses and flags, which devices write and the host reads. */
static gboolean
open_returns(RpCuda *cuda, GError **error)
{
    const gsize places = rp_task_map_places(&cuda->map);
    const gsize n_losses = places * cuda->map.n_losses;
    const gsize n_squares =
        rp_modes_leave_once(cuda->map.modes) ? (gsize)RP_BATCH_FEED_RING * cuda->map.n_layers : 0;
    const gsize flag_bytes = places * cuda->map.n_layers * sizeof *cuda->map.broken;
    const gsize n_scores = rp_task_map_n_scores(&cuda->map);

    if (!rp_runtime_take_pinned(&cuda->devices[0].gpu,
                                (n_losses + n_squares) * sizeof(double) + flag_bytes +
                                    n_scores * sizeof(float),
                                (void **)&cuda->map.losses, error))
        return FALSE;
    memset(cuda->map.losses + n_losses, 0, n_squares * sizeof(double) + flag_bytes);
    if (n_squares > 0)
        cuda->map.squares = cuda->map.losses + n_losses;
    rp_host_state_set_squares(cuda->map.host_state, cuda->map.squares);
    cuda->map.broken = (guint32 *)(void *)(cuda->map.losses + n_losses + n_squares);
    if (n_scores > 0)
        cuda->map.scores = (float *)(void *)(cuda->map.broken + places * cuda->map.n_layers);
    cuda->calls = g_new0(RpCudaLoss, places);
    return TRUE;
}

static void
bind_numa(const guint8 *memory, guint64 bytes, gpointer data)
{
    rp_host_state_bind_numa(data, memory, bytes);
}

static gboolean
open_host(RpCuda *cuda, guint64 bytes, GError **error)
{
    guint8 *memory;

    if (!rp_runtime_use(&cuda->devices[0].gpu, error) || !open_returns(cuda, error))
        return FALSE;
    cuda->host = rp_cuda_host_arena_new(bytes, (const RpCudaSpan *)(void *)cuda->unpinned->data,
                                        cuda->unpinned->len, cuda->devices[0].gpu.physical,
                                        bind_numa, cuda->map.host_state, error);
    if (cuda->host == NULL)
        return FALSE;
    memory = rp_cuda_host_arena_memory(cuda->host);
    cuda->map.memory[cuda->map.gpus] = memory;
    return rp_host_state_attach(cuda->map.host_state, memory, bytes, error);
}

static gboolean
check_open(const RpCuda *cuda, const guint64 *bytes, GError **error)
{
    const guint gpus = cuda->map.gpus;
    g_autofree guint64 *open = g_new(guint64, (gsize)gpus + 1);

    for (guint g = 0; g < gpus; g++)
        open[g] = cuda->devices[g].bytes;
    open[gpus] = rp_cuda_host_arena_report(cuda->host).arena_bytes;
    return rp_arena_check_open(bytes, open, gpus + 1, error);
}

/* If opening fails, backend_free() closes the part that was opened. */
static gboolean
open_arenas(RpBackend *backend, const guint64 *bytes, guint n, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    const guint gpus = cuda->map.gpus;

    g_return_val_if_fail(n == gpus + 1, FALSE);
    if (cuda->opened)
        return check_open(cuda, bytes, error);
    g_return_val_if_fail(cuda->host == NULL && cuda->map.losses == NULL, FALSE); /* failed before */
    if (!rp_arena_check_limits(bytes, gpus, cuda->options.memory_bytes, error))
        return FALSE;
    for (guint g = 0; g < gpus; g++) {
        if (!open_device(cuda, &cuda->devices[g], bytes[g], error))
            return FALSE;
        cuda->map.memory[g] = cuda->devices[g].memory;
    }
    if (!fill_constants(cuda, error) || !open_host(cuda, bytes[gpus], error))
        return FALSE;
    cuda->opened = TRUE;
    return TRUE;
}

/* ---- the backend ---- */

static gboolean
run_host(RpBackend *backend, RpHostLaneKind kind, const RpBackendTask *task, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    GError *own = NULL;

    if (!rp_cuda_go_on(cuda, error))
        return FALSE;
    if (rp_host_state_run(cuda->map.host_state, kind, task, &own))
        return TRUE;
    /* a loss explains more, and may still be in flight */
    if (g_error_matches(own, RP_HOST_STATE_ERROR, RP_HOST_STATE_ERROR_GRADIENT))
        rp_cuda_await_losses(cuda, task->task.iteration);
    g_propagate_error(error, own);
    return FALSE;
}

static void
cancel(RpBackend *backend)
{
    atomic_store(&((RpCuda *)backend)->cancelled, TRUE);
}

static const RpBackendOps cuda_ops = {
    .name = "cuda",
    .open_arenas = open_arenas,
    .lane_new = rp_cuda_lane_new,
    .lane_free = rp_cuda_lane_free,
    .event_new = rp_cuda_event_new,
    .event_free = rp_cuda_event_free,
    .launch = rp_cuda_launch,
    .copy = rp_cuda_copy,
    .record = rp_cuda_record,
    .wait = rp_cuda_wait,
    .wait_host = rp_cuda_wait_host,
    .event_ns = rp_cuda_event_ns,
    .run_host = run_host,
    .clock_ns = rp_cuda_clock_ns,
    .cancel = cancel,
};

static gboolean
check_count(const RpPlan *plan, guint count, gboolean shared, GError **error)
{
    if (count > 0 && (shared || rp_plan_gpus(plan) <= count))
        return TRUE;
    return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING,
                   "the plan is for %u devices, CUDA finds %u: use fewer, or make more of them "
                   "visible",
                   rp_plan_gpus(plan), count);
}

static int
compare_spans(gconstpointer a, gconstpointer b)
{
    const guint64 x = ((const RpCudaSpan *)a)->offset, y = ((const RpCudaSpan *)b)->offset;

    return x < y ? -1 : x > y;
}

/* Optimizer state, which no device copies. */
static GArray *
find_unpinned(const RpPlan *plan)
{
    GArray *unpinned = g_array_new(FALSE, FALSE, sizeof(RpCudaSpan));

    for (guint b = 0; b < rp_plan_n_buffers(plan); b++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, b);
        const RpCudaSpan span = {.offset = buffer->offset, .bytes = buffer->bytes};

        if (buffer->arena == rp_plan_gpus(plan) && buffer->category == RP_BUFFER_OPTIMIZER)
            g_array_append_val(unpinned, span);
    }
    g_array_sort(unpinned, compare_spans);
    return unpinned;
}

static RpBackend *
make(const RpPlan *plan, const RpNetwork *network, RpHostState *host_state, RpBatchFeed *feed,
     const RpDeviceOptions *options, gboolean shared, GError **error)
{
    const guint count = rp_cuda_device_count();
    RpCuda *cuda;

    if (!check_count(plan, count, shared, error))
        return NULL;
    cuda = g_new0(RpCuda, 1);
    /* made by one thread, before others fail with them */
    (void)rp_device_error_quark();
    (void)rp_host_state_error_quark();
    cuda->base.ops = &cuda_ops;
    rp_task_map_init(&cuda->map, plan, network, host_state, feed);
    cuda->options = *options;
    cuda->slot_bytes = rp_align_up(
        MAX(cuda->map.head_numbers, cuda->map.most_places) * sizeof(gint32), SIDE_ALIGNMENT);
    cuda->unpinned = find_unpinned(plan);
    pthread_mutex_init(&cuda->watch_lock, NULL);
    rp_clock_init_cond(&cuda->watch_cond);
    cuda->devices = g_new0(RpCudaDevice, cuda->map.gpus);
    for (guint g = 0; g < cuda->map.gpus; g++) {
        cuda->devices[g].cuda = cuda;
        cuda->devices[g].gpu = (RpRuntimeGpu){.index = g, .physical = (int)(g % count)};
        pthread_mutex_init(&cuda->devices[g].clock_lock, NULL);
        pthread_mutex_init(&cuda->devices[g].anchor_lock, NULL);
    }
    return &cuda->base;
}

static RpBackend *
cuda_backend_new(const RpPlan *plan, const RpNetwork *network, RpHostState *host_state,
                 RpBatchFeed *feed, const RpDeviceOptions *options, GError **error)
{
    return make(plan, network, host_state, feed, options, FALSE, error);
}

static RpBackend *
shared_backend_new(const RpPlan *plan, const RpNetwork *network, RpHostState *host_state,
                   RpBatchFeed *feed, const RpDeviceOptions *options, GError **error)
{
    return make(plan, network, host_state, feed, options, TRUE, error);
}

static void
cuda_backend_free(RpBackend *backend)
{
    RpCuda *cuda = (RpCuda *)backend;

    if (cuda == NULL || cuda->stuck) /* freeing memory of a stream that never ends never ends */
        return;
    rp_cuda_host_arena_free(cuda->host);
    for (guint g = 0; g < cuda->map.gpus; g++)
        close_device(&cuda->devices[g]);
    rp_runtime_give_pinned(cuda->map.losses);
    g_free(cuda->calls);
    g_free(cuda->devices);
    g_array_unref(cuda->unpinned);
    pthread_cond_destroy(&cuda->watch_cond);
    pthread_mutex_destroy(&cuda->watch_lock);
    rp_task_map_clear(&cuda->map);
    g_free(cuda);
}

static RpPinnedMemory
pinned(const RpBackend *backend)
{
    const RpCuda *cuda = (const RpCuda *)backend;
    RpPinnedMemory report = rp_cuda_host_arena_report(cuda->host);

    report.load_seconds = cuda->load_seconds;
    return report;
}

#define DEVICE_OPS(new_backend)                                                                    \
    {                                                                                              \
        .name = "cuda", .kernels = rp_cuda_kernels, .backend_new = new_backend,                    \
        .backend_free = cuda_backend_free, .pinned = pinned, .probe_new = rp_cuda_probe_new,       \
    }

const RpDeviceOps *
rp_cuda_devices(void)
{
    static const RpDeviceOps ops = DEVICE_OPS(cuda_backend_new);

    return &ops;
}

const RpDeviceOps *
rp_cuda_shared_devices(void)
{
    static const RpDeviceOps ops = DEVICE_OPS(shared_backend_new);

    return &ops;
}

const char *
rp_cuda_missing_text(void)
{
    return NULL;
}

gint64
rp_cuda_backend_clock_error_ns(const RpBackend *backend)
{
    const RpCuda *cuda = (const RpCuda *)backend;
    gint64 worst_ns = 0;

    for (guint g = 0; g < cuda->map.gpus; g++) {
        RpCudaDevice *device = &cuda->devices[g];

        pthread_mutex_lock(&device->clock_lock);
        worst_ns = MAX(worst_ns, device->clock.worst_error_ns);
        pthread_mutex_unlock(&device->clock_lock);
    }
    return worst_ns;
}
