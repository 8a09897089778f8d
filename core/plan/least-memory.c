/*
 * Partitions for the least device memory.
 *
 *   layers     e 0 1 2 3 h
 *   even(1)    [e][0][1][2][3] [h]    forward stages, then the fused one
 *   even(2)    [e][0 1][2 3]   [h]
 *
 * A device holds the largest buffer of each kind over its stages, and a longer stage needs no less
 * of any kind than the stages that it is cut into. So where every block has the same input, no
 * other partition needs less than even(1), except one stage of everything, at whose borders no
 * hidden state waits.
 */
#include "core/plan/planner.h"

RpPartition *
rp_partition_even(const RpProfile *profile, guint blocks)
{
    g_return_val_if_fail(profile != NULL && profile->n_layers > 0 && blocks > 0, NULL);

    const guint n_blocks = rp_profile_n_blocks(profile);
    const guint first = n_blocks > 0 ? rp_profile_first_block(profile) : 0;
    const guint end = n_blocks > 0 ? first + n_blocks : profile->n_layers;
    const guint fused = end < profile->n_layers ? end : end - MIN(blocks, end - first);
    g_autoptr(GArray) forward = g_array_new(FALSE, FALSE, sizeof(RpInterval));
    g_autoptr(GArray) backward = g_array_new(FALSE, FALSE, sizeof(RpInterval));
    RpInterval stage = {fused, profile->n_layers - fused};

    g_array_append_val(backward, stage);
    for (guint at = 0; at < fused; at += stage.count) {
        stage = (RpInterval){at, at < first ? first - at : MIN(blocks, fused - at)};
        g_array_append_val(forward, stage);
    }
    for (guint i = forward->len; i-- > 0;)
        g_array_append_val(backward, g_array_index(forward, RpInterval, i));
    return rp_partition_new_dispatched((const RpInterval *)(void *)forward->data, forward->len,
                                       (const RpInterval *)(void *)backward->data, backward->len);
}

RpPartition *
rp_partition_least(const RpProfile *profile)
{
    g_return_val_if_fail(profile != NULL && profile->n_layers > 0, NULL);

    const RpInterval all = {0, profile->n_layers};
    g_autoptr(RpPartition) even = rp_partition_even(profile, 1);
    g_autoptr(RpPartition) whole = rp_partition_new_dispatched(NULL, 0, &all, 1);

    return rp_plan_dispatched_gpu_bytes(profile, whole, FALSE, 0) <
                   rp_plan_dispatched_gpu_bytes(profile, even, FALSE, 0)
               ? g_steal_pointer(&whole)
               : g_steal_pointer(&even);
}
