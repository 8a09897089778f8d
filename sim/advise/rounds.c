/*
 * One micro-batch in rounds of several lengths, and the most frugal of runs that are as fast.
 *
 * Longer rounds upload weights less often, and their stages need not be as even; but more waits on
 * the host: the inputs of two rounds. Predictions are good for three percent, so that what lies
 * within that of the fastest is as fast: of these the run with the fewest rounds is preferred, then
 * the one with the least host memory. Fewer rounds are not worth a quarter more host memory.
 *
 * The recommendation is then tried in several groups of GPUs, to which rounds go in turn
 * (docs/schedules.md#replicas): fewer GPUs in a row fill and drain sooner, but each group uploads the
 * weights for itself and the host holds a round of each. Groups are recommended where they are faster by
 * more than predictions may be wrong.
 */
#include "sim/advise/private.h"

#include "core/profile/cards.h"

/* Values of M_R tried for more speed, smallest first (then the largest), and for fewer rounds, largest first. */
#define MAX_ROUNDS 3
#define MAX_FEWER 5
/* A larger M_R is not worth trying for speed where so little is to be won. */
#define SMALL_BUBBLE 0.005

static guint
count_rounds(const RpAdviseRun *run)
{
    return run->options.micro_batches / run->options.round;
}

/* @run in rounds of @round, with a partition for it; %NULL if that does not fit, or errors. */
static RpAdviseRun *
in_rounds_of(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run,
             guint round, GError **error)
{
    g_autoptr(RpAdviseRun) other = rp_advise_run_copy(run);

    other->options.round = round;
    other->simulated = FALSE;
    if (!rp_advise_fits(query, profile, other))
        return NULL;
    rp_advise_improve(query, profile, other, RP_ADVISE_CANDIDATES);
    return rp_advise_simulate(profile, other, TRUE, error) ? g_steal_pointer(&other) : NULL;
}

/* The largest M_R beyond @run's whose plan takes at most @host bytes of host memory and fits; 0 if
 * there is none. */
static guint
longest_round(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run,
              guint64 host)
{
    g_autoptr(RpAdviseRun) other = rp_advise_run_copy(run);
    guint longest = 0;

    for (;;) {
        other->options.round =
            rp_advise_next_round(query, run->options.micro_batches, other->options.round + 1);
        if (other->options.round == 0 || !rp_advise_fits(query, profile, other) ||
            other->host.total > host)
            return longest;
        longest = other->options.round;
    }
}

gboolean
rp_advise_try_rounds(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run,
                     GPtrArray *variants, double *fastest, GError **error)
{
    const RpAdviseRun *last = rp_advise_run_copy(run);

    g_ptr_array_add(variants, (gpointer)last);
    *fastest = MAX(*fastest, last->tokens_per_s);
    for (guint n = 1; n <= MAX_ROUNDS && last->bubble_ratio > SMALL_BUBBLE; n++) {
        GError *problem = NULL;
        /* at last the longest, where so few are far from enough: its weights have the most time to come */
        guint round = n < MAX_ROUNDS ? rp_advise_next_round(query, last->options.micro_batches,
                                                            last->options.round + 1)
                      : 1 - last->bubble_ratio < RP_ADVISE_AS_FAST
                          ? longest_round(query, profile, last, G_MAXUINT64)
                          : 0;
        RpAdviseRun *longer =
            round != 0 ? in_rounds_of(query, profile, last, round, &problem) : NULL;

        if (problem != NULL) {
            g_propagate_error(error, problem);
            return FALSE;
        }
        if (longer == NULL)
            break;
        g_ptr_array_add(variants, longer);
        *fastest = MAX(*fastest, longer->tokens_per_s);
        last = longer;
    }
    return TRUE;
}

/* The least host memory of those that are as fast. */
static guint64
least_host(const GPtrArray *variants, double fastest)
{
    guint64 least = G_MAXUINT64;

    for (guint i = 0; i < variants->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(variants, i);

        if (run->tokens_per_s >= RP_ADVISE_AS_FAST * fastest)
            least = MIN(least, run->host.total);
    }
    return least;
}

static guint64
most_host(const GPtrArray *variants, double fastest)
{
    return (guint64)(RP_ADVISE_HOST_GROWTH * (double)least_host(variants, fastest));
}

/* Whether @run's host memory may be recommended: within the limit, or where none is given little more
 * than that of one group which saves nothing. */
static gboolean
is_frugal(const RpAdvice *advice, const RpAdviseRun *run)
{
    return advice->query.host_bytes != 0 ||
           (double)run->host.total <= RP_ADVISE_HOST_GROWTH * (double)advice->plain_host_bytes;
}

/* The largest M_R of at most @most; 0 if that is not beyond @least. */
static guint
round_between(const RpAdviseQuery *query, const RpAdviseRun *run, guint least, guint most)
{
    guint round = 0;

    for (guint next = rp_advise_next_round(query, run->options.micro_batches, least + 1);
         next != 0 && next <= most;
         next = rp_advise_next_round(query, run->options.micro_batches, next + 1))
        round = next;
    return round;
}

gboolean
rp_advise_try_fewer(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run,
                    GPtrArray *variants, double fastest, GError **error)
{
    const RpAdviseRun *from = NULL; /* the longest rounds so far, as fast */
    guint64 host = most_host(variants, fastest);
    guint round;

    for (guint i = 0; i < variants->len; i++) {
        const RpAdviseRun *variant = g_ptr_array_index(variants, i);

        if (variant->sequences == run->sequences && variant->host.total <= host &&
            variant->tokens_per_s >= RP_ADVISE_AS_FAST * fastest &&
            (from == NULL || variant->options.round > from->options.round))
            from = variant;
    }
    if (from == NULL)
        return TRUE;
    round = longest_round(query, profile, from, host);
    for (guint n = 0; n < MAX_FEWER && round != 0; n++) {
        GError *problem = NULL;
        RpAdviseRun *longer = in_rounds_of(query, profile, from, round, &problem);

        if (problem != NULL) {
            g_propagate_error(error, problem);
            return FALSE;
        }
        if (longer != NULL) {
            g_ptr_array_add(variants, longer);
            if (longer->tokens_per_s >= RP_ADVISE_AS_FAST * fastest && longer->host.total <= host)
                break;
        }
        round = round_between(query, from, from->options.round, round / 2);
    }
    return TRUE;
}

const RpAdviseRun *
rp_advise_most_frugal(const GPtrArray *variants, guint sequences)
{
    const RpAdviseRun *best = NULL;
    GPtrArray *eligible = g_ptr_array_new();
    double fastest = 0;

    for (guint i = 0; i < variants->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(variants, i);

        if (sequences != 0 && run->sequences != sequences)
            continue;
        g_ptr_array_add(eligible, run);
        fastest = MAX(fastest, run->tokens_per_s);
    }
    guint64 host = most_host(eligible, fastest);

    for (guint i = 0; i < eligible->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(eligible, i);

        if (run->tokens_per_s < RP_ADVISE_AS_FAST * fastest || run->host.total > host)
            continue;
        if (best == NULL || count_rounds(run) < count_rounds(best) ||
            (count_rounds(run) == count_rounds(best) &&
             (run->host.total < best->host.total ||
              (run->host.total == best->host.total && run->tokens_per_s > best->tokens_per_s))))
            best = run;
    }
    g_ptr_array_unref(eligible);
    return best;
}

/* ---- groups of GPUs ---- */

/* @best as @replicas groups, in rounds of @round. Returns: (nullable): %NULL if it does not fit, or on
 * errors */
static RpAdviseRun *
in_groups(const RpAdvice *advice, guint replicas, guint round, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    g_autoptr(RpAdviseRun) run = rp_advise_run_copy(advice->best);

    run->options.replicas = replicas;
    run->options.round = round;
    run->simulated = FALSE;
    if (!rp_advise_fits(query, advice->profile, run) && !rp_advise_fit(query, advice->profile, run))
        return NULL;
    rp_advise_improve(query, advice->profile, run, RP_ADVISE_CANDIDATES);
    if (!rp_advise_simulate(advice->profile, run, FALSE, error))
        return NULL;
    rp_advise_measure(query, advice->profile, run);
    return g_steal_pointer(&run);
}

/* Whether no more than @best's idle time is to be won, and that is not enough. */
static gboolean
is_busy(const RpAdviseRun *best)
{
    return 1 - best->bubble_ratio >= RP_ADVISE_AS_FAST;
}

/* Tries @replicas groups in the shortest and in the longest rounds, and takes them into @chosen. */
static gboolean
try_groups(const RpAdvice *advice, guint replicas, RpAdviseRun **chosen, GError **error)
{
    RpAdviseQuery group = advice->query;
    const guint all = advice->best->options.micro_batches / replicas;

    group.gpus /= replicas;
    const guint rounds[] = {rp_advise_next_round(&group, all, 1),
                            rp_advise_next_round(&group, all, all)};

    for (guint i = 0; i < G_N_ELEMENTS(rounds); i++) {
        const RpAdviseRun *fastest = *chosen != NULL ? *chosen : advice->best;
        GError *problem = NULL;
        g_autoptr(RpAdviseRun) run = NULL;

        if (rounds[i] == 0 || (i > 0 && rounds[i] == rounds[0]))
            continue;
        run = in_groups(advice, replicas, rounds[i], &problem);
        if (problem != NULL) {
            g_propagate_error(error, problem);
            return FALSE;
        }
        if (run == NULL || !is_frugal(advice, run) ||
            RP_ADVISE_AS_FAST * run->tokens_per_s <= fastest->tokens_per_s)
            continue;
        rp_advise_run_free(*chosen);
        *chosen = g_steal_pointer(&run);
    }
    return TRUE;
}

static void
take(RpAdvice *advice, RpAdviseRun *chosen)
{
    guint i;

    chosen->one_group_tokens_per_s = advice->best->tokens_per_s;
    if (!g_ptr_array_find(advice->candidates, advice->best, &i))
        g_assert_not_reached();
    rp_advise_run_free(advice->candidates->pdata[i]);
    advice->candidates->pdata[i] = chosen;
    advice->best = chosen;
}

gboolean
rp_advise_weigh_replicas(RpAdvice *advice, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    g_autoptr(RpAdviseRun) chosen = NULL;

    /* cards of several kinds are one group; servers are groups already */
    if (advice->best == NULL || query->cards != NULL || query->servers > 1 ||
        is_busy(advice->best) || rp_profile_is_mixed(advice->profile))
        return TRUE;
    for (guint replicas = 2; replicas <= query->gpus; replicas++)
        if (query->gpus % replicas == 0 && advice->best->options.micro_batches % replicas == 0 &&
            !try_groups(advice, replicas, &chosen, error))
            return FALSE;
    if (chosen != NULL)
        take(advice, g_steal_pointer(&chosen));
    return TRUE;
}
