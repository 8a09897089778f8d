/* Costs of dispatched partitions, and the best that the search keeps; see searcher.h. */
#include "sim/search/searcher.h"

#include "core/base/units.h"
#include "sim/steady-window.h"

#define FIT_ACTIONS 40 /* what it costs to see whether a slot fits, in actions */
#define TURNS 32       /* asynchronous: slots of each device that are run at most, ... */
#define LEAST_TURNS 6  /* ... in so many iterations at least */

void
rp_finding_free(gpointer data)
{
    RpFinding *finding = data;

    rp_cut_free(finding->cut);
    g_free(finding);
}

/* ---- judging ---- */

guint64
rp_searcher_spent(const RpSearcher *searcher)
{
    return rp_recurrence_actions(searcher->recurrence) + searcher->other;
}

guint
rp_enough_rounds(guint slots, guint round, const RpPlanOptions *options)
{
    const guint64 gpus = options->gpus, twice = 2 * (guint64)slots * round;
    guint64 rounds = (((guint64)slots + round) * gpus + twice - 1) / twice;

    if (slots < gpus)
        rounds = MAX(rounds, (2 * gpus + slots - 1) / slots);
    return (guint)MIN(rounds, options->micro_batches / round);
}

/* The cost while searching. */
static RpSpan
span_of(const RpSearcher *searcher, guint slots, guint round)
{
    const RpPlanOptions *options = &searcher->search->options;
    RpSpan span = {.micro_batches = options->micro_batches, .round = round};

    if (!options->async)
        return span;
    const guint rounds = rp_enough_rounds(slots, round, options);

    span.micro_batches = rounds * round;
    span.first = span.end = MAX(LEAST_TURNS, TURNS / MAX(1, slots * rounds / options->gpus));
    return span;
}

gint64
rp_searcher_cost(RpSearcher *searcher, const RpCut *cut, guint round, gint64 most_ns)
{
    const RpPlanOptions *options = &searcher->search->options;
    const guint slots = rp_cut_slots(cut);

    if (slots < searcher->search->least_slots)
        return G_MAXINT64;
    const RpSpan span = span_of(searcher, slots, round);

    if (!options->async)
        return rp_recurrence_time_ns(searcher->recurrence, cut, &span, most_ns);
    searcher->other += slots;
    const double least_ns = (double)rp_recurrence_work_ns(searcher->recurrence, cut) *
                            options->micro_batches / options->gpus;

    if (least_ns > (double)most_ns)
        return G_MAXINT64;
    const gint64 ns = rp_recurrence_time_ns(searcher->recurrence, cut, &span, most_ns);

    /* where that had not settled yet, no less than all devices always busy */
    return (gint64)MAX(least_ns, (double)ns * options->micro_batches / span.micro_batches);
}

gint64
rp_searcher_real_cost(RpSearcher *searcher, const RpFinding *finding)
{
    const RpPlanOptions *options = &searcher->search->options;
    const guint rounds = options->micro_batches / finding->round;
    RpSpan span = {.micro_batches = options->micro_batches, .round = finding->round};

    if (!options->async)
        return finding->cost_ns;
    const RpSteadyWindow window =
        rp_steady_window(options->gpus, rp_cut_slots(finding->cut) * rounds);

    span.first = window.first;
    span.end = window.end;
    return rp_recurrence_time_ns(searcher->recurrence, finding->cut, &span, G_MAXINT64);
}

gboolean
rp_searcher_fits(RpSearcher *searcher, const RpCut *cut)
{
    const RpDispatchedSearch *search = searcher->search;

    if (search->memory_bytes == 0)
        return TRUE;
    searcher->other += (guint64)rp_cut_slots(cut) * FIT_ACTIONS;
    g_autoptr(RpPartition) partition = rp_cut_partition(cut);

    return rp_plan_dispatched_fits(search->profile, partition, &search->options,
                                   search->memory_bytes);
}

/* ---- findings ---- */

static gboolean
same_shape(const RpFinding *finding, const RpCut *cut, guint round)
{
    return finding->round == round && finding->cut->n_forward == cut->n_forward &&
           finding->cut->n_backward == cut->n_backward && finding->cut->down[1] == cut->down[1];
}

/* The finding that gives way to one of @cost_ns; NULL: none, there is room. */
static RpFinding *
find_place(const RpSearcher *searcher, const RpCut *cut, guint round)
{
    RpFinding *worst = NULL;

    for (guint i = 0; i < searcher->pool->len; i++) {
        RpFinding *finding = g_ptr_array_index(searcher->pool, i);

        if (same_shape(finding, cut, round))
            return finding;
        if (worst == NULL || finding->cost_ns > worst->cost_ns)
            worst = finding;
    }
    return searcher->pool->len < RP_POOL ? NULL : worst;
}

void
rp_searcher_keep(RpSearcher *searcher, const RpCut *cut, guint round, gint64 cost_ns)
{
    if (searcher->pool->len == RP_POOL && cost_ns >= searcher->worst_ns)
        return;
    RpFinding *finding = find_place(searcher, cut, round);
    if (finding != NULL && finding->cost_ns <= cost_ns)
        return;
    if (finding == NULL) {
        finding = g_new0(RpFinding, 1);
        finding->cut = rp_cut_new(searcher->search->profile->n_layers);
        g_ptr_array_add(searcher->pool, finding);
    }
    rp_cut_copy(finding->cut, cut);
    finding->round = round;
    finding->cost_ns = cost_ns;
    searcher->best_ns = MIN(searcher->best_ns, cost_ns);
    searcher->worst_ns = 0;
    for (guint i = 0; i < searcher->pool->len; i++)
        searcher->worst_ns =
            MAX(searcher->worst_ns, ((RpFinding *)g_ptr_array_index(searcher->pool, i))->cost_ns);
}

void
rp_searcher_try(RpSearcher *searcher, const RpCut *cut, guint round)
{
    const gint64 most_ns = searcher->pool->len == RP_POOL ? searcher->worst_ns : G_MAXINT64;
    const gint64 cost_ns = rp_searcher_cost(searcher, cut, round, most_ns);

    if (cost_ns < G_MAXINT64 && rp_searcher_fits(searcher, cut))
        rp_searcher_keep(searcher, cut, round, cost_ns);
}

/* Fewer rounds and fewer slots where the time is the same. */
static gint
compare_findings(gconstpointer a, gconstpointer b)
{
    const RpFinding *x = *(RpFinding *const *)a, *y = *(RpFinding *const *)b;

    if (x->cost_ns != y->cost_ns)
        return x->cost_ns < y->cost_ns ? -1 : 1;
    if (x->round != y->round)
        return x->round > y->round ? -1 : 1;
    if (rp_cut_slots(x->cut) != rp_cut_slots(y->cut))
        return rp_cut_slots(x->cut) < rp_cut_slots(y->cut) ? -1 : 1;
    return x->cut->n_forward != y->cut->n_forward
               ? (x->cut->n_forward < y->cut->n_forward ? -1 : 1)
               : (x->cut->down[1] > y->cut->down[1]) - (x->cut->down[1] < y->cut->down[1]);
}

/* Findings of @best that have as many backward stages and fused layers as @finding. */
static guint
count_alike(const GPtrArray *best, const RpFinding *finding)
{
    guint n = 0;

    for (guint i = 0; i < best->len; i++) {
        const RpFinding *other = g_ptr_array_index(best, i);

        n += other->round == finding->round && other->cut->n_backward == finding->cut->n_backward &&
             other->cut->down[1] == finding->cut->down[1];
    }
    return n;
}

GPtrArray *
rp_searcher_best(RpSearcher *searcher, guint n, guint alike)
{
    GPtrArray *best = g_ptr_array_new_with_free_func(rp_finding_free);

    g_ptr_array_sort(searcher->pool, compare_findings);
    for (guint i = 0; i < searcher->pool->len && best->len < n; i++) {
        const RpFinding *finding = g_ptr_array_index(searcher->pool, i);

        if (count_alike(best, finding) >= alike)
            continue;
        RpFinding *copy = g_new0(RpFinding, 1);

        copy->cut = rp_cut_new(searcher->search->profile->n_layers);
        rp_cut_copy(copy->cut, finding->cut);
        copy->round = finding->round;
        copy->cost_ns = finding->cost_ns;
        g_ptr_array_add(best, copy);
    }
    return best;
}

void
rp_searcher_trim(RpSearcher *searcher, guint keep)
{
    g_ptr_array_sort(searcher->pool, compare_findings);
    if (searcher->pool->len > keep)
        g_ptr_array_remove_range(searcher->pool, keep, searcher->pool->len - keep);
    searcher->worst_ns =
        searcher->pool->len > 0
            ? ((RpFinding *)g_ptr_array_index(searcher->pool, searcher->pool->len - 1))->cost_ns
            : 0;
}
