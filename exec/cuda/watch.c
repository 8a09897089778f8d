/* Decides whether a run continues; and has the watcher of a device, a thread that checks now and
 * then whether it has failed.
 *
 * A device that waits for one that has failed keeps its worker inside a full queue, and the worker
 * of the one that has failed waits for that worker: then nobody else would check. */
#include "core/base/quote.h"
#include "exec/cuda/backend-private.h"
#include "exec/system/clock.h"

#define LOOK_NS (50 * G_GINT64_CONSTANT(1000000))
/* The watcher leaves a worker this much time to report a failure first, as the worker knows the
 * task. */
#define TELL_NS (500 * G_GINT64_CONSTANT(1000000))

gboolean
rp_cuda_go_on(RpCuda *cuda, GError **error)
{
    if (!atomic_load(&cuda->cancelled))
        return TRUE;
    return rp_fail(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_CANCELLED, "stopped");
}

/* Sleeps. Returns: FALSE if the watcher is to end */
static gboolean
sleep_on(RpCuda *cuda, gint64 ns)
{
    const gint64 end_ns = rp_clock_ns() + ns;
    gboolean on;

    pthread_mutex_lock(&cuda->watch_lock);
    while (!cuda->watch_ends && rp_clock_wait(&cuda->watch_cond, &cuda->watch_lock, end_ns))
        ;
    on = !cuda->watch_ends;
    pthread_mutex_unlock(&cuda->watch_lock);
    return on;
}

static void *
watch(void *data)
{
    RpCudaDevice *device = data;
    RpCuda *cuda = device->cuda;
    g_autoptr(GError) error = NULL;
    gboolean works = rp_runtime_use(&device->gpu, &error);

    while (works) {
        if (!sleep_on(cuda, LOOK_NS))
            return NULL;
        works = rp_runtime_stream_state(&device->gpu, device->auxiliary, "one of its tasks failed",
                                        &error) != RP_RUNTIME_FAILED;
    }
    if (sleep_on(cuda, TELL_NS) && !atomic_load(&cuda->cancelled))
        cuda->base.failed(cuda->base.failed_data, RP_TASK_NONE, g_steal_pointer(&error));
    return NULL;
}

gboolean
rp_cuda_watch_open(RpCuda *cuda, RpCudaDevice *device, GError **error)
{
    const int code = pthread_create(&device->watcher, NULL, watch, device);

    device->watched = code == 0;
    if (code != 0)
        g_set_error(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MISSING,
                    "device %u: cannot start a thread: %s", device->gpu.index, g_strerror(code));
    return device->watched;
}

void
rp_cuda_watch_close(RpCuda *cuda)
{
    pthread_mutex_lock(&cuda->watch_lock);
    cuda->watch_ends = TRUE;
    pthread_cond_broadcast(&cuda->watch_cond);
    pthread_mutex_unlock(&cuda->watch_lock);
    for (guint g = 0; g < cuda->map.gpus; g++)
        if (cuda->devices[g].watched) {
            pthread_join(cuda->devices[g].watcher, NULL);
            cuda->devices[g].watched = FALSE;
        }
}
