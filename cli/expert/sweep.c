#include <stdio.h>
#include <string.h>

#include "cli/reports/reports.h"
#include "cli/sweep/sweep.h"
#include "core/base/quote.h"

#define DEFAULT_OUTPUT "sweep.csv"
/* Rows that people see; the file has all. */
#define MOST_SHOWN 40
#define MOST_PRICE 1e6

static const RpSweepAxis *
find_axis(const RpSweepGrid *grid, const char *name)
{
    for (guint a = 0; a < grid->axes->len; a++) {
        const RpSweepAxis *axis = &g_array_index(grid->axes, RpSweepAxis, a);

        if (g_str_equal(rp_sweep_axis_name(axis), name))
            return axis;
    }
    return NULL;
}

/* One price of each card, or one for all. (transfer full): %NULL with @error or where none is given */
static double *
read_prices(const char *text, const RpSweepGrid *grid, GError **error)
{
    const RpSweepAxis *cards = find_axis(grid, "gpu");
    const guint n = cards != NULL ? cards->n : 1;
    g_auto(GStrv) words = g_strsplit(text != NULL ? text : "", ",", -1);
    const guint given = g_strv_length(words);
    g_autofree double *prices = g_new0(double, n);

    if (text == NULL)
        return NULL;
    if (given != 1 && given != n) {
        (void)rp_cli_refuse(error, "--gpu-price: expected one price, or %u as --gpu has, found %u",
                            n, given);
        return NULL;
    }
    for (guint i = 0; i < n; i++) {
        const char *word = words[given == 1 ? 0 : i];
        char *end = NULL;

        prices[i] = g_ascii_strtod(word, &end);
        if (end != word && *end == '\0' && prices[i] > 0 && prices[i] <= MOST_PRICE)
            continue;
        g_autofree char *shown = rp_quote(word);

        (void)rp_cli_refuse(
            error, "--gpu-price: expected dollars an hour of a GPU, as 0.35, found %s", shown);
        return NULL;
    }
    return g_steal_pointer(&prices);
}

/* ---- the report ---- */

/* "53798.123456" becomes "53798.1", for people. */
static char *
shorten(const char *cell)
{
    const char *dot = strchr(cell, '.');
    char *end = NULL;

    (void)g_ascii_strtod(cell, &end);
    if (dot == NULL || *end != '\0')
        return g_strdup(cell);
    return g_strndup(cell, (gsize)(dot - cell) + (dot - cell > 3 ? 2 : 4));
}

static gboolean
is_shown(const RpSweepRows *rows, const RpSweepGrid *grid, guint column, gboolean priced)
{
    static const char *const shown[] = {
        "iteration_ms", "bubble_pct", "tokens_per_s", "gpu_gib", "host_gib", "fits", NULL};
    const char *name = rp_sweep_rows_column(rows, column);

    if (column < grid->axes->len)
        return g_array_index(grid->axes, RpSweepAxis, column).n > 1;
    return g_strv_contains(shown, name) ||
           (priced && g_str_equal(name, rp_sweep_result_name(RP_SWEEP_DOLLARS)));
}

static void
report_row(RpReport *report, const RpSweepRows *rows, const RpSweepGrid *grid, guint i,
           gboolean priced)
{
    const char *const *cells = rp_sweep_rows_cells(rows, i);
    const guint n = rp_sweep_rows_n_columns(rows);
    const char *problem = cells[n - 1];

    rp_report_object(report, NULL, NULL);
    for (guint c = 0; c < n; c++) {
        const char *name = rp_sweep_rows_column(rows, c);
        const gboolean shown =
            is_shown(rows, grid, c, priced) && (*problem == '\0' || c < grid->axes->len);
        g_autofree char *cell = shorten(cells[c]);

        rp_report_text(report, name, *cells[c] != '\0' ? cells[c] : NULL, shown ? name : NULL);
        if (shown)
            rp_report_show(report, "%s", *cell != '\0' ? cell : "-");
    }
    if (*problem != '\0')
        rp_report_span(report, "cannot run: %s", problem);
    rp_report_end(report);
}

static void
report_rows(RpReport *report, const RpSweepRows *rows, const RpSweepGrid *grid, const char *output,
            guint done, gboolean priced)
{
    g_autofree char *file = rp_display_name(output);

    rp_report_say(report, "%u combinations, %u simulated now, %u taken from %s: predicted", grid->n,
                  done, grid->n - done, file);
    rp_report_text(report, "origin", "predicted", NULL);
    rp_report_text(report, "csv", output, NULL);
    rp_report_count(report, "combinations", grid->n, NULL);
    rp_report_count(report, "simulated", done, NULL);
    rp_report_table(report, "rows", "fits,bubble_pct,gpu_gib", MOST_SHOWN);
    for (guint i = 0; i < grid->n; i++)
        report_row(report, rows, grid, i, priced);
    rp_report_end(report);
    if (grid->n > MOST_SHOWN)
        rp_report_say(report, "all %u rows: %s", grid->n, file);
}

static gboolean
check_files(const RpArgs *args, char *const *models, const char *output, GError **error)
{
    for (char *const *model = models; *model != NULL || model == models; model++) {
        g_autofree char *read = *model != NULL ? rp_cli_profile_path(*model) : NULL;
        const RpCliFile files[] = {{"PROFILE.json", read, RP_CLI_READ},
                                   {"--output", output, RP_CLI_WRITTEN},
                                   {"--picture", args->picture, RP_CLI_DRAWN}};

        if (!rp_cli_check_files(files, G_N_ELEMENTS(files), error))
            return FALSE;
        if (*model == NULL)
            break;
    }
    if (args->picture == NULL && (args->axes != NULL || args->series != NULL))
        return rp_cli_refuse(error, "--%s: expected --picture beside it",
                             args->axes != NULL ? "axes" : "series");
    return TRUE;
}

static gboolean
run(RpArgs *args, char **words, RpReport *report, GError **error)
{
    const char *output = args->output != NULL ? args->output : DEFAULT_OUTPUT;
    g_auto(RpSweepGrid) grid = {0};
    RpFigureStyle style;
    GError *problem = NULL;
    guint done = 0;

    if (!rp_cli_picture_style(args, args->picture != NULL, &style, error) ||
        !check_files(args, words, output, error) ||
        !rp_sweep_grid_make(&grid, words, args->swept, error))
        return FALSE;
    g_autofree double *prices = read_prices(args->gpu_price, &grid, &problem);

    if (problem != NULL) {
        g_propagate_error(error, problem);
        return FALSE;
    }
    g_autoptr(RpSweepRows) rows = rp_sweep_rows_open(output, &grid, error);

    if (rows == NULL ||
        (args->picture != NULL && !rp_sweep_check_picture(rows, args->axes, args->series, error)) ||
        !rp_sweep_run(&grid, prices, rows, &done, error) ||
        (args->picture != NULL &&
         !rp_sweep_picture(rows, &grid, args->axes, args->series, &style, args->picture, error)))
        return FALSE;
    report_rows(report, rows, &grid, output, done, prices != NULL);
    if (args->picture != NULL)
        rp_report_text(report, "picture", args->picture, "picture");
    return TRUE;
}

static const RpUse uses[] = {
    {"output", "the rows; those that it has are not simulated again (default: " DEFAULT_OUTPUT ")",
     "FILE.csv"},
    {"gpu-price"},
    {"picture", "draw two columns: .png, .svg, .pdf or .tex"},
    {"axes series " RP_USE_PICTURE},
    {0},
};

const RpCommand rp_command_sweep = {
    .name = "sweep",
    .summary = "simulate every combination of options",
    .expert = TRUE,
    .words = "[MODEL...]",
    .help =
        "Simulates every combination of what the options list, as many at once as there are\n"
        "processors, and writes a row each. The options are those of simulate; values have commas\n"
        "between (stage lists semicolons), 1..8 doubles, 4..12+4 adds, k is 1024.\n\n"
        "Example:\n"
        "  roundpipe sweep qwen3-8b --gpus 1..8 --micro-batches 8..64 --schedule 1f1b,roundpipe "
        "\\\n"
        "    --picture bubble.png --axes bubble_pct:micro-batches",
    .requests = RP_SWEPT_REQUEST,
    .uses = uses,
    .run = run,
};
