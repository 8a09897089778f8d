#include "core/catalogue/cost/cost-saved.h"

#include <math.h>

#define BYTES_16BIT 2
#define BYTES_FP32 4

void
rp_cost_saved(const RpModel *model, const RpCostSaved *cost, RpLayer *layer)
{
    const double h = model->hidden;
    const double ad = (double)model->heads * model->head_dim;
    const double kd = (double)model->kv_heads * model->head_dim;
    const double m = model->experts > 1 ? 0 : model->intermediate;
    /* each for one token */
    const struct {
        double bytes;
        double weights; /* elements in the matmuls that make them */
        double traffic; /* element-wise bytes before these */
    } groups[RP_N_SAVED_GROUPS] = {
        [RP_SAVED_ATTENTION] = {BYTES_16BIT * ad + BYTES_FP32 * model->heads, 0,
                                cost->heads_bytes * (ad + kd)},
        [RP_SAVED_QKV] = {BYTES_16BIT * (ad + 2 * kd), h * (ad + 2 * kd), cost->norm_bytes * h},
        [RP_SAVED_RESIDUAL] = {BYTES_16BIT * h, h * ad, RP_COST_RESIDUAL_BYTES * h},
        [RP_SAVED_MLP] = {BYTES_16BIT * 2 * m, 2 * h * m, m > 0 ? cost->norm_bytes * h : 0},
    };

    for (guint g = 0; g < RP_N_SAVED_GROUPS; g++) {
        const double made_ns =
            2 * groups[g].weights * cost->flop_ns + groups[g].traffic * cost->byte_ns;

        layer->saved[g].bytes = (guint64)(groups[g].bytes * cost->tokens);
        layer->saved[g].recompute_ns =
            llround(cost->tokens * made_ns + (g == RP_SAVED_ATTENTION ? cost->attention_ns : 0));
    }
    if (cost->tiles && m > 0 && cost->tokens > RP_MLP_MOST_ROWS) {
        RpSavedTensors *mlp = &layer->saved[RP_SAVED_MLP];

        layer->backward_ns += mlp->recompute_ns;
        layer->recompute_last_ns = MAX(1, layer->recompute_last_ns - mlp->recompute_ns);
        *mlp = (RpSavedTensors){0};
    }
}
