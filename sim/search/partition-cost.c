#include "sim/search/partition-cost.h"

#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/plan/planner.h"
#include "core/profile/cards.h"
#include "sim/search/bound.h"
#include "sim/search/dispatched.h"
#include "sim/search/given.h"
#include "sim/search/partition-bound.h"
#include "sim/simulate.h"
#include "sim/steady-window.h"

#define FULL_WARM_UP 4        /* `full`: iterations before the window, ... */
#define FULL_TURNS 16         /* ... and slots of each device in it */
#define FULL_ROUNDS 4         /* round sizes that are compared with every transfer, ... */
#define FULL_OF_ROUND 6       /* ... partitions of each at most, ... */
#define FULL_EVALUATED 150000 /* ... while these have so many actions together, ... */
#define FULL_ACTIONS 32768    /* ... of iterations of so many each way: longer ones are cut */
#define FULL_EVEN 120         /* partitions without tapers that are judged for each */
#define FULL_SEARCH                                                                                \
    (G_GUINT64_CONSTANT(80) * 1000 * 1000) /* spent for each, sim/search/dispatched.h */
#define PAPER_ATTEMPTS 16
#define SHORT_STAGES 4 /* blocks of the longest stage that is tried on cards of several kinds */

static gboolean
fits(const RpDispatchedSearch *search, const RpPartition *partition)
{
    return rp_plan_dispatched_fits(search->profile, partition, &search->options,
                                   search->memory_bytes);
}

/* The paper's partition. Its limit is on stages, but the largest parameters, gradients and
 * activations may belong to different stages and add up: the limit is lowered until all fits. Where
 * the limit is too near to what must be, the partition that needs least is the answer. */
static RpPartition *
choose_paper(const RpDispatchedSearch *search, GError **error)
{
    const RpProfile *profile = search->profile;
    guint64 limit = search->memory_bytes;
    g_autoptr(GError) too_large = NULL; /* a layer that does not fit alone */

    const gboolean split = search->options.schedule->split_backward;
    const guint step = rp_plan_slot_step(profile, &search->options);

    for (guint attempt = 0; attempt < PAPER_ATTEMPTS && too_large == NULL; attempt++) {
        g_autoptr(RpPartition) paper =
            rp_partition_paper(profile, search->options.gpus, search->options.micro_batches, limit,
                               attempt == 0 ? &too_large : NULL);

        if (paper == NULL)
            break;
        if (fits(search, paper))
            return g_steal_pointer(&paper);
        limit -= MIN(limit / 4, rp_plan_dispatched_gpu_bytes(profile, paper, split, step) -
                                    search->memory_bytes);
    }
    g_autoptr(RpPartition) least = rp_partition_least(profile);

    if (fits(search, least))
        return g_steal_pointer(&least);
    if (too_large != NULL)
        return rp_null(rp_propagate_error(error, g_steal_pointer(&too_large)));
    return rp_null(rp_fail(error, RP_PARTITION_ERROR, RP_PARTITION_ERROR_MEMORY,
                           "device memory: no partition of %s fits into %" G_GUINT64_FORMAT
                           " bytes of GPU memory, %" G_GUINT64_FORMAT " is the least",
                           profile->model, search->memory_bytes,
                           rp_plan_dispatched_gpu_bytes(profile, least, split, step)));
}

/* Time of an iteration as reports show it, in `full` with every transfer and behind another one; G_MAXINT64 if it cannot be
 * run. */
static gint64
plan_cost(const RpDispatchedSearch *search, const RpPartition *partition, guint round)
{
    RpPlanOptions options = search->options;
    RpMachine machine = rp_machine_from_profile(search->profile);
    guint slots = (partition->n_forward + partition->n_backward) * (options.micro_batches / round);
    const guint end = FULL_WARM_UP + rp_settling_iterations(FULL_TURNS, options.gpus, slots);
    const gboolean full = options.fidelity == RP_FIDELITY_FULL;
    const RpSteadyWindow window =
        !options.async ? rp_steady_window_synchronous()
        : options.dispatch == RP_DISPATCH_FREE
            ? rp_steady_window_free(options.gpus, slots)
            : (RpSteadyWindow){.iterations = end + 1, .first = FULL_WARM_UP, .end = end};
    const guint iterations = options.async || full ? window.iterations : 1;

    if (full)
        options.fused_forward = RP_FUSED_PHYSICAL;
    options.round = round;
    options.replicas = search->replicas; /* links and the host are shared */
    options.gpus *= search->replicas;
    options.micro_batches *= search->replicas;
    g_autoptr(RpPlan) plan = rp_plan_make(search->profile, partition, &options, iterations, NULL);
    /* sums of several rounds that stay on a device are more than its shape tells */
    if (plan == NULL ||
        (search->memory_bytes > 0 && rp_plan_arena_bytes(plan, 0) > search->memory_bytes))
        return G_MAXINT64;
    g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, NULL);
    if (trace == NULL)
        return G_MAXINT64;
    return iterations == 1 ? rp_trace_end_ns(trace)
                           : rp_report_steady(trace, window.first, window.end).iteration_ns;
}

typedef struct {
    RpPartition *partition;
    guint round;
    gint64 cost_ns;
} Choice;

/* @compute_ns: without transfers, which take no less */
static void
offer(const RpDispatchedSearch *search, const RpPartition *partition, guint round,
      gint64 compute_ns, Choice *best)
{
    if (best->partition != NULL && compute_ns >= best->cost_ns)
        return;
    const gint64 cost_ns = plan_cost(search, partition, round);

    if (best->partition != NULL && cost_ns >= best->cost_ns)
        return;
    rp_partition_free(best->partition);
    *best = (Choice){rp_partition_copy(partition), round, cost_ns};
}

/* A run of thousands of micro-batches repeats itself: transfers are looked at over a divisor of M
 * of a few rounds, whose rounds are rounds of M, too. */
static guint
cut_micro_batches(const RpDispatchedSearch *search)
{
    const RpPlanOptions *options = &search->options;
    guint m = options->micro_batches;
    guint64 most = MAX(FULL_ACTIONS / search->profile->n_layers, 8 * (guint64)options->gpus);

    if (options->round != 0 || m <= most)
        return m;
    for (guint divisor = (guint)most; divisor >= 2 * options->gpus; divisor--)
        if (m % divisor == 0)
            return divisor;
    return m;
}

typedef struct {
    const RpDispatchedSearch *search;
    RpRecurrence *recurrence;
    RpCut *cut;
} EvenJudge;

static gint64
even_cost(const RpPartition *candidate, guint round, gpointer user_data)
{
    EvenJudge *judge = user_data;
    const RpPlanOptions *options = &judge->search->options;
    const guint slots = candidate->n_forward + candidate->n_backward;
    const guint rounds = options->micro_batches / round;
    RpSpan span = {.micro_batches = options->micro_batches, .round = round};

    if (slots < judge->search->least_slots ||
        slots * rounds < MIN(options->gpus,
                             judge->search->start->n_forward + judge->search->start->n_backward) ||
        !fits(judge->search, candidate))
        return G_MAXINT64;
    if (options->async) {
        span.first = FULL_WARM_UP;
        span.end = FULL_WARM_UP + rp_settling_iterations(FULL_TURNS, options->gpus, slots * rounds);
    }
    rp_cut_read(judge->cut, candidate);
    return rp_recurrence_time_ns(judge->recurrence, judge->cut, &span, G_MAXINT64);
}

/* A partition of stages that are not tapered: small stages at the ends leave less time for what is
 * transferred meanwhile. May be %NULL. */
static RpPartition *
find_even(const RpDispatchedSearch *search, RpFusedForward fused, guint *round, gint64 *cost_ns)
{
    const RpPartitionSearch limits = {
        .gpus = search->options.gpus,
        .micro_batches = search->options.micro_batches,
        .round = search->options.round,
        .memory_bytes = search->memory_bytes,
        .max_candidates = FULL_EVEN,
    };
    RpDispatchedSearch with = *search;

    with.options.fused_forward = fused;
    g_autoptr(RpRecurrence) recurrence = rp_recurrence_new(search->profile, &with.options);
    g_autoptr(RpCut) cut = rp_cut_new(search->profile->n_layers);
    EvenJudge judge = {&with, recurrence, cut};
    RpPartition *even =
        rp_partition_search_dispatched(search->profile, &limits, even_cost, &judge, round, NULL);

    *cost_ns = even != NULL ? even_cost(even, *round, &judge) : 0;
    return even;
}

/* How many partitions of a round size are worth their time. */
static guint
count_evaluated(const RpDispatchedSearch *search)
{
    const guint64 slots = 2 * (guint64)search->profile->n_layers;
    const guint64 iterations = search->options.async ? 2 * FULL_WARM_UP : 1;
    const guint64 actions = slots * search->options.micro_batches * iterations;

    return (guint)CLAMP(FULL_EVALUATED / MAX(1, actions), 1, FULL_OF_ROUND);
}

/* Short stages are dealt out more evenly where some devices are slower. */
static void
offer_short(const RpDispatchedSearch *search, guint round, Choice *best)
{
    for (guint blocks = 1; blocks <= SHORT_STAGES; blocks++) {
        g_autoptr(RpPartition) partition = rp_partition_even(search->profile, blocks);

        if (fits(search, partition))
            offer(search, partition, round, 0, best);
    }
}

/* `full`, and cards of several kinds: the best of each round size in `compute` fidelity on cards alike,
 * judged by their plans. */
static RpPartition *
choose_by_plans(const RpDispatchedSearch *given, guint *round)
{
    RpDispatchedSearch search = *given;
    const gboolean alike = !rp_profile_is_mixed(given->profile);
    Choice best = {0};
    gint64 even_ns;
    guint tried = 0, unused = 0;

    search.options.micro_batches = cut_micro_batches(given);
    if (search.options.fidelity == RP_FIDELITY_FULL)
        search.options.fused_forward = RP_FUSED_PHYSICAL;
    search.actions = FULL_SEARCH;
    const guint evaluated = count_evaluated(&search);

    for (guint r = search.options.micro_batches; r >= 1 && tried < FULL_ROUNDS; r--) {
        if (search.options.micro_batches % r != 0 ||
            (r < search.options.gpus && r != search.options.micro_batches) ||
            (given->options.round != 0 && r != given->options.round))
            continue;
        tried++;
        search.options.round = r;
        if (alike && best.partition != NULL && rp_dispatched_bound_ns(&search) >= best.cost_ns)
            continue;
        g_autoptr(GPtrArray) found = rp_search_dispatched(&search, evaluated);

        for (guint i = 0; i < found->len; i++) {
            const RpFinding *finding = g_ptr_array_index(found, i);
            g_autoptr(RpPartition) partition = rp_cut_partition(finding->cut);

            offer(&search, partition, r, alike ? finding->cost_ns : 0, &best);
        }
        g_autoptr(RpPartition) even =
            find_even(&search,
                      search.options.fidelity == RP_FIDELITY_FULL ? RP_FUSED_PUBLISHED
                                                                  : search.options.fused_forward,
                      &unused, &even_ns);

        offer(&search, even != NULL ? even : search.start, r, alike ? even_ns : 0, &best);
        if (search.options.dispatch == RP_DISPATCH_FREE)
            offer_short(&search, r, &best);
    }
    *round = best.round;
    return best.partition;
}

/* As the reports measure it. */
static gint64
reported_ns(const RpDispatchedSearch *search, const RpPartition *partition, guint round)
{
    const RpPlanOptions *options = &search->options;
    const guint slots = partition->n_forward + partition->n_backward;
    g_autoptr(RpRecurrence) recurrence = rp_recurrence_new(search->profile, options);
    g_autoptr(RpCut) cut = rp_cut_new(search->profile->n_layers);
    RpSpan span = {.micro_batches = options->micro_batches, .round = round};

    if (options->async) {
        const RpSteadyWindow window =
            rp_steady_window(options->gpus, slots * (options->micro_batches / round));

        span.first = window.first;
        span.end = window.end;
    }
    rp_cut_read(cut, partition);
    return rp_recurrence_time_ns(recurrence, cut, &span, G_MAXINT64);
}

/* The better of what is annealed and what is found around even stages. */
static RpPartition *
choose_by_recurrence(const RpDispatchedSearch *search, guint *round)
{
    g_autoptr(GPtrArray) found = rp_search_dispatched(search, 1);
    guint even_round = 0;
    gint64 even_ns;

    if (found->len == 0) /* no round that it may have holds enough slots */
        return rp_partition_copy(search->start);
    const RpFinding *best = g_ptr_array_index(found, 0);
    g_autoptr(RpPartition) even =
        find_even(search, search->options.fused_forward, &even_round, &even_ns);

    if (even != NULL && reported_ns(search, even, even_round) < best->cost_ns) {
        *round = even_round;
        return g_steal_pointer(&even);
    }
    *round = best->round;
    return rp_cut_partition(best->cut);
}

/* Fewer slots in a round than devices are as good as any, if they fit: rounds run beside each
 * other. Where it is not known what fits, the model is divided among the devices at least. */
static void
set_least_slots(RpDispatchedSearch *search)
{
    const RpPartition *paper = search->start;

    search->least_slots = search->memory_bytes > 0
                              ? 1
                              : MIN(search->options.gpus, paper->n_forward + paper->n_backward);
}

/* The published rule only leaves out a wait: what is found with that wait is as good without it, and
 * often better than what a search of its own comes by. In `full` there is no such rule. */
static RpPartition *
choose_simulated(const RpDispatchedSearch *search, guint *round)
{
    const gboolean by_plans =
        rp_profile_is_mixed(search->profile) || (search->options.fidelity == RP_FIDELITY_FULL &&
                                                 rp_profile_check_full(search->profile, NULL));
    RpPartition *(*const choose)(const RpDispatchedSearch *, guint *) =
        by_plans ? choose_by_plans : choose_by_recurrence;
    gint64 (*const cost)(const RpDispatchedSearch *, const RpPartition *, guint) =
        by_plans ? plan_cost : reported_ns;
    RpDispatchedSearch physical = *search;
    guint other_round = *round;
    g_autoptr(RpPartition) own = choose(search, round);

    if (search->options.fused_forward == RP_FUSED_PHYSICAL ||
        search->options.fidelity == RP_FIDELITY_FULL)
        return g_steal_pointer(&own);
    physical.options.fused_forward = RP_FUSED_PHYSICAL;
    g_autoptr(RpPartition) other = choose(&physical, &other_round);

    if (cost(search, own, *round) <= cost(search, other, other_round))
        return g_steal_pointer(&own);
    *round = other_round;
    return g_steal_pointer(&other);
}

static RpPartition *
choose_dispatched(RpDispatchedSearch *search, RpPartitionObjective objective, guint *round,
                  GError **error)
{
    g_autoptr(RpPartition) paper = choose_paper(search, error);

    if (paper == NULL || objective == RP_PARTITION_PAPER)
        return g_steal_pointer(&paper);
    search->start = paper;
    set_least_slots(search);
    return choose_simulated(search, round);
}

/* Groups of GPUs run alike: one of them, with its share of the micro-batches. */
static RpDispatchedSearch
search_replica(const RpProfile *profile, const RpPlanOptions *options, guint64 memory_bytes)
{
    RpDispatchedSearch search = {.profile = profile,
                                 .options = *options,
                                 .replicas = MAX(1, options->replicas),
                                 .memory_bytes = memory_bytes};

    search.options.gpus = rp_plan_group_gpus(options);
    search.options.micro_batches = rp_plan_whole_round(options);
    search.options.replicas = 1;
    return search;
}

/* Times of one of @K slices, all equal: what stages are chosen by where sequences are in slices. */
static RpProfile *
slice_profile(const RpProfile *profile, guint K)
{
    RpProfile *sliced = rp_profile_copy(profile);

    for (guint l = 0; l < sliced->n_layers; l++) {
        RpLayer *layer = &sliced->layers[l];

        layer->forward_ns /= K;
        layer->backward_ns /= K;
        layer->recompute_ns /= K;
        layer->recompute_last_ns /= K;
        layer->weight_gradient_ns /= K;
    }
    sliced->links.hop_ns /= K;
    for (guint c = 0; c < sliced->n_cards; c++) {
        RpProfile *card = sliced->cards[c];

        sliced->cards[c] = slice_profile(card, K);
        rp_profile_free(card);
    }
    return sliced;
}

/* Slices count as micro-batches, of one round where none is asked for. */
static RpPartition *
choose_sliced(const RpProfile *profile, const RpPlanOptions *options,
              RpPartitionObjective objective, guint64 memory_bytes, guint round, GError **error)
{
    const guint K = rp_plan_slices(options);
    g_autoptr(RpProfile) sliced = slice_profile(profile, K);
    RpDispatchedSearch search = search_replica(sliced, options, memory_bytes);
    guint chosen;

    search.options.slices = 1;
    search.options.micro_batches *= K;
    search.options.round = round * K;
    return choose_dispatched(&search, objective, &chosen, error);
}

RpPartition *
rp_partition_choose(const RpProfile *profile, const RpPlanOptions *options,
                    RpPartitionObjective objective, guint n_stages, guint64 memory_bytes,
                    guint *round, GError **error)
{
    guint chosen = options->round != 0 ? options->round : rp_plan_whole_round(options);
    RpPartition *partition;

    if (options->schedule->dispatched && options->schedule->given != NULL) {
        partition = rp_search_given(profile, options, error);
    } else if (options->schedule->dispatched && rp_plan_slices(options) > 1) {
        partition = choose_sliced(profile, options, objective, memory_bytes, chosen, error);
    } else if (options->schedule->dispatched) {
        RpDispatchedSearch search = search_replica(profile, options, memory_bytes);

        partition = choose_dispatched(&search, objective, &chosen, error);
    } else {
        const guint most =
            n_stages != 0 ? n_stages
                          : rp_partition_default_stages(profile, options->schedule, options->gpus);
        /* what a bound device holds depends on the order, not on a stage: no limit of memory */
        const RpBoundSearch search = {
            .profile = profile, .options = *options, .n_stages = n_stages};

        chosen = options->micro_batches;
        partition = objective == RP_PARTITION_PAPER ? rp_partition_min_max(profile, most, error)
                                                    : rp_search_bound(&search, error);
    }
    if (partition != NULL && round != NULL)
        *round = chosen;
    return partition;
}

gint64
rp_partition_bound_ns(const RpProfile *profile, const RpPlanOptions *options, guint n_stages,
                      guint64 memory_bytes)
{
    RpDispatchedSearch search = search_replica(profile, options, memory_bytes);

    if (options->schedule->dispatched &&
        (options->schedule->given != NULL || rp_plan_slices(options) > 1))
        return 0;
    if (rp_profile_is_mixed(profile))
        return 0;
    if (!options->schedule->dispatched)
        return rp_bound_bound_ns(profile, options, n_stages);
    if (options->fidelity == RP_FIDELITY_FULL)
        search.options.fused_forward = RP_FUSED_PHYSICAL;
    return rp_dispatched_bound_ns(&search);
}
