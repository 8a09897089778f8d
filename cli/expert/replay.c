#include "cli/cli.h"

#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/units.h"
#include "core/verify/verify.h"
#include "exec/engine/engine.h"
#include "exec/replay/replay.h"
#include "sim/simulate.h"

/* A run takes so long unless told otherwise. */
#define DEFAULT_SECONDS 5.0

/* One run of the plan. */
typedef struct {
    RpTrace *trace;
    RpEngineCost cost;
    RpReplayLateness lateness;
} Replay;

static void
replay_clear(Replay *replay)
{
    rp_trace_free(replay->trace);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Replay, replay_clear)

/* The two results, and how they were made. */
typedef struct {
    double scale;
    RpResult predicted;
    RpResult measured; /* times divided by the scale: the profile's */
    Replay timed;
    gint64 empty_task_ns; /* real time of a task when tasks take no time */
} Comparison;

static void
comparison_clear(Comparison *comparison)
{
    rp_result_clear(&comparison->predicted);
    rp_result_clear(&comparison->measured);
    replay_clear(&comparison->timed);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Comparison, comparison_clear)

/* The machine that a replay is: links of its own for every device, and nothing is computed. */
static RpMachine
replay_machine(const RpProfile *profile)
{
    RpMachine machine = rp_machine_from_profile(profile);

    machine.links.host_bytes_per_s = 0;
    machine.links.root_bytes_per_s = 0;
    machine.links.gpus_per_root = 0;
    machine.processors = 0;
    return machine;
}

/* Plans and runs at once, an iteration ahead: a bound schedule's buffers are only all known when
 * its second iteration is planned. */
static gboolean
stream(RpPlanner *planner, RpEngine *engine, guint iterations, GError **error)
{
    for (guint i = 0; i < iterations; i++) {
        if (!rp_planner_append_iteration(planner, error))
            return FALSE;
        if (i == 0 && iterations > 1)
            continue;
        if (!rp_engine_append(engine, error))
            return FALSE;
    }
    rp_planner_finish(planner);
    return rp_engine_append(engine, error) && rp_engine_finish(engine, error);
}

static gboolean
replay(const RpRequest *request, const RpProfile *profile, double scale, Replay *result,
       GError **error)
{
    const RpMachine machine = replay_machine(profile);
    const RpReplayOptions replay_options = {
        .scale = scale,
        .links = machine.links,
        .cards = machine.cards,
        .optimizer_bytes_per_s = machine.optimizer_bytes_per_s,
    };
    const RpEngineOptions options = {.keep_trace = TRUE};
    g_autoptr(RpPlanner) planner =
        rp_planner_new(profile, request->partition, &request->options, error);

    if (planner == NULL)
        return FALSE;
    RpBackend *backend = rp_replay_new(request->options.gpus, &replay_options);
    RpEngine *engine = rp_engine_new(rp_planner_plan(planner), backend, &options, error);
    const gboolean done = engine != NULL && stream(planner, engine, request->iterations, error);

    if (done) {
        result->trace = rp_engine_steal_trace(engine);
        result->cost = rp_engine_cost(engine);
        result->lateness = rp_replay_lateness(backend);
    }
    if (engine != NULL && !rp_engine_stop(engine)) {
        (void)g_steal_pointer(&planner); /* a thread may still come back to all of it */
        return done;
    }
    rp_engine_free(engine);
    rp_replay_free(backend);
    return done;
}

static gboolean
verify(const RpPlan *plan, const RpTrace *trace, GError **error)
{
    RpViolation violation;

    if (rp_verify_trace(plan, trace, &violation))
        return TRUE;
    g_set_error(error, RP_ENGINE_ERROR, RP_ENGINE_ERROR_PLAN, "%s", violation.message);
    rp_violation_clear(&violation);
    return FALSE;
}

/* Replays the plan with its times, and once more with none, which leaves the engine's own. */
static gboolean
measure(const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
        Comparison *comparison, GError **error)
{
    g_auto(Replay) empty = {0};

    if (!replay(request, profile, 0, &empty, error) || !verify(plan, empty.trace, error) ||
        !replay(request, profile, comparison->scale, &comparison->timed, error) ||
        !verify(plan, comparison->timed.trace, error))
        return FALSE;
    comparison->empty_task_ns = rp_trace_end_ns(empty.trace) / (gint64)MAX(1, empty.cost.tasks);
    rp_result_measure(request, profile, plan, comparison->timed.trace, &comparison->measured);
    comparison->measured.makespan_ns =
        (gint64)llround((double)comparison->measured.makespan_ns / comparison->scale);
    comparison->measured.iteration_ns =
        (gint64)llround((double)comparison->measured.iteration_ns / comparison->scale);
    return TRUE;
}

static double
relative(gint64 measured, gint64 predicted)
{
    return predicted > 0 ? (double)measured / (double)predicted - 1 : 0;
}

static double
worker_us(const Comparison *comparison)
{
    const RpEngineCost *cost = &comparison->timed.cost;

    return (double)cost->worker_cpu_ns / (double)MAX(1, cost->tasks) / 1000;
}

/* @key's column. */
static void
report_side(RpReport *report, const char *key, const RpResult *result)
{
    rp_report_object(report, key, key);
    rp_report_ms(report, "makespan_ms", result->makespan_ns, "makespan, ms");
    rp_report_bool(report, "steady_state", result->steady, NULL);
    rp_report_ms(report, "iteration_ms", result->iteration_ns,
                 result->steady ? "steady iteration, ms" : "iteration, ms");
    rp_report_ratio(report, "bubble_ratio", result->bubble.ratio, "bubble ratio, %");
    rp_report_ratio(report, NULL, result->bubble.fill, "  fill");
    rp_report_ratio(report, NULL, result->bubble.switch_, "  switch");
    rp_report_ratio(report, NULL, result->bubble.drain, "  drain");
    rp_report_ratio(report, NULL, result->bubble.intra, "  intra");
    rp_report_end(report);
}

static void
report_points(RpReport *report, const char *label, double predicted, double measured)
{
    rp_report_line(report, label, "%+.3f points", 100 * (measured - predicted));
}

static void
report_difference(RpReport *report, const RpResult *predicted, const RpResult *measured)
{
    const RpBubble *p = &predicted->bubble, *m = &measured->bubble;

    rp_report_object(report, NULL, "difference");
    rp_report_line(report, "makespan, ms", "%+.3f %%",
                   100 * relative(measured->makespan_ns, predicted->makespan_ns));
    rp_report_line(report, measured->steady ? "steady iteration, ms" : "iteration, ms", "%+.3f %%",
                   100 * relative(measured->iteration_ns, predicted->iteration_ns));
    report_points(report, "bubble ratio, %", p->ratio, m->ratio);
    report_points(report, "  fill", p->fill, m->fill);
    report_points(report, "  switch", p->switch_, m->switch_);
    report_points(report, "  drain", p->drain, m->drain);
    report_points(report, "  intra", p->intra, m->intra);
    rp_report_end(report);
}

static void
report_comparison(RpReport *report, const RpRequest *request, const RpProfile *profile,
                  const Comparison *comparison)
{
    const RpResult *predicted = &comparison->predicted, *measured = &comparison->measured;
    const RpPlanOptions *options = &request->options;
    const RpReplayLateness *late = &comparison->timed.lateness;
    const char *fidelity = options->fidelity == RP_FIDELITY_FULL ? "full" : "compute";
    const double task_us = (double)comparison->empty_task_ns / 1000;
    g_autofree char *subject = rp_cli_subject(profile, options->gpus);

    rp_report_say(report, "%s%s, %s: %u iteration%s replayed in %s fidelity, times x %.6g",
                  options->schedule->title, options->async ? " (asynchronous)" : "", subject,
                  request->iterations, request->iterations == 1 ? "" : "s", fidelity,
                  comparison->scale);
    rp_report_text(report, "model", profile->model, NULL);
    rp_report_text(report, "device", profile->device, NULL);
    rp_report_text(report, "schedule", options->schedule->name, NULL);
    rp_report_count(report, "gpus", options->gpus, NULL);
    rp_report_count(report, "micro_batches", options->micro_batches, NULL);
    rp_report_count(report, "round", options->round, NULL);
    rp_report_text(report, "fidelity", fidelity, NULL);
    rp_report_bool(report, "async", options->async, NULL);
    rp_report_count(report, "iterations", request->iterations, NULL);
    rp_report_real(report, "scale", comparison->scale, 9, NULL);
    rp_report_columns(report, NULL, "");
    report_side(report, "predicted", predicted);
    report_side(report, "measured", measured);
    report_difference(report, predicted, measured);
    rp_report_end(report);
    rp_report_ratio(report, "makespan_relative_error",
                    relative(measured->makespan_ns, predicted->makespan_ns), NULL);
    rp_report_ratio(report, "bubble_ratio_difference",
                    measured->bubble.ratio - predicted->bubble.ratio, NULL);
    rp_report_say(report,
                  "measured times are divided by the scale; the trace follows the plan (verified)");
    rp_report_count(report, "plan_tasks", (gint64)comparison->timed.cost.tasks, NULL);
    rp_report_say(report,
                  "engine: %.2f us a task when tasks take no time, %.2f us processor time of the "
                  "workers a task, %" G_GUINT64_FORMAT " tasks",
                  task_us, worker_us(comparison), comparison->timed.cost.tasks);
    rp_report_object(report, "engine_us_per_task", NULL);
    rp_report_real(report, "elapsed_without_work", task_us, 3, NULL);
    rp_report_real(report, "worker_cpu", worker_us(comparison), 3, NULL);
    rp_report_end(report);
    rp_report_say(report,
                  "machine: threads that stand for devices were late by %.0f us on average, %.0f "
                  "us at most",
                  (double)late->mean_ns / 1000, (double)late->max_ns / 1000);
    rp_report_object(report, "device_threads_late_us", NULL);
    rp_report_real(report, "mean", (double)late->mean_ns / 1000, 3, NULL);
    rp_report_real(report, "max", (double)late->max_ns / 1000, 3, NULL);
    rp_report_end(report);
    if (options->fidelity == RP_FIDELITY_FULL)
        rp_report_say(report, "note: devices share no links here, in the prediction neither");
}

static gboolean
check_args(const RpArgs *args, const char *path, GError **error)
{
    const RpCliFile files[] = {
        {"--trace", args->trace, RP_CLI_WRITTEN},
    };

    if (!rp_cli_check_outputs(path, args, files, G_N_ELEMENTS(files), error))
        return FALSE;
    if (args->scale != 0 && args->seconds != 0)
        return rp_cli_refuse(error, "--scale and --seconds exclude each other");
    if (args->scale >= 0 && args->scale <= 1000 && args->seconds >= 0 && args->seconds <= 86400)
        return TRUE;
    return rp_cli_refuse(error,
                         "expected --scale between 0 and 1000 and --seconds between 0 and 86400");
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    g_auto(RpRequest) request = {0};
    g_auto(Comparison) comparison = {0};
    g_autoptr(RpProfile) profile = NULL;

    if (!check_args(args, words[0], error) ||
        !rp_request_load(args, words[0], &profile, &request, error))
        return FALSE;

    const RpMachine machine = replay_machine(profile);
    g_autoptr(RpPlan) plan =
        rp_plan_make(profile, request.partition, &request.options, request.iterations, error);
    if (plan == NULL)
        return FALSE;
    g_autoptr(RpTrace) predicted = rp_simulate(plan, &machine, error);
    if (predicted == NULL)
        return FALSE;
    const double seconds = args->seconds > 0 ? args->seconds : DEFAULT_SECONDS;
    const gint64 end_ns = MAX(1, rp_trace_end_ns(predicted));

    comparison.scale =
        args->scale > 0 ? args->scale : seconds * (double)RP_NS_PER_S / (double)end_ns;
    rp_result_measure(&request, profile, plan, predicted, &comparison.predicted);
    if (!measure(&request, profile, plan, &comparison, error))
        return FALSE;
    if (!rp_cli_write_trace(args->trace, comparison.timed.trace, NULL, error))
        return FALSE;
    report_comparison(report, &request, profile, &comparison);
    return TRUE;
}

static const RpUse uses[] = {
    {"scale"},
    {"seconds", "choose the scale so that the run takes S seconds (default: 5)"},
    {"trace", "write the measured trace for ui.perfetto.dev or chrome://tracing"},
    {0},
};

const RpCommand rp_command_replay = {
    .name = "replay",
    .summary = "run one schedule for real; tasks only take their time",
    .expert = TRUE,
    .words = "PROFILE.json",
    .help = "Runs one schedule for real, on threads and events; tasks only take their time.\n"
            "Prints what was predicted and what was measured.\n\n"
            "Example:\n"
            "  roundpipe replay profiles/rtx4090/qwen3-1.7b.json \\\n"
            "    --schedule roundpipe --gpus 8 --micro-batches 16",
    .requests = RP_REQUEST,
    .uses = uses,
    .run = run,
};
