#include "cli/cli.h"

#include <math.h>
#include <string.h>

#include "cli/reports/diff.h"
#include "cli/reports/picture.h"
#include "core/base/quote.h"
#include "core/formats/export.h"

#define DEFAULT_TOP 10
#define MOST_TOP 100000

typedef struct {
    char *iterations;
    char *scale;
    char *picture;
    int top;
    gboolean json;
} DiffArgs;

static gboolean
parse_iterations(const char *text, RpTraceDiffOptions *options, GError **error)
{
    guint64 first, end;

    if (!rp_cli_parse_range("iterations", text, &first, &end, error))
        return FALSE;
    options->first_iteration = (guint32)first;
    options->end_iteration = (guint32)end;
    return TRUE;
}

static gboolean
parse_scale(const char *text, double *scale, GError **error)
{
    char *end;

    if (strcmp(text, "auto") == 0) {
        *scale = 0;
        return TRUE;
    }
    *scale = g_ascii_strtod(text, &end);
    if (end != text && *end == '\0' && *scale >= 1e-9 && *scale <= 1e9)
        return TRUE;
    g_autofree char *found = rp_quote(text);
    g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                "--scale: expected a number above 0 or auto, found %s", found);
    return FALSE;
}

static gboolean
read_options(const DiffArgs *args, RpTraceDiffOptions *options, GError **error)
{
    if (args->top > MOST_TOP) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "--top: expected at most %d, found %d",
                    MOST_TOP, args->top);
        return FALSE;
    }
    return (args->iterations == NULL || parse_iterations(args->iterations, options, error)) &&
           (args->scale == NULL || parse_scale(args->scale, &options->scale, error)) &&
           (args->picture == NULL || rp_cli_picture_check("picture", args->picture, error));
}

static RpTraceDiff *
compare(const DiffArgs *args, char *const *paths, const RpTraceDiffOptions *options, GError **error)
{
    g_autoptr(RpTrace) first = rp_trace_load_chrome(paths[0], error);
    g_autoptr(RpTrace) second = first == NULL ? NULL : rp_trace_load_chrome(paths[1], error);
    GError *local = NULL;

    if (second == NULL)
        return NULL;
    g_autofree char *first_name = rp_display_name(paths[0]);
    g_autofree char *second_name = rp_display_name(paths[1]);
    const RpTrace *const traces[] = {first, second};
    const char *const names[] = {first_name, second_name};
    RpTraceDiff *diff = rp_trace_diff_new(traces, names, options, &local);

    if (diff != NULL)
        return diff;
    if (args->iterations != NULL &&
        g_error_matches(local, RP_TRACE_DIFF_ERROR, RP_TRACE_DIFF_ERROR_ITERATIONS)) {
        g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE, "--iterations: %s", local->message);
        g_error_free(local);
    } else {
        g_propagate_error(error, local);
    }
    return NULL;
}

static gboolean
run(const DiffArgs *args, char *const *paths, GError **error)
{
    const RpCliFile files[] = {
        {"PREDICTED", paths[0], FALSE},
        {"MEASURED", paths[1], FALSE},
        {"--picture", args->picture, TRUE},
    };
    RpTraceDiffOptions options = {.scale = 1};

    if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error) ||
        !read_options(args, &options, error))
        return FALSE;
    g_autoptr(RpTraceDiff) diff = compare(args, paths, &options, error);
    if (diff == NULL)
        return FALSE;
    if (args->picture != NULL) {
        g_autoptr(RpFigure) figure = rp_diff_figure(diff);

        if (!rp_cli_picture_write(figure, args->picture, error))
            return FALSE;
    }
    const RpDiffReport report = {
        .diff = diff,
        .files = {paths[0], paths[1]},
        .scaled = args->scale != NULL,
        .top = (guint)args->top,
    };
    if (args->json)
        rp_diff_print_json(&report);
    else
        rp_diff_print(&report);
    return TRUE;
}

int
rp_cmd_diff(int argc, char **argv)
{
    DiffArgs args = {.top = DEFAULT_TOP};
    const GOptionEntry entries[] = {
        {"iterations", 0, 0, G_OPTION_ARG_STRING, &args.iterations,
         "only iterations A to B - 1 (default: those that both have)", "A:B"},
        {"scale", 0, 0, G_OPTION_ARG_STRING, &args.scale,
         "divide the second's times by X, as given to replay --scale; auto: by how much longer its "
         "actions take in all",
         "X|auto"},
        {"top", 0, 0, G_OPTION_ARG_INT, &args.top, "tasks of each list (default: 10)", "N"},
        {"picture", 0, 0, G_OPTION_ARG_FILENAME, &args.picture,
         "draw both timelines, device by device (.png, .svg or .pdf)", "FILE"},
        {"json", 0, 0, G_OPTION_ARG_NONE, &args.json, "print JSON", NULL},
        {0},
    };
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("PREDICTED MEASURED",
                      "Lays two traces of one plan over each other and lists the tasks that differ "
                      "most.\nTraces are written by simulate, replay and train with --trace.\n\n"
                      "Example:\n"
                      "  roundpipe train run.yaml --dry-run --trace predicted.json\n"
                      "  roundpipe train run.yaml --trace measured.json\n"
                      "  roundpipe diff predicted.json measured.json --picture diff.png",
                      entries, NULL, 2, 2, &argc, &argv, &error) ||
        !run(&args, argv + 1, &error))
        code = rp_cli_fail("diff", error);
    g_free(args.iterations);
    g_free(args.scale);
    g_free(args.picture);
    return code;
}
