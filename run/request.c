#include "run/request.h"

#include <string.h>

#include "core/base/units.h"
#include "core/schedules/given.h"
#include "core/trace/report.h"
#include "exec/system/memory-limit.h"
#include "sim/simulate.h"

/* Requests that are too large: refused before anything is searched for or allocated. */
#define SECONDS_PER_YEAR (365.25 * 86400)
#define MOST_SECONDS (50 * SECONDS_PER_YEAR)
/* Bytes of plan and trace for a compute action, with its copies in `full`: measured, the largest
 * (docs/lab/overheads.md). */
#define COMPUTE_BYTES 240
#define BOUND_BYTES 1400
#define DISPATCHED_BYTES 3300
/* Nobody has less. */
#define LITTLE_MEMORY (64.0 * (double)RP_MIB)

void
rp_request_clear(RpRequest *request)
{
    g_clear_pointer(&request->partition, rp_partition_free);
    g_clear_pointer(&request->saved, g_free);
    g_clear_pointer(&request->given, rp_schedule_free_given);
    g_clear_pointer(&request->slow, g_free);
    g_clear_pointer(&request->slowed, rp_profile_free);
}

/* A setting as messages name it. */
static const char *
name_of(const RpRunSpec *run, const char *key)
{
    return run->trains ? key : rp_setting_option(rp_setting_find(key));
}

/* A stage list, with its setting's name in front of what is wrong with it. "none" is what an empty
 * list is printed as: the fused stage holds every block. */
static GArray *
parse_stages(const RpRunSpec *run, const char *key, const char *text, GError **error)
{
    if (strcmp(text, "none") == 0)
        return g_array_new(FALSE, FALSE, sizeof(guint));

    GArray *list = rp_partition_parse_list(text, error);

    if (list == NULL)
        g_prefix_error(error, "%s: ", name_of(run, key));
    return list;
}

static RpPartition *
given_bound(const RpRunSpec *run, const RpProfile *profile, GError **error)
{
    g_autoptr(GArray) stages = parse_stages(run, "stages", run->stages, error);
    RpPartition *partition;

    if (stages == NULL)
        return NULL;
    partition =
        rp_partition_from_blocks(profile, (const guint *)(void *)stages->data, stages->len, error);
    if (partition == NULL)
        g_prefix_error(error, "%s: ", name_of(run, "stages"));
    return partition;
}

static RpPartition *
given_dispatched(const RpRunSpec *run, const RpProfile *profile, GError **error)
{
    g_autoptr(GArray) forward = parse_stages(run, "forward_stages", run->forward_stages, error);

    if (forward == NULL)
        return NULL;
    g_autoptr(GArray) backward = parse_stages(run, "backward_stages", run->backward_stages, error);

    if (backward == NULL)
        return NULL;
    RpPartition *partition = rp_partition_from_dispatched_blocks(
        profile, (const guint *)(void *)forward->data, forward->len,
        (const guint *)(void *)backward->data, backward->len, error);

    if (partition == NULL)
        g_prefix_error(error, "%s, %s: ", name_of(run, "forward_stages"),
                       name_of(run, "backward_stages"));
    return partition;
}

/* Checks the lists of stages that were given against the schedule. */
static gboolean
check_lists(const RpRunSpec *run, GError **error)
{
    const RpScheduleOps *schedule = run->plan.schedule;
    const char *one = name_of(run, "stages"), *forward = name_of(run, "forward_stages"),
               *backward = name_of(run, "backward_stages");
    const gboolean bound = run->stages != NULL;
    const gboolean both = run->forward_stages != NULL && run->backward_stages != NULL;
    const gboolean any = run->forward_stages != NULL || run->backward_stages != NULL;
    g_autofree char *problem = NULL;

    if (bound && any)
        problem = g_strdup_printf("%s goes with neither %s nor %s", one, forward, backward);
    else if (any && !both)
        problem = g_strdup_printf("%s and %s go together; one is missing", forward, backward);
    else if (bound && schedule->dispatched)
        problem = g_strdup_printf("needs %s and %s instead of %s", forward, backward, one);
    else if (any && !schedule->dispatched)
        problem = g_strdup_printf("needs %s instead of %s and %s", one, forward, backward);
    else
        return TRUE;
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE, "schedule %s: %s", schedule->name,
                   problem);
}

static gboolean
resolve_partition(const RpRunSpec *run, const RpProfile *profile, RpRequest *request,
                  GError **error)
{
    RpPlanOptions *options = &request->options;
    guint64 memory_bytes = profile->has_sizes ? rp_profile_plan_bytes(profile) : 0;

    if (run->stages != NULL || run->forward_stages != NULL) {
        request->partition_source = "given";
        request->partition = run->stages != NULL ? given_bound(run, profile, error)
                                                 : given_dispatched(run, profile, error);
        return request->partition != NULL;
    }
    request->partition_source = rp_setting_value_name("partition", (int)run->partition_choice);
    request->partition = rp_partition_choose(profile, options, run->partition_choice, run->n_stages,
                                             memory_bytes, &options->round, error);
    return request->partition != NULL;
}

RpShape
rp_request_shape(const RpRequest *request)
{
    const RpPlanOptions *options = &request->options;
    const RpPartition *partition = request->partition;

    return (RpShape){
        .gpus = options->gpus,
        .micro_batches = options->micro_batches * rp_plan_slices(options),
        .slices = rp_plan_slices(options),
        .stages = partition->n_forward + partition->n_backward,
        .round = options->round * rp_plan_slices(options),
        .replicas = options->replicas,
        .forward_slots = partition->dispatched ? partition->n_forward : 0,
        .group = options->group,
        .live = options->live,
        .reverse_backward = options->reverse_backward,
    };
}

const char *
rp_request_recompute(const RpRequest *request)
{
    return rp_plan_keeps(&request->options)                   ? "none"
           : request->options.recompute == RP_RECOMPUTE_GATED ? "gated"
                                                              : "early";
}

/* That a run has no more actions than the most. @stages: of all passes; bound ones go forward and
 * backward */
static gboolean
check_actions(const RpRunSpec *run, guint stages, guint calls, guint iterations, GError **error)
{
    const RpPlanOptions *options = &run->plan;
    guint64 most =
        options->fidelity == RP_FIDELITY_FULL ? RP_RUN_MAX_FULL_ACTIONS : RP_RUN_MAX_ACTIONS;
    double actions = (double)stages * options->micro_batches * calls * iterations *
                     (options->schedule->dispatched ? 1 : 2);

    if (actions <= (double)most)
        return TRUE;
    g_autofree char *of_calls = calls > 1 ? g_strdup_printf(" x %u calls", calls) : g_strdup("");

    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                   "%s, %s: expected at most %" G_GUINT64_FORMAT
                   " compute actions in a run, found %.0f (%u stages x %u micro-batches%s x "
                   "%u iterations)",
                   name_of(run, "micro_batches"),
                   run->trains ? "gradient_accumulation_steps" : "--iterations", most, actions,
                   stages, options->micro_batches, of_calls, iterations);
}

/* Time in 64 bits of nanoseconds ends after 292 years: a run whose actions and transfers, one after
 * the other, would come near it is refused. */
static gboolean
check_time(const RpRunSpec *run, const RpProfile *profile, guint iterations, GError **error)
{
    const RpPlanOptions *options = &run->plan;
    const double slowest =
        MIN(profile->links.h2d_bytes_per_s > 0 ? profile->links.h2d_bytes_per_s : G_MAXDOUBLE,
            profile->links.d2h_bytes_per_s > 0 ? profile->links.d2h_bytes_per_s : G_MAXDOUBLE);
    double seconds = 0, bytes = 0;

    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *layer = &profile->layers[l];

        seconds += ((double)layer->forward_ns + (double)layer->backward_ns +
                    (double)layer->recompute_ns + (double)profile->links.hop_ns) /
                   (double)RP_NS_PER_S;
        bytes += 2.0 * (double)layer->parameter_bytes + 2.0 * (double)layer->gradient_bytes +
                 2.0 * (double)layer->input_bytes + 2.0 * (double)layer->output_bytes;
    }
    if (options->fidelity == RP_FIDELITY_FULL)
        seconds += bytes / slowest;
    seconds *= (double)options->micro_batches * iterations;
    if (seconds <= MOST_SECONDS)
        return TRUE;
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                   "%s%s: expected a run of at most %.0f years, action after action, found %.0f",
                   name_of(run, "micro_batches"), run->trains ? "" : ", --iterations",
                   MOST_SECONDS / SECONDS_PER_YEAR, seconds / SECONDS_PER_YEAR);
}

/* Checks what needs no partition, so that a message comes before the long search.
 */
static gboolean
check_early(const RpRunSpec *run, const RpProfile *profile, GError **error)
{
    const RpPlanOptions *options = &run->plan;
    const RpScheduleOps *schedule = options->schedule;

    if (options->fidelity == RP_FIDELITY_FULL && !rp_profile_check_full(profile, error))
        return FALSE;
    if (run->stages != NULL || run->forward_stages != NULL)
        return TRUE;
    const RpGivenOrders *given = schedule->given;
    RpShape shape = {
        .gpus = options->gpus,
        .micro_batches = options->micro_batches * rp_plan_slices(options),
        .slices = rp_plan_slices(options),
        .stages = run->n_stages > 0 ? run->n_stages
                  : given != NULL   ? given->stages
                  : schedule->dispatched
                      ? MAX(2, options->gpus)
                      : rp_partition_default_stages(profile, schedule, options->gpus),
        .forward_slots = given != NULL ? given->forward_slots : 0,
        .round = (schedule->dispatched && options->round > 0 ? options->round
                                                             : rp_plan_whole_round(options)) *
                 rp_plan_slices(options),
        .replicas = options->replicas,
        .group = options->group,
        .live = options->live,
        .reverse_backward = options->reverse_backward,
    };
    const guint iterations = run->iterations > 0 ? run->iterations
                             : options->async    ? RP_STEADY_LEAST
                                                 : 1;

    return rp_schedule_check(schedule, &shape, error) &&
           check_actions(run, shape.stages, 1, iterations, error) &&
           check_time(run, profile, iterations, error);
}

/* The first iteration has all frozen weights to upload: alone it tells nothing. */
gboolean
rp_request_choose_resident(const RpRunSpec *run, const RpProfile *profile, RpRequest *request,
                           GError **error)
{
    const guint64 limit = request->options.resident_limit;
    RpRequest streamed = *request; /* borrowed */
    g_autoptr(RpPlan) plan = NULL;

    if (request->options.resident_limit == 0)
        return TRUE;
    streamed.options.resident_limit = 0;
    g_autoptr(RpTrace) with = rp_request_simulate(request, profile, &plan, error);
    g_autoptr(RpTrace) without =
        with != NULL ? rp_request_simulate(&streamed, profile, NULL, error) : NULL;
    if (without == NULL)
        return FALSE;
    for (guint g = 0; g < request->options.gpus; g++)
        request->resident_bytes = MAX(request->resident_bytes, rp_plan_resident_bytes(plan, g));
    request->resident_ns = rp_request_iteration_ns(request, with);
    request->streamed_ns =
        !request->partition->dispatched ||
                rp_plan_dispatched_fits(profile, request->partition, &streamed.options, limit)
            ? rp_request_iteration_ns(request, without)
            : 0;
    if (request->resident_bytes > 0 &&
        ((RpResidentChoice)run->resident_choice == RP_RESIDENT_ON || request->streamed_ns == 0 ||
         (request->iterations > 1 && request->resident_ns <= request->streamed_ns)))
        return TRUE;
    request->options.resident_limit = request->resident_bytes = 0;
    return TRUE;
}

/* As many iterations as it takes. */
static void
settle(RpRequest *request)
{
    const RpPlanOptions *options = &request->options;
    const guint stages = request->partition->n_forward + request->partition->n_backward;
    const guint slots =
        stages * MAX(1, rp_plan_whole_round(options) / options->round) * MAX(1, options->calls);

    request->window = options->dispatch == RP_DISPATCH_FREE
                          ? rp_steady_window_free(options->gpus, slots)
                          : rp_steady_window(rp_plan_group_gpus(options), slots);
    request->iterations = request->window.iterations;
}

void
rp_request_time(RpRequest *request, gboolean async)
{
    request->options.async = async;
    /* the optimizer ends a synchronous step, too; `compute` has none, and its first is like all others */
    request->steady = async || request->options.fidelity == RP_FIDELITY_FULL;
    if (async || request->options.dispatch == RP_DISPATCH_FREE) {
        settle(request);
    } else {
        request->window = rp_steady_window_synchronous();
        request->iterations = request->window.iterations;
    }
    if (!request->steady)
        request->iterations = 1;
}

gboolean
rp_request_resolve_plain(const RpRunSpec *run, const RpProfile *profile, RpRequest *request,
                         GError **error)
{
    RpPlanOptions *options = &request->options;
    const guint calls = MAX(1, (guint)run->gradient_accumulation_steps);

    if (options->fidelity == RP_FIDELITY_FULL && rp_profile_has_frozen(profile))
        options->resident_limit =
            rp_resident_limit((RpResidentChoice)run->resident_choice, rp_run_spec_is_on_host(run),
                              rp_profile_plan_bytes(profile));
    if (!options->schedule->dispatched)
        options->round = options->micro_batches; /* a bound iteration is one round */
    else if (options->schedule->given != NULL && options->round == 0)
        options->round = options->schedule->given->round;
    if (!check_lists(run, error) || !check_early(run, profile, error) ||
        !resolve_partition(run, profile, request, error))
        return FALSE;
    if (options->round == 0)
        options->round = rp_plan_whole_round(options);
    options->calls = (guint)run->gradient_accumulation_steps;
    request->beside = run->beside;
    request->memory_bytes = run->memory_bytes;
    guint stages = request->partition->n_forward + request->partition->n_backward;
    rp_request_time(request, options->async);
    if (run->trains && !options->async)
        settle(request);
    if (run->iterations > 0) {
        request->iterations = run->iterations;
        request->steady = request->steady && request->iterations >= request->window.iterations;
    }
    return check_actions(run, stages, calls, request->iterations, error) &&
           check_time(run, profile, request->iterations, error) &&
           rp_request_choose_resident(run, profile, request, error);
}

/* Slow devices that the plan does not know. */
static const RpSlow *
surprise(const RpRequest *request)
{
    return request->slowed == NULL ? request->slow : NULL;
}

/* The devices as they are: links that are slow change neither order nor places of what a plan has. */
static RpProfile *
real_profile(const RpRequest *request, const RpProfile *profile)
{
    const guint gpus = request->options.gpus;
    const RpProfile *known = request->slowed != NULL ? request->slowed : profile;
    g_autoptr(RpProfile) saving = rp_plan_saving_profile(known, &request->options);

    if (saving != NULL)
        known = saving;
    if (surprise(request) == NULL)
        return rp_profile_copy(known);
    g_autofree RpSlow *links = g_memdup2(request->slow, gpus * sizeof *links);

    for (guint g = 0; g < gpus; g++)
        links[g].actions = 1;
    return rp_profile_slowed(known, links, gpus);
}

RpTrace *
rp_request_simulate(const RpRequest *request, const RpProfile *profile, RpPlan **plan_out,
                    GError **error)
{
    if (!rp_request_check_memory(request, error))
        return NULL;
    g_autoptr(RpProfile) real = real_profile(request, profile);
    RpMachine machine = rp_machine_from_profile(real);
    g_autoptr(RpPlan) plan =
        rp_plan_make(real, request->partition, &request->options, request->iterations, error);

    if (plan == NULL)
        return NULL;
    if (surprise(request) != NULL)
        rp_plan_slow(plan, surprise(request));
    RpTrace *trace = rp_simulate(plan, &machine, error);

    if (trace != NULL && plan_out != NULL)
        *plan_out = g_steal_pointer(&plan);
    return trace;
}

/* ---- as far as the measurements of layers go ---- */

/* A part of @whole, whose time changes by @change. */
static gint64
scaled(gint64 part_ns, gint64 whole_ns, gint64 change_ns)
{
    return whole_ns > 0
               ? (gint64)((double)part_ns * (double)(whole_ns + change_ns) / (double)whole_ns)
               : part_ns;
}

/* Every time of @profile with its spread added or (@sign -1) taken off; never below 0. */
static RpProfile *
shift(const RpProfile *profile, gint sign)
{
    RpProfile *shifted = rp_profile_copy(profile);

    for (guint l = 0; l < shifted->n_layers; l++) {
        RpLayer *layer = &shifted->layers[l];
        gint64 forward = sign * MIN(layer->forward_spread_ns, layer->forward_ns);
        gint64 recompute = sign * MIN(layer->recompute_spread_ns, layer->recompute_ns);
        gint64 backward = sign * MIN(layer->backward_spread_ns, layer->backward_ns);

        layer->recompute_last_ns = scaled(layer->recompute_last_ns, layer->recompute_ns, recompute);
        layer->weight_gradient_ns = scaled(layer->weight_gradient_ns, layer->backward_ns, backward);
        layer->forward_ns += forward;
        layer->recompute_ns += recompute;
        layer->backward_ns += backward;
    }
    for (guint c = 0; c < shifted->n_cards; c++) {
        RpProfile *card = shifted->cards[c];

        shifted->cards[c] = shift(card, sign);
        rp_profile_free(card);
    }
    return shifted;
}

gint64
rp_request_iteration_ns(const RpRequest *request, const RpTrace *trace)
{
    return request->steady
               ? rp_report_steady(trace, request->window.first, request->window.end).iteration_ns
               : rp_trace_end_ns(trace) / (gint64)request->iterations;
}

gboolean
rp_request_spread(const RpRequest *request, const RpProfile *profile, gint64 *least_ns,
                  gint64 *most_ns, GError **error)
{
    gint64 *const times_ns[] = {least_ns, most_ns};
    RpRequest known = *request; /* borrowed */

    *least_ns = *most_ns = 0;
    if (request->slowed != NULL)
        known.slow = NULL;
    known.slowed = NULL;
    for (gint i = 0; rp_draws_has_spreads(profile) && i < 2; i++) {
        g_autoptr(RpProfile) shifted =
            shift(request->slowed != NULL ? request->slowed : profile, i == 0 ? -1 : 1);
        g_autoptr(RpTrace) trace = rp_request_simulate(&known, shifted, NULL, error);

        if (trace == NULL)
            return FALSE;
        *times_ns[i] = rp_request_iteration_ns(request, trace);
    }
    return TRUE;
}

static double
bubble_ratio(const RpRequest *request, const RpTrace *trace)
{
    return request->steady
               ? rp_report_steady(trace, request->window.first, request->window.end).ratio
               : rp_report_bubble(trace).ratio;
}

gboolean
rp_request_draw(const RpRequest *request, const RpProfile *profile, guint n, guint64 seed,
                RpRequestDrawn *drawn, GError **error)
{
    g_autoptr(RpProfile) real = real_profile(request, profile);
    const RpMachine machine = rp_machine_from_profile(real);
    g_autoptr(RpPlan) plan =
        rp_plan_make(real, request->partition, &request->options, request->iterations, error);

    if (plan == NULL)
        return FALSE;
    g_autoptr(RpDraws) draws = rp_draws_new(plan, real);
    rp_draws_set_noise(draws, request->noise);
    rp_draws_set_slow(draws, surprise(request));
    g_autofree double *makespans = g_new(double, n);
    g_autofree double *iterations = g_new(double, n);
    g_autofree double *ratios = g_new(double, n);

    for (guint i = 0; i < n; i++) {
        rp_draws_apply(draws, seed, i);
        g_autoptr(RpTrace) trace = rp_simulate(plan, &machine, error);

        if (trace == NULL)
            return FALSE;
        makespans[i] = (double)rp_trace_makespan_ns(trace);
        iterations[i] = (double)rp_request_iteration_ns(request, trace);
        ratios[i] = bubble_ratio(request, trace);
    }
    *drawn = (RpRequestDrawn){
        .draws = n,
        .seed = seed,
        .makespan_ns = rp_drawn_of(makespans, n),
        .iteration_ns = rp_drawn_of(iterations, n),
        .bubble_ratio = rp_drawn_of(ratios, n),
    };
    return TRUE;
}

/* RoundPipe may come down to its fused stage. Iterations are fewer where they are longer: with the
 * fewest stages, in the most rounds, there are the fewest actions. */
gboolean
rp_run_check_size(const RpRunSpec *run, GError **error)
{
    const RpPlanOptions *options = &run->plan;
    const guint stages = options->schedule->dispatched ? 1 : options->gpus;
    const guint rounds = !options->schedule->dispatched ? 1
                         : options->round > 0 ? MAX(1, options->micro_batches / options->round)
                                              : options->micro_batches;
    const guint64 slots =
        (guint64)stages * rounds * MAX(1, (guint)run->gradient_accumulation_steps);
    const RpSteadyWindow window =
        rp_steady_window(options->gpus, (guint)MIN(slots, (guint64)G_MAXUINT32));

    return check_actions(run, stages, MAX(1, (guint)run->gradient_accumulation_steps),
                         window.iterations, error);
}

guint64
rp_run_memory_now(void)
{
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    return limit.bytes;
}

gboolean
rp_request_check_memory(const RpRequest *request, GError **error)
{
    const RpPlanOptions *options = &request->options;
    const RpPartition *partition = request->partition;
    const guint64 slots = partition->dispatched ? partition->n_forward + partition->n_backward
                                                : 2 * partition->n_forward;
    const double actions = (double)slots * options->micro_batches * rp_plan_slices(options) *
                           MAX(1, options->calls) * request->iterations;
    const guint at_once = MAX(1, request->beside);
    const double bytes = actions * at_once *
                         (options->fidelity == RP_FIDELITY_COMPUTE ? COMPUTE_BYTES
                          : partition->dispatched                  ? DISPATCHED_BYTES
                                                                   : BOUND_BYTES);

    if (bytes < LITTLE_MEMORY)
        return TRUE;
    g_auto(RpMemoryLimit) limit = rp_memory_limit("", FALSE);

    if (request->memory_bytes > 0)
        limit.bytes = request->memory_bytes;
    if (bytes <= (double)limit.bytes)
        return TRUE;
    g_autofree char *what = rp_memory_limit_describe(&limit);
    g_autofree char *others =
        at_once > 1 ? g_strdup_printf(", %u such at once,", at_once) : g_strdup("");
    g_autofree char *rounds =
        options->async && partition->dispatched && options->round > options->gpus
            ? g_strdup_printf(" or shorter rounds than %u, of which fewer iterations are enough",
                              options->round)
            : g_strdup("");

    return rp_fail(
        error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
        "a simulation of %.0f compute actions (%" G_GUINT64_FORMAT
        " slots x %u micro-batches x %u iterations)%s takes about %.1f GiB of memory, found "
        "%.1f of %s: expected fewer micro-batches or iterations%s",
        actions, slots, options->micro_batches, request->iterations, others, bytes / (double)RP_GIB,
        (double)limit.bytes / (double)RP_GIB, what, rounds);
}
