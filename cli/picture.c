#include "cli/picture.h"

#include <glib/gstdio.h>
#include <string.h>

#include "core/report.h"
#include "core/units.h"
#include "plots/lines.h"
#include "plots/timeline.h"

/* 0 = none */
static guint
format_of(const char *path)
{
    if (g_str_has_suffix(path, ".png"))
        return RP_PICTURE_PNG;
    if (g_str_has_suffix(path, ".svg"))
        return RP_PICTURE_SVG;
    return g_str_has_suffix(path, ".pdf") ? RP_PICTURE_PDF : 0;
}

gboolean
rp_cli_picture_check(const char *option, const char *path, GError **error)
{
    if (format_of(path) == 0) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                    "--%s: expected a name that ends in .png, .svg or .pdf, found \"%s\"", option,
                    path);
        return FALSE;
    }
    return rp_cli_check_writable(path, error) &&
           rp_gnuplot_check_formats((RpPictureFormat)format_of(path), error);
}

static void
remove_directory(const char *directory)
{
    g_autoptr(GDir) files = g_dir_open(directory, 0, NULL);
    const char *name;

    while (files != NULL && (name = g_dir_read_name(files)) != NULL) {
        g_autofree char *path = g_build_filename(directory, name, NULL);

        (void)g_unlink(path);
    }
    (void)g_rmdir(directory);
}

/* A figure comes with data, script and caption; only the picture is wanted. */
gboolean
rp_cli_picture_write(const RpFigure *figure, const char *path, GError **error)
{
    g_autofree char *directory = g_dir_make_tmp("roundpipe-XXXXXX", error);
    g_autofree char *base = NULL;
    g_autofree char *drawn = NULL;
    gboolean written;

    if (directory == NULL)
        return FALSE;
    base = g_strconcat(rp_figure_name(figure), strrchr(path, '.'), NULL);
    drawn = g_build_filename(directory, base, NULL);
    written = rp_figure_write(figure, directory, (RpPictureFormat)format_of(path), error);
    if (written) {
        g_autoptr(GFile) from = g_file_new_for_path(drawn);
        g_autoptr(GFile) to = g_file_new_for_path(path);

        written = g_file_copy(from, to, G_FILE_COPY_OVERWRITE | G_FILE_COPY_TARGET_DEFAULT_PERMS,
                              NULL, NULL, NULL, error);
    }
    remove_directory(directory);
    return written;
}

RpFigure *
rp_cli_timeline(const RpRequest *request, const RpProfile *profile, const RpTrace *trace)
{
    const RpPlanOptions *options = &request->options;
    g_autofree char *model = rp_cli_model_name(profile);
    g_autofree char *schedule = g_strdup_printf("%s%s, %s", options->schedule->title,
                                                options->async ? " (asynchronous)" : "", model);
    g_autofree char *title = rp_timeline_title(schedule, trace, options->micro_batches,
                                               request->partition->dispatched ? options->round : 0);
    RpTimelinePanel panel = {
        .trace = trace,
        .lanes = options->fidelity == RP_FIDELITY_FULL ? RP_TIMELINE_ALL : RP_TIMELINE_COMPUTE,
        .mark_end = TRUE,
    };

    return rp_timeline_figure("timeline", title, &panel, 1);
}

/* A step curve: each value holds until the next time. */
static void
add_curve(RpLineChart *chart, const RpPlan *plan, const RpTrace *trace, guint gpu)
{
    g_autoptr(GArray) steps = rp_report_memory_curve(plan, trace, gpu);
    g_autofree double *x = g_new(double, 2 * steps->len + 1);
    g_autofree double *y = g_new(double, 2 * steps->len + 1);
    g_autofree char *title = g_strdup_printf("GPU %u", gpu);
    guint n = 0;

    for (guint i = 0; i < steps->len; i++) {
        const RpMemoryStep *step = &g_array_index(steps, RpMemoryStep, i);

        if (n > 0) {
            x[n] = rp_ms_from_ns(step->time_ns);
            y[n] = y[n - 1];
            n++;
        }
        x[n] = rp_ms_from_ns(step->time_ns);
        y[n++] = (double)step->bytes / (double)RP_GIB;
    }
    rp_line_chart_add(chart, title, rp_colour_of_series(gpu), RP_LINE_SOLID, x, y, n);
}

RpFigure *
rp_cli_memory_chart(const RpRequest *request, const RpProfile *profile, const RpPlan *plan,
                    const RpTrace *trace)
{
    guint gpus = rp_plan_gpus(plan);
    g_autofree char *title = g_strdup_printf("GPU memory in use: %s, %s (predicted)",
                                             request->options.schedule->title, profile->model);
    g_autoptr(RpLineChart) chart = rp_line_chart_new("memory", title, "ms", "GiB");
    guint64 arena_bytes = 0;

    for (guint g = 0; g < gpus; g++) {
        add_curve(chart, plan, trace, g);
        arena_bytes = MAX(arena_bytes, rp_plan_arena_bytes(plan, g));
    }
    rp_line_chart_add_level(chart, "planned", (double)arena_bytes / (double)RP_GIB);
    return rp_line_chart_figure(chart);
}
