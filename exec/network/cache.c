/*
 * Attention of a block, to the keys of its own call, or to those that calls before have left:
 *
 *   the beginning   q, k, v [B,S]      k, v -> cache [B,cache_tokens] from 0 on; attention as ever
 *   one token more  q, k, v [B,1]      k, v -> cache at the token's place; q stands at that place
 *                                      of as many queries, the others of which nobody wants
 *
 * Cache: of each block keys, then values; of each of these sequence after sequence, [K,D] a token.
 */
#include "exec/network/block.h"

guint64
rp_network_cache_bytes(const RpNetwork *network)
{
    const RpModel *model = network->model;

    return 2 * (guint64)model->blocks * network->options.sequences * network->options.cache_tokens *
           model->kv_heads * model->head_dim * rp_dtype_size(network->options.dtype);
}

/* Row @token of a sequence, each [elements]. */
static void *
row(const RpPass *pass, const void *array, guint sequence, guint token, size_t elements)
{
    const RpNetworkOptions *options = &pass->network->options;
    const gsize index = (gsize)sequence * options->cache_tokens + token;

    return (guint8 *)array + index * elements * rp_dtype_size(options->dtype);
}

/* The same of an array [B,1]. */
static const void *
own(const RpPass *pass, const void *array, guint sequence, size_t elements)
{
    const RpNetworkOptions *options = &pass->network->options;

    return (const guint8 *)array +
           (gsize)sequence * options->tokens * elements * rp_dtype_size(options->dtype);
}

static void
fill_cache(RpPass *pass, const RpBlockShape *z, const RpAttentionArgs *args, void *keys,
           void *values)
{
    const RpNetworkOptions *options = &pass->network->options;
    const gint32 *cached = pass->call->cached;

    for (guint b = 0; b < options->sequences; b++) {
        const guint at = cached != NULL ? (guint)cached[b] : 0;

        g_assert(at + options->tokens <= options->cache_tokens);
        rp_pass_copy(pass, options->tokens * z->keys, own(pass, args->k, b, z->keys),
                     row(pass, keys, b, at, z->keys));
        rp_pass_copy(pass, options->tokens * z->keys, own(pass, args->v, b, z->keys),
                     row(pass, values, b, at, z->keys));
    }
}

/* Attention of one query of each sequence. */
static void
attend_cached(RpPass *pass, const RpBlockShape *z, RpAttentionArgs args, void *keys, void *values)
{
    const RpNetworkOptions *options = &pass->network->options;
    const size_t tokens = (size_t)options->sequences * options->cache_tokens;
    const gint32 *cached = pass->measuring ? NULL : pass->call->cached;
    const gsize before = pass->scratch.used;
    void *q = rp_pass_take(pass, &pass->scratch, tokens * z->queries);
    void *out = rp_pass_take(pass, &pass->scratch, tokens * z->queries);
    float *lse = rp_pass_take_floats(&pass->scratch, tokens * z->H);

    for (guint b = 0; b < options->sequences && cached != NULL; b++)
        rp_pass_copy(pass, z->queries, own(pass, args.q, b, z->queries),
                     row(pass, q, b, (guint)cached[b], z->queries));
    rp_pass_attention_cached(
        pass, (RpAttentionArgs){
                  .window = args.window, .q = q, .k = keys, .v = values, .out = out, .lse = lse});
    if (rp_pass_has(pass, RP_WEIGHT_SINKS))
        rp_pass_sink(pass, tokens, out, lse);
    for (guint b = 0; b < options->sequences && cached != NULL; b++)
        rp_pass_copy(pass, z->queries, row(pass, out, b, (guint)cached[b], z->queries),
                     (void *)own(pass, args.out, b, z->queries));
    pass->scratch.used = before;
}

void
rp_block_attend(RpPass *pass, const RpBlockShape *z, RpAttentionArgs args)
{
    const RpNetwork *network = pass->network;
    const gboolean has_cache = network->options.cache_tokens > 0;
    const gboolean goes_on =
        has_cache && (pass->measuring ? network->options.tokens == 1 : pass->call->cached != NULL);
    void *keys = NULL, *values = NULL;

    if (has_cache && !pass->measuring) {
        const guint64 bytes = rp_network_cache_bytes(network) / (2 * network->model->blocks);

        keys = (guint8 *)pass->call->cache + 2 * (pass->layer - 1) * bytes;
        values = (guint8 *)keys + bytes;
        fill_cache(pass, z, &args, keys, values);
    }
    if (goes_on)
        attend_cached(pass, z, args, keys, values);
    if (goes_on && !pass->measuring)
        return;
    rp_pass_attention(pass, args); /* the beginning; measured, whichever it will be */
    if (rp_pass_has(pass, RP_WEIGHT_SINKS))
        rp_pass_sink(pass, z->T, args.out, args.lse);
}
