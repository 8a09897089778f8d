/* Micro-batches and rounds compared: what to recommend. */
#include "sim/advise/private.h"

#include "core/base/threads.h"
#include "core/base/units.h"

/* Micro-batch sizes that are looked at, from the largest that fits down; those in the answer; and choices
 * (sizes, what is saved) that are improved and simulated. */
#define MAX_FITTED 24
#define MAX_SHOWN 4
#define MAX_EXPLORED 32
#define MAX_EXPLORED_QUICKLY 4
#define MAX_EXPLORED_GROUPS 8
/* Choices that are explored at the same time; a constant, so that answers do not depend on processors. */
#define MOST_TOGETHER 4
/* Choices after which it is known how near partitions come to bounds. */
#define LEAST_KNOWN 2
/* A longer search gains this or less where nothing waits for transfers. */
#define LONGER_GAIN 1.015
/* Partitions tried for the one chosen; in groups, if an iteration has few actions, more: it takes no longer. */
#define FINAL_CANDIDATES 160
#define FINAL_CANDIDATES_GROUPS 320
#define FEW_ACTIONS 600
#define LESS_GPU_MEMORY 0.6
#define USUAL_GPU_BYTES (24 * RP_GIB)
#define MAX_FINISHED 3
#define MAX_FINISHED_GROUPS 3
/* With more memory of a card than this, plans that fit less are searched for as well. */
#define ENOUGH_GPU_BYTES (32 * RP_GIB)

/* From the largest micro-batch down: those that fit, after the smallest that does not. */
static gboolean
find_fitting(const RpAdviseQuery *query, GPtrArray *runs, GError **error)
{
    guint most = query->micro_batch != 0 ? query->micro_batch : query->batch / query->gpus;
    guint least = query->micro_batch != 0 ? query->micro_batch : 1;
    guint n_fitting = 0;

    for (guint b = most; b >= least && n_fitting < MAX_FITTED; b--) {
        guint micro_batches = query->batch / b;
        guint round = query->batch % b == 0 ? rp_advise_next_round(query, micro_batches, 1) : 0;

        if (round == 0 || !rp_advise_has_times(query, b))
            continue;
        g_autoptr(RpProfile) profile = rp_advise_profile(query, b, error);
        if (profile == NULL)
            return FALSE;
        RpAdviseRun *run = rp_advise_run_new(query, rp_advise_roundpipe(), b, micro_batches, round);

        run = rp_advise_in_one_round(query, profile, run, rp_advise_fit);
        if (run->problem == NULL)
            n_fitting++;
        else if (n_fitting == 0) /* the larger ones do not fit all the more */
            g_ptr_array_set_size(runs, 0);
        if (run->problem != NULL && run->partition != NULL)
            rp_advise_measure(query, profile, run);
        g_ptr_array_add(runs, run);
    }
    return TRUE;
}

/* Leaves the @most most promising ones, and what does not fit. Returns: how many it dropped. */
static guint
drop_slow(GPtrArray *runs, guint most)
{
    guint before = runs->len;
    guint n_fitting = 0;

    for (guint i = 0; i < before; i++)
        n_fitting += ((RpAdviseRun *)g_ptr_array_index(runs, i))->problem == NULL;
    for (; n_fitting > most; n_fitting--) {
        RpAdviseRun *slowest = NULL;

        for (guint i = 0; i < runs->len; i++) {
            RpAdviseRun *run = g_ptr_array_index(runs, i);

            if (run->problem == NULL && !run->simulated &&
                (slowest == NULL || run->bound_tokens_per_s < slowest->bound_tokens_per_s))
                slowest = run;
        }
        if (slowest == NULL)
            break;
        g_ptr_array_remove(runs, slowest);
    }
    return before - runs->len;
}

static gint
by_bound(gconstpointer a, gconstpointer b)
{
    double x = (*(const RpAdviseRun *const *)a)->bound_tokens_per_s;
    double y = (*(const RpAdviseRun *const *)b)->bound_tokens_per_s;

    return (x < y) - (x > y);
}

/* The profile of what @run saves. */
static RpProfile *
profile_of(const RpAdviseQuery *query, const RpAdviseRun *run, GError **error)
{
    RpAdviseQuery saving = *query;
    saving.saved = run->saved;
    return rp_advise_profile(&saving, run->sequences, error);
}

/* In one group of GPUs, or in several. */
static gboolean
explore_one(const RpAdviseQuery *query, gboolean groups, gpointer *place, GPtrArray *finalists,
            GError **error)
{
    RpAdviseRun *run = *place;
    g_autoptr(RpProfile) profile = profile_of(query, run, error);

    if (profile == NULL)
        return FALSE;
    if (run->partition == NULL)
        *place = run = rp_advise_in_one_round(query, profile, run, rp_advise_fit);
    if (run->problem != NULL)
        return TRUE;
    return groups ? rp_advise_try_replicas(query, profile, run, finalists, error)
                  : rp_advise_explore(query, profile, run, RP_ADVISE_CANDIDATES, finalists, error);
}

/* The least gap of the first @n of @tried with @run's micro-batch. @known: (out): how many have one */
static double
least_gap(const GPtrArray *tried, guint n, const RpAdviseRun *run, guint *known)
{
    double least = G_MAXDOUBLE;

    *known = 0;
    for (guint i = 0; i < n; i++) {
        const RpAdviseRun *other = g_ptr_array_index(tried, i);

        if (other->gap <= 0 || other->sequences != run->sequences)
            continue;
        least = MIN(least, other->gap);
        (*known)++;
    }
    return least;
}

/* By how much @run's bound in one group is too fast at least, as far as is known of the first @n of @tried, and not
 * more than that of @advice's candidates, which save nothing: what is saved takes memory from stages, so that they come
 * less near to their bounds. */
static double
gap_of(const RpAdvice *advice, const GPtrArray *tried, guint n, const RpAdviseRun *run)
{
    const GPtrArray *plain = advice->candidates;
    guint known, others;
    const double gap =
        MIN(least_gap(tried, n, run, &known), least_gap(plain, plain->len, run, &others));

    return known >= LEAST_KNOWN ? 1 + RP_ADVISE_SURE * MAX(0, gap - 1) : 1;
}

static gboolean
saves_alike(const RpAdviseRun *a, const RpAdviseRun *b)
{
    return a->sequences == b->sequences && a->saved.groups == b->saved.groups &&
           a->saved.first == b->saved.first && a->saved.least_ns == b->saved.least_ns;
}

static gboolean
is_among(const GPtrArray *tried, const RpAdviseRun *run)
{
    for (guint i = 0; i < tried->len; i++)
        if (saves_alike(run, g_ptr_array_index(tried, i)))
            return TRUE;
    return FALSE;
}

static void
add_unlike(GPtrArray *tried, const RpAdviseRun *run)
{
    if (!is_among(tried, run))
        g_ptr_array_add(tried, rp_advise_run_copy(run));
}

/* In groups with less memory of a card, too: where memory is short, other partitions are tried, which may be faster. */
static gboolean
search_longer(const RpAdviseQuery *query, RpAdviseRun *best, GPtrArray *finalists, GError **error)
{
    g_autoptr(RpProfile) profile = profile_of(query, best, error);
    RpAdviseQuery one_round = *query;
    const guint actions = best->options.micro_batches * rp_advise_count_stages(best->partition);
    const gboolean groups = best->options.replicas > 1;
    const guint most =
        groups && actions <= FEW_ACTIONS ? FINAL_CANDIDATES_GROUPS : FINAL_CANDIDATES;

    one_round.round = best->options.round;
    if (profile == NULL || !rp_advise_explore(&one_round, profile, best, most, finalists, error))
        return FALSE;
    one_round.gpu_bytes =
        (guint64)(LESS_GPU_MEMORY * (double)MIN(query->gpu_bytes, USUAL_GPU_BYTES));
    if (groups && !rp_advise_explore(&one_round, profile, best, most, finalists, error))
        return FALSE;
    for (guint i = 0; i < finalists->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(finalists, i);

        if (rp_advise_is_same_choice(run, best)) /* others' are written by others */
            run->finished = TRUE;
    }
    return TRUE;
}

/* Choices that are explored at the same time, each with the finalists so far and its own. */
typedef struct {
    const RpAdviseQuery *query;
    gboolean groups;
    gboolean longer; /* search_longer(), not explore_one() */
    GPtrArray *finalists;
    guint n_fitting; /* of those explored so far */
    guint n;
    gpointer *places[MOST_TOGETHER];
    GPtrArray *own[MOST_TOGETHER];
} Together;

static gboolean
explore_piece(guint i, gpointer data, GError **error)
{
    Together *together = data;
    const RpAdviseQuery *query = together->query;
    GPtrArray *finalists = together->own[i];

    return together->longer
               ? search_longer(query, *together->places[i], finalists, error)
               : explore_one(query, together->groups, together->places[i], finalists, error);
}

/* Explores @together's choices, and moves what they found to the finalists, in their order. */
static gboolean
explore_together(Together *together, GError **error)
{
    GPtrArray *finalists = together->finalists;
    const guint known = finalists->len;

    for (guint i = 0; i < together->n; i++) {
        together->own[i] = g_ptr_array_copy(finalists, NULL, NULL);
        g_ptr_array_set_free_func(together->own[i], NULL);
    }
    const gboolean explored = rp_run_pieces(together->n, explore_piece, together, error);

    for (guint i = 0; i < together->n; i++) {
        for (guint f = known; f < together->own[i]->len; f++)
            g_ptr_array_add(finalists, g_ptr_array_index(together->own[i], f));
        g_ptr_array_unref(together->own[i]);
        together->n_fitting += ((const RpAdviseRun *)*together->places[i])->problem == NULL;
    }
    together->n = 0;
    return explored;
}

/* Adds the choice at @place to @together, which is explored when it is full: at once if nothing is known to be fast. */
static gboolean
explore_soon(Together *together, gpointer *place, GError **error)
{
    together->places[together->n++] = place;
    return (together->n < MOST_TOGETHER && together->finalists->len > 0) ||
           explore_together(together, error);
}

/* Explores those of @tried that may be faster, best bounds first. @known: (nullable): what has been tried already */
static gboolean
explore_all(const RpAdvice *advice, const RpAdviseQuery *query, gboolean groups,
            const GPtrArray *known, GPtrArray *tried, GError **error)
{
    Together together = {.query = query, .groups = groups, .finalists = advice->finalists};
    const guint most = query->quick ? MAX_EXPLORED_QUICKLY
                       : groups     ? MAX_EXPLORED_GROUPS
                                    : MAX_EXPLORED;

    g_ptr_array_sort(tried, by_bound);
    for (guint i = 0; i < tried->len && together.n_fitting + together.n < most; i++) {
        const RpAdviseRun *run = g_ptr_array_index(tried, i);

        if (run->problem != NULL ||
            !rp_advise_may_be_faster(run, groups ? 1 : gap_of(advice, tried, i, run),
                                     advice->finalists))
            continue;
        if (known != NULL && is_among(known, run))
            together.n_fitting++;
        else if (!explore_soon(&together, &tried->pdata[i], error))
            return FALSE;
    }
    return explore_together(&together, error);
}

/* Whether a longer search may make @run as fast as @fastest: not where it is slower though devices are busy. */
static gboolean
may_gain(const RpAdviseRun *run, const RpAdviseRun *fastest)
{
    return (double)run->step_ns <= LONGER_GAIN * (double)fastest->step_ns ||
           LONGER_GAIN * run->tokens_per_s < run->bound_tokens_per_s;
}

/* Searches longer for the choices and rounds of the fastest finalists, @most of them, in one group of GPUs or in
 * several. */
static gboolean
finish(const RpAdviseQuery *query, GPtrArray *finalists, gboolean groups, guint most,
       GError **error)
{
    Together together = {.query = query, .longer = TRUE, .finalists = finalists};
    const RpAdviseRun *fastest = rp_advise_fastest(finalists);
    g_autoptr(GPtrArray) left = g_ptr_array_new();
    gpointer chosen[MOST_TOGETHER];

    most = query->quick ? 1 : MIN(most, MOST_TOGETHER);
    for (guint i = 0; i < finalists->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(finalists, i);

        if ((run->options.replicas > 1) == groups)
            g_ptr_array_add(left, run);
    }
    while (together.n < most && left->len > 0) {
        RpAdviseRun *best = (RpAdviseRun *)rp_advise_fastest(left);

        if (!best->finished && may_gain(best, fastest)) {
            chosen[together.n] = best;
            together.places[together.n] = &chosen[together.n];
            together.n++;
        }
        for (guint i = left->len; i > 0; i--)
            if (rp_advise_is_same_choice(g_ptr_array_index(left, i - 1), best))
                g_ptr_array_remove_index(left, i - 1);
    }
    return explore_together(&together, error);
}

static gint
by_step(gconstpointer a, gconstpointer b)
{
    const RpAdviseRun *x = *(const RpAdviseRun *const *)a;
    const RpAdviseRun *y = *(const RpAdviseRun *const *)b;

    return (x->step_ns > y->step_ns) - (x->step_ns < y->step_ns);
}

static gint
by_sequences(gconstpointer a, gconstpointer b)
{
    const RpAdviseRun *x = *(const RpAdviseRun *const *)a;
    const RpAdviseRun *y = *(const RpAdviseRun *const *)b;

    return (x->sequences > y->sequences) - (x->sequences < y->sequences);
}

/* The candidate of each micro-batch is the best of its finalists. @last: it is the recommendation, simulated for
 * longer */
static gboolean
settle(RpAdvice *advice, guint64 host_bytes, gboolean last, GError **error)
{
    const RpAdviseRun *best = rp_advise_best(advice->finalists, 0, host_bytes);

    for (guint i = 0; i < advice->candidates->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(advice->candidates, i);
        const RpAdviseRun *preferred =
            run->sequences == best->sequences
                ? best
                : rp_advise_best(advice->finalists, run->sequences, host_bytes);
        g_autoptr(RpProfile) profile = NULL;

        if (run->problem != NULL)
            continue;
        if (preferred != NULL) {
            RpAdviseRun *copy = rp_advise_run_copy(preferred);

            copy->gap = run->gap;
            advice->candidates->pdata[i] = copy;
            rp_advise_run_free(run);
            run = copy;
        }
        profile = profile_of(&advice->query, run, error);
        if (profile == NULL)
            return FALSE;
        rp_advise_measure(&advice->query, profile, run);
        if (preferred != best)
            continue;
        if (last && !rp_advise_simulate(profile, run, error))
            return FALSE;
        advice->best = run;
        rp_profile_free(advice->profile);
        advice->profile = g_steal_pointer(&profile);
    }
    return TRUE;
}

static gboolean
choose_any(RpAdvice *advice, GError **error)
{
    const RpAdviseQuery *query = &advice->query;
    g_autoptr(GPtrArray) runs = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);

    advice->finalists = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    if (!find_fitting(query, runs, error))
        return FALSE;
    advice->candidates = g_ptr_array_ref(runs);
    if (((RpAdviseRun *)g_ptr_array_index(runs, runs->len - 1))->problem != NULL) {
        g_ptr_array_sort(runs, by_sequences);
        advice->nearest = rp_advise_least(query, &advice->profile, error);
        return advice->nearest != NULL;
    }
    /* if forwards may save something, the choices are not final yet */
    if (!explore_all(advice, query, FALSE, NULL, runs, error) ||
        !finish(query, advice->finalists, FALSE, query->save == RP_SAVE_AUTO ? 1 : MAX_FINISHED,
                error))
        return FALSE;
    g_ptr_array_sort(runs, by_sequences);
    return settle(advice, query->host_bytes, FALSE, error);
}

void
rp_advice_free(RpAdvice *advice)
{
    if (advice == NULL)
        return;
    rp_profile_free(advice->profile);
    g_clear_pointer(&advice->finalists, g_ptr_array_unref);
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
    advice->faster = from->faster;
    rp_profile_free(advice->profile);
    advice->profile = g_steal_pointer(&from->profile);
    g_ptr_array_unref(advice->finalists);
    advice->finalists = g_steal_pointer(&from->finalists);
    g_ptr_array_unref(advice->candidates);
    advice->candidates = g_steal_pointer(&from->candidates);
}

static gboolean
weigh_saved(RpAdvice *advice, const RpAdviseQuery *query, gboolean groups, const GPtrArray *known,
            GError **error)
{
    g_autoptr(GPtrArray) tried = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);

    return rp_advise_add_savings(advice, query, tried, error) &&
           explore_all(advice, query, groups, known, tried, error);
}

/* Adds the finalists whose weights stay to @streamed as they are without, if they fit and may be the best there. */
static gboolean
stream_finalists(const RpAdvice *advice, GPtrArray *streamed, GError **error)
{
    RpAdviseQuery query = advice->query;
    g_autoptr(GPtrArray) order = g_ptr_array_copy(advice->finalists, NULL, NULL);

    g_ptr_array_set_free_func(order, NULL);
    query.resident = RP_RESIDENT_OFF;
    g_ptr_array_sort(order, by_step);
    for (guint i = 0; i < order->len; i++) {
        g_autoptr(RpAdviseRun) run = rp_advise_run_copy(g_ptr_array_index(order, i));
        g_autoptr(RpProfile) profile = profile_of(&query, run, error);

        if (profile == NULL)
            return FALSE;
        run->options.resident_limit = 0;
        run->step_ns = 0; /* unknown as yet */
        if (rp_advise_fits(&query, profile, run) &&
            !rp_advise_try(profile, g_steal_pointer(&run), streamed, error))
            return FALSE;
    }
    return TRUE;
}

/* If weights may stay on devices but need not, adds plans without to the finalists.
 * @tokens_per_s: (out): the speed of the best of these, 0: nothing fits, or none stays anyway */
static gboolean
weigh_residents(RpAdvice *advice, double *tokens_per_s, GError **error)
{
    g_autoptr(GPtrArray) streamed =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);

    *tokens_per_s = 0;
    if (advice->best == NULL || advice->best->resident_bytes == 0)
        return TRUE;
    if (!stream_finalists(advice, streamed, error))
        return FALSE;
    if (streamed->len == 0) {
        g_autoptr(RpAdvice) other = g_new0(RpAdvice, 1);

        other->query = advice->query;
        other->query.resident = RP_RESIDENT_OFF;
        if (!choose_any(other, error))
            return FALSE;
        g_ptr_array_extend_and_steal(streamed, g_steal_pointer(&other->finalists));
    }
    const RpAdviseRun *best = rp_advise_best(streamed, 0, advice->query.host_bytes);

    if (best == NULL)
        return TRUE;
    *tokens_per_s = best->tokens_per_s;
    if (advice->query.resident != RP_RESIDENT_ON)
        g_ptr_array_extend_and_steal(advice->finalists, g_steal_pointer(&streamed));
    return TRUE;
}

/* Adds the best of each micro-batch, the choices that were fastest in one group of GPUs, and those of the best bounds,
 * in several groups. */
static gboolean
weigh_replicas(RpAdvice *advice, const RpAdviseQuery *limits, GError **error)
{
    g_autoptr(GPtrArray) tried = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    g_autoptr(GPtrArray) order = g_ptr_array_copy(advice->finalists, NULL, NULL);

    for (guint i = 0; i < advice->candidates->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(advice->candidates, i);
        const RpAdviseRun *best =
            rp_advise_best(advice->finalists, run->sequences, limits->host_bytes);

        if (run->problem == NULL)
            add_unlike(tried, best != NULL ? best : run);
    }
    const guint most = tried->len + MAX_EXPLORED_GROUPS;
    Together together = {.query = limits, .groups = TRUE, .finalists = advice->finalists};

    g_ptr_array_set_free_func(order, NULL);
    g_ptr_array_sort(order, by_step);
    for (guint i = 0; i < order->len && tried->len < most; i++) {
        const RpAdviseRun *run = g_ptr_array_index(order, i);

        if (limits->host_bytes == 0 || run->host.total <= limits->host_bytes)
            add_unlike(tried, run);
    }
    for (guint i = 0; i < tried->len; i++)
        if (!explore_soon(&together, &tried->pdata[i], error))
            return FALSE;
    return explore_together(&together, error) && weigh_saved(advice, limits, TRUE, tried, error);
}

/* Candidates that were not simulated are as fast as their fastest partition without transfers. */
static void
describe_others(RpAdvice *advice)
{
    const double tokens = advice->best->tokens_per_s * (double)advice->best->step_ns;

    for (guint i = 0; i < advice->candidates->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(advice->candidates, i);

        if (run->problem == NULL && !run->simulated && run->step_ns > 0)
            run->bound_tokens_per_s = tokens / (double)run->step_ns;
    }
    advice->untried = drop_slow(advice->candidates, MAX_SHOWN);
}

static double
fastest_of_one_group(const RpAdvice *advice, guint64 host_bytes)
{
    double tokens_per_s = 0;

    for (guint i = 0; i < advice->finalists->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(advice->finalists, i);

        if (run->options.replicas <= 1 && (host_bytes == 0 || run->host.total <= host_bytes))
            tokens_per_s = MAX(tokens_per_s, run->tokens_per_s);
    }
    return tokens_per_s;
}

/* The speed that is recommended in one group of GPUs where no weights stay; 0: nothing fits. */
static double
best_of_streamed(const RpAdvice *advice, guint64 host_bytes)
{
    g_autoptr(GPtrArray) streamed = g_ptr_array_new();

    for (guint i = 0; i < advice->finalists->len; i++) {
        RpAdviseRun *run = g_ptr_array_index(advice->finalists, i);

        if (run->options.replicas <= 1 && run->options.resident_limit == 0)
            g_ptr_array_add(streamed, run);
    }
    const RpAdviseRun *best = rp_advise_best(streamed, 0, host_bytes);

    return best != NULL ? best->tokens_per_s : 0;
}

/* The recommendation, and what was faster. */
static void
describe_best(RpAdvice *advice, guint64 host_bytes, double streamed_tokens_per_s,
              double recomputed_tokens_per_s)
{
    g_autoptr(RpProfile) own = rp_profile_copy(advice->profile);
    RpAdviseRun *best = (RpAdviseRun *)advice->best;

    best->saved_bytes = rp_profile_keep_fused(own, best->partition->backward[0].first);
    if (best->resident_bytes > 0)
        best->streamed_tokens_per_s =
            MAX(streamed_tokens_per_s, best_of_streamed(advice, host_bytes));
    if (best->saved_bytes > 0 && advice->query.save == RP_SAVE_AUTO)
        best->recomputed_tokens_per_s = recomputed_tokens_per_s;
    if (best->options.replicas > 1)
        best->one_group_tokens_per_s = fastest_of_one_group(advice, host_bytes);
    for (guint i = 0; i < advice->finalists->len; i++) {
        const RpAdviseRun *run = g_ptr_array_index(advice->finalists, i);

        if (run->step_ns < (advice->faster != NULL ? advice->faster : best)->step_ns)
            advice->faster = run;
    }
}

static guint64
least_host(const GPtrArray *runs)
{
    guint64 least = G_MAXUINT64;

    for (guint i = 0; i < runs->len; i++)
        least = MIN(least, ((const RpAdviseRun *)g_ptr_array_index(runs, i))->host.total);
    return least;
}

static guint64
power_of_two_below(guint64 bytes)
{
    guint64 power = 1;

    while (2 * power < bytes)
        power *= 2;
    return power;
}

gboolean
rp_advise_choose(RpAdvice *advice, GError **error)
{
    RpAdviseQuery limits = advice->query, less;
    double streamed;

    if (!choose_any(advice, error) || !weigh_residents(advice, &streamed, error))
        return FALSE;
    if (advice->best == NULL)
        return TRUE;
    const guint64 least = least_host(advice->finalists);
    const guint64 little = (guint64)(RP_ADVISE_HOST_GROWTH * (double)least);

    if (limits.host_bytes == 0)
        limits.host_bytes = little;
    /* no finalist saves tensors yet */
    const double recomputed = rp_advise_best(advice->finalists, 0, limits.host_bytes)->tokens_per_s;
    less = limits;
    less.gpu_bytes = MIN(limits.gpu_bytes, ENOUGH_GPU_BYTES);
    if (advice->query.host_bytes != 0)
        less.host_bytes = MIN(little, power_of_two_below(limits.host_bytes));
    if (less.host_bytes < least)
        less.host_bytes = limits.host_bytes;
    /* a search with less memory finds other plans, which fit all the more */
    if (!limits.quick &&
        (less.gpu_bytes < limits.gpu_bytes || less.host_bytes < limits.host_bytes) &&
        (!weigh_saved(advice, &less, FALSE, NULL, error) ||
         !finish(&less, advice->finalists, FALSE, MAX_FINISHED, error)))
        return FALSE;
    /* and so may one without weights that stay, if they are no help so far */
    if (advice->best->options.resident_limit > 0 && limits.resident != RP_RESIDENT_ON &&
        rp_advise_fastest(advice->finalists)->options.resident_limit == 0) {
        less = limits;
        less.resident = RP_RESIDENT_OFF;
        if (!weigh_saved(advice, &less, FALSE, NULL, error))
            return FALSE;
    }
    if (!weigh_saved(advice, &limits, FALSE, NULL, error) ||
        !finish(&limits, advice->finalists, FALSE, MAX_FINISHED, error) ||
        !weigh_replicas(advice, &limits, error) ||
        !finish(&limits, advice->finalists, TRUE, MAX_FINISHED_GROUPS, error) ||
        !settle(advice, limits.host_bytes, TRUE, error))
        return FALSE;
    describe_best(advice, limits.host_bytes, streamed, recomputed);
    describe_others(advice);
    return TRUE;
}
