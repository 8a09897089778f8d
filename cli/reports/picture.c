#include "cli/reports/reports.h"

#include <math.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/trace/report.h"
#include "plots/charts/charts.h"
#include "plots/figure.h"

#define MM_PER_INCH 25.4
#define MOST_MM 2000
#define LEAST_MM 40

gboolean
rp_cli_picture_style(const RpArgs *args, gboolean drawn, RpFigureStyle *style, GError **error)
{
    static const struct {
        const char *unit;
        double mm;
    } units[] = {{"mm", 1}, {"cm", 10}, {"in", MM_PER_INCH}};
    char *end = NULL;

    *style = (RpFigureStyle){.untitled = args->no_title};
    if (!drawn && (args->width != NULL || args->no_title))
        return rp_cli_refuse(error, "--%s: expected a picture to draw beside it",
                             args->width != NULL ? "width" : "no-title");
    if (args->width == NULL)
        return TRUE;
    const double value = g_ascii_strtod(args->width, &end);

    for (guint i = 0; i < G_N_ELEMENTS(units) && end != args->width; i++)
        if (strcmp(end, units[i].unit) == 0)
            style->width_mm = value * units[i].mm;
    if (style->width_mm >= LEAST_MM && style->width_mm <= MOST_MM)
        return TRUE;
    return rp_cli_refuse(error,
                         "--width: expected %d to %d mm, as 84mm, 8.4cm or 3.3in, found \"%s\"",
                         LEAST_MM, MOST_MM, args->width);
}

static gboolean
copy(const char *from_path, const char *to_path, GError **error)
{
    g_autoptr(GFile) from = g_file_new_for_path(from_path);
    g_autoptr(GFile) to = g_file_new_for_path(to_path);

    return g_file_copy(from, to, G_FILE_COPY_OVERWRITE | G_FILE_COPY_TARGET_DEFAULT_PERMS, NULL,
                       NULL, NULL, error);
}

/* "fig.tex": "fig.pdf". (transfer full) */
static char *
graphics_path(const char *path)
{
    g_autofree char *stem = g_strndup(path, (gsize)(strrchr(path, '.') - path));

    return g_strconcat(stem, ".pdf", NULL);
}

/* It names its graphics by the name that they get. */
static gboolean
copy_tex(const char *drawn, const char *path, GError **error)
{
    g_autofree char *graphics = graphics_path(drawn);
    g_autofree char *beside = graphics_path(path);
    g_autofree char *base = g_path_get_basename(path);
    g_autofree char *text = NULL;

    *strrchr(base, '.') = '\0';
    if (!g_file_get_contents(drawn, &text, NULL, error))
        return FALSE;
    g_autofree char *renamed = rp_latex_rename_graphics(text, base);

    return g_file_set_contents_full(path, renamed, -1, G_FILE_SET_CONTENTS_CONSISTENT, 0666,
                                    error) &&
           copy(graphics, beside, error);
}

/* A figure comes with data, script and caption; only the picture is wanted. */
gboolean
rp_cli_picture_write(const RpFigure *figure, const char *path, GError **error)
{
    const RpPictureFormat format = (RpPictureFormat)rp_picture_format_of(path);
    g_autofree char *directory = g_dir_make_tmp("roundpipe-XXXXXX", error);

    if (directory == NULL)
        return FALSE;
    g_autofree char *base = g_strconcat(rp_figure_name(figure), strrchr(path, '.'), NULL);
    g_autofree char *drawn = g_build_filename(directory, base, NULL);
    const gboolean written =
        rp_figure_write(figure, directory, format, error) &&
        (format == RP_PICTURE_TEX ? copy_tex(drawn, path, error) : copy(drawn, path, error));

    rp_file_remove_directory(directory);
    return written;
}

gboolean
rp_cli_picture_window(const RpRequest *request, const RpTrace *trace, const char *text,
                      RpPictureWindow *window, GError **error)
{
    guint64 first = 0, end = request->iterations;

    if (text != NULL && !rp_cli_parse_range("window", text, &first, &end, error))
        return FALSE;
    if (end > request->iterations)
        return rp_cli_refuse(
            error,
            "--window: expected at most the %u iterations that are simulated, found %s; "
            "--iterations simulates more",
            request->iterations, text);
    if (text == NULL && request->steady) {
        first = request->window.first;
        end = request->window.end;
    }
    *window = (RpPictureWindow){.first = (guint)first, .end = (guint)end};
    if (first == 0 && end == request->iterations)
        return TRUE;

    gint64 unused_ns;
    gboolean found = rp_report_iteration_span(trace, (guint)first, &window->from_ns, &unused_ns);

    if (end < request->iterations)
        found = found && rp_report_iteration_span(trace, (guint)end, &window->end_ns, &unused_ns);
    else
        window->end_ns = rp_trace_makespan_ns(trace);
    g_assert(found); /* every iteration has actions */
    return TRUE;
}

/* Below the schedule and the model: "N = 8, M = 16, M_R = 8, iterations 20 to 23 of 25, 1937.2 ms
 * each, bubble ratio 4.5 % (predicted)"; of the whole trace its makespan. */
static char *
timeline_title(const RpRequest *request, const char *model, const RpTrace *trace,
               const RpPictureWindow *window)
{
    const RpPlanOptions *options = &request->options;
    guint count = window->end - window->first;
    gboolean part = window->end_ns > window->from_ns;
    gint64 time_ns =
        part ? (window->end_ns - window->from_ns) / count : rp_trace_makespan_ns(trace);
    double ratio = part ? rp_report_ratio_between(trace, window->from_ns, window->end_ns)
                        : rp_report_bubble(trace).ratio;
    g_autofree char *time = rp_text_time(time_ns);
    g_autoptr(GString) title = g_string_new(options->schedule->title);

    g_string_append_printf(title, "%s, %s\nN = %u, M = %u", options->async ? " (asynchronous)" : "",
                           model, options->gpus, options->micro_batches);
    if (request->partition->dispatched)
        g_string_append_printf(title, ", M_R = %u", options->round);
    if (part && count > 1)
        g_string_append_printf(title, ", iterations %u to %u of %u, %s each", window->first,
                               window->end - 1, request->iterations, time);
    else if (part)
        g_string_append_printf(title, ", iteration %u of %u, %s", window->first,
                               request->iterations, time);
    else
        g_string_append_printf(title, ", makespan %s", time);
    g_autofree char *percent = rp_text_percent(ratio);

    g_string_append_printf(title, ", bubble ratio %s (%s)", percent,
                           rp_trace_origin(trace) == RP_TRACE_MEASURED ? "measured" : "predicted");
    return g_string_free(g_steal_pointer(&title), FALSE);
}

RpFigure *
rp_cli_timeline(const RpRequest *request, const char *model, const RpTrace *trace,
                const RpPictureWindow *window, const RpFigureStyle *style)
{
    const RpPictureWindow whole = {0};
    gboolean part = window != NULL && window->end_ns > window->from_ns;
    g_autofree char *title =
        timeline_title(request, model, trace, window != NULL ? window : &whole);
    RpTimelinePanel panel = {
        .trace = trace,
        .lanes =
            request->options.fidelity == RP_FIDELITY_FULL ? RP_TIMELINE_ALL : RP_TIMELINE_COMPUTE,
        .from_ns = part ? window->from_ns : 0,
        .end_ns = part ? window->end_ns : 0,
        .mark_end = !part,
        .style = style,
    };

    return rp_timeline_figure("timeline", title, &panel, 1);
}

RpFigure *
rp_cli_memory_chart(const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
                    const RpTrace *trace, const RpPictureWindow *window, const RpFigureStyle *style)
{
    g_autofree char *model = rp_cli_model_name(profile);
    g_autofree char *title =
        g_strdup_printf("Memory in use: %s%s, %s (predicted)", request->options.schedule->title,
                        request->options.async ? " (asynchronous)" : "", model);

    return rp_memory_figure("memory", title, plan, trace, rp_profile_plan_bytes(profile),
                            window->from_ns, window->end_ns, style);
}

/* Both timelines in one: a trace of twice the devices, of which the even ones are the first's.
 *
 *   GPU 0 predicted |F0|F1|    |B0 |
 *   GPU 0 measured  |F0| F1  |    |B0 |
 *
 *   GPU 1 predicted    |F0|F1|...
 */

const char *
rp_diff_label(const RpTraceDiff *diff, RpTraceSide side)
{
    static const char *const origins[] = {"predicted", "measured"};
    static const char *const numbers[] = {"first", "second"};
    gboolean same = rp_trace_origin(rp_trace_diff_trace(diff, RP_TRACE_FIRST)) ==
                    rp_trace_origin(rp_trace_diff_trace(diff, RP_TRACE_SECOND));

    return same ? numbers[side] : origins[side];
}

/* The lanes of a side in the picture; the host's are left out. */
static void
add_side(RpTrace *both, const RpTrace *trace, RpTraceSide side, RpTaskId *task, gint64 *from_ns)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);

    for (gsize i = 0; i < n; i++) {
        RpTraceRecord record = records[i];
        guint32 device = rp_trace_lane_device(trace, record.lane);

        if (device == RP_NONE)
            continue;
        record.lane += (device + side) * RP_LANES_PER_DEVICE;
        record.task = (*task)++;
        *from_ns = MIN(*from_ns, record.start_ns);
        rp_trace_append(both, &record);
    }
}

static gboolean
has_transfers(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);

    for (gsize i = 0; i < rp_trace_n_records(trace); i++)
        if (records[i].kind >= RP_TASK_ACTIVATION_DOWNLOAD &&
            records[i].kind <= RP_TASK_GRADIENT_DOWNLOAD)
            return TRUE;
    return FALSE;
}

static char *
figure_title(const RpTraceDiff *diff)
{
    GString *title = g_string_new("Iteration");
    guint first = rp_trace_diff_first_iteration(diff), end = rp_trace_diff_end_iteration(diff);

    if (end - first > 1)
        g_string_append_printf(title, "s %u to %u", first, end - 1);
    else
        g_string_append_printf(title, " %u", first);
    for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
        RpBubble bubble = rp_report_bubble(rp_trace_diff_trace(diff, (RpTraceSide)side));
        g_autofree char *time = rp_text_time(bubble.makespan_ns);

        g_autofree char *percent = rp_text_percent(bubble.ratio);

        rp_text_append(title, "%s %s: %s, bubble ratio %s", side == 0 ? "," : ";",
                       rp_diff_label(diff, (RpTraceSide)side), time, percent);
    }
    if (rp_trace_diff_scale(diff) != 1)
        rp_text_append(title, " (times / %.6g)", rp_trace_diff_scale(diff));
    return g_string_free(title, FALSE);
}

RpFigure *
rp_diff_figure(const RpTraceDiff *diff, const RpFigureStyle *style)
{
    const RpTrace *first = rp_trace_diff_trace(diff, RP_TRACE_FIRST);
    const RpTrace *second = rp_trace_diff_trace(diff, RP_TRACE_SECOND);
    guint gpus = rp_trace_gpus(first);
    g_autoptr(RpTrace) both = rp_trace_new_empty(2 * gpus, rp_trace_origin(second));
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *title = figure_title(diff);
    RpTaskId task = 0;
    gint64 from_ns = 0;

    rp_trace_set_dispatched(both, rp_trace_dispatched(first));
    add_side(both, first, RP_TRACE_FIRST, &task, &from_ns);
    add_side(both, second, RP_TRACE_SECOND, &task, &from_ns);
    for (guint g = 0; g < 2 * gpus; g++)
        g_ptr_array_add(
            names, g_strdup_printf("GPU %u %s", g / 2, rp_diff_label(diff, (RpTraceSide)(g % 2))));
    RpTimelinePanel panel = {
        .trace = both,
        .lanes = has_transfers(both) ? RP_TIMELINE_ENGINES : RP_TIMELINE_COMPUTE,
        .from_ns = from_ns,
        .end_ns = has_transfers(both) ? rp_trace_end_ns(both) : rp_trace_makespan_ns(both),
        .device_names = (const char *const *)names->pdata,
        .group = 2,
        .style = style,
    };

    return rp_timeline_figure("diff", title, &panel, 1);
}

/* ---- steps of a run ---- */

void
rp_cli_steps_clear(RpCliSteps *steps)
{
    g_clear_pointer(&steps->title, g_free);
    g_clear_pointer(&steps->lines, g_array_unref);
}

gboolean
rp_cli_is_evaluation(const RpTrainLine *line)
{
    return isnan(line->eval_runtime) == 0;
}

double
rp_cli_tokens_per_s(const RpTrainLine *line)
{
    return line->step_ms > 0 ? line->tokens * 1000 / line->step_ms : NAN;
}

gboolean
rp_cli_steps_read(const char *word, RpCliSteps *steps, GError **error)
{
    const gboolean directory = g_file_test(word, G_FILE_TEST_IS_DIR);
    g_autofree char *path =
        directory ? g_build_filename(word, RP_CLI_METRICS, NULL) : g_strdup(word);
    g_autofree char *whole = g_canonicalize_filename(word, NULL);
    g_autofree char *named = directory ? g_strdup(whole) : g_path_get_dirname(whole);
    g_autoptr(GArray) lines = NULL;

    if (!g_file_test(path, G_FILE_TEST_EXISTS))
        return rp_fail_in(error, word, G_FILE_ERROR, G_FILE_ERROR_NOENT,
                          "expected the output directory of a run, or its " RP_CLI_METRICS
                          ", found %s",
                          directory ? "a directory without " RP_CLI_METRICS : "nothing");
    if (!rp_train_check_regular("", path, G_MAXUINT64, error) ||
        (lines = rp_train_metrics_read(path, error)) == NULL)
        return FALSE;
    if (lines->len == 0)
        return rp_fail(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
                       "%s: expected lines of metrics, as roundpipe train writes them, found none",
                       path);
    *steps = (RpCliSteps){g_path_get_basename(named), g_steal_pointer(&lines)};
    return TRUE;
}

RpRunPoint
rp_cli_point_of(const RpTrainLine *line)
{
    return (RpRunPoint){.step = line->step,
                        .loss = line->loss,
                        .learning_rate = line->learning_rate,
                        .grad_norm = line->grad_norm,
                        .tokens_per_s = rp_cli_tokens_per_s(line),
                        .bubble_ratio = line->bubble_ratio,
                        .eval_loss = line->eval_loss};
}

gboolean
rp_cli_steps_draw(const GArray *runs, const char *title, const char *path, gboolean logarithmic,
                  const RpFigureStyle *style, GError **error)
{
    g_autofree RpRunCurve *curves = g_new0(RpRunCurve, runs->len);
    g_autoptr(GPtrArray) points = g_ptr_array_new_with_free_func(g_free);

    for (guint r = 0; r < runs->len; r++) {
        const RpCliSteps *run = &g_array_index(runs, RpCliSteps, r);
        RpRunPoint *own = g_new(RpRunPoint, run->lines->len);

        g_ptr_array_add(points, own);
        for (guint i = 0; i < run->lines->len; i++)
            own[i] = rp_cli_point_of(&g_array_index(run->lines, RpTrainLine, i));
        curves[r] = (RpRunCurve){.title = run->title, .points = own, .n = run->lines->len};
    }
    g_autoptr(RpFigure) figure =
        rp_runs_figure("runs", title, curves, runs->len, logarithmic, style, error);

    return figure != NULL && rp_cli_picture_write(figure, path, error);
}
