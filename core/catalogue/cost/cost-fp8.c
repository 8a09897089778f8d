#include "core/catalogue/cost/cost-fp8.h"

#define LOOK_BYTES 2  /* at an element of 16 bits */
#define WRITE_BYTES 3 /* read, and an fp8 value written */
#define TURN_BYTES 1  /* another one */

/* Elements of a token that linear layers read: norms' outputs, attention's, the product of the MLP.
 * Experts multiply 16-bit numbers. */
static double
inputs(const RpModel *model)
{
    const double h = model->hidden, ad = (double)model->heads * model->head_dim;

    return model->experts > 1 ? h + ad : 2 * h + ad + model->intermediate;
}

/* Elements whose gradients they read: q, k, v, the residual of each half, gate and up. */
static double
outputs(const RpModel *model)
{
    const double h = model->hidden, d = model->head_dim;
    const double attention = h + (model->heads + 2.0 * model->kv_heads) * d;

    return model->experts > 1 ? attention : attention + h + 2.0 * model->intermediate;
}

double
rp_cost_fp8_element_bytes(gboolean transposed)
{
    return WRITE_BYTES + (transposed ? TURN_BYTES : 0);
}

double
rp_cost_fp8_forward_bytes(const RpModel *model)
{
    return WRITE_BYTES * inputs(model) + LOOK_BYTES * (double)model->heads * model->head_dim;
}

double
rp_cost_fp8_backward_bytes(const RpModel *model, gboolean trained)
{
    const double d = model->head_dim, ad = model->heads * d, kd = model->kv_heads * d;
    const double transposed = rp_architectures[model->architecture].qk_norm ? 0 : ad + kd;
    const double residual = model->experts > 1 ? 0 : model->hidden;
    const double gradients = rp_cost_fp8_element_bytes(trained) * outputs(model) +
                             LOOK_BYTES * (residual + kd + transposed);

    return gradients + (trained ? WRITE_BYTES * inputs(model) + LOOK_BYTES * ad : 0);
}
