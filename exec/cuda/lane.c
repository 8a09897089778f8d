/* Streams, events and times. */
#include "exec/cuda/backend-private.h"

#include <time.h>

#include "exec/system/clock.h"

/* Who waits for an event looks at once, and then less and less often. */
#define FIRST_NAP_NS 2000
#define LAST_NAP_NS 100000

/* After this many naps it looks whether another device has failed, for which this one may wait. */
#define NAPS_A_LOOK 100

/* An anchor is good if CUDA said so soon that it had happened; it is tried a few times. */
#define GOOD_ANCHOR_NS 20000
#define ANCHOR_TRIES 4

/* A stream may run this much longer once a device has failed: the event that it waits for may never
 * happen. */
#define AFTER_FAILURE_NS (3 * G_GINT64_CONSTANT(1000000000))

gint64
rp_cuda_clock_ns(RpBackend *backend)
{
    return rp_clock_ns();
}

/* ---- lanes ---- */

/* Lanes that the compute lane waits for get priority. CUDA orders kernels by it; copies of one
 * direction take turns as they become ready, whatever the order of their issue: the plan's windows
 * are dependencies. */
static gboolean
open_lane(RpBackendLane *lane, GError **error)
{
    RpCudaDevice *device = lane->device;
    const gboolean urgent =
        lane->kind != RP_LANE_PARAMETER_UP && lane->kind != RP_LANE_GRADIENT_DOWN;
    RpKernelStream *kernels;

    if (!rp_runtime_use(&device->gpu, error) ||
        !rp_runtime_stream_new(&device->gpu, urgent, &lane->stream, error))
        return FALSE;
    if (lane->kind != RP_LANE_COMPUTE)
        return TRUE;
    device->compute = lane->stream;
    kernels = rp_cuda_stream_new(device->gpu.physical, lane->stream, error);
    lane->cuda->map.devices[device->gpu.index].stream = kernels;
    if (kernels == NULL)
        g_prefix_error(error, "device %u: ", device->gpu.index);
    if (kernels == NULL || !rp_cuda_watch_open(lane->cuda, device, error))
        return FALSE;
    return ++lane->cuda->n_compute != lane->cuda->map.gpus || rp_cuda_rehearse(lane->cuda, error);
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
    for (guint g = 0; g < cuda->map.gpus; g++)
        if (rp_runtime_stream_state(&cuda->devices[g].gpu, cuda->devices[g].auxiliary,
                                    "one of its tasks failed", error) == RP_RUNTIME_FAILED)
            return FALSE;
    return TRUE;
}

/* Waits for all issued work, or for the rest of it after a failure. Streams wait for events of
 * other devices, and those of a device that has failed may never happen. */
static void
run_out(RpCuda *cuda, const RpRuntimeGpu *gpu, RpRuntimeStream *stream)
{
    const gint64 end_ns = rp_clock_ns() + AFTER_FAILURE_NS;
    gint64 nap_ns = FIRST_NAP_NS;

    while (!cuda->stuck && rp_runtime_stream_state(gpu, stream, "", NULL) == RP_RUNTIME_BUSY) {
        cuda->stuck = rp_clock_ns() >= end_ns && !check_devices(cuda, NULL);
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
    (void)rp_runtime_use(&device->gpu, NULL);
    if (lane->stream != NULL)
        run_out(cuda, &device->gpu, lane->stream);
    if (lane->kind == RP_LANE_COMPUTE) /* nobody reports losses any more */
        run_out(cuda, &device->gpu, device->auxiliary);
    if (cuda->stuck) {
        g_free(lane);
        return;
    }
    if (lane->kind == RP_LANE_COMPUTE) {
        rp_cuda_stream_free(cuda->map.devices[device->gpu.index].stream);
        cuda->map.devices[device->gpu.index].stream = NULL;
        device->compute = NULL;
    }
    rp_runtime_stream_free(lane->stream);
    g_free(lane);
}

/* ---- events ---- */

RpBackendEvent *
rp_cuda_event_new(RpBackend *backend, guint device, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    RpBackendEvent *event = g_new0(RpBackendEvent, 1);

    event->device = &cuda->devices[device];
    if (!rp_runtime_use(&event->device->gpu, error) ||
        !rp_runtime_event_new(&event->device->gpu, TRUE, &event->event, error)) {
        g_free(event);
        return NULL;
    }
    return event;
}

void
rp_cuda_event_free(RpBackend *backend, RpBackendEvent *event)
{
    (void)rp_runtime_use(&event->device->gpu, NULL);
    rp_runtime_event_free(event->event);
    g_free(event);
}

/* ---- time ---- */

/* Records an event where nothing else stands before it, and sees when it happens. Takes some ten
 * microseconds of the worker's time once a second. */
static gboolean
measure_anchor(RpCuda *cuda, RpCudaDevice *device, RpRuntimeEvent *anchor, gint64 *host_ns,
               gint64 *error_ns, GError **error)
{
    for (guint i = 0; i < ANCHOR_TRIES; i++) {
        const gint64 before_ns = rp_clock_ns();
        RpRuntimeState state;
        gint64 after_ns;

        if (!rp_runtime_record(&device->gpu, anchor, device->clock_stream, error))
            return FALSE;
        while ((state = rp_runtime_event_state(&device->gpu, anchor, "recording the time",
                                               error)) == RP_RUNTIME_BUSY)
            if (!rp_cuda_go_on(cuda, error))
                return FALSE;
        if (state == RP_RUNTIME_FAILED)
            return FALSE;
        after_ns = rp_clock_ns();
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
    RpRuntimeEvent *anchor = device->anchors[n % RP_CUDA_CLOCK_RING];
    gint64 host_ns, error_ns;
    double elapsed_ns = 0;

    if (!measure_anchor(cuda, device, anchor, &host_ns, &error_ns, error))
        return FALSE;
    if (n > 0 && !rp_runtime_elapsed_ns(&device->gpu, device->anchors[(n - 1) % RP_CUDA_CLOCK_RING],
                                        anchor, &elapsed_ns, error))
        return FALSE;
    pthread_mutex_lock(&device->clock_lock);
    rp_cuda_clock_add(&device->clock, elapsed_ns, host_ns, error_ns);
    pthread_mutex_unlock(&device->clock_lock);
    atomic_store(&device->n_anchors, n + 1);
    atomic_store(&device->next_anchor_ns, host_ns + RP_CUDA_CLOCK_PERIOD_NS);
    return TRUE;
}

static gboolean
is_anchor_due(RpCudaDevice *device)
{
    return rp_clock_ns() >= atomic_load(&device->next_anchor_ns);
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
    if (!rp_runtime_stream_new(&device->gpu, FALSE, &device->clock_stream, error))
        return FALSE;
    for (guint i = 0; i < RP_CUDA_CLOCK_RING; i++)
        if (!rp_runtime_event_new(&device->gpu, TRUE, &device->anchors[i], error))
            return FALSE;
    return add_anchor(cuda, device, error);
}

void
rp_cuda_clock_close(RpCudaDevice *device)
{
    for (guint i = 0; i < RP_CUDA_CLOCK_RING; i++)
        rp_runtime_event_free(device->anchors[i]);
    rp_runtime_stream_free(device->clock_stream);
}

gint64
rp_cuda_event_ns(RpBackend *backend, const RpBackendEvent *event)
{
    RpCudaDevice *device = event->device;
    double elapsed_ns = 0; /* stays 0 in a run that has failed: nobody uses its times */
    guint64 anchor;
    gint64 result;

    pthread_mutex_lock(&device->clock_lock);
    anchor = MAX(event->anchor, rp_cuda_clock_oldest(&device->clock));
    (void)rp_runtime_use(&device->gpu, NULL);
    (void)rp_runtime_elapsed_ns(&device->gpu, device->anchors[anchor % RP_CUDA_CLOCK_RING],
                                event->event, &elapsed_ns, NULL);
    result = rp_cuda_clock_host_ns(&device->clock, anchor, elapsed_ns);
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
    return rp_runtime_record(&device->gpu, event->event, lane->stream, error);
}

gboolean
rp_cuda_wait(RpBackend *backend, RpBackendLane *lane, RpBackendEvent *event, gint64 delay_ns,
             GError **error)
{
    g_return_val_if_fail(delay_ns == 0, FALSE); /* only `compute` plans have hops */

    return rp_cuda_go_on((RpCuda *)backend, error) &&
           rp_runtime_wait(&lane->device->gpu, lane->stream, event->event,
                           event->device != lane->device, error);
}

/* An event of a compute lane stands for the losses of the heads before it, too: a task is over when
 * the host has its loss. */
static RpRuntimeState
query(const RpBackendEvent *event, GError **error)
{
    static const char what[] = "waiting for the task, which may have failed or one before it";
    RpCudaDevice *device = event->device;
    RpRuntimeState state = rp_runtime_event_state(&device->gpu, event->event, what, error);

    if (state != RP_RUNTIME_DONE || atomic_load(&device->n_losses_back) >= event->n_losses)
        return state;
    state = rp_runtime_stream_state(&device->gpu, device->auxiliary, what, error);
    return state == RP_RUNTIME_FAILED ? state : RP_RUNTIME_BUSY;
}

gboolean
rp_cuda_wait_host(RpBackend *backend, RpBackendEvent *event, GError **error)
{
    RpCuda *cuda = (RpCuda *)backend;
    gint64 nap_ns = FIRST_NAP_NS;
    guint n_naps = 0;
    RpRuntimeState state;

    while ((state = query(event, error)) == RP_RUNTIME_BUSY) {
        if (!rp_cuda_go_on(cuda, error) ||
            (++n_naps % NAPS_A_LOOK == 0 && !check_devices(cuda, error)))
            return FALSE;
        nap(&nap_ns);
    }
    return state == RP_RUNTIME_DONE;
}
