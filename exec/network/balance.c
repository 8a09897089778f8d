/*
 * The routers' auxiliary loss, of all layers together. Its 2 E sums go with each hidden state, and
 * their gradient with the hidden state's:
 *
 *   hidden state   |x [T,C]   |counts [E]|sums [E]  |    embedding: zeros; a block adds its own
 *   gradient       |dx [T,C]  |          |d_sums [E]|    the head: of the loss; a block passes it on
 *
 * So each stage has its numbers for the loss, wherever it runs: a layer's sums are a function of
 * its input, and a recompute makes the same ones again.
 */
#include "core/base/units.h"
#include "exec/network/private.h"

/* Both parts begin at multiples of this, so that the next values do. */
#define ALIGNMENT 64

gsize
rp_balance_first_byte(const RpNetwork *network)
{
    const gsize bytes =
        network->tokens * network->model->hidden * rp_dtype_size(network->options.dtype);

    return rp_align_up(bytes, ALIGNMENT);
}

gsize
rp_balance_end_byte(const RpNetwork *network)
{
    return rp_balance_first_byte(network) +
           rp_align_up(2 * network->model->experts * sizeof(float), ALIGNMENT);
}

static gboolean
balances(const RpPass *pass)
{
    return pass->network->options.aux_loss > 0;
}

static int32_t *
counts_of(const RpPass *pass, const void *hidden)
{
    return (int32_t *)((guintptr)hidden + rp_balance_first_byte(pass->network));
}

static float *
sums_of(const RpPass *pass, const void *hidden)
{
    return (float *)counts_of(pass, hidden) + pass->network->model->experts;
}

static const int32_t *
lengths_of(const RpPass *pass)
{
    return pass->measuring ? NULL
                           : (const int32_t *)(const void *)((const guint8 *)pass->call->constants +
                                                             pass->network->constants.lengths);
}

void
rp_balance_begin(RpPass *pass, void *y)
{
    const RpFillArgs args = {
        .dtype = RP_DTYPE_FP32, .n = 2 * pass->network->model->experts, .x = counts_of(pass, y)};

    if (balances(pass))
        RUN(pass, fill, &args);
}

void
rp_balance_add(RpPass *pass, const void *logits, const int32_t *chosen)
{
    const RpNetwork *network = pass->network;
    const RpBalanceArgs args = {.dtype = network->options.dtype,
                                .tokens = network->tokens,
                                .experts = network->model->experts,
                                .choices = network->model->active_experts,
                                .sequence = network->options.tokens,
                                .lengths = lengths_of(pass),
                                .logits = logits,
                                .chosen = chosen,
                                .counts_before = counts_of(pass, pass->input),
                                .sums_before = sums_of(pass, pass->input),
                                .counts = counts_of(pass, pass->output),
                                .sums = sums_of(pass, pass->output),
                                .workspace = pass->kernel_workspace};

    if (balances(pass) && (pass->measuring || pass->output != NULL))
        RUN_IN_WORKSPACE(pass, balance_forward, &args);
}

void
rp_balance_loss(RpPass *pass, const void *x, void *dx)
{
    const RpNetwork *network = pass->network;
    RpBalanceLossArgs args = {.experts = network->model->experts,
                              .layers = network->model->blocks,
                              .sequences = network->options.sequences,
                              .lengths = lengths_of(pass),
                              .counts = counts_of(pass, x),
                              .sums = sums_of(pass, x),
                              .d_sums = sums_of(pass, dx)};

    if (!balances(pass) || dx == NULL)
        return;
    if (!pass->measuring) {
        args.scale = (float)network->options.aux_loss * pass->call->aux_scale;
        args.loss = pass->call->loss + 1;
    }
    RUN(pass, balance_loss, &args);
}

void
rp_balance_backward(const RpPass *pass, const void *dy, RpRouteArgs *route)
{
    if (!balances(pass))
        return;
    route->d_sums = sums_of(pass, dy);
    route->sequence = pass->network->options.tokens;
    route->lengths = lengths_of(pass);
}

void
rp_balance_pass_on(RpPass *pass, const void *dy, void *dx)
{
    const RpElementsArgs args = {.n = pass->network->model->experts,
                                 .x = sums_of(pass, dy),
                                 .y = sums_of(pass, dx),
                                 .x_dtype = RP_DTYPE_FP32,
                                 .y_dtype = RP_DTYPE_FP32};

    if (balances(pass) && dx != dy && !pass->lowest)
        RUN(pass, convert, &args);
}
