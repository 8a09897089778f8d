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

/* Values of M_R tried, smallest first; then the largest. */
#define MAX_ROUNDS 2

/* Adds @run's partitions with rounds of @round to @found. Returns: whether any fits */
static gboolean
add_round(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run, guint round,
          guint max_candidates, GPtrArray *found)
{
    g_autoptr(RpAdviseRun) other = rp_advise_run_copy(run);

    other->options.round = round;
    if (!rp_advise_fits(query, profile, other) && !rp_advise_fit(query, profile, other))
        return FALSE;
    g_ptr_array_extend_and_steal(found,
                                 rp_advise_partitions(query, profile, other, max_candidates));
    return TRUE;
}

/* Moves the best of @found to @finalists and simulates it, unless it is slower even without any transfer than
 * what is as fast as the fastest. */
static gboolean
simulate_best(const RpProfile *profile, const RpAdviseRun *best, GPtrArray *found,
              GPtrArray *finalists, GError **error)
{
    const RpAdviseRun *fastest = rp_advise_fastest(finalists);
    guint index;

    if (best == NULL || !g_ptr_array_find(found, best, &index))
        return TRUE;
    RpAdviseRun *run = g_ptr_array_steal_index_fast(found, index);

    if (fastest != NULL && RP_ADVISE_AS_FAST * (double)run->step_ns > (double)fastest->step_ns) {
        rp_advise_run_free(run);
        return TRUE;
    }
    g_ptr_array_add(finalists, run);
    return rp_advise_simulate(profile, run, TRUE, error);
}

gboolean
rp_advise_explore(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run,
                  guint max_candidates, GPtrArray *finalists, GError **error)
{
    g_autoptr(GPtrArray) found = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    g_autoptr(GPtrArray) longest =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    const guint micro_batches = run->options.micro_batches;
    guint round = run->options.round;

    for (guint n = 0; n < MAX_ROUNDS && round != 0; n++) {
        add_round(query, profile, run, round, max_candidates, found);
        round = rp_advise_next_round(query, micro_batches, round + 1);
    }
    for (guint most = micro_batches; round != 0 && most >= round; most--)
        if (rp_advise_next_round(query, micro_batches, most) == most &&
            add_round(query, profile, run, most, max_candidates, longest))
            break;
    /* the weights of the longest round have the most time to arrive, which partitions are not compared for */
    return simulate_best(profile, rp_advise_best(found, 0, 0), found, finalists, error) &&
           simulate_best(profile, rp_advise_fastest(found), found, finalists, error) &&
           simulate_best(profile, rp_advise_best(longest, 0, 0), longest, finalists, error);
}

/* ---- groups of GPUs ---- */

/* Adds @one in @replicas groups and rounds of @round to @finalists, simulated, if that fits. */
static gboolean
try_groups(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *one,
           guint replicas, guint round, GPtrArray *finalists, GError **error)
{
    g_autoptr(RpAdviseRun) run = rp_advise_run_copy(one);

    run->options.replicas = replicas;
    run->options.round = round;
    run->one_group_tokens_per_s = one->tokens_per_s;
    if (!rp_advise_fits(query, profile, run) && !rp_advise_fit(query, profile, run))
        return TRUE;
    rp_advise_improve(query, profile, run, RP_ADVISE_CANDIDATES);
    if (!rp_advise_simulate(profile, run, TRUE, error))
        return FALSE;
    g_ptr_array_add(finalists, g_steal_pointer(&run));
    return TRUE;
}

gboolean
rp_advise_try_replicas(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *one,
                       GPtrArray *finalists, GError **error)
{
    /* cards of several kinds are one group; servers are groups already */
    if (query->cards != NULL || query->servers > 1 || rp_profile_is_mixed(profile))
        return TRUE;
    for (guint replicas = 2; replicas <= query->gpus; replicas++) {
        RpAdviseQuery group = *query;
        const guint all = one->options.micro_batches / replicas;

        group.gpus /= replicas;
        const guint shortest = rp_advise_next_round(&group, all, 1);
        const guint longest = rp_advise_next_round(&group, all, all);

        if (query->gpus % replicas != 0 || one->options.micro_batches % replicas != 0)
            continue;
        if ((shortest != 0 &&
             !try_groups(query, profile, one, replicas, shortest, finalists, error)) ||
            (longest != 0 && longest != shortest &&
             !try_groups(query, profile, one, replicas, longest, finalists, error)))
            return FALSE;
    }
    return TRUE;
}
