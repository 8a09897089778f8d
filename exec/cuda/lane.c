/* Streams, events and times. */
#include "exec/cuda/backend-private.h"

#include <time.h>

/* Who waits for an event looks at once, and then less and less often. */
#define FIRST_NAP_NS 2000
#define LAST_NAP_NS 100000

/* After so many naps it looks whether another device has failed, which this one may wait for. */
#define NAPS_A_LOOK 100

/* An anchor is good if CUDA said so soon that it had happened; it is tried a few times. */
#define GOOD_ANCHOR_NS 20000
#define ANCHOR_TRIES 4

/* So long a stream may go on once a device has failed: what it waits for may never happen. */
#define AFTER_FAILURE_NS (3 * G_GINT64_CONSTANT(1000000000))

static gint64
clock_ns(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * G_GINT64_CONSTANT(1000000000) + time.tv_nsec;
}

gint64
rp_cuda_clock_ns(RpBackend *backend)
{
    return clock_ns();
}

gboolean
rp_cuda_go_on(RpCuda *cuda, GError **error)
{
    if (!atomic_load(&cuda->cancelled))
        return TRUE;
    g_set_error_literal(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, "stopped");
    return FALSE;
}

/* ---- lanes ---- */

/* What the compute lane waits for goes first. CUDA orders kernels by it; copies of one direction
 * take turns as they become ready, whatever the order of their issue: the plan's windows are
 * dependencies. */
static int
choose_priority(RpLaneKind kind, int least, int greatest)
{
    return kind == RP_LANE_PARAMETER_UP || kind == RP_LANE_GRADIENT_DOWN ? least : greatest;
}

static gboolean
open_lane(RpBackendLane *lane, GError **error)
{
    RpCudaDevice *device = lane->device;
    int least, greatest;

    if (!rp_cuda_check(device->index, rp_cuda_use_device(device->physical), "cudaSetDevice",
                       error) ||
        !rp_cuda_check(device->index, cudaDeviceGetStreamPriorityRange(&least, &greatest),
                       "cudaDeviceGetStreamPriorityRange", error) ||
        !rp_cuda_check(device->index,
                       cudaStreamCreateWithPriority(&lane->stream, cudaStreamNonBlocking,
                                                    choose_priority(lane->kind, least, greatest)),
                       "cudaStreamCreateWithPriority", error))
        return FALSE;
    if (lane->kind != RP_LANE_COMPUTE)
        return TRUE;
    device->compute = lane->stream;
    device->kernels = rp_cuda_stream_new(device->physical, lane->stream, error);
    if (device->kernels == NULL)
        g_prefix_error(error, "device %u: ", device->index);
    return device->kernels != NULL && rp_cuda_watch_open(lane->cuda, device, error);
}

RpBackendLane *
rp_cuda_lane_new(RpBackend *backend, guint device, RpLaneKind kind, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    RpBackendLane *lane;

    g_return_val_if_fail(cuda->opened && device < cuda->map.gpus, NULL);
    if (!rp_cuda_host_arena_finish(cuda->host, error))
        return NULL;
    lane = g_new0(RpBackendLane, 1);
    lane->cuda = cuda;
    lane->device = &cuda->devices[device];
    lane->kind = kind;
    if (!open_lane(lane, error)) {
        rp_cuda_lane_free(backend, lane);
        return NULL;
    }
    return lane;
}

static void
nap(gint64 *nap_ns)
{
    const struct timespec time = {.tv_nsec = *nap_ns};

    (void)nanosleep(&time, NULL);
    *nap_ns = MIN(2 * *nap_ns, LAST_NAP_NS);
}

/* Whether no device has failed. */
static gboolean
check_devices(const RpCuda *cuda, GError **error)
{
    for (guint g = 0; g < cuda->map.gpus; g++) {
        const cudaError_t status = rp_cuda_query_stream(cuda->devices[g].auxiliary);

        if (status != cudaErrorNotReady &&
            !rp_cuda_check(g, status, "one of its tasks failed", error))
            return FALSE;
    }
    return TRUE;
}

/* Runs out what was issued, or what is left of it after a failure. Streams wait for events of other
 * devices, and those of a device that has failed may never happen. */
static void
run_out(RpCuda *cuda, cudaStream_t stream)
{
    const gint64 end_ns = clock_ns() + AFTER_FAILURE_NS;
    gint64 nap_ns = FIRST_NAP_NS;

    while (!cuda->stuck && rp_cuda_query_stream(stream) == cudaErrorNotReady) {
        cuda->stuck = clock_ns() >= end_ns && !check_devices(cuda, NULL);
        nap(&nap_ns);
    }
}

/* Whether something failed does not matter any more: the engine knows. */
void
rp_cuda_lane_free(RpBackend *backend, RpBackendLane *lane)
{
    RpCuda *cuda = (RpCuda *)backend;
    RpCudaDevice *device = lane->device;

    rp_cuda_watch_close(cuda);
    (void)rp_cuda_use_device(device->physical);
    if (lane->stream != NULL)
        run_out(cuda, lane->stream);
    if (lane->kind == RP_LANE_COMPUTE)
        run_out(cuda, device->auxiliary); /* nobody tells of losses any more */
    if (cuda->stuck) {
        g_free(lane);
        return;
    }
    if (lane->kind == RP_LANE_COMPUTE) {
        rp_cuda_stream_free(device->kernels);
        device->kernels = NULL;
        device->compute = NULL;
    }
    if (lane->stream != NULL)
        (void)cudaStreamDestroy(lane->stream);
    g_free(lane);
}

/* ---- events ---- */

RpBackendEvent *
rp_cuda_event_new(RpBackend *backend, guint device, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    RpBackendEvent *event = g_new0(RpBackendEvent, 1);

    event->device = &cuda->devices[device];
    if (!rp_cuda_check(device, rp_cuda_use_device(event->device->physical), "cudaSetDevice",
                       error) ||
        !rp_cuda_check(device, cudaEventCreate(&event->event), "cudaEventCreate", error)) {
        g_free(event);
        return NULL;
    }
    return event;
}

void
rp_cuda_event_free(RpBackend *backend, RpBackendEvent *event)
{
    (void)rp_cuda_use_device(event->device->physical);
    (void)cudaEventDestroy(event->event);
    g_free(event);
}

/* ---- time ---- */

/* Records an event where nothing else stands before it, and sees when it happens. Takes some ten
 * microseconds of the worker's time once a second. */
static gboolean
measure_anchor(RpCuda *cuda, RpCudaDevice *device, cudaEvent_t anchor, gint64 *host_ns,
               gint64 *error_ns, GError **error)
{
    for (guint i = 0; i < ANCHOR_TRIES; i++) {
        const gint64 before_ns = clock_ns();
        cudaError_t status = cudaEventRecord(anchor, device->clock_stream);
        gint64 after_ns;

        while (status == cudaSuccess &&
               (status = rp_cuda_query_event(anchor)) == cudaErrorNotReady) {
            if (!rp_cuda_go_on(cuda, error))
                return FALSE;
            status = cudaSuccess;
        }
        if (!rp_cuda_check(device->index, status, "recording the time", error))
            return FALSE;
        after_ns = clock_ns();
        *host_ns = before_ns + (after_ns - before_ns) / 2;
        *error_ns = (after_ns - before_ns) / 2;
        if (*error_ns <= GOOD_ANCHOR_NS / 2)
            break;
    }
    return TRUE;
}

/* A worker's thread, with anchor_lock, or the caller's before there are any. */
static gboolean
add_anchor(RpCuda *cuda, RpCudaDevice *device, GError **error)
{
    const guint64 n = device->clock.n;
    const cudaEvent_t anchor = device->anchors[n % RP_CUDA_CLOCK_RING];
    gint64 host_ns, error_ns;
    float elapsed_ms = 0;

    if (!measure_anchor(cuda, device, anchor, &host_ns, &error_ns, error))
        return FALSE;
    if (n > 0 &&
        !rp_cuda_check(device->index,
                       cudaEventElapsedTime(&elapsed_ms,
                                            device->anchors[(n - 1) % RP_CUDA_CLOCK_RING], anchor),
                       "cudaEventElapsedTime", error))
        return FALSE;
    pthread_mutex_lock(&device->clock_lock);
    rp_cuda_clock_add(&device->clock, (double)elapsed_ms * 1e6, host_ns, error_ns);
    pthread_mutex_unlock(&device->clock_lock);
    atomic_store(&device->n_anchors, n + 1);
    atomic_store(&device->next_anchor_ns, host_ns + RP_CUDA_CLOCK_PERIOD_NS);
    return TRUE;
}

static gboolean
is_anchor_due(RpCudaDevice *device)
{
    return clock_ns() >= atomic_load(&device->next_anchor_ns);
}

/* Makes an anchor if it is time for one and no other worker of the device does. */
static gboolean
keep_time(RpCuda *cuda, RpCudaDevice *device, GError **error)
{
    gboolean kept;

    if (!is_anchor_due(device) || pthread_mutex_trylock(&device->anchor_lock) != 0)
        return TRUE;
    kept = !is_anchor_due(device) || add_anchor(cuda, device, error);
    pthread_mutex_unlock(&device->anchor_lock);
    return kept;
}

gboolean
rp_cuda_clock_open(RpCuda *cuda, RpCudaDevice *device, GError **error)
{
    if (!rp_cuda_check(device->index,
                       cudaStreamCreateWithFlags(&device->clock_stream, cudaStreamNonBlocking),
                       "cudaStreamCreate", error))
        return FALSE;
    for (guint i = 0; i < RP_CUDA_CLOCK_RING; i++)
        if (!rp_cuda_check(device->index, cudaEventCreate(&device->anchors[i]), "cudaEventCreate",
                           error))
            return FALSE;
    return add_anchor(cuda, device, error);
}

void
rp_cuda_clock_close(RpCudaDevice *device)
{
    for (guint i = 0; i < RP_CUDA_CLOCK_RING && device->anchors[i] != NULL; i++)
        (void)cudaEventDestroy(device->anchors[i]);
    if (device->clock_stream != NULL)
        (void)cudaStreamDestroy(device->clock_stream);
}

gint64
rp_cuda_event_ns(RpBackend *backend, const RpBackendEvent *event)
{
    RpCudaDevice *device = event->device;
    float elapsed_ms = 0;
    guint64 anchor;
    gint64 result;

    pthread_mutex_lock(&device->clock_lock);
    anchor = MAX(event->anchor, rp_cuda_clock_oldest(&device->clock));
    (void)rp_cuda_use_device(device->physical);
    if (cudaEventElapsedTime(&elapsed_ms, device->anchors[anchor % RP_CUDA_CLOCK_RING],
                             event->event) != cudaSuccess) {
        (void)cudaGetLastError(); /* the run has failed, and its times are nobody's concern */
        elapsed_ms = 0;
    }
    result = rp_cuda_clock_host_ns(&device->clock, anchor, (double)elapsed_ms * 1e6);
    pthread_mutex_unlock(&device->clock_lock);
    return result;
}

/* ---- order ---- */

gboolean
rp_cuda_record(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    RpCudaDevice *device = lane->device;

    if (!rp_cuda_go_on(cuda, error) || !keep_time(cuda, device, error))
        return FALSE;
    event->anchor = atomic_load(&device->n_anchors) - 1;
    event->n_losses = lane->kind == RP_LANE_COMPUTE ? device->n_losses : 0;
    return rp_cuda_check(device->index, cudaEventRecord(event->event, lane->stream),
                         "cudaEventRecord", error);
}

gboolean
rp_cuda_wait(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, gint64 delay_ns,
             GError **error)
{
    g_return_val_if_fail(delay_ns == 0, FALSE); /* only `compute` plans have hops */

    if (!rp_cuda_go_on((RpCuda *)backend, error))
        return FALSE;
    /* CUDA does not say which of two devices has failed */
    return rp_cuda_check(lane->device->index, cudaStreamWaitEvent(lane->stream, event->event, 0),
                         event->device == lane->device
                             ? "cudaStreamWaitEvent"
                             : "cudaStreamWaitEvent, for an event of another device",
                         error);
}

/* An event of a compute lane stands for the losses of the heads before it, too: a task is over when
 * its loss has been told. */
static cudaError_t
query(const RpBackendEvent *event)
{
    RpCudaDevice *device = event->device;
    cudaError_t status = rp_cuda_query_event(event->event);

    if (status != cudaSuccess || atomic_load(&device->n_told) >= event->n_losses)
        return status;
    status = rp_cuda_query_stream(device->auxiliary);
    return status == cudaSuccess ? cudaErrorNotReady : status;
}

gboolean
rp_cuda_wait_host(RpBackend *backend, RpBackendEvent *event, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    gint64 nap_ns = FIRST_NAP_NS;
    guint n_naps = 0;
    cudaError_t status;

    while ((status = query(event)) == cudaErrorNotReady) {
        if (!rp_cuda_go_on(cuda, error) ||
            (++n_naps % NAPS_A_LOOK == 0 && !check_devices(cuda, error)))
            return FALSE;
        nap(&nap_ns);
    }
    return rp_cuda_check(event->device->index, status,
                         "waiting for the task, which may have failed or one before it", error);
}
