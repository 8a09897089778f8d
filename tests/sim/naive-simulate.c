#include "tests/sim/naive-simulate.h"

#include <math.h>

/* as the simulator rounds */
#define ROUNDING_NS 1e-3

#define NEVER G_MAXINT64

/* Links of a flow: its own, its root complex's, and the host's as often as it is touched. */
#define LINKS 6

typedef enum { WAITS, LATENCY, FLOWS, TIMED, LEAD, LEAD_OVER, ENDED } State;

typedef struct {
    State state;   /* LEAD: flows, too */
    gint64 due_ns; /* of LATENCY and TIMED */
    gint64 lead_end_ns;
    double left;
    double rate; /* bytes/ns */
    gboolean has_rate;
} Task;

typedef struct {
    const RpPlan *plan;
    const RpMachine *machine;
    guint n;
    Task *tasks;
    NaiveTimes *times;
    gint64 now_ns;
    guint threads, host_flows; /* flows with a limit; of the host's tasks: see count_flows() */
    gboolean host_runs;        /* one of these has a limit */
} Naive;

static gboolean
is_full_copy(const Naive *naive, const RpTask *task)
{
    const guint kind = rp_plan_lane_kind(naive->plan, task->lane);

    return task->bytes > 0 && kind != RP_LANE_COMPUTE && kind < RP_LANES_PER_DEVICE &&
           rp_plan_fidelity(naive->plan) == RP_FIDELITY_FULL;
}

static gboolean
is_host_work(const Naive *naive, const RpTask *task)
{
    return task->bytes > 0 && rp_plan_lane_device(naive->plan, task->lane) == RP_NONE &&
           task->kind < RP_TASK_REDUCE && rp_plan_fidelity(naive->plan) == RP_FIDELITY_FULL;
}

/* Between servers. */
static gboolean
is_exchange(const Naive *naive, const RpTask *task)
{
    return task->bytes > 0 && task->kind >= RP_TASK_REDUCE &&
           rp_plan_fidelity(naive->plan) == RP_FIDELITY_FULL;
}

static gboolean
is_up(const Naive *naive, const RpTask *task)
{
    const guint kind = rp_plan_lane_kind(naive->plan, task->lane);

    return kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP;
}

/* An action on shared processors. */
static gboolean
is_action(const Naive *naive, const RpTask *task)
{
    return naive->machine->processors > 0 &&
           rp_plan_lane_kind(naive->plan, task->lane) == RP_LANE_COMPUTE;
}

static gboolean
flows(const Task *task)
{
    return task->state == FLOWS || task->state == LEAD;
}

/* Whether the task is its lane's head and its dependencies have ended; when they allow it to start,
 * or an action on shared processors to run its lead or its rest.
 */
static gboolean
is_ready(const Naive *naive, guint i, gint64 *ready_ns)
{
    const RpTask *task = rp_plan_task(naive->plan, i);
    const RpDependency *dependencies = rp_plan_dependencies(naive->plan, task);
    const gboolean action = is_action(naive, task);

    *ready_ns = 0;
    for (guint j = 0; j < i; j++) {
        if (rp_plan_task(naive->plan, j)->lane != task->lane)
            continue;
        if (naive->tasks[j].state != ENDED)
            return FALSE;
        *ready_ns = MAX(*ready_ns, naive->times[j].end_ns);
    }
    for (guint d = 0; d < task->dependency_count; d++) {
        const guint j = (guint)dependencies[d].task;
        const gboolean late = dependencies[d].phase != 0;

        if (action && late && task->lead_ns > 0 && naive->tasks[i].state == WAITS)
            continue;
        if (j >= naive->n || naive->tasks[j].state != ENDED)
            return FALSE;
        *ready_ns = MAX(*ready_ns, naive->times[j].end_ns + dependencies[d].hop_ns -
                                       (late && !action ? task->lead_ns : 0));
    }
    return TRUE;
}

/* Rate of all host tasks together; 0: they are flows like others. */
static double
optimizer_weight(const Naive *naive)
{
    return naive->machine->processors > 0 ? 0 : naive->machine->optimizer_weight;
}

static double
weight_of(const Naive *naive, guint i)
{
    if (optimizer_weight(naive) <= 0 || !is_host_work(naive, rp_plan_task(naive->plan, i)))
        return 1;
    return optimizer_weight(naive) / MAX(naive->host_flows, 1);
}

/* Messages between servers take the network, if anything is known of it. */
static void
links_of_exchange(const Naive *naive, const RpTask *task, guint links[LINKS], double limits[LINKS])
{
    const RpLinks *machine = &naive->machine->links;
    const guint touches = task->kind == RP_TASK_GATHER ? 2 : 4;

    if (!(machine->network_bytes_per_s > 0))
        return;
    limits[0] = machine->network_bytes_per_s / 1e9;
    for (guint k = 2; k < 2 + touches && machine->host_bytes_per_s > 0; k++) {
        links[k] = 0;
        limits[k] = machine->host_bytes_per_s / 1e9;
    }
}

/* Link numbers of a flow: its own, its root complex's, the host's; @limits in bytes/ns. */
static void
links_alone(const Naive *naive, guint i, guint links[LINKS], double limits[LINKS])
{
    const RpLinks *machine = &naive->machine->links;
    const RpTask *task = rp_plan_task(naive->plan, i);
    const guint32 device = rp_plan_lane_device(naive->plan, task->lane);

    for (guint k = 0; k < LINKS; k++) {
        links[k] = (1 + k) * 1000 + i;
        limits[k] = INFINITY;
    }
    if (is_exchange(naive, task)) {
        links_of_exchange(naive, task, links, limits);
        return;
    }
    links[2] = 0;
    if (is_action(naive, task)) {
        links[2] = 3000 + i;
        limits[0] = 1;
        limits[1] = limits[2] = INFINITY;
        return;
    }
    limits[0] = naive->machine->optimizer_bytes_per_s;
    limits[1] = 0;
    limits[2] = machine->host_bytes_per_s;
    if (device == RP_NONE && optimizer_weight(naive) > 0) {
        links[1] = 9000; /* of host tasks only */
        limits[1] = limits[0];
    }
    if (device != RP_NONE) {
        limits[0] = is_up(naive, task) ? machine->h2d_bytes_per_s : machine->d2h_bytes_per_s;
        if (machine->gpus_per_root > 0) {
            links[1] = 1 + 2 * (device / machine->gpus_per_root) + is_up(naive, task);
            limits[1] = machine->root_bytes_per_s;
        }
    }
    for (guint k = 0; k < 3; k++)
        limits[k] = limits[k] > 0 ? limits[k] / 1e9 : INFINITY;
}

static double
rate_alone(const Naive *naive, guint i)
{
    guint links[LINKS];
    double limits[LINKS];

    links_alone(naive, i, links, limits);
    if (is_exchange(naive, rp_plan_task(naive->plan, i)))
        return isinf(limits[0]) ? INFINITY : MIN(limits[0], limits[2] / (isinf(limits[5]) ? 2 : 4));
    return MIN(limits[0], MIN(limits[1], limits[2]));
}

/* State that all flows share; it does not change while rates are set. */
static void
count_flows(Naive *naive)
{
    naive->threads = naive->host_flows = 0;
    naive->host_runs = FALSE;
    for (guint i = 0; i < naive->n; i++) {
        const gboolean host = is_host_work(naive, rp_plan_task(naive->plan, i));
        const gboolean limited = !isinf(rate_alone(naive, i));

        if (!flows(&naive->tasks[i]))
            continue;
        naive->host_flows += host;
        naive->threads += limited;
        naive->host_runs = naive->host_runs || (host && limited);
    }
}

/* Every flow is a thread; too many of them for the processors run slower. What devices read beside
 * the host's tasks comes slower, too. */
static void
links_of(const Naive *naive, guint i, guint links[LINKS], double limits[LINKS])
{
    const double processors = naive->machine->processors;
    const double beside = naive->machine->beside_optimizer_bytes_per_s / 1e9;
    const RpTask *task = rp_plan_task(naive->plan, i);

    links_alone(naive, i, links, limits);
    if (processors == 0 && beside > 0 && is_full_copy(naive, task) && is_up(naive, task) &&
        !isinf(rate_alone(naive, i)) && naive->host_runs)
        limits[0] = MIN(limits[0], beside);
    if (processors > 0 && naive->threads > processors)
        limits[0] = rate_alone(naive, i) * processors / naive->threads;
}

static gboolean
end_what_is_due(Naive *naive)
{
    gboolean changed = FALSE;

    for (guint i = 0; i < naive->n; i++) {
        Task *task = &naive->tasks[i];
        gboolean due = FALSE;

        if (task->state == TIMED)
            due = task->due_ns <= naive->now_ns;
        else if (flows(task))
            due = isinf(rate_alone(naive, i)) ||
                  (task->has_rate && task->left / task->rate <= ROUNDING_NS);
        if (due && task->state == LEAD) {
            task->state = LEAD_OVER;
            task->lead_end_ns = naive->now_ns;
            changed = TRUE;
        } else if (due) {
            task->state = ENDED;
            naive->times[i].end_ns = naive->now_ns;
            changed = TRUE;
        }
    }
    return changed;
}

/* Lead and rest of an action on shared processors. Returns: whether something began */
static gboolean
begin_part(Naive *naive, guint i)
{
    const RpTask *plan_task = rp_plan_task(naive->plan, i);
    Task *task = &naive->tasks[i];
    gint64 ready_ns;

    if ((task->state != WAITS && task->state != LEAD_OVER) || !is_ready(naive, i, &ready_ns) ||
        ready_ns > naive->now_ns)
        return FALSE;
    if (task->state == WAITS)
        naive->times[i].start_ns = naive->now_ns;
    else
        naive->times[i].start_ns += naive->now_ns - task->lead_end_ns;
    task->has_rate = FALSE;
    if (task->state == WAITS && plan_task->lead_ns > 0) {
        task->state = LEAD;
        task->left = (double)plan_task->lead_ns;
    } else {
        task->state = FLOWS;
        task->left = (double)(plan_task->duration_ns - plan_task->lead_ns);
        if (task->left == 0) {
            task->state = TIMED;
            task->due_ns = naive->now_ns;
        }
    }
    return TRUE;
}

static gboolean
begin_what_needs_no_engine(Naive *naive)
{
    gboolean changed = FALSE;

    for (guint i = 0; i < naive->n; i++) {
        const RpTask *plan_task = rp_plan_task(naive->plan, i);
        Task *task = &naive->tasks[i];
        gint64 ready_ns = 0;

        if (task->state == LATENCY && task->due_ns <= naive->now_ns) {
            task->state = FLOWS;
            changed = TRUE;
        }
        if (is_action(naive, plan_task)) {
            changed = begin_part(naive, i) || changed;
            continue;
        }
        if (task->state != WAITS || is_full_copy(naive, plan_task) ||
            !is_ready(naive, i, &ready_ns))
            continue;
        if (is_exchange(naive, plan_task)) {
            if (ready_ns > naive->now_ns)
                continue;
            task->state = LATENCY;
            task->due_ns = naive->now_ns + naive->machine->links.network_latency_ns *
                                               (rp_plan_modes(naive->plan)->servers - 1);
            naive->times[i].start_ns = naive->now_ns;
        } else if (is_host_work(naive, plan_task)) {
            if (ready_ns > naive->now_ns)
                continue;
            task->state = FLOWS;
            naive->times[i].start_ns = naive->now_ns;
        } else {
            task->state = TIMED;
            task->due_ns = ready_ns + plan_task->duration_ns;
            naive->times[i].start_ns = ready_ns;
        }
        changed = TRUE;
    }
    return changed;
}

static gboolean
engine_is_busy(const Naive *naive, guint32 device, gboolean up)
{
    for (guint i = 0; i < naive->n; i++) {
        const RpTask *task = rp_plan_task(naive->plan, i);

        if (is_full_copy(naive, task) && rp_plan_lane_device(naive->plan, task->lane) == device &&
            is_up(naive, task) == up &&
            (naive->tasks[i].state == LATENCY || naive->tasks[i].state == FLOWS))
            return TRUE;
    }
    return FALSE;
}

/* Begins the ready copies of one kind of lane. */
static gboolean
begin_copies(Naive *naive, RpLaneKind kind)
{
    gboolean changed = FALSE;

    for (guint i = 0; i < naive->n; i++) {
        const RpTask *task = rp_plan_task(naive->plan, i);
        const gint64 latency_ns = naive->machine->links.copy_latency_ns;
        gint64 ready_ns = 0;

        if (naive->tasks[i].state != WAITS || !is_full_copy(naive, task) ||
            rp_plan_lane_kind(naive->plan, task->lane) != kind || !is_ready(naive, i, &ready_ns) ||
            ready_ns > naive->now_ns ||
            engine_is_busy(naive, rp_plan_lane_device(naive->plan, task->lane), is_up(naive, task)))
            continue;
        naive->tasks[i].state = latency_ns > 0 ? LATENCY : FLOWS;
        naive->tasks[i].due_ns = naive->now_ns + latency_ns;
        naive->times[i].start_ns = naive->now_ns;
        changed = TRUE;
    }
    return changed;
}

/* The share of @link that a flow of weight 1 without a rate gets, if nothing else held it back. */
static double
fair_share(const Naive *naive, guint link)
{
    double left = INFINITY, weight = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (guint i = 0; i < naive->n; i++) {
            guint links[LINKS];
            double limits[LINKS];

            if (!flows(&naive->tasks[i]))
                continue;
            links_of(naive, i, links, limits);
            for (guint k = 0; k < LINKS; k++) {
                if (links[k] != link)
                    continue;
                if (pass == 0)
                    left = limits[k];
                else if (naive->tasks[i].has_rate)
                    left -= naive->tasks[i].rate;
                else
                    weight += weight_of(naive, i);
            }
        }
    }
    return left / weight;
}

/* Again and again: the link with the least fair share sets the rate of its flows. */
static void
set_rates(Naive *naive)
{
    count_flows(naive);
    for (guint i = 0; i < naive->n; i++)
        naive->tasks[i].has_rate = FALSE;
    for (;;) {
        double least = INFINITY;
        guint least_link = G_MAXUINT;
        gboolean any = FALSE;

        for (guint i = 0; i < naive->n; i++) {
            guint links[LINKS];
            double limits[LINKS];

            if (!flows(&naive->tasks[i]) || naive->tasks[i].has_rate)
                continue;
            any = TRUE;
            links_of(naive, i, links, limits);
            for (guint k = 0; k < LINKS; k++) {
                const double share = fair_share(naive, links[k]);

                if (share < least) {
                    least = share;
                    least_link = links[k];
                }
            }
        }
        if (!any)
            return;
        for (guint i = 0; i < naive->n; i++) {
            guint links[LINKS];
            double limits[LINKS];

            links_of(naive, i, links, limits);
            gboolean stops = least_link == G_MAXUINT;

            for (guint k = 0; k < LINKS; k++)
                stops = stops || links[k] == least_link;
            if (flows(&naive->tasks[i]) && !naive->tasks[i].has_rate && stops) {
                naive->tasks[i].has_rate = TRUE;
                naive->tasks[i].rate = least * weight_of(naive, i);
            }
        }
    }
}

static gint64
next_moment(const Naive *naive)
{
    gint64 next_ns = NEVER;

    for (guint i = 0; i < naive->n; i++) {
        const Task *task = &naive->tasks[i];
        gint64 ready_ns = 0;

        if (task->state == TIMED || task->state == LATENCY)
            next_ns = MIN(next_ns, task->due_ns);
        else if (flows(task) && isinf(task->rate))
            next_ns = naive->now_ns;
        else if (flows(task))
            next_ns =
                MIN(next_ns, naive->now_ns + (gint64)ceil(task->left / task->rate - ROUNDING_NS));
        else if ((task->state == WAITS || task->state == LEAD_OVER) &&
                 is_ready(naive, i, &ready_ns) && ready_ns > naive->now_ns)
            next_ns = MIN(next_ns, ready_ns);
    }
    return next_ns;
}

NaiveTimes *
naive_simulate(const RpPlan *plan, const RpMachine *machine)
{
    Naive naive = {.plan = plan, .machine = machine, .n = (guint)rp_plan_end_id(plan)};

    naive.tasks = g_new0(Task, naive.n);
    naive.times = g_new(NaiveTimes, naive.n);
    for (guint i = 0; i < naive.n; i++) {
        naive.times[i] = (NaiveTimes){-1, -1};
        naive.tasks[i].left = (double)rp_plan_task(plan, i)->bytes;
    }
    for (;;) {
        while (end_what_is_due(&naive) || begin_what_needs_no_engine(&naive))
            ;
        begin_copies(&naive, RP_LANE_ACTIVATION_UP);
        begin_copies(&naive, RP_LANE_ACTIVATION_DOWN);
        begin_copies(&naive, RP_LANE_PARAMETER_UP);
        begin_copies(&naive, RP_LANE_GRADIENT_DOWN);
        set_rates(&naive);

        const gint64 next_ns = next_moment(&naive);
        if (next_ns == NEVER)
            break;
        for (guint i = 0; i < naive.n; i++)
            if (flows(&naive.tasks[i]) && !isinf(naive.tasks[i].rate))
                naive.tasks[i].left -= naive.tasks[i].rate * (double)(next_ns - naive.now_ns);
        naive.now_ns = next_ns;
    }
    g_free(naive.tasks);
    return naive.times;
}
