/*
 *   gradient-down  |--layers 6, 7--|--layers 4, 5--| ...
 *   network                        |7|6|             |5|4| ... |agree|     |gather 7|gather 6| ...
 *   optimizer                                            |norm|      |step 7|step 6| ...
 */
#include "core/plan/job/exchange.h"

#include "core/base/shard.h"

#define FP32_BYTES 4

/* Trained parameters of a layer's own, and of a matrix that it is tied to. */
typedef struct {
    guint64 own, tied;
} Trained;

static Trained
trained_of(const RpPlanJob *job, guint layer)
{
    const RpLayer *of = &job->profile->layers[layer];

    return (Trained){rp_layer_own_gradient_bytes(of) / job->storage->element_bytes,
                     of->tied_gradient_bytes / job->storage->element_bytes};
}

/* Bytes that the busiest server sends or receives when @n parameters are divided: shares are whole
 * blocks, and all servers wait for the owner of the largest. */
static guint64
payload(const RpPlanJob *job, guint64 n)
{
    const guint servers = job->modes->servers;

    return rp_shard_most(n, servers) * (servers - 1) * job->storage->element_bytes;
}

/* Layers in stages of which one leaves each device, and one more: these have buffers of their own. */
static guint
layers_apart(const RpPlanJob *job)
{
    const RpPartition *partition = job->partition;
    guint most = 0;

    for (guint s = 0; s < partition->n_backward; s++) {
        guint layers = 0;

        for (guint i = s; i < MIN(partition->n_backward, s + job->shape.gpus + 1); i++)
            layers += partition->backward[i].count;
        most = MAX(most, layers);
    }
    return most;
}

guint
rp_exchange_shared_gradients(const RpPlanJob *job, guint layer)
{
    const RpPlanOptions *options = &job->options;
    const RpLayer *layers = job->profile->layers;

    if (!rp_modes_share_gradients(job->modes) || !job->partition->dispatched ||
        options->replicas > 1 || options->dispatch != RP_DISPATCH_ROTATION)
        return RP_NONE;
    const guint apart = layers_apart(job);

    if (layer < apart || layers[layer].tied_bytes > 0 || layers[layer - apart].tied_bytes > 0 ||
        layers[layer].gradient_bytes != layers[layer - apart].gradient_bytes)
        return RP_NONE;
    return layer - apart;
}

guint32
rp_exchange_lay_out_layer(const RpPlanJob *job, guint layer)
{
    const guint servers = job->modes->servers;
    const Trained trained = trained_of(job, layer);
    const guint64 most = rp_shard_most(trained.own, servers) + rp_shard_most(trained.tied, servers);

    return servers <= 1
               ? RP_NONE
               : rp_job_add_buffer(job, job->shape.gpus, RP_BUFFER_GRADIENTS, most * FP32_BYTES);
}

void
rp_exchange_lay_out(const RpPlanJob *job)
{
    const guint32 host = job->shape.gpus;
    RpPlanExchange *exchange = &rp_plan_tables(job->plan)->exchange;
    guint64 blocks = 0, largest = 0;

    if (job->modes->servers <= 1)
        return;
    for (guint l = 0; l < job->profile->n_layers; l++) {
        blocks += rp_shard_blocks(trained_of(job, l).own);
        largest = MAX(largest, job->profile->layers[l].gradient_bytes);
    }
    exchange->squares = rp_job_add_buffer(job, host, RP_BUFFER_OPTIMIZER,
                                          blocks * sizeof(double) + RP_EXCHANGE_EXTRA_BYTES);
    exchange->space = rp_job_add_buffer(job, host, RP_BUFFER_STAGING, RP_EXCHANGE_SCRATCH(largest));
}

void
rp_exchange_append_reduce(const RpPlanJob *job, guint layer, guint32 iteration)
{
    const RpPlanLayer *place = rp_plan_layer(job->plan, layer);
    const Trained trained = trained_of(job, layer);

    if (job->modes->servers <= 1 || !rp_job_is_trained(job, layer))
        return;
    /* rounds that stand apart are sent apart: R servers' of k rounds have the bits of R k rounds of one */
    rp_job_begin_layer_task(job, RP_TASK_REDUCE, layer, iteration)->bytes =
        (payload(job, trained.own) + payload(job, trained.tied)) *
        rp_modes_gradient_buffers(job->modes);
    for (guint i = 0; i < rp_modes_gradient_buffers(job->modes); i++)
        rp_builder_read(job->builder, place->gradients[i], RP_ROLE_HOST);
    rp_builder_write(job->builder, place->reduced, RP_ROLE_HOST);
    rp_builder_write(job->builder, rp_plan_exchange(job->plan).space, RP_ROLE_STAGING);
    rp_builder_end(job->builder);
}

void
rp_exchange_append_agree(const RpPlanJob *job, guint32 iteration)
{
    const RpPlanExchange exchange = rp_plan_exchange(job->plan);
    const guint servers = job->modes->servers;

    if (servers <= 1)
        return;
    rp_job_begin_layer_task(job, RP_TASK_AGREE, RP_NONE, iteration)->bytes =
        rp_plan_buffer(job->plan, exchange.squares)->bytes / servers * (servers - 1);
    rp_builder_update(job->builder, exchange.squares, RP_ROLE_HOST);
    rp_builder_update(job->builder, rp_plan_decision(job->plan, iteration), RP_ROLE_DECISION);
    rp_builder_write(job->builder, exchange.space, RP_ROLE_STAGING);
    rp_builder_end(job->builder);
}

void
rp_exchange_append_gather(const RpPlanJob *job, guint layer, guint32 weights, guint32 iteration)
{
    if (job->modes->servers <= 1 || weights == RP_NONE)
        return;
    rp_job_begin_layer_task(job, RP_TASK_GATHER, layer, iteration)->bytes =
        payload(job, trained_of(job, layer).own);
    rp_builder_update(job->builder, weights, RP_ROLE_HOST);
    rp_builder_end(job->builder);
}
