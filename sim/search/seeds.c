/*
 * Seeds of the dispatched search: partitions whose stages take about t each, but the first N
 * forward stages a t to t, and the last N backward stages t to a t. The device that starts last has
 * waited for all stages before its own; the smaller they are, the earlier it starts. Likewise at
 * the end.
 */
#include "sim/search/searcher.h"

#include "sim/search/cut-moves.h"

#define STEP 7        /* stage times rise by 1/STEP */
#define FUSED_STEPS 4 /* layers in the fused stage, beside those that take about t */

static const double tapers[] = {1, 0.5, 0.25, 0};

/* Sums of a row of layers, in the order in which a side takes them. */
typedef struct {
    gint64 *sums;
    guint n;
} Row;

/* Stages of about @t_ns times what the taper leaves of them; @first: the smallest come first.
 * Returns: how many; @lengths: layers of each. */
static guint
pack(const Row *row, double t_ns, double taper, guint gpus, guint *lengths)
{
    guint n = 0;

    for (guint at = 0; at < row->n; n++) {
        const double share = gpus > 1 ? MIN(1.0, (double)n / (gpus - 1)) : 1.0;
        const double target = t_ns * (taper + (1 - taper) * share);
        guint end = at + 1;

        /* as near as whole layers come */
        while (end < row->n &&
               (double)(row->sums[end] + row->sums[end + 1]) / 2 - (double)row->sums[at] <= target)
            end++;
        lengths[n] = end - at;
        at = end;
    }
    return n;
}

static Row
row_of(const RpSearcher *searcher, guint k, gboolean backward)
{
    const RpProfile *profile = searcher->search->profile;
    const guint lead = rp_cut_least_first(profile) - 1;
    Row row = {.sums = g_new0(gint64, (gsize)k + 1), .n = k - lead};

    for (guint i = 0; i < row.n; i++) {
        const RpLayer *layer = &profile->layers[lead + i];

        row.sums[i + 1] =
            row.sums[i] + (backward ? layer->backward_ns + layer->recompute_ns : layer->forward_ns);
    }
    return row;
}

/* A cut with the first @k layers in forward stages: both sides are packed from layer 0 on. */
static void
lay(const RpSearcher *searcher, guint k, double t_ns, double up_taper, double down_taper,
    guint *lengths, RpCut *cut)
{
    const guint gpus = searcher->search->options.gpus;
    const guint lead = rp_cut_least_first(searcher->search->profile) - 1;
    Row row = row_of(searcher, k, FALSE);

    cut->n_forward = pack(&row, t_ns, up_taper, gpus, lengths);
    cut->up[0] = 0;
    for (guint s = 0, at = lead; s < cut->n_forward; s++)
        cut->up[s + 1] = at += lengths[s];
    g_free(row.sums);
    row = row_of(searcher, k, TRUE);
    cut->n_backward = 1 + pack(&row, t_ns, down_taper, gpus, lengths);
    cut->down[0] = searcher->search->profile->n_layers;
    cut->down[cut->n_backward] = 0;
    for (guint b = cut->n_backward - 1, at = lead; b > 0; b--)
        cut->down[b] = at += lengths[cut->n_backward - 1 - b];
    g_free(row.sums);
}

/* First layer of a fused stage of about @t_ns. */
static guint
fused_first(const RpProfile *profile, double t_ns)
{
    guint k = profile->n_layers;
    double ns = 0;

    while (k > 0) {
        const RpLayer *layer = &profile->layers[k - 1];

        ns += (double)layer->forward_ns + (double)layer->backward_ns;
        if (ns > t_ns && k < profile->n_layers)
            break;
        k--;
    }
    return k;
}

static void
try_time(RpSearcher *searcher, guint round, double t_ns, guint *lengths, RpCut *cut)
{
    const RpProfile *profile = searcher->search->profile;
    const guint least_first = rp_cut_least_first(profile);
    const guint n = profile->n_layers;

    for (guint fused = 0; fused <= FUSED_STEPS; fused++) {
        const guint k = fused == 0 ? fused_first(profile, t_ns) : n - MIN(n, fused);

        if (k < least_first)
            continue;
        for (guint up = 0; up < G_N_ELEMENTS(tapers); up++)
            for (guint down = 0; down < G_N_ELEMENTS(tapers); down++) {
                lay(searcher, k, t_ns, tapers[up], tapers[down], lengths, cut);
                rp_searcher_try(searcher, cut, round);
            }
    }
}

void
rp_searcher_seed(RpSearcher *searcher, guint round, guint64 actions)
{
    const RpProfile *profile = searcher->search->profile;
    const guint64 begin = rp_searcher_spent(searcher);
    g_autoptr(RpCut) cut = rp_cut_new(profile->n_layers);
    g_autofree guint *lengths = g_new(guint, profile->n_layers + 1);
    double least = 1, total = 1;

    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        if (layer->kind == RP_LAYER_BLOCK)
            least = MAX(least, (double)layer->forward_ns);
        total += (double)(layer->forward_ns + layer->backward_ns);
    }
    for (double t = least; t <= total; t += t / STEP) {
        if (rp_searcher_spent(searcher) - begin > actions)
            return;
        try_time(searcher, round, t, lengths, cut);
    }
}
