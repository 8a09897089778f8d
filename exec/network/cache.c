/*
 * The cache of generating: where the parts of a block stand in it, and kernels that read and write it (RpCacheCall).
 *
 *   block    of attention   |keys of all blocks|values|      of DeltaNet   |inputs of the convolution, a slot each|states|
 *   cache    |block 0|block 1|block 2| ...
 */
#include <math.h>

#include "core/base/units.h"
#include "exec/network/private.h"

/* Bytes of a part of a block's cache, @part 0 or 1. */
static guint64
part_bytes(const RpNetwork *network, guint block, guint blocks, guint slots, guint part)
{
    const RpModel *model = network->model;
    const guint64 element = rp_dtype_size(network->options.dtype);
    guint64 bytes;

    if (!rp_model_block_is_delta(model, block))
        bytes = (guint64)blocks * RP_CACHE_BLOCK * model->kv_heads * model->head_dim * element;
    else if (part == 0)
        bytes =
            (guint64)slots * (model->delta_kernel - 1) * rp_model_delta_columns(model) * element;
    else
        bytes = (guint64)slots * model->delta_value_heads * model->delta_key_dim *
                model->delta_value_dim * sizeof(float);
    return rp_align_up(bytes, RP_NETWORK_ALIGNMENT);
}

/* Bytes of the blocks before @block. */
static guint64
bytes_before(const RpNetwork *network, guint block, guint blocks, guint slots)
{
    guint64 bytes = 0;

    for (guint i = 0; i < block; i++)
        for (guint part = 0; part < 2; part++)
            bytes += part_bytes(network, i, blocks, slots, part);
    return bytes;
}

guint64
rp_network_cache_bytes(const RpNetwork *network, guint blocks, guint slots)
{
    g_return_val_if_fail(network != NULL, 0);
    return bytes_before(network, network->model->blocks, blocks, slots);
}

void *
rp_block_cache(const RpPass *pass, guint part)
{
    const guint block = pass->layer - 1;
    guint64 before;

    if (pass->measuring)
        return NULL;
    const RpCacheCall *cache = pass->call->cache;

    before = bytes_before(pass->network, block, cache->n_blocks, cache->n_slots);
    if (part == 1)
        before += part_bytes(pass->network, block, cache->n_blocks, cache->n_slots, 0);
    return (guint8 *)cache->memory + before;
}

void
rp_pass_attention_cached(RpPass *pass, RpCachedAttentionArgs args)
{
    const RpNetworkOptions *options = &pass->network->options;
    const RpModel *model = pass->network->model;

    args.dtype = options->dtype;
    args.queries = options->sequences;
    args.heads = model->heads;
    args.kv_heads = model->kv_heads;
    args.head_size = model->head_dim;
    args.scale = 1.0f / sqrtf((float)model->head_dim);
    args.longest = options->cache_tokens;
    args.workspace = pass->kernel_workspace;
    if (!pass->measuring) {
        const RpCacheCall *cache = pass->call->cache;

        args.longest = cache->longest;
        args.most_blocks = cache->most_blocks;
        args.positions = cache->positions;
        args.tables = cache->tables;
    }
    RUN_IN_WORKSPACE(pass, attention_cached, &args);
}

void
rp_pass_cache_rows(RpPass *pass, RpCacheRowsArgs args)
{
    if (pass->measuring)
        return;
    args.dtype = pass->network->options.dtype;
    args.n = pass->call->cache->n_rows;
    args.tokens = pass->call->cache->tokens;
    args.rows = pass->call->cache->rows;
    RUN(pass, cache_rows, &args);
}

void
rp_pass_conv_step(RpPass *pass, const void *x, void *y, void *states)
{
    const RpModel *model = pass->network->model;

    if (pass->measuring)
        return;
    const RpCacheCall *cache = pass->call->cache;
    const RpConvStepArgs args = {.dtype = pass->network->options.dtype,
                                 .ranges = cache->n_ranges,
                                 .n = rp_model_delta_columns(model),
                                 .kernel = model->delta_kernel,
                                 .begins = pass->network->options.tokens > 1,
                                 .firsts = cache->firsts,
                                 .ends = cache->ends,
                                 .slots = cache->slots,
                                 .x = x,
                                 .weight = rp_pass_weight(pass, RP_WEIGHT_DELTA_CONV),
                                 .y = y,
                                 .states = states};

    RUN(pass, conv_step, &args);
}

void
rp_pass_delta_step(RpPass *pass, RpDeltaStepArgs args)
{
    const RpModel *model = pass->network->model;

    if (pass->measuring)
        return;
    const RpCacheCall *cache = pass->call->cache;

    args.dtype = pass->network->options.dtype;
    args.ranges = cache->n_ranges;
    args.key_heads = model->delta_key_heads;
    args.value_heads = model->delta_value_heads;
    args.key_dim = model->delta_key_dim;
    args.value_dim = model->delta_value_dim;
    args.begins = pass->network->options.tokens > 1;
    args.firsts = cache->firsts;
    args.ends = cache->ends;
    args.slots = cache->slots;
    args.log = rp_pass_weight(pass, RP_WEIGHT_DELTA_LOG);
    args.bias = rp_pass_weight(pass, RP_WEIGHT_DELTA_BIAS);
    RUN(pass, delta_step, &args);
}
