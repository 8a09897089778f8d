#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/reports/result.h"
#include "core/base/units.h"
#include "core/verify/verify.h"
#include "exec/engine/engine.h"
#include "exec/replay/replay.h"
#include "sim/simulate.h"

/* A run takes so long unless told otherwise. */
#define DEFAULT_SECONDS 5.0

typedef struct {
    double scale; /* 0 = from seconds */
    double seconds;
    char *trace;
} ReplayArgs;

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

/* What is compared and how it came about. */
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

static void
json_side(RpJsonWriter *json, const char *key, const RpResult *result)
{
    rp_json_object(json, key);
    rp_json_double(json, "makespan_ms", rp_ms_from_ns(result->makespan_ns), 6);
    rp_json_bool(json, "steady_state", result->steady);
    rp_json_double(json, "iteration_ms", rp_ms_from_ns(result->iteration_ns), 6);
    rp_json_double(json, "bubble_ratio", result->bubble.ratio, 9);
    rp_json_end(json);
}

static void
print_json(const RpRequest *request, const RpProfile *profile, const Comparison *comparison)
{
    const RpResult *predicted = &comparison->predicted, *measured = &comparison->measured;
    const RpPlanOptions *options = &request->options;
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    rp_json_string(json, "model", profile->model);
    rp_json_string(json, "device", profile->device);
    rp_json_string(json, "schedule", options->schedule->name);
    rp_json_int(json, "gpus", options->gpus);
    rp_json_int(json, "micro_batches", options->micro_batches);
    rp_json_int(json, "round", options->round);
    rp_json_string(json, "fidelity", options->fidelity == RP_FIDELITY_FULL ? "full" : "compute");
    rp_json_bool(json, "async", options->async);
    rp_json_int(json, "iterations", request->iterations);
    rp_json_double(json, "scale", comparison->scale, 9);
    json_side(json, "predicted", predicted);
    json_side(json, "measured", measured);
    rp_json_double(json, "makespan_relative_error",
                   relative(measured->makespan_ns, predicted->makespan_ns), 9);
    rp_json_double(json, "bubble_ratio_difference",
                   measured->bubble.ratio - predicted->bubble.ratio, 9);
    rp_json_int(json, "plan_tasks", (gint64)comparison->timed.cost.tasks);
    rp_json_object(json, "engine_us_per_task");
    rp_json_double(json, "elapsed_without_work", (double)comparison->empty_task_ns / 1000, 3);
    rp_json_double(json, "worker_cpu", worker_us(comparison), 3);
    rp_json_end(json);
    rp_json_object(json, "device_threads_late_us");
    rp_json_double(json, "mean", (double)comparison->timed.lateness.mean_ns / 1000, 3);
    rp_json_double(json, "max", (double)comparison->timed.lateness.max_ns / 1000, 3);
    rp_json_end(json);
    rp_json_end(json);
    rp_cli_print_json(json);
}

static void
add_time(RpCliTable *table, const char *label, gint64 predicted_ns, gint64 measured_ns)
{
    rp_cli_table_add(table, "%s", label);
    rp_cli_table_add(table, "%.3f", rp_ms_from_ns(predicted_ns));
    rp_cli_table_add(table, "%.3f", rp_ms_from_ns(measured_ns));
    rp_cli_table_add(table, "%+.3f %%", 100 * relative(measured_ns, predicted_ns));
}

static void
add_share(RpCliTable *table, const char *label, double predicted, double measured)
{
    rp_cli_table_add(table, "%s", label);
    rp_cli_table_add(table, "%.3f", 100 * predicted);
    rp_cli_table_add(table, "%.3f", 100 * measured);
    rp_cli_table_add(table, "%+.3f points", 100 * (measured - predicted));
}

static void
print_text(const RpRequest *request, const RpProfile *profile, const Comparison *comparison)
{
    static const char *const columns[] = {"<", "predicted", "measured", "difference", NULL};
    const RpResult *predicted = &comparison->predicted, *measured = &comparison->measured;
    const RpPlanOptions *options = &request->options;
    const RpReplayLateness *late = &comparison->timed.lateness;
    g_autoptr(RpCliTable) table = rp_cli_table_new(columns);

    g_autofree char *subject = rp_cli_subject(profile, options->gpus);

    printf("%s%s, %s: %u iteration%s replayed in %s fidelity, times x %.6g\n",
           options->schedule->title, options->async ? " (asynchronous)" : "", subject,
           request->iterations, request->iterations == 1 ? "" : "s",
           options->fidelity == RP_FIDELITY_FULL ? "full" : "compute", comparison->scale);
    add_time(table, "makespan, ms", predicted->makespan_ns, measured->makespan_ns);
    add_time(table, measured->steady ? "steady iteration, ms" : "iteration, ms",
             predicted->iteration_ns, measured->iteration_ns);
    add_share(table, "bubble ratio, %", predicted->bubble.ratio, measured->bubble.ratio);
    add_share(table, "  fill", predicted->bubble.fill, measured->bubble.fill);
    add_share(table, "  switch", predicted->bubble.switch_, measured->bubble.switch_);
    add_share(table, "  drain", predicted->bubble.drain, measured->bubble.drain);
    add_share(table, "  intra", predicted->bubble.intra, measured->bubble.intra);
    rp_cli_table_print(table);
    printf("measured times are divided by the scale; the trace follows the plan (verified)\n");
    printf("engine: %.2f us a task when tasks take no time, %.2f us processor time of the workers "
           "a task, %" G_GUINT64_FORMAT " tasks\n",
           (double)comparison->empty_task_ns / 1000, worker_us(comparison),
           comparison->timed.cost.tasks);
    printf("machine: threads that stand for devices were late by %.0f us on average, %.0f us at "
           "most\n",
           (double)late->mean_ns / 1000, (double)late->max_ns / 1000);
    if (options->fidelity == RP_FIDELITY_FULL)
        printf("note: devices share no links here, in the prediction neither\n");
}

static gboolean
check_args(const ReplayArgs *args, const char *path, GError **error)
{
    g_autofree char *read = rp_cli_profile_path(path);
    const RpCliFile files[] = {
        {"PROFILE.json", read, FALSE},
        {"--trace", args->trace, TRUE},
    };

    if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    if (args->trace != NULL && strcmp(args->trace, "-") == 0) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--trace: expected a file; standard output has the report");
        return FALSE;
    }
    if (args->trace != NULL && !rp_cli_check_writable(args->trace, error))
        return FALSE;
    if (args->scale != 0 && args->seconds != 0) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--scale and --seconds exclude each other");
        return FALSE;
    }
    if (args->scale >= 0 && args->scale <= 1000 && args->seconds >= 0 && args->seconds <= 86400)
        return TRUE;
    g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                        "expected --scale between 0 and 1000 and --seconds between 0 and 86400");
    return FALSE;
}

static gboolean
run(const RpScheduleArgs *args, const ReplayArgs *replay_args, const char *path, GError **error)
{
    g_auto(RpRequest) request = {0};
    g_auto(Comparison) comparison = {0};
    g_autoptr(RpProfile) profile = NULL;

    if (!check_args(replay_args, path, error) ||
        !rp_request_load(args, path, &profile, &request, error))
        return FALSE;

    const RpMachine machine = replay_machine(profile);
    g_autoptr(RpPlan) plan =
        rp_plan_make(profile, request.partition, &request.options, request.iterations, error);
    if (plan == NULL)
        return FALSE;
    g_autoptr(RpTrace) predicted = rp_simulate(plan, &machine, error);
    if (predicted == NULL)
        return FALSE;
    const double seconds = replay_args->seconds > 0 ? replay_args->seconds : DEFAULT_SECONDS;
    const gint64 end_ns = MAX(1, rp_trace_end_ns(predicted));

    comparison.scale = replay_args->scale > 0 ? replay_args->scale
                                              : seconds * (double)RP_NS_PER_S / (double)end_ns;
    rp_result_measure(&request, profile, plan, predicted, &comparison.predicted);
    if (!measure(&request, profile, plan, &comparison, error))
        return FALSE;
    if (replay_args->trace != NULL &&
        !rp_cli_write_trace(replay_args->trace, comparison.timed.trace, error))
        return FALSE;
    if (args->json)
        print_json(&request, profile, &comparison);
    else
        print_text(&request, profile, &comparison);
    return TRUE;
}

int
rp_cmd_replay(int argc, char **argv)
{
    RpScheduleArgs args = {0};
    ReplayArgs replay_args = {0};
    const GOptionEntry more[] = {
        {"scale", 0, 0, G_OPTION_ARG_DOUBLE, &replay_args.scale,
         "let everything take X times its time", "X"},
        {"seconds", 0, 0, G_OPTION_ARG_DOUBLE, &replay_args.seconds,
         "choose the scale so that the run takes S seconds (default: 5)", "S"},
        {"trace", 0, 0, G_OPTION_ARG_FILENAME, &replay_args.trace,
         "write the measured trace for ui.perfetto.dev or chrome://tracing", "FILE.json"},
        {0},
    };
    g_autofree GOptionEntry *entries = rp_schedule_args_entries(&args, TRUE);
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("PROFILE.json",
                      "Runs one schedule for real, on threads and events; tasks only take their "
                      "time.\nPrints what was predicted and what was measured.\n\n"
                      "Example:\n"
                      "  roundpipe replay profiles/rtx4090/qwen3-1.7b.json \\\n"
                      "    --schedule roundpipe --gpus 8 --micro-batches 16",
                      entries, more, 1, 1, &argc, &argv, &error) ||
        !run(&args, &replay_args, argv[1], &error))
        code = rp_cli_fail("replay", error);
    rp_schedule_args_clear(&args);
    g_free(replay_args.trace);
    return code;
}
