/*
 * From coarse to fine, for every M_R that divides M:
 *
 *   1. seeds     stages of about t each, for t from the longest layer's time upwards, the first N
 *                forward and the last N backward stages tapered to a, 1 > a > 0:
 *
 *                  |a|  |   |    |     |     | fused |     |     |    |   |  |a|
 *
 *   2. short     annealing from the best seeds of every M_R
 *   3. long      annealing from the best of all
 */
#include "sim/search/dispatched.h"

#include <string.h>

#include "core/base/units.h"
#include "sim/search/cut-moves.h"
#include "sim/search/partition-bound.h"
#include "sim/search/partition-cost.h"
#include "sim/search/private.h"
#include "sim/steady-window.h"

#define ACTIONS (G_GUINT64_CONSTANT(250) * 1000 * 1000)
#define SEED 7
#define SEED_SHARE 4    /* seeds may spend 1/SEED_SHARE, ... */
#define SHORT_SHARE 2   /* ... the short annealing 1/SHORT_SHARE of what is left */
#define SHORT_RUNS 8    /* seeds of a round that are annealed, */
#define LONG_RUNS 8     /* and of all */
#define ALIKE 2         /* of these with as many backward stages and fused layers */
#define DESCENT_SHARE 8 /* of what is left, 1/DESCENT_SHARE goes to the last descents */
#define POOL 32         /* findings that are kept for the last judgement */
#define MAX_ROUNDS 16   /* sizes of rounds that are tried: half of them the smallest */
#define HOT 600         /* annealing accepts 1/HOT of a cost more at first, ... */
#define HOTTER 60       /* ... every fourth time this, ... */
#define COLD 32768      /* ... and this at last */
#define FIT_ACTIONS 40  /* what it costs to see whether a slot fits, in actions */
#define TURNS 32        /* asynchronous: slots of each device that are run at most, ... */
#define LEAST_TURNS 6   /* ... in so many iterations at least */
#define LONG_ROUND 16   /* rounds of more than LONG_ROUND N micro-batches get what others found */

static void
free_finding(gpointer data)
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

static guint
enough_rounds(guint slots, guint round, const RpPlanOptions *options)
{
    const guint64 gpus = options->gpus, twice = 2 * (guint64)slots * round;
    guint64 rounds = (((guint64)slots + round) * gpus + twice - 1) / twice;

    if (slots < gpus)
        rounds = MAX(rounds, (2 * gpus + slots - 1) / slots);
    return (guint)MIN(rounds, options->micro_batches / round);
}

/* What is looked at while searching. Asynchronous rounds follow each other without a gap, whether
 * of one iteration or of two: few of them tell the time of all (sim/advise/compute.c). */
static RpSpan
span_of(const RpSearcher *searcher, guint slots, guint round)
{
    const RpPlanOptions *options = &searcher->search->options;
    RpSpan span = {.micro_batches = options->micro_batches, .round = round};

    if (!options->async)
        return span;
    const guint rounds = enough_rounds(slots, round, options);

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

/* As the reports measure it: the whole M, until all is steady. */
static gint64
real_cost(RpSearcher *searcher, const RpFinding *finding)
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

    return rp_plan_dispatched_gpu_bytes(search->profile, partition) +
               rp_align_up(search->options.constant_bytes, RP_BUFFER_ALIGNMENT) <=
           search->memory_bytes;
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
    return searcher->pool->len < POOL ? NULL : worst;
}

/* Takes @cut, which fits, into the pool if it is good enough. */
static void
note(RpSearcher *searcher, const RpCut *cut, guint round, gint64 cost_ns)
{
    RpFinding *finding;

    if (searcher->pool->len == POOL && cost_ns >= searcher->worst_ns)
        return;
    finding = find_place(searcher, cut, round);
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
    const gint64 most_ns = searcher->pool->len == POOL ? searcher->worst_ns : G_MAXINT64;
    const gint64 cost_ns = rp_searcher_cost(searcher, cut, round, most_ns);

    if (cost_ns < G_MAXINT64 && rp_searcher_fits(searcher, cut))
        note(searcher, cut, round, cost_ns);
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

/* Whether nothing better can be found. */
static gboolean
is_solved(const RpSearcher *searcher)
{
    return searcher->best_ns <= searcher->bound_ns;
}

/* ---- annealing ---- */

/* Anneals @from for @actions, at first accepting 1/@hot more. The best is noted; so is what is
 * nearly as good on the way. */
static void
anneal(RpSearcher *searcher, const RpFinding *from, guint hot, guint64 actions)
{
    const RpProfile *profile = searcher->search->profile;
    const guint64 begin = rp_searcher_spent(searcher);
    const guint round = from->round;
    g_autoptr(RpCut) at = rp_cut_new(profile->n_layers);
    g_autoptr(RpCut) next = rp_cut_new(profile->n_layers);
    gint64 cost_ns = from->cost_ns;

    if (from->cut->n_forward == 0)
        return;
    rp_cut_copy(at, from->cut);
    while (rp_searcher_spent(searcher) - begin < actions && !is_solved(searcher)) {
        const double done = (double)(rp_searcher_spent(searcher) - begin) / (double)actions;
        const double scale = (double)from->cost_ns / (hot + (COLD - hot) * done * done * done);
        const gint64 most_ns = cost_ns + rp_random_excess(&searcher->random, (gint64)scale);

        searcher->other += rp_cut_slots(at);
        rp_cut_copy(next, at);
        if (!rp_cut_move(next, profile, &searcher->random))
            continue;
        const gint64 next_ns = rp_searcher_cost(searcher, next, round, most_ns);

        if (next_ns > most_ns || !rp_searcher_fits(searcher, next))
            continue;
        cost_ns = next_ns;
        rp_cut_copy(at, next);
        note(searcher, at, round, cost_ns);
    }
}

/* ---- the search ---- */

/* Rounds that may be tried: (element-type guint), largest first. */
static GArray *
list_rounds(const RpPlanOptions *options)
{
    GArray *rounds = g_array_new(FALSE, FALSE, sizeof(guint));
    const guint m = options->micro_batches;

    if (options->round > 0) {
        g_array_append_val(rounds, options->round);
        return rounds;
    }
    for (guint n = 1; n <= m / options->gpus; n++) {
        const guint round = m / n;

        if (m % n == 0)
            g_array_append_val(rounds, round);
    }
    if (rounds->len == 0) /* fewer micro-batches than devices */
        g_array_append_val(rounds, m);
    if (rounds->len > MAX_ROUNDS)
        g_array_remove_range(rounds, MAX_ROUNDS / 2, rounds->len - MAX_ROUNDS);
    return rounds;
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

/* Copies of @n findings, best first, @alike of one kind at most: what is nearly as good but quite
 * different may lead further than one more of the best kind. */
static GPtrArray *
best_findings(RpSearcher *searcher, guint n, guint alike)
{
    GPtrArray *best = g_ptr_array_new_with_free_func(free_finding);

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

static void
anneal_best(RpSearcher *searcher, guint runs, guint64 actions)
{
    g_autoptr(GPtrArray) best = best_findings(searcher, runs, ALIKE);

    for (guint i = 0; i < best->len; i++)
        anneal(searcher, g_ptr_array_index(best, i), i % 4 == 3 ? HOTTER : HOT,
               actions / best->len);
}

static void
descend_best(RpSearcher *searcher, guint runs, guint64 actions)
{
    g_autoptr(GPtrArray) best = best_findings(searcher, runs, ALIKE);

    for (guint i = 0; i < best->len; i++) {
        RpFinding *finding = g_ptr_array_index(best, i);

        rp_searcher_descend(searcher, finding, actions / best->len);
        note(searcher, finding->cut, finding->round, finding->cost_ns);
    }
}

/* The best findings in every size of rounds. */
static void
try_other_rounds(RpSearcher *searcher, const GArray *rounds)
{
    g_autoptr(GPtrArray) best = best_findings(searcher, POOL, POOL);

    for (guint i = 0; i < best->len; i++)
        for (guint r = 0; r < rounds->len; r++)
            rp_searcher_try(searcher, ((RpFinding *)g_ptr_array_index(best, i))->cut,
                            g_array_index(rounds, guint, r));
}

static void
trim(RpSearcher *searcher, guint keep)
{
    g_ptr_array_sort(searcher->pool, compare_findings);
    if (searcher->pool->len > keep)
        g_ptr_array_remove_range(searcher->pool, keep, searcher->pool->len - keep);
    searcher->worst_ns =
        searcher->pool->len > 0
            ? ((RpFinding *)g_ptr_array_index(searcher->pool, searcher->pool->len - 1))->cost_ns
            : 0;
}

/* All that is tried in rounds of @round. */
static void
search_round(RpSearcher *searcher, guint round, gboolean few, guint64 actions)
{
    const RpDispatchedSearch *search = searcher->search;
    g_autoptr(RpCut) cut = rp_cut_new(search->profile->n_layers);
    /* a pool of its own, so that nothing is crowded out before it was annealed */
    g_autoptr(GPtrArray) all = g_steal_pointer(&searcher->pool);

    searcher->pool = g_ptr_array_new_with_free_func(free_finding);
    cut->down[0] = search->profile->n_layers;
    if (few)
        rp_searcher_try_all(searcher, round);
    cut->n_forward = 0; /* all layers in one stage */
    cut->n_backward = 1;
    cut->up[0] = cut->down[1] = 0;
    rp_searcher_try(searcher, cut, round);
    if (search->start != NULL) {
        rp_cut_read(cut, search->start);
        rp_searcher_try(searcher, cut, round);
    }
    if (!few) {
        rp_searcher_seed(searcher, round, actions / SEED_SHARE);
        anneal_best(searcher, SHORT_RUNS, actions / SHORT_SHARE);
    }
    g_ptr_array_extend_and_steal(all, g_steal_pointer(&searcher->pool));
    searcher->pool = g_steal_pointer(&all);
}

static void
search_all(RpSearcher *searcher, const GArray *rounds, guint64 actions)
{
    const guint longest = LONG_ROUND * searcher->search->options.gpus;
    const guint least = g_array_index(rounds, guint, rounds->len - 1);
    const gboolean few = rp_searcher_are_few(searcher->search, rounds->len);
    guint n = 0;

    for (guint r = 0; r < rounds->len; r++)
        n += g_array_index(rounds, guint, r) <= MAX(longest, least);
    for (guint r = 0; r < rounds->len; r++) {
        const guint round = g_array_index(rounds, guint, r);

        if (few || round <= MAX(longest, least))
            search_round(searcher, round, few, actions / n);
    }
    trim(searcher, POOL);
    if (few)
        return;
    try_other_rounds(searcher, rounds);
    if (rp_searcher_spent(searcher) < actions)
        anneal_best(searcher, LONG_RUNS,
                    (actions - rp_searcher_spent(searcher)) / DESCENT_SHARE * (DESCENT_SHARE - 1));
    descend_best(searcher, LONG_RUNS, actions / DESCENT_SHARE);
    try_other_rounds(searcher, rounds);
}

GPtrArray *
rp_search_dispatched(const RpDispatchedSearch *search, guint keep)
{
    g_autoptr(GArray) rounds = list_rounds(&search->options);
    RpSearcher searcher = {
        .search = search,
        .recurrence = rp_recurrence_new(search->profile, &search->options),
        .pool = g_ptr_array_new_with_free_func(free_finding),
        .random = {.state = search->seed != 0 ? search->seed : SEED},
        .best_ns = G_MAXINT64,
        .bound_ns = rp_dispatched_bound_ns(search),
    };

    search_all(&searcher, rounds, search->actions != 0 ? search->actions : ACTIONS);
    for (guint i = 0; i < searcher.pool->len; i++) {
        RpFinding *finding = g_ptr_array_index(searcher.pool, i);

        finding->cost_ns = real_cost(&searcher, finding);
    }
    trim(&searcher, keep);
    rp_recurrence_free(searcher.recurrence);
    return searcher.pool;
}
