/* Bound schedules: number of stages, and a partition that fits. */
#include "sim/advise/private.h"

#include "core/base/units.h"
#include "sim/search/bound.h"

/* Stages per device beyond this only add hops. */
#define MAX_STAGES_PER_GPU 8
/* Spent in a search for one partition, in tasks of the recurrence. */
#define SEARCH_ACTIONS (2 * 1000 * 1000)

static guint
max_stages_per_gpu(const RpProfile *profile, const RpAdviseRun *run)
{
    guint per_gpu = rp_profile_n_blocks(profile) / run->options.gpus;

    if (run->options.schedule->stages_per_gpu != 0)
        return run->options.schedule->stages_per_gpu;
    return run->options.schedule->looped ? CLAMP(per_gpu, 1, MAX_STAGES_PER_GPU) : 1;
}

/* The stage count with the least simulated time; the even partition is left in @run. */
static guint
choose_stages(const RpAdviseJudge *judge, RpAdviseRun *run)
{
    const RpScheduleOps *schedule = run->options.schedule;
    guint gpus = run->options.gpus;
    guint first = MAX(1, schedule->stages_per_gpu);
    guint last = max_stages_per_gpu(judge->profile, run);
    gint64 best_ns = G_MAXINT64;
    guint best = 0;
    GError *error = NULL;

    for (guint v = first; v <= last; v++) {
        g_autoptr(RpPartition) even = rp_partition_min_max(judge->profile, v * gpus, NULL);
        gint64 ns = even != NULL ? rp_advise_compute_ns(judge, even) : G_MAXINT64;

        if (ns >= best_ns)
            continue;
        best_ns = ns;
        best = v * gpus;
        rp_advise_set_partition(run, g_steal_pointer(&even));
    }
    if (best != 0)
        return best;
    /* once more, for the message */
    g_autoptr(RpPartition) even = rp_partition_min_max(judge->profile, first * gpus, &error);
    g_autoptr(RpPlanner) planner =
        even != NULL ? rp_planner_new(judge->profile, even, &run->options, &error) : NULL;

    if (planner == NULL)
        rp_advise_take_error(run, error);
    else
        rp_advise_set_problem(run, g_strdup("its order cannot run with these numbers"));
    return 0;
}

/* Whether what no micro-batch can shrink is too much already. */
static void
blame_weights(const RpAdviseQuery *query, RpAdviseRun *run)
{
    const guint64 *bytes = run->gpu.categories;
    guint64 weights =
        bytes[RP_BUFFER_PARAMETERS] + bytes[RP_BUFFER_ACCUMULATORS] + bytes[RP_BUFFER_GRADIENTS];

    if (query->gpu_bytes == 0 || weights <= query->gpu_bytes)
        return;
    run->weights_too_large = TRUE;
    rp_advise_set_problem(
        run, g_strdup_printf("%.1f GiB too much for a GPU in weights and gradient sums "
                             "alone, %.1f GiB",
                             (double)(weights - query->gpu_bytes) / (double)RP_GIB,
                             (double)weights / (double)RP_GIB));
}

/* Other stage counts than the fastest, shortest stages first: less at a time on the device. */
static gboolean
fit_other_stages(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    guint per_gpu = run->options.schedule->looped ? max_stages_per_gpu(profile, run) : 0;

    for (; per_gpu > 0; per_gpu--) {
        g_autoptr(RpPartition) kept = g_steal_pointer(&run->partition);

        run->partition = rp_partition_min_max(profile, per_gpu * run->options.gpus, NULL);
        if (run->partition != NULL && rp_advise_fits(query, profile, run))
            return TRUE;
        rp_advise_set_partition(run, g_steal_pointer(&kept));
    }
    return FALSE;
}

static gboolean
fits_as_whole(const RpPartition *partition, gpointer user_data)
{
    const RpAdviseJudge *judge = user_data;
    RpAdviseRun run = {.options = *judge->options, .partition = (RpPartition *)partition};
    const gboolean possible = rp_advise_fits(judge->query, judge->profile, &run);

    g_free(run.problem);
    return possible;
}

gboolean
rp_advise_fit_bound(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    RpAdviseJudge judge = {query, profile, &run->options};
    RpBoundSearch search = {.profile = profile,
                            .options = run->options,
                            .n_stages = choose_stages(&judge, run),
                            .actions = SEARCH_ACTIONS,
                            .user_data = &judge};

    if (search.n_stages == 0)
        return FALSE;
    if (!rp_advise_fits(query, profile, run)) {
        if (fit_other_stages(query, profile, run))
            return TRUE;
        rp_advise_measure(query, profile, run);
        blame_weights(query, run);
        return FALSE;
    }
    g_autoptr(RpAdviseRun) found = rp_advise_run_copy(run);
    rp_advise_set_partition(found, rp_search_bound(&search, NULL));
    gboolean possible = found->partition != NULL && rp_advise_fits(query, profile, found);
    if (found->partition != NULL && !possible) {
        search.fits = fits_as_whole; /* which takes longer than to judge one */
        rp_advise_set_partition(found, rp_search_bound(&search, NULL));
        possible = found->partition != NULL && rp_advise_fits(query, profile, found);
    }
    if (!possible || rp_partition_equal(found->partition, run->partition) ||
        !rp_advise_simulate(profile, found, NULL))
        return TRUE;
    /* transfers may make the partition slower that is faster without */
    const gboolean waits =
        found->waits == RP_ADVISE_WAITS_UPLOADS || found->waits == RP_ADVISE_WAITS_DOWNLOADS;

    if (!waits || !rp_advise_simulate(profile, run, NULL) || found->step_ns <= run->step_ns)
        rp_advise_run_set(run, found);
    return TRUE;
}
