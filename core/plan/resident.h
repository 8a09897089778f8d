/**
 * Chooses the layers whose frozen weights stay on the devices of a dispatched plan. Private to
 * core/plan/.
 *
 *   every slot    |adapters|frozen weights|           |adapters|
 *   once a run                              becomes   |frozen weights|
 *
 * A layer stays whole or not at all, on every device that ever runs it; slots then carry its trained
 * weights alone, and are that much smaller. Packed weights stay packed: slots expand them as before.
 */
#pragma once

#include "core/partition/partition.h"
#include "core/plan/planner.h"
#include "core/profile/profile.h"

/* Frozen weights of a layer as they go up; 0 also of a matrix that is tied to a trained one. */
guint64 rp_frozen_bytes(const RpProfile *profile, guint layer);

/* Whether a device ever runs @layer: a round begins S devices after the one before it. */
gboolean rp_partition_visits(const RpPartition *partition, guint gpus, guint device, guint layer);

/* Sets resident_bytes of all layers: all that is frozen. */
void rp_resident_all(RpProfile *profile);

/**
 * rp_resident_choose:
 * @profile: its layers' resident_bytes are set
 * @options: with resident_limit, of a device's whole arena
 * @kept_sums: RP_GRADIENTS_KEPT
 *
 * The stage that uploads most gives up its largest frozen layer, one after the other, and of this
 * row as many layers stay as @limit holds: no stage is left that uploads much more than others.
 */
void rp_resident_choose(RpProfile *profile, const RpPartition *partition,
                        const RpPlanOptions *options, gboolean kept_sums);
