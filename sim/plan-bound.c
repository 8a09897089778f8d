#include "sim/plan-bound.h"

#include <math.h>
#include <stdlib.h>

#include "core/base/units.h"

#define ROUNDING_NS 1e-3 /* by which a copy may end too early (sim/flows/flow-set.c) */

/* What a task asks of one resource. */
typedef struct {
    gint64 head_ns; /* before it can begin */
    gint64 work_ns;
    gint64 tail_ns; /* after its end */
    guint32 index;  /* of the resource, among those of its limit */
} Job;

typedef struct {
    const RpPlan *plan;
    const RpMachine *machine;
    RpTaskId first;
    gsize n;
    gboolean full;
    gint64 *heads_ns; /* per task: earliest start */
    gint64 *tails_ns; /* per task: least time from its end to the end of the run */
} Bound;

static double
limit_of(double bytes_per_s)
{
    return bytes_per_s > 0 ? bytes_per_s : INFINITY;
}

static const RpTask *
task_of(const Bound *bound, gsize i)
{
    return rp_plan_task(bound->plan, bound->first + i);
}

static gboolean
is_host_work(const Bound *bound, const RpTask *task)
{
    return bound->full && task->bytes > 0 &&
           rp_plan_lane_device(bound->plan, task->lane) == RP_NONE;
}

/* Returns: whether it moves bytes between a device and the host; @up: towards the device */
static gboolean
is_copy(const Bound *bound, const RpTask *task, gboolean *up)
{
    const guint kind = rp_plan_lane_kind(bound->plan, task->lane);

    *up = kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP;
    return bound->full && task->bytes > 0 && kind != RP_LANE_COMPUTE &&
           rp_plan_lane_device(bound->plan, task->lane) != RP_NONE;
}

static double
root_bytes_per_s(const Bound *bound)
{
    const RpLinks *links = &bound->machine->links;

    return links->gpus_per_root > 0 ? limit_of(links->root_bytes_per_s) : INFINITY;
}

/* Of a task with the machine to itself. */
static double
alone_bytes_per_s(const Bound *bound, const RpTask *task)
{
    const RpLinks *links = &bound->machine->links;
    gboolean up;
    double own = limit_of(bound->machine->optimizer_bytes_per_s);

    if (is_copy(bound, task, &up))
        own = MIN(limit_of(up ? links->h2d_bytes_per_s : links->d2h_bytes_per_s),
                  root_bytes_per_s(bound));
    return MIN(own, limit_of(links->host_bytes_per_s));
}

static gint64
moving_ns(double bytes, double bytes_per_s, double (*round_up_or_down)(double))
{
    return (gint64)fmax(0, round_up_or_down(bytes / bytes_per_s * RP_NS_PER_S - ROUNDING_NS));
}

/* What the task takes at least. */
static gint64
least_ns(const Bound *bound, const RpTask *task)
{
    gboolean up;
    const gboolean copy = is_copy(bound, task, &up);

    if (!copy && !is_host_work(bound, task))
        return task->duration_ns;
    return moving_ns((double)task->bytes, alone_bytes_per_s(bound, task), ceil) +
           (copy ? bound->machine->links.copy_latency_ns : 0);
}

/* Heads in the order of ids, tails against it. A dependency on a later task is left out: the bound
 * is weaker for it. */
static void
find_paths(Bound *bound)
{
    for (gsize i = 0; i < bound->n; i++) {
        const RpTask *task = task_of(bound, i);
        const RpDependency *dependencies = rp_plan_dependencies(bound->plan, task);

        for (guint d = 0; d < task->dependency_count; d++) {
            const gsize j = dependencies[d].task - bound->first;

            if (dependencies[d].task < bound->first || j >= i)
                continue;
            const gint64 lead_ns = dependencies[d].phase != 0 ? task->lead_ns : 0;

            bound->heads_ns[i] =
                MAX(bound->heads_ns[i], bound->heads_ns[j] + least_ns(bound, task_of(bound, j)) +
                                            dependencies[d].hop_ns - lead_ns);
        }
    }
    for (gsize i = bound->n; i-- > 0;) {
        const RpTask *task = task_of(bound, i);
        const RpDependency *dependencies = rp_plan_dependencies(bound->plan, task);
        const gint64 own_ns = least_ns(bound, task);

        for (guint d = 0; d < task->dependency_count; d++) {
            const gsize j = dependencies[d].task - bound->first;

            if (dependencies[d].task < bound->first || j >= i)
                continue;
            const gint64 lead_ns = dependencies[d].phase != 0 ? task->lead_ns : 0;

            bound->tails_ns[j] = MAX(bound->tails_ns[j], dependencies[d].hop_ns - lead_ns + own_ns +
                                                             bound->tails_ns[i]);
        }
    }
}

/* ---- resources ---- */

/* What @task asks of the resource of @limit that it uses. Returns: whether it uses one */
static gboolean
ask(const Bound *bound, const RpTask *task, RpLimit limit, Job *job)
{
    const RpMachine *machine = bound->machine;
    const guint32 device = rp_plan_lane_device(bound->plan, task->lane);
    const guint kind = rp_plan_lane_kind(bound->plan, task->lane);
    const double bytes = (double)task->bytes;
    gboolean up = FALSE;
    const gboolean copy = is_copy(bound, task, &up), host = is_host_work(bound, task);
    double bytes_per_s = INFINITY;

    job->index = device == RP_NONE ? 0 : device;
    job->work_ns = least_ns(bound, task);
    switch (limit) {
    case RP_LIMIT_COMPUTE:
        return device != RP_NONE && kind == RP_LANE_COMPUTE;
    case RP_LIMIT_UP:
        return copy && up;
    case RP_LIMIT_DOWN:
        return copy && !up;
    case RP_LIMIT_HOST_LANE:
        job->index = task->lane;
        return device == RP_NONE;
    case RP_LIMIT_ROOT_UP:
    case RP_LIMIT_ROOT_DOWN:
        bytes_per_s =
            copy && up == (limit == RP_LIMIT_ROOT_UP) ? root_bytes_per_s(bound) : INFINITY;
        job->index = machine->links.gpus_per_root > 0 ? device / machine->links.gpus_per_root : 0;
        break;
    case RP_LIMIT_HOST:
        bytes_per_s = copy || host ? limit_of(machine->links.host_bytes_per_s) : INFINITY;
        break;
    case RP_LIMIT_OPTIMIZER:
        if (host && machine->optimizer_weight > 0 && machine->processors == 0)
            bytes_per_s = limit_of(machine->optimizer_bytes_per_s);
        break;
    case RP_LIMIT_PROCESSORS:
        if (machine->processors == 0 || !(copy || host || kind == RP_LANE_COMPUTE))
            return FALSE;
        if (copy || host)
            job->work_ns = moving_ns(bytes, alone_bytes_per_s(bound, task), floor);
        job->index = 0;
        job->work_ns /= machine->processors;
        return TRUE;
    case RP_LIMIT_PATH:
    case RP_N_LIMITS:
        return FALSE;
    }
    if (limit == RP_LIMIT_HOST || limit == RP_LIMIT_OPTIMIZER)
        job->index = 0;
    job->work_ns = isinf(bytes_per_s) ? 0 : moving_ns(bytes, bytes_per_s, floor);
    return isfinite(bytes_per_s);
}

static int
by_index_and_head(const void *a, const void *b)
{
    const Job *x = a, *y = b;

    if (x->index != y->index)
        return x->index < y->index ? -1 : 1;
    return x->head_ns != y->head_ns ? (x->head_ns < y->head_ns ? -1 : 1) : 0;
}

/* Moves heap[place] to where longer tails stand above and shorter ones below. */
static void
sink(Job *heap, gsize n, gsize place)
{
    const Job job = heap[place];

    for (;;) {
        gsize child = 2 * place + 1;

        if (child + 1 < n && heap[child + 1].tail_ns > heap[child].tail_ns)
            child++;
        if (child >= n || heap[child].tail_ns <= job.tail_ns)
            break;
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = job;
}

static void
rise(Job *heap, gsize place)
{
    const Job job = heap[place];

    for (; place > 0 && heap[(place - 1) / 2].tail_ns < job.tail_ns; place = (place - 1) / 2)
        heap[place] = heap[(place - 1) / 2];
    heap[place] = job;
}

/* The job with the longest tail first, others interrupted for it: nobody does better who may
 * interrupt. @jobs: by head; @heap: room for all */
static gint64
one_machine_ns(const Job *jobs, gsize n, Job *heap)
{
    gint64 now_ns = 0, most_ns = 0;
    gsize i = 0, waiting = 0;

    while (i < n || waiting > 0) {
        if (waiting == 0)
            now_ns = MAX(now_ns, jobs[i].head_ns);
        for (; i < n && jobs[i].head_ns <= now_ns; i++) {
            heap[waiting] = jobs[i];
            rise(heap, waiting++);
        }
        const gint64 until_ns = i < n ? jobs[i].head_ns : G_MAXINT64;

        if (heap[0].work_ns > until_ns - now_ns) {
            heap[0].work_ns -= until_ns - now_ns;
            now_ns = until_ns;
            continue;
        }
        now_ns += heap[0].work_ns;
        most_ns = MAX(most_ns, now_ns + heap[0].tail_ns);
        heap[0] = heap[--waiting];
        sink(heap, waiting, 0);
    }
    return most_ns;
}

/* ---- both together ---- */

static void
consider(RpPlanBound *best, gint64 time_ns, RpLimit limit, guint index)
{
    if (time_ns <= best->time_ns)
        return;
    best->time_ns = time_ns;
    best->limit = limit;
    best->index = index;
}

/* @jobs: of one resource; @iterations: of the steady state, 0 = the whole run */
static void
look_at_resource(const Job *jobs, gsize n, Job *heap, RpLimit limit, guint iterations,
                 RpPlanBound *best)
{
    gint64 busy_ns = 0;

    for (gsize i = 0; i < n; i++)
        busy_ns += jobs[i].work_ns;
    if (iterations > 0)
        busy_ns /= iterations;
    best->busy_ns = MAX(best->busy_ns, busy_ns);
    consider(best, iterations > 0 ? busy_ns : one_machine_ns(jobs, n, heap), limit, jobs[0].index);
}

static void
look_at_limit(const Bound *bound, RpLimit limit, const RpSteadyWindow *steady, Job *jobs,
              RpPlanBound *best)
{
    gsize n = 0;

    for (gsize i = 0; i < bound->n; i++) {
        const RpTask *task = task_of(bound, i);
        Job *job = &jobs[n];

        if (steady != NULL && (task->iteration < steady->first || task->iteration >= steady->end))
            continue;
        if (!ask(bound, task, limit, job))
            continue;
        job->head_ns = bound->heads_ns[i];
        job->tail_ns = bound->tails_ns[i];
        n++;
    }
    qsort(jobs, n, sizeof *jobs, by_index_and_head);
    for (gsize i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && jobs[end].index == jobs[i].index; end++)
            ;
        look_at_resource(&jobs[i], end - i, jobs + bound->n, limit,
                         steady != NULL ? steady->end - steady->first : 0, best);
    }
}

RpPlanBound
rp_plan_bound(const RpPlan *plan, const RpMachine *machine, const RpSteadyWindow *steady)
{
    static const RpMachine no_limits = {0};
    RpPlanBound best = {0};
    g_return_val_if_fail(plan != NULL, best);

    const RpTaskId first = rp_plan_first_id(plan);
    const gsize n = rp_plan_end_id(plan) - first;
    g_autofree gint64 *heads_ns = g_new0(gint64, n), *tails_ns = g_new0(gint64, n);
    g_autofree Job *jobs = g_new(Job, 2 * n);
    Bound bound = {
        .plan = plan,
        .machine = machine != NULL ? machine : &no_limits,
        .first = first,
        .n = n,
        .full = rp_plan_fidelity(plan) == RP_FIDELITY_FULL,
        .heads_ns = heads_ns,
        .tails_ns = tails_ns,
    };

    if (steady == NULL) {
        find_paths(&bound);
        for (gsize i = 0; i < n; i++)
            best.path_ns =
                MAX(best.path_ns, heads_ns[i] + least_ns(&bound, task_of(&bound, i)) + tails_ns[i]);
        consider(&best, best.path_ns, RP_LIMIT_PATH, 0);
    }
    for (RpLimit limit = RP_LIMIT_PATH + 1; limit < RP_N_LIMITS; limit++)
        look_at_limit(&bound, limit, steady, jobs, &best);
    return best;
}

char *
rp_plan_bound_describe(const RpPlanBound *bound)
{
    static const struct {
        const char *words;
        gboolean numbered;
    } names[] = {
        [RP_LIMIT_PATH] = {"longest chain of tasks", FALSE},
        [RP_LIMIT_COMPUTE] = {"gpu", TRUE},
        [RP_LIMIT_UP] = {"copies to gpu", TRUE},
        [RP_LIMIT_DOWN] = {"copies from gpu", TRUE},
        [RP_LIMIT_ROOT_UP] = {"copies up through root complex", TRUE},
        [RP_LIMIT_ROOT_DOWN] = {"copies down through root complex", TRUE},
        [RP_LIMIT_HOST] = {"host memory", FALSE},
        [RP_LIMIT_HOST_LANE] = {"host lane", TRUE},
        [RP_LIMIT_OPTIMIZER] = {"optimizer", FALSE},
        [RP_LIMIT_PROCESSORS] = {"processors", FALSE},
    };

    return names[bound->limit].numbered
               ? g_strdup_printf("%s %u", names[bound->limit].words, bound->index)
               : g_strdup(names[bound->limit].words);
}
