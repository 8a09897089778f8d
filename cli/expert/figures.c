#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/reports/reports.h"
#include "core/base/quote.h"
#include "paper-figs/figures.h"

static void
show_progress(const char *name, guint done, guint total, gpointer progress)
{
    ((RpProgress *)progress)->what = name;
    rp_progress_show(progress, done, total);
}

/* The names must be known before long work. */
static gboolean
check_names(char **names, GError **error)
{
    const char *const *known = rp_figures_names();

    for (char **name = names; *name != NULL; name++) {
        if (g_strv_contains(known, *name))
            continue;
        const char *near = rp_nearest_name(*name, known);

        return near != NULL
                   ? rp_cli_refuse(error, "no figure is called \"%s\"; did you mean \"%s\"?", *name,
                                   near)
                   : rp_cli_refuse(error,
                                   "no figure is called \"%s\"; `roundpipe figures --list` has "
                                   "them all",
                                   *name);
    }
    return TRUE;
}

static void
report_names(RpReport *report)
{
    rp_report_list(report, NULL);
    for (const char *const *name = rp_figures_names(); *name != NULL; name++) {
        rp_report_text(report, NULL, *name, NULL);
        rp_report_say(report, "%s", *name);
    }
    rp_report_end(report);
}

static void
report_figures(RpReport *report, const RpArgs *args, guint n_recipes, const GPtrArray *left_out,
               double seconds)
{
    rp_report_text(report, "output", args->output, NULL);
    rp_report_count(report, "recipes", n_recipes, NULL);
    rp_report_list(report, "left_out");
    for (guint i = 0; i < left_out->len; i++) {
        const char *name = g_ptr_array_index(left_out, i);

        fprintf(stderr, "roundpipe figures: not drawn: %s\n", name);
        rp_report_text(report, NULL, name, NULL);
    }
    rp_report_end(report);
    rp_report_say(report, "drawn in %.1f s; %s/index.txt has captions and commands", seconds,
                  args->output);
}

/* @path as it is called from here, so that captions are the same wherever the sources lie. */
static const char *
seen_from_here(const char *path)
{
    g_autofree char *here = g_get_current_dir();
    gsize length = strlen(here);

    return g_str_has_prefix(path, here) && path[length] == '/' ? path + length + 1 : path;
}

static gboolean
make(const RpArgs *args, char **names, RpReport *report, GError **error)
{
    g_autofree char *shipped = rp_cli_shipped_profiles(NULL);
    g_autoptr(GPtrArray) left_out = g_ptr_array_new_with_free_func(g_free);
    RpProgress progress = rp_progress_begin(NULL, 0);
    RpFiguresRequest request = {
        .output_dir = args->output,
        .profiles_dir = args->profiles_dir != NULL ? args->profiles_dir : seen_from_here(shipped),
        .measured_dir = args->measured_dir,
        .names = *names != NULL ? (const char *const *)names : NULL,
        .formats = RP_PICTURE_ALL,
        .progress = show_progress,
        .user_data = &progress,
    };

    if (args->output == NULL)
        return rp_cli_refuse(error, "--output: expected a directory, found nothing");
    if (!rp_cli_picture_style(args, TRUE, &request.style, error))
        return FALSE;
    if (args->formats != NULL && !rp_picture_formats_parse(args->formats, &request.formats, error))
        return rp_prefix_error(error, "--format: ");
    const RpCliFile files[] = {
        {"--profiles", request.profiles_dir, RP_CLI_READ},
        {"--measured", args->measured_dir, RP_CLI_READ},
        {"--output", args->output, RP_CLI_FILLED},
    };

    if (!check_names(names, error) || !rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    gboolean made = rp_figures_make(&request, left_out, error);
    rp_progress_clear();
    if (made)
        report_figures(
            report, args, g_strv_length(*names != NULL ? names : (char **)rp_figures_names()),
            left_out, (double)(g_get_monotonic_time() - progress.begin_us) / G_USEC_PER_SEC);
    return made;
}

static gboolean
run(RpArgs *args, char **names, RpReport *report, GError **error)
{

    if (!args->list)
        return make(args, names, report, error);
    report_names(report);
    return TRUE;
}

static const RpUse uses[] = {
    {"output", "where to put them; made if it is missing"},
    {"format profiles measured " RP_USE_PICTURE " list"},
    {0},
};

const RpCommand rp_command_figures = {
    .name = "figures",
    .summary = "make every figure that needs no GPU",
    .expert = TRUE,
    .words = "[FIGURE...]",
    .help = "Makes every figure (or those named), each with its data, script, caption and "
            "command.\nNone needs a GPU: what GPUs measured is read from tables.\n\n"
            "Example:\n  roundpipe figures -o figures --format png,svg",
    .uses = uses,
    .run = run,
};
