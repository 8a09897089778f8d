#include "sim/partition-cost.h"

#include "core/units.h"
#include "sim/simulate.h"

#define SEARCH_WARM_UP 4 /* iterations, while searching … */
#define SEARCH_TURNS 16  /* … and slots of each device that its mean is taken over */
#define SYNC_CANDIDATES 400
#define ASYNC_CANDIDATES 150
#define LEAST_CANDIDATES 20
#define SEARCHED_ACTIONS 32768 /* of an iteration, each way; longer ones are cut for the search */
#define CHEAP_ACTIONS 8192     /* of an iteration for which so many candidates are tried */
#define PAPER_ATTEMPTS 16
#define FULL_ROUNDS 4       /* round sizes that are compared with every transfer */
#define FULL_CANDIDATES 120 /* for each of them, in `compute` fidelity */
#define SETTLING_TURNS 64   /* slots that each device runs before the rhythm is steady */

/* Iterations until each device has run @turns slots; never fewer than four, and an even number. */
static guint
settling_iterations(guint turns, guint gpus, guint slots)
{
    return CLAMP(turns / MAX(1, slots / gpus), 4, turns) / 2 * 2;
}

static guint
greatest_common_divisor(guint a, guint b)
{
    while (b != 0) {
        guint rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

RpSteadyWindow
rp_steady_window(guint gpus, guint slots)
{
    guint warm_up = settling_iterations(SETTLING_TURNS, gpus, slots);
    guint turn = gpus / greatest_common_divisor(slots, gpus);
    guint period = turn % 2 == 0 ? turn : 2 * turn; /* the update of T is for T + 2 */
    RpSteadyWindow window = {
        .first = warm_up,
        .end = warm_up + period,
        .iterations = warm_up + period + 1,
    };

    return window;
}

typedef struct {
    const RpProfile *profile;
    RpPlanOptions options;
    guint least_slots;    /* dispatched: N, unless the model is too small for it, and ... */
    gboolean all_rounds;  /* ... whether an iteration's slots count, or a round's (the paper's) */
    guint64 memory_bytes; /* dispatched: of the whole arena; 0 = no limit */
} CostContext;

static gboolean
fits(const CostContext *context, const RpPartition *partition)
{
    return context->memory_bytes == 0 ||
           rp_plan_dispatched_gpu_bytes(context->profile, partition) +
                   rp_align_up(context->options.constant_bytes, RP_BUFFER_ALIGNMENT) <=
               context->memory_bytes;
}

static gint64
simulated_cost(const RpPartition *candidate, guint round, gpointer user_data)
{
    const CostContext *context = user_data;
    RpPlanOptions options = context->options;
    const RpMachine machine = rp_machine_from_profile(context->profile);
    guint slots = (candidate->n_forward + candidate->n_backward) * (options.micro_batches / round);
    guint end = SEARCH_WARM_UP + settling_iterations(SEARCH_TURNS, options.gpus, slots);

    if (candidate->dispatched &&
        ((context->all_rounds ? slots : candidate->n_forward + candidate->n_backward) <
             context->least_slots ||
         !fits(context, candidate)))
        return G_MAXINT64;
    options.round = round;
    g_autoptr(RpPlan) plan =
        rp_plan_make(context->profile, candidate, &options, options.async ? end + 1 : 1, NULL);
    if (plan == NULL)
        return G_MAXINT64;
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, NULL);
    if (trace == NULL)
        return G_MAXINT64;
    if (options.async)
        return rp_report_steady(trace, SEARCH_WARM_UP, end).iteration_ns;
    return rp_trace_makespan_ns(trace);
}

guint
rp_partition_default_stages(const RpProfile *profile, const RpScheduleOps *schedule, guint gpus)
{
    guint per_gpu = schedule->stages_per_gpu;

    if (per_gpu == 0)
        per_gpu = MAX(1, rp_profile_n_blocks(profile) / gpus);
    return per_gpu * gpus;
}

static RpPartition *
choose_bound(const RpProfile *profile, const CostContext *context, const RpPartitionSearch *search,
             RpObjective objective, guint n_stages, GError **error)
{
    const RpScheduleOps *schedule = context->options.schedule;
    guint most =
        n_stages != 0 ? n_stages : rp_partition_default_stages(profile, schedule, search->gpus);
    guint best_stages = most;
    gint64 best = G_MAXINT64;

    if (objective == RP_OBJECTIVE_PAPER)
        return rp_partition_min_max(profile, most, error);
    for (guint s = most; n_stages == 0 && schedule->stages_per_gpu == 0 && s >= search->gpus;
         s -= search->gpus) {
        g_autoptr(RpPartition) even = rp_partition_min_max(profile, s, NULL);
        gint64 cost = even == NULL ? G_MAXINT64
                                   : simulated_cost(even, search->micro_batches, (gpointer)context);

        if (cost < best) {
            best = cost;
            best_stages = s;
        }
    }
    return rp_partition_search_bound(profile, best_stages, search, simulated_cost,
                                     (gpointer)context, error);
}

/* The paper's partition. Its limit is on stages, but the largest parameters, gradients and
 * activations may belong to different stages and add up: the limit is lowered until all fits. Where
 * the limit is too near to what must be, the partition that needs least is the answer. */
static RpPartition *
choose_paper(const CostContext *context, const RpPartitionSearch *search, GError **error)
{
    const RpProfile *profile = context->profile;
    guint64 limit = search->memory_bytes;
    g_autoptr(GError) too_large = NULL; /* a layer that does not fit alone */

    for (guint attempt = 0; attempt < PAPER_ATTEMPTS && too_large == NULL; attempt++) {
        g_autoptr(RpPartition) paper = rp_partition_paper(
            profile, search->gpus, search->micro_batches, limit, attempt == 0 ? &too_large : NULL);

        if (paper == NULL)
            break;
        if (fits(context, paper))
            return g_steal_pointer(&paper);
        limit -= MIN(limit / 4, rp_plan_dispatched_gpu_bytes(profile, paper) +
                                    context->options.constant_bytes - context->memory_bytes);
    }
    g_autoptr(RpPartition) least = rp_partition_least(profile);

    if (fits(context, least))
        return g_steal_pointer(&least);
    if (too_large != NULL) {
        g_propagate_error(error, g_steal_pointer(&too_large));
        return NULL;
    }
    g_set_error(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY,
                "device memory: no partition of %s fits into %" G_GUINT64_FORMAT
                " bytes of GPU memory, %" G_GUINT64_FORMAT
                " is the least: use a smaller micro-batch, a shorter sequence",
                profile->model, context->memory_bytes,
                rp_plan_dispatched_gpu_bytes(profile, least) +
                    rp_align_up(context->options.constant_bytes, RP_BUFFER_ALIGNMENT));
    return NULL;
}

/* The better of the search's result and @paper, which the search may not have seen. */
static RpPartition *
search_or_paper(const CostContext *context, const RpPartitionSearch *search,
                const RpPartition *paper, guint *round)
{
    g_autoptr(RpPartition) found = rp_partition_search_dispatched(
        context->profile, search, simulated_cost, (gpointer)context, round, NULL);
    gint64 best = found == NULL ? G_MAXINT64 : simulated_cost(found, *round, (gpointer)context);

    for (guint r = search->micro_batches; r >= 1; r--) {
        if (search->micro_batches % r != 0 || (search->round != 0 && r != search->round) ||
            (r < search->gpus && r != search->micro_batches))
            continue;
        gint64 cost = simulated_cost(paper, r, (gpointer)context);
        if (found != NULL && cost >= best)
            continue;
        rp_partition_free(found);
        found = rp_partition_copy(paper);
        best = cost;
        *round = r;
    }
    return g_steal_pointer(&found);
}

/* Time of an iteration with every transfer; G_MAXINT64 if it cannot be run. */
static gint64
full_cost(const CostContext *context, const RpPartition *partition, guint round)
{
    RpPlanOptions options = context->options;
    RpMachine machine = rp_machine_from_profile(context->profile);
    guint slots = (partition->n_forward + partition->n_backward) * (options.micro_batches / round);
    guint end = SEARCH_WARM_UP + settling_iterations(SEARCH_TURNS, options.gpus, slots);
    guint iterations = options.async ? end + 1 : 1;

    options.fidelity = RP_FIDELITY_FULL;
    options.fused_forward = RP_FUSED_PHYSICAL;
    options.round = round;
    g_autoptr(RpPlan) plan = rp_plan_make(context->profile, partition, &options, iterations, NULL);
    if (plan == NULL)
        return G_MAXINT64;
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, NULL);
    if (trace == NULL)
        return G_MAXINT64;
    if (options.async)
        return rp_report_steady(trace, SEARCH_WARM_UP, end).iteration_ns;
    return rp_trace_end_ns(trace);
}

/* `full`: the winner of each round size in `compute` fidelity, judged with every transfer. */
static RpPartition *
choose_round_by_transfers(const CostContext *context, const RpPartitionSearch *search,
                          const RpPartition *paper, guint *round)
{
    RpPartitionSearch fixed = *search;
    RpPartition *best = NULL;
    gint64 best_cost = G_MAXINT64;
    guint tried = 0;

    for (guint r = search->micro_batches; r >= search->gpus && tried < FULL_ROUNDS; r--) {
        guint found = r;

        if (search->micro_batches % r != 0)
            continue;
        tried++;
        fixed.round = r;
        fixed.max_candidates = MIN(search->max_candidates, FULL_CANDIDATES);
        g_autoptr(RpPartition) partition = search_or_paper(context, &fixed, paper, &found);
        gint64 cost = full_cost(context, partition, r);
        if (best == NULL || cost < best_cost) {
            rp_partition_free(best);
            best = g_steal_pointer(&partition);
            best_cost = cost;
            *round = r;
        }
    }
    return best;
}

static RpPartition *
choose_dispatched(CostContext *context, const RpPartitionSearch *search, RpObjective objective,
                  gboolean full, guint *round, GError **error)
{
    g_autoptr(RpPartition) paper = choose_paper(context, search, error);

    if (paper == NULL || objective == RP_OBJECTIVE_PAPER)
        return g_steal_pointer(&paper);
    context->least_slots = MIN(search->gpus, paper->n_forward + paper->n_backward);
    context->all_rounds = full;
    if (full && search->round == 0 && search->micro_batches > search->gpus)
        return choose_round_by_transfers(context, search, paper, round);
    return search_or_paper(context, search, paper, round);
}

/* How many candidates are worth their time: an asynchronous one is simulated for several
 * iterations, and large runs are dear. */
static guint
candidates_for(const RpProfile *profile, const RpPlanOptions *options)
{
    guint most = options->async ? ASYNC_CANDIDATES : SYNC_CANDIDATES;
    guint64 actions = 2 * (guint64)options->micro_batches * profile->n_layers;
    guint64 affordable = (guint64)most * CHEAP_ACTIONS / MAX(1, actions);

    return (guint)CLAMP(affordable, MIN(most, LEAST_CANDIDATES), most);
}

/* A run of thousands of micro-batches repeats itself: the search looks at a divisor of M of a few
 * rounds, whose rounds are rounds of M, too. */
static guint
micro_batches_to_search(const RpProfile *profile, const RpPlanOptions *options)
{
    guint m = options->micro_batches;
    guint64 most = MAX(SEARCHED_ACTIONS / profile->n_layers, 8 * (guint64)options->gpus);

    if (options->round != 0 || m <= most)
        return m;
    for (guint divisor = (guint)most; divisor >= 2 * options->gpus; divisor--)
        if (m % divisor == 0)
            return divisor;
    return m;
}

RpPartition *
rp_partition_choose(const RpProfile *profile, const RpPlanOptions *options, RpObjective objective,
                    guint n_stages, guint64 memory_bytes, guint *round, GError **error)
{
    CostContext context = {.profile = profile, .options = *options, .memory_bytes = memory_bytes};
    RpPartitionSearch search = {
        .gpus = options->gpus,
        .micro_batches = micro_batches_to_search(profile, options),
        .round = options->round,
        .memory_bytes = memory_bytes,
        .max_candidates = candidates_for(profile, options),
    };
    guint chosen = search.round != 0 ? search.round : search.micro_batches;
    RpPartition *partition;

    context.options.fidelity = RP_FIDELITY_COMPUTE;
    context.options.micro_batches = search.micro_batches;
    if (!options->schedule->dispatched) {
        chosen = options->micro_batches;
        search.memory_bytes =
            0; /* what a bound device holds depends on the order, not on a stage */
        partition = choose_bound(profile, &context, &search, objective, n_stages, error);
    } else {
        partition = choose_dispatched(&context, &search, objective,
                                      options->fidelity == RP_FIDELITY_FULL &&
                                          rp_profile_check_full(profile, NULL),
                                      &chosen, error);
    }
    if (partition != NULL && round != NULL)
        *round = chosen;
    return partition;
}
