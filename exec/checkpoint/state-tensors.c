/* The tensors of optimizer.safetensors, two to five a weight: a new format of moments is a row of
 * `types` and its name. */
#include "exec/checkpoint/private.h"

#include <string.h>

/* Formats of weights and moments in the file. */
static const char *const types[RP_N_MOMENTS] = {
    [RP_MOMENTS_FP32] = "F32", [RP_MOMENTS_BF16] = "BF16", [RP_MOMENTS_INT8] = "U8"};

static const char *const rules[] = {
    [RP_UPDATE_ADAMW] = "adamw", [RP_UPDATE_LION] = "lion", [RP_N_UPDATES] = NULL};
static const char *const masters[] = {[RP_MOMENTS_FP32] = "fp32", [RP_MOMENTS_BF16] = "bf16", NULL};
static const char *const moments[] = {[RP_MOMENTS_FP32] = "fp32",
                                      [RP_MOMENTS_BF16] = "bf16",
                                      [RP_MOMENTS_INT8] = "int8",
                                      [RP_N_MOMENTS] = NULL};

const RpCheckpointProperty rp_checkpoint_properties[] = {
    {"optimizer", "optimizer.name", rules, "\"adamw\" or \"lion\"",
     G_STRUCT_OFFSET(RpStateFormat, rule)},
    {"optimizer_master", "optimizer.master", masters, "\"fp32\" or \"bf16\"",
     G_STRUCT_OFFSET(RpStateFormat, master)},
    {"optimizer_state", "optimizer.state", moments, "\"fp32\", \"bf16\" or \"int8\"",
     G_STRUCT_OFFSET(RpStateFormat, moments)},
};

/* State tensors of a weight. */
static const struct {
    const char *suffix;
    gsize member; /* offset of a pointer in RpOptimizerState */
    guint moment; /* the first is 1; 0: the weight itself */
    gboolean scale;
} rows[] = {
    {".master", G_STRUCT_OFFSET(RpOptimizerState, weight), 0, FALSE},
    {".exp_avg", G_STRUCT_OFFSET(RpOptimizerState, moment1), 1, FALSE},
    {".exp_avg_sq", G_STRUCT_OFFSET(RpOptimizerState, moment2), 2, FALSE},
    {".exp_avg.absmax", G_STRUCT_OFFSET(RpOptimizerState, scale1), 1, TRUE},
    {".exp_avg_sq.absmax", G_STRUCT_OFFSET(RpOptimizerState, scale2), 2, TRUE},
};

guint
rp_checkpoint_property(const RpCheckpointProperty *property, const RpStateFormat *form)
{
    return *(const guint *)(const void *)((const guint8 *)form + property->member);
}

static gboolean
is_kept(RpStateFormat form, guint row)
{
    return rows[row].moment <= rp_optimizer_moments(form) &&
           (!rows[row].scale || rp_moment_scales(form.moments, 0, 1) > 0);
}

guint
rp_checkpoint_n_state_tensors(RpStateFormat form)
{
    guint n = 0;

    for (guint row = 0; row < G_N_ELEMENTS(rows); row++)
        n += is_kept(form, row);
    return n;
}

RpCheckpointTensor
rp_checkpoint_state_tensor(const RpWeight *weight, RpStateFormat form, guint64 first, guint index)
{
    guint row = 0;

    for (guint n = 0; !is_kept(form, row) || n++ < index; row++)
        ;
    const RpMoments kept_as = rows[row].moment == 0 ? form.master : form.moments;
    RpCheckpointTensor tensor = {.suffix = rows[row].suffix,
                                 .type = rows[row].scale ? "F32" : types[kept_as],
                                 .member = rows[row].member,
                                 .rank = weight->rank};

    memcpy(tensor.shape, weight->shape, weight->rank * sizeof *tensor.shape);
    tensor.bytes = (gsize)weight->elements * rp_moment_bytes(kept_as);
    if (rows[row].scale) {
        tensor.rank = 1;
        tensor.shape[0] = rp_moment_scales(form.moments, first, weight->elements);
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
rp_checkpoint_state_bytes(const RpWeight *weight, RpStateFormat form, guint index)
{
    return rp_checkpoint_state_tensor(weight, form, RP_MOMENT_BLOCK - 1, index).bytes;
}
