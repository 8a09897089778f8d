/* Micro-batches and rounds compared: what to recommend. */
#include "sim/advise/private.h"

/* Micro-batch sizes that are looked at, from the largest that fits down, and those of them that are
 * worth simulating with all transfers: the fastest without. */
#define MAX_FITTED 24
#define MAX_TRIED 4
/* of a rough choice */
#define MAX_ROUGHLY_TRIED 2
/* Partitions tried for the one chosen. */
#define FINAL_CANDIDATES 160

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
        guint64 constant_bytes;
        RpProfile *profile = rp_advise_profile(query, b, &constant_bytes, error);
        if (profile == NULL)
            return FALSE;
        RpAdviseRun *run = rp_advise_run_new(query, rp_advise_roundpipe(), b, micro_batches, round,
                                             constant_bytes);

        rp_advise_fit(query, profile, run);
        run = rp_advise_in_one_round(query, profile, run, rp_advise_fit);
        if (run->problem == NULL) {
            n_fitting++;
        } else if (n_fitting == 0) { /* the larger ones do not fit all the more */
            g_ptr_array_set_size(tried->runs, 0);
            g_ptr_array_set_size(tried->profiles, 0);
        }
        tried_add(tried, run, profile);
    }
    return TRUE;
}

/* Leaves the @most most promising ones, and what does not fit. Returns: how many it dropped. */
static guint
drop_slow(Tried *tried, guint most)
{
    guint before = tried->runs->len;
    guint n_fitting = 0;

    for (guint i = 0; i < before; i++)
        n_fitting += ((RpAdviseRun *)g_ptr_array_index(tried->runs, i))->problem == NULL;
    for (; n_fitting > most; n_fitting--) {
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

static gint
by_bound(gconstpointer a, gconstpointer b, gpointer user_data)
{
    const RpAdviseRun *const *runs = user_data;
    double x = runs[*(const guint *)a]->bound_tokens_per_s;
    double y = runs[*(const guint *)b]->bound_tokens_per_s;

    return (x < y) - (x > y);
}

/* Simulates the runs that fit, most promising first, in several rounds each unless @rough, into
 * @variants; those that cannot come near the fastest are left alone. */
static gboolean
simulate_fitting(const RpAdviseQuery *query, const Tried *tried, gboolean rough,
                 GPtrArray *variants, GError **error)
{
    guint n = tried->runs->len;
    g_autofree guint *order = g_new(guint, n);
    double fastest = 0;

    for (guint i = 0; i < n; i++) {
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);

        order[i] = i;
        if (run->problem == NULL)
            rp_advise_improve(query, g_ptr_array_index(tried->profiles, i), run,
                              RP_ADVISE_CANDIDATES);
    }
    g_qsort_with_data(order, (gint)n, sizeof *order, by_bound, tried->runs->pdata);
    for (guint k = 0; k < n; k++) {
        const RpProfile *profile = g_ptr_array_index(tried->profiles, order[k]);
        RpAdviseRun *run = g_ptr_array_index(tried->runs, order[k]);

        if (run->problem != NULL ||
            (run->bound_tokens_per_s > 0 && run->bound_tokens_per_s < RP_ADVISE_AS_FAST * fastest))
            continue;
        if (!rp_advise_simulate(profile, run, TRUE, error))
            return FALSE;
        if (rough) {
            g_ptr_array_add(variants, rp_advise_run_copy(run));
            fastest = MAX(fastest, run->tokens_per_s);
        } else if (!rp_advise_try_rounds(query, profile, run, variants, &fastest, error)) {
            return FALSE;
        }
    }
    if (rough)
        return TRUE;
    /* as few rounds as are as fast, of each micro-batch that is as fast */
    for (guint k = 0; k < n; k++)
        if (!rp_advise_try_fewer(query, g_ptr_array_index(tried->profiles, order[k]),
                                 g_ptr_array_index(tried->runs, order[k]), variants, fastest,
                                 error))
            return FALSE;
    return TRUE;
}

/* Puts the variant to prefer of each micro-batch in its place. Returns: the index of the one to
 * recommend */
static guint
take_variants(Tried *tried, const GPtrArray *variants)
{
    const RpAdviseRun *best = rp_advise_most_frugal(variants, 0);
    guint index = 0;

    for (guint i = 0; i < tried->runs->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);
        const RpAdviseRun *preferred = run->sequences == best->sequences
                                           ? best
                                           : rp_advise_most_frugal(variants, run->sequences);

        if (preferred == best)
            index = i;
        if (!run->simulated || preferred == NULL)
            continue;
        tried->runs->pdata[i] = rp_advise_run_copy(preferred);
        rp_advise_run_free(run);
    }
    return index;
}

/* More partitions for the one that is recommended, and its full simulation. More host memory is
 * worth it for what predictions can tell apart only. */
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
    if (better->host.total <= (*best)->host.total
            ? better->step_ns < (*best)->step_ns
            : (double)better->step_ns < RP_ADVISE_AS_FAST * (double)(*best)->step_ns) {
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
choose(RpAdvice *advice, Tried *tried, gboolean rough, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    g_autoptr(GPtrArray) variants = g_ptr_array_new_with_free_func(free_run);

    if (!find_fitting(query, tried, error))
        return FALSE;
    advice->untried = drop_slow(tried, rough ? MAX_ROUGHLY_TRIED : MAX_TRIED);
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
    if (!simulate_fitting(query, tried, rough, variants, error))
        return FALSE;
    guint best = take_variants(tried, variants);

    if (!rough && !finish_best(query, g_ptr_array_index(tried->profiles, best),
                               (RpAdviseRun **)&tried->runs->pdata[best], error))
        return FALSE;
    advice->profile = rp_profile_copy(g_ptr_array_index(tried->profiles, best));
    for (guint i = 0; i < tried->runs->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(tried->runs, i);

        if (run->problem == NULL)
            rp_advise_measure(query, g_ptr_array_index(tried->profiles, i), run);
    }
    advice->best = g_ptr_array_index(tried->runs, best);
    return TRUE;
}

static gboolean
choose_any(RpAdvice *advice, gboolean rough, GError **error)
{
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func(free_run);
    g_autoptr(GPtrArray) profiles = g_ptr_array_new_with_free_func(free_profile);
    Tried tried = {runs, profiles};

    if (!choose(advice, &tried, rough, error))
        return FALSE;
    g_ptr_array_sort(runs, by_sequences);
    advice->candidates = g_steal_pointer(&runs);
    return TRUE;
}

void
rp_advice_free(RpAdvice *advice)
{
    if (advice == NULL)
        return;
    rp_profile_free(advice->profile);
    g_clear_pointer(&advice->candidates, g_ptr_array_unref);
    g_clear_pointer(&advice->schedules, g_ptr_array_unref);
    g_clear_pointer(&advice->remedies, g_ptr_array_unref);
    rp_advise_run_free(advice->nearest);
    rp_advise_longest_clear(&advice->longest);
    g_free(advice);
}

void
rp_advice_take(RpAdvice *advice, RpAdvice *from)
{
    advice->untried = from->untried;
    advice->best = from->best;
    rp_profile_free(advice->profile);
    advice->profile = g_steal_pointer(&from->profile);
    g_clear_pointer(&advice->candidates, g_ptr_array_unref);
    advice->candidates = g_steal_pointer(&from->candidates);
}

/* What is recommended where no weights stay on devices, if that is faster and a choice. */
static gboolean
weigh_residents(RpAdvice *advice, GError **error)
{
    g_autoptr(RpAdvice) streamed = g_new0(RpAdvice, 1);
    double tokens_per_s;

    if (advice->best == NULL || advice->best->resident_bytes == 0)
        return TRUE;
    streamed->query = advice->query;
    streamed->query.resident = RP_RESIDENT_OFF;
    if (!choose_any(streamed, FALSE, error))
        return FALSE;
    tokens_per_s = streamed->best != NULL ? streamed->best->tokens_per_s : 0;
    if (advice->query.resident == RP_RESIDENT_ON || tokens_per_s <= advice->best->tokens_per_s) {
        for (guint i = 0; i < advice->candidates->len; i++) {
            RpAdviseRun *run = g_ptr_array_index(advice->candidates, i);

            if (run == advice->best)
                run->streamed_tokens_per_s = tokens_per_s;
        }
        return TRUE;
    }
    rp_advice_take(advice, streamed);
    return TRUE;
}

gboolean
rp_advise_choose_plain(RpAdvice *advice, GError **error)
{
    return choose_any(advice, FALSE, error) && weigh_residents(advice, error);
}

gboolean
rp_advise_choose_roughly(RpAdvice *advice, GError **error)
{
    return choose_any(advice, TRUE, error);
}
