/**
 * Partitions for the least device memory.
 */
#pragma once

#include "core/partition/partition.h"

/* The dispatched partition whose embedding and head are stages of their own and whose other stages
 * have @blocks blocks each, the last of them fewer. */
RpPartition *rp_partition_even(const RpProfile *profile, guint blocks);

/* The dispatched partition that needs the least device memory (rp_plan_dispatched_gpu_bytes()):
 * every layer a stage of its own, or (small models) all layers in one. */
RpPartition *rp_partition_least(const RpProfile *profile);
