/*
 * Exact dispatched partitions by the paper's objective (§4.4).
 *
 * Let S(t) be the least number of stages (forward + backward, the fused one counted
 * once) with no stage longer than t nor larger than the memory limit.
 *
 *   1. Greedy reaches S(t). A stage is feasible if its time is <= t and its memory <= the limit;
 * both grow with the stage, so every part of a feasible stage is feasible (times are >= 0, memory
 * is monotone; a backward stage saves a part of its last recompute, and one that is cut shorter at
 * its end loses more than it saved). Hence for a given end of the forward part, filling each
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
#include "core/partition/private.h"

#include "core/base/quote.h"

#define SAMPLES 24 /* t tried before the sweep: a good first best makes its jumps long */

typedef struct {
    const RpProfile *profile;
    guint n;
    guint64 memory_bytes;
    gint64 *forward; /* n + 1 prefix sums of the stage times of each phase */
    gint64 *backward;
    gint64 *fused;
    gint64 *saving;        /* n + 1: how much less than its sum a backward stage of [.., i) takes */
    guint *forward_end;    /* how far a forward stage from i may reach, by memory; i = not at all */
    guint *backward_first; /* how far down a backward stage of [.., i) may reach, by memory */
    guint fused_first;     /* how far down the fused stage may reach, by memory */
} Table;

typedef struct {
    guint stages;
    gint64 longest_ns;
} Packing;

/* The result of greedy packing, stage by stage. */
typedef struct {
    GArray *forward;
    GArray *backward;
} Stages;

gint64 *
rp_partition_prefix_sums(const RpProfile *profile, RpPhase phase)
{
    gint64 *sums = g_new(gint64, profile->n_layers + 1);
    sums[0] = 0;
    for (guint i = 0; i < profile->n_layers; i++) {
        sums[i + 1] = sums[i] + rp_stage_time_ns(profile, (RpInterval){i, 1}, phase, NULL);
        if (phase == RP_PHASE_BACKWARD)
            sums[i + 1] += rp_layer_saving_ns(&profile->layers[i]);
    }
    return sums;
}

gint64 *
rp_partition_savings(const RpProfile *profile)
{
    gint64 *saving = g_new(gint64, profile->n_layers + 1);
    saving[0] = 0;
    for (guint i = 0; i < profile->n_layers; i++)
        saving[i + 1] = rp_layer_saving_ns(&profile->layers[i]);
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
        if (first == 0 && fits(table, 0, table->n, RP_PHASE_FORWARD))
            end = table->n;
        while (end < table->n && fits(table, first, end + 1, RP_PHASE_FORWARD))
            end++;
        table->forward_end[first] = end;
    }
    guint first = table->n;
    for (end = table->n; end > 0; end--) {
        first = MIN(first, end);
        if (end == table->n && fits(table, 0, end, RP_PHASE_BACKWARD))
            first = 0;
        while (first > 0 && fits(table, first - 1, end, RP_PHASE_BACKWARD))
            first--;
        table->backward_first[end] = first;
    }
    guint low = 0, high = table->n; /* [high, n) fits, an empty stage does */
    while (low < high) {
        guint middle = low + (high - low) / 2;
        if (fits(table, middle, table->n, RP_PHASE_FUSED))
            high = middle;
        else
            low = middle + 1;
    }
    table->fused_first = high;
}

static void
table_init(Table *table, const RpProfile *profile, guint64 memory_bytes)
{
    table->profile = profile;
    table->n = profile->n_layers;
    table->memory_bytes = memory_bytes;
    table->forward = rp_partition_prefix_sums(profile, RP_PHASE_FORWARD);
    table->backward = rp_partition_prefix_sums(profile, RP_PHASE_BACKWARD);
    table->fused = rp_partition_prefix_sums(profile, RP_PHASE_FUSED);
    table->saving = rp_partition_savings(profile);
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
    for (; step > 0; step /= 2)
        if (step <= limit - end && sums[end + step] - sums[first] <= t)
            end += step;
    return end;
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
    const Packing impossible = {RP_NEVER, G_MAXINT64};
    guint fused_first = rp_partition_reach_down(table->fused, table->n, table->fused_first, t);
    if (fused_first == table->n)
        return impossible;
    Packing packing = {1, table->fused[table->n] - table->fused[fused_first]};
    if (stages != NULL)
        keep_stage(stages->backward, fused_first, table->n);
    for (guint first = 0, end; first < fused_first; first = end) {
        end = reach_up(table->forward, first, MIN(table->forward_end[first], fused_first), t);
        if (end == first)
            return impossible;
        packing.stages++;
        packing.longest_ns = MAX(packing.longest_ns, table->forward[end] - table->forward[first]);
        if (stages != NULL)
            keep_stage(stages->forward, first, end);
    }
    for (guint end = fused_first, first; end > 0; end = first) {
        const gint64 saving = table->saving[end];
        first =
            rp_partition_reach_down(table->backward, end, table->backward_first[end], t + saving);
        if (first == end)
            return impossible;
        packing.stages++;
        packing.longest_ns =
            MAX(packing.longest_ns, table->backward[end] - table->backward[first] - saving);
        if (stages != NULL)
            keep_stage(stages->backward, first, end);
    }
    return packing;
}

typedef struct {
    const Table *table;
    guint64 gpus;
    guint64 micro_batches;
    gint64 least_ns; /* no partition has a shorter longest stage */
    Packing best;
    RpWide best_value;
} Sweep;

static RpWide
weight(const Sweep *sweep, guint stages)
{
    return (RpWide)sweep->micro_batches * stages + (RpWide)sweep->gpus * (sweep->gpus - 1);
}

/* Whether @packing is the new best: least value, then fewest stages. */
static gboolean
consider(Sweep *sweep, Packing packing)
{
    if (packing.stages == RP_NEVER)
        return FALSE;
    RpWide value = weight(sweep, packing.stages) * (RpWide)packing.longest_ns;
    if (value > sweep->best_value ||
        (value == sweep->best_value && packing.stages >= sweep->best.stages))
        return FALSE;
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
    RpWide target = sweep->best_value;
    if (stages >= sweep->best.stages) { /* a tie is not enough */
        if (target == 0)
            return -1;
        target -= 1;
    }
    RpWide t = target / weight(sweep, stages);
    return t > (RpWide)G_MAXINT64 ? G_MAXINT64 : (gint64)t;
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
    sweep->best = (Packing){RP_NEVER, G_MAXINT64};
    sweep->best_value = ~(RpWide)0;

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
        if (packing.stages == RP_NEVER)
            break;
        if (consider(sweep, packing))
            tighten(sweep);
        t = improving_ns(sweep, packing.stages);
    }
}

/* Names a layer that no partition can hold. */
static gboolean
check_memory(const Table *table, GError **error)
{
    for (guint i = 0; i < table->n; i++) {
        RpPhase phase = RP_PHASE_FUSED;
        if (i >= table->fused_first)
            continue;
        else if (table->backward_first[i + 1] == i + 1)
            phase = RP_PHASE_BACKWARD;
        else if (table->forward_end[i] == i)
            phase = RP_PHASE_FORWARD;
        else if (i + 1 < table->n)
            continue;
        const char *name = table->profile->layers[i].name;
        const char *doing = phase == RP_PHASE_FUSED      ? "forward and backward"
                            : phase == RP_PHASE_BACKWARD ? "backward"
                                                         : "forward";
        guint64 bytes = rp_stage_memory_bytes(table->profile, (RpInterval){i, 1}, phase);
        return rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY,
                       "layer %u (%s) alone needs %" G_GUINT64_FORMAT
                       " bytes of device memory to run %s, the limit is %" G_GUINT64_FORMAT
                       " bytes",
                       i, name != NULL ? name : "unnamed", bytes, doing, table->memory_bytes);
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
