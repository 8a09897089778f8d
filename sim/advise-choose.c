/* Micro-batches and rounds compared: what to recommend. */
#include "sim/advise-private.h"

/* Micro-batch sizes that are looked at, from the largest that fits down, and those of them that are
 * worth simulating with all transfers: the fastest without. */
#define MAX_FITTED 24
#define MAX_TRIED 4
/* Values of M_R tried for one micro-batch, smallest first. */
#define MAX_ROUNDS 3
/* Partitions tried for the one chosen. */
#define FINAL_CANDIDATES 160
/* A larger M_R is not worth its host memory where so little is to be won. */
#define SMALL_BUBBLE 0.005
/* The more frugal of two runs wins unless it is slower than this share. */
#define CLEARLY_FASTER 1.001

/* Runs and their profiles, side by side. */
typedef struct {
    GPtrArray *runs;
    GPtrArray *profiles;
} Tried;

static void
tried_add(Tried *tried, RpAdviseRun *run, RpProfile *profile)
{
    g_ptr_array_add(tried->runs, run);
    g_ptr_array_add(tried->profiles, profile);
}

/* From the largest micro-batch down: those that fit, after the smallest that does not. */
static gboolean
find_fitting(const RpAdviseQuery *query, Tried *tried, GError **error)
{
    guint most = query->micro_batch != 0 ? query->micro_batch : query->batch / query->gpus;
    guint least = query->micro_batch != 0 ? query->micro_batch : 1;
    guint n_fitting = 0;

    for (guint b = most; b >= least && n_fitting < MAX_FITTED; b--) {
        guint micro_batches = query->batch / b;
        guint round = query->batch % b == 0 ? rp_advise_next_round(query, micro_batches, 1) : 0;

        if (round == 0)
            continue;
        RpProfile *profile = rp_advise_profile(query, b, error);
        if (profile == NULL)
            return FALSE;
        RpAdviseRun *run = rp_advise_run_new(query, rp_advise_roundpipe(), b, micro_batches, round);

        if (rp_advise_fit(query, profile, run)) {
            n_fitting++;
        } else if (n_fitting == 0) { /* the larger ones do not fit all the more */
            g_ptr_array_set_size(tried->runs, 0);
            g_ptr_array_set_size(tried->profiles, 0);
        }
        tried_add(tried, run, profile);
    }
    return TRUE;
}

/* Leaves the most promising ones, and what does not fit. Returns: how many it dropped. */
static guint
drop_slow(Tried *tried)
{
    guint before = tried->runs->len;
    guint n_fitting = 0;

    for (guint i = 0; i < before; i++)
        n_fitting += ((RpAdviseRun *)g_ptr_array_index(tried->runs, i))->problem == NULL;
    for (; n_fitting > MAX_TRIED; n_fitting--) {
        const RpAdviseRun *slowest = NULL;
        guint slowest_index = 0;

        for (guint i = 0; i < tried->runs->len; i++) {
            const RpAdviseRun *run = g_ptr_array_index(tried->runs, i);

            if (run->problem != NULL ||
                (slowest != NULL && run->bound_tokens_per_s >= slowest->bound_tokens_per_s))
                continue;
            slowest = run;
            slowest_index = i;
        }
        g_ptr_array_remove_index(tried->runs, slowest_index);
        g_ptr_array_remove_index(tried->profiles, slowest_index);
    }
    return before - tried->runs->len;
}

/* The same micro-batch in longer rounds: weights travel less often and stages need not be as even,
 * but more waits on the host. */
static gboolean
try_rounds(const RpAdviseQuery *query, const RpProfile *profile, GPtrArray *runs, guint i,
           GError **error)
{
    const RpAdviseRun *first = g_ptr_array_index(runs, i);
    guint round = first->options.round;

    for (guint n = 1; n < MAX_ROUNDS; n++) {
        RpAdviseRun *best = g_ptr_array_index(runs, i);

        if (best->bubble_ratio <= SMALL_BUBBLE)
            break;
        round = rp_advise_next_round(query, best->options.micro_batches, round + 1);
        if (round == 0)
            break;
        g_autoptr(RpAdviseRun) longer = rp_advise_run_copy(best);

        longer->options.round = round;
        if (!rp_advise_measure(query, profile, longer))
            break;
        rp_advise_improve(query, profile, longer, RP_ADVISE_CANDIDATES);
        if (!rp_advise_simulate(profile, longer, TRUE, error))
            return FALSE;
        if (longer->tokens_per_s > CLEARLY_FASTER * best->tokens_per_s) {
            rp_advise_run_free(best);
            runs->pdata[i] = g_steal_pointer(&longer);
        }
    }
    return TRUE;
}

static gint
by_bound(gconstpointer a, gconstpointer b, gpointer user_data)
{
    const RpAdviseRun *const *runs = user_data;
    double x = runs[*(const guint *)a]->bound_tokens_per_s;
    double y = runs[*(const guint *)b]->bound_tokens_per_s;

    return (x < y) - (x > y);
}

/* Simulates the runs that fit, most promising first; those that cannot win are left alone.
 * Returns: the index of the fastest; -1 on error. */
static gint
simulate_fitting(const RpAdviseQuery *query, Tried *tried, GError **error)
{
    guint n = tried->runs->len;
    g_autofree guint *order = g_new(guint, n);
    gint best = -1;

    for (guint i = 0; i < n; i++) {
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);

        order[i] = i;
        if (run->problem == NULL)
            rp_advise_improve(query, g_ptr_array_index(tried->profiles, i), run,
                              RP_ADVISE_CANDIDATES);
    }
    g_qsort_with_data(order, (gint)n, sizeof *order, by_bound, tried->runs->pdata);
    for (guint k = 0; k < n; k++) {
        guint i = order[k];
        const RpProfile *profile = g_ptr_array_index(tried->profiles, i);
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);
        const RpAdviseRun *leader = best >= 0 ? g_ptr_array_index(tried->runs, best) : NULL;

        if (run->problem != NULL || (leader != NULL && run->bound_tokens_per_s > 0 &&
                                     run->bound_tokens_per_s < leader->tokens_per_s))
            continue;
        if (!rp_advise_simulate(profile, run, TRUE, error) ||
            !try_rounds(query, profile, tried->runs, i, error))
            return -1;
        run = g_ptr_array_index(tried->runs, i);
        if (leader == NULL || run->tokens_per_s > CLEARLY_FASTER * leader->tokens_per_s)
            best = (gint)i;
    }
    return best;
}

/* More partitions for the one that is recommended, and its full simulation. */
static gboolean
finish_best(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun **best,
            GError **error)
{
    g_autoptr(RpAdviseRun) better = rp_advise_run_copy(*best);

    rp_advise_improve(query, profile, better, FINAL_CANDIDATES);
    if (!rp_advise_simulate(profile, *best, FALSE, error))
        return FALSE;
    if (rp_partition_equal(better->partition, (*best)->partition))
        return TRUE;
    if (!rp_advise_simulate(profile, better, FALSE, error))
        return FALSE;
    if (better->step_ns < (*best)->step_ns) {
        rp_advise_run_free(*best);
        *best = g_steal_pointer(&better);
    }
    return TRUE;
}

static gint
by_sequences(gconstpointer a, gconstpointer b)
{
    const RpAdviseRun *x = *(const RpAdviseRun *const *)a;
    const RpAdviseRun *y = *(const RpAdviseRun *const *)b;

    return (x->sequences > y->sequences) - (x->sequences < y->sequences);
}

static void
free_run(gpointer run)
{
    rp_advise_run_free(run);
}

static void
free_profile(gpointer profile)
{
    rp_profile_free(profile);
}

static gboolean
choose(RpAdvice *advice, Tried *tried, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    gint best;

    if (!find_fitting(query, tried, error))
        return FALSE;
    advice->untried = drop_slow(tried);
    const RpAdviseRun *last = g_ptr_array_index(tried->runs, tried->runs->len - 1);

    for (guint i = 0; i < tried->runs->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);

        if (run->problem != NULL && run->partition != NULL)
            rp_advise_measure(query, g_ptr_array_index(tried->profiles, i), run);
    }
    if (last->problem != NULL) {
        advice->nearest = rp_advise_least(query, &advice->profile, error);
        return advice->nearest != NULL;
    }
    best = simulate_fitting(query, tried, error);
    if (best < 0)
        return FALSE;
    if (!finish_best(query, g_ptr_array_index(tried->profiles, best),
                     (RpAdviseRun **)&tried->runs->pdata[best], error))
        return FALSE;
    advice->profile = rp_profile_copy(g_ptr_array_index(tried->profiles, best));
    rp_advise_measure(query, advice->profile, g_ptr_array_index(tried->runs, best));
    advice->best = g_ptr_array_index(tried->runs, best);
    return TRUE;
}

gboolean
rp_advise_choose(RpAdvice *advice, GError **error)
{
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func(free_run);
    g_autoptr(GPtrArray) profiles = g_ptr_array_new_with_free_func(free_profile);
    Tried tried = {runs, profiles};

    if (!choose(advice, &tried, error))
        return FALSE;
    g_ptr_array_sort(runs, by_sequences);
    advice->candidates = g_steal_pointer(&runs);
    return TRUE;
}
