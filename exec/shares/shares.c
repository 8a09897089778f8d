#include "exec/shares/shares.h"

#include <string.h>

struct _RpShares {
    RpSharesOptions options;
    guint rank, count;
    RpShareLayer *layers;
    /* with several servers */
    float **sums;    /* [n_layers]: of the own share, and behind rp_shard_most() of the tied one */
    double *squares; /* squares of all blocks */
    gsize *first_square;   /* [n_layers + 1] */
    guint8 *received;      /* part of a layer: from each server each round */
    guint8 *narrow;        /* the part to send, where gradients are wider */
    gsize space_bytes;     /* size of each of the two */
    const void **added;    /* [count * n_rounds] */
    RpServersBlock *sends; /* [count * n_rounds] */
    RpServersBlock *receives;
    double *told;   /* numbers of all servers, then squares of their shares */
    gsize *offsets; /* [count + 1] bytes */
};

G_STATIC_ASSERT(RP_SHARD_BLOCK == RP_SUM_SQUARES_BLOCK);
G_STATIC_ASSERT(RP_SHARD_BLOCK % RP_MOMENT_BLOCK == 0);

/* Values that are rounded at a time, by one thread. */
#define GRANULE ((gsize)16384)

/* Share of server @rank in a layer's own parameters, or in the matrix that is tied to another. */
static RpShard
share_of(const RpShares *shares, guint layer, guint rank, gboolean tied)
{
    const RpShareLayer *of = &shares->layers[layer];

    return rp_shard(tied ? of->tied : of->own, shares->count, rank);
}

RpShard
rp_shares_of(const RpShares *shares, guint layer, guint rank)
{
    return share_of(shares, layer, rank, FALSE);
}

RpShard
rp_shares_own(const RpShares *shares, guint layer)
{
    return share_of(shares, layer, shares->rank, FALSE);
}

guint64
rp_shares_reduced(const RpShares *shares, guint layer)
{
    const RpShareLayer *of = &shares->layers[layer];

    return rp_shard_most(of->own, shares->count) + rp_shard_most(of->tied, shares->count);
}

/* Doubles that server @rank sends at a norm. */
static gsize
told_by(const RpShares *shares, guint rank)
{
    gsize n = shares->options.n_numbers;

    for (guint l = 0; l < shares->options.n_layers; l++)
        n += rp_shard_blocks(share_of(shares, l, rank, FALSE).n);
    return n;
}

RpShares *
rp_shares_new(const RpSharesOptions *options)
{
    RpShares *shares = g_new0(RpShares, 1);

    shares->options = *options;
    shares->rank = options->servers != NULL ? rp_servers_rank(options->servers) : 0;
    shares->count = options->servers != NULL ? rp_servers_count(options->servers) : 1;
    shares->layers = g_memdup2(options->layers, options->n_layers * sizeof *options->layers);
    if (shares->count == 1)
        return shares;
    const gsize n = (gsize)shares->count * options->n_rounds;

    shares->sums = g_new0(float *, options->n_layers);
    shares->first_square = g_new0(gsize, (gsize)options->n_layers + 1);
    for (guint l = 0; l < options->n_layers; l++)
        shares->first_square[l + 1] =
            shares->first_square[l] + rp_shard_blocks(shares->layers[l].own);
    shares->added = g_new0(const void *, n);
    shares->sends = g_new0(RpServersBlock, n);
    shares->receives = g_new0(RpServersBlock, n);
    shares->offsets = g_new0(gsize, (gsize)shares->count + 1);
    for (guint r = 0; r < shares->count; r++)
        shares->offsets[r + 1] = shares->offsets[r] + told_by(shares, r) * sizeof(double);
    shares->told = g_malloc0(shares->offsets[shares->count]);
    return shares;
}

void
rp_shares_attach(RpShares *shares, float *const *reduced, double *squares, void *space,
                 gsize space_bytes)
{
    g_return_if_fail(shares->count > 1);
    memcpy(shares->sums, reduced, shares->options.n_layers * sizeof *reduced);
    shares->squares = squares;
    shares->space_bytes = space_bytes / 2;
    shares->received = space;
    shares->narrow = shares->received + shares->space_bytes;
}

void
rp_shares_free(RpShares *shares)
{
    if (shares == NULL)
        return;
    g_free(shares->sums);
    g_free(shares->first_square);
    g_free(shares->layers);
    g_free(shares->added);
    g_free(shares->sends);
    g_free(shares->receives);
    g_free(shares->told);
    g_free(shares->offsets);
    g_free(shares);
}

GArray *
rp_shares_cut_spans(const RpShares *shares, guint layer, const GArray *spans)
{
    GArray *cut = g_array_new(FALSE, FALSE, sizeof(RpParameterSpan));
    const RpShard share = rp_shares_own(shares, layer);
    guint64 at = 0;

    for (guint i = 0; i < spans->len; i++) {
        RpParameterSpan span = g_array_index(spans, RpParameterSpan, i);
        const guint64 first = MAX(at, share.first);
        const guint64 end = MIN(at + span.n_parameters, share.first + share.n);

        at += span.n_parameters;
        span.n_parameters = end > first ? end - first : 0;
        if (span.n_parameters > 0)
            g_array_append_val(cut, span);
    }
    return cut;
}

/* ---- gradients: the same part of each share at a time, as large as the buffer ---- */

typedef struct {
    guint layer;
    gboolean tied;
    guint64 at;   /* offset in each share */
    guint64 most; /* parameters at most */
    const guint8 *const *rounds;
    guint n_rounds;
    gsize each; /* bytes of a parameter in these */
} Part;

/* The part of server @rank's share, in the layer's gradients. */
static RpShard
part_of(const RpShares *shares, const Part *part, guint rank)
{
    const RpShard share = share_of(shares, part->layer, rank, part->tied);
    const guint64 at = MIN(part->at, share.n);

    return (RpShard){share.first + at + (part->tied ? shares->layers[part->layer].own : 0),
                     MIN(part->most, share.n - at)};
}

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

/* Round @k of server @rank's share, as it is sent; of this server, too. */
static const guint8 *
outgoing(const RpShares *shares, RpPool *pool, const Part *part, guint rank, guint k)
{
    const RpShard of = part_of(shares, part, rank);
    const guint8 *from = part->rounds[k] + of.first * part->each;

    if (shares->options.gradient_dtype == shares->options.dtype)
        return from;
    Narrow job = {(const float *)(const void *)from,
                  shares->narrow + rank * part->most * rp_dtype_size(shares->options.dtype),
                  shares->options.dtype};

    rp_pool_run(pool, 0, of.n, GRANULE, narrow_share, &job);
    return job.to;
}

/* Address at which round @k of server @rank arrives. */
static guint8 *
arrives_at(const RpShares *shares, const Part *part, guint rank, guint k)
{
    return shares->received +
           ((gsize)rank * part->n_rounds + k) * part->most * rp_dtype_size(shares->options.dtype);
}

/* Sends and receives a part, and adds it up in the order of servers and rounds. */
static gboolean
reduce_part(RpShares *shares, RpOptimizer *optimizer, RpPool *pool, const Part *part,
            RpServersChannel channel, GError **error)
{
    const gsize element = rp_dtype_size(shares->options.dtype);
    const RpShard own = part_of(shares, part, shares->rank);
    float *sums = shares->sums[part->layer] + part->at +
                  (part->tied ? rp_shard_most(shares->layers[part->layer].own, shares->count) : 0);
    guint n = 0, n_added = 0;

    for (guint i = 1; i < shares->count; i++) {
        const guint to = (shares->rank + i) % shares->count;
        const guint from = (shares->rank + shares->count - i) % shares->count;

        for (guint k = 0; k < part->n_rounds; k++, n++) {
            shares->sends[n] = (RpServersBlock){to, (guint8 *)outgoing(shares, pool, part, to, k),
                                                (gsize)part_of(shares, part, to).n * element};
            shares->receives[n] =
                (RpServersBlock){from, arrives_at(shares, part, from, k), (gsize)own.n * element};
        }
    }
    if (!rp_servers_exchange(shares->options.servers, channel, shares->sends, n, shares->receives,
                             n, error))
        return FALSE;
    if (own.n == 0)
        return TRUE;
    for (guint r = 0; r < shares->count; r++)
        for (guint k = 0; k < part->n_rounds; k++)
            shares->added[n_added++] = r == shares->rank ? outgoing(shares, pool, part, r, k)
                                                         : arrives_at(shares, part, r, k);
    rp_sums_accumulate(pool, rp_optimizer_ops(optimizer), sums, shares->added, n_added,
                       shares->options.dtype, TRUE, own.n);
    return TRUE;
}

gboolean
rp_shares_reduce(RpShares *shares, RpOptimizer *optimizer, RpPool *pool, guint layer,
                 const void *const *rounds, RpServersChannel channel, GError **error)
{
    const RpShareLayer *of = &shares->layers[layer];
    const gsize element = rp_dtype_size(shares->options.dtype);
    Part part = {.layer = layer,
                 .rounds = (const guint8 *const *)rounds,
                 .n_rounds = shares->options.n_rounds,
                 .each = rp_dtype_size(shares->options.gradient_dtype)};

    part.most = shares->space_bytes / (element * shares->count * part.n_rounds);
    g_return_val_if_fail(part.most > 0, FALSE);
    for (guint tied = 0; tied < 2; tied++) {
        const guint64 most = rp_shard_most(tied != 0 ? of->tied : of->own, shares->count);

        part.tied = tied != 0;
        for (part.at = 0; part.at < most; part.at += part.most)
            if (!reduce_part(shares, optimizer, pool, &part, channel, error))
                return FALSE;
    }
    return TRUE;
}

const float *
rp_shares_sum(const RpShares *shares, guint layer, gboolean tied)
{
    return shares->sums[layer] +
           (tied ? rp_shard_most(shares->layers[layer].own, shares->count) : 0);
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

/* Square of the first block of server @rank's share of @layer. */
static double *
squares_of(const RpShares *shares, guint layer, guint rank)
{
    return shares->squares + shares->first_square[layer] +
           share_of(shares, layer, rank, FALSE).first / RP_SHARD_BLOCK;
}

gboolean
rp_shares_gather_sum(RpShares *shares, guint layer, guint64 first, guint64 n,
                     RpServersChannel channel, float *values, GError **error)
{
    const guint from = tied_from(shares, layer);
    const RpShard own = rp_shares_own(shares, layer);
    g_autofree gsize *offsets = g_new(gsize, (gsize)shares->count + 1);

    for (guint r = 0; r < shares->count; r++)
        offsets[r] = (CLAMP(share_of(shares, layer, r, FALSE).first, first, first + n) - first) *
                     sizeof *values;
    offsets[shares->count] = n * sizeof *values;
    for (guint64 i = MAX(first, own.first); i < MIN(first + n, own.first + own.n); i++) {
        values[i - first] = rp_shares_sum(shares, layer, FALSE)[i - own.first];
        if (from < shares->options.n_layers)
            values[i - first] += rp_shares_sum(shares, from, TRUE)[i - own.first];
    }
    return rp_servers_gather(shares->options.servers, channel, values, offsets, error);
}

void
rp_shares_square(RpShares *shares, RpOptimizer *optimizer, guint layer)
{
    const guint from = tied_from(shares, layer);
    const RpShard own = rp_shares_own(shares, layer);
    const RpGradient gradient = {{shares->sums[layer]}};
    RpGradient added = {{NULL}};

    if (own.n == 0)
        return;
    if (from < shares->options.n_layers)
        added.rounds[0] = rp_shares_sum(shares, from, TRUE);
    rp_optimizer_block_squares(optimizer, gradient, added, RP_DTYPE_FP32, own.n,
                               squares_of(shares, layer, shares->rank));
}

double
rp_shares_own_squares(const RpShares *shares, guint layer)
{
    const double *squares = squares_of(shares, layer, shares->rank);
    double sum = 0;

    for (guint64 b = 0; b < rp_shard_blocks(rp_shares_own(shares, layer).n); b++)
        sum += squares[b];
    return sum;
}

/* Copies numbers and squares of server @rank, in the order in which they are sent. @tell: into the
 * message */
static void
copy_told(RpShares *shares, guint rank, gboolean tell, double *numbers)
{
    double *told = shares->told + shares->offsets[rank] / sizeof(double);
    const gsize n_numbers = shares->options.n_numbers;

    if (n_numbers > 0)
        memcpy(tell ? told : numbers, tell ? numbers : told, n_numbers * sizeof *told);
    told += n_numbers;
    for (guint l = 0; l < shares->options.n_layers; l++) {
        const gsize n = rp_shard_blocks(share_of(shares, l, rank, FALSE).n);
        double *squares = squares_of(shares, l, rank);

        memcpy(tell ? told : squares, tell ? squares : told, n * sizeof *told);
        told += n;
    }
}

gboolean
rp_shares_agree(RpShares *shares, const double *numbers, RpServersChannel channel, double *sums,
                double *all, GError **error)
{
    copy_told(shares, shares->rank, TRUE, (double *)numbers);
    if (!rp_servers_gather(shares->options.servers, channel, shares->told, shares->offsets, error))
        return FALSE;
    for (guint r = 0; r < shares->count; r++)
        copy_told(shares, r, FALSE, all + (gsize)r * shares->options.n_numbers);
    for (guint l = 0; l < shares->options.n_layers; l++) {
        sums[l] = 0;
        for (gsize b = shares->first_square[l]; b < shares->first_square[l + 1]; b++)
            sums[l] += shares->squares[b];
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

/* The optimizer's state of a whole layer, cut into shares. */

/* Scales after those of @n parameters, which are whole blocks. */
static const float *
beyond_scales(const float *scales, RpStateFormat form, guint64 n)
{
    return scales != NULL ? scales + rp_moment_scales(form.moments, 0, n) : NULL;
}

static const void *
beyond(const void *values, RpMoments kept_as, guint64 n)
{
    return values != NULL ? (const guint8 *)values + n * rp_moment_bytes(kept_as) : NULL;
}

RpOptimizerState
rp_shares_cut(const RpShares *shares, guint layer, const RpOptimizerState *whole)
{
    const RpShard share = rp_shares_own(shares, layer);
    const RpStateFormat form = whole->form;
    RpOptimizerState cut = *whole;

    cut.n_parameters = share.n;
    cut.weight = beyond(whole->weight, form.master, share.first);
    cut.moment1 = beyond(whole->moment1, form.moments, share.first);
    cut.moment2 = beyond(whole->moment2, form.moments, share.first);
    cut.scale1 = beyond_scales(whole->scale1, form, share.first);
    cut.scale2 = beyond_scales(whole->scale2, form, share.first);
    return cut;
}
