#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/reports/reports.h"
#include "cli/sweep/sweep.h"
#include "core/base/quote.h"
#include "core/base/threads.h"
#include "core/base/units.h"

#define S_PER_HOUR 3600.0
#define BILLION 1e9

/* Rows in the making: workers take one after the other. */
typedef struct {
    const RpSweepGrid *grid;
    RpSweepRows *rows;
    const double *prices;
    RpProgress progress;
    guint n_threads;
    guint64 memory_bytes;  /* for all of them, before they began */
    const GArray *missing; /* rows, guint */
    guint done;
    GMutex lock; /* over done and progress */
} Sweep;

static char *
text_real(double value, guint decimals)
{
    char format[16], text[G_ASCII_DTOSTR_BUF_SIZE];

    g_snprintf(format, sizeof format, "%%.%uf", decimals);
    return g_strdup(g_ascii_formatd(text, sizeof text, format, value));
}

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

/* The price of the row's card; 0: none was given. */
static double
price_of(const Sweep *sweep, guint i)
{
    if (sweep->prices == NULL)
        return 0;
    const RpSweepAxis *cards = find_axis(sweep->grid, "gpu");
    const guint place =
        cards != NULL ? (guint)(cards - (const RpSweepAxis *)(void *)sweep->grid->axes->data) : 0;

    return sweep->prices[cards != NULL ? rp_sweep_grid_place(sweep->grid, i, place) : 0];
}

static void
tell(const Sweep *sweep, guint i, const RpProfile *profile, const RpRequest *request,
     const RpResult *result, char **texts)
{
    const RpBubble *bubble = &result->bubble;
    const double price = price_of(sweep, i) * request->options.gpus;

    texts[RP_SWEEP_DEVICE] = g_strdup(profile->device);
    texts[RP_SWEEP_ITERATION_MS] = text_real(rp_ms_from_ns(result->iteration_ns), 6);
    texts[RP_SWEEP_BUBBLE_PCT] = text_real(100 * bubble->ratio, 6);
    texts[RP_SWEEP_FILL_PCT] = text_real(100 * bubble->fill, 6);
    texts[RP_SWEEP_SWITCH_PCT] = text_real(100 * bubble->switch_, 6);
    texts[RP_SWEEP_DRAIN_PCT] = text_real(100 * bubble->drain, 6);
    texts[RP_SWEEP_INTRA_PCT] = text_real(100 * bubble->intra, 6);
    if (result->tokens_per_s > 0)
        texts[RP_SWEEP_TOKENS_PER_S] = text_real(result->tokens_per_s, 3);
    if (result->gpu_peak_bytes > 0) {
        texts[RP_SWEEP_GPU_GIB] = text_real((double)result->gpu_peak_bytes / (double)RP_GIB, 6);
        texts[RP_SWEEP_HOST_GIB] = text_real((double)result->host_peak_bytes / (double)RP_GIB, 6);
        texts[RP_SWEEP_FITS] = g_strdup(result->memory_problem == NULL ? "yes" : "no");
    }
    if (price > 0 && result->tokens_per_s > 0)
        texts[RP_SWEEP_DOLLARS] = text_real(price / S_PER_HOUR * BILLION / result->tokens_per_s, 6);
}

static gboolean
run_row(const Sweep *sweep, guint i, char **texts, GError **error)
{
    const RpSweepAxis *models = &g_array_index(sweep->grid->axes, RpSweepAxis, 0);
    RpArgs args;
    g_auto(RpRequest) request = {0};
    g_auto(RpResult) result = {0};
    g_autoptr(RpProfile) profile = NULL;
    g_autoptr(RpPlan) plan = NULL;

    rp_sweep_grid_args(sweep->grid, i, &args);
    args.run.beside = sweep->n_threads;
    args.run.memory_bytes = sweep->memory_bytes;
    if (!rp_request_load(&args, models->values[rp_sweep_grid_place(sweep->grid, i, 0)], &profile,
                         &request, error))
        return FALSE;
    g_autoptr(RpTrace) trace = rp_request_simulate(&request, profile, &plan, error);

    if (trace == NULL)
        return FALSE;
    rp_result_measure(&request, profile, plan, trace, &result);
    if (request.options.fidelity == RP_FIDELITY_COMPUTE)
        rp_result_plan_memory(&request, profile, &result);
    tell(sweep, i, profile, &request, &result, texts);
    return TRUE;
}

static gboolean
run_piece(guint m, gpointer data, GError **error)
{
    Sweep *sweep = data;
    const guint i = g_array_index(sweep->missing, guint, m);
    g_autoptr(GError) problem = NULL;
    char *texts[RP_SWEEP_N_RESULTS] = {NULL};

    if (!run_row(sweep, i, texts, &problem))
        texts[RP_SWEEP_ERROR] = rp_cli_message(problem, FALSE);
    rp_sweep_rows_add(sweep->rows, i, (const char *const *)texts);
    for (guint r = 0; r < RP_SWEEP_N_RESULTS; r++)
        g_free(texts[r]);
    g_mutex_lock(&sweep->lock);
    rp_progress_show(&sweep->progress, ++sweep->done, sweep->missing->len);
    g_mutex_unlock(&sweep->lock);
    return TRUE;
}

/* Fills what is missing. @prices: (nullable) (array): dollars an hour of a GPU, by the place of --gpu */
static gboolean
run_rows(const RpSweepGrid *grid, const double *prices, RpSweepRows *rows, guint *done,
         GError **error)
{
    Sweep sweep = {.grid = grid, .rows = rows, .prices = prices};
    g_autoptr(GArray) missing = g_array_new(FALSE, FALSE, sizeof(guint));

    for (guint i = 0; i < grid->n; i++)
        if (rows->cells[i] == NULL)
            g_array_append_val(missing, i);
    *done = missing->len;
    if (missing->len == 0)
        return TRUE;
    sweep.missing = missing;
    sweep.n_threads = rp_threads_for(missing->len);
    sweep.memory_bytes = rp_run_memory_now();
    sweep.progress = rp_progress_begin("simulating", 0);
    (void)rp_run_pieces(missing->len, run_piece, &sweep, NULL);
    g_mutex_clear(&sweep.lock);
    rp_progress_clear();
    return rp_sweep_rows_finish(rows, error);
}

#define DEFAULT_OUTPUT "sweep.csv"
/* Rows that people see; the file has all. */
#define MOST_SHOWN 40
#define MOST_PRICE 1e6

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
is_shown(const RpSweepRows *rows, guint column, gboolean priced)
{
    const RpSweepColumn *result = rp_sweep_rows_result(rows, column);

    if (result == NULL)
        return g_array_index(rows->grid->axes, RpSweepAxis, column).n > 1;
    return result->shown || (priced && result == &rp_sweep_columns[RP_SWEEP_DOLLARS]);
}

static void
report_row(RpReport *report, const RpSweepRows *rows, const RpSweepGrid *grid, guint i,
           gboolean priced)
{
    const char *const *cells = (const char *const *)rows->cells[i];
    const guint n = rows->n_columns;
    const char *problem = cells[n - 1];

    rp_report_object(report, NULL, NULL);
    for (guint c = 0; c < n; c++) {
        const char *name = rows->columns[c];
        const gboolean shown =
            is_shown(rows, c, priced) && (*problem == '\0' || c < grid->axes->len);
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
        !run_rows(&grid, prices, rows, &done, error) ||
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
