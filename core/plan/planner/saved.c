/* What forwards of dispatched stages save for their backwards (core/profile/saved.h), in the order of
 * layers. It waits in the host's arena; a device has buffers for the layers of two actions:
 *
 *   compute            |--- F m ---|- F m+1 -|          |--- B m ---|- B m+1 -|
 *   activation-down                |l0|l1|l2|
 *   activation-up                            |l1|l2|    (m)  |l1|l2|  (m + 1)
 */
#include "core/plan/planner/placement.h"

void
rp_placement_lay_out_saved(RpPlacement *placement, guint g, const RpLargest *largest)
{
    const RpPlanJob *job = placement->job;
    RpDevice *device = &placement->devices[g];

    device->n_saved = largest->n_saved;
    device->saved_turn = 0;
    device->saved = RP_JOB_NONE(job, guint32, 2 * (gsize)largest->n_saved);
    for (guint i = 0; i < 2 * device->n_saved; i++)
        device->saved[i] = rp_job_add_buffer(job, g, RP_BUFFER_ACTIVATIONS, largest->saved);
}

void
rp_placement_take_saved(RpPlacement *placement, RpPart *part)
{
    RpDevice *device = &placement->devices[part->device];

    if (device->n_saved == 0)
        return;
    device->saved_turn ^= 1;
    part->saved = &device->saved[device->saved_turn * device->n_saved];
}

void
rp_placement_access_saved(const RpPlacement *placement, const RpPart *part, gboolean backward)
{
    const RpPlanJob *job = placement->job;
    const RpInterval *layers = &part->at->layers;
    guint n = 0;

    for (guint l = layers->first; l < layers->first + layers->count && part->saved != NULL; l++) {
        if (rp_plan_layer(job->plan, l)->saved_bytes == 0)
            continue;
        if (backward)
            rp_builder_update(job->builder, part->saved[n++], RP_ROLE_SAVED);
        else
            rp_builder_write(job->builder, part->saved[n++], RP_ROLE_SAVED);
    }
}
