/*
 * Runs a plan event by event.
 *
 * Only the head of a lane can wait, so nothing is counted or searched per task: a head looks at its
 * dependencies one after the other and sleeps on the first that has not ended; the end of a task
 * wakes the heads that sleep on it, and they look on from there. Every dependency is looked at
 * once, or twice if it was slept on.
 *
 *   gpu 1 activation-up    sleeps -> |--copy--|
 *   gpu 1 parameter-up      |--chunk--|       |--chunk--|     one engine: the activation goes
 *                                                           first, but waits for a copy in flight
 *
 * A slot of the event heap is a lane or a class of flows (flow-set.h). All that ends at one moment
 * ends before anything is begun at that moment, so the order of events at one moment does not
 * matter.
 */
#include "sim/simulate-private.h"

#include "sim/event-heap.h"
#include "sim/flow-set.h"
#include "sim/gating.h"

/* What `Loop.waiters` says of a task that has ended. */
#define ENDED G_MAXUINT32

/* What a lane's tasks occupy. */
typedef enum { RESOURCE_TIME, RESOURCE_PROCESSOR, RESOURCE_ENGINE, RESOURCE_HOST } Resource;

typedef enum {
    LANE_SLEEPS,  /* on a dependency, or for ever */
    LANE_HELD,    /* dependencies over, a hop is not: event when it is */
    LANE_READY,   /* for its engine to be free */
    LANE_LATENCY, /* event when the first byte moves */
    LANE_FLOWS,   /* in its class of flows */
    LANE_RUNS,    /* event when the task ends */
    LANE_DONE     /* no tasks left */
} LaneState;

typedef struct {
    gint64 end_ns;       /* of the last task that ended */
    gint64 ready_ns;     /* when the dependencies looked at allow the head to start */
    gint64 start_ns;     /* of the head, once it has started */
    gint64 lead_end_ns;  /* shared processors: when the head's lead is over, as recorded */
    guint32 next;        /* the head: index into Loop.order */
    guint32 last;        /* end of the lane's tasks there */
    guint32 cursor;      /* of the head's dependencies: the next to look at, or slept on */
    guint32 next_waiter; /* 1 + lane that sleeps on the same task */
    guint32 engine;
    guint32 class_id; /* of its flows */
    guint8 resource;  /* Resource */
    guint8 state;     /* LaneState */
    guint8 part;      /* Part; shared processors */
} Lane;

/*
 * On shared processors an action's end is not known when it starts, and neither is its lead's: they
 * run one after the other, and what the rest waits for is looked at when the lead is over. The
 * record counts from so much later as the rest had to wait, as if the processors were not shared:
 *
 *   runs       |--lead--|.......|----rest----|
 *   recorded           |--------|----rest----|
 */
typedef enum {
    PART_LEAD, /* waits for dependencies of phase 0 */
    PART_REST  /* waits for all */
} Part;

/* A copy engine: its two lanes, activations first. */
typedef struct {
    guint32 lanes[2];
    guint32 holder;  /* 1 + lane whose copy is in flight; 0 = free */
    gboolean listed; /* in Loop.free_engines */
} Engine;

typedef struct {
    const RpPlan *plan;
    RpGating gating; /* the plan's arrays */
    gsize n_tasks;
    RpTraceRecord *records;
    guint32 *waiters; /* per task: 1 + first lane that sleeps on it, 0 = none, ENDED */
    guint32 *order;   /* tasks by lane, ids ascending */
    Lane *lanes;
    guint n_lanes;
    Engine *engines;       /* 2 device + direction */
    guint32 *free_engines; /* free ones with a lane that has become ready */
    guint n_free_engines;
    gint64 latency_ns;
    RpFlowSet *flows;
    RpEventHeap events; /* slots: lanes, then classes of flows */
} Loop;

static inline guint32
head_of(const Loop *loop, const Lane *lane)
{
    return loop->order[lane->next];
}

static void
list_engine(Loop *loop, guint32 e)
{
    Engine *engine = &loop->engines[e];

    if (engine->holder != 0 || engine->listed)
        return;
    engine->listed = TRUE;
    loop->free_engines[loop->n_free_engines++] = e;
}

/* The head's first byte moves. */
static void
begin_flow(Loop *loop, guint32 l, gint64 now_ns)
{
    Lane *lane = &loop->lanes[l];

    if (rp_flow_set_unlimited(loop->flows, lane->class_id)) {
        lane->state = LANE_RUNS;
        rp_event_heap_set(&loop->events, l, now_ns);
        return;
    }
    lane->state = LANE_FLOWS;
    rp_flow_set_begin(loop->flows, lane->class_id, l, loop->gating.tasks[head_of(loop, lane)].bytes,
                      now_ns);
}

/* Shared processors: the next part of the head, an action, runs. */
static void
begin_part(Loop *loop, guint32 l, gint64 now_ns)
{
    Lane *lane = &loop->lanes[l];
    const RpTask *task = &loop->gating.tasks[head_of(loop, lane)];
    gint64 work_ns = task->lead_ns;

    if (lane->part == PART_REST) {
        lane->start_ns = task->lead_ns > 0 ? lane->start_ns + now_ns - lane->lead_end_ns : now_ns;
        lane->lead_end_ns = now_ns;
        work_ns = task->duration_ns - task->lead_ns;
    } else {
        lane->start_ns = now_ns;
    }
    if (work_ns == 0) {
        lane->state = LANE_RUNS;
        rp_event_heap_set(&loop->events, l, now_ns);
        return;
    }
    lane->state = LANE_FLOWS;
    rp_flow_set_begin(loop->flows, lane->class_id, l, (guint64)work_ns, now_ns);
}

/* The head's dependencies allow it to start now. */
static void
head_is_ready(Loop *loop, guint32 l, gint64 now_ns)
{
    Lane *lane = &loop->lanes[l];

    if (lane->resource == RESOURCE_PROCESSOR) {
        begin_part(loop, l, now_ns);
        return;
    }
    lane->start_ns = now_ns;
    if (lane->resource == RESOURCE_HOST) {
        begin_flow(loop, l, now_ns);
        return;
    }
    lane->state = LANE_READY;
    list_engine(loop, lane->engine);
}

/* Looks on at the head's dependencies, and starts it as far as that can be known now. */
static void
look_on(Loop *loop, guint32 l, gint64 now_ns)
{
    Lane *lane = &loop->lanes[l];
    const RpTask *task = &loop->gating.tasks[head_of(loop, lane)];
    const RpDependency *dependencies = rp_gating_dependencies(&loop->gating, task);

    lane->state = LANE_SLEEPS;
    for (; lane->cursor < task->dependency_count; lane->cursor++) {
        const RpDependency *dependency = &dependencies[lane->cursor];
        gint64 lead_ns = 0;

        if (dependency->phase != 0) {
            if (lane->part == PART_LEAD)
                continue;
            lead_ns = lane->resource == RESOURCE_PROCESSOR ? 0 : task->lead_ns;
        }
        if (dependency->task < loop->gating.first)
            continue;
        const gsize i = dependency->task - loop->gating.first;
        if (i >= loop->n_tasks)
            return;
        if (loop->waiters[i] != ENDED) {
            lane->next_waiter = loop->waiters[i];
            loop->waiters[i] = l + 1;
            return;
        }
        lane->ready_ns =
            MAX(lane->ready_ns, loop->records[i].end_ns + dependency->hop_ns - lead_ns);
    }

    if (lane->resource == RESOURCE_TIME ||
        (lane->resource != RESOURCE_PROCESSOR && task->bytes == 0)) {
        /* a copy of nothing is not a copy: it needs no engine */
        lane->start_ns = MAX(lane->ready_ns, lane->end_ns);
        lane->state = LANE_RUNS;
        rp_event_heap_set(&loop->events, l, MAX(now_ns, lane->start_ns + task->duration_ns));
    } else if (lane->ready_ns > now_ns) {
        lane->state = LANE_HELD;
        rp_event_heap_set(&loop->events, l, lane->ready_ns);
    } else {
        head_is_ready(loop, l, now_ns);
    }
}

static void
next_head(Loop *loop, guint32 l, gint64 now_ns)
{
    Lane *lane = &loop->lanes[l];

    lane->cursor = 0;
    lane->ready_ns = 0;
    if (lane->next == lane->last) {
        lane->state = LANE_DONE;
        return;
    }
    if (lane->resource == RESOURCE_PROCESSOR)
        lane->part = loop->gating.tasks[head_of(loop, lane)].lead_ns > 0 ? PART_LEAD : PART_REST;
    look_on(loop, l, now_ns);
}

/* A copy's end frees its engine; a copy of nothing never held it. */
static void
free_engine(Loop *loop, guint32 l)
{
    const Lane *lane = &loop->lanes[l];

    if (lane->resource != RESOURCE_ENGINE || loop->engines[lane->engine].holder != l + 1)
        return;
    loop->engines[lane->engine].holder = 0;
    list_engine(loop, lane->engine);
}

/* What a transfer made the head wait; 0 if it is no action. */
static gint64
transfer_ns(const Loop *loop, const Lane *lane)
{
    const RpTask *task = &loop->gating.tasks[head_of(loop, lane)];
    gint64 lead_ns = task->lead_ns;

    if (lane->resource != RESOURCE_TIME && lane->resource != RESOURCE_PROCESSOR)
        return 0;
    if (lane->resource == RESOURCE_PROCESSOR)
        lead_ns = lane->lead_end_ns - lane->start_ns;
    return rp_gating_transfer_ns(&loop->gating, task, lead_ns, lane->start_ns, lane->end_ns);
}

/* The head has ended. */
static void
end_head(Loop *loop, guint32 l, gint64 now_ns)
{
    Lane *lane = &loop->lanes[l];
    const guint32 i = head_of(loop, lane);
    const RpTask *task = &loop->gating.tasks[i];
    RpTraceRecord *record = &loop->records[i];

    rp_trace_record_init(record, loop->gating.first + i, task);
    record->start_ns = lane->start_ns;
    record->end_ns = now_ns;
    record->transfer_ns = transfer_ns(loop, lane);

    guint32 waiter = loop->waiters[i];
    loop->waiters[i] = ENDED;
    free_engine(loop, l);
    lane->end_ns = now_ns;
    lane->next++;
    while (waiter != 0) {
        const guint32 sleeper = waiter - 1;

        waiter = loop->lanes[sleeper].next_waiter;
        look_on(loop, sleeper, now_ns);
    }
    next_head(loop, l, now_ns);
}

/* What the head was doing is over: the head, or its lead. */
static void
end_run(Loop *loop, guint32 l, gint64 now_ns)
{
    Lane *lane = &loop->lanes[l];

    if (lane->part == PART_REST) {
        end_head(loop, l, now_ns);
        return;
    }
    lane->part = PART_REST;
    lane->lead_end_ns = now_ns;
    lane->cursor = 0;
    look_on(loop, l, now_ns);
}

/* Gives the free engines to lanes that are ready, activations first. */
static void
begin_copies(Loop *loop, gint64 now_ns)
{
    for (guint i = 0; i < loop->n_free_engines; i++) {
        Engine *engine = &loop->engines[loop->free_engines[i]];
        guint32 l = engine->lanes[0];

        engine->listed = FALSE;
        if (loop->lanes[l].state != LANE_READY)
            l = engine->lanes[1];
        if (loop->lanes[l].state != LANE_READY)
            continue;
        engine->holder = l + 1;
        loop->lanes[l].start_ns = now_ns;
        if (loop->latency_ns > 0) {
            loop->lanes[l].state = LANE_LATENCY;
            rp_event_heap_set(&loop->events, l, now_ns + loop->latency_ns);
        } else {
            begin_flow(loop, l, now_ns);
        }
    }
    loop->n_free_engines = 0;
}

static void
handle_lane_event(Loop *loop, guint32 l, gint64 now_ns)
{
    switch ((LaneState)loop->lanes[l].state) {
    case LANE_HELD:
        head_is_ready(loop, l, now_ns);
        break;
    case LANE_LATENCY:
        begin_flow(loop, l, now_ns);
        break;
    case LANE_RUNS:
        end_run(loop, l, now_ns);
        break;
    case LANE_SLEEPS:
    case LANE_READY:
    case LANE_FLOWS:
    case LANE_DONE:
        g_assert_not_reached();
    }
}

static void
end_flows(Loop *loop, guint class_id, gint64 now_ns)
{
    do {
        end_run(loop, rp_flow_set_end(loop->flows, class_id, now_ns), now_ns);
    } while (rp_flow_set_is_over(loop->flows, class_id, now_ns));
}

static void
run(Loop *loop)
{
    RpEventHeap *events = &loop->events;
    gint64 now_ns = 0;

    for (guint32 l = 0; l < loop->n_lanes; l++)
        next_head(loop, l, now_ns);
    for (;;) {
        while (events->n > 0 && events->events[0].time_ns == now_ns) {
            const guint32 slot = events->events[0].slot;

            rp_event_heap_remove(events, slot);
            if (slot < loop->n_lanes)
                handle_lane_event(loop, slot, now_ns);
            else
                end_flows(loop, slot - loop->n_lanes, now_ns);
        }
        begin_copies(loop, now_ns);
        rp_flow_set_reshare(loop->flows, now_ns, events, loop->n_lanes);
        if (events->n == 0)
            break;
        now_ns = events->events[0].time_ns;
    }
}

/* Sorts the tasks by lane. */
static void
fill_lanes(Loop *loop)
{
    const RpTask *tasks = loop->gating.tasks;
    guint32 first = 0;

    for (gsize i = 0; i < loop->n_tasks; i++)
        loop->lanes[tasks[i].lane].last++;
    for (guint32 l = 0; l < loop->n_lanes; l++) {
        Lane *lane = &loop->lanes[l];
        const guint32 n = lane->last;

        lane->next = first;
        lane->last = first;
        first += n;
    }
    for (gsize i = 0; i < loop->n_tasks; i++)
        loop->order[loop->lanes[tasks[i].lane].last++] = (guint32)i;
}

/* Says what each lane's tasks occupy. In a `compute` plan every task only takes its time, or a
 * processor if the devices share them (@shared). */
static void
set_resources(Loop *loop, gboolean shared)
{
    const RpPlan *plan = loop->plan;

    for (guint32 l = 0; l < loop->n_lanes; l++) {
        Lane *lane = &loop->lanes[l];
        const guint kind = rp_plan_lane_kind(plan, l);
        const guint32 device = rp_plan_lane_device(plan, l);

        lane->part = PART_REST;
        if (kind == RP_LANE_COMPUTE && shared) {
            lane->resource = RESOURCE_PROCESSOR;
            lane->class_id = rp_flow_set_action_class(loop->flows);
        } else if (rp_plan_fidelity(plan) == RP_FIDELITY_COMPUTE || kind == RP_LANE_COMPUTE) {
            lane->resource = RESOURCE_TIME;
        } else if (device == RP_NONE) {
            lane->resource = RESOURCE_HOST;
            lane->class_id = rp_flow_set_host_class(loop->flows);
        } else {
            const gboolean up = kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP;
            const gboolean activation =
                kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_ACTIVATION_DOWN;
            const RpFlowDirection direction = up ? RP_FLOW_UP : RP_FLOW_DOWN;

            lane->resource = RESOURCE_ENGINE;
            lane->class_id = rp_flow_set_copy_class(loop->flows, device, direction);
            lane->engine = 2 * device + direction;
            loop->engines[lane->engine].lanes[activation ? 0 : 1] = l;
        }
    }
}

static void
loop_init(Loop *loop, const RpPlan *plan, const RpMachine *machine, RpTraceRecord *records)
{
    const guint gpus = rp_plan_gpus(plan);

    *loop = (Loop){.plan = plan, .records = records};
    loop->gating.first = rp_plan_first_id(plan);
    loop->gating.tasks = rp_plan_task(plan, loop->gating.first);
    loop->gating.dependencies = rp_plan_dependencies(plan, loop->gating.tasks);
    loop->gating.records = records;
    loop->n_tasks = rp_plan_end_id(plan) - loop->gating.first;
    g_assert(loop->n_tasks < ENDED);
    loop->n_lanes = rp_plan_n_lanes(plan);
    loop->waiters = g_new0(guint32, loop->n_tasks);
    loop->order = g_new(guint32, loop->n_tasks);
    loop->lanes = g_new0(Lane, loop->n_lanes);
    loop->engines = g_new0(Engine, 2 * (gsize)gpus);
    loop->free_engines = g_new(guint32, 2 * (gsize)gpus);
    loop->latency_ns = machine ? machine->links.copy_latency_ns : 0;
    loop->flows = rp_flow_set_new(machine, gpus, loop->n_lanes);
    rp_event_heap_init(&loop->events, loop->n_lanes + rp_flow_set_n_classes(loop->flows));
    fill_lanes(loop);
    set_resources(loop, machine != NULL && machine->processors > 0);
}

static void
loop_clear(Loop *loop)
{
    g_free(loop->waiters);
    g_free(loop->order);
    g_free(loop->lanes);
    g_free(loop->engines);
    g_free(loop->free_engines);
    rp_flow_set_free(loop->flows);
    rp_event_heap_clear(&loop->events);
}

/* What the sleeping head of @lane waits for: an id, which need not be in the plan. */
static RpTaskId
awaited_by(const Loop *loop, const Lane *lane)
{
    const RpTask *task = &loop->gating.tasks[head_of(loop, lane)];

    return rp_gating_dependencies(&loop->gating, task)[lane->cursor].task;
}

/*
 * Nothing happens any more; fails if lanes still have tasks. From any of their heads one comes to a
 * cycle by going to the lane of the awaited task again and again; the head it goes through is
 * named.
 */
static gboolean
check_done(const Loop *loop, GError **error)
{
    const RpTaskId first = loop->gating.first;
    guint32 l = 0;

    while (l < loop->n_lanes && loop->lanes[l].state == LANE_DONE)
        l++;
    if (l == loop->n_lanes)
        return TRUE;
    for (guint step = 0; step < loop->n_lanes; step++) {
        const RpTaskId awaited = awaited_by(loop, &loop->lanes[l]);

        if (awaited - first >= loop->n_tasks)
            break;
        l = loop->gating.tasks[awaited - first].lane;
    }
    rp_simulate_set_deadlock(error, loop->plan, first + head_of(loop, &loop->lanes[l]),
                             awaited_by(loop, &loop->lanes[l]), "cannot run before it");
    return FALSE;
}

RpTrace *
rp_simulate_event_loop(const RpPlan *plan, const RpMachine *machine, GError **error)
{
    const gsize n = rp_plan_end_id(plan) - rp_plan_first_id(plan);
    g_autoptr(RpTrace) trace = rp_trace_new(plan, RP_TRACE_PREDICTED);

    if (n > 0) {
        Loop loop;

        loop_init(&loop, plan, machine, rp_trace_extend(trace, n));
        run(&loop);
        const gboolean done = check_done(&loop, error);
        loop_clear(&loop);
        if (!done)
            return NULL;
    }
    return g_steal_pointer(&trace);
}
