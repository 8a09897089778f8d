/**
 * Shared by the exact partitions (paper.c, split.c).
 */
#pragma once

#include "core/partition/partition.h"

#define RP_NEVER G_MAXUINT /* a number of stages: no number is enough */

__extension__ typedef unsigned __int128 RpWide;

/* n + 1 sums of a phase's times. No sum wraps: a timing file's layers take at most 1e9 ms (1e15 ns)
 * together, and none saves more than its recompute. */
gint64 *rp_partition_prefix_sums(const RpProfile *profile, RpPhase phase);

/* n + 1: how much less than its sum a backward stage of [.., i) takes. */
gint64 *rp_partition_savings(const RpProfile *profile);

/* The least first in [limit, end] with sums[end] - sums[first] <= t. */
static inline guint
rp_partition_reach_down(const gint64 *sums, guint end, guint limit, gint64 t)
{
    guint first = end, step = 1;
    while (step <= first - limit && sums[end] - sums[first - step] <= t) {
        first -= step;
        step *= 2;
    }
    for (; step > 0; step /= 2)
        if (step <= first - limit && sums[end] - sums[first - step] <= t)
            first -= step;
    return first;
}
