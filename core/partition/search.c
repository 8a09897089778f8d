/*
 * Searches: partitions compared by their cost in a schedule, which is known only by running it.
 * This file holds their shared parts, and the search for bound partitions. A cost is far dearer
 * than a candidate, so none is computed twice.
 *
 * No candidate is dropped by a bound on its cost: a cost may be anything. All orders are
 * fixed, so the same cost gives the same result.
 */
#include "core/partition/search.h"

#define DEFAULT_CANDIDATES 400
#define REFUSALS_PER_CANDIDATE 20
#define MAX_BORDER_RUN 8

void
rp_search_init(RpSearch *search, const RpProfile *profile, const RpPartitionSearch *limits,
               RpPartitionCost cost, gpointer user_data)
{
    *search = (RpSearch){.profile = profile,
                         .limits = *limits,
                         .cost = cost,
                         .user_data = user_data,
                         .best_cost = G_MAXINT64};
    search->lead = profile->n_layers > 1 && profile->layers[0].kind == RP_LAYER_EMBEDDING;
    search->left = limits->max_candidates > 0 ? limits->max_candidates : DEFAULT_CANDIDATES;
    search->budget = search->left;
    search->known =
        g_hash_table_new_full(g_bytes_hash, g_bytes_equal, (GDestroyNotify)g_bytes_unref, g_free);
}

static GBytes *
key_of(const RpPartition *partition, guint round)
{
    guint n = 2 + partition->n_forward + partition->n_backward, at = 0;
    guint *key = g_new(guint, n);
    key[at++] = round;
    key[at++] = partition->n_forward;
    for (guint s = 0; s < partition->n_forward; s++)
        key[at++] = partition->forward[s].count;
    for (guint s = 0; s < partition->n_backward; s++)
        key[at++] = partition->backward[s].count;
    return g_bytes_new_take(key, n * sizeof *key);
}

static gboolean
fits(const RpSearch *search, const RpInterval *stages, guint n, RpPhase first, RpPhase others)
{
    for (guint s = 0; s < n && search->limits.memory_bytes > 0; s++)
        if (rp_stage_memory_bytes(search->profile, stages[s], s == 0 ? first : others) >
            search->limits.memory_bytes)
            return FALSE;
    return TRUE;
}

static gboolean
fits_memory(const RpSearch *search, const RpPartition *partition)
{
    RpPhase phase = partition->dispatched ? RP_PHASE_FORWARD : RP_PHASE_BACKWARD;
    return fits(search, partition->forward, partition->n_forward, phase, phase) &&
           fits(search, partition->backward, partition->n_backward, RP_PHASE_FUSED,
                RP_PHASE_BACKWARD);
}

gint64
rp_search_judge(RpSearch *search, const RpPartition *partition, guint round)
{
    g_autoptr(GBytes) key = key_of(partition, round);
    const gint64 *known = g_hash_table_lookup(search->known, key);
    if (known != NULL)
        return *known;
    gint64 cost = G_MAXINT64;
    if (fits_memory(search, partition)) {
        if (search->left == 0)
            return G_MAXINT64;
        cost = search->cost(partition, round, search->user_data);
        /* a candidate that cannot run is refused quickly and costs nothing, within reason */
        if (cost < G_MAXINT64 || search->refused >= REFUSALS_PER_CANDIDATE * search->budget)
            search->left--;
        else
            search->refused++;
    }
    g_hash_table_insert(search->known, g_steal_pointer(&key), g_memdup2(&cost, sizeof cost));
    if (cost < search->best_cost) {
        rp_partition_free(search->best);
        search->best = rp_partition_copy(partition);
        search->best_round = round;
        search->best_cost = cost;
    }
    return cost;
}

RpPartition *
rp_search_end(RpSearch *search, guint *best_round, GError **error)
{
    RpPartition *best = g_steal_pointer(&search->best);
    if (best == NULL) {
        g_set_error(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_IMPOSSIBLE,
                    "none of the %u partitions that were tried can run",
                    g_hash_table_size(search->known));
    } else if (best_round != NULL) {
        *best_round = search->best_round;
    }
    g_hash_table_unref(search->known);
    return best;
}

guint
rp_search_weights(const RpSearch *search, guint k, RpPhase phase, gboolean downwards,
                  gint64 *weights)
{
    guint lead = k > 1 ? search->lead : 0, n = k - lead;
    for (guint i = 0; i < n; i++)
        weights[i] = 0;
    for (guint i = 0; i < k; i++) {
        guint item = i < lead ? 0 : i - lead;
        gint64 *weight = &weights[downwards ? n - 1 - item : item];
        *weight += rp_stage_time_ns(search->profile, (RpInterval){i, 1}, phase, NULL);
        if (phase == RP_PHASE_BACKWARD) /* most layers are not the last of their stage */
            *weight += rp_layer_saving_ns(&search->profile->layers[i]);
    }
    return n;
}

/* The borders between stages in the order of slots: forward ones upwards, the lower end of the
 * fused stage, backward ones downwards. Returns: how many. */
static guint
read_borders(const RpPartition *partition, guint *borders)
{
    guint n = 0, n_forward = partition->n_forward - (partition->dispatched ? 0 : 1);
    for (guint s = 0; s < n_forward; s++)
        borders[n++] = partition->forward[s].first + partition->forward[s].count;
    for (guint s = 1; s + 1 < partition->n_backward; s++)
        borders[n++] = partition->backward[s].first;
    return n;
}

/* The partition with as many stages as @like and these @borders: the upper borders of the forward
 * stages, upwards (bound: without the last), then the lower borders of the backward stages between
 * the fused and the last one, downwards. %NULL if a stage would be empty. */
static RpPartition *
partition_between(const RpSearch *search, const RpPartition *like, const guint *borders)
{
    guint n_layers = search->profile->n_layers, n_forward = like->n_forward;
    guint least = like->dispatched ? 1 : 1 + search->lead; /* layers of the first stage */
    g_autofree RpInterval *forward = g_new(RpInterval, n_forward);
    g_autofree RpInterval *backward = g_new(RpInterval, like->n_backward);
    guint at = 0;
    for (guint s = 0; s < n_forward; s++) {
        guint end = s + 1 < n_forward || like->dispatched ? borders[s] : n_layers;
        if (end > n_layers || end < at + (s == 0 ? least : 1))
            return NULL;
        forward[s] = (RpInterval){at, end - at};
        at = end;
    }
    if (!like->dispatched)
        return rp_partition_new_bound(forward, n_forward);
    at = n_layers;
    for (guint s = 0; s < like->n_backward; s++) {
        guint first = s + 1 < like->n_backward ? borders[n_forward - 1 + s] : 0;
        if (first >= at)
            return NULL;
        backward[s] = (RpInterval){first, at - first};
        at = first;
    }
    return rp_partition_new_dispatched(forward, n_forward, backward, like->n_backward);
}

/* See rp_search_shift_best(), from @start on. Short runs first; continues from each improvement. */
static void
shift_borders(RpSearch *search, const RpPartition *start, guint round)
{
    g_autoptr(RpPartition) at = rp_partition_copy(start);
    g_autofree guint *borders = g_new(guint, 2 * (gsize)search->profile->n_layers + 2);
    guint n = read_borders(at, borders);
    gint64 cost = rp_search_judge(search, at, round);
    gboolean improved = TRUE;
    while (improved) {
        improved = FALSE;
        for (guint length = 1; length <= MIN(n, MAX_BORDER_RUN); length++) {
            for (guint i = 0; i < 2 * (n - length + 1); i++) {
                guint step = i % 2 == 0 ? 1 : G_MAXUINT; /* up, down */
                if (search->left == 0)
                    return;
                for (guint b = 0; b < length; b++)
                    borders[i / 2 + b] += step;
                g_autoptr(RpPartition) other = partition_between(search, at, borders);
                gint64 found = other != NULL ? rp_search_judge(search, other, round) : G_MAXINT64;
                if (found < cost) {
                    cost = found;
                    improved = TRUE;
                    continue;
                }
                for (guint b = 0; b < length; b++)
                    borders[i / 2 + b] -= step;
            }
        }
    }
}

void
rp_search_shift_best(RpSearch *search)
{
    if (search->best != NULL) {
        g_autoptr(RpPartition) start = rp_partition_copy(search->best);
        shift_borders(search, start, search->best_round);
    }
}

/* Number of ways to choose @k of @n, at most @most + 1. */
static guint
choose(guint n, guint k, guint most)
{
    guint64 ways = 1;
    for (guint i = 1; i <= MIN(k, n - k) && ways <= most; i++)
        ways = ways * (n - i + 1) / i;
    return (guint)MIN(ways, (guint64)most + 1);
}

/* Computes the cost of all placements of the borders, in lexicographic order. */
static void
try_all_borders(RpSearch *search, const RpPartition *like, guint round)
{
    guint n = like->n_forward - 1, n_layers = search->profile->n_layers;
    g_autofree guint *borders = g_new(guint, n + 1);
    for (guint b = 0; b < n; b++)
        borders[b] = search->lead + 1 + b;
    for (;;) {
        g_autoptr(RpPartition) partition = partition_between(search, like, borders);
        rp_search_judge(search, partition, round);
        guint b = n;
        while (b > 0 && borders[b - 1] == n_layers - 1 - (n - b))
            b--;
        if (b == 0)
            return;
        borders[b - 1]++;
        for (; b < n; b++)
            borders[b] = borders[b - 1] + 1;
    }
}

/* Even splits of forward time, backward time and both, then borders from the best of them on. */
static void
search_borders(RpSearch *search, const RpPartition *like, guint round)
{
    guint n_layers = search->profile->n_layers, n_stages = like->n_forward;
    g_autofree gint64 *forward = g_new(gint64, n_layers);
    g_autofree gint64 *weights = g_new(gint64, n_layers);
    g_autofree guint *borders = g_new(guint, n_stages + 1);
    g_autoptr(GPtrArray) seeds = g_ptr_array_new_with_free_func((GDestroyNotify)rp_partition_free);
    guint n = rp_search_weights(search, n_layers, RP_PHASE_FORWARD, FALSE, forward);
    for (guint what = 0; what < 3; what++) { /* both, backward, forward */
        rp_search_weights(search, n_layers, RP_PHASE_BACKWARD, FALSE, weights);
        for (guint i = 0; i < n && what != 1; i++)
            weights[i] = forward[i] + (what == 0 ? weights[i] : 0);
        for (RpSplitOrder order = RP_SPLIT_SMALL_FIRST; order <= RP_SPLIT_EVEN; order++) {
            rp_partition_split(weights, n, n_stages, order, borders);
            borders[0] += search->lead;
            for (guint s = 1; s < n_stages; s++)
                borders[s] += borders[s - 1];
            RpPartition *seed = partition_between(search, like, borders);
            rp_search_judge(search, seed, round);
            g_ptr_array_add(seeds, seed);
        }
    }
    rp_search_shift_best(search);
    for (guint s = 0; s < seeds->len && search->left > 0; s++)
        shift_borders(search, g_ptr_array_index(seeds, s), round);
}

RpPartition *
rp_partition_search_bound(const RpProfile *profile, guint n_stages, const RpPartitionSearch *search,
                          RpPartitionCost cost, gpointer user_data, GError **error)
{
    g_return_val_if_fail(profile != NULL && search != NULL && cost != NULL, NULL);

    g_autoptr(RpPartition) even = rp_partition_min_max(profile, n_stages, error);
    if (even == NULL)
        return NULL;
    RpSearch state;
    rp_search_init(&state, profile, search, cost, user_data);
    guint round = search->round > 0 ? search->round : search->micro_batches;
    guint n = profile->n_layers - state.lead;
    rp_search_judge(&state, even, round);
    if (choose(n - 1, n_stages - 1, state.left) <= state.left)
        try_all_borders(&state, even, round);
    else
        search_borders(&state, even, round);
    return rp_search_end(&state, NULL, error);
}
