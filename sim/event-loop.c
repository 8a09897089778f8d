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
 * A slot of the event heap is a lane or a group of flows (flow-set.h). All that ends at one moment
 * ends before anything is begun at that moment, so the order of events at one moment does not
 * matter.
 */
#include "sim/event-loop.h"

#include "sim/simulate-private.h"

static inline guint32
head_of(const RpEventLoop *loop, const RpEventLane *lane)
{
    return loop->order[lane->next];
}

static void
list_engine(RpEventLoop *loop, guint32 e)
{
    RpCopyEngine *engine = &loop->engines[e];

    if (engine->holder != 0 || engine->listed)
        return;
    engine->listed = TRUE;
    loop->free_engines[loop->n_free_engines++] = e;
}

/* The head's first byte moves. */
static void
begin_flow(RpEventLoop *loop, guint32 l, gint64 now_ns)
{
    RpEventLane *lane = &loop->lanes[l];

    if (rp_flow_set_unlimited(loop->flows, lane->class_id)) {
        lane->state = RP_LANE_STATE_RUNS;
        rp_event_heap_set(&loop->events, l, now_ns);
        return;
    }
    lane->state = RP_LANE_STATE_FLOWS;
    rp_flow_set_begin(loop->flows, lane->class_id, l, loop->gating.tasks[head_of(loop, lane)].bytes,
                      now_ns);
}

/* Shared processors: the next part of the head, an action, runs. */
static void
begin_part(RpEventLoop *loop, guint32 l, gint64 now_ns)
{
    RpEventLane *lane = &loop->lanes[l];
    const RpTask *task = &loop->gating.tasks[head_of(loop, lane)];
    gint64 work_ns = task->lead_ns;

    if (lane->part == RP_HEAD_REST) {
        lane->start_ns = task->lead_ns > 0 ? lane->start_ns + now_ns - lane->lead_end_ns : now_ns;
        lane->lead_end_ns = now_ns;
        work_ns = task->duration_ns - task->lead_ns;
    } else {
        lane->start_ns = now_ns;
    }
    if (work_ns == 0) {
        lane->state = RP_LANE_STATE_RUNS;
        rp_event_heap_set(&loop->events, l, now_ns);
        return;
    }
    lane->state = RP_LANE_STATE_FLOWS;
    rp_flow_set_begin(loop->flows, lane->class_id, l, (guint64)work_ns, now_ns);
}

/* The head's dependencies allow it to start now. */
static void
head_is_ready(RpEventLoop *loop, guint32 l, gint64 now_ns)
{
    RpEventLane *lane = &loop->lanes[l];

    if (lane->resource == RP_RESOURCE_PROCESSOR) {
        begin_part(loop, l, now_ns);
        return;
    }
    lane->start_ns = now_ns;
    if (lane->resource == RP_RESOURCE_HOST) {
        begin_flow(loop, l, now_ns);
        return;
    }
    if (lane->resource == RP_RESOURCE_NETWORK) {
        lane->class_id = rp_flow_set_network_class(
            loop->flows, loop->gating.tasks[head_of(loop, lane)].kind == RP_TASK_GATHER);
        lane->state = RP_LANE_STATE_LATENCY;
        rp_event_heap_set(&loop->events, l, now_ns + loop->network_latency_ns);
        return;
    }
    lane->state = RP_LANE_STATE_READY;
    list_engine(loop, lane->engine);
}

/* Looks on at the head's dependencies, and starts it as far as that can be known now. */
static void
look_on(RpEventLoop *loop, guint32 l, gint64 now_ns)
{
    RpEventLane *lane = &loop->lanes[l];
    const RpTask *task = &loop->gating.tasks[head_of(loop, lane)];
    const RpDependency *dependencies = rp_gating_dependencies(&loop->gating, task);

    lane->state = RP_LANE_STATE_SLEEPS;
    for (; lane->cursor < task->dependency_count; lane->cursor++) {
        const RpDependency *dependency = &dependencies[lane->cursor];
        gint64 lead_ns = 0;

        if (dependency->phase != 0) {
            if (lane->part == RP_HEAD_LEAD)
                continue;
            lead_ns = lane->resource == RP_RESOURCE_PROCESSOR ? 0 : task->lead_ns;
        }
        if (dependency->task < loop->gating.first)
            continue;
        const gsize i = dependency->task - loop->gating.first;
        if (i >= loop->n_tasks)
            return;
        const gint64 end_ns = loop->ends_ns[i];
        if (end_ns < 0) {
            lane->next_waiter = (guint32)(-1 - end_ns);
            loop->ends_ns[i] = -1 - (gint64)(l + 1);
            return;
        }
        lane->ready_ns = MAX(lane->ready_ns, end_ns + dependency->hop_ns - lead_ns);
    }

    if (lane->resource == RP_RESOURCE_TIME ||
        (lane->resource != RP_RESOURCE_PROCESSOR && task->bytes == 0)) {
        /* a copy of nothing is not a copy: it needs no engine */
        lane->start_ns = MAX(lane->ready_ns, lane->end_ns);
        lane->state = RP_LANE_STATE_RUNS;
        rp_event_heap_set(&loop->events, l, MAX(now_ns, lane->start_ns + task->duration_ns));
    } else if (lane->ready_ns > now_ns) {
        lane->state = RP_LANE_STATE_HELD;
        rp_event_heap_set(&loop->events, l, lane->ready_ns);
    } else {
        head_is_ready(loop, l, now_ns);
    }
}

static void
next_head(RpEventLoop *loop, guint32 l, gint64 now_ns)
{
    RpEventLane *lane = &loop->lanes[l];

    lane->cursor = 0;
    lane->ready_ns = 0;
    if (lane->next == lane->last) {
        lane->state = RP_LANE_STATE_DONE;
        return;
    }
    if (lane->resource == RP_RESOURCE_PROCESSOR)
        lane->part =
            loop->gating.tasks[head_of(loop, lane)].lead_ns > 0 ? RP_HEAD_LEAD : RP_HEAD_REST;
    look_on(loop, l, now_ns);
}

/* A copy's end frees its engine; a copy of nothing never held it. */
static void
free_engine(RpEventLoop *loop, guint32 l)
{
    const RpEventLane *lane = &loop->lanes[l];

    if (lane->resource != RP_RESOURCE_ENGINE || loop->engines[lane->engine].holder != l + 1)
        return;
    loop->engines[lane->engine].holder = 0;
    list_engine(loop, lane->engine);
}

/* Time that a transfer made the head wait; 0 if it is no action. */
static gint64
transfer_ns(const RpEventLoop *loop, const RpEventLane *lane)
{
    const RpTask *task = &loop->gating.tasks[head_of(loop, lane)];
    gint64 lead_ns = task->lead_ns;

    if (lane->resource != RP_RESOURCE_TIME && lane->resource != RP_RESOURCE_PROCESSOR)
        return 0;
    if (lane->resource == RP_RESOURCE_PROCESSOR)
        lead_ns = lane->lead_end_ns - lane->start_ns;
    return rp_gating_transfer_ns(&loop->gating, task, lead_ns, lane->start_ns, lane->end_ns);
}

/* The head has ended. */
static void
end_head(RpEventLoop *loop, guint32 l, gint64 now_ns)
{
    RpEventLane *lane = &loop->lanes[l];
    const guint32 i = head_of(loop, lane);
    const RpTask *task = &loop->gating.tasks[i];
    RpTraceRecord *record = &loop->records[i];

    rp_trace_record_init(record, loop->gating.first + i, task);
    record->start_ns = lane->start_ns;
    record->end_ns = now_ns;
    record->transfer_ns = transfer_ns(loop, lane);

    guint32 waiter = (guint32)(-1 - loop->ends_ns[i]);
    loop->ends_ns[i] = now_ns;
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

/* Ends the head, or its lead. */
static void
end_run(RpEventLoop *loop, guint32 l, gint64 now_ns)
{
    RpEventLane *lane = &loop->lanes[l];

    if (lane->part == RP_HEAD_REST) {
        end_head(loop, l, now_ns);
        return;
    }
    lane->part = RP_HEAD_REST;
    lane->lead_end_ns = now_ns;
    lane->cursor = 0;
    look_on(loop, l, now_ns);
}

/* Gives the free engines to lanes that are ready, activations first. */
static void
begin_copies(RpEventLoop *loop, gint64 now_ns)
{
    for (guint i = 0; i < loop->n_free_engines; i++) {
        RpCopyEngine *engine = &loop->engines[loop->free_engines[i]];
        guint32 l = engine->lanes[0];

        engine->listed = FALSE;
        if (loop->lanes[l].state != RP_LANE_STATE_READY)
            l = engine->lanes[1];
        if (loop->lanes[l].state != RP_LANE_STATE_READY)
            continue;
        engine->holder = l + 1;
        loop->lanes[l].start_ns = now_ns;
        if (engine->latency_ns > 0) {
            loop->lanes[l].state = RP_LANE_STATE_LATENCY;
            rp_event_heap_set(&loop->events, l, now_ns + engine->latency_ns);
        } else {
            begin_flow(loop, l, now_ns);
        }
    }
    loop->n_free_engines = 0;
}

static void
handle_lane_event(RpEventLoop *loop, guint32 l, gint64 now_ns)
{
    switch ((RpLaneState)loop->lanes[l].state) {
    case RP_LANE_STATE_HELD:
        head_is_ready(loop, l, now_ns);
        break;
    case RP_LANE_STATE_LATENCY:
        begin_flow(loop, l, now_ns);
        break;
    case RP_LANE_STATE_RUNS:
        end_run(loop, l, now_ns);
        break;
    case RP_LANE_STATE_SLEEPS:
    case RP_LANE_STATE_READY:
    case RP_LANE_STATE_FLOWS:
    case RP_LANE_STATE_DONE:
        g_assert_not_reached();
    }
}

static void
end_flows(RpEventLoop *loop, guint group, gint64 now_ns)
{
    do {
        end_run(loop, rp_flow_set_end(loop->flows, group, now_ns), now_ns);
    } while (rp_flow_set_is_over(loop->flows, group, now_ns));
}

static void
run(RpEventLoop *loop)
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

/* The id that the sleeping head of @lane waits for; it need not be in the plan. */
static RpTaskId
awaited_by(const RpEventLoop *loop, const RpEventLane *lane)
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
check_done(const RpEventLoop *loop, GError **error)
{
    const RpTaskId first = loop->gating.first;
    guint32 l = 0;

    while (l < loop->n_lanes && loop->lanes[l].state == RP_LANE_STATE_DONE)
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
        RpEventLoop loop;

        rp_event_loop_init(&loop, plan, machine, rp_trace_extend(trace, n));
        run(&loop);
        const gboolean done = check_done(&loop, error);
        rp_event_loop_clear(&loop);
        if (!done)
            return NULL;
    }
    return g_steal_pointer(&trace);
}
