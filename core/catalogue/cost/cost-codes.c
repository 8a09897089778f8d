#include "core/catalogue/cost/cost-codes.h"

#define LOOK_BYTES 2  /* at an element of 16 bits */
#define WRITE_BYTES 3 /* read again, a code written */
#define TURN_BYTES 1  /* another one */

/* Elements that linear layers read: both norms' outputs, attention's, the product of the MLP. Experts
 * multiply 16-bit numbers. */
static double
inputs(const RpModel *model)
{
    const double h = model->hidden, ad = (double)model->heads * model->head_dim;

    return model->experts > 1 ? h + ad : 2 * h + ad + model->intermediate;
}

/* Elements whose gradients they read: of q, k, v, the residual of each half, gate and up. */
static double
outputs(const RpModel *model)
{
    const double h = model->hidden, d = model->head_dim;
    const double attention = h + (model->heads + 2.0 * model->kv_heads) * d;

    return model->experts > 1 ? attention : attention + h + 2.0 * model->intermediate;
}

double
rp_cost_codes_forward_bytes(const RpModel *model)
{
    return (LOOK_BYTES + WRITE_BYTES) * inputs(model);
}

double
rp_cost_codes_backward_bytes(const RpModel *model, gboolean trained)
{
    const double gradients = LOOK_BYTES + WRITE_BYTES + (trained ? TURN_BYTES : 0);

    return gradients * outputs(model) + (trained ? (LOOK_BYTES + WRITE_BYTES) * inputs(model) : 0);
}
