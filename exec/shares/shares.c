#include "exec/shares/private.h"

#include <string.h>

/* Values that are rounded at a time, by one thread. */
#define GRANULE ((gsize)16384)

static guint64
n_blocks(guint64 n)
{
    return (n + RP_SHARE_BLOCK - 1) / RP_SHARE_BLOCK;
}

RpShare
rp_share_of(guint64 n, guint rank, guint count)
{
    const guint64 each = n_blocks(n) / count, more = n_blocks(n) % count;
    const guint64 begin = rank * each + MIN(rank, more);
    const guint64 end = begin + each + (rank < more ? 1 : 0);
    const guint64 first = MIN(n, begin * RP_SHARE_BLOCK);

    return (RpShare){first, MIN(n, end * RP_SHARE_BLOCK) - first};
}

/* That server @rank has of a layer's own parameters, or of the matrix that is tied to another. */
static RpShare
share_of(const RpShares *shares, guint layer, guint rank, gboolean tied)
{
    const RpShareLayer *of = &shares->layers[layer];

    return rp_share_of(tied ? of->tied : of->own, rank, shares->count);
}

RpShare
rp_shares_own(const RpShares *shares, guint layer)
{
    return share_of(shares, layer, shares->rank, FALSE);
}

GArray *
rp_shares_cut_spans(const RpShares *shares, guint layer, const GArray *spans)
{
    GArray *cut = g_array_new(FALSE, FALSE, sizeof(RpParameterSpan));
    const RpShare share = rp_shares_own(shares, layer);
    guint64 at = 0;

    for (guint i = 0; i < spans->len; i++) {
        RpParameterSpan span = g_array_index(spans, RpParameterSpan, i);
        const guint64 first = MAX(at, share.first);
        const guint64 end = MIN(at + span.n_parameters, share.first + share.count);

        at += span.n_parameters;
        span.n_parameters = end > first ? end - first : 0;
        if (span.n_parameters > 0)
            g_array_append_val(cut, span);
    }
    return cut;
}

/* Values of a server's share, tied ones too. */
static guint64
both(const RpShares *shares, guint layer, guint rank)
{
    return share_of(shares, layer, rank, FALSE).count + share_of(shares, layer, rank, TRUE).count;
}

/* Doubles that server @rank tells at a norm. */
static gsize
told_by(const RpShares *shares, guint rank)
{
    gsize n = shares->options.n_numbers;

    for (guint l = 0; l < shares->options.n_layers; l++)
        n += n_blocks(share_of(shares, l, rank, FALSE).count);
    return n;
}

RpShares *
rp_shares_new(const RpSharesOptions *options)
{
    RpShares *shares = g_new0(RpShares, 1);
    const gsize element = rp_dtype_size(options->dtype);
    guint64 most_own = 0, most = 0;

    shares->options = *options;
    shares->rank = options->servers != NULL ? rp_servers_rank(options->servers) : 0;
    shares->count = options->servers != NULL ? rp_servers_count(options->servers) : 1;
    shares->layers = g_memdup2(options->layers, options->n_layers * sizeof *options->layers);
    if (shares->count == 1)
        return shares;
    shares->sums = g_new0(float *, options->n_layers);
    for (guint l = 0; l < options->n_layers; l++) {
        const guint64 own = both(shares, l, shares->rank);

        shares->sums[l] = own > 0 ? g_new0(float, own) : NULL;
        most_own = MAX(most_own, own);
        most = MAX(most, shares->layers[l].own + shares->layers[l].tied);
    }
    const gsize n = (gsize)shares->count * options->n_rounds;

    shares->received = g_malloc(n * most_own * element);
    if (options->gradient_dtype != options->dtype)
        shares->narrow = g_malloc(most * element);
    shares->added = g_new0(const void *, n);
    shares->sends = g_new0(RpServersBlock, 2 * n);
    shares->receives = g_new0(RpServersBlock, 2 * n);
    shares->offsets = g_new0(gsize, (gsize)shares->count + 1);
    for (guint r = 0; r < shares->count; r++)
        shares->offsets[r + 1] = shares->offsets[r] + told_by(shares, r) * sizeof(double);
    shares->blocks = g_malloc0(shares->offsets[shares->count]);
    return shares;
}

void
rp_shares_free(RpShares *shares)
{
    if (shares == NULL)
        return;
    for (guint l = 0; shares->sums != NULL && l < shares->options.n_layers; l++)
        g_free(shares->sums[l]);
    g_free(shares->sums);
    g_free(shares->layers);
    g_free(shares->received);
    g_free(shares->narrow);
    g_free(shares->added);
    g_free(shares->sends);
    g_free(shares->receives);
    g_free(shares->blocks);
    g_free(shares->offsets);
    g_free(shares);
}

/* ---- gradients ---- */

typedef struct {
    const float *from;
    guint8 *to;
    RpDtype dtype;
} Narrow;

static void
narrow_share(gsize first, gsize n, gpointer data)
{
    const Narrow *job = data;

    rp_dtype_from_float(job->dtype, job->from + first, job->to + first * rp_dtype_size(job->dtype),
                        n);
}

/* Values of the layer's gradient that belong to server @rank, of a round as it is sent. */
static void
add_sends(RpShares *shares, guint layer, const guint8 *round, guint rank, guint *n)
{
    const gsize element = rp_dtype_size(shares->options.dtype);

    for (guint tied = 0; tied < 2; tied++) {
        const RpShare share = share_of(shares, layer, rank, tied != 0);
        const guint64 first = share.first + (tied != 0 ? shares->layers[layer].own : 0);

        shares->sends[(*n)++] =
            (RpServersBlock){rank, (guint8 *)round + first * element, (gsize)share.count * element};
    }
}

/* Where round @k of server @rank arrives. */
static guint8 *
arrives_at(const RpShares *shares, guint layer, guint n_rounds, guint rank, guint k)
{
    return shares->received + ((gsize)rank * n_rounds + k) * both(shares, layer, shares->rank) *
                                  rp_dtype_size(shares->options.dtype);
}

static void
add_receives(RpShares *shares, guint layer, guint n_rounds, guint rank, guint k, guint *n)
{
    const gsize element = rp_dtype_size(shares->options.dtype);
    const gsize own = share_of(shares, layer, shares->rank, FALSE).count * element;
    const gsize tied = share_of(shares, layer, shares->rank, TRUE).count * element;
    guint8 *at = arrives_at(shares, layer, n_rounds, rank, k);

    shares->receives[(*n)++] = (RpServersBlock){rank, at, own};
    shares->receives[(*n)++] = (RpServersBlock){rank, at + own, tied};
}

/* Adds up what has arrived, and the own rounds, in the order of servers: own parameters, or tied ones. */
static void
add_up(RpShares *shares, RpOptimizer *optimizer, RpPool *pool, guint layer,
       const guint8 *const *rounds, guint n_rounds, gboolean tied)
{
    const gsize element = rp_dtype_size(shares->options.dtype);
    const RpShare share = share_of(shares, layer, shares->rank, tied);
    const guint64 own = share_of(shares, layer, shares->rank, FALSE).count;
    guint n = 0;

    if (share.count == 0)
        return;
    for (guint r = 0; r < shares->count; r++)
        for (guint k = 0; k < n_rounds; k++)
            shares->added[n++] =
                r == shares->rank
                    ? rounds[k] + (share.first + (tied ? shares->layers[layer].own : 0)) * element
                    : arrives_at(shares, layer, n_rounds, r, k) + (tied ? own * element : 0);
    rp_sums_accumulate(pool, rp_optimizer_ops(optimizer), shares->sums[layer] + (tied ? own : 0),
                       shares->added, n, shares->options.dtype, TRUE, share.count);
}

gboolean
rp_shares_reduce(RpShares *shares, RpOptimizer *optimizer, RpPool *pool, guint layer,
                 const void *const *rounds, RpServersChannel channel, GError **error)
{
    const RpShareLayer *of = &shares->layers[layer];
    const void *narrow[] = {shares->narrow};
    const guint8 *const *from = (const guint8 *const *)rounds;
    guint n_rounds = shares->options.n_rounds, n_sends = 0, n_receives = 0;

    if (shares->narrow != NULL) {
        Narrow job = {rounds[0], shares->narrow, shares->options.dtype};

        g_assert(n_rounds == 1);
        rp_pool_run(pool, 0, of->own + of->tied, GRANULE, narrow_share, &job);
        from = (const guint8 *const *)narrow;
    }
    for (guint i = 1; i < shares->count; i++) {
        const guint to = (shares->rank + i) % shares->count;
        const guint peer = (shares->rank + shares->count - i) % shares->count;

        for (guint k = 0; k < n_rounds; k++) {
            add_sends(shares, layer, from[k], to, &n_sends);
            add_receives(shares, layer, n_rounds, peer, k, &n_receives);
        }
    }
    if (!rp_servers_exchange(shares->options.servers, channel, shares->sends, n_sends,
                             shares->receives, n_receives, error))
        return FALSE;
    add_up(shares, optimizer, pool, layer, from, n_rounds, FALSE);
    add_up(shares, optimizer, pool, layer, from, n_rounds, TRUE);
    return TRUE;
}

const float *
rp_shares_sum(const RpShares *shares, guint layer, gboolean tied)
{
    return shares->sums[layer] + (tied ? rp_shares_own(shares, layer).count : 0);
}

/* ---- squares ---- */

/* The layer whose last gradients are added to those of @layer; n_layers: none. */
static guint
tied_from(const RpShares *shares, guint layer)
{
    guint l = 0;

    while (l < shares->options.n_layers &&
           (shares->layers[l].tied == 0 || shares->layers[l].tied_to != layer))
        l++;
    return l;
}

gboolean
rp_shares_gather_squares(RpShares *shares, RpOptimizer *optimizer, const double *numbers,
                         RpServersChannel channel, double *sums, double *all, GError **error)
{
    const guint n_layers = shares->options.n_layers;
    const gsize n_numbers = shares->options.n_numbers;
    double *own = shares->blocks + shares->offsets[shares->rank] / sizeof(double);

    if (n_numbers > 0)
        memcpy(own, numbers, n_numbers * sizeof *own);
    own += n_numbers;
    for (guint l = 0; l < n_layers; l++) {
        const guint64 count = rp_shares_own(shares, l).count;
        const guint from = tied_from(shares, l);
        const RpGradient gradient = {{shares->sums[l]}};
        const RpGradient added = {{from < n_layers ? rp_shares_sum(shares, from, TRUE) : NULL}};

        if (count > 0)
            rp_optimizer_block_squares(optimizer, gradient, added, RP_DTYPE_FP32, count, own);
        own += n_blocks(count);
    }
    if (!rp_servers_gather(shares->options.servers, channel, shares->blocks, shares->offsets,
                           error))
        return FALSE;
    memset(sums, 0, n_layers * sizeof *sums);
    for (guint r = 0; r < shares->count; r++) {
        const double *told = shares->blocks + shares->offsets[r] / sizeof(double);

        if (n_numbers > 0)
            memcpy(all + r * n_numbers, told, n_numbers * sizeof *all);
        told += n_numbers;
        for (guint l = 0; l < n_layers; l++)
            for (guint64 b = n_blocks(share_of(shares, l, r, FALSE).count); b > 0; b--)
                sums[l] += *told++;
    }
    return TRUE;
}

/* ---- weights ---- */

gboolean
rp_shares_gather_weights(RpShares *shares, guint layer, void *weights, RpServersChannel channel,
                         GError **error)
{
    const gsize element = rp_dtype_size(shares->options.dtype);
    g_autofree gsize *offsets = g_new(gsize, (gsize)shares->count + 1);

    for (guint r = 0; r < shares->count; r++)
        offsets[r] = (gsize)share_of(shares, layer, r, FALSE).first * element;
    offsets[shares->count] = (gsize)shares->layers[layer].own * element;
    return shares->count == 1 ||
           rp_servers_gather(shares->options.servers, channel, weights, offsets, error);
}
