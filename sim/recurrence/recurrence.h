/**
 * The time of a dispatched partition in `compute` fidelity, without a plan: the recurrence that
 * rp_simulate() computes, over the slots of each round.
 *
 *   start(i, m) = max(end(i, m-1), end(i-1, m) + hop - lead(i), stash of i, m + hop)
 *   end(i, m)   = start(i, m) + duration(i)
 *
 * hop is less W of slot i-1 where backwards are split: end(i, m) is that of W, which nothing waits for.
 * Slot i runs on device (g0 + i) mod N; end(i, -1) is when that device's slot before ended.
 */
#pragma once

#include <glib.h>

#include "core/plan/planner.h"
#include "sim/recurrence/cut.h"

typedef struct _RpRecurrence RpRecurrence;

/* How long is looked at. */
typedef struct {
    guint micro_batches; /* of an iteration */
    guint round;         /* M_R, divides micro_batches */
    guint first, end;    /* asynchronous: the window of the steady state; first = end: until
                            two iterations shift all devices by the same, `end` at the latest */
} RpSpan;

/**
 * rp_recurrence_new:
 * @profile: borrowed
 * @options: schedule, gpus, async, recompute and fused_forward are read, as in `compute` fidelity
 */
RpRecurrence *rp_recurrence_new(const RpProfile *profile, const RpPlanOptions *options);
void rp_recurrence_free(RpRecurrence *recurrence);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpRecurrence, rp_recurrence_free)

/**
 * rp_recurrence_time_ns:
 * @most_ns: synchronous: what takes longer than this is of no interest and may be given up
 *
 * Returns: the makespan of one iteration; asynchronous: the mean period of the window, ns; to the
 *   nanosecond that of rp_simulate(). G_MAXINT64 if it was given up
 */
gint64 rp_recurrence_time_ns(RpRecurrence *recurrence, const RpCut *cut, const RpSpan *span,
                             gint64 most_ns);

/* Actions computed so far: what a search has spent. */
guint64 rp_recurrence_actions(const RpRecurrence *recurrence);

/* Time of a micro-batch on all devices together, ns. */
gint64 rp_recurrence_work_ns(const RpRecurrence *recurrence, const RpCut *cut);
