/**
 * Partitions for dispatched orders that are given (core/schedules/given.h).
 */
#pragma once

#include "core/plan/planner.h"

/**
 * rp_search_given:
 * @options: of a dispatched schedule that is given
 *
 * Returns: (transfer full): a partition of as many slots as the order has, that with the least
 *   simulated makespan of those tried
 * Errors: RP_PARTITION_ERROR_IMPOSSIBLE
 */
RpPartition *rp_search_given(const RpProfile *profile, const RpPlanOptions *options,
                             GError **error) G_GNUC_WARN_UNUSED_RESULT;
