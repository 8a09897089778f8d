#include "cli/cli.h"

#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/units.h"

static void
report_devices(RpReport *report, const RpTrace *trace)
{
    g_autoptr(GArray) use = rp_report_device_use(trace);

    rp_report_list(report, "devices");
    for (guint g = 0; g < use->len; g++) {
        const RpDeviceUse *device = &g_array_index(use, RpDeviceUse, g);

        rp_report_object(report, NULL, NULL);
        rp_report_count(report, "gpu", g, NULL);
        rp_report_ms(report, "busy_ms", device->busy_ns[RP_LANE_COMPUTE], NULL);
        rp_report_count(report, "actions", device->actions, NULL);
        rp_report_count(report, "bytes_up", (gint64)device->bytes_up, NULL);
        rp_report_count(report, "bytes_down", (gint64)device->bytes_down, NULL);
        rp_report_end(report);
    }
    rp_report_end(report);
}

static void
report_request(RpReport *report, const RpRequest *request, const RpProfile *profile)
{
    const RpPlanOptions *options = &request->options;
    const char *fidelity = options->fidelity == RP_FIDELITY_FULL ? "full" : "compute";
    g_autofree char *subject = rp_cli_subject(profile, options->gpus);

    const char *recompute = rp_request_recompute(request);

    rp_report_say(report, "%s%s, %s: predicted, %s fidelity, %s recompute, %s layer times",
                  options->schedule->title, options->async ? " (asynchronous)" : "", subject,
                  fidelity, strcmp(recompute, "none") == 0 ? "no" : recompute, profile->source);
    rp_report_text(report, "origin", "predicted", NULL);
    rp_report_text(report, "model", profile->model, NULL);
    rp_report_text(report, "device", profile->device, NULL);
    rp_report_text(report, "times", profile->source, NULL);
    rp_report_text(report, "schedule", options->schedule->name, NULL);
    rp_report_count(report, "gpus", options->gpus, NULL);
    rp_report_count(report, "micro_batches", options->micro_batches, "micro-batches");
    if (request->partition->dispatched)
        rp_report_show(report, "%u in rounds of %u", options->micro_batches, options->round);
    if (rp_plan_slices(options) > 1)
        rp_report_count(report, "slices", rp_plan_slices(options), "slices");
    if (rp_plan_slices(options) > 1)
        rp_report_show(report, "%u of each sequence", rp_plan_slices(options));
    if (options->replicas > 1)
        rp_report_count(report, "replicas", options->replicas, "replicas");
    if (options->replicas > 1)
        rp_report_show(report, "%u of %u GPUs, which take rounds in turn", options->replicas,
                       rp_plan_group_gpus(options));
    rp_report_count(report, "round", options->round, NULL);
    rp_report_text(report, "fidelity", fidelity, NULL);
    rp_report_text(report, "recompute", recompute, NULL);
    rp_report_bool(report, "async", options->async, NULL);
    rp_report_count(report, "iterations", request->iterations, NULL);
    rp_report_add_partition(report, profile, request->partition, request->partition_source);
    if (options->schedule->mirrored)
        rp_report_line(report, "weights", "two copies of each stage, on GPUs s and N-1-s");
    if (options->schedule->unflushed && options->async)
        rp_report_line(report, "weights", "two versions of each stage on its GPU");
}

static void
report_bubble(RpReport *report, const RpBubble *bubble, const char *label)
{
    rp_report_add_bubble(report, bubble, NULL);
    rp_report_line(report, label, "%.4f %% = fill %.4f + switch %.4f + drain %.4f + intra %.4f",
                   100 * bubble->ratio, 100 * bubble->fill, 100 * bubble->switch_,
                   100 * bubble->drain, 100 * bubble->intra);
}

/* Asynchronous: the first iteration alone, which others publish. */
static void
report_isolated(RpReport *report, const RpRequest *request, const RpResult *result)
{
    const double published = result->isolated.switch_ + result->isolated.intra;
    const gboolean shown = request->iterations > 1;

    rp_report_object(report, "isolated", NULL);
    rp_report_ms(report, "makespan_ms", result->isolated.makespan_ns, NULL);
    report_bubble(report, &result->isolated, shown ? "first iteration" : NULL);
    rp_report_ratio(report, "switch_intra_ratio", published, shown ? "switch + intra" : NULL);
    rp_report_show(report, "%.4f %% of the first iteration: what others publish as asynchronous",
                   100 * published);
    rp_report_end(report);
    if (!result->steady)
        rp_report_say(report,
                      "  note: no steady state yet; it takes %u iterations, leave --iterations out",
                      request->window.iterations);
}

static void
report_times(RpReport *report, const RpRequest *request, const RpResult *result)
{
    const double iteration_ms = rp_ms_from_ns(result->iteration_ns);

    rp_report_ms(report, "makespan_ms", result->makespan_ns, "makespan");
    rp_report_show(report, "%.4f ms for %u iteration%s", rp_ms_from_ns(result->makespan_ns),
                   request->iterations, request->iterations == 1 ? "" : "s");
    rp_report_bool(report, "steady_state", result->steady, NULL);
    rp_report_ms(report, "iteration_ms", result->iteration_ns, NULL);
    if (result->most_ns > 0) {
        rp_report_line(report, "iteration",
                       "%.4f ms, %.4f to %.4f with every layer at the 10th or the 90th percentile "
                       "of its times",
                       iteration_ms, rp_ms_from_ns(result->least_ns),
                       rp_ms_from_ns(result->most_ns));
        rp_report_object(report, "iteration_ms_range", NULL);
        rp_report_ms(report, "least", result->least_ns, NULL);
        rp_report_ms(report, "most", result->most_ns, NULL);
        rp_report_end(report);
    }
    report_bubble(report, &result->bubble, "bubble ratio");
    rp_report_add_plan_bound(report, result, "lower bound", TRUE);
    rp_report_line(report, "exposed transfer", "%.4f %% (part of the four)",
                   100 * result->bubble.comm_exposed);
    if (result->bubble.expand > 0)
        rp_report_line(report, "expansions", "%.4f %% of the time: busy, not part of the ratio",
                       100 * result->bubble.expand);
    if (result->steady) {
        rp_report_object(report, "window", NULL);
        rp_report_count(report, "first_iteration", result->first_iteration, "steady state");
        if (result->end_iteration - result->first_iteration == 1)
            rp_report_show(report, "iteration %u of %u, %.4f ms", result->first_iteration,
                           request->iterations, iteration_ms);
        else
            rp_report_show(report, "iterations %u to %u of %u, %.4f ms each",
                           result->first_iteration, result->end_iteration - 1, request->iterations,
                           iteration_ms);
        rp_report_count(report, "end_iteration", result->end_iteration, NULL);
        rp_report_end(report);
    }
    if (request->options.async && !request->options.schedule->unflushed)
        report_isolated(report, request, result);
    rp_report_real(report, "tokens_per_s", result->tokens_per_s, 3,
                   result->tokens_per_s > 0 ? "throughput" : NULL);
    rp_report_show(report, "%.0f tokens/s", result->tokens_per_s);
}

static void
report_run(RpReport *report, const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
           const RpTrace *trace, const RpResult *result, const RpArgs *noise,
           const RpRequestDrawn *drawn)
{
    report_request(report, request, profile);
    report_times(report, request, result);
    rp_report_add_noise(report, noise, request, drawn, TRUE);
    rp_report_count(report, "tasks", (gint64)result->actions, "tasks");
    rp_report_show(report, "%" G_GUINT64_FORMAT " actions, %" G_GUINT64_FORMAT " in the plan",
                   result->actions, result->tasks);
    rp_report_count(report, "plan_tasks", (gint64)result->tasks, NULL);
    rp_report_count(report, "peak_live", result->peak_live, NULL);
    if (request->options.fidelity == RP_FIDELITY_FULL) {
        g_autofree char *gpu = rp_cli_format_bytes(result->gpu_peak_bytes);
        g_autofree char *host = rp_cli_format_bytes(result->host_peak_bytes);

        rp_report_bytes(report, "gpu_peak_bytes", result->gpu_peak_bytes, "memory");
        rp_report_show(report, "%s on the fullest GPU, %s on the host", gpu, host);
        rp_report_bytes(report, "host_peak_bytes", result->host_peak_bytes, NULL);
        rp_report_add_saved(report, request);
        rp_report_add_resident(report, request);
        rp_report_bool(report, "fits_gpu_memory", result->memory_problem == NULL, NULL);
        if (result->memory_problem != NULL)
            rp_report_say(report, "  does not fit: %s", result->memory_problem);
    }
    report_devices(report, trace);
    if (rp_plan_modes(plan)->published && request->partition->dispatched)
        rp_report_say(report,
                      "  note: as published, the fused stage's forward may run before its input "
                      "has arrived;\n  without --published it waits");
}

static gboolean
draw(const RpArgs *outputs, const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
     const RpTrace *trace, GError **error)
{
    g_autofree char *model = rp_cli_model_name(profile);
    RpPictureWindow window;
    RpFigureStyle style;

    if (!rp_cli_picture_window(request, trace, outputs->window, &window, error) ||
        !rp_cli_picture_style(outputs, TRUE, &style, error))
        return FALSE;
    if (outputs->picture != NULL) {
        g_autoptr(RpFigure) figure = rp_cli_timeline(request, model, trace, &window, &style);

        if (!rp_cli_picture_write(figure, outputs->picture, error))
            return FALSE;
    }
    if (outputs->memory_picture != NULL) {
        g_autoptr(RpFigure) figure =
            rp_cli_memory_chart(request, profile, plan, trace, &window, &style);

        return rp_cli_picture_write(figure, outputs->memory_picture, error);
    }
    return TRUE;
}

/* Before long work. */
static gboolean
check_outputs(const RpArgs *args, const char *path, GError **error)
{
    const RpCliFile files[] = {
        {"--trace", args->trace, RP_CLI_WRITTEN},
        {"--csv", args->csv, RP_CLI_WRITTEN},
        {"--picture", args->picture, RP_CLI_DRAWN},
        {"--memory-picture", args->memory_picture, RP_CLI_DRAWN},
    };
    RpFigureStyle style;

    if (!rp_cli_picture_style(args, args->picture != NULL || args->memory_picture != NULL, &style,
                              error))
        return FALSE;
    if (args->window != NULL && args->picture == NULL && args->memory_picture == NULL)
        return rp_cli_refuse(error, "--window: expected --picture or --memory-picture beside it");
    if (args->memory_picture != NULL && g_strcmp0(args->fidelity, "full") != 0)
        return rp_cli_refuse(error, "--memory-picture: expected --fidelity full beside it: only "
                                    "that plans buffers");
    return rp_cli_check_outputs(path, args, files, G_N_ELEMENTS(files), error);
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    g_auto(RpRequest) request = {0};
    g_auto(RpResult) result = {0};
    RpRequestDrawn drawn = {0};
    gboolean distributed;
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(RpPlan) plan = NULL;

    if (!check_outputs(args, words[0], error) ||
        !rp_request_load(args, words[0], &profile, &request, error))
        return FALSE;
    if (!rp_cli_noise_check(args, request.options.gpus, error))
        return FALSE;
    if (args->draws > 0 && rp_plan_slices(&request.options) > 1)
        return rp_cli_refuse(error,
                             "--draws: spreads of slices are not known; expected --slices 1");
    request.noise = args->noise;
    g_autoptr(RpTrace) trace = rp_request_simulate(&request, profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    if (!rp_cli_write_trace(args->trace, trace, plan, error) ||
        !rp_cli_write_tasks(args->csv, trace, error) ||
        !draw(args, &request, profile, plan, trace, error))
        return FALSE;
    rp_result_measure(&request, profile, plan, trace, &result);
    if (!rp_request_spread(&request, profile, &result.least_ns, &result.most_ns, error) ||
        !rp_cli_noise_draw(args, &request, profile, &drawn, &distributed, error))
        return FALSE;
    if (args->draws > 0 && !distributed)
        rp_cli_note("note", "--draws: the profile's times have no spread");
    report_run(report, &request, profile, plan, trace, &result, args, &drawn);
    return TRUE;
}

static const RpUse uses[] = {
    {"trace csv picture memory-picture window " RP_USE_PICTURE " " RP_USE_NOISE},
    {0},
};

const RpCommand rp_command_simulate = {
    .name = "simulate",
    .summary = "run one schedule in virtual time",
    .expert = TRUE,
    .words = "PROFILE.json",
    .help = "Runs one schedule in virtual time and reports its bubbles.\n\n"
            "Example:\n"
            "  roundpipe simulate profiles/rtx4090/qwen3-1.7b.json \\\n"
            "    --schedule roundpipe --gpus 8 --micro-batches 16 --async",
    .requests = RP_REQUEST,
    .uses = uses,
    .run = run,
};
