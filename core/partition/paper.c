/*
 * Exact partitions: the paper's objective for dispatched ones (§4.4), min-max for bound ones.
 *
 * Dispatched. Let S(t) be the least number of stages (forward + backward, the fused one counted
 * once) with no stage longer than t nor larger than the memory limit.
 *
 *   1. Greedy reaches S(t). A stage is feasible if its time is <= t and its memory <= the limit;
 * both grow with the stage, so every part of a feasible stage is feasible (times are >= 0, memory
 * is monotone; a backward stage saves a part of its last recompute, and one that is cut shorter at
 * its end loses more than what it saved). Hence for a given end of the forward part, filling each
 * stage as far as it goes gives the least number of stages: by induction, the greedy's i-th border
 * is never behind the i-th border of any other packing. The same downwards for the backward stages.
 *   2. Filling the fused stage first is optimal. With a fused stage of [k, L), the rest are a cover
 *      of [0, k) by forward stages and one by backward stages. Cutting a cover of [0, k + 1) back
 * to [0, k) shortens or drops one stage and keeps the others, so the least numbers F(k) and B(k) do
 * not grow when k falls (also where they are infinite, that is, where one layer alone is too long
 * or too large). Feasible k are upward closed by 1, so the least feasible k minimises F(k) + B(k).
 *   3. The optimum is greedy at some t: an optimal partition with longest stage t* has S >= S(t*)
 *      stages, and greedy at t* has S(t*) stages, none longer than t*.
 *   4. So all that is left is to minimise c(S(t)) t, c(S) = M S + N (N - 1), over t. S(t) is a
 *      step function that never rises. The sweep goes down from the largest t. At t with s = S(t),
 *      every t' <= t needs at least s stages, so c(S(t')) t' < best implies t' < best / c(s): t
 *      jumps there. Either S grows at that point, or c(s) t' improves on best and the sweep bisects
 *      for the least t with s stages. No t that is skipped can be better, so the result is exact.
 *      There are at most 2 L jumps, each O(S log L), instead of O(L^2) t of O(L).
 */
#include "core/partition/partition.h"

#define NEVER G_MAXUINT /* a number of stages: no number is enough */
#define SAMPLES 24      /* t tried before the sweep: a good first best makes its jumps long */

__extension__ typedef unsigned __int128 Wide;

typedef struct {
    const RpProfile *profile;
    guint n;
    guint64 memory_bytes;
    gint64 *forward; /* n + 1 prefix sums of the stage times of each phase */
    gint64 *backward;
    gint64 *fused;
    gint64 *saving;        /* n + 1: what a backward stage of [.., i) takes less than its sum */
    guint *forward_end;    /* how far a forward stage from i may reach, by memory; i = not at all */
    guint *backward_first; /* how far down a backward stage of [.., i) may reach, by memory */
    guint fused_first;     /* how far down the fused stage may reach, by memory */
} Table;

typedef struct {
    guint stages;
    gint64 longest_ns;
} Packing;

/* What greedy packing yields, stage by stage. */
typedef struct {
    GArray *forward;
    GArray *backward;
} Stages;

/* No sum wraps: a timing file's layers take at most 1e9 ms (1e15 ns) together, and none saves more
 * than its recompute. */
static gint64 *
prefix_sums(const RpProfile *profile, RpPhase phase)
{
    gint64 *sums = g_new(gint64, profile->n_layers + 1);
    sums[0] = 0;
    for (guint i = 0; i < profile->n_layers; i++) {
        sums[i + 1] = sums[i] + rp_stage_time_ns(profile, (RpInterval){i, 1}, phase, NULL);
        if (phase == RP_PHASE_BACKWARD) {
            sums[i + 1] += rp_layer_saving_ns(&profile->layers[i]);
        }
    }
    return sums;
}

static gint64 *
savings(const RpProfile *profile)
{
    gint64 *saving = g_new(gint64, profile->n_layers + 1);
    saving[0] = 0;
    for (guint i = 0; i < profile->n_layers; i++) {
        saving[i + 1] = rp_layer_saving_ns(&profile->layers[i]);
    }
    return saving;
}

static gboolean
fits(const Table *table, guint first, guint end, RpPhase phase)
{
    return table->memory_bytes == 0 ||
           rp_stage_memory_bytes(table->profile, (RpInterval){first, end - first}, phase) <=
               table->memory_bytes;
}

/* Two fingers: neither end ever moves back, because memory is monotone. */
static void
reach_by_memory(Table *table)
{
    guint end = 0;
    for (guint first = 0; first < table->n; first++) {
        end = MAX(end, first);
        if (first == 0 && fits(table, 0, table->n, RP_PHASE_FORWARD)) {
            end = table->n;
        }
        while (end < table->n && fits(table, first, end + 1, RP_PHASE_FORWARD)) {
            end++;
        }
        table->forward_end[first] = end;
    }
    guint first = table->n;
    for (end = table->n; end > 0; end--) {
        first = MIN(first, end);
        if (end == table->n && fits(table, 0, end, RP_PHASE_BACKWARD)) {
            first = 0;
        }
        while (first > 0 && fits(table, first - 1, end, RP_PHASE_BACKWARD)) {
            first--;
        }
        table->backward_first[end] = first;
    }
    guint low = 0, high = table->n; /* [high, n) fits, an empty stage does */
    while (low < high) {
        guint middle = low + (high - low) / 2;
        if (fits(table, middle, table->n, RP_PHASE_FUSED)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    table->fused_first = high;
}

static void
table_init(Table *table, const RpProfile *profile, guint64 memory_bytes)
{
    table->profile = profile;
    table->n = profile->n_layers;
    table->memory_bytes = memory_bytes;
    table->forward = prefix_sums(profile, RP_PHASE_FORWARD);
    table->backward = prefix_sums(profile, RP_PHASE_BACKWARD);
    table->fused = prefix_sums(profile, RP_PHASE_FUSED);
    table->saving = savings(profile);
    table->forward_end = g_new0(guint, table->n + 1);
    table->backward_first = g_new0(guint, table->n + 1);
    reach_by_memory(table);
}

static void
table_clear(Table *table)
{
    g_free(table->forward);
    g_free(table->backward);
    g_free(table->fused);
    g_free(table->saving);
    g_free(table->forward_end);
    g_free(table->backward_first);
}

/* The largest end in [first, limit] with sums[end] - sums[first] <= t: doubling steps, then
 * halving, since stages are short. */
static guint
reach_up(const gint64 *sums, guint first, guint limit, gint64 t)
{
    guint end = first, step = 1;
    while (step <= limit - end && sums[end + step] - sums[first] <= t) {
        end += step;
        step *= 2;
    }
    for (; step > 0; step /= 2) {
        if (step <= limit - end && sums[end + step] - sums[first] <= t) {
            end += step;
        }
    }
    return end;
}

/* The least first in [limit, end] with sums[end] - sums[first] <= t. */
static guint
reach_down(const gint64 *sums, guint end, guint limit, gint64 t)
{
    guint first = end, step = 1;
    while (step <= first - limit && sums[end] - sums[first - step] <= t) {
        first -= step;
        step *= 2;
    }
    for (; step > 0; step /= 2) {
        if (step <= first - limit && sums[end] - sums[first - step] <= t) {
            first -= step;
        }
    }
    return first;
}

static void
keep_stage(GArray *stages, guint first, guint end)
{
    RpInterval stage = {first, end - first};
    g_array_append_val(stages, stage);
}

/* Greedy packing with stages of at most @t; @stages (optional) receives them. */
static Packing
pack(const Table *table, gint64 t, const Stages *stages)
{
    const Packing impossible = {NEVER, G_MAXINT64};
    guint fused_first = reach_down(table->fused, table->n, table->fused_first, t);
    if (fused_first == table->n) {
        return impossible;
    }
    Packing packing = {1, table->fused[table->n] - table->fused[fused_first]};
    if (stages != NULL) {
        keep_stage(stages->backward, fused_first, table->n);
    }
    for (guint first = 0, end; first < fused_first; first = end) {
        end = reach_up(table->forward, first, MIN(table->forward_end[first], fused_first), t);
        if (end == first) {
            return impossible;
        }
        packing.stages++;
        packing.longest_ns = MAX(packing.longest_ns, table->forward[end] - table->forward[first]);
        if (stages != NULL) {
            keep_stage(stages->forward, first, end);
        }
    }
    for (guint end = fused_first, first; end > 0; end = first) {
        const gint64 saving = table->saving[end];
        first = reach_down(table->backward, end, table->backward_first[end], t + saving);
        if (first == end) {
            return impossible;
        }
        packing.stages++;
        packing.longest_ns =
            MAX(packing.longest_ns, table->backward[end] - table->backward[first] - saving);
        if (stages != NULL) {
            keep_stage(stages->backward, first, end);
        }
    }
    return packing;
}

typedef struct {
    const Table *table;
    guint64 gpus;
    guint64 micro_batches;
    gint64 least_ns; /* no partition has a shorter longest stage */
    Packing best;
    Wide best_value;
} Sweep;

static Wide
weight(const Sweep *sweep, guint stages)
{
    return (Wide)sweep->micro_batches * stages + (Wide)sweep->gpus * (sweep->gpus - 1);
}

/* Whether @packing is the new best: least value, then fewest stages. */
static gboolean
consider(Sweep *sweep, Packing packing)
{
    if (packing.stages == NEVER) {
        return FALSE;
    }
    Wide value = weight(sweep, packing.stages) * (Wide)packing.longest_ns;
    if (value > sweep->best_value ||
        (value == sweep->best_value && packing.stages >= sweep->best.stages)) {
        return FALSE;
    }
    sweep->best = packing;
    sweep->best_value = value;
    return TRUE;
}

/* The least t that needs no more stages than the best packing. */
static void
tighten(Sweep *sweep)
{
    gint64 low = sweep->least_ns, high = sweep->best.longest_ns;
    guint stages = sweep->best.stages;
    while (low < high) {
        gint64 middle = low + (high - low) / 2;
        Packing packing = pack(sweep->table, middle, NULL);
        if (packing.stages <= stages) {
            consider(sweep, packing);
            high = MIN(middle, packing.longest_ns);
        } else {
            low = middle + 1;
        }
    }
}

/* The largest t at which @stages or more stages can still beat the best; -1 if there is none. */
static gint64
improving_ns(const Sweep *sweep, guint stages)
{
    Wide target = sweep->best_value;
    if (stages >= sweep->best.stages) { /* a tie is not enough */
        if (target == 0) {
            return -1;
        }
        target -= 1;
    }
    Wide t = target / weight(sweep, stages);
    return t > (Wide)G_MAXINT64 ? G_MAXINT64 : (gint64)t;
}

/* A lower bound of the longest stage: each layer is in the fused stage or in two others. */
static gint64
longest_layer(const Table *table)
{
    gint64 longest = 0;
    for (guint i = 0; i < table->n; i++) {
        gint64 forward = table->forward[i + 1] - table->forward[i];
        gint64 backward = table->backward[i + 1] - table->backward[i] - table->saving[i + 1];
        gint64 fused = table->fused[i + 1] - table->fused[i];
        longest = MAX(longest, MIN(MAX(forward, backward), fused));
    }
    return longest;
}

static void
sweep_all(Sweep *sweep)
{
    const Table *table = sweep->table;
    gint64 most = MAX(table->fused[table->n], table->backward[table->n]);
    sweep->least_ns = longest_layer(table);
    sweep->best = (Packing){NEVER, G_MAXINT64};
    sweep->best_value = ~(Wide)0;

    consider(sweep, pack(table, most, NULL));
    gint64 t = sweep->least_ns;
    for (guint i = 0; i < SAMPLES && t < most; i++) {
        consider(sweep, pack(table, t, NULL));
        t += t / 8 + 1;
    }
    tighten(sweep);

    t = most;
    while (t >= sweep->least_ns) {
        Packing packing = pack(table, t, NULL);
        if (packing.stages == NEVER) {
            break;
        }
        if (consider(sweep, packing)) {
            tighten(sweep);
        }
        t = improving_ns(sweep, packing.stages);
    }
}

/* Names a layer that no partition can hold. */
static gboolean
check_memory(const Table *table, GError **error)
{
    for (guint i = 0; i < table->n; i++) {
        RpPhase phase = RP_PHASE_FUSED;
        if (i >= table->fused_first) {
            continue;
        } else if (table->backward_first[i + 1] == i + 1) {
            phase = RP_PHASE_BACKWARD;
        } else if (table->forward_end[i] == i) {
            phase = RP_PHASE_FORWARD;
        } else if (i + 1 < table->n) {
            continue;
        }
        const char *name = table->profile->layers[i].name;
        const char *doing = phase == RP_PHASE_FUSED      ? "forward and backward"
                            : phase == RP_PHASE_BACKWARD ? "backward"
                                                         : "forward";
        guint64 bytes = rp_stage_memory_bytes(table->profile, (RpInterval){i, 1}, phase);
        g_set_error(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY,
                    "layer %u (%s) alone needs %" G_GUINT64_FORMAT
                    " bytes of device memory to run %s, the limit is %" G_GUINT64_FORMAT " bytes",
                    i, name != NULL ? name : "unnamed", bytes, doing, table->memory_bytes);
        return FALSE;
    }
    return TRUE;
}

RpPartition *
rp_partition_paper(const RpProfile *profile, guint gpus, guint micro_batches, guint64 memory_bytes,
                   GError **error)
{
    g_return_val_if_fail(profile != NULL && profile->n_layers > 0, NULL);
    g_return_val_if_fail(gpus > 0 && micro_batches > 0, NULL);

    Table table = {0};
    table_init(&table, profile, memory_bytes);
    if (!check_memory(&table, error)) {
        table_clear(&table);
        return NULL;
    }
    Sweep sweep = {.table = &table, .gpus = gpus, .micro_batches = micro_batches};
    sweep_all(&sweep);

    g_autoptr(GArray) forward = g_array_new(FALSE, FALSE, sizeof(RpInterval));
    g_autoptr(GArray) backward = g_array_new(FALSE, FALSE, sizeof(RpInterval));
    pack(&table, sweep.best.longest_ns, &(Stages){forward, backward});
    table_clear(&table);
    return rp_partition_new_dispatched((RpInterval *)(void *)forward->data, forward->len,
                                       (RpInterval *)(void *)backward->data, backward->len);
}

/* A row of items in a split. */
typedef struct {
    const gint64 *sums;   /* n + 1 */
    const gint64 *saving; /* n + 1: what a run of [.., i) weighs less than its sum; or NULL */
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
        first = reach_down(row->sums, end, 0, t + saving_at(row, end));
        if (first == end) {
            return NEVER;
        }
        stages++;
    }
    return stages;
}

/* The least longest stage of [0, end) in @parts stages, given that @t is long enough. */
static gint64
least_longest(const Row *row, guint end, guint parts, gint64 t)
{
    if (count_down(row, end, t - 1) > parts) {
        return t; /* the usual case: the stage that was split off was not the only long one */
    }
    gint64 low = row->saving != NULL ? 0 : row->sums[end] / parts, high = t - 1;
    while (low < high) {
        gint64 middle = low + (high - low) / 2;
        if (count_down(row, end, middle) <= parts) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* The last stage takes what the least longest stage allows; what is left is split in the same way.
 */
static void
split_nested(const Row *row, guint n, guint parts, guint *counts)
{
    gint64 t = row->sums[n];
    for (guint end = n, left = parts; left > 0; left--) {
        t = least_longest(row, end, left, t);
        guint first = reach_down(row->sums, end, left - 1, t + saving_at(row, end));
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
        Wide border = 2 * (Wide)sums[n] * (p + 1); /* times 2 parts */
        while (end < last && (Wide)(sums[end] + sums[end + 1]) * parts <= border) {
            end++;
        }
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
    for (guint i = 0; i < n; i++) {
        sums[i + 1] = sums[i] + weights[mirrored ? n - 1 - i : i];
    }
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
    if (n_stages == 0 || n_stages > n) {
        g_set_error(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_IMPOSSIBLE,
                    "%u stages are asked for, but the model can be cut into 1 to %u", n_stages, n);
        return NULL;
    }
    g_autofree gint64 *forward = prefix_sums(profile, RP_PHASE_FORWARD);
    g_autofree gint64 *backward = prefix_sums(profile, RP_PHASE_BACKWARD);
    g_autofree gint64 *saving = savings(profile);
    g_autofree gint64 *sums = g_new(gint64, n + 1);
    sums[0] = 0;
    for (guint i = 1; i <= n; i++) {
        sums[i] = forward[i + lead] + backward[i + lead];
    }
    g_autofree guint *counts = g_new(guint, n_stages);
    split_nested(&(Row){.sums = sums, .saving = saving + lead}, n, n_stages, counts);
    counts[0] += lead;

    g_autofree RpInterval *stages = g_new(RpInterval, n_stages);
    for (guint s = 0, first = 0; s < n_stages; first += counts[s], s++) {
        stages[s] = (RpInterval){first, counts[s]};
    }
    return rp_partition_new_bound(stages, n_stages);
}
