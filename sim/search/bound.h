/**
 * The search for partitions of schedules that bind their stages.
 */
#pragma once

#include <glib.h>

#include "core/plan/planner.h"

typedef struct {
    const RpProfile *profile;
    RpPlanOptions options; /* of the run; judged in `compute` fidelity */
    guint n_stages;        /* 0 = every number that the schedule can have */
    guint64 actions;       /* to spend, in tasks of the recurrence; 0 = a default */
    guint exhaustive;      /* partitions of which all are tried; 0 = a default, 1 = never */
    /* (nullable): all do; rp_partition_min_max() of one stage count does at least */
    gboolean (*fits)(const RpPartition *partition, gpointer user_data);
    gpointer user_data;
} RpBoundSearch;

/**
 * rp_search_bound:
 *
 * The partition with the least makespan (asynchronous: the least time of an iteration), over every
 * stage count: all partitions where there are few, else annealing from rp_partition_min_max() and
 * even splits, first a little for every stage count, then from the best of all. Runs of many
 * micro-batches are judged by two shorter ones, the best few once more at the real M. Never worse
 * than rp_partition_min_max() of any stage count that was tried; the same input gives the same
 * result.
 *
 * Errors: RP_PARTITION_ERROR_IMPOSSIBLE, RP_SCHEDULE_ERROR_*
 */
RpPartition *rp_search_bound(const RpBoundSearch *search, GError **error) G_GNUC_WARN_UNUSED_RESULT;
