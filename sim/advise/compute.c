/* Partitions compared by simulated time, `compute` fidelity. */
#include "sim/advise/private.h"

#include "core/base/units.h"
#include "core/profile/cards.h"
#include "core/trace/report.h"
#include "sim/recurrence/recurrence.h"
#include "sim/search/dispatched.h"
#include "sim/search/partition-bound.h"
#include "sim/simulate.h"
#include "sim/steady-window.h"

/* Actions simulated in a search for one partition. */
#define SEARCH_ACTIONS 200000
/* For each candidate that is asked for: actions of the recurrence, and of iterations of a stage a
 * layer where these are long; partitions that are looked at more closely. */
#define SHAPE_ACTIONS G_GUINT64_CONSTANT(100000)
#define SHAPES 40
#define MAX_SHAPES 8

/* The result of the plan's simulation, without a plan. */
static gint64
dispatched_ns(const RpProfile *profile, const RpPartition *partition, const RpPlanOptions *options,
              const RpSteadyWindow *window)
{
    RpSpan span = {.micro_batches = options->micro_batches, .round = options->round};

    if (options->round < options->gpus)
        return G_MAXINT64;
    if (options->async) {
        span.first = window->first;
        span.end = window->end;
    }
    g_autoptr(RpRecurrence) recurrence = rp_recurrence_new(profile, options);
    g_autoptr(RpCut) cut = rp_cut_new(profile->n_layers);

    rp_cut_read(cut, partition);
    return rp_recurrence_time_ns(recurrence, cut, &span, G_MAXINT64);
}

RpPlanOptions
rp_advise_one_group(const RpPlanOptions *options)
{
    RpPlanOptions group = *options;

    group.gpus = rp_plan_group_gpus(options);
    group.micro_batches = rp_plan_whole_round(options);
    group.replicas = 1;
    return group;
}

gint64
rp_advise_scoring_ns(const RpAdviseQuery *query, const RpProfile *profile,
                     const RpPlanOptions *options)
{
    const double share = (double)rp_plan_whole_round(options) / rp_plan_group_gpus(options);
    double ns = 0;

    for (guint l = 0; l < profile->n_layers; l++)
        ns += (double)profile->layers[l].forward_ns;
    return rp_reference_is_scored(query->preference.reference) && !rp_profile_is_mixed(profile)
               ? (gint64)(share * ns)
               : 0;
}

/* Time of an iteration without scoring. */
static gint64
compute_ns(const RpAdviseJudge *judge, const RpPartition *partition)
{
    RpPlanOptions options = *judge->options;
    const RpMachine machine = rp_machine_from_profile(judge->profile);
    const guint all = rp_plan_whole_round(&options);

    options = rp_advise_one_group(&options);
    options.fidelity = RP_FIDELITY_COMPUTE;
    options.fused_forward = RP_FUSED_PHYSICAL;
    options.micro_batches = options.async ? rp_enough_rounds(rp_advise_count_stages(partition),
                                                             options.round, &options) *
                                                options.round
                                          : rp_advise_cut(partition, &options);
    if (!options.schedule->dispatched)
        options.round = options.micro_batches;
    RpSteadyWindow window = rp_advise_window(partition, &options, RP_ADVISE_WARM_UP);
    if (options.schedule->dispatched && !rp_profile_is_mixed(judge->profile)) {
        gint64 slots_ns = dispatched_ns(judge->profile, partition, &options, &window);

        return slots_ns == G_MAXINT64 ? slots_ns
                                      : (gint64)((double)slots_ns * all / options.micro_batches);
    }
    g_autoptr(RpPlan) plan = rp_plan_make(judge->profile, partition, &options,
                                          options.async ? window.iterations : 1, NULL);
    if (plan == NULL)
        return G_MAXINT64;
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, NULL);
    if (trace == NULL)
        return G_MAXINT64;
    gint64 ns = options.async ? rp_report_steady(trace, window.first, window.end).iteration_ns
                              : rp_trace_makespan_ns(trace);

    return (gint64)((double)ns * all / options.micro_batches);
}

gint64
rp_advise_compute_ns(const RpAdviseJudge *judge, const RpPartition *partition)
{
    const gint64 ns = compute_ns(judge, partition);

    return ns < G_MAXINT64 ? ns + rp_advise_scoring_ns(judge->query, judge->profile, judge->options)
                           : ns;
}

typedef struct {
    RpAdviseJudge judge;
    gint64 best_ns; /* so far */
} FittingJudge;

/* Partitions whose whole plan does not fit have no cost if they were the best, and are not looked at more
 * closely if not: a plan takes longer than its time. */
static gint64
judge_fitting(const RpPartition *candidate, guint round, gpointer user_data)
{
    FittingJudge *fitting = user_data;
    const RpAdviseJudge *judge = &fitting->judge;
    RpAdviseRun run = {.options = *judge->options, .partition = (RpPartition *)candidate};
    const gint64 ns = rp_advise_compute_ns(judge, candidate);

    if (ns >= fitting->best_ns)
        return ns;
    gboolean possible = rp_advise_fits(judge->query, judge->profile, &run);

    g_free(run.problem);
    if (!possible)
        return G_MAXINT64;
    fitting->best_ns = ns;
    return ns;
}

static RpDispatchedSearch
search_of(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run)
{
    RpDispatchedSearch search = {
        .profile = profile,
        .options = rp_advise_one_group(&run->options),
        .memory_bytes = query->gpu_bytes,
    };

    search.options.fidelity = RP_FIDELITY_COMPUTE;
    search.options.fused_forward = RP_FUSED_PHYSICAL;
    return search;
}

/* The whole model as one fused stage: nothing is recomputed, and each round has a device of its
 * own. Where memory allows it, that is hard to beat. */
static void
try_one_stage(const RpAdviseJudge *judge, RpAdviseRun *run)
{
    RpInterval all = {0, judge->profile->n_layers};
    g_autoptr(RpPartition) one = rp_partition_new_dispatched(NULL, 0, &all, 1);
    RpAdviseRun other = {.options = run->options, .partition = one};
    gboolean possible = rp_advise_fits(judge->query, judge->profile, &other);

    g_free(other.problem);
    if (!possible ||
        rp_advise_compute_ns(judge, one) >= rp_advise_compute_ns(judge, run->partition))
        return;
    rp_advise_set_partition(run, g_steal_pointer(&one));
    rp_advise_fits(judge->query, judge->profile, run);
}

/* Times of forwards and recomputes of @profile that are no shorter than the copies of what they save, where all
 * cards of a root copy at once: buffers hold what two actions save. */
static RpProfile *
slowed_by_copies(const RpProfile *profile, guint gpus)
{
    RpProfile *slowed = rp_profile_copy(profile);
    const RpLinks *links = &profile->links;
    const double root = links->gpus_per_root > 0 && links->root_bytes_per_s > 0
                            ? links->root_bytes_per_s / MIN(links->gpus_per_root, gpus)
                            : G_MAXDOUBLE;

    for (guint l = 0; l < slowed->n_layers; l++) {
        RpLayer *layer = &slowed->layers[l];
        const double bytes = (double)rp_layer_saved_bytes(layer) * (double)RP_NS_PER_S;
        const double down_ns = bytes / MIN(links->d2h_bytes_per_s, root);
        const double up_ns = bytes / MIN(links->h2d_bytes_per_s, root);

        layer->forward_ns = MAX(layer->forward_ns, (gint64)down_ns);
        layer->backward_ns = MAX(layer->backward_ns, (gint64)up_ns);
    }
    return slowed;
}

gint64
rp_advise_bound_ns(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run)
{
    g_autoptr(RpProfile) slowed = slowed_by_copies(profile, query->gpus);
    RpDispatchedSearch search = search_of(query, slowed, run);

    search.options.round = query->round;
    const gint64 ns = rp_dispatched_bound_ns(&search);

    return ns > 0 && ns < G_MAXINT64 ? ns + rp_advise_scoring_ns(query, profile, &run->options)
                                     : ns;
}

gboolean
rp_advise_fit(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run)
{
    RpAdviseJudge judge = {query, profile, &run->options};

    if (!rp_advise_fit_limit(query, profile, run))
        return FALSE;
    try_one_stage(&judge, run);
    run->bound_tokens_per_s =
        rp_advise_tokens_per_s(profile, run, rp_advise_bound_ns(query, profile, run));
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

/* Adds @run with @partition, which it takes, to @found if that fits and is new. */
static void
add_fitting(const RpAdviseJudge *judge, const RpAdviseRun *run, RpPartition *partition,
            GPtrArray *found)
{
    if (partition == NULL)
        return;
    for (guint i = 0; i < found->len; i++)
        if (rp_partition_equal(((RpAdviseRun *)g_ptr_array_index(found, i))->partition,
                               partition)) {
            rp_partition_free(partition);
            return;
        }
    RpAdviseRun *other = rp_advise_run_copy(run);
    rp_advise_set_partition(other, partition);
    other->finished = FALSE;
    other->step_ns = rp_advise_fits(judge->query, judge->profile, other)
                         ? rp_advise_compute_ns(judge, partition)
                         : G_MAXINT64;
    other->bound_tokens_per_s = rp_advise_tokens_per_s(judge->profile, other, other->step_ns);
    if (other->step_ns < G_MAXINT64)
        g_ptr_array_add(found, other);
    else
        rp_advise_run_free(other);
}

/* Partitions of any shape, by annealing: tapered stages, other numbers of stages. */
static void
search_shapes(const RpAdviseJudge *judge, const RpAdviseRun *run, guint max_candidates,
              GPtrArray *runs)
{
    guint64 iteration = (guint64)run->options.micro_batches * judge->profile->n_layers;
    RpDispatchedSearch search = search_of(judge->query, judge->profile, run);

    search.actions = max_candidates * MAX(SHAPE_ACTIONS, SHAPES * iteration);
    search.start = rp_advise_fastest(runs)->partition;
    g_autoptr(GPtrArray) found = rp_search_dispatched(&search, MAX_SHAPES);

    for (guint i = 0; i < found->len; i++)
        add_fitting(judge, run, rp_cut_partition(((RpFinding *)g_ptr_array_index(found, i))->cut),
                    runs);
}

GPtrArray *
rp_advise_partitions(const RpAdviseQuery *query, const RpProfile *profile, const RpAdviseRun *run,
                     guint max_candidates)
{
    RpPlanOptions quick = run->options;
    FittingJudge searching = {{query, profile, &quick}, G_MAXINT64};
    const RpAdviseJudge judge = {query, profile, &run->options};
    guint64 actions = (guint64)run->options.round * rp_advise_count_stages(run->partition);
    if (rp_profile_is_mixed(profile))
        actions *=
            4 * rp_advise_window(run->partition, &run->options, RP_ADVISE_WARM_UP).iterations;
    RpPartitionSearch search = {
        .gpus = rp_plan_group_gpus(&run->options),
        .micro_batches = rp_plan_whole_round(&run->options),
        .round = run->options.round,
        .memory_bytes = query->gpu_bytes != 0 ? largest_stage_bytes(profile, run->partition) : 0,
        .max_candidates = (guint)CLAMP(SEARCH_ACTIONS / actions, 1, max_candidates),
    };
    GPtrArray *found = g_ptr_array_new_with_free_func((GDestroyNotify)rp_advise_run_free);
    guint round = 0;

    /* to look for the best of each partition takes six times as long */
    if (quick.dispatch == RP_DISPATCH_FREE)
        quick.dispatch_rule = rp_planner_choose_rule(profile, run->partition, &quick);
    add_fitting(&judge, run, rp_partition_copy(run->partition), found);
    add_fitting(
        &judge, run,
        rp_partition_search_dispatched(profile, &search, judge_fitting, &searching, &round, NULL),
        found);
    if (found->len == 0)
        return found;
    search_shapes(&judge, run, max_candidates, found);
    return found;
}

void
rp_advise_improve(const RpAdviseQuery *query, const RpProfile *profile, RpAdviseRun *run,
                  guint max_candidates)
{
    g_autoptr(GPtrArray) found = rp_advise_partitions(query, profile, run, max_candidates);

    if (found->len == 0)
        return;
    rp_advise_set_partition(run, rp_partition_copy(rp_advise_fastest(found)->partition));
    run->bound_tokens_per_s = rp_advise_fastest(found)->bound_tokens_per_s;
    rp_advise_fits(query, profile, run);
}
