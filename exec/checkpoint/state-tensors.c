/* The tensors of optimizer.safetensors, three a weight or five: a new way to keep moments is a row of
 * `ways` and its name. */
#include "exec/checkpoint/private.h"

#include <string.h>

/* How a moment stands in the file. */
static const struct {
    const char *name; /* in trainer_state.json */
    const char *type;
} ways[] = {
    [RP_MOMENTS_FP32] = {"fp32", "F32"},
    [RP_MOMENTS_BF16] = {"bf16", "BF16"},
    [RP_MOMENTS_INT8] = {"int8", "U8"},
};
G_STATIC_ASSERT(G_N_ELEMENTS(ways) == RP_N_MOMENTS);

/* Of a weight; the last two of moments with scales. */
static const struct {
    const char *suffix;
    gsize member; /* of RpOptimizerState: a pointer */
    gboolean moment;
    gboolean scale;
} rows[RP_CHECKPOINT_STATE_TENSORS] = {
    {".master", G_STRUCT_OFFSET(RpOptimizerState, weight), FALSE, FALSE},
    {".exp_avg", G_STRUCT_OFFSET(RpOptimizerState, moment1), TRUE, FALSE},
    {".exp_avg_sq", G_STRUCT_OFFSET(RpOptimizerState, moment2), TRUE, FALSE},
    {".exp_avg.absmax", G_STRUCT_OFFSET(RpOptimizerState, scale1), FALSE, TRUE},
    {".exp_avg_sq.absmax", G_STRUCT_OFFSET(RpOptimizerState, scale2), FALSE, TRUE},
};

const char *
rp_checkpoint_moments_name(RpMoments moments)
{
    return ways[moments].name;
}

gboolean
rp_checkpoint_moments_parse(const char *name, RpMoments *moments)
{
    for (guint i = 0; i < G_N_ELEMENTS(ways); i++)
        if (strcmp(ways[i].name, name) == 0) {
            *moments = (RpMoments)i;
            return TRUE;
        }
    return FALSE;
}

guint
rp_checkpoint_n_state_tensors(RpMoments moments)
{
    return rp_moment_scales(moments, 0, 1) > 0 ? RP_CHECKPOINT_STATE_TENSORS : 3;
}

RpCheckpointTensor
rp_checkpoint_state_tensor(const RpWeight *weight, RpMoments moments, guint64 first, guint index)
{
    RpCheckpointTensor tensor = {.suffix = rows[index].suffix,
                                 .type = rows[index].moment ? ways[moments].type : "F32",
                                 .member = rows[index].member,
                                 .rank = weight->rank};

    memcpy(tensor.shape, weight->shape, weight->rank * sizeof *tensor.shape);
    tensor.bytes =
        (gsize)weight->elements * (rows[index].moment ? rp_moment_bytes(moments) : sizeof(float));
    if (rows[index].scale) {
        tensor.rank = 1;
        tensor.shape[0] = rp_moment_scales(moments, first, weight->elements);
        tensor.bytes = (gsize)tensor.shape[0] * sizeof(float);
    }
    return tensor;
}

const void *
rp_checkpoint_state_data(const RpCheckpointTensor *tensor, const RpOptimizerState *state)
{
    const void *data;

    memcpy(&data, (const guint8 *)state + tensor->member, sizeof data);
    return data;
}

void
rp_checkpoint_state_set_data(const RpCheckpointTensor *tensor, RpOptimizerState *state,
                             const void *data)
{
    memcpy((guint8 *)state + tensor->member, &data, sizeof data);
}

/* A block more than a weight of its own would have: where it begins in its layer is not known here. */
guint64
rp_checkpoint_state_bytes(const RpWeight *weight, RpMoments moments, guint index)
{
    return rp_checkpoint_state_tensor(weight, moments, RP_MOMENT_BLOCK - 1, index).bytes;
}
