#include "core/catalogue/cost/cost-experts.h"

#define BYTES 2 /* an element's */

RpCostExperts
rp_cost_experts(const RpModel *model, double tokens)
{
    const double rows = tokens * model->active_experts;
    const double h = model->hidden, m = model->intermediate;

    return (RpCostExperts){
        .rows = rows,
        .flops = 6 * rows * h * m,
        .down_flops = 2 * rows * h * m,
        .weight_bytes = BYTES * 3 * h * m * model->experts,
        .row_bytes = BYTES * rows * (2 * h + 3 * m),
    };
}

double
rp_cost_experts_share(const RpModel *model, double rows)
{
    return rows / (rows + model->experts * RP_COST_TILE_ROWS / 2.0);
}

/*
 * Forward. Router: its logits written and read, choices and weights written; sorting reads and
 * writes a few numbers of each row. Gathering reads and writes a row. Combining reads k rows where a
 * dense block's residual reads one.
 */
double
rp_cost_experts_forward_bytes(const RpModel *model)
{
    const double h = model->hidden, k = model->active_experts;
    const double router = BYTES * 2.0 * model->experts + 24 * k;

    return router + BYTES * 2 * h * k + BYTES * h * (k - 1);
}

/*
 * Backward. The gradient of the output is gathered for each row, and the input again for weight
 * gradients; rows' input gradients are added up
 * for each token; the router's logits get gradients. Gradients of biases read the rows once more.
 */
double
rp_cost_experts_backward_bytes(const RpModel *model, gboolean trained)
{
    const double h = model->hidden, m = model->intermediate, k = model->active_experts;
    const double router = BYTES * 2.0 * model->experts + 24 * k;
    const double biases = model->mlp_bias && trained ? BYTES * k * (2 * m + h) : 0;
    const double gathered = BYTES * 2 * h * k * (trained ? 2 : 1);

    return router + gathered + BYTES * h * (k + 1) + biases;
}
