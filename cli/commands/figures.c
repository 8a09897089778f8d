#include "cli/cli.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/base/suggest.h"
#include "paper-figs/figures.h"

typedef struct {
    char *output;
    char *formats;
    char *profiles_dir;
    char *measured_dir;
    gboolean list;
    gboolean json;
} FiguresArgs;

/* One line that is overwritten; nothing when stderr is no terminal. */
static void
show_progress(const char *name, guint done, guint total, gpointer user_data)
{
    const gint64 *begin_us = user_data;
    double s = (double)(g_get_monotonic_time() - *begin_us) / G_USEC_PER_SEC;

    fprintf(stderr, "\r\033[K%3u %%  %u of %u figures, %.1f a second, %.0f s left  %s",
            100 * done / total, done, total, s > 0 ? done / s : 0,
            done > 0 ? s / done * (total - done) : 0, name);
    fflush(stderr);
}

/* The names must be known before long work. */
static gboolean
check_names(char **names, GError **error)
{
    const char *const *known = rp_figures_names();

    for (char **name = names; *name != NULL; name++) {
        const char *near;

        if (g_strv_contains(known, *name))
            continue;
        near = rp_nearest_name(*name, known);
        if (near != NULL)
            g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                        "no figure is called \"%s\"; did you mean \"%s\"?", *name, near);
        else
            g_set_error(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                        "no figure is called \"%s\"; `roundpipe figures --list` has them all",
                        *name);
        return FALSE;
    }
    return TRUE;
}

static void
print_names(gboolean as_json)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    rp_json_array(json, NULL);
    for (const char *const *name = rp_figures_names(); *name != NULL; name++) {
        rp_json_string(json, NULL, *name);
        if (!as_json)
            puts(*name);
    }
    rp_json_end(json);
    if (as_json)
        rp_cli_print_json(json);
}

static void
print_result(const FiguresArgs *args, guint n_recipes, const GPtrArray *left_out, double seconds)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_LINES);

    for (guint i = 0; i < left_out->len; i++)
        fprintf(stderr, "roundpipe figures: not drawn: %s\n",
                (const char *)g_ptr_array_index(left_out, i));
    if (!args->json) {
        printf("drawn in %.1f s; %s/index.txt has captions and commands\n", seconds, args->output);
        return;
    }
    rp_json_object(json, NULL);
    rp_json_string(json, "output", args->output);
    rp_json_int(json, "recipes", n_recipes);
    rp_json_array(json, "left_out");
    for (guint i = 0; i < left_out->len; i++)
        rp_json_string(json, NULL, g_ptr_array_index(left_out, i));
    rp_json_end(json);
    rp_json_end(json);
    rp_cli_print_json(json);
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
make(const FiguresArgs *args, char **names, GError **error)
{
    g_autofree char *shipped = rp_cli_shipped_profiles(NULL);
    g_autoptr(GPtrArray) left_out = g_ptr_array_new_with_free_func(g_free);
    gint64 begin_us = g_get_monotonic_time();
    gboolean terminal = isatty(STDERR_FILENO) == 1;
    RpFiguresRequest request = {
        .output_dir = args->output,
        .profiles_dir = args->profiles_dir != NULL ? args->profiles_dir : seen_from_here(shipped),
        .measured_dir = args->measured_dir,
        .names = *names != NULL ? (const char *const *)names : NULL,
        .formats = RP_PICTURE_ALL,
        .progress = terminal ? show_progress : NULL,
        .user_data = &begin_us,
    };
    gboolean made;

    if (args->output == NULL) {
        g_set_error_literal(error, RP_CLI_ERROR, RP_CLI_ERROR_USAGE,
                            "--output: expected a directory, found nothing");
        return FALSE;
    }
    if (args->formats != NULL &&
        !rp_picture_formats_parse(args->formats, &request.formats, error)) {
        g_prefix_error(error, "--format: ");
        return FALSE;
    }
    const RpCliFile files[] = {
        {"--profiles", request.profiles_dir, FALSE},
        {"--measured", args->measured_dir, FALSE},
        {"--output", args->output, TRUE},
    };

    if (!check_names(names, error) || !rp_cli_check_files(files, G_N_ELEMENTS(files), error))
        return FALSE;
    made = rp_figures_make(&request, left_out, error);
    if (terminal)
        fputs("\r\033[K", stderr);
    if (made)
        print_result(args, g_strv_length(*names != NULL ? names : (char **)rp_figures_names()),
                     left_out, (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC);
    return made;
}

static gboolean
run(const FiguresArgs *args, char **names, GError **error)
{
    if (!args->list)
        return make(args, names, error);
    print_names(args->json);
    return TRUE;
}

int
rp_cmd_figures(int argc, char **argv)
{
    FiguresArgs args = {0};
    const GOptionEntry entries[] = {
        {"output", 'o', 0, G_OPTION_ARG_FILENAME, &args.output,
         "where to put them; made if it is missing", "DIR"},
        {"format", 'f', 0, G_OPTION_ARG_STRING, &args.formats,
         "png, svg, pdf, separated by commas (default: all)", "LIST"},
        {"profiles", 0, 0, G_OPTION_ARG_FILENAME, &args.profiles_dir,
         "the project's directory of profiles", "DIR"},
        {"measured", 0, 0, G_OPTION_ARG_FILENAME, &args.measured_dir,
         "where figure-13.csv and others are (default: those built in)", "DIR"},
        {"list", 0, 0, G_OPTION_ARG_NONE, &args.list, "list the names of the figures", NULL},
        {"json", 0, 0, G_OPTION_ARG_NONE, &args.json, "print JSON", NULL},
        {0},
    };
    GError *error = NULL;
    int code = RP_EXIT_OK;

    if (!rp_cli_parse("[FIGURE...]",
                      "Makes every figure (or those named), each with its data, script, caption "
                      "and command.\nNone needs a GPU: what GPUs measured is read from tables.\n\n"
                      "Example:\n  roundpipe figures -o figures --format png,svg",
                      entries, NULL, 0, -1, &argc, &argv, &error) ||
        !run(&args, argv + 1, &error))
        code = rp_cli_fail("figures", error);
    g_free(args.output);
    g_free(args.formats);
    g_free(args.profiles_dir);
    g_free(args.measured_dir);
    return code;
}
