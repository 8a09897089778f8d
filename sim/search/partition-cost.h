/**
 * Partitions judged by the simulator itself: the `simulated` objective (design.md §5), and the
 * partition, stage count and round a command uses when none is given by hand.
 */
#pragma once

#include <glib.h>

#include "core/partition/partition.h"
#include "core/plan/planner.h"
#include "core/trace/report.h"
#include "core/trace/trace.h"
#include "sim/steady-window.h"

typedef enum { RP_PARTITION_SIMULATED, RP_PARTITION_PAPER } RpPartitionObjective;

/**
 * rp_partition_choose:
 * @options: schedule, gpus, micro_batches, async, recompute …; options->round: fixed M_R, 0 = free
 *   (dispatched schedules). Candidates are compared in `compute` fidelity by recurrences
 *   (sim/search/dispatched.h, sim/search/bound.h); in `full` the best of each round size are
 *   compared once more with every transfer
 * @objective: paper: rp_partition_paper() with M_R = options->round, or M, bound schedules get
 *   rp_partition_min_max(); simulated: the least simulated makespan (asynchronous: the least time
 *   per iteration in steady state)
 * @n_stages: bound schedules: S; 0 = as many stages per device as there are blocks for (looped
 *   schedules; the simulated objective tries fewer, too)
 * @memory_bytes: dispatched: limit on a device's whole arena (rp_plan_dispatched_gpu_bytes()); 0 = none. If any partition fits, one is found
 * @round: (out) (optional): M_R that goes with the result
 *
 * Returns: (transfer full): the partition
 * Errors: RP_PARTITION_ERROR_*, RP_SCHEDULE_ERROR_SHAPE
 */
RpPartition *rp_partition_choose(const RpProfile *profile, const RpPlanOptions *options,
                                 RpPartitionObjective objective, guint n_stages,
                                 guint64 memory_bytes, guint *round,
                                 GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_partition_bound_ns:
 * @options: options->round = 0: rounds of any size
 * @n_stages: bound schedules: S; 0 = any
 * @memory_bytes: as in rp_partition_choose(); 0: the search takes rounds of N slots at least, the
 *   bound holds for fewer as well
 *
 * Returns: a time of an iteration (asynchronous: in steady state) that no partition of the schedule
 *   is below, with these rules, ns: how much a better one could gain (sim/search/partition-bound.h)
 */
gint64 rp_partition_bound_ns(const RpProfile *profile, const RpPlanOptions *options, guint n_stages,
                             guint64 memory_bytes);

/* As many stages as a looped bound schedule can have: v N with at least one block each. */
guint rp_partition_default_stages(const RpProfile *profile, const RpScheduleOps *schedule,
                                  guint gpus);

/* Iterations that rp_steady_window() asks for, however many slots there are: four to settle, two
 * to look at and the begin of the next. */
#define RP_STEADY_LEAST 7
