/**
 * Whether a request to the planner is consistent. Private to core/plan/job/.
 */
#pragma once

#include "core/plan/job/job.h"

/* Before defaults are resolved. Errors: RP_PLANNER_ERROR_PARTITION */
gboolean rp_job_check_dispatch(const RpPlanOptions *options, GError **error);

/* Checks a job's options and partition. Errors: RP_PLANNER_ERROR_PARTITION,
 * RP_PROFILE_ERROR_FIDELITY */
gboolean rp_job_check_partition(const RpPlanJob *job, GError **error);

/* Errors: RP_SCHEDULE_ERROR_SHAPE */
gboolean rp_job_check_calls(const RpPlanJob *job, GError **error);
