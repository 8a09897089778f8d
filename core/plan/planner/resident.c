/* Bound and resident: all stages of a device are uploaded when its iteration begins, but for frozen
 * weights that stay there for good. */
#include "core/plan/planner/placement.h"

static void
lay_out(RpPlacement *placement, guint g, const RpLargest *largest)
{
    const RpPlanJob *job = placement->job;
    RpDevice *device = &placement->devices[g];

    for (guint s = 0; s < job->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(job->plan, s);

        if (stage->device != g)
            continue;
        placement->resident_parameters[s] =
            rp_job_add_buffer(job, g, RP_BUFFER_PARAMETERS, stage->parameter_bytes);
        placement->resident_sums[s] =
            rp_job_add_buffer(job, g, RP_BUFFER_ACCUMULATORS,
                              rp_profile_sum_bytes(job->profile, stage->gradient_bytes));
    }
    rp_placement_lay_out_resident(placement, g);
    device->packed = rp_job_add_buffer(job, g, RP_BUFFER_PARAMETERS, largest->packed);
    device->workspace[RP_DIRECTION_BACKWARD][0] =
        rp_job_add_buffer(job, g, RP_BUFFER_WORKSPACE, largest->workspace[RP_DIRECTION_BACKWARD]);
}

static void
turn(RpPlacement *placement, guint g, const RpSlot *before)
{
    (void)before;
    for (guint s = 0; s < placement->job->n_stages; s++)
        if (rp_plan_stage(placement->job->plan, s)->device == g)
            rp_placement_upload(placement, g, s, NULL);
}

const RpPlacementOps rp_placement_resident = {.lay_out = lay_out, .turn = turn};
