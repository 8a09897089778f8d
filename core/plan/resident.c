#include "core/plan/resident.h"

#include "core/base/units.h"
#include "core/plan/device-layout.h"
#include "core/plan/planner.h"

guint64
rp_resident_limit(RpResidentChoice choice, gboolean host_memory, guint64 limit)
{
    if (choice == RP_RESIDENT_ON)
        return limit != 0 ? limit : G_MAXUINT64;
    return choice == RP_RESIDENT_OFF || host_memory ? 0 : limit;
}

guint64
rp_frozen_bytes(const RpProfile *profile, guint layer)
{
    const RpLayer *of = &profile->layers[layer];
    const guint64 bytes = rp_layer_host_bytes(of);

    if (of->tied_bytes > 0 && (of->gradient_bytes > 0 || profile->layers[0].gradient_bytes > 0))
        return 0;
    return bytes - MIN(bytes, of->gradient_bytes);
}

gboolean
rp_profile_has_frozen(const RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++)
        if (rp_frozen_bytes(profile, l) > 0)
            return TRUE;
    return FALSE;
}

void
rp_resident_all(RpProfile *profile)
{
    for (guint l = 0; l < profile->n_layers; l++)
        profile->layers[l].resident_bytes = rp_frozen_bytes(profile, l);
}

gboolean
rp_partition_visits(const RpPartition *partition, guint gpus, guint device, guint layer)
{
    const guint n = partition->n_forward + partition->n_backward;
    const guint step = (guint)rp_greatest_common_divisor(n, gpus);

    for (guint s = device % step; s < n; s += step) {
        const RpInterval *layers = rp_partition_stage(partition, s);

        if (layer >= layers->first && layer < layers->first + layers->count)
            return TRUE;
    }
    return FALSE;
}

/* Arena of the device that takes most. */
static guint64
arena_bytes(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
            gboolean kept_sums)
{
    const RpLargest largest =
        rp_largest_dispatched(profile, partition, rp_plan_slot_step(profile, options));
    const guint gpus = rp_plan_group_gpus(options); /* all groups are alike */
    const guint n = partition->n_forward + partition->n_backward;
    guint64 most = 0;

    /* the others visit the same stages */
    for (guint g = 0; g < (guint)rp_greatest_common_divisor(n, gpus); g++) {
        guint64 bytes = 0;

        for (guint l = 0; l < profile->n_layers; l++)
            if (profile->layers[l].resident_bytes > 0 && rp_partition_visits(partition, gpus, g, l))
                bytes += rp_align_up(profile->layers[l].resident_bytes, RP_BUFFER_ALIGNMENT);
        most = MAX(most, bytes);
    }
    return rp_device_bytes(profile, &largest, kept_sums, options->schedule->split_backward) + most;
}

/* The largest frozen layer of the stage that uploads most and has one; RP_NONE if all stay. */
static guint
next_layer(const RpProfile *profile, const RpPartition *partition)
{
    guint64 most = 0;
    guint next = RP_NONE;

    for (guint s = 0; s < partition->n_forward + partition->n_backward; s++) {
        const RpInterval *layers = rp_partition_stage(partition, s);
        guint64 bytes = 0, largest = 0;
        guint layer = RP_NONE;

        for (guint l = layers->first; l < layers->first + layers->count; l++) {
            const guint64 frozen = rp_frozen_bytes(profile, l);

            bytes += rp_layer_upload_bytes(&profile->layers[l]);
            if (profile->layers[l].resident_bytes > 0 || frozen <= largest)
                continue;
            largest = frozen;
            layer = l;
        }
        if (layer == RP_NONE || bytes <= most)
            continue;
        most = bytes;
        next = layer;
    }
    return next;
}

void
rp_resident_choose(RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
                   gboolean kept_sums)
{
    const guint64 limit = options->resident_limit;
    g_autofree guint *row = g_new(guint, profile->n_layers);
    guint n = 0, fitting = 0, layer;

    for (guint l = 0; l < profile->n_layers; l++)
        profile->layers[l].resident_bytes = 0;
    while ((layer = next_layer(profile, partition)) != RP_NONE) {
        row[n++] = layer;
        profile->layers[layer].resident_bytes = rp_frozen_bytes(profile, layer);
        /* slots shrink when the last of the largest stages does: more may fit where less does not */
        if (arena_bytes(profile, partition, options, kept_sums) <= limit)
            fitting = n;
    }
    while (n > fitting)
        profile->layers[row[--n]].resident_bytes = 0;
}

gboolean
rp_plan_dispatched_fits(const RpProfile *profile, const RpPartition *partition,
                        const RpPlanOptions *options, guint64 memory_bytes)
{
    const guint64 limit = MIN(options->resident_limit, memory_bytes);

    if (memory_bytes == 0 ||
        rp_plan_dispatched_gpu_bytes(profile, partition, options->schedule->split_backward,
                                     rp_plan_slot_step(profile, options)) <= memory_bytes)
        return TRUE;
    if (limit == 0 || !rp_profile_has_frozen(profile))
        return FALSE;
    g_autoptr(RpProfile) own = rp_profile_copy(profile);

    rp_resident_all(own);
    return arena_bytes(own, partition, options, FALSE) <= limit;
}

gboolean
rp_plan_least_fits(const RpProfile *profile, guint fused_first, const RpInterval *stage,
                   RpPhase phase, const RpPlanOptions *options, guint64 memory_bytes)
{
    guint64 all = 0, fused = 0;

    if (memory_bytes == 0 ||
        rp_plan_least_gpu_bytes(profile, fused_first, stage, phase) <= memory_bytes)
        return TRUE;
    if (options->resident_limit == 0 || !rp_profile_has_frozen(profile))
        return FALSE;
    g_autoptr(RpProfile) own = rp_profile_copy(profile);

    rp_resident_all(own);
    for (guint l = 0; l < own->n_layers; l++) {
        all += own->layers[l].resident_bytes;
        fused += l >= fused_first ? own->layers[l].resident_bytes : 0;
    }
    /* some device runs the fused stage, and some holds no less than the mean */
    return rp_plan_least_gpu_bytes(own, fused_first, stage, phase) +
               MAX(all / rp_plan_group_gpus(options), fused) <=
           MIN(options->resident_limit, memory_bytes);
}
