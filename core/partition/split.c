/*
 * Min-max partitions for bound schedules, and splits of a row of weights into parts.
 */
#include "core/base/quote.h"
#include "core/partition/private.h"

/* A row of items in a split. */
typedef struct {
    const gint64 *sums;   /* n + 1 */
    const gint64 *saving; /* n + 1: how much less than its sum a run of [.., i) weighs; or NULL */
} Row;

static gint64
saving_at(const Row *row, guint end)
{
    return row->saving != NULL ? row->saving[end] : 0;
}

/* How many stages of at most @t the items [0, end) need, packed from the back. */
static guint
count_down(const Row *row, guint end, gint64 t)
{
    guint stages = 0;
    for (guint first; end > 0; end = first) {
        first = rp_partition_reach_down(row->sums, end, 0, t + saving_at(row, end));
        if (first == end)
            return RP_NEVER;
        stages++;
    }
    return stages;
}

/* The least longest stage of [0, end) in @parts stages, given that @t is long enough. */
static gint64
least_longest(const Row *row, guint end, guint parts, gint64 t)
{
    if (count_down(row, end, t - 1) > parts)
        return t; /* the usual case: the stage that was split off was not the only long one */
    gint64 low = row->saving != NULL ? 0 : row->sums[end] / parts, high = t - 1;
    while (low < high) {
        gint64 middle = low + (high - low) / 2;
        if (count_down(row, end, middle) <= parts)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* The last stage takes as much as the least longest stage allows; the rest is split in the same
 * way. */
static void
split_nested(const Row *row, guint n, guint parts, guint *counts)
{
    gint64 t = row->sums[n];
    for (guint end = n, left = parts; left > 0; left--) {
        t = least_longest(row, end, left, t);
        guint first = rp_partition_reach_down(row->sums, end, left - 1, t + saving_at(row, end));
        counts[left - 1] = end - first;
        end = first;
    }
}

static void
split_even(const gint64 *sums, guint n, guint parts, guint *counts)
{
    guint first = 0;
    for (guint p = 0; p < parts; p++) {
        guint last = n - (parts - 1 - p), end = p + 1 < parts ? first + 1 : n;
        RpWide border = 2 * (RpWide)sums[n] * (p + 1); /* times 2 parts */
        while (end < last && (RpWide)(sums[end] + sums[end + 1]) * parts <= border)
            end++;
        counts[p] = end - first;
        first = end;
    }
}

void
rp_partition_split(const gint64 *weights, guint n, guint parts, RpSplitOrder order, guint *counts)
{
    g_return_if_fail(weights != NULL && counts != NULL && parts > 0 && parts <= n);

    gboolean mirrored = order == RP_SPLIT_LARGE_FIRST;
    g_autofree gint64 *sums = g_new(gint64, n + 1);
    sums[0] = 0;
    for (guint i = 0; i < n; i++)
        sums[i + 1] = sums[i] + weights[mirrored ? n - 1 - i : i];
    if (order == RP_SPLIT_EVEN) {
        split_even(sums, n, parts, counts);
        return;
    }
    split_nested(&(Row){.sums = sums}, n, parts, counts);
    for (guint p = 0; mirrored && p < parts / 2; p++) {
        guint count = counts[p];
        counts[p] = counts[parts - 1 - p];
        counts[parts - 1 - p] = count;
    }
}

RpPartition *
rp_partition_min_max(const RpProfile *profile, guint n_stages, GError **error)
{
    g_return_val_if_fail(profile != NULL && profile->n_layers > 0, NULL);

    /* An embedding stands with the layer behind it: a first stage without a block is useless. */
    guint lead = profile->n_layers > 1 && profile->layers[0].kind == RP_LAYER_EMBEDDING;
    guint n = profile->n_layers - lead;
    if (n_stages == 0 || n_stages > n)
        return rp_null(rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_IMPOSSIBLE,
                               "%u stages are asked for, but the model can be cut into 1 to %u",
                               n_stages, n));
    g_autofree gint64 *forward = rp_partition_prefix_sums(profile, RP_PHASE_FORWARD);
    g_autofree gint64 *backward = rp_partition_prefix_sums(profile, RP_PHASE_BACKWARD);
    g_autofree gint64 *saving = rp_partition_savings(profile);
    g_autofree gint64 *sums = g_new(gint64, n + 1);
    sums[0] = 0;
    for (guint i = 1; i <= n; i++)
        sums[i] = forward[i + lead] + backward[i + lead];
    g_autofree guint *counts = g_new(guint, n_stages);
    split_nested(&(Row){.sums = sums, .saving = saving + lead}, n, n_stages, counts);
    counts[0] += lead;

    g_autofree RpInterval *stages = g_new(RpInterval, n_stages);
    for (guint s = 0, first = 0; s < n_stages; first += counts[s], s++)
        stages[s] = (RpInterval){first, counts[s]};
    return rp_partition_new_bound(stages, n_stages);
}
