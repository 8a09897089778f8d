#include "cli/reports/reports.h"

#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "core/schedules/schedule.h"
#include "run/devices.h"
#include "sim/search/partition-cost.h"

/* Buffers are all known when the second iteration is planned. */
#define BUFFERED_ITERATIONS 2

void
rp_result_clear(RpResult *result)
{
    g_clear_pointer(&result->memory_problem, g_free);
}

static void
measure_memory(const RpProfile *profile, const RpPlan *plan, RpResult *result)
{
    RpShortage shortage;

    result->gpu_peak_bytes = rp_plan_arena_bytes(plan, rp_plan_fullest_gpu(plan));
    result->host_peak_bytes = rp_plan_arena_bytes(plan, rp_plan_gpus(plan));
    if (!rp_plan_find_card_shortage(plan, profile, &shortage))
        return;
    g_autofree char *what = rp_shortage_describe(&shortage);
    g_autofree char *remedy = rp_cli_remedy(shortage.remedy, FALSE);

    result->memory_problem = g_strdup_printf("%s: %s", what, remedy);
}

void
rp_result_plan_memory(const RpRequest *request, const RpProfile *profile, RpResult *result)
{
    RpRequest full = *request; /* shares what it points to */

    if (!rp_profile_check_full(profile, NULL) || !rp_planner_has_full(&request->options))
        return;
    full.options.fidelity = RP_FIDELITY_FULL;
    full.options.dispatch = RP_DISPATCH_ROTATION; /* arenas are the same */
    full.options.fused_forward = RP_FUSED_PHYSICAL;
    full.iterations = rp_planner_knows_buffers(&full.options) ? 0 : BUFFERED_ITERATIONS;
    if (!rp_request_check_memory(&full, NULL))
        return;
    g_autoptr(RpPlan) plan =
        rp_plan_make(profile, full.partition, &full.options, full.iterations, NULL);

    if (plan != NULL)
        measure_memory(profile, plan, result);
}

static guint
peak_live(const RpRequest *request)
{
    RpShape shape = rp_request_shape(request);
    guint peak = 0;

    for (guint g = 0; g < shape.gpus; g++)
        peak = MAX(peak, rp_schedule_peak_live(request->options.schedule, &shape, g));
    return peak;
}

/* Lower bound of one iteration, steady or alone: runs of several with flushes are not compared with it. */
static gint64
bound_ns(const RpRequest *request, const RpProfile *profile)
{
    RpPlanOptions options = request->options;

    if (options.fidelity == RP_FIDELITY_FULL || (options.async && !request->steady))
        return 0;
    options.round = 0;
    g_autoptr(RpProfile) saving = rp_plan_saving_profile(profile, &options);

    if (saving != NULL)
        profile = saving;
    return rp_partition_bound_ns(profile, &options, 0,
                                 profile->has_sizes ? rp_profile_plan_bytes(profile) : 0);
}

/* The plan's lower bound, for an iteration. */
static RpPlanBound
plan_bound(const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
           const RpResult *result)
{
    const RpMachine machine = rp_machine_from_profile(profile);
    RpPlanBound bound = rp_plan_bound(plan, &machine, request->steady ? &request->window : NULL);

    if (!request->steady) {
        bound.time_ns /= request->iterations;
        bound.busy_ns /= request->iterations;
        bound.path_ns /= request->iterations;
    }
    /* a window begins and ends in the middle of what it counts: by 0.02 % at most of what was seen */
    bound.time_ns = MIN(bound.time_ns, result->iteration_ns);
    return bound;
}

double
rp_result_above_bound(const RpResult *result)
{
    return result->bound_ns > 0
               ? 100 * ((double)result->iteration_ns / (double)result->bound_ns - 1)
               : 0;
}

void
rp_result_measure(const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
                  const RpTrace *trace, RpResult *result)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);
    double tokens = (double)rp_profile_micro_batch_tokens(profile) * request->options.micro_batches;

    result->makespan_ns = rp_trace_makespan_ns(trace);
    result->steady = request->steady;
    const gboolean unflushed = request->options.async && request->options.schedule->unflushed;

    if (request->options.async && !unflushed)
        result->isolated = rp_report_bubble_of_iteration(trace, 0);
    if (request->steady) {
        RpSteady steady = rp_report_steady(trace, request->window.first, request->window.end);

        result->bubble = rp_report_steady_bubble(trace, &steady, !request->options.async);
        if (unflushed) { /* two iterations alternate: none waits between its forwards and backwards */
            result->bubble.intra += result->bubble.switch_;
            result->bubble.switch_ = 0;
        }
        result->iteration_ns = steady.iteration_ns;
        result->first_iteration = steady.first_iteration;
        result->end_iteration = steady.end_iteration;
    } else {
        result->bubble = rp_report_bubble(trace);
        result->iteration_ns = rp_trace_end_ns(trace) / (gint64)request->iterations;
    }
    if (result->iteration_ns > 0)
        result->tokens_per_s = tokens / ((double)result->iteration_ns / (double)RP_NS_PER_S);
    result->bound_ns = bound_ns(request, profile);
    result->plan_bound = plan_bound(request, profile, plan, result);
    result->tasks = n;
    for (gsize i = 0; i < n; i++)
        if (records[i].kind <= RP_TASK_OVERLAP &&
            (records[i].kind != RP_TASK_FUSED || records[i].layer == RP_NONE ||
             records[i].layer == 0)) /* of an action in pieces the first */
            result->actions++;
    result->peak_live = peak_live(request);
    if (request->options.fidelity == RP_FIDELITY_FULL)
        measure_memory(profile, plan, result);
}

void
rp_report_add_plan_bound(RpReport *report, const RpResult *result, const char *label,
                         gboolean words)
{
    const RpPlanBound *bound = &result->plan_bound;
    g_autofree char *of = rp_plan_bound_describe(bound);
    const double above =
        bound->time_ns > 0 ? (double)result->iteration_ns / (double)bound->time_ns - 1 : 0;

    rp_report_object(report, "lower_bound", NULL);
    rp_report_ms(report, "ms", bound->time_ns, NULL);
    rp_report_text(report, "of", of, NULL);
    rp_report_ms(report, "busy_ms", bound->busy_ns, NULL);
    if (!result->steady)
        rp_report_ms(report, "path_ms", bound->path_ns, NULL);
    rp_report_ratio(report, "above_order_ratio", above, NULL);
    rp_report_ratio(report, "above_busy_ratio", result->bubble.ratio / (1 - result->bubble.ratio),
                    NULL);
    rp_report_end(report);
    if (words)
        rp_report_line(report, label, "%.4f ms in any order: %s%s; this order is %.*f %% above",
                       rp_ms_from_ns(bound->time_ns), of,
                       result->steady || bound->limit == RP_LIMIT_PATH
                           ? ""
                           : " with what runs before and after",
                       (int)rp_percent_decimals(100 * above, 2), 100 * above);
    else
        rp_report_percent(report, label, 100 * above, 1);
}

void
rp_report_add_bubble(RpReport *report, const RpBubble *bubble, const char *const *labels)
{
    static const char *const none[6] = {NULL};

    labels = labels != NULL ? labels : none;
    rp_report_ratio(report, "bubble_ratio", bubble->ratio, labels[0]);
    rp_report_object(report, "bubble", NULL);
    rp_report_ratio(report, "fill", bubble->fill, labels[1]);
    rp_report_ratio(report, "switch", bubble->switch_, labels[2]);
    rp_report_ratio(report, "drain", bubble->drain, labels[3]);
    rp_report_ratio(report, "intra", bubble->intra, labels[4]);
    rp_report_end(report);
    rp_report_ratio(report, "comm_exposed_ratio", bubble->comm_exposed, labels[5]);
    if (bubble->expand != 0)
        rp_report_ratio(report, "expand_ratio", bubble->expand, NULL);
}

void
rp_report_add_saved(RpReport *report, const RpRequest *request)
{
    if (request->saved == NULL)
        return;
    g_autofree char *bytes = rp_cli_format_bytes(request->saved_bytes);
    g_autofree char *else_ms =
        request->recomputed_ns > 0
            ? g_strdup_printf("; %.4f ms an iteration where everything is recomputed",
                              rp_ms_from_ns(request->recomputed_ns))
            : g_strdup("");

    rp_report_text(report, "saved", request->saved, "saved");
    rp_report_show(report, "%s: %s a micro-batch in host memory%s", request->saved, bytes, else_ms);
    rp_report_bytes(report, "saved_bytes", request->saved_bytes, NULL);
    if (request->recomputed_ns > 0)
        rp_report_ms(report, "recomputed_iteration_ms", request->recomputed_ns, NULL);
}

void
rp_report_add_resident(RpReport *report, const RpRequest *request)
{
    if (request->resident_bytes == 0)
        return;
    g_autofree char *bytes = rp_cli_format_bytes(request->resident_bytes);

    rp_report_bytes(report, "resident_bytes", request->resident_bytes, "resident");
    if (request->streamed_ns == 0) {
        rp_report_show(report,
                       "%s of frozen weights on each GPU, uploaded once; with uploads in "
                       "each round the stages would not fit",
                       bytes);
        return;
    }
    rp_report_show(report,
                   "%s of frozen weights on each GPU, uploaded once; %.4f ms an iteration with "
                   "uploads in each round",
                   bytes, rp_ms_from_ns(request->streamed_ns));
    rp_report_ms(report, "streamed_iteration_ms", request->streamed_ns, NULL);
}

void
rp_report_add_drawn(RpReport *report, const char *key, const RpDrawn *drawn, gboolean ms,
                    const char *label)
{
    const struct {
        const char *key;
        double value;
    } values[] = {{"mean", drawn->mean}, {"deviation", drawn->deviation},
                  {"p10", drawn->low},   {"p90", drawn->high},
                  {"p5", drawn->p5},     {"p50", drawn->p50},
                  {"p95", drawn->p95}};
    const double scale = ms ? 1e-6 : 100;

    rp_report_object(report, key, NULL);
    for (guint i = 0; i < G_N_ELEMENTS(values); i++)
        if (ms)
            rp_report_ms(report, values[i].key, llround(values[i].value), NULL);
        else
            rp_report_ratio(report, values[i].key, values[i].value, NULL);
    rp_report_end(report);
    rp_report_line(report, label,
                   "%.4f %s on average, deviation %.4f; 10th to 90th percentile %.4f to %.4f",
                   scale * drawn->mean, ms ? "ms" : "%", scale * drawn->deviation,
                   scale * drawn->low, scale * drawn->high);
    if (label != NULL)
        rp_report_line(report, "    5th, 50th, 95th", "%.4f, %.4f, %.4f", scale * drawn->p5,
                       scale * drawn->p50, scale * drawn->p95);
}

void
rp_report_add_stages(RpReport *report, const char *key, const RpProfile *profile,
                     const RpInterval *stages, guint n, const char *label)
{
    g_autoptr(GArray) counts = rp_partition_block_counts(profile, stages, n);

    rp_report_counts(report, key, (const gint32 *)(void *)counts->data, counts->len);
    if (label == NULL)
        return;
    g_autofree char *list = rp_cli_stage_list(profile, stages, n);

    rp_report_line(report, label, "%s%s", list,
                   n > 0 ? "" : ": the fused stage runs forward and backward");
}

void
rp_report_add_partition(RpReport *report, const RpProfile *profile, const RpPartition *partition,
                        const char *source)
{
    const guint n = partition->n_forward;
    const gboolean shown = source != NULL, dispatched = partition->dispatched;

    if (shown)
        rp_report_text(report, "partition", source, NULL);
    rp_report_add_stages(report, "forward_stages", profile, partition->forward, n,
                         !shown       ? NULL
                         : dispatched ? "forward stages"
                                      : "stages");
    if (dispatched) {
        rp_report_add_stages(report, "backward_stages", profile, partition->backward,
                             partition->n_backward, shown ? "backward stages" : NULL);
    } else { /* a bound stage runs both ways: backward in the opposite order */
        g_autofree RpInterval *reversed = g_new(RpInterval, n);

        for (guint s = 0; s < n; s++)
            reversed[s] = partition->forward[n - 1 - s];
        rp_report_add_stages(report, "backward_stages", profile, reversed, n, NULL);
    }
    if (shown)
        rp_report_line(report, "partition", "%s", source);
}

char *
rp_cli_stage_list(const RpProfile *profile, const RpInterval *stages, guint n)
{
    g_autoptr(GArray) counts = rp_partition_block_counts(profile, stages, n);

    return n == 0 ? g_strdup("none")
                  : rp_partition_format_list((const guint *)(void *)counts->data, counts->len);
}

#define MOST_SIGMA 2.0

gboolean
rp_cli_noise_check(const RpArgs *args, guint gpus, GError **error)
{
    g_autofree RpSlow *each = NULL;

    if (args->draws > RP_CLI_MOST_DRAWS)
        return rp_cli_refuse(error, "--draws: expected at most %d, found %d", RP_CLI_MOST_DRAWS,
                             args->draws);
    if (args->seed != 0 && args->draws == 0)
        return rp_cli_refuse(error, "--seed: expected --draws beside it");
    if (args->noise != 0 && args->draws == 0)
        return rp_cli_refuse(error, "--noise: expected --draws beside it");
    if (!(args->noise >= 0 && args->noise <= MOST_SIGMA))
        return rp_cli_refuse(error, "--noise: expected a deviation of 0 to %.0f, found %g",
                             MOST_SIGMA, args->noise);
    if (args->run.host_slow == NULL ||
        (each = rp_run_parse_slow(args->run.host_slow, MAX(gpus, 1), error)) != NULL)
        return TRUE;
    return rp_prefix_error(error, "--slow: ");
}

gboolean
rp_cli_noise_draw(const RpArgs *args, const RpRequest *request, const RpProfile *profile,
                  RpRequestDrawn *drawn, gboolean *distributed, GError **error)
{
    *distributed = args->noise > 0 || rp_draws_has_spreads(profile);
    drawn->draws = 0;
    return args->draws == 0 || !*distributed ||
           rp_request_draw(request, profile, (guint)args->draws, (guint64)args->seed, drawn, error);
}

static void
add_slow(RpReport *report, const RpRequest *request, gboolean words)
{
    const guint gpus = request->options.gpus;
    g_autofree char *all = rp_run_describe_slow(request->slow, gpus);

    rp_report_object(report, "slow", NULL);
    for (guint g = 0; g < gpus; g++) {
        g_autofree char *gpu = g_strdup_printf("%u", g);
        g_autofree char *link = g_strdup_printf("link%u", g);

        if (request->slow[g].actions != 1)
            rp_report_real(report, gpu, request->slow[g].actions, 4, NULL);
        if (request->slow[g].link != 1)
            rp_report_real(report, link, request->slow[g].link, 4, NULL);
    }
    rp_report_end(report);
    if (words)
        rp_report_line(report, "slow", "%s: %s", all,
                       request->slowed != NULL ? "slots go to the GPU that is free first"
                                               : "the plan does not know of it");
}

void
rp_report_add_noise(RpReport *report, const RpArgs *args, const RpRequest *request,
                    const RpRequestDrawn *drawn, gboolean words)
{
    if (request->slow != NULL)
        add_slow(report, request, words);
    if (request->options.dispatch == RP_DISPATCH_FREE)
        rp_report_text(report, "dispatch", "free", NULL);
    if (drawn->draws == 0)
        return;
    rp_report_object(report, "drawn", NULL);
    rp_report_count(report, "draws", drawn->draws, words ? "draws" : NULL);
    rp_report_show(report, "%u of layers' times, seed %" G_GUINT64_FORMAT, drawn->draws,
                   drawn->seed);
    rp_report_count(report, "seed", (gint64)drawn->seed, NULL);
    if (args->noise > 0)
        rp_report_real(report, "noise", args->noise, 6, words ? "  log-normal" : NULL);
    rp_report_show(report, "sigma %g, mean as in the profile", args->noise);
    rp_report_add_drawn(report, "makespan_ms", &drawn->makespan_ns, TRUE,
                        words ? "  makespan" : NULL);
    rp_report_add_drawn(report, "iteration_ms", &drawn->iteration_ns, TRUE,
                        words ? "  iteration" : NULL);
    rp_report_add_drawn(report, "bubble_ratio", &drawn->bubble_ratio, FALSE,
                        words ? "  bubble ratio" : NULL);
    rp_report_end(report);
}
