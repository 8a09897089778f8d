#include "core/profile/saved.h"

#include "core/base/units.h"

static const RpSavedGroupInfo rows[RP_N_SAVED_GROUPS] = {
    [RP_SAVED_ATTENTION] = {"attention", "saved_attention_bytes", "saved_attention_ms",
                            "output of attention"},
    [RP_SAVED_QKV] = {"qkv", "saved_qkv_bytes", "saved_qkv_ms", "queries, keys and values"},
    [RP_SAVED_RESIDUAL] = {"residual", "saved_residual_bytes", "saved_residual_ms",
                           "hidden state between attention and MLP"},
    [RP_SAVED_MLP] = {"mlp", "saved_mlp_bytes", "saved_mlp_ms", "gate and up of the MLP"},
};

const RpSavedGroupInfo *
rp_saved_group(RpSavedGroup group)
{
    g_return_val_if_fail((guint)group < RP_N_SAVED_GROUPS, NULL);
    return &rows[group];
}

double
rp_saved_ns_per_mib(const RpSavedTensors *tensors)
{
    return (double)tensors->recompute_ns * (double)RP_MIB / (double)tensors->bytes;
}
