/*
 * One pass over a `compute` plan, in id order.
 *
 *   lane 0   |--F0--|--F1--|
 *   lane 5          : |--F0--|--F1--|      start = max(lane's last end, end of F0 + hop)
 *                   hop
 *
 * It is limited by memory, so it reads tasks and dependencies once, in the order they lie there,
 * and writes the records once, in place.
 */
#include "sim/simulate-private.h"

/* Returns: the task that could not run, or %RP_TASK_NONE; then @awaited is what it waits for. */
static RpTaskId
run_tasks(const RpPlan *plan, RpTraceRecord *records, gint64 *lane_ends, RpTaskId *awaited)
{
    const RpTaskId first = rp_plan_first_id(plan);
    const gsize n = rp_plan_end_id(plan) - first;
    const RpTask *tasks = rp_plan_task(plan, first);
    const RpDependency *dependency = rp_plan_dependencies(plan, tasks);

    for (gsize i = 0; i < n; i++) {
        const RpTask *task = &tasks[i];
        const RpDependency *end = dependency + task->dependency_count;
        const gint64 lane_end = lane_ends[task->lane];
        gint64 start = lane_end;
        gint64 hop = 0;

        for (; dependency < end; dependency++) {
            /* Wraps round for a retired task, which is done. */
            const gsize j = dependency->task - first;
            if (G_UNLIKELY(j >= i)) {
                if (dependency->task < first)
                    continue;
                *awaited = dependency->task;
                return first + i;
            }
            const gint64 lead = dependency->phase != 0 ? task->lead_ns : 0;
            const gint64 ready = records[j].end_ns + dependency->hop_ns - lead;
            const gint64 ready_hop = dependency->hop_ns;
            if (ready >= start) {
                hop = ready > start || ready_hop > hop ? ready_hop : hop;
                start = ready;
            }
        }

        RpTraceRecord *record = &records[i];
        record->start_ns = start;
        record->end_ns = start + task->duration_ns;
        record->transfer_ns = start > lane_end ? hop : 0;
        record->bytes = task->bytes;
        record->task = first + i;
        record->lane = task->lane;
        record->iteration = task->iteration;
        record->micro_batch = task->micro_batch;
        record->stage = task->stage;
        record->layer = task->layer;
        record->chunk = task->chunk;
        record->round = task->round;
        record->kind = task->kind;
        memset(record->reserved, 0, sizeof record->reserved);
        lane_ends[task->lane] = record->end_ns;
    }
    return RP_TASK_NONE;
}

RpTrace *
rp_simulate_compute_pass(const RpPlan *plan, GError **error)
{
    const gsize n = rp_plan_end_id(plan) - rp_plan_first_id(plan);
    g_autoptr(RpTrace) trace = rp_trace_new(plan, RP_TRACE_PREDICTED);
    if (n > 0) {
        g_autofree gint64 *lane_ends = g_new0(gint64, rp_plan_n_lanes(plan));
        RpTraceRecord *records = rp_trace_extend(trace, n);
        RpTaskId awaited = RP_TASK_NONE;
        const RpTaskId waiting = run_tasks(plan, records, lane_ends, &awaited);
        if (waiting != RP_TASK_NONE) {
            rp_simulate_set_deadlock(error, plan, waiting, awaited, "comes later in the plan");
            return NULL;
        }
    }
    return g_steal_pointer(&trace);
}
