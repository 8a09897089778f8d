/**
 * The search for dispatched partitions: by the recurrence, not by plans.
 */
#pragma once

#include <glib.h>

#include "core/plan/planner.h"
#include "sim/recurrence/recurrence.h"
#include "sim/steady-window.h"

typedef struct {
    const RpProfile *profile;
    RpPlanOptions options; /* micro_batches and round (0 = free) are those of the run */
    guint replicas; /* groups of GPUs that run beside each other, each as @options says; 0 = 1 */
    guint64 memory_bytes;     /* of the whole arena; 0 = no limit */
    guint least_slots;        /* of a round */
    guint64 actions;          /* to spend, in actions of the recurrence; 0 = a default */
    guint exhaustive;         /* partitions of which all are tried; 0 = a default, 1 = never */
    const RpPartition *start; /* to begin with, beside its own seeds; may be %NULL */
    guint64 seed;             /* of its random numbers; 0 = a default */
} RpDispatchedSearch;

/**
 * rp_enough_rounds:
 * @slots: of a round
 *
 * Asynchronous rounds follow each other without a gap, whether of one iteration or of two, so that
 * iterations of fewer rounds R tell the time of a round as well - unless an iteration T then waits
 * for the weights of T - 2. Slots of time t, M_R of them in each of S stages on N devices:
 *
 *   end(T-2) - start(T-2) = (S + M_R) t   <=   start(T) - start(T-2) = 2 R S M_R t / N
 *
 * Fewer stages than devices start side by side instead of one after the other: two turns of all
 * devices keep the weights of T - 2 ahead of T then, too.
 *
 * Returns: the fewest such rounds, all that there are at most
 */
guint rp_enough_rounds(guint slots, guint round, const RpPlanOptions *options);

/* A partition that was found. */
typedef struct {
    RpCut *cut;
    guint round;
    gint64 cost_ns; /* time of an iteration: makespan, or asynchronous mean period */
} RpFinding;

/**
 * rp_search_dispatched:
 * @search: borrowed
 * @keep: how many are returned at most
 *
 * Every partition where there are few, else annealing: from seeds whose first forward and last
 * backward stages are smaller than the rest (tapered) to different degrees, with stages of all
 * lengths, for every M_R. The best are judged over the window of rp_steady_window() at the real M.
 * The random numbers have a fixed seed and what is spent is counted, not timed: the same input
 * gives the same result.
 *
 * Returns: (transfer full) (element-type RpFinding): the best first, no two with as many forward
 *   stages, backward stages and fused layers in the same rounds; empty if none fits
 */
GPtrArray *rp_search_dispatched(const RpDispatchedSearch *search, guint keep);
