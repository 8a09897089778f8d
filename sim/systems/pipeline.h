/**
 * Systems whose step is a plan in virtual time. Private to sim/systems/.
 */
#pragma once

#include "core/partition/partition.h"
#include "sim/systems/private.h"

/**
 * rp_system_stages:
 * @stages: (out) (array length=gpus): blocks of each
 *
 * As Megatron with embedding and head counted as a block each: of the stages between, all have as many
 * blocks; first and last share what is left.
 */
void rp_system_stages(guint blocks, guint gpus, guint *stages);

/* One step of @partition in `compute` fidelity: time->compute of a device, mean, and time->wait, the
 * rest. Errors: those of rp_plan_make() */
gboolean rp_system_pipeline(const RpProfile *profile, const char *schedule,
                            const RpPartition *partition, guint gpus, guint micro_batches,
                            RpSystemTime *time, GError **error) G_GNUC_WARN_UNUSED_RESULT;
