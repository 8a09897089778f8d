/*
 * Finalists: one micro-batch in rounds of several lengths, and the recommendation in several groups of
 * GPUs. What is best of all is decided at the end, once (rp_advise_best()).
 *
 * Longer rounds upload weights less often, and their stages need not be as even; but more waits on
 * the host: the inputs of two rounds.
 *
 * In groups rounds go to each in turn (docs/schedules.md#replicas): fewer GPUs in a row fill and drain
 * sooner, but each group uploads the weights for itself and the host holds a round of each.
 */
#include "sim/advise/private.h"

#include "core/profile/cards.h"

/* A run is looked at for this gain, or for less memory: for more where transfers take longer than actions, as it hardly
 * ever comes near its floor then; and no longer if it is so much slower. */
#define LEAST_GAIN 0.001
#define LEAST_GAIN_OF_TRANSFERS 0.01
#define TOO_SLOW 1.05
/* A step of fewer actions is simulated nearly as soon as its floor is known; with more finalists the longer search
 * finds better plans. */
#define FLOOR_ACTIONS 1000
/* How much slower than the fastest, and than without transfers, a plan is that waits for them. */
#define WAITS 1.1
/* Partitions simulated beside the best of each round where transfers or the optimizer may take longer; of small
 * models as many as have these actions. */
#define MIN_MORE 4
#define MAX_MORE 24
#define MORE_ACTIONS 2500
/* By how much less than one partition another one transfers in rounds of the same length: less than before any is
 * searched, and than one of those that were found. */
#define TRANSFERS_LESS 0.95
#define TRANSFERS_ALIKE 0.98

static gboolean
is_known(const RpAdviseRun *run, const GPtrArray *finalists)
{
    for (guint i = 0; i < finalists->len; i++) {
        const RpAdviseRun *other = g_ptr_array_index(finalists, i);

        if (rp_advise_is_same_choice(run, other) &&
            rp_partition_equal(run->partition, other->partition))
            return TRUE;
    }
    return FALSE;
}

static guint
count_more(const RpAdviseRun *run)
{
    const guint actions = run->options.micro_batches * rp_advise_count_stages(run->partition);

    return CLAMP(MORE_ACTIONS / actions, MIN_MORE, MAX_MORE);
}

/* Whether all partitions wait about as long as @run does: for transfers, which take as long for all, and in large models
 * for each other's stages. For the optimizer each waits in its own way. */
static gboolean
waits_as_others(const RpAdviseRun *run)
{
    return run->waits == RP_ADVISE_WAITS_UPLOADS || run->waits == RP_ADVISE_WAITS_DOWNLOADS ||
           run->waits == RP_ADVISE_WAITS_SUMS || run->waits == RP_ADVISE_WAITS_NETWORK ||
           (run->waits == RP_ADVISE_WAITS_STAGES && count_more(run) == MIN_MORE);
}

/* How much longer than without transfers @run takes, as far as is known: most of the least that finalists of the same
 * choice do, two at least. */
static double
slowdown_of(const RpAdviseRun *run, const GPtrArray *finalists)
{
    double least = G_MAXDOUBLE;
    guint n = 0;

    for (guint i = 0; i < finalists->len; i++) {
        const RpAdviseRun *other = g_ptr_array_index(finalists, i);

        if (!rp_advise_is_same_choice(other, run))
            continue;
        if (!waits_as_others(other) || other->tokens_per_s <= 0)
            return 1;
        least = MIN(least, other->bound_tokens_per_s / other->tokens_per_s);
        n++;
    }
    return n >= 2 ? 1 + MAX(0, least - 1) * RP_ADVISE_SURE : 1;
}

/* Transfers of another partition in as long rounds are those of @run, as far as is known. */
static double
expected_ns(const RpAdviseRun *run, const GPtrArray *finalists)
{
    return MAX((double)run->step_ns * slowdown_of(run, finalists),
               TRANSFERS_ALIKE * (double)run->floor_ns);
}

static gboolean
takes_less_memory(const RpAdviseRun *a, const RpAdviseRun *b)
{
    return a->host.total < b->host.total ||
           (a->host.total == b->host.total && a->gpu.total < b->gpu.total);
}

/* Whether @run may be faster than all finalists by @gain, or as fast with less memory, if it takes @least_ns or more. */
static gboolean
may_win(const RpAdviseRun *run, double least_ns, double gain, const GPtrArray *finalists)
{
    const RpAdviseRun *fastest = rp_advise_fastest(finalists);

    if (fastest == NULL || (1 + gain) * least_ns < (double)fastest->step_ns)
        return TRUE;
    return RP_ADVISE_AS_FAST * least_ns <= (double)fastest->step_ns &&
           takes_less_memory(run, rp_advise_best(finalists, 0, 0));
}

/* The share of its floor that each finalist takes more, if transfers take longer than its actions: the least. */
static double
least_excess(const GPtrArray *finalists)
{
    double least = G_MAXDOUBLE;

    for (guint i = 0; i < finalists->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(finalists, i);
        const double floor_ns = (double)run->floor_ns;

        if (run->tokens_per_s > 0 &&
            floor_ns * run->bound_tokens_per_s > (double)run->step_ns * run->tokens_per_s)
            least = MIN(least, (double)run->step_ns / floor_ns - 1);
    }
    return least < G_MAXDOUBLE ? MAX(0, least) : 0;
}

/* The same with the time of transfers, of which large models all make as little more. */
static gboolean
may_win_with_transfers(const RpAdviseRun *run, const GPtrArray *finalists)
{
    const double floor_ns = (double)run->floor_ns;
    const double excess =
        count_more(run) == MIN_MORE ? RP_ADVISE_SURE * least_excess(finalists) : 0;

    if (run->floor_ns <= run->step_ns)
        return may_win(run, floor_ns, LEAST_GAIN, finalists);
    return may_win(run, floor_ns * (1 + excess), LEAST_GAIN_OF_TRANSFERS, finalists);
}

/* Finds @run's floor. If transfers make it, those of @found in as long rounds have nearly the same. */
static void
find_floor(const RpProfile *profile, RpAdviseRun *run, GPtrArray *found)
{
    run->floor_ns = rp_advise_floor_ns(profile, run);
    for (guint i = 0; found != NULL && run->floor_ns > run->step_ns && i < found->len; i++) {
        RpAdviseRun *other = g_ptr_array_index(found, i);

        if (other->options.round == run->options.round && other->floor_ns == 0)
            other->floor_ns = run->floor_ns;
    }
}

/* rp_advise_try() of one of @found (nullable). */
static gboolean
try_one(const RpProfile *profile, RpAdviseRun *run, GPtrArray *found, GPtrArray *finalists,
        GError **error)
{
    const RpAdviseRun *fastest = rp_advise_fastest(finalists);
    const guint actions = run->options.micro_batches * rp_advise_count_stages(run->partition);
    gboolean may = !is_known(run, finalists) &&
                   may_win(run, expected_ns(run, finalists), LEAST_GAIN, finalists);

    if (may && actions > FLOOR_ACTIONS) {
        find_floor(profile, run, found);
        may = may_win_with_transfers(run, finalists);
    }
    if (!may) {
        rp_advise_run_free(run);
        return TRUE;
    }
    g_ptr_array_add(finalists, run);
    return rp_advise_simulate_shortly(
        profile, run, fastest != NULL ? (gint64)(TOO_SLOW * (double)fastest->step_ns) : 0, error);
}

gboolean
rp_advise_try(const RpProfile *profile, RpAdviseRun *run, GPtrArray *finalists, GError **error)
{
    return try_one(profile, run, NULL, finalists, error);
}

/* Moves @best of @found to @finalists, or drops it. */
static gboolean
simulate_one(const RpProfile *profile, const RpAdviseRun *best, GPtrArray *found,
             GPtrArray *finalists, GError **error)
{
    guint index;

    return best == NULL || !g_ptr_array_find(found, best, &index) ||
           try_one(profile, g_ptr_array_steal_index_fast(found, index), found, finalists, error);
}

/* Whether transfers alone take longer than the fastest finalist: those of all partitions in as long rounds are
 * alike. */
static gboolean
transfers_too_much(const RpProfile *profile, const RpAdviseRun *run, const GPtrArray *finalists)
{
    const RpAdviseRun *fastest = rp_advise_fastest(finalists);

    return fastest != NULL &&
           TRANSFERS_LESS * (double)rp_advise_transfers_ns(profile, run) > (double)fastest->step_ns;
}

/* Adds @run's partitions to @found. @waits: (out): for transfers, so that none can win and @run's step is shortened
 * without a search. Returns: whether any fits */
static gboolean
add_round(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
          guint max_candidates, GPtrArray *found, const GPtrArray *finalists, gboolean *waits)
{
    g_autoptr(RpAdviseRun) other = rp_advise_run_copy(run);

    if (!rp_advise_fits(query, profile, other) && !rp_advise_fit(query, profile, other))
        return FALSE;
    *waits = transfers_too_much(profile, other, finalists);
    if (*waits) {
        const RpAdviseJudge judge = {query, profile, &other->options};

        run->step_ns = MIN(run->step_ns, rp_advise_compute_ns(&judge, other->partition));
        return FALSE;
    }
    g_ptr_array_extend_and_steal(found,
                                 rp_advise_partitions(query, profile, other, max_candidates));
    return found->len > 0;
}

/* Whether a partition in @run's round may be as fast as the fastest. If not, shortens @run's step to the bound. */
static gboolean
may_be_as_fast(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
               const GPtrArray *finalists)
{
    const RpAdviseRun *fastest = rp_advise_fastest(finalists);
    RpAdviseQuery one_round = *query;

    one_round.round = run->options.round;
    const gint64 bound_ns = rp_advise_bound_ns(&one_round, profile, run);

    if (fastest == NULL || bound_ns == 0 ||
        RP_ADVISE_AS_FAST * (double)bound_ns * slowdown_of(run, finalists) <=
            (double)fastest->step_ns)
        return TRUE;
    run->step_ns = MIN(run->step_ns, bound_ns);
    return FALSE;
}

/* Simulates the best and the fastest partition in @run's round, and leaves the others to be compared with those of
 * all rounds: rounds differ in how often weights go up and in the time that they have, which partitions are not
 * compared for. Shortens @run's step. @waits: (out): for transfers, so much that others hardly help,
 * and to simulate those takes long */
static gboolean
explore_round(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
              guint max_candidates, GPtrArray *found, GPtrArray *finalists, gboolean *searched,
              gboolean *waits, GError **error)
{
    g_autoptr(GPtrArray) partitions =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    const guint before = finalists->len;

    *waits = FALSE;
    if (!may_be_as_fast(query, profile, run, finalists) ||
        !add_round(query, profile, run, max_candidates, partitions, finalists, waits))
        return TRUE;
    run->step_ns = MIN(run->step_ns, rp_advise_fastest(partitions)->step_ns);
    *searched = TRUE;
    if (!simulate_one(profile, rp_advise_best(partitions, 0, 0), partitions, finalists, error))
        return FALSE;
    if (finalists->len > before) {
        const RpAdviseRun *best = g_ptr_array_index(finalists, before);

        *waits = count_more(best) == MIN_MORE &&
                 (double)best->step_ns > WAITS * (double)rp_advise_fastest(finalists)->step_ns &&
                 (double)best->step_ns > WAITS * (double)run->step_ns;
    }
    if (*waits)
        return TRUE;
    if (!simulate_one(profile, rp_advise_fastest(partitions), partitions, finalists, error))
        return FALSE;
    g_ptr_array_extend_and_steal(found, g_steal_pointer(&partitions));
    return TRUE;
}

/* The one of @found that is expected to be faster than all finalists, by most. */
static const RpAdviseRun *
most_promising(const GPtrArray *found, const GPtrArray *finalists)
{
    const RpAdviseRun *best = rp_advise_fastest(finalists), *promising = NULL;
    double least_ns = best != NULL ? (double)best->step_ns : G_MAXDOUBLE;

    for (guint i = 0; i < found->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(found, i);
        const double ns = expected_ns(run, finalists);

        if (ns < least_ns) {
            least_ns = ns;
            promising = run;
        }
    }
    return promising;
}

static gboolean
simulate_promising(const RpProfile *profile, GPtrArray *found, GPtrArray *finalists, GError **error)
{
    const RpAdviseRun *run;

    for (guint n = 0; (run = most_promising(found, finalists)) != NULL && n < count_more(run); n++)
        if (!simulate_one(profile, run, found, finalists, error))
            return FALSE;
    return TRUE;
}

gboolean
rp_advise_explore(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
                  guint max_candidates, GPtrArray *finalists, GError **error)
{
    g_autoptr(GPtrArray) found = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    g_autoptr(RpAdviseRun) other = rp_advise_run_copy(run);
    const guint micro_batches = rp_plan_whole_round(&run->options);
    RpAdviseQuery group = *query;
    gboolean searched = FALSE, waits = FALSE;

    other->step_ns = G_MAXINT64;
    other->floor_ns = 0;
    group.gpus = rp_plan_group_gpus(&run->options);
    const guint shortest = rp_advise_next_round(&group, micro_batches, 1);
    const guint second = rp_advise_next_round(&group, micro_batches, shortest + 1);

    /* the longest that fits, then the two shortest, whose transfers take longer and longer */
    for (guint round = micro_batches; shortest != 0 && round >= shortest && !waits; round--) {
        if (rp_advise_next_round(&group, micro_batches, round) != round ||
            (other->step_ns < G_MAXINT64 && round > second && round != shortest))
            continue;
        other->options.round = round;
        if (!explore_round(query, profile, other, max_candidates, found, finalists, &searched,
                           &waits, error))
            return FALSE;
    }
    if (!simulate_promising(profile, found, finalists, error))
        return FALSE;
    if (!run->simulated)
        run->step_ns = other->step_ns;
    run->gap = searched
                   ? run->bound_tokens_per_s / rp_advise_tokens_per_s(profile, run, other->step_ns)
                   : 0;
    return TRUE;
}

/* ---- groups of GPUs ---- */

gboolean
rp_advise_try_replicas(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *one,
                       GPtrArray *finalists, GError **error)
{
    /* cards of several kinds are one group; servers are groups already */
    if (query->cards != NULL || query->servers > 1 || rp_profile_is_mixed(profile))
        return TRUE;
    for (guint replicas = 2; replicas <= query->gpus; replicas++) {
        g_autoptr(RpAdviseRun) run = rp_advise_run_copy(one);

        if (query->gpus % replicas != 0 || one->options.micro_batches % replicas != 0)
            continue;
        run->options.replicas = replicas;
        run->bound_tokens_per_s =
            rp_advise_tokens_per_s(profile, run, rp_advise_bound_ns(query, profile, run));
        if (rp_advise_may_be_faster(run, 1, finalists) &&
            !rp_advise_explore(query, profile, run, RP_ADVISE_CANDIDATES, finalists, error))
            return FALSE;
    }
    return TRUE;
}
