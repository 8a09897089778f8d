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

#include "sim/search/cut-moves.h"
#include "sim/search/partition-bound.h"
#include "sim/search/searcher.h"

#define ACTIONS (G_GUINT64_CONSTANT(250) * 1000 * 1000)
#define SEED 7
#define SEED_SHARE 4    /* seeds may spend 1/SEED_SHARE, ... */
#define SHORT_SHARE 2   /* ... the short annealing 1/SHORT_SHARE of what is left */
#define SHORT_RUNS 8    /* seeds of a round that are annealed, */
#define LONG_RUNS 8     /* and of all */
#define ALIKE 2         /* of these with as many backward stages and fused layers */
#define DESCENT_SHARE 8 /* of what is left, 1/DESCENT_SHARE goes to the last descents */
#define MAX_ROUNDS 16   /* sizes of rounds that are tried: half of them the smallest */
#define HOT 600         /* annealing accepts 1/HOT of a cost more at first, ... */
#define HOTTER 60       /* ... every fourth time this, ... */
#define COLD 32768      /* ... and this at last */
#define LONG_ROUND 16   /* rounds of more than LONG_ROUND N micro-batches get what others found */

/* ---- annealing ---- */

/* Whether nothing better can be found. */
static gboolean
is_solved(const RpSearcher *searcher)
{
    return searcher->best_ns <= searcher->bound_ns;
}

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
        rp_searcher_keep(searcher, at, round, cost_ns);
    }
}

/* ---- the search ---- */

/* Rounds that are tried, largest first. */
static GArray *
list_rounds(const RpPlanOptions *options)
{
    GArray *rounds = rp_partition_rounds(options->gpus, options->micro_batches, options->round);

    if (rounds->len > MAX_ROUNDS)
        g_array_remove_range(rounds, MAX_ROUNDS / 2, rounds->len - MAX_ROUNDS);
    return rounds;
}

static void
anneal_best(RpSearcher *searcher, guint runs, guint64 actions)
{
    g_autoptr(GPtrArray) best = rp_searcher_best(searcher, runs, ALIKE);

    for (guint i = 0; i < best->len; i++)
        anneal(searcher, g_ptr_array_index(best, i), i % 4 == 3 ? HOTTER : HOT,
               actions / best->len);
}

static void
descend_best(RpSearcher *searcher, guint runs, guint64 actions)
{
    g_autoptr(GPtrArray) best = rp_searcher_best(searcher, runs, ALIKE);

    for (guint i = 0; i < best->len; i++) {
        RpFinding *finding = g_ptr_array_index(best, i);

        rp_searcher_descend(searcher, finding, actions / best->len);
        rp_searcher_keep(searcher, finding->cut, finding->round, finding->cost_ns);
    }
}

/* The best findings in every size of rounds. */
static void
try_other_rounds(RpSearcher *searcher, const GArray *rounds)
{
    g_autoptr(GPtrArray) best = rp_searcher_best(searcher, RP_POOL, RP_POOL);

    for (guint i = 0; i < best->len; i++)
        for (guint r = 0; r < rounds->len; r++)
            rp_searcher_try(searcher, ((RpFinding *)g_ptr_array_index(best, i))->cut,
                            g_array_index(rounds, guint, r));
}

/* All that is tried in rounds of @round. */
static void
search_round(RpSearcher *searcher, guint round, gboolean few, guint64 actions)
{
    const RpDispatchedSearch *search = searcher->search;
    g_autoptr(RpCut) cut = rp_cut_new(search->profile->n_layers);
    /* a pool of its own, so that nothing is crowded out before it was annealed */
    g_autoptr(GPtrArray) all = g_steal_pointer(&searcher->pool);

    searcher->pool = g_ptr_array_new_with_free_func(rp_finding_free);
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
    rp_searcher_trim(searcher, RP_POOL);
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
        .pool = g_ptr_array_new_with_free_func(rp_finding_free),
        .random = {.state = search->seed != 0 ? search->seed : SEED},
        .best_ns = G_MAXINT64,
        .bound_ns = rp_dispatched_bound_ns(search),
    };

    search_all(&searcher, rounds, search->actions != 0 ? search->actions : ACTIONS);
    for (guint i = 0; i < searcher.pool->len; i++) {
        RpFinding *finding = g_ptr_array_index(searcher.pool, i);

        finding->cost_ns = rp_searcher_real_cost(&searcher, finding);
    }
    rp_searcher_trim(&searcher, keep);
    rp_recurrence_free(searcher.recurrence);
    return searcher.pool;
}
