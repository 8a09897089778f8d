#include "sim/plan-bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/units.h"
#include "sim/one-machine.h"

#define MOST_GATES 64    /* of more iterations it is not asked what each takes */
#define ROUNDING_NS 1e-3 /* by which a copy may end too early (sim/flows/flow-set.c) */

/* The tasks of one resource of a limit. */
typedef struct {
    gsize n; /* tasks */
    gint64 busy_ns;
    gsize first, last;
} Resource;

typedef struct {
    const RpPlan *plan;
    const RpMachine *machine;
    RpTaskId first;
    gsize n;
    gboolean full;
    gint64 *least_ns; /* per task: what it takes at least */
    gint64 *heads_ns; /* per task: earliest start */
    gint64 *tails_ns; /* per task: least time from its end to the end of the run */
    guint8 *after;    /* per task: whether it runs after the last gate, ... */
    guint8 *before;   /* ... before the next: both count; without gates all do */
    gsize *in_front;  /* per task: 1 + the one that stays in front of it on its lane; 0 = none */
    gsize *next;      /* per task: the next of its resource */
    gint64 *works_ns; /* per task: what it asks of that */
    Resource *resources;
    guint n_resources; /* at most, of a limit */
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
           rp_plan_lane_device(bound->plan, task->lane) == RP_NONE &&
           task->lane != rp_plan_host_lane(bound->plan, RP_HOST_LANE_NETWORK);
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

/* The link of a copy's device. */
static const RpLinks *
links_of(const Bound *bound, const RpTask *task)
{
    return rp_machine_links(bound->machine, rp_plan_lane_device(bound->plan, task->lane));
}

/* Duration of a task with the machine to itself. */
static double
alone_bytes_per_s(const Bound *bound, const RpTask *task)
{
    gboolean up;
    double own = limit_of(bound->machine->optimizer_bytes_per_s);

    if (is_copy(bound, task, &up)) {
        const RpLinks *links = links_of(bound, task);

        own = MIN(limit_of(up ? links->h2d_bytes_per_s : links->d2h_bytes_per_s),
                  root_bytes_per_s(bound));
    }
    return MIN(own, limit_of(bound->machine->links.host_bytes_per_s));
}

static gint64
moving_ns(double bytes, double bytes_per_s, double (*round_up_or_down)(double))
{
    return (gint64)fmax(0, round_up_or_down(bytes / bytes_per_s * RP_NS_PER_S - ROUNDING_NS));
}

static gint64
least_of(const Bound *bound, const RpTask *task)
{
    gboolean up;
    const gboolean copy = is_copy(bound, task, &up);

    if (!copy && !is_host_work(bound, task))
        return task->duration_ns;
    return moving_ns((double)task->bytes, alone_bytes_per_s(bound, task), ceil) +
           (copy ? links_of(bound, task)->copy_latency_ns : 0);
}

static gboolean
counts(const Bound *bound, gsize i)
{
    return bound->after[i] && bound->before[i];
}

/* A task's predecessor: dependency @d, or behind the last the task in front of it. */
typedef struct {
    gsize task;
    gint64 gap_ns;  /* from its end to the start; recompute may come earlier */
    gboolean whole; /* no part of the waiting task may come earlier */
} Edge;

/* Returns: FALSE: it leads out of what counts. A dependency on a later task is left out: the bound is
 * weaker for it */
static gboolean
edge_of(const Bound *bound, gsize i, guint d, Edge *edge)
{
    const RpTask *task = task_of(bound, i);

    if (d == task->dependency_count) {
        *edge = (Edge){bound->in_front[i] - 1, 0, TRUE};
        return bound->in_front[i] > 0;
    }
    const RpDependency *dependency = &rp_plan_dependencies(bound->plan, task)[d];
    const gint64 lead_ns = dependency->phase != 0 ? task->lead_ns : 0;

    *edge = (Edge){dependency->task - bound->first, dependency->hop_ns - lead_ns, lead_ns == 0};
    return dependency->task >= bound->first && edge->task < i;
}

/* Two orders are no choice, and dependencies leave out what they say: that of the host's lanes, and
 * that in which the micro-batches of a stage add to its gradients. */
static void
find_fronts(Bound *bound)
{
    const guint n_kinds = RP_TASK_OVERLAP + 1;
    g_autofree gsize *last = g_new0(gsize, RP_HOST_LANES + rp_plan_n_stages(bound->plan) * n_kinds);

    for (gsize i = 0; i < bound->n; i++) {
        const RpTask *task = task_of(bound, i);
        gsize *place = last;

        if (rp_plan_lane_device(bound->plan, task->lane) == RP_NONE)
            place += rp_plan_lane_kind(bound->plan, task->lane) - RP_LANES_PER_DEVICE;
        else if (task->kind < n_kinds && task->stage != RP_NONE)
            place += RP_HOST_LANES + task->stage * n_kinds + task->kind;
        else
            continue;
        if (*place > 0 && task_of(bound, *place - 1)->lane == task->lane)
            bound->in_front[i] = *place;
        *place = i + 1;
    }
}

/* Heads in the order of ids, tails against it. */
static void
find_paths(Bound *bound)
{
    Edge edge;

    memset(bound->heads_ns, 0, bound->n * sizeof *bound->heads_ns);
    memset(bound->tails_ns, 0, bound->n * sizeof *bound->tails_ns);
    for (gsize i = 0; i < bound->n; i++)
        for (guint d = 0; counts(bound, i) && d <= task_of(bound, i)->dependency_count; d++)
            if (edge_of(bound, i, d, &edge) && counts(bound, edge.task))
                bound->heads_ns[i] =
                    MAX(bound->heads_ns[i],
                        bound->heads_ns[edge.task] + bound->least_ns[edge.task] + edge.gap_ns);
    for (gsize i = bound->n; i-- > 0;) {
        const gint64 behind_ns = bound->least_ns[i] + bound->tails_ns[i];

        for (guint d = 0; counts(bound, i) && d <= task_of(bound, i)->dependency_count; d++)
            if (edge_of(bound, i, d, &edge) && counts(bound, edge.task))
                bound->tails_ns[edge.task] =
                    MAX(bound->tails_ns[edge.task], edge.gap_ns + behind_ns);
    }
}

/* ---- resources ---- */

/* A task, for all limits. */
typedef struct {
    const RpTask *task;
    guint32 device;
    guint kind; /* of its lane */
    gboolean copy, up, host;
    gint64 least_ns;
} Facts;

static Facts
facts_of(const Bound *bound, gsize i)
{
    const RpTask *task = task_of(bound, i);
    Facts facts = {.task = task,
                   .device = rp_plan_lane_device(bound->plan, task->lane),
                   .kind = rp_plan_lane_kind(bound->plan, task->lane),
                   .host = is_host_work(bound, task),
                   .least_ns = bound->least_ns[i]};

    facts.copy = is_copy(bound, task, &facts.up);
    return facts;
}

/* Finds the resource of @limit that a task uses, and for how long. Returns: whether it uses one */
static gboolean
ask(const Bound *bound, const Facts *facts, RpLimit limit, guint *index, gint64 *work_ns)
{
    const RpMachine *machine = bound->machine;
    const guint32 device = facts->device;
    const gboolean copy = facts->copy, up = facts->up, host = facts->host;
    const double bytes = (double)facts->task->bytes;
    double bytes_per_s = INFINITY;

    *index = device == RP_NONE ? 0 : device;
    *work_ns = facts->least_ns;
    switch (limit) {
    case RP_LIMIT_COMPUTE:
        return device != RP_NONE && facts->kind == RP_LANE_COMPUTE;
    case RP_LIMIT_UP:
        return copy && up;
    case RP_LIMIT_DOWN:
        return copy && !up;
    case RP_LIMIT_HOST_LANE:
        *index = facts->task->lane;
        return device == RP_NONE;
    case RP_LIMIT_ROOT_UP:
    case RP_LIMIT_ROOT_DOWN:
        bytes_per_s =
            copy && up == (limit == RP_LIMIT_ROOT_UP) ? root_bytes_per_s(bound) : INFINITY;
        *index = machine->links.gpus_per_root > 0 ? device / machine->links.gpus_per_root : 0;
        break;
    case RP_LIMIT_HOST:
        bytes_per_s = copy || host ? limit_of(machine->links.host_bytes_per_s) : INFINITY;
        break;
    case RP_LIMIT_OPTIMIZER:
        if (host && machine->optimizer_weight > 0 && machine->processors == 0)
            bytes_per_s = limit_of(machine->optimizer_bytes_per_s);
        break;
    case RP_LIMIT_PROCESSORS:
        if (machine->processors == 0 || !(copy || host || facts->kind == RP_LANE_COMPUTE))
            return FALSE;
        if (copy || host)
            *work_ns = moving_ns(bytes, alone_bytes_per_s(bound, facts->task), floor);
        *index = 0;
        *work_ns /= machine->processors;
        return TRUE;
    case RP_LIMIT_PATH:
    case RP_N_LIMITS:
        return FALSE;
    }
    if (limit == RP_LIMIT_HOST || limit == RP_LIMIT_OPTIMIZER)
        *index = 0;
    *work_ns = isinf(bytes_per_s) ? 0 : moving_ns(bytes, bytes_per_s, floor);
    return isfinite(bytes_per_s);
}

/* Whether any task may ask for one: without transfers there are few. */
static gboolean
may_limit(const Bound *bound, RpLimit limit)
{
    if (limit == RP_LIMIT_PROCESSORS)
        return bound->machine->processors > 0;
    return bound->full || limit == RP_LIMIT_COMPUTE || limit == RP_LIMIT_HOST_LANE;
}

static int
by_head(const void *a, const void *b)
{
    const RpJob *x = a, *y = b;

    return (x->head_ns > y->head_ns) - (x->head_ns < y->head_ns);
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

/* The tasks of a resource one after the other, with what comes before and after them. @jobs: room for
 * twice as many */
static void
look_at_resource(const Bound *bound, RpLimit limit, guint index, RpJob *jobs, RpPlanBound *best)
{
    const Resource *resource = &bound->resources[index];
    gboolean sorted = TRUE;
    gsize task = resource->first;

    for (gsize j = 0; j < resource->n; j++, task = bound->next[task]) {
        jobs[j] = (RpJob){bound->heads_ns[task], bound->works_ns[task], bound->tails_ns[task]};
        sorted = sorted && (j == 0 || jobs[j - 1].head_ns <= jobs[j].head_ns);
    }
    if (!sorted)
        qsort(jobs, resource->n, sizeof *jobs, by_head);
    best->busy_ns = MAX(best->busy_ns, resource->busy_ns);
    consider(best, rp_one_machine_ns(jobs, resource->n, jobs + resource->n), limit, index);
}

/* How many resources of @limit there are. */
static guint
count_resources(const Bound *bound, RpLimit limit)
{
    const guint gpus = rp_plan_gpus(bound->plan);
    const guint of_root = MAX(1, bound->machine->links.gpus_per_root);

    if (limit == RP_LIMIT_COMPUTE || limit == RP_LIMIT_UP || limit == RP_LIMIT_DOWN)
        return gpus;
    return limit == RP_LIMIT_ROOT_UP || limit == RP_LIMIT_ROOT_DOWN ? (gpus + of_root - 1) / of_root
                                                                    : 1;
}

static void
look_at_limit(Bound *bound, RpLimit limit, RpPlanBound *best)
{
    gsize most = 0;

    memset(bound->resources, 0, bound->n_resources * sizeof *bound->resources);
    for (gsize i = 0; i < bound->n; i++) {
        guint index;
        gint64 work_ns;

        if (!counts(bound, i))
            continue;
        const Facts facts = facts_of(bound, i);

        if (!ask(bound, &facts, limit, &index, &work_ns))
            continue;
        Resource *resource = &bound->resources[index];

        bound->works_ns[i] = work_ns;
        if (resource->n == 0)
            resource->first = i;
        else
            bound->next[resource->last] = i;
        resource->last = i;
        resource->busy_ns += work_ns;
        resource->n++;
        most = MAX(most, resource->n);
    }
    g_autofree RpJob *jobs = g_new(RpJob, 2 * most);

    for (guint r = 0; r < bound->n_resources; r++)
        if (bound->resources[r].n > 0)
            look_at_resource(bound, limit, r, jobs, best);
}

/* Bound of the tasks that count. */
static RpPlanBound
bound_of_part(Bound *bound)
{
    RpPlanBound best = {0};

    find_paths(bound);
    for (gsize i = 0; i < bound->n; i++)
        if (counts(bound, i))
            best.path_ns =
                MAX(best.path_ns, bound->heads_ns[i] + bound->least_ns[i] + bound->tails_ns[i]);
    consider(&best, best.path_ns, RP_LIMIT_PATH, 0);
    for (RpLimit limit = RP_LIMIT_PATH + 1; limit < RP_N_LIMITS; limit++)
        if (may_limit(bound, limit))
            look_at_limit(bound, limit, &best);
    return best;
}

/* ---- a steady state ---- */

/* Devices that alternate are busy alike in the long run, though not in each window, in which some may have nothing to
 * do: all count together. @resources: of @limit */
static void
look_at_steady(const Bound *bound, const RpSteadyWindow *steady, RpLimit limit,
               const Resource *resources, RpPlanBound *best)
{
    const gboolean in_turn = limit != RP_LIMIT_HOST_LANE && !rp_plan_stage(bound->plan, 0)->bound;
    const gint64 iterations = steady->end - steady->first;
    gint64 together_ns = 0;
    guint n = 0, last = 0;

    for (guint r = 0; r < bound->n_resources; r++) {
        const gint64 busy_ns = resources[r].busy_ns;

        if (resources[r].n == 0)
            continue;
        together_ns += busy_ns;
        last = r;
        n++;
        if (in_turn)
            continue;
        best->busy_ns = MAX(best->busy_ns, busy_ns / iterations);
        consider(best, busy_ns / iterations, limit, r);
    }
    if (!in_turn || n == 0)
        return;
    const gint64 share_ns = together_ns / (iterations * MAX(n, count_resources(bound, limit)));

    best->busy_ns = MAX(best->busy_ns, share_ns);
    consider(best, share_ns, limit, n > 1 ? RP_NONE : last);
}

/* Busy time of an iteration of the window. */
static RpPlanBound
bound_of_window(Bound *bound, const RpSteadyWindow *steady)
{
    g_autofree Resource *resources = g_new0(Resource, RP_N_LIMITS * bound->n_resources);
    RpPlanBound best = {0};

    for (gsize i = 0; i < bound->n; i++) {
        const Facts facts = facts_of(bound, i);

        if (facts.task->iteration < steady->first || facts.task->iteration >= steady->end)
            continue;
        for (RpLimit limit = RP_LIMIT_PATH + 1; limit < RP_N_LIMITS; limit++) {
            guint index;
            gint64 work_ns;

            if (!may_limit(bound, limit) || !ask(bound, &facts, limit, &index, &work_ns))
                continue;
            Resource *resource = &resources[limit * bound->n_resources + index];

            resource->busy_ns += work_ns;
            resource->n++;
        }
    }
    for (RpLimit limit = RP_LIMIT_PATH + 1; limit < RP_N_LIMITS; limit++)
        look_at_steady(bound, steady, limit, &resources[limit * bound->n_resources], &best);
    return best;
}

/* ---- gates ---- */

/* Whom task @gate waits for, all of which has ended when it starts. */
static void
mark_before(Bound *bound, gsize gate)
{
    Edge edge;

    memset(bound->before, 0, bound->n);
    bound->before[gate] = TRUE;
    for (gsize i = gate + 1; i-- > 0;)
        for (guint d = 0; bound->before[i] && d <= task_of(bound, i)->dependency_count; d++)
            if (edge_of(bound, i, d, &edge))
                bound->before[edge.task] = TRUE;
    bound->before[gate] = FALSE;
}

/* Who waits for it, with all of the task. */
static void
mark_after(Bound *bound, gsize gate)
{
    Edge edge;

    memset(bound->after, 0, bound->n);
    bound->after[gate] = TRUE;
    for (gsize i = gate + 1; i < bound->n; i++)
        for (guint d = 0; d <= task_of(bound, i)->dependency_count; d++)
            if (edge_of(bound, i, d, &edge) && edge.whole && bound->after[edge.task])
                bound->after[i] = TRUE;
    bound->after[gate] = FALSE;
}

/* The norms of iterations part the run: one after the other, each part takes as long as its own
 * bound says. */
static void
look_at_gates(Bound *bound, RpPlanBound *best)
{
    RpPlanBound sum = {0}, longest = {0};
    guint n_gates = 0;

    memset(bound->after, TRUE, bound->n);
    for (gsize gate = 0; gate <= bound->n && n_gates <= MOST_GATES; gate++) {
        if (gate < bound->n && task_of(bound, gate)->kind != RP_TASK_NORM)
            continue;
        if (gate < bound->n)
            mark_before(bound, gate);
        else if (n_gates > 0)
            memset(bound->before, TRUE, bound->n);
        else
            break;
        const RpPlanBound part = bound_of_part(bound);

        if (part.time_ns > longest.time_ns)
            longest = part;
        sum.time_ns += part.time_ns;
        if (gate == bound->n)
            break;
        sum.time_ns += bound->least_ns[gate];
        mark_after(bound, gate);
        n_gates++;
    }
    consider(best, sum.time_ns, longest.limit, longest.index);
}

RpPlanBound
rp_plan_bound(const RpPlan *plan, const RpMachine *machine, const RpSteadyWindow *steady)
{
    static const RpMachine no_limits = {0};
    g_return_val_if_fail(plan != NULL, (RpPlanBound){0});

    const RpTaskId first = rp_plan_first_id(plan);
    const gsize n = rp_plan_end_id(plan) - first;
    const guint n_resources = rp_plan_n_lanes(plan);
    g_autofree gint64 *heads_ns = g_new(gint64, n), *tails_ns = g_new(gint64, n);
    g_autofree gint64 *least_ns = g_new(gint64, n), *works_ns = g_new(gint64, n);
    g_autofree guint8 *after = g_malloc(n), *before = g_malloc(n);
    g_autofree gsize *in_front = g_new0(gsize, n), *next = g_new(gsize, n);
    g_autofree Resource *resources = g_new(Resource, n_resources);
    Bound bound = {
        .plan = plan,
        .machine = machine != NULL ? machine : &no_limits,
        .first = first,
        .n = n,
        .full = rp_plan_fidelity(plan) == RP_FIDELITY_FULL,
        .least_ns = least_ns,
        .heads_ns = heads_ns,
        .tails_ns = tails_ns,
        .after = after,
        .before = before,
        .in_front = in_front,
        .next = next,
        .works_ns = works_ns,
        .resources = resources,
        .n_resources = n_resources,
    };

    for (gsize i = 0; i < n; i++)
        least_ns[i] = least_of(&bound, task_of(&bound, i));

    if (steady != NULL)
        return bound_of_window(&bound, steady);
    memset(after, TRUE, n);
    memset(before, TRUE, n);
    find_fronts(&bound);
    RpPlanBound best = bound_of_part(&bound);

    look_at_gates(&bound, &best);
    return best;
}
