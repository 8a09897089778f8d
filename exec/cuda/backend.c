#include "exec/cuda/backend.h"

#include <stdlib.h>
#include <time.h>

#include "core/base/units.h"
#include "exec/cuda/backend-private.h"
#include "exec/cuda/probe.h"
#include "exec/device/arena-check.h"

#define SIDE_ALIGNMENT 256

/* ---- devices ---- */

/* CUDA's own words do not say how much there is. */
static gboolean
fail_memory(const RpCudaDevice *device, guint64 bytes, GError **error)
{
    gsize free_bytes = 0, total_bytes = 0;

    (void)cudaGetLastError();
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        return rp_cuda_check(device->index, cudaErrorMemoryAllocation, "cudaMalloc", error);
    g_set_error(error, RP_CUDA_ERROR, RP_CUDA_ERROR_MEMORY,
                "device %u: the plan needs %" G_GUINT64_FORMAT " bytes, of %" G_GUINT64_FORMAT
                " bytes %" G_GUINT64_FORMAT
                " are free: use more stages or smaller micro-batches, or free the device",
                device->index, bytes, (guint64)total_bytes, (guint64)free_bytes + device->bytes);
    return FALSE;
}

/* @bytes: taken now; @needed_bytes: with what was taken before */
static gboolean
take_memory(const RpCudaDevice *device, void **memory, guint64 bytes, guint64 needed_bytes,
            GError **error)
{
    const cudaError_t status = cudaMalloc(memory, bytes);

    if (status == cudaSuccess)
        return TRUE;
    *memory = NULL;
    return status == cudaErrorMemoryAllocation
               ? fail_memory(device, needed_bytes, error)
               : rp_cuda_check(device->index, status, "cudaMalloc", error);
}

static gboolean
open_arena(RpCudaDevice *device, guint64 bytes, GError **error)
{
    if (bytes == 0)
        return TRUE;
    if (!take_memory(device, (void **)&device->memory, bytes, bytes, error))
        return FALSE;
    device->bytes = bytes;
    return rp_cuda_check(device->index, cudaMemset(device->memory, 0, bytes), "cudaMemset", error);
}

/* What a device needs that the plan knows nothing of. */
static gboolean
open_side(RpCuda *cuda, RpCudaDevice *device, GError **error)
{
    const gsize target_bytes = rp_align_up(2 * cuda->tokens * sizeof(gint32), SIDE_ALIGNMENT);
    const gsize loss_bytes = RP_FEED_RING * (gsize)cuda->micro_batches * sizeof(double);

    if (!take_memory(device, &device->side, target_bytes + loss_bytes,
                     device->bytes + target_bytes + loss_bytes, error))
        return FALSE;
    device->targets = device->side;
    device->losses = (double *)(void *)((guint8 *)device->side + target_bytes);
    return rp_cuda_check(device->index,
                         cudaStreamCreateWithFlags(&device->auxiliary, cudaStreamNonBlocking),
                         "cudaStreamCreate", error) &&
           rp_cuda_check(device->index,
                         cudaEventCreateWithFlags(&device->head_done, cudaEventDisableTiming),
                         "cudaEventCreate", error) &&
           rp_cuda_slots_open(cuda, device, error) && rp_cuda_clock_open(cuda, device, error);
}

static gboolean
open_device(RpCuda *cuda, RpCudaDevice *device, guint64 bytes, GError **error)
{
    return rp_cuda_check(device->index, rp_cuda_use_device(device->physical), "cudaSetDevice",
                         error) &&
           open_arena(device, bytes, error) && open_side(cuda, device, error);
}

static gboolean
fill_constants(const RpCuda *cuda, GError **error)
{
    const gsize bytes = rp_network_constant_bytes(cuda->map.network);
    void *constants = g_aligned_alloc0(1, bytes, 64);
    gboolean done = TRUE;

    rp_network_fill_constants(cuda->map.network, constants);
    for (guint g = 0; g < cuda->map.gpus && done; g++) {
        const RpCudaDevice *device = &cuda->devices[g];

        done = rp_cuda_check(g, rp_cuda_use_device(device->physical), "cudaSetDevice", error) &&
               rp_cuda_check(g,
                             cudaMemcpy(device->memory + cuda->map.constants[g], constants, bytes,
                                        cudaMemcpyHostToDevice),
                             "cudaMemcpy", error) &&
               rp_cuda_check(g, cudaDeviceSynchronize(), "cudaDeviceSynchronize", error);
    }
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
    (void)rp_cuda_use_device(device->physical);
    rp_cuda_clock_close(device);
    rp_cuda_slots_close(device);
    if (device->head_done != NULL)
        (void)cudaEventDestroy(device->head_done);
    if (device->auxiliary != NULL)
        (void)cudaStreamDestroy(device->auxiliary);
    (void)cudaFree(device->side);
    (void)cudaFree(device->memory);
}

/* ---- the host ---- */

/* Losses and flags, which devices write and the host reads. */
static gboolean
open_returns(RpCuda *cuda, GError **error)
{
    const gsize places = RP_FEED_RING * (gsize)cuda->micro_batches;
    const gsize flag_bytes = places * cuda->map.n_layers;

    if (!rp_cuda_check(0,
                       cudaHostAlloc((void **)&cuda->losses, places * sizeof(double) + flag_bytes,
                                     cudaHostAllocPortable | cudaHostAllocMapped),
                       "cudaHostAlloc", error))
        return FALSE;
    cuda->broken = (guint8 *)(cuda->losses + places);
    for (gsize i = 0; i < flag_bytes; i++)
        cuda->broken[i] = 0;
    cuda->calls = g_new0(RpCudaLoss, places);
    return TRUE;
}

static gboolean
open_host(RpCuda *cuda, guint64 bytes, GError **error)
{
    guint8 *memory;

    if (!rp_cuda_check(0, rp_cuda_use_device(cuda->devices[0].physical), "cudaSetDevice", error) ||
        !open_returns(cuda, error))
        return FALSE;
    cuda->host = rp_cuda_host_arena_new(bytes, (const RpCudaSpan *)(void *)cuda->loose->data,
                                        cuda->loose->len, cuda->devices[0].physical, error);
    if (cuda->host == NULL)
        return FALSE;
    memory = rp_cuda_host_arena_memory(cuda->host);
    cuda->map.memory[cuda->map.gpus] = memory;
    return rp_home_attach(cuda->map.home, memory, bytes, error);
}

static gboolean
check_open(const RpCuda *cuda, const guint64 *bytes, GError **error)
{
    const guint gpus = cuda->map.gpus;
    g_autofree guint64 *open = g_new(guint64, (gsize)gpus + 1);

    for (guint g = 0; g < gpus; g++)
        open[g] = cuda->devices[g].bytes;
    open[gpus] = rp_cuda_host_arena_report(cuda->host).arena_bytes;
    return rp_arena_check_open(bytes, open, gpus + 1, RP_CUDA_ERROR, RP_CUDA_ERROR_MEMORY, error);
}

/* What was opened of a backend that fails to open is closed when it is freed. */
static gboolean
open_arenas(RpBackend *backend, const guint64 *bytes, guint n, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    const guint gpus = cuda->map.gpus;

    g_return_val_if_fail(n == gpus + 1, FALSE);
    if (cuda->opened)
        return check_open(cuda, bytes, error);
    g_return_val_if_fail(cuda->host == NULL && cuda->losses == NULL, FALSE); /* failed before */
    if (!rp_arena_check_limits(bytes, gpus, cuda->options.memory_bytes, RP_CUDA_ERROR,
                               RP_CUDA_ERROR_MEMORY, error))
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

    return rp_cuda_go_on(cuda, error) && rp_home_run(cuda->map.home, kind, task, error);
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
    g_set_error(error, RP_CUDA_ERROR, RP_CUDA_ERROR_DEVICE,
                "the plan is for %u devices, CUDA finds %u: use fewer, or make more of them "
                "visible",
                rp_plan_gpus(plan), count);
    return FALSE;
}

static int
compare_spans(gconstpointer a, gconstpointer b)
{
    const guint64 x = ((const RpCudaSpan *)a)->offset, y = ((const RpCudaSpan *)b)->offset;

    return x < y ? -1 : x > y;
}

/* Optimizer state, which no device copies. */
static GArray *
find_loose(const RpPlan *plan)
{
    GArray *loose = g_array_new(FALSE, FALSE, sizeof(RpCudaSpan));

    for (guint b = 0; b < rp_plan_n_buffers(plan); b++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, b);
        const RpCudaSpan span = {.offset = buffer->offset, .bytes = buffer->bytes};

        if (buffer->arena == rp_plan_gpus(plan) && buffer->category == RP_BUFFER_OPTIMIZER)
            g_array_append_val(loose, span);
    }
    g_array_sort(loose, compare_spans);
    return loose;
}

static RpBackend *
make(const RpPlan *plan, const RpNetwork *network, RpHome *home, RpFeed *feed,
     const RpDeviceOptions *options, gboolean shared, GError **error)
{
    const RpNetworkOptions *shape = rp_network_options(network);
    const guint count = rp_cuda_device_count();
    pthread_condattr_t attributes;
    RpCuda *cuda;

    if (!check_count(plan, count, shared, error))
        return NULL;
    cuda = g_new0(RpCuda, 1);
    /* made by one thread, before others fail with them */
    (void)rp_cuda_error_quark();
    (void)rp_home_error_quark();
    cuda->base.ops = &cuda_ops;
    rp_task_map_init(&cuda->map, plan, network, home, feed);
    cuda->kernels = rp_network_kernels(network);
    cuda->options = *options;
    cuda->micro_batches = rp_plan_micro_batches(plan);
    cuda->tokens = (gsize)shape->sequences * shape->tokens;
    cuda->slot_bytes = rp_align_up(2 * cuda->tokens * sizeof(gint32), SIDE_ALIGNMENT);
    cuda->loose = find_loose(plan);
    pthread_mutex_init(&cuda->watch_lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&cuda->watch_cond, &attributes);
    pthread_condattr_destroy(&attributes);
    cuda->devices = g_new0(RpCudaDevice, cuda->map.gpus);
    for (guint g = 0; g < cuda->map.gpus; g++) {
        cuda->devices[g].cuda = cuda;
        cuda->devices[g].index = g;
        cuda->devices[g].physical = (int)(g % count);
        cuda->devices[g].packed = g_new(gint32, 2 * cuda->tokens);
        pthread_mutex_init(&cuda->devices[g].clock_lock, NULL);
        pthread_mutex_init(&cuda->devices[g].anchor_lock, NULL);
    }
    return &cuda->base;
}

static RpBackend *
cuda_backend_new(const RpPlan *plan, const RpNetwork *network, RpHome *home, RpFeed *feed,
                 const RpDeviceOptions *options, GError **error)
{
    return make(plan, network, home, feed, options, FALSE, error);
}

static RpBackend *
shared_backend_new(const RpPlan *plan, const RpNetwork *network, RpHome *home, RpFeed *feed,
                   const RpDeviceOptions *options, GError **error)
{
    return make(plan, network, home, feed, options, TRUE, error);
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
    for (guint g = 0; g < cuda->map.gpus; g++)
        g_free(cuda->devices[g].packed);
    if (cuda->losses != NULL)
        (void)cudaFreeHost(cuda->losses);
    g_free(cuda->calls);
    g_free(cuda->devices);
    g_array_unref(cuda->loose);
    pthread_cond_destroy(&cuda->watch_cond);
    pthread_mutex_destroy(&cuda->watch_lock);
    rp_task_map_clear(&cuda->map);
    g_free(cuda);
}

static RpPinnedMemory
pinned(const RpBackend *backend)
{
    return rp_cuda_host_arena_report(((const RpCuda *)backend)->host);
}

const RpDeviceOps *
rp_cuda_devices(void)
{
    static const RpDeviceOps ops = {
        .name = "cuda",
        .kernels = rp_cuda_kernels,
        .backend_new = cuda_backend_new,
        .open = open_arenas,
        .backend_free = cuda_backend_free,
        .pinned = pinned,
        .probe_new = rp_cuda_probe_new, /* exec/cuda/probe.c */
    };

    return &ops;
}

const char *
rp_cuda_missing_text(void)
{
    return NULL;
}

const RpDeviceOps *
rp_cuda_shared_devices(void)
{
    static const RpDeviceOps ops = {
        .name = "cuda",
        .kernels = rp_cuda_kernels,
        .backend_new = shared_backend_new,
        .open = open_arenas,
        .backend_free = cuda_backend_free,
        .pinned = pinned,
        .probe_new = rp_cuda_probe_new, /* exec/cuda/probe.c */
    };

    return &ops;
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
