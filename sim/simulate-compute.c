/*
 * Before the first event: which tasks each lane has, and what they occupy.
 */
#include "sim/event-loop.h"

#include <string.h>

/* Bytes of all messages of a task of the network's lane: one to each other server. */
static gint64
network_latency_ns(const RpMachine *machine, const RpPlan *plan)
{
    const guint servers = MAX(1, rp_plan_modes(plan)->servers);

    return machine != NULL ? machine->links.network_latency_ns * (servers - 1) : 0;
}

/* Sorts the tasks by lane. */
static void
fill_lanes(RpEventLoop *loop)
{
    const RpTask *tasks = loop->gating.tasks;
    guint32 first = 0;

    for (gsize i = 0; i < loop->n_tasks; i++)
        loop->lanes[tasks[i].lane].last++;
    for (guint32 l = 0; l < loop->n_lanes; l++) {
        RpEventLane *lane = &loop->lanes[l];
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
set_resources(RpEventLoop *loop, gboolean shared)
{
    const RpPlan *plan = loop->plan;

    for (guint32 l = 0; l < loop->n_lanes; l++) {
        RpEventLane *lane = &loop->lanes[l];
        const guint kind = rp_plan_lane_kind(plan, l);
        const guint32 device = rp_plan_lane_device(plan, l);

        lane->part = RP_HEAD_REST;
        if (kind == RP_LANE_COMPUTE && shared) {
            lane->resource = RP_RESOURCE_PROCESSOR;
            lane->class_id = rp_flow_set_action_class(loop->flows);
        } else if (rp_plan_fidelity(plan) == RP_FIDELITY_COMPUTE || kind == RP_LANE_COMPUTE) {
            lane->resource = RP_RESOURCE_TIME;
        } else if (l == rp_plan_host_lane(plan, RP_HOST_LANE_NETWORK)) {
            lane->resource = RP_RESOURCE_NETWORK; /* its class is that of each task */
        } else if (device == RP_NONE) {
            lane->resource = RP_RESOURCE_HOST;
            lane->class_id = rp_flow_set_host_class(loop->flows);
        } else {
            const gboolean up = kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP;
            const gboolean activation =
                kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_ACTIVATION_DOWN;
            const RpFlowDirection direction = up ? RP_FLOW_UP : RP_FLOW_DOWN;

            lane->resource = RP_RESOURCE_ENGINE;
            lane->class_id = rp_flow_set_copy_class(loop->flows, device, direction);
            lane->engine = 2 * device + direction;
            loop->engines[lane->engine].lanes[activation ? 0 : 1] = l;
        }
    }
}

void
rp_event_loop_init(RpEventLoop *loop, const RpPlan *plan, const RpMachine *machine,
                   RpTraceRecord *records)
{
    const guint gpus = rp_plan_gpus(plan);

    *loop = (RpEventLoop){.plan = plan, .records = records};
    loop->gating.first = rp_plan_first_id(plan);
    loop->gating.tasks = rp_plan_task(plan, loop->gating.first);
    loop->gating.dependencies = rp_plan_dependencies(plan, loop->gating.tasks);
    loop->gating.records = records;
    loop->n_tasks = rp_plan_end_id(plan) - loop->gating.first;
    g_assert(loop->n_tasks < G_MAXUINT32);
    loop->n_lanes = rp_plan_n_lanes(plan);
    loop->ends_ns = g_new(gint64, loop->n_tasks);
    memset(loop->ends_ns, 0xff, loop->n_tasks * sizeof *loop->ends_ns); /* -1 */
    loop->order = g_new(guint32, loop->n_tasks);
    loop->lanes = g_new0(RpEventLane, loop->n_lanes);
    loop->engines = g_new0(RpCopyEngine, 2 * (gsize)gpus);
    for (guint e = 0; machine != NULL && e < 2 * gpus; e++)
        loop->engines[e].latency_ns = rp_machine_links(machine, e / 2)->copy_latency_ns;
    loop->free_engines = g_new(guint32, 2 * (gsize)gpus);
    loop->network_latency_ns = network_latency_ns(machine, plan);
    loop->flows = rp_flow_set_new(machine, gpus, loop->n_lanes);
    rp_event_heap_init(&loop->events, loop->n_lanes + rp_flow_set_n_groups(loop->flows));
    fill_lanes(loop);
    set_resources(loop, machine != NULL && rp_machine_shares_actions(machine));
}

void
rp_event_loop_clear(RpEventLoop *loop)
{
    g_free(loop->ends_ns);
    g_free(loop->order);
    g_free(loop->lanes);
    g_free(loop->engines);
    g_free(loop->free_engines);
    rp_flow_set_free(loop->flows);
    rp_event_heap_clear(&loop->events);
}
