/* Resident weights (core/plan/resident.h). Each layer's are uploaded once, before the first slot of
 * the device that reads them; those that a later iteration would bring are uploaded when the first
 * one ends, so that all that come after are alike:
 *
 *   parameter-up   |stays of a|chunks of a|stays of b|chunks of b| rest |chunks|chunks ...
 *   compute                               |---- slot a ----|---- slot b ----|
 */
#include "core/plan/planner/placement.h"
#include "core/plan/resident.h"

static gboolean
runs(const RpPlanJob *job, guint g, guint layer)
{
    const guint n = rp_shape_group_gpus(&job->shape);

    if (job->partition->dispatched)
        return rp_partition_visits(job->partition, n, g % n, layer);
    for (guint s = 0; s < job->n_stages; s++) {
        const RpPlanStage *stage = rp_plan_stage(job->plan, s);

        if (stage->device == g && layer >= stage->layers.first &&
            layer < stage->layers.first + stage->layers.count)
            return TRUE;
    }
    return FALSE;
}

void
rp_placement_lay_out_resident(RpPlacement *placement, guint g)
{
    const RpPlanJob *job = placement->job;

    for (guint l = 0; l < job->profile->n_layers; l++) {
        const guint64 bytes = job->profile->layers[l].resident_bytes;

        if (bytes > 0 && runs(job, g, l))
            rp_job_slot_layer(job, g, l)->resident =
                rp_job_add_buffer(job, g, RP_BUFFER_PARAMETERS, bytes);
    }
}

static void
upload(const RpPlacement *placement, guint g, guint layer)
{
    const RpPlanJob *job = placement->job;
    const RpPlanLayer *row = rp_plan_layer(job->plan, layer);
    const guint32 buffer = rp_plan_resident(job->plan, g, layer);
    gboolean *uploaded = &placement->uploaded[(gsize)g * job->profile->n_layers + layer];

    if (buffer == RP_NONE || *uploaded)
        return;
    *uploaded = TRUE;
    RpTask *task =
        rp_builder_begin(job->builder, RP_TASK_RESIDENT_UPLOAD, g, RP_NONE, job->iteration);
    task->layer = layer;
    task->bytes = row->resident_bytes;
    rp_builder_read(job->builder, row->frozen, RP_ROLE_HOST);
    if (row->tied_to != RP_NONE)
        rp_builder_read(job->builder, rp_plan_layer(job->plan, row->tied_to)->frozen, RP_ROLE_HOST);
    rp_builder_write(job->builder, buffer, RP_ROLE_RESIDENT);
    rp_builder_end(job->builder);
}

void
rp_placement_upload_resident(const RpPlacement *placement, guint g, RpInterval layers)
{
    for (guint l = layers.first; l < layers.first + layers.count; l++)
        upload(placement, g, l);
}

void
rp_placement_upload_all_resident(const RpPlacement *placement)
{
    const RpPlanJob *job = placement->job;

    for (guint g = 0; g < job->shape.gpus; g++)
        rp_placement_upload_resident(placement, g, (RpInterval){0, job->profile->n_layers});
}

void
rp_placement_read_resident(const RpPlacement *placement, const RpPart *part)
{
    const RpPlanJob *job = placement->job;
    const RpInterval *layers = &part->at->layers;

    for (guint l = layers->first; l < layers->first + layers->count; l++)
        rp_builder_read(job->builder, rp_plan_resident(job->plan, part->device, l),
                        RP_ROLE_RESIDENT);
}
