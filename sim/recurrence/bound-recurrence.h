/**
 * The time of many bound partitions in `compute` fidelity: the plan of one partition is
 * made once, as the order of a schedule and what waits for what do not depend on where stages are
 * cut. Each partition then is one pass over its tasks with other durations, 3 to 5 ns a task.
 */
#pragma once

#include <glib.h>

#include "core/plan/planner.h"
#include "sim/steady-window.h"

typedef struct _RpBoundRecurrence RpBoundRecurrence;

/**
 * rp_bound_recurrence_new:
 * @profile: borrowed
 * @options: of `compute` fidelity
 * @n_stages: of every partition that will be judged
 *
 * Asynchronous schedules are run over the window of rp_steady_window().
 *
 * Errors: as rp_planner_new() and rp_planner_append_iteration()
 */
RpBoundRecurrence *rp_bound_recurrence_new(const RpProfile *profile, const RpPlanOptions *options,
                                           guint n_stages, GError **error);
void rp_bound_recurrence_free(RpBoundRecurrence *recurrence);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpBoundRecurrence, rp_bound_recurrence_free)

/**
 * rp_bound_recurrence_time_ns:
 * @ends: (array): end of each stage, upwards; the last is the number of layers
 * @most_ns: what certainly takes longer than this is not looked at
 *
 * Returns: the makespan of one iteration; asynchronous: the mean period, ns; to the nanosecond that
 *   of rp_simulate(). G_MAXINT64 if it was not looked at
 */
gint64 rp_bound_recurrence_time_ns(RpBoundRecurrence *recurrence, const guint *ends,
                                   gint64 most_ns);

/* The partition that was asked for last takes no less, ns. */
gint64 rp_bound_recurrence_least_ns(const RpBoundRecurrence *recurrence);

/* Tasks of the plan: what one partition costs. */
gsize rp_bound_recurrence_tasks(const RpBoundRecurrence *recurrence);
