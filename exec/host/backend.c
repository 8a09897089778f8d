#include "exec/host/backend.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "exec/device/arena-check.h"
#include "exec/device/targets.h"
#include "exec/device/task-map.h"
#include "exec/engine/soft-lane.h"
#include "exec/host/kernels.h"
#include "exec/host/probe.h"
#include "exec/system/memory-limit.h"

G_DEFINE_QUARK(rp_host_error, rp_host_error)

typedef struct {
    RpSoftBackend soft;
    RpTaskMap map;
    const RpKernels *kernels;
    RpDeviceOptions options;
    guint64 *arena_bytes; /* gpus + 1; the host's last */
    guint tokens;         /* T of a micro-batch */
    gint32 *packed;       /* [gpus][2][T]: targets that are not masked, and their rows */
    RpActionTime *times;  /* [gpus], each written by its device's compute lane alone */
    gboolean opened;
} Host;

/* ---- arenas ---- */

static gboolean
open_arena(Host *host, guint index, guint64 bytes, GError **error)
{
    void *memory;

    if (bytes == 0)
        return TRUE;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        g_autofree char *who =
            index < host->map.gpus ? g_strdup_printf("device %u", index) : g_strdup("the host");
        g_set_error(error, RP_HOST_ERROR, RP_HOST_ERROR_MEMORY,
                    "cannot get %" G_GUINT64_FORMAT
                    " bytes of memory for %s: %s; use fewer devices, smaller micro-batches or a "
                    "smaller model",
                    bytes, who, g_strerror(errno));
        return FALSE;
    }
    if (index == host->map.gpus)
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

/* What matmuls of all devices need beside the arenas. */
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

    g_set_error(
        error, RP_HOST_ERROR, RP_HOST_ERROR_MEMORY,
        "matmuls of %u devices need %u x %zu bytes of address space, there is room for %u of "
        "them: use fewer devices or raise the limit, which is %s",
        gpus, gpus, RP_HOST_MATMUL_BUFFER_BYTES, n, what);
    return FALSE;
}

gboolean
rp_host_backend_open(RpBackend *backend, const guint64 *bytes, guint n, GError **error)
{
    Host *host = (Host *)backend;
    gboolean opened = TRUE;

    g_return_val_if_fail(n == host->map.gpus + 1, FALSE);
    if (host->opened)
        return rp_arena_check_open(bytes, host->arena_bytes, n, RP_HOST_ERROR, RP_HOST_ERROR_MEMORY,
                                   error);
    if (!rp_arena_check_limits(bytes, host->map.gpus, host->options.memory_bytes, RP_HOST_ERROR,
                               RP_HOST_ERROR_MEMORY, error))
        return FALSE;
    for (guint i = 0; i < n && opened; i++)
        opened = open_arena(host, i, bytes[i], error);
    if (!opened || !reserve(host, error) ||
        !rp_home_attach(host->map.home, host->map.memory[host->map.gpus], bytes[host->map.gpus],
                        error)) {
        close_arenas(host);
        return FALSE;
    }
    for (guint g = 0; g < host->map.gpus; g++)
        rp_network_fill_constants(host->map.network, host->map.memory[g] + host->map.constants[g]);
    host->opened = TRUE;
    return TRUE;
}

/* ---- compute ---- */

/* One action: its call, and what its head gives back. */
typedef struct {
    const Host *host;
    const RpBackendTask *task;
    RpStageCall call;
    RpFeedCall *feed_call;
    guint m; /* micro-batch of the feed's call */
    double loss;
} Action;

#define BF16_INFINITY 0x7f80
#define FP16_INFINITY 0x7c00
#define FP32_INFINITY 0x7f800000

/* Whether one of @n values is infinite or NaN: whether all bits of its exponent are set. */
static gboolean
is_broken16(const guint16 *x, gsize n, guint16 infinity)
{
    guint16 found = 0;

    for (gsize i = 0; i < n; i++)
        found |= (guint16)((x[i] & infinity) == infinity);
    return found != 0;
}

static gboolean
is_broken32(const guint32 *x, gsize n)
{
    guint32 found = 0;

    for (gsize i = 0; i < n; i++)
        found |= (guint32)((x[i] & FP32_INFINITY) == FP32_INFINITY);
    return found != 0;
}

/* A layer's output is there: notes the first layer that breaks. */
static void
observe(gpointer user_data, guint layer, const void *output)
{
    Action *action = user_data;
    const Host *host = action->host;
    const gsize n = rp_network_hidden_bytes(host->map.network) / host->map.element_bytes;
    gint32 *lowest = &action->feed_call->broken_layer[action->m];
    gboolean broken = FALSE;

    if (*lowest <= (gint32)layer)
        return;
    switch (rp_network_options(host->map.network)->dtype) {
    case RP_DTYPE_FP32:
        broken = is_broken32(output, n);
        break;
    case RP_DTYPE_BF16:
        broken = is_broken16(output, n, BF16_INFINITY);
        break;
    case RP_DTYPE_FP16:
        broken = is_broken16(output, n, FP16_INFINITY);
        break;
    }
    if (broken)
        *lowest = (gint32)layer;
}

/* Targets, those that are masked left out if they are many. */
static void
take_targets(Action *action, const Host *host, guint device)
{
    const gint32 *targets = rp_token_batch_targets(action->feed_call->batch, action->m);
    gint32 *packed = host->packed + 2 * (gsize)host->tokens * device;
    gint32 *rows = packed + host->tokens;
    const guint n = rp_targets_pack(targets, host->tokens, packed, rows);

    action->call.targets = n == RP_TARGETS_ALL ? targets : packed;
    action->call.rows = n == RP_TARGETS_ALL ? NULL : rows;
    action->call.n_rows = n == RP_TARGETS_ALL ? 0 : n;
}

/* The head runs where its backward does, at once with it; a bound forward leaves it out. */
static void
begin_action(Action *action, const Host *host, guint device, const RpBackendTask *task)
{
    const RpTaskMap *map = &host->map;
    const gboolean forward = task->task.kind == RP_TASK_FORWARD;

    *action = (Action){.host = host, .task = task, .call = rp_task_call(map, device, task)};
    action->feed_call =
        rp_feed_find(map->feed, task->task.iteration, task->task.micro_batch, &action->m);
    if (forward || task->task.kind == RP_TASK_FUSED) {
        action->call.observe = observe;
        action->call.observe_data = action;
    }
    if (!forward && rp_task_has_head(map, task)) {
        take_targets(action, host, device);
        action->call.scale =
            rp_home_scale(map->home, task->task.iteration, rp_task_access(task, RP_ROLE_DECISION));
        action->call.loss = &action->loss;
    }
}

/* The head has run. */
static gboolean
take_loss(const Action *action, GError **error)
{
    const RpTaskMap *map = &action->host->map;
    const RpTask *task = &action->task->task;

    if (action->call.loss == NULL)
        return TRUE;
    if (!rp_home_take_loss(map->home, task->iteration, task->micro_batch, action->loss,
                           action->feed_call->broken_layer[action->m], error))
        return FALSE;
    rp_feed_set_loss(map->feed, action->feed_call, action->m, action->loss);
    return TRUE;
}

static void
begin_sums(const Action *action)
{
    const Host *host = action->host;
    const RpBackendAccess *access = rp_task_access(action->task, RP_ROLE_SUM);

    if (access != NULL && (access->mode & RP_ACCESS_READ) == 0)
        host->kernels->fill(NULL, action->call.sums, RP_DTYPE_FP32,
                            rp_network_elements(host->map.network, action->call.layers), 0);
}

/* A loss may be infinite and its gradients finite: the norm is to see it in them. */
static void
break_sums(const Action *action)
{
    if (action->call.loss != NULL && !isfinite(action->loss) && action->call.sums != NULL)
        action->call.sums[0] = NAN;
}

static gboolean
run_backward(const Action *action, RpTaskPart part, GError **error)
{
    if (part != RP_PART_REST)
        rp_network_recompute(action->host->map.network, &action->call);
    if (part == RP_PART_LEAD)
        return TRUE;
    begin_sums(action);
    rp_network_backward(action->host->map.network, &action->call);
    break_sums(action);
    rp_task_leave(&action->host->map, action->task, NULL, action->call.sums);
    return take_loss(action, error);
}

static gboolean
run_fused(const Action *action, GError **error)
{
    begin_sums(action);
    rp_network_fused(action->host->map.network, &action->call);
    break_sums(action);
    rp_task_leave(&action->host->map, action->task, NULL, action->call.sums);
    return take_loss(action, error);
}

static gint64
clock_ns(clockid_t clock)
{
    struct timespec now = {0};

    (void)clock_gettime(clock, &now);
    return now.tv_sec * G_GINT64_CONSTANT(1000000000) + now.tv_nsec;
}

static gboolean
run_action(const Host *host, guint device, const RpBackendTask *task, RpTaskPart part,
           GError **error)
{
    Action action;
    gboolean done;

    begin_action(&action, host, device, task);
    if (task->task.kind == RP_TASK_FORWARD) {
        rp_network_forward(host->map.network, &action.call);
        done = TRUE;
    } else if (task->task.kind == RP_TASK_FUSED) {
        done = run_fused(&action, error);
    } else {
        done = run_backward(&action, part, error);
    }
    return done && host->kernels->check(NULL, error);
}

/* Kernels run on the calling thread alone, so its processor time is the action's. */
static gboolean
run_compute(const Host *host, guint device, const RpBackendTask *task, RpTaskPart part,
            GError **error)
{
    const gint64 begin_ns = clock_ns(CLOCK_MONOTONIC);
    const gint64 processor_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    const gboolean done = run_action(host, device, task, part, error);

    host->times[device].processor_ns += clock_ns(CLOCK_THREAD_CPUTIME_ID) - processor_ns;
    host->times[device].elapsed_ns += clock_ns(CLOCK_MONOTONIC) - begin_ns;
    return done;
}

/* ---- the backend ---- */

static gboolean
refuse(const RpTask *task, GError **error)
{
    g_set_error(error, RP_HOST_ERROR, RP_HOST_ERROR_PLAN,
                "the host backend runs a backward as a whole, and has no %s: use a schedule that "
                "neither splits nor merges actions",
                rp_task_kind_name((RpTaskKind)task->kind));
    return FALSE;
}

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
    const Host *host = (const Host *)backend;

    if (rp_task_is_transfer(&task->task))
        return rp_task_copy(&host->map, task, move, NULL, error);
    switch ((RpTaskKind)task->task.kind) {
    case RP_TASK_FORWARD:
    case RP_TASK_BACKWARD:
    case RP_TASK_FUSED:
        return run_compute(host, rp_soft_lane_device(lane), task, part, error);
    default:
        return refuse(&task->task, error);
    }
}

static gboolean
run_host(RpBackend *backend, RpHostLaneKind kind, const RpBackendTask *task, GError **error)
{
    return rp_home_run(((Host *)backend)->map.home, kind, task, error);
}

static const RpBackendOps host_ops = {
    .name = "host",
    .open_arenas = rp_host_backend_open,
    .lane_new = rp_soft_lane_new,
    .lane_free = rp_soft_lane_free,
    .event_new = rp_soft_event_new,
    .event_free = rp_soft_event_free,
    .launch = rp_soft_launch,
    .copy = rp_soft_copy,
    .record = rp_soft_record,
    .wait = rp_soft_wait,
    .wait_host = rp_soft_wait_host,
    .event_ns = rp_soft_event_ns,
    .run_host = run_host,
    .clock_ns = rp_soft_clock_ns,
    .cancel = rp_soft_cancel,
};

RpBackend *
rp_host_backend_new(const RpPlan *plan, const RpNetwork *network, RpHome *home, RpFeed *feed,
                    const RpDeviceOptions *options, GError **error)
{
    Host *host = g_new0(Host, 1);

    /* made by one thread, before lanes and workers fail with them */
    (void)rp_host_error_quark();
    (void)rp_home_error_quark();
    rp_soft_backend_init(&host->soft, &host_ops, run_task);
    rp_task_map_init(&host->map, plan, network, home, feed);
    host->kernels = rp_network_kernels(network);
    host->options = *options;
    host->arena_bytes = g_new0(guint64, (gsize)host->map.gpus + 1);
    host->tokens = rp_network_options(network)->sequences * rp_network_options(network)->tokens;
    host->packed = g_new(gint32, 2 * (gsize)host->tokens * host->map.gpus);
    host->times = g_new0(RpActionTime, host->map.gpus);
    return &host->soft.base;
}

void
rp_host_backend_free(RpBackend *backend)
{
    Host *host = (Host *)backend;

    if (host == NULL)
        return;
    close_arenas(host);
    g_free(host->arena_bytes);
    g_free(host->packed);
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
        .backend_new = rp_host_backend_new,
        .open = rp_host_backend_open,
        .backend_free = rp_host_backend_free,
        .action_time = action_time,
        .probe_new = rp_host_probe_new,
    };

    return &ops;
}
