/* Plans that fit: exact arenas, and partitions under a memory limit. */
#include "sim/advise/private.h"

#include "core/base/units.h"
#include "core/plan/planner.h"
#include "core/plan/planner/pace.h"

/* Halvings of the limit per stage, where it starts (times the device's memory), and the most blocks
 * a stage that rp_advise_fit_least() tries. */
#define LIMIT_STEPS 11
#define LIMIT_RANGE 2
#define LEAST_MAX_BLOCKS 16

void
rp_advise_set_problem(RpAdviseRun *run, char *problem)
{
    g_free(run->problem);
    run->problem = problem;
}

void
rp_advise_take_error(RpAdviseRun *run, GError *error)
{
    rp_advise_set_problem(run, g_strdup(error != NULL ? error->message : "unknown"));
    g_clear_error(&error);
}

RpBufferCategory
rp_advise_largest_category(const RpAdviseBytes *bytes)
{
    guint largest = 0;

    for (guint c = 1; c < RP_N_BUFFER_CATEGORIES; c++)
        if (bytes->categories[c] > bytes->categories[largest])
            largest = c;
    return (RpBufferCategory)largest;
}

static RpAdviseBytes
read_arena(const RpPlan *plan, guint32 arena, gboolean by_category)
{
    RpAdviseBytes bytes = {.total = rp_plan_arena_bytes(plan, arena)};

    for (guint c = 0; by_category && c < RP_N_BUFFER_CATEGORIES; c++)
        bytes.categories[c] = rp_plan_category_bytes(plan, arena, (RpBufferCategory)c);
    return bytes;
}

/* Categories take longer to read than the whole plan to lay out, and so does the choice of what stays
 * on devices: a search does without. */
static void
read_arenas(const RpPlan *plan, gboolean by_category, RpAdviseRun *run)
{
    const guint32 fullest = rp_plan_fullest_gpu(plan);

    run->resident_bytes = rp_plan_resident_bytes(plan, fullest);
    run->gpu = read_arena(plan, fullest, by_category);
    run->host = read_arena(plan, rp_plan_gpus(plan), by_category);
}

static char *
describe_excess(const char *where, guint64 over, const RpAdviseBytes *bytes)
{
    return g_strdup_printf("%.1f GiB too much for %s, of %.1f GiB; most of it %s",
                           (double)over / (double)RP_GIB, where,
                           (double)bytes->total / (double)RP_GIB,
                           rp_buffer_category_name(rp_advise_largest_category(bytes)));
}

/* Compares the arenas with the limits. */
static gboolean
check_limits(const RpAdviseQuery *query, RpAdviseRun *run)
{
    const guint64 host =
        run->host.total +
        (query->sizes != NULL && query->sizes->host_devices ? query->gpus * run->gpu.total : 0);

    run->gpu_over_bytes = query->gpu_bytes != 0 && run->gpu.total > query->gpu_bytes
                              ? run->gpu.total - query->gpu_bytes
                              : 0;
    run->host_over_bytes =
        query->host_bytes != 0 && host > query->host_bytes ? host - query->host_bytes : 0;
    if (run->gpu_over_bytes > 0)
        rp_advise_set_problem(run, describe_excess("a GPU", run->gpu_over_bytes, &run->gpu));
    else if (run->host_over_bytes > 0)
        rp_advise_set_problem(run,
                              describe_excess("host memory", run->host_over_bytes, &run->host));
    return run->gpu_over_bytes == 0 && run->host_over_bytes == 0;
}

/* Whether it fits without weights that stay, as far as device memory goes. */
static gboolean
fits_streamed(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options)
{
    RpPlanOptions streamed = *options;

    streamed.resident_limit = 0;
    return !options->schedule->dispatched ||
           rp_plan_dispatched_fits(profile, partition, &streamed, options->resident_limit);
}

/* The arenas of @run's partition with so many micro-batches, into @run. */
static gboolean
lay_out(const RpProfile *profile, guint micro_batches, gboolean by_category, RpAdviseRun *run)
{
    GError *error = NULL;
    RpPlanOptions options = run->options;
    gboolean dispatched = options.schedule->dispatched;

    options.micro_batches = micro_batches;
    if (!dispatched)
        options.round = micro_batches;
    if (!by_category && fits_streamed(profile, run->partition, &options))
        options.resident_limit = 0;
    const gboolean known = rp_planner_knows_buffers(&options);

    if (known && options.dispatch_rule == 0) /* whichever it is, they are the same */
        options.dispatch_rule = RP_DISPATCH_RULES;
    g_autoptr(RpPlanner) planner = rp_planner_new(profile, run->partition, &options, &error);

    if (planner == NULL || (!known && !rp_planner_append_iteration(planner, &error))) {
        rp_advise_take_error(run, error);
        return FALSE;
    }
    read_arenas(rp_planner_plan(planner), by_category, run);
    return TRUE;
}

static guint64
extrapolate(guint64 at, guint64 half, guint micro_batches, guint step)
{
    return at > half ? at + (at - half) / step * micro_batches : at;
}

/* A bound schedule's stash is the same for each further micro-batch, or grows by the same. */
static void
extrapolate_bytes(RpAdviseBytes *bytes, const RpAdviseBytes *half, guint more, guint step)
{
    bytes->total = extrapolate(bytes->total, half->total, more, step);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        bytes->categories[c] = extrapolate(bytes->categories[c], half->categories[c], more, step);
}

static gboolean
measure(const RpAdviseQuery *query, const RpProfile *profile, gboolean by_category,
        RpAdviseRun *run)
{
    const RpPlanOptions *options = &run->options;
    gboolean dispatched = options->schedule->dispatched;
    guint all = options->micro_batches;
    guint cut = rp_advise_cut(run->partition, options);
    guint half = cut / options->gpus / 2 * options->gpus;
    RpAdviseRun less = {.options = run->options, .partition = run->partition};

    rp_advise_set_problem(run, NULL);
    /* a dispatched plan has the same buffers for any number of rounds above one of each group */
    if (dispatched || cut == all)
        return lay_out(profile, dispatched ? MIN(all, 2 * rp_advise_unit(options)) : all,
                       by_category, run) &&
               check_limits(query, run);
    if (!lay_out(profile, half, by_category, &less)) {
        rp_advise_set_problem(run, less.problem);
        return FALSE;
    }
    if (!lay_out(profile, cut, by_category, run))
        return FALSE;
    extrapolate_bytes(&run->gpu, &less.gpu, all - cut, cut - half);
    extrapolate_bytes(&run->host, &less.host, all - cut, cut - half);
    return check_limits(query, run);
}

/* Totals only, and a preliminary message. */
gboolean
rp_advise_fits(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    return measure(query, profile, FALSE, run);
}

gboolean
rp_advise_measure(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    return measure(query, profile, TRUE, run);
}

void
rp_advise_set_partition(RpAdviseRun *run, RpPartition *partition)
{
    rp_partition_free(run->partition);
    run->partition = partition;
}

gboolean
rp_advise_fit_least(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    guint most = MAX(1, MIN(LEAST_MAX_BLOCKS, rp_profile_n_blocks(profile)));
    guint64 least_over = G_MAXUINT64;
    g_autoptr(RpPartition) least = NULL;

    for (guint blocks = 1; blocks <= most; blocks++) {
        rp_advise_set_partition(run, blocks == 1 ? rp_partition_least(profile)
                                                 : rp_partition_even(profile, blocks));
        if (rp_advise_fits(query, profile, run))
            return TRUE;
        if (run->gpu_over_bytes == 0 && run->host_over_bytes == 0)
            return FALSE; /* not for want of memory */
        /* longer stages need more of the device still: then host memory is what is missing */
        if (run->gpu_over_bytes > 0 && least != NULL)
            break;
        if (run->host_over_bytes < least_over) {
            least_over = run->host_over_bytes;
            rp_partition_free(least);
            least = rp_partition_copy(run->partition);
        }
        if (run->gpu_over_bytes > 0)
            break;
    }
    if (least == NULL)
        return FALSE;
    rp_advise_set_partition(run, g_steal_pointer(&least));
    return rp_advise_fits(query, profile, run);
}

/* Plans rp_partition_paper() under @limit, unless it is one of @tried, which it is added to. Returns: whether there is
 * such a partition. */
static gboolean
try_limit(const RpAdviseQuery *query, const RpProfile *profile, guint64 limit, GPtrArray *tried,
          RpAdviseRun *run)
{
    RpPartition *partition = rp_partition_paper(profile, rp_plan_group_gpus(&run->options),
                                                rp_plan_whole_round(&run->options), limit, NULL);

    if (partition == NULL)
        return FALSE;
    for (guint i = 0; i < tried->len; i++) {
        const RpAdviseRun *known = g_ptr_array_index(tried, i);

        if (!rp_partition_equal(known->partition, partition))
            continue;
        rp_partition_free(partition);
        rp_advise_run_set(run, known);
        return TRUE;
    }
    rp_advise_set_partition(run, partition);
    rp_advise_fits(query, profile, run);
    g_ptr_array_add(tried, rp_advise_run_copy(run));
    return TRUE;
}

/*
 * A limit holds for every stage by itself. The arena holds the largest of everything, one stage's
 * parameters beside another's activations, but shares room where stages are not alike. So the limit
 * that the whole plan fits under is bisected; it may be above the device's memory.
 */
gboolean
rp_advise_fit_limit(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    guint64 low = 0;
    guint64 high = LIMIT_RANGE * query->gpu_bytes;
    g_autoptr(GPtrArray) tried = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    g_autoptr(RpAdviseRun) best = NULL;

    if (try_limit(query, profile, high, tried, run) && run->problem == NULL)
        return TRUE;
    for (guint i = 0; high != 0 && i < LIMIT_STEPS; i++) {
        guint64 middle = low + (high - low) / 2;

        if (!try_limit(query, profile, middle, tried, run)) {
            low = middle;
            continue;
        }
        if (run->gpu_over_bytes > 0) {
            high = middle;
            continue;
        }
        low = middle;
        if (run->problem == NULL) {
            rp_advise_run_free(best);
            best = rp_advise_run_copy(run);
        }
    }
    if (best == NULL)
        return rp_advise_fit_least(query, profile, run);
    rp_advise_run_set(run, best);
    return TRUE;
}

/* The plan of @query that needs least; with @profile_out by category. Returns: %NULL if the cost
 * model refuses the workload. */
RpAdviseRun *
rp_advise_least(const RpAdviseQuery *query, RpProfile **profile_out, GError **error)
{
    guint sequences = query->micro_batch == 0 && query->profile != NULL
                          ? MAX(1, query->profile->sequences)
                          : MAX(1, query->micro_batch);
    guint micro_batches = query->batch / sequences;
    g_autoptr(RpProfile) profile = rp_advise_profile(query, sequences, error);

    if (profile == NULL)
        return NULL;
    RpAdviseRun *run = rp_advise_run_new(query, rp_advise_roundpipe(), sequences, micro_batches,
                                         rp_advise_next_round(query, micro_batches, 1));

    run->options.resident_limit = 0; /* it needs none */
    run = rp_advise_in_one_round(query, profile, run, rp_advise_fit_least);
    if (profile_out != NULL) {
        rp_advise_measure(query, profile, run);
        *profile_out = g_steal_pointer(&profile);
    }
    return run;
}
