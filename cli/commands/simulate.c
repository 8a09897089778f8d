#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/reports/picture.h"
#include "cli/reports/result.h"
#include "core/base/units.h"
#include "core/formats/export.h"

/* Files to write besides the report; %NULL = none. */
typedef struct {
    char *trace;
    char *csv;
    char *picture;
    char *memory_picture;
    char *window; /* of the pictures */
} Outputs;

static void
json_devices(RpJsonWriter *json, const RpTrace *trace)
{
    g_autoptr(GArray) use = rp_report_device_use(trace);

    rp_json_array(json, "devices");
    for (guint g = 0; g < use->len; g++) {
        const RpDeviceUse *device = &g_array_index(use, RpDeviceUse, g);

        rp_json_object(json, NULL);
        rp_json_int(json, "gpu", g);
        rp_json_double(json, "busy_ms", rp_ms_from_ns(device->busy_ns[RP_LANE_COMPUTE]), 6);
        rp_json_int(json, "actions", device->actions);
        rp_json_int(json, "bytes_up", (gint64)device->bytes_up);
        rp_json_int(json, "bytes_down", (gint64)device->bytes_down);
        rp_json_end(json);
    }
    rp_json_end(json);
}

static void
json_request(RpJsonWriter *json, const RpRequest *request, const RpProfile *profile)
{
    const RpPlanOptions *options = &request->options;

    rp_json_string(json, "origin", "predicted");
    rp_json_string(json, "model", profile->model);
    rp_json_string(json, "device", profile->device);
    rp_json_string(json, "times", profile->source);
    rp_json_string(json, "schedule", options->schedule->name);
    rp_json_int(json, "gpus", options->gpus);
    rp_json_int(json, "micro_batches", options->micro_batches);
    rp_json_int(json, "round", options->round);
    rp_json_string(json, "fidelity", options->fidelity == RP_FIDELITY_FULL ? "full" : "compute");
    rp_json_string(json, "recompute", rp_request_recompute(request));
    rp_json_bool(json, "async", options->async);
    rp_json_int(json, "iterations", request->iterations);
    rp_json_string(json, "partition", request->partition_source);
    rp_json_partition(json, profile, request->partition);
}

static void
print_json(const RpRequest *request, const RpProfile *profile, const RpTrace *trace,
           const RpResult *result)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_object(json, NULL);
    json_request(json, request, profile);
    rp_json_double(json, "makespan_ms", rp_ms_from_ns(result->makespan_ns), 6);
    rp_json_bool(json, "steady_state", result->steady);
    rp_json_double(json, "iteration_ms", rp_ms_from_ns(result->iteration_ns), 6);
    if (result->most_ns > 0) {
        rp_json_object(json, "iteration_ms_range");
        rp_json_double(json, "least", rp_ms_from_ns(result->least_ns), 6);
        rp_json_double(json, "most", rp_ms_from_ns(result->most_ns), 6);
        rp_json_end(json);
    }
    rp_json_bubble(json, &result->bubble);
    if (result->steady) {
        rp_json_object(json, "window");
        rp_json_int(json, "first_iteration", result->first_iteration);
        rp_json_int(json, "end_iteration", result->end_iteration);
        rp_json_end(json);
    }
    if (request->options.async) {
        rp_json_object(json, "isolated");
        rp_json_double(json, "makespan_ms", rp_ms_from_ns(result->isolated.makespan_ns), 6);
        rp_json_bubble(json, &result->isolated);
        /* the published asynchronous figure */
        rp_json_double(json, "switch_intra_ratio",
                       result->isolated.switch_ + result->isolated.intra, 9);
        rp_json_end(json);
    }
    rp_json_double(json, "tokens_per_s", result->tokens_per_s, 3);
    rp_json_int(json, "tasks", (gint64)result->actions);
    rp_json_int(json, "plan_tasks", (gint64)result->tasks);
    rp_json_int(json, "peak_live", result->peak_live);
    if (request->options.fidelity == RP_FIDELITY_FULL) {
        rp_json_int(json, "gpu_peak_bytes", (gint64)result->gpu_peak_bytes);
        rp_json_int(json, "host_peak_bytes", (gint64)result->host_peak_bytes);
        rp_json_bool(json, "fits_gpu_memory", result->memory_problem == NULL);
    }
    json_devices(json, trace);
    rp_json_end(json);
    rp_cli_print_json(json);
}

static void
print_stages(const char *label, const RpProfile *profile, const RpInterval *stages, guint n)
{
    g_autofree char *list = rp_cli_stage_list(profile, stages, n);

    printf("  %-17s %s\n", label, list);
}

static void
print_memory(const RpResult *result)
{
    g_autofree char *gpu = rp_cli_format_bytes(result->gpu_peak_bytes);
    g_autofree char *host = rp_cli_format_bytes(result->host_peak_bytes);

    printf("  %-17s %s on the fullest GPU, %s on the host\n", "memory", gpu, host);
    if (result->memory_problem != NULL)
        printf("  does not fit: %s\n", result->memory_problem);
}

static void
print_parts(const char *label, const RpBubble *bubble)
{
    printf("  %-17s %.4f %% = fill %.4f + switch %.4f + drain %.4f + intra %.4f\n", label,
           100 * bubble->ratio, 100 * bubble->fill, 100 * bubble->switch_, 100 * bubble->drain,
           100 * bubble->intra);
}

static void
print_bubble(const RpRequest *request, const RpResult *result)
{
    print_parts("bubble ratio", &result->bubble);
    printf("  %-17s %.4f %% (part of the four)\n", "exposed transfer",
           100 * result->bubble.comm_exposed);
    if (result->steady)
        printf("  %-17s iterations %u to %u of %u, %.4f ms each\n", "steady state",
               result->first_iteration, result->end_iteration - 1, request->iterations,
               rp_ms_from_ns(result->iteration_ns));
    if (request->options.async && request->iterations > 1) {
        print_parts("first iteration", &result->isolated);
        printf("  %-17s %.4f %% of the first iteration: what others publish as asynchronous\n",
               "switch + intra", 100 * (result->isolated.switch_ + result->isolated.intra));
    }
    if (request->options.async && !result->steady)
        printf("  note: no steady state yet; it takes %u iterations, leave --iterations out\n",
               request->window.iterations);
}

static void
print_text(const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
           const RpResult *result)
{
    const RpPlanOptions *options = &request->options;
    const RpPartition *partition = request->partition;
    g_autofree char *subject = rp_cli_subject(profile, options->gpus);

    printf("%s%s, %s: predicted, %s fidelity, %s recompute, %s layer times\n",
           options->schedule->title, options->async ? " (asynchronous)" : "", subject,
           options->fidelity == RP_FIDELITY_FULL ? "full" : "compute",
           rp_request_recompute(request), profile->source);
    if (partition->dispatched) {
        printf("  %-17s %u in rounds of %u\n", "micro-batches", options->micro_batches,
               options->round);
        print_stages("forward stages", profile, partition->forward, partition->n_forward);
        print_stages("backward stages", profile, partition->backward, partition->n_backward);
    } else {
        printf("  %-17s %u\n", "micro-batches", options->micro_batches);
        print_stages("stages", profile, partition->forward, partition->n_forward);
    }
    printf("  %-17s %s\n", "partition", request->partition_source);
    printf("  %-17s %.4f ms for %u iteration%s\n", "makespan", rp_ms_from_ns(result->makespan_ns),
           request->iterations, request->iterations == 1 ? "" : "s");
    if (result->most_ns > 0)
        printf("  %-17s %.4f ms, %.4f to %.4f with every layer at the 10th or the 90th percentile "
               "of its times\n",
               "iteration", rp_ms_from_ns(result->iteration_ns), rp_ms_from_ns(result->least_ns),
               rp_ms_from_ns(result->most_ns));
    print_bubble(request, result);
    if (result->tokens_per_s > 0)
        printf("  %-17s %.0f tokens/s\n", "throughput", result->tokens_per_s);
    if (options->fidelity == RP_FIDELITY_FULL)
        print_memory(result);
    printf("  %-17s %" G_GUINT64_FORMAT " actions, %" G_GUINT64_FORMAT " in the plan\n", "tasks",
           result->actions, result->tasks);
    if (rp_plan_promises(plan)->early_fused && partition->dispatched)
        printf("  note: as published, the fused stage's forward may run before its input has "
               "arrived;\n  --fused-forward=physical forbids it\n");
}

/* What a file is written from. */
typedef struct {
    const RpPlan *plan;
    const RpTrace *trace;
} Run;

static gboolean
write_chrome(GOutputStream *stream, gpointer user_data, GError **error)
{
    const Run *what = user_data;

    return rp_export_chrome(what->trace, what->plan, RP_CHROME_MEMORY | RP_CHROME_FLOWS, stream,
                            error);
}

static gboolean
write_csv(GOutputStream *stream, gpointer user_data, GError **error)
{
    const Run *what = user_data;

    return rp_export_csv(what->trace, stream, error);
}

static gboolean
draw(const Outputs *outputs, const RpRequest *request, const RpProfile *profile, const Run *what,
     GError **error)
{
    g_autofree char *model = rp_cli_model_name(profile);
    RpPictureWindow window;

    if (!rp_cli_picture_window(request, what->trace, outputs->window, &window, error))
        return FALSE;
    if (outputs->picture != NULL) {
        g_autoptr(RpFigure) figure = rp_cli_timeline(request, model, what->trace, &window);

        if (!rp_cli_picture_write(figure, outputs->picture, error))
            return FALSE;
    }
    if (outputs->memory_picture != NULL) {
        g_autoptr(RpFigure) figure =
            rp_cli_memory_chart(request, profile, what->plan, what->trace, &window);

        return rp_cli_picture_write(figure, outputs->memory_picture, error);
    }
    return TRUE;
}

static gboolean
write_outputs(const Outputs *outputs, const RpRequest *request, const RpProfile *profile, Run *what,
              GError **error)
{
    return (outputs->trace == NULL ||
            rp_cli_write_file(outputs->trace, write_chrome, what, error)) &&
           (outputs->csv == NULL || rp_cli_write_file(outputs->csv, write_csv, what, error)) &&
           draw(outputs, request, profile, what, error);
}

static gboolean
check_file(const char *option, const char *path, GError **error)
{
    if (path == NULL)
        return TRUE;
    if (strcmp(path, "-") != 0)
        return rp_cli_check_writable(path, error);
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "--%s: expected a file; standard output has the report (`roundpipe export` writes "
                "there)",
                option);
    return FALSE;
}

/* Before long work. */
static gboolean
check_outputs(const Outputs *outputs, const RpScheduleArgs *args, const char *path, GError **error)
{
    g_autofree char *read = rp_cli_profile_path(path);
    const RpCliFile files[] = {
        {"PROFILE.json", read, FALSE},
        {"--trace", outputs->trace, TRUE},
        {"--csv", outputs->csv, TRUE},
        {"--picture", outputs->picture, TRUE},
        {"--memory-picture", outputs->memory_picture, TRUE},
    };

    if (outputs->window != NULL && outputs->picture == NULL && outputs->memory_picture == NULL) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--window: expected --picture or --memory-picture beside it");
        return FALSE;
    }
    if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error) ||
        !check_file("trace", outputs->trace, error) || !check_file("csv", outputs->csv, error))
        return FALSE;
    if (outputs->picture != NULL && !rp_cli_picture_check("picture", outputs->picture, error))
        return FALSE;
    if (outputs->memory_picture == NULL)
        return TRUE;
    if (g_strcmp0(args->fidelity, "full") != 0) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--memory-picture: expected --fidelity full beside it: only that plans "
                            "buffers");
        return FALSE;
    }
    return rp_cli_picture_check("memory-picture", outputs->memory_picture, error);
}

static gboolean
run(const RpScheduleArgs *args, const Outputs *outputs, const char *path, GError **error)
{
    g_auto(RpRequest) request = {0};
    g_auto(RpResult) result = {0};
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(RpPlan) plan = NULL;

    if (!check_outputs(outputs, args, path, error) ||
        !rp_request_load(args, path, &profile, &request, error))
        return FALSE;
    g_autoptr(RpTrace) trace = rp_request_simulate(&request, profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    Run what = {.plan = plan, .trace = trace};

    if (!write_outputs(outputs, &request, profile, &what, error))
        return FALSE;
    rp_result_measure(&request, profile, plan, trace, &result);
    if (!rp_request_spread(&request, profile, &result.least_ns, &result.most_ns, error))
        return FALSE;
    if (args->json)
        print_json(&request, profile, trace, &result);
    else
        print_text(&request, profile, plan, &result);
    return TRUE;
}

int
rp_cmd_simulate(int argc, char **argv)
{
    RpScheduleArgs args = {0};
    Outputs outputs = {0};
    const GOptionEntry more[] = {
        {"trace", 0, 0, G_OPTION_ARG_FILENAME, &outputs.trace,
         "write the trace for ui.perfetto.dev or chrome://tracing", "FILE.json"},
        {"csv", 0, 0, G_OPTION_ARG_FILENAME, &outputs.csv, "write a line for each task",
         "FILE.csv"},
        {"picture", 0, 0, G_OPTION_ARG_FILENAME, &outputs.picture,
         "draw the timeline: .png, .svg or .pdf", "FILE"},
        {"memory-picture", 0, 0, G_OPTION_ARG_FILENAME, &outputs.memory_picture,
         "full fidelity: draw the memory of each GPU over time", "FILE"},
        {"window", 0, 0, G_OPTION_ARG_STRING, &outputs.window,
         "draw iterations A to B - 1 (default: the steady state, else all)", "A:B"},
        {0},
    };
    g_autofree GOptionEntry *entries = rp_schedule_args_entries(&args, TRUE);
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("PROFILE.json",
                      "Runs one schedule in virtual time and reports its bubbles.\n\n"
                      "Example:\n"
                      "  roundpipe simulate profiles/rtx4090/qwen3-1.7b.json \\\n"
                      "    --schedule roundpipe --gpus 8 --micro-batches 16 --async",
                      entries, more, 1, 1, &argc, &argv, &error) ||
        !run(&args, &outputs, argv[1], &error))
        code = rp_cli_fail("simulate", error);
    rp_schedule_args_clear(&args);
    g_free(outputs.trace);
    g_free(outputs.csv);
    g_free(outputs.picture);
    g_free(outputs.memory_picture);
    g_free(outputs.window);
    return code;
}
