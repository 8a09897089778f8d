/* Plans that fit: exact arenas, partitions under a memory limit, and their simulation. */
#include "sim/advise.h"

#include "core/cost-model.h"
#include "core/report.h"
#include "core/units.h"
#include "sim/partition-cost.h"
#include "sim/simulate.h"

/* Halvings of the limit per stage, where it starts (times the device's memory), and the most blocks
 * a stage that rp_advise_fit_least() tries. */
#define LIMIT_STEPS 11
#define LIMIT_RANGE 2
#define LEAST_MAX_BLOCKS 16
/* Bound schedules: stages per device beyond this only add hops. */
#define MAX_STAGES_PER_GPU 8
/* Actions of an iteration, and of all iterations, that are simulated at once; what is longer is cut
 * to whole rounds and scaled. */
#define ITERATION_ACTIONS 12000
#define WINDOW_ACTIONS 60000
#define WINDOW_ACTIONS_COMPUTE 400000
/* Actions simulated in a search for one partition. */
#define SEARCH_ACTIONS 200000
#define SEARCH_ACTIONS_BOUND 30000
/* Warm-up of a simulation, iterations: rp_steady_window()'s, and a quick one's. */
#define WARM_UP 4
#define QUICK_WARM_UP 2

void
rp_advise_run_free(RpAdviseRun *run)
{
    if (run == NULL)
        return;
    rp_partition_free(run->partition);
    g_free(run->problem);
    g_free(run);
}

RpProfile *
rp_advise_profile(const RpAdviseQuery *query, guint sequences, GError **error)
{
    RpWorkload workload = {
        .sequences = sequences,
        .tokens_per_sequence = query->tokens_per_sequence,
        .dtype = query->dtype,
        .accumulate = query->accumulate,
        .lora_rank = query->lora_rank,
        .gpus = query->gpus,
    };

    if (query->profile != NULL)
        return rp_profile_copy(query->profile);
    return rp_cost_model_profile(query->model, query->gpu, &workload, error);
}

RpAdviseRun *
rp_advise_run_new(const RpAdviseQuery *query, const RpScheduleOps *schedule, guint sequences,
                  guint micro_batches, guint round)
{
    RpAdviseRun *run = g_new0(RpAdviseRun, 1);

    run->sequences = sequences;
    run->options = (RpPlanOptions){
        .schedule = schedule,
        .gpus = query->gpus,
        .micro_batches = micro_batches,
        .round = schedule->dispatched ? round : micro_batches,
        .async = schedule->dispatched && !query->sync,
        .fidelity = RP_FIDELITY_FULL,
        .optimizer = query->optimizer,
        .constant_bytes = query->constant_bytes,
    };
    return run;
}

/* ---- how much is simulated ---- */

static guint
count_stages(const RpPartition *partition)
{
    return partition->n_forward + partition->n_backward;
}

/* Micro-batches in whole rounds, or of a bound schedule in groups of N; at least two of them. */
static guint
cut_micro_batches(const RpPartition *partition, const RpPlanOptions *options)
{
    guint unit = options->schedule->dispatched ? options->round : options->gpus;
    guint units = ITERATION_ACTIONS / count_stages(partition) / unit;

    return options->micro_batches / unit <= MAX(2, units) ? options->micro_batches
                                                          : MAX(2, units) * unit;
}

static RpSteadyWindow
window_of(const RpPartition *partition, const RpPlanOptions *options, guint warm_up)
{
    guint rounds = options->micro_batches / options->round;
    RpSteadyWindow window = rp_steady_window(options->gpus, count_stages(partition) * rounds);
    guint64 actions = (guint64)options->micro_batches * count_stages(partition);
    guint64 most = options->fidelity == RP_FIDELITY_FULL ? WINDOW_ACTIONS : WINDOW_ACTIONS_COMPUTE;
    guint period = window.end - window.first;

    /* synchronous: every iteration is like the second */
    if (!options->async)
        return (RpSteadyWindow){.iterations = 3, .first = 1, .end = 2};
    window.first = MIN(window.first, warm_up);
    window.end = window.first + (guint)CLAMP(most / actions, 2, period) / 2 * 2;
    window.iterations = window.end + 1;
    return window;
}

static void
set_problem(RpAdviseRun *run, char *problem)
{
    g_free(run->problem);
    run->problem = problem;
}

static void
take_error(RpAdviseRun *run, GError *error)
{
    set_problem(run, g_strdup(error != NULL ? error->message : "unknown"));
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

/* Categories take longer to read than the whole plan to lay out: a search does without. */
static void
read_arenas(const RpPlan *plan, gboolean by_category, RpAdviseRun *run)
{
    guint32 host = rp_plan_gpus(plan);
    guint32 fullest = 0;

    for (guint32 g = 1; g < host; g++)
        if (rp_plan_arena_bytes(plan, g) > rp_plan_arena_bytes(plan, fullest))
            fullest = g;
    run->gpu = read_arena(plan, fullest, by_category);
    run->host = read_arena(plan, host, by_category);
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
        set_problem(run, describe_excess("a GPU", run->gpu_over_bytes, &run->gpu));
    else if (run->host_over_bytes > 0)
        set_problem(run, describe_excess("host memory", run->host_over_bytes, &run->host));
    return run->gpu_over_bytes == 0 && run->host_over_bytes == 0;
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
    g_autoptr(RpPlanner) planner = rp_planner_new(profile, run->partition, &options, &error);

    /* a bound schedule's stash grows while its order is laid out */
    if (planner == NULL || (!dispatched && !rp_planner_append_iteration(planner, &error))) {
        take_error(run, error);
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
    guint cut = cut_micro_batches(run->partition, options);
    guint half = cut / options->gpus / 2 * options->gpus;
    RpAdviseRun less = {.options = run->options, .partition = run->partition};

    set_problem(run, NULL);
    /* a dispatched plan has the same buffers for any number of rounds above one */
    if (dispatched || cut == all)
        return lay_out(profile, dispatched ? MIN(all, 2 * options->round) : all, by_category,
                       run) &&
               check_limits(query, run);
    if (!lay_out(profile, half, by_category, &less)) {
        set_problem(run, less.problem);
        return FALSE;
    }
    if (!lay_out(profile, cut, by_category, run))
        return FALSE;
    extrapolate_bytes(&run->gpu, &less.gpu, all - cut, cut - half);
    extrapolate_bytes(&run->host, &less.host, all - cut, cut - half);
    return check_limits(query, run);
}

/* Totals only, and a preliminary message. */
static gboolean
fits(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    return measure(query, profile, FALSE, run);
}

gboolean
rp_advise_measure(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    return measure(query, profile, TRUE, run);
}

static void
set_partition(RpAdviseRun *run, RpPartition *partition)
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
        set_partition(run, blocks == 1 ? rp_partition_least(profile)
                                       : rp_partition_even(profile, blocks));
        if (fits(query, profile, run))
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
    set_partition(run, g_steal_pointer(&least));
    return fits(query, profile, run);
}

/* Plans rp_partition_paper() under @limit. Returns: whether there is such a partition. */
static gboolean
try_limit(const RpAdviseQuery *query, const RpProfile *profile, guint64 limit, RpAdviseRun *run)
{
    RpPartition *partition =
        rp_partition_paper(profile, run->options.gpus, run->options.micro_batches, limit, NULL);

    if (partition == NULL)
        return FALSE;
    set_partition(run, partition);
    fits(query, profile, run);
    return TRUE;
}

/*
 * A limit holds for every stage by itself. The arena holds the largest of everything, one stage's
 * parameters beside another's activations, but shares room where stages are not alike. So the limit
 * that the whole plan fits under is bisected; it may be above the device's memory.
 */
static gboolean
fit(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    guint64 low = 0;
    guint64 high = LIMIT_RANGE * query->gpu_bytes;
    g_autoptr(RpPartition) best = NULL;

    if (try_limit(query, profile, high, run) && run->problem == NULL)
        return TRUE;
    for (guint i = 0; high != 0 && i < LIMIT_STEPS; i++) {
        guint64 middle = low + (high - low) / 2;

        if (!try_limit(query, profile, middle, run)) {
            low = middle;
            continue;
        }
        if (run->gpu_over_bytes > 0) {
            high = middle;
            continue;
        }
        low = middle;
        if (run->problem == NULL) {
            rp_partition_free(best);
            best = rp_partition_copy(run->partition);
        }
    }
    if (best == NULL)
        return rp_advise_fit_least(query, profile, run);
    set_partition(run, g_steal_pointer(&best));
    return fits(query, profile, run);
}

/* ---- simulated time, `compute` fidelity ---- */

typedef struct {
    const RpAdviseQuery *query;
    const RpProfile *profile;
    const RpPlanOptions *options;
} Judge;

/*
 * Asynchronous rounds follow each other without a gap, whether of one iteration or of two, so that
 * iterations of fewer rounds R tell the time of a round as well - unless an iteration T then waits
 * for the weights of T - 2. Slots of time t, M_R of them in each of S stages on N devices:
 *
 *   end(T-2) - start(T-2) = (S + M_R) t   <=   start(T) - start(T-2) = 2 R S M_R t / N
 */
static guint
enough_rounds(const RpPartition *partition, const RpPlanOptions *options)
{
    guint64 stages = count_stages(partition);
    guint64 twice = 2 * stages * options->round;
    guint64 rounds = ((stages + options->round) * options->gpus + twice - 1) / twice;

    /* fewer stages than devices start side by side instead of one after the other: two turns of
     * all devices keep the weights of T - 2 ahead of T then, too */
    if (stages < options->gpus)
        rounds = MAX(rounds, (2 * options->gpus + stages - 1) / stages);
    return (guint)MIN(rounds, options->micro_batches / options->round);
}

/* Time of an iteration. */
static gint64
compute_ns(const Judge *judge, const RpPartition *partition)
{
    RpPlanOptions options = *judge->options;
    const RpMachine machine = rp_machine_from_profile(judge->profile);

    options.fidelity = RP_FIDELITY_COMPUTE;
    options.fused_forward = RP_FUSED_PHYSICAL;
    options.micro_batches = options.async ? enough_rounds(partition, &options) * options.round
                                          : cut_micro_batches(partition, &options);
    if (!options.schedule->dispatched)
        options.round = options.micro_batches;
    RpSteadyWindow window = window_of(partition, &options, WARM_UP);
    g_autoptr(RpPlan) plan = rp_plan_make(judge->profile, partition, &options,
                                          options.async ? window.iterations : 1, NULL);
    if (plan == NULL)
        return G_MAXINT64;
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, NULL);
    if (trace == NULL)
        return G_MAXINT64;
    gint64 ns = options.async ? rp_report_steady(trace, window.first, window.end).iteration_ns
                              : rp_trace_makespan_ns(trace);

    return (gint64)((double)ns * judge->options->micro_batches / options.micro_batches);
}

/* Only partitions whose whole plan fits have a cost. */
static gint64
judge_fitting(const RpPartition *candidate, guint round, gpointer user_data)
{
    const Judge *judge = user_data;
    RpAdviseRun run = {.options = *judge->options, .partition = (RpPartition *)candidate};
    gboolean possible = fits(judge->query, judge->profile, &run);

    g_free(run.problem);
    return possible ? compute_ns(judge, candidate) : G_MAXINT64;
}

static gint64
judge_time(const RpPartition *candidate, guint round, gpointer user_data)
{
    return compute_ns(user_data, candidate);
}

static double
tokens_per_second(const RpProfile *profile, const RpAdviseRun *run, gint64 ns)
{
    double tokens =
        (double)rp_profile_micro_batch_tokens(profile) * (double)run->options.micro_batches;

    return ns > 0 && ns < G_MAXINT64 ? tokens / ((double)ns / (double)RP_NS_PER_S) : 0;
}

/* The whole model as one fused stage: nothing is recomputed, and each round has a device of its
 * own. Where memory allows it, that is hard to beat. */
static void
try_one_stage(const Judge *judge, RpAdviseRun *run)
{
    RpInterval all = {0, judge->profile->n_layers};
    g_autoptr(RpPartition) one = rp_partition_new_dispatched(NULL, 0, &all, 1);
    RpAdviseRun other = {.options = run->options, .partition = one};
    gboolean possible = fits(judge->query, judge->profile, &other);

    g_free(other.problem);
    if (!possible || compute_ns(judge, one) >= compute_ns(judge, run->partition))
        return;
    set_partition(run, g_steal_pointer(&one));
    fits(judge->query, judge->profile, run);
}

gboolean
rp_advise_fit(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    Judge judge = {query, profile, &run->options};

    if (!fit(query, profile, run))
        return FALSE;
    try_one_stage(&judge, run);
    run->bound_tokens_per_s = tokens_per_second(profile, run, compute_ns(&judge, run->partition));
    return TRUE;
}

static guint64
largest_stage_bytes(const RpProfile *profile, const RpPartition *partition)
{
    guint64 bytes = 0;

    for (guint s = 0; s < partition->n_forward; s++)
        bytes = MAX(bytes, rp_stage_memory_bytes(profile, partition->forward[s], RP_PHASE_FORWARD));
    for (guint b = 0; b < partition->n_backward; b++)
        bytes = MAX(bytes, rp_stage_memory_bytes(profile, partition->backward[b],
                                                 b == 0 ? RP_PHASE_FUSED : RP_PHASE_BACKWARD));
    return bytes;
}

void
rp_advise_improve(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
                  guint max_candidates)
{
    Judge judge = {query, profile, &run->options};
    guint64 actions = (guint64)run->options.round * count_stages(run->partition);
    RpPartitionSearch search = {
        .gpus = run->options.gpus,
        .micro_batches = run->options.micro_batches,
        .round = run->options.round,
        .memory_bytes = query->gpu_bytes != 0 ? largest_stage_bytes(profile, run->partition) : 0,
        .max_candidates = (guint)CLAMP(SEARCH_ACTIONS / actions, 1, max_candidates),
    };
    guint round = 0;
    gint64 before_ns = compute_ns(&judge, run->partition);
    g_autoptr(RpPartition) found =
        rp_partition_search_dispatched(profile, &search, judge_fitting, &judge, &round, NULL);
    gint64 found_ns = found != NULL ? judge_fitting(found, round, &judge) : G_MAXINT64;

    if (found_ns < before_ns) {
        set_partition(run, g_steal_pointer(&found));
        fits(query, profile, run);
    }
    run->bound_tokens_per_s = tokens_per_second(profile, run, MIN(before_ns, found_ns));
}

/* ---- bound schedules ---- */

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
choose_stages(const Judge *judge, RpAdviseRun *run)
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
        gint64 ns = even != NULL ? compute_ns(judge, even) : G_MAXINT64;

        if (ns >= best_ns)
            continue;
        best_ns = ns;
        best = v * gpus;
        set_partition(run, g_steal_pointer(&even));
    }
    if (best != 0)
        return best;
    /* once more, for the message */
    g_autoptr(RpPartition) even = rp_partition_min_max(judge->profile, first * gpus, &error);
    g_autoptr(RpPlanner) planner =
        even != NULL ? rp_planner_new(judge->profile, even, &run->options, &error) : NULL;

    if (planner == NULL)
        take_error(run, error);
    else
        set_problem(run, g_strdup("its order cannot run with these numbers"));
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
    set_problem(run, g_strdup_printf("%.1f GiB too much for a GPU in weights and gradient sums "
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
        if (run->partition != NULL && fits(query, profile, run))
            return TRUE;
        set_partition(run, g_steal_pointer(&kept));
    }
    return FALSE;
}

gboolean
rp_advise_fit_bound(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
                    guint max_candidates)
{
    Judge judge = {query, profile, &run->options};
    RpPartitionSearch search = {
        .gpus = run->options.gpus,
        .micro_batches = run->options.micro_batches,
        .round = run->options.round,
    };
    guint stages = choose_stages(&judge, run);
    guint64 actions = MAX(1, (guint64)stages * run->options.micro_batches);

    if (stages == 0)
        return FALSE;
    search.max_candidates = (guint)CLAMP(SEARCH_ACTIONS_BOUND / actions, 1, max_candidates);
    if (!fits(query, profile, run)) {
        if (fit_other_stages(query, profile, run))
            return TRUE;
        rp_advise_measure(query, profile, run);
        blame_weights(query, run);
        return FALSE;
    }
    g_autoptr(RpPartition) even = g_steal_pointer(&run->partition);
    set_partition(run,
                  rp_partition_search_bound(profile, stages, &search, judge_time, &judge, NULL));
    if (run->partition != NULL && fits(query, profile, run))
        return TRUE;
    set_partition(run, g_steal_pointer(&even));
    return fits(query, profile, run);
}

/* ---- full fidelity ---- */

static gboolean
simulate(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *given,
         guint micro_batches, guint warm_up, RpSteady *steady, GError **error)
{
    RpPlanOptions options = *given;
    RpMachine machine = rp_machine_from_profile(profile);

    options.micro_batches = micro_batches;
    if (!options.schedule->dispatched)
        options.round = micro_batches;
    RpSteadyWindow window = window_of(partition, &options, warm_up);
    g_autoptr(RpPlan) plan = rp_plan_make(profile, partition, &options, window.iterations, error);

    if (plan == NULL)
        return FALSE;
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, error);

    if (trace == NULL)
        return FALSE;
    *steady = rp_report_steady(trace, window.first, window.end);
    return TRUE;
}

/* A synchronous iteration is so long and so much more for each micro-batch, an asynchronous one
 * only the latter: @half has @micro_batches / 2 of @run's. */
static void
set_figures(const RpProfile *profile, RpAdviseRun *run, guint micro_batches, const RpSteady *steady,
            guint half_micro_batches, const RpSteady *half)
{
    double times = (double)run->options.micro_batches / micro_batches;
    double step_ns = times * (double)steady->iteration_ns;
    double busy = times * (1 - steady->ratio) * (double)steady->iteration_ns;

    if (half_micro_batches > 0)
        step_ns =
            (double)steady->iteration_ns + (double)(run->options.micro_batches - micro_batches) *
                                               (double)(steady->iteration_ns - half->iteration_ns) /
                                               (double)(micro_batches - half_micro_batches);
    run->simulated_micro_batches = micro_batches;
    run->step_ns = (gint64)step_ns;
    run->bubble_ratio = step_ns > 0 ? 1 - busy / step_ns : 0;
    run->tokens_per_s = tokens_per_second(profile, run, run->step_ns);
    run->simulated = TRUE;
}

gboolean
rp_advise_simulate(const RpProfile *profile, RpAdviseRun *run, gboolean quick, GError **error)
{
    const RpPlanOptions *options = &run->options;
    guint unit = options->schedule->dispatched ? options->round : options->gpus;
    guint micro_batches = cut_micro_batches(run->partition, options);
    guint half_micro_batches = micro_batches / unit / 2 * unit;
    guint warm_up = quick ? QUICK_WARM_UP : WARM_UP;
    RpSteady steady, half = {0};

    if (micro_batches == options->micro_batches || options->async)
        half_micro_batches = 0;
    if (!simulate(profile, run->partition, options, micro_batches, warm_up, &steady, error) ||
        (half_micro_batches > 0 &&
         !simulate(profile, run->partition, options, half_micro_batches, warm_up, &half, error)))
        return FALSE;
    set_figures(profile, run, micro_batches, &steady, half_micro_batches, &half);
    return TRUE;
}
