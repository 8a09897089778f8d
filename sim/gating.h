/**
 * Finds the transfer that a compute action had to wait for, and how long that transfer took.
 */
#pragma once

#include "core/plan/plan.h"
#include "core/trace/trace.h"

/* A plan's arrays, and the records of the tasks that have ended. Index = id - first. */
typedef struct {
    RpTaskId first;
    const RpTask *tasks;
    const RpDependency *dependencies; /* of tasks[0] on; %NULL if there are none */
    const RpTraceRecord *records;
} RpGating;

static inline const RpDependency *
rp_gating_dependencies(const RpGating *gating, const RpTask *task)
{
    return task->dependency_count == 0 ? NULL
                                       : gating->dependencies + (task->first_dependency -
                                                                 gating->tasks[0].first_dependency);
}

/**
 * rp_gating_transfer_ns:
 * @task: a compute action, all of whose dependencies have ended
 * @task_lead_ns: how long its leading part takes, RpTask.lead_ns unless processors are shared
 * @start_ns: when it starts
 * @lane_end_ns: when its lane's previous action ended
 *
 * A transfer gates an action that starts the moment the transfer is over (recompute: the moment it
 * allows). A hop lasts hop_ns; a transfer through the host lasts from the end of the action that
 * made the value to the end of its upload:
 *
 *   action, gpu 0      |--F--|
 *   download                 |---|
 *   upload                       . |---|
 *   action, gpu 1                      |--F--|
 *                            <--------->
 *
 * Returns: its length, ns; the longest one if several end at once; 0 if no transfer gates @task
 */
gint64 rp_gating_transfer_ns(const RpGating *gating, const RpTask *task, gint64 task_lead_ns,
                             gint64 start_ns, gint64 lane_end_ns);
