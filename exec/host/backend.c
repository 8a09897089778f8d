/* The host backend: N virtual devices on CPU threads, each with an arena of its own; copies are
 * copies. The default where there is no GPU, and the oracle of the CUDA backend.
 *
 *   host arena      weights, gradients, optimizer state, stashed activations
 *   device arenas   the plan's buffers; a device's tasks touch nothing
 * else */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "core/base/quote.h"
#include "exec/device/action.h"
#include "exec/device/device.h"
#include "exec/device/error.h"
#include "exec/device/task-map.h"
#include "exec/engine/soft-lane.h"
#include "exec/host/kernels.h"
#include "exec/system/clock.h"
#include "exec/system/memory-limit.h"

typedef struct {
    RpSoftBackend soft;
    RpTaskMap map;
    RpDeviceOptions options;
    double *slow;         /* [gpus] how many times as long actions take */
    guint64 *arena_bytes; /* gpus + 1; the host's last */
    RpActionTime *times;  /* [gpus], each written by its device's compute lane alone */
    gboolean opened;
} Host;

/* ---- arenas ---- */

static gboolean
open_arena(Host *host, guint index, guint64 bytes, GError **error)
{
    if (bytes == 0)
        return TRUE;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        g_autofree char *who =
            index < host->map.gpus ? g_strdup_printf("device %u", index) : g_strdup("the host");
        return rp_fail(error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
                       "cannot get %" G_GUINT64_FORMAT
                       " bytes of memory for %s: %s; use fewer devices, smaller micro-batches or a "
                       "smaller model",
                       bytes, who, g_strerror(errno));
    }
    (void)madvise(memory, bytes, MADV_HUGEPAGE); /* a system without them works as well */
    host->map.memory[index] = memory;
    host->arena_bytes[index] = bytes;
    return TRUE;
}

static void
close_arenas(Host *host)
{
    for (guint i = 0; i <= host->map.gpus; i++) {
        if (host->map.memory[i] != NULL)
            munmap(host->map.memory[i], host->arena_bytes[i]);
        host->map.memory[i] = NULL;
        host->arena_bytes[i] = 0;
    }
}

/* Takes the memory that matmuls of all devices need beside the arenas. */
static gboolean
reserve(const Host *host, GError **error)
{
    const guint gpus = host->map.gpus;
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", TRUE);
    guint n;

    if (!rp_host_reserve_matmul(gpus, &n, error))
        return FALSE;
    if (n == gpus)
        return TRUE;
    g_autofree char *what =
        limit.name != NULL ? rp_memory_limit_describe(&limit) : g_strdup("the system's");

    return rp_fail(
        error, RP_DEVICE_ERROR, RP_DEVICE_ERROR_MEMORY,
        "matmuls of %u devices need %u x %zu bytes of address space, there is room for %u of "
        "them: use fewer devices or raise the limit, which is %s",
        gpus, gpus, RP_HOST_MATMUL_BUFFER_BYTES, n, what);
}

static gboolean
open_arenas(RpBackend *backend, const guint64 *bytes, guint n, GError **error)
{
    Host *host = (Host *)backend;
    gboolean opened = TRUE;

    g_return_val_if_fail(n == host->map.gpus + 1, FALSE);
    if (host->opened)
        return rp_arena_check_open(bytes, host->arena_bytes, n, error);
    if (!rp_arena_check_limits(bytes, host->map.gpus, host->options.memory_bytes, error))
        return FALSE;
    for (guint i = 0; i < n && opened; i++)
        opened = open_arena(host, i, bytes[i], error);
    if (opened)
        rp_host_state_bind_numa(host->map.host_state, host->map.memory[host->map.gpus],
                                bytes[host->map.gpus]);
    if (!opened || !reserve(host, error) ||
        !rp_host_state_attach(host->map.host_state, host->map.memory[host->map.gpus],
                              bytes[host->map.gpus], error)) {
        close_arenas(host);
        return FALSE;
    }
    for (guint g = 0; g < host->map.gpus; g++)
        rp_network_fill_constants(host->map.network, host->map.memory[g] + host->map.constants[g]);
    host->opened = TRUE;
    return TRUE;
}

/* ---- compute ---- */

static gboolean
set_places(RpDeviceAction *action, const gint32 *places, gsize n, GError **error)
{
    const RpTaskMap *map = action->map;

    memcpy(map->memory[action->device] + map->constants[action->device] +
               rp_network_places_byte(map->network),
           places, n * sizeof *places);
    return TRUE;
}

static gboolean
begin_head(RpDeviceAction *action, const gint32 *targets, guint n, gboolean packed, gsize n_more,
           GError **error)
{
    action->call.targets = targets;
    memset(action->call.loss, 0, action->map->n_losses * sizeof *action->call.loss);
    return TRUE;
}

static gboolean
send_loss(const RpDeviceAction *action, GError **error)
{
    return rp_device_action_take_loss(action->map, action->task->task.iteration,
                                      action->task->task.micro_batch, error);
}

/* The calling thread's. */
static gint64
processor_time_ns(void)
{
    struct timespec time = {0};

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * RP_NS_PER_S + time.tv_nsec;
}

/* Kernels run on the calling thread alone, so its processor time is the action's. */
static gboolean
run_compute(Host *host, guint device, const RpBackendTask *task, RpTaskPart part, GError **error)
{
    const gint64 begin_ns = rp_clock_ns();
    const gint64 processor_ns = processor_time_ns();
    static const RpDeviceActionOps ops = {
        .set_places = set_places, .begin_head = begin_head, .send_loss = send_loss};
    const gboolean done =
        rp_device_action_run(&host->map, &ops, &host->soft.base, device, task, part, error);

    const gint64 action_ns = rp_clock_ns() - begin_ns;

    host->times[device].processor_ns += processor_time_ns() - processor_ns;
    host->times[device].elapsed_ns += action_ns;
    if (host->slow[device] > 1)
        rp_soft_sleep_until(&host->soft,
                            rp_soft_clock_ns(&host->soft.base) +
                                (gint64)((host->slow[device] - 1) * (double)action_ns));
    return done;
}

/* ---- the backend ---- */

static gboolean
move(gpointer user_data, void *target, const void *source, guint64 bytes, GError **error)
{
    memcpy(target, source, bytes);
    return TRUE;
}

static gboolean
run_task(RpBackend *backend, RpBackendLane *lane, const RpBackendTask *task, RpTaskPart part,
         GError **error)
{
    Host *host = (Host *)backend;

    if (rp_task_is_transfer(&task->task))
        return rp_task_copy(&host->map, task, move, NULL, error);
    return run_compute(host, rp_soft_lane_device(lane), task, part, error);
}

static gboolean
run_host(RpBackend *backend, RpHostLaneKind kind, const RpBackendTask *task, GError **error)
{
    return rp_host_state_run(((Host *)backend)->map.host_state, kind, task, error);
}

static const RpBackendOps host_ops = {
    .name = "host",
    .open_arenas = open_arenas,
    .run_host = run_host,
};

static RpBackend *
backend_new(const RpPlan *plan, const RpNetwork *network, RpHostState *host_state,
            RpBatchFeed *feed, const RpDeviceOptions *options, GError **error)
{
    Host *host = g_new0(Host, 1);

    /* made by one thread, before lanes and workers fail with them */
    (void)rp_device_error_quark();
    (void)rp_host_state_error_quark();
    rp_soft_backend_init(&host->soft, &host_ops, run_task);
    rp_task_map_init(&host->map, plan, network, host_state, feed);
    host->options = *options;
    host->slow = g_new(double, host->map.gpus);
    for (guint g = 0; g < host->map.gpus; g++)
        host->slow[g] = options->slow != NULL ? options->slow[g].actions : 1;
    host->arena_bytes = g_new0(guint64, (gsize)host->map.gpus + 1);
    gsize places = rp_task_map_places(&host->map);
    host->map.losses = g_new0(double, places * host->map.n_losses);
    host->map.broken = g_new0(guint32, places * host->map.n_layers);
    host->map.scores = g_new0(float, rp_task_map_n_scores(&host->map));
    if (rp_modes_leave_once(host->map.modes)) {
        host->map.squares = g_new0(double, (gsize)RP_BATCH_FEED_RING * host->map.n_layers);
        rp_host_state_set_squares(host_state, host->map.squares);
    }
    for (guint g = 0; g < host->map.gpus; g++)
        host->map.devices[g].losses = host->map.losses;
    host->times = g_new0(RpActionTime, host->map.gpus);
    return &host->soft.base;
}

static void
backend_free(RpBackend *backend)
{
    Host *host = (Host *)backend;

    if (host == NULL)
        return;
    close_arenas(host);
    g_free(host->arena_bytes);
    g_free(host->slow);
    g_free(host->map.losses);
    g_free(host->map.broken);
    g_free(host->map.scores);
    g_free(host->map.squares);
    g_free(host->times);
    rp_task_map_clear(&host->map);
    rp_soft_backend_clear(&host->soft);
    g_free(host);
}

static RpActionTime
action_time(const RpBackend *backend)
{
    const Host *host = (const Host *)backend;
    RpActionTime sum = {0};

    for (guint g = 0; g < host->map.gpus; g++) {
        sum.elapsed_ns += host->times[g].elapsed_ns;
        sum.processor_ns += host->times[g].processor_ns;
    }
    return sum;
}

const RpDeviceOps *
rp_host_devices(void)
{
    static const RpDeviceOps ops = {
        .name = "host",
        .host_memory = TRUE,
        .kernels = rp_host_kernels,
        .backend_new = backend_new,
        .backend_free = backend_free,
        .action_time = action_time,
        .probe_new = rp_host_probe_new,
    };

    return &ops;
}
