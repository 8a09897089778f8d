/*
 * From coarse to fine:
 *
 *   1. counts   for every stage count S = v N: the min-max partition, even splits, a short
 * annealing
 *   2. long     annealing from the best of the best counts
 *   3. real     what was found is judged at the real M, if shorter runs stood for it before
 */
#include "sim/search/bound.h"

#include <string.h>

#include "core/base/quote.h"
#include "core/schedules/given.h"
#include "sim/recurrence/bound-recurrence.h"
#include "sim/search/cut-moves.h"
#include "sim/search/partition-cost.h"
#include "sim/search/random.h"

#define ACTIONS (G_GUINT64_CONSTANT(60) * 1000 * 1000)
#define MAKE_ACTIONS 40 /* what a task costs to be planned, in tasks of the recurrence */
#define FIT_ACTIONS 100 /* the same of a plan that is made to see whether it fits */
#define EXHAUSTIVE 100000
#define COUNT_SHARE 2   /* stage counts may spend 1/COUNT_SHARE */
#define SHORT_STEPS 300 /* partitions of the short annealing */
#define LONG_RUNS 3
#define ALL_COUNTS 16   /* stages of a device up to which every number is tried; then ... */
#define COUNT_STEP 4    /* ... each is 1/COUNT_STEP more than the last */
#define LONG_TASKS 4096 /* of an iteration; longer ones are judged by two shorter ones, ... */
#define LEAST_GROUPS 4  /* ... of so many groups of N micro-batches and half as many more */
#define REAL_TASKS 2000000
#define MAX_RUN 8
#define HOT 600    /* annealing accepts 1/HOT of a cost more at first, ... */
#define HOTTER 60  /* ... every other time this, ... */
#define COLD 32768 /* ... and this at last */
#define RESTARTS 4 /* of the long annealing, each from the best */

/* A partition that was judged: annealing comes back to the same ones again and again. */
typedef struct {
    gint64 least_ns; /* rp_bound_recurrence_least_ns() */
    gint64 ns;       /* G_MAXINT64: it was too slow to be looked at */
    guint n_stages;
    guint ends[];
} Known;

/* One stage count. */
typedef struct {
    guint n_stages;
    RpBoundRecurrence *runs[2]; /* [1]: longer, to extrapolate from; or NULL */
    guint micro_batches[2];
    guint *ends; /* the best so far */
    gint64 best_ns;
    GHashTable *known; /* a set of Known; looked up by `probe` */
    Known *probe;
} Count;

typedef struct {
    const RpBoundSearch *search;
    RpRandom random;
    guint least_first; /* layers of the first stage, at least */
    guint64 spent;
    guint *at, *next; /* borders, while annealing */
} Searcher;

static void
free_count(gpointer data)
{
    Count *count = data;

    rp_bound_recurrence_free(count->runs[0]);
    rp_bound_recurrence_free(count->runs[1]);
    g_clear_pointer(&count->known, g_hash_table_unref);
    g_free(count->probe);
    g_free(count->ends);
    g_free(count);
}

/* ---- judging ---- */

static guint
hash_known(gconstpointer data)
{
    const Known *known = data;
    guint hash = 2166136261u; /* FNV-1a */

    for (guint s = 0; s < known->n_stages; s++)
        hash = (hash ^ known->ends[s]) * 16777619u;
    return hash ^ hash >> 15;
}

static gboolean
is_same(gconstpointer a, gconstpointer b)
{
    const Known *x = a, *y = b;

    return memcmp(x->ends, y->ends, x->n_stages * sizeof *x->ends) == 0;
}

static Known *
new_known(guint n_stages)
{
    Known *known = g_malloc0(sizeof *known + n_stages * sizeof *known->ends);

    known->n_stages = n_stages;
    return known;
}

/* The same answer as that of the recurrence, and as much spent, whether it was asked before or not. */
static gint64
judge_once(Searcher *searcher, Count *count, const guint *ends, gint64 most_ns)
{
    RpBoundRecurrence *run = count->runs[0];

    memcpy(count->probe->ends, ends, count->n_stages * sizeof *ends);
    Known *known = g_hash_table_lookup(count->known, count->probe);

    if (known == NULL) {
        known = new_known(count->n_stages);
        memcpy(known->ends, ends, count->n_stages * sizeof *ends);
        known->ns = G_MAXINT64;
        g_hash_table_add(count->known, known);
    }
    if (known->least_ns > most_ns)
        return G_MAXINT64;
    if (known->ns == G_MAXINT64) {
        known->ns = rp_bound_recurrence_time_ns(run, ends, most_ns);
        known->least_ns = rp_bound_recurrence_least_ns(run);
    }
    searcher->spent += known->ns < G_MAXINT64 ? rp_bound_recurrence_tasks(run) : 0;
    return known->ns;
}

static gint64
judge(Searcher *searcher, Count *count, const guint *ends, gint64 most_ns)
{
    const double m = searcher->search->options.micro_batches;
    gint64 ns[2];

    searcher->spent += 10 * (guint64)count->n_stages;
    if (count->runs[1] == NULL)
        return judge_once(searcher, count, ends, most_ns);
    for (guint i = 0; i < 2; i++) {
        ns[i] = rp_bound_recurrence_time_ns(count->runs[i], ends, G_MAXINT64);
        searcher->spent += rp_bound_recurrence_tasks(count->runs[i]);
    }
    return (gint64)((double)ns[1] + (double)(ns[1] - ns[0]) * (m - count->micro_batches[1]) /
                                        (count->micro_batches[1] - count->micro_batches[0]));
}

static RpPartition *
to_partition(const guint *ends, guint n_stages)
{
    g_autofree RpInterval *stages = g_new(RpInterval, n_stages);

    for (guint s = 0, first = 0; s < n_stages; first = ends[s], s++)
        stages[s] = (RpInterval){first, ends[s] - first};
    return rp_partition_new_bound(stages, n_stages);
}

static gboolean
fits(Searcher *searcher, const Count *count, const guint *ends)
{
    const RpBoundSearch *search = searcher->search;

    if (search->fits == NULL)
        return TRUE;
    g_autoptr(RpPartition) partition = to_partition(ends, count->n_stages);

    searcher->spent += FIT_ACTIONS * rp_bound_recurrence_tasks(count->runs[0]);
    return search->fits(partition, search->user_data);
}

/* Judges @ends and keeps it if it is the best of its count, and fits. */
static gint64
consider(Searcher *searcher, Count *count, const guint *ends, gint64 most_ns)
{
    const gint64 ns = judge(searcher, count, ends, most_ns);

    if (ns < count->best_ns && fits(searcher, count, ends)) {
        count->best_ns = ns;
        memcpy(count->ends, ends, count->n_stages * sizeof *ends);
    }
    return ns;
}

static RpBoundRecurrence *
make_run(Searcher *searcher, guint n_stages, guint micro_batches, GError **error)
{
    RpPlanOptions options = searcher->search->options;

    options.micro_batches = micro_batches;
    RpBoundRecurrence *run =
        rp_bound_recurrence_new(searcher->search->profile, &options, n_stages, error);

    if (run != NULL)
        searcher->spent += MAKE_ACTIONS * rp_bound_recurrence_tasks(run);
    return run;
}

static Count *
make_count(Searcher *searcher, guint n_stages, GError **error)
{
    const RpPlanOptions *options = &searcher->search->options;
    const guint unit = options->group != 0 ? options->group : options->gpus;
    const guint tasks_of_unit = 2 * n_stages * unit;
    const guint groups = MAX(LEAST_GROUPS, LONG_TASKS / tasks_of_unit);
    const guint most = options->micro_batches;
    const gboolean given = options->schedule->given != NULL; /* for so many, and no others */
    const guint least = given ? most : groups * unit;
    const guint more = given ? most : (groups + groups / 2) * unit;
    Count *count = g_new0(Count, 1);

    count->n_stages = n_stages;
    count->best_ns = G_MAXINT64;
    count->ends = g_new0(guint, n_stages);
    count->known = g_hash_table_new_full(hash_known, is_same, g_free, NULL);
    count->probe = new_known(n_stages);
    count->micro_batches[0] = options->micro_batches > more ? least : options->micro_batches;
    count->micro_batches[1] = more;
    count->runs[0] = make_run(searcher, n_stages, count->micro_batches[0], error);
    if (count->runs[0] != NULL && options->micro_batches > more)
        count->runs[1] = make_run(searcher, n_stages, more, error);
    if (count->runs[0] == NULL || (options->micro_batches > more && count->runs[1] == NULL)) {
        free_count(count);
        return NULL;
    }
    return count;
}

/* ---- borders ---- */

static gboolean
is_valid(const Searcher *searcher, const guint *ends, guint n_stages)
{
    if (ends[0] < searcher->least_first ||
        ends[n_stages - 1] != searcher->search->profile->n_layers)
        return FALSE;
    for (guint s = 1; s < n_stages; s++)
        if (ends[s] <= ends[s - 1])
            return FALSE;
    return TRUE;
}

static void
read_ends(const RpPartition *partition, guint *ends)
{
    for (guint s = 0; s < partition->n_forward; s++)
        ends[s] = partition->forward[s].first + partition->forward[s].count;
}

/* A run of borders by one layer, or one border from one place to another. */
static void
move(Searcher *searcher, guint *ends, guint n_borders)
{
    const guint step = rp_random_next(&searcher->random) % 2 == 0 ? 1 : G_MAXUINT;
    const guint length = rp_random_below(&searcher->random, 2) == 0
                             ? 1
                             : 1 + rp_random_below(&searcher->random, MIN(MAX_RUN, n_borders));
    const guint first = rp_random_below(&searcher->random, n_borders - length + 1);

    for (guint i = first; i < first + length; i++)
        ends[i] += step;
    if (rp_random_below(&searcher->random, 4) == 0) /* and one of the others, either way */
        ends[rp_random_below(&searcher->random, n_borders)] +=
            rp_random_next(&searcher->random) % 2 == 0 ? 1 : G_MAXUINT;
}

/* From the best of @count on, at first accepting 1/@hot more, for @actions and @steps partitions at
 * most. */
static void
anneal(Searcher *searcher, Count *count, guint hot, guint64 actions, guint steps)
{
    const guint64 begin = searcher->spent;
    const gsize size = count->n_stages * sizeof *count->ends;
    gint64 cost_ns = count->best_ns;
    const double scale_ns = (double)cost_ns;

    if (count->n_stages < 2 || cost_ns == G_MAXINT64)
        return;
    memcpy(searcher->at, count->ends, size);
    for (guint i = 0; i < steps && searcher->spent - begin < actions; i++) {
        const double done =
            MAX((double)i / steps, (double)(searcher->spent - begin) / (double)actions);
        const double scale = scale_ns / (hot + (COLD - hot) * done * done * done);
        const gint64 most_ns = cost_ns + rp_random_excess(&searcher->random, (gint64)scale);

        searcher->spent += count->n_stages;
        memcpy(searcher->next, searcher->at, size);
        move(searcher, searcher->next, count->n_stages - 1);
        if (!is_valid(searcher, searcher->next, count->n_stages))
            continue;
        const gint64 ns = consider(searcher, count, searcher->next, most_ns);

        if (ns > most_ns)
            continue;
        cost_ns = ns;
        memcpy(searcher->at, searcher->next, size);
    }
}

/* Every run of borders shifted by one, until nothing is better. */
static void
descend(Searcher *searcher, Count *count, guint64 actions)
{
    const guint64 end = searcher->spent + actions;
    const guint n = count->n_stages - 1;
    gint64 before_ns;

    do {
        before_ns = count->best_ns;
        for (guint length = 1; length <= MIN(n, MAX_RUN); length++)
            for (guint i = 0; i < 2 * (n - length + 1) && searcher->spent < end; i++) {
                memcpy(searcher->next, count->ends, count->n_stages * sizeof *count->ends);
                for (guint b = 0; b < length; b++)
                    searcher->next[i / 2 + b] += i % 2 == 0 ? 1 : G_MAXUINT;
                if (is_valid(searcher, searcher->next, count->n_stages))
                    consider(searcher, count, searcher->next, count->best_ns - 1);
            }
    } while (count->best_ns < before_ns && searcher->spent < end);
}

/* ---- stage counts ---- */

/* Ways to choose @k of @n, at most @most + 1. */
static guint64
choose(guint n, guint k, guint64 most)
{
    guint64 ways = 1;

    for (guint i = 1; i <= MIN(k, n - k) && ways <= most; i++)
        ways = ways * (n - i + 1) / i;
    return MIN(ways, most + 1);
}

static gboolean
are_few(const Searcher *searcher, const Count *count)
{
    const guint n = searcher->search->profile->n_layers - searcher->least_first;
    const guint most =
        searcher->search->exhaustive != 0 ? searcher->search->exhaustive : EXHAUSTIVE;
    const guint64 ways = choose(n, count->n_stages - 1, most);
    const guint64 actions = searcher->search->actions != 0 ? searcher->search->actions : ACTIONS;

    return ways <= most && ways * rp_bound_recurrence_tasks(count->runs[0]) <= actions / 2;
}

/* In lexicographic order. */
static void
try_all(Searcher *searcher, Count *count)
{
    const guint n = count->n_stages - 1, n_layers = searcher->search->profile->n_layers;
    guint *ends = searcher->at;

    for (guint s = 0; s < n; s++)
        ends[s] = searcher->least_first + s;
    ends[n] = n_layers;
    for (;;) {
        guint s = n;

        consider(searcher, count, ends, count->best_ns);
        while (s > 0 && ends[s - 1] == n_layers - 1 - (n - s))
            s--;
        if (s == 0)
            return;
        ends[s - 1]++;
        for (; s < n; s++)
            ends[s] = ends[s - 1] + 1;
    }
}

/* Even splits of forward time, backward time, or both. */
static void
try_splits(Searcher *searcher, Count *count)
{
    const RpProfile *profile = searcher->search->profile;
    const guint lead = searcher->least_first - 1, n = profile->n_layers - lead;
    g_autofree gint64 *weights = g_new0(gint64, n);

    for (guint what = 0; what < 3; what++) {
        for (guint i = 0; i < n; i++) {
            const RpInterval layer = {lead + i, 1};

            weights[i] = 0;
            if (what != 1)
                weights[i] += rp_stage_time_ns(profile, layer, RP_PHASE_FORWARD, NULL);
            if (what != 2)
                weights[i] += rp_stage_time_ns(profile, layer, RP_PHASE_BACKWARD, NULL);
        }
        for (RpSplitOrder order = RP_SPLIT_SMALL_FIRST; order <= RP_SPLIT_EVEN; order++) {
            rp_partition_split(weights, n, count->n_stages, order, searcher->next);
            searcher->next[0] += lead;
            for (guint s = 1; s < count->n_stages; s++)
                searcher->next[s] += searcher->next[s - 1];
            consider(searcher, count, searcher->next, count->best_ns);
        }
    }
}

/* One stage count, with a short search. Returns: NULL if it cannot be. */
static Count *
open_count(Searcher *searcher, guint n_stages, gboolean only, GError **error)
{
    const guint64 actions = searcher->search->actions != 0 ? searcher->search->actions : ACTIONS;
    g_autoptr(RpPartition) even = rp_partition_min_max(searcher->search->profile, n_stages, error);

    if (even == NULL)
        return NULL;
    Count *count = make_count(searcher, n_stages, error);

    if (count == NULL)
        return NULL;
    read_ends(even, searcher->next);
    consider(searcher, count, searcher->next, G_MAXINT64);
    if (are_few(searcher, count)) {
        try_all(searcher, count);
        return count;
    }
    if (searcher->spent > actions / COUNT_SHARE && !only)
        return count;
    try_splits(searcher, count);
    if (!only)
        anneal(searcher, count, HOT, actions / COUNT_SHARE / ALL_COUNTS, SHORT_STEPS);
    return count;
}

static gint
compare_counts(gconstpointer a, gconstpointer b)
{
    const Count *x = *(Count *const *)a, *y = *(Count *const *)b;

    if (x->best_ns != y->best_ns)
        return x->best_ns < y->best_ns ? -1 : 1;
    return (x->n_stages > y->n_stages) - (x->n_stages < y->n_stages);
}

/* All that the schedule can have; beyond ALL_COUNTS a device in growing steps, the most last. */
static GPtrArray *
open_counts(Searcher *searcher, GError **error)
{
    const RpBoundSearch *search = searcher->search;
    const RpScheduleOps *schedule = search->options.schedule;
    const guint gpus = search->options.gpus;
    const guint most = search->n_stages != 0
                           ? search->n_stages
                           : rp_partition_default_stages(search->profile, schedule, gpus);
    const gboolean only = schedule->given != NULL || search->n_stages != 0 ||
                          schedule->stages_per_gpu != 0 || most == gpus;
    const guint64 actions = search->actions != 0 ? search->actions : ACTIONS;
    g_autoptr(GPtrArray) counts = g_ptr_array_new_with_free_func(free_count);
    g_autoptr(GError) first_error = NULL;

    for (guint v = only ? most / gpus : 1; v * gpus <= most;
         v += only || v < ALL_COUNTS ? 1 : v / COUNT_STEP) {
        GError *problem = NULL;
        /* a count is not begun that alone would take more than all are given */
        const guint64 tasks =
            2 * (guint64)v * gpus * MIN(search->options.micro_batches, 2 * LEAST_GROUPS * gpus);

        if (counts->len > 0 && searcher->spent + MAKE_ACTIONS * tasks > actions)
            break;
        Count *count = open_count(searcher, only ? most : v * gpus, only, &problem);

        if (count != NULL)
            g_ptr_array_add(counts, count);
        else if (first_error == NULL)
            first_error = problem;
        else
            g_error_free(problem);
        if (only)
            break;
    }
    if (counts->len == 0)
        return rp_null(rp_propagate_error(error, g_steal_pointer(&first_error)));
    g_ptr_array_sort(counts, compare_counts);
    return g_steal_pointer(&counts);
}

/* The best of the first counts at the real M. */
static Count *
best_at_real(Searcher *searcher, GPtrArray *counts)
{
    const RpPlanOptions *options = &searcher->search->options;
    Count *best = NULL;
    gint64 best_ns = G_MAXINT64;

    g_ptr_array_sort(counts, compare_counts);
    for (guint i = 0; i < MIN(LONG_RUNS, counts->len); i++) {
        Count *count = g_ptr_array_index(counts, i);
        gint64 ns = count->best_ns;

        if (count->runs[1] != NULL &&
            2 * (guint64)count->n_stages * options->micro_batches <= REAL_TASKS) {
            g_autoptr(RpBoundRecurrence) run =
                make_run(searcher, count->n_stages, options->micro_batches, NULL);

            if (run != NULL)
                ns = rp_bound_recurrence_time_ns(run, count->ends, G_MAXINT64);
        }
        if (ns < best_ns) {
            best_ns = ns;
            best = count;
        }
    }
    return best != NULL ? best : g_ptr_array_index(counts, 0);
}

RpPartition *
rp_search_bound(const RpBoundSearch *search, GError **error)
{
    const guint64 actions = search->actions != 0 ? search->actions : ACTIONS;
    const guint n = search->profile->n_layers;
    Searcher searcher = {
        .search = search,
        .least_first = rp_cut_least_first(search->profile),
    };
    g_autofree guint *at = g_new(guint, n + 1);
    g_autofree guint *next = g_new(guint, n + 1);

    searcher.at = at;
    searcher.next = next;
    g_autoptr(GPtrArray) counts = open_counts(&searcher, error);

    if (counts == NULL)
        return NULL;
    const guint runs = MIN(LONG_RUNS, counts->len);

    for (guint i = 0; i < runs && searcher.spent < actions; i++) {
        Count *count = g_ptr_array_index(counts, i);
        const guint64 share = (actions - searcher.spent) / (runs - i);

        if (are_few(&searcher, count))
            continue;
        for (guint r = 0; r < RESTARTS; r++)
            anneal(&searcher, count, r % 2 == 0 ? HOTTER : HOT, share / RESTARTS / 4 * 3,
                   G_MAXUINT);
        descend(&searcher, count, share / 4);
    }
    const Count *best = best_at_real(&searcher, counts);

    return to_partition(best->ends, best->n_stages);
}

guint
rp_partition_default_stages(const RpProfile *profile, const RpScheduleOps *schedule, guint gpus)
{
    guint per_gpu = schedule->stages_per_gpu;

    if (schedule->given != NULL)
        return schedule->given->stages;
    if (per_gpu == 0)
        per_gpu = MAX(1, rp_profile_n_blocks(profile) / gpus);
    return per_gpu * gpus;
}
