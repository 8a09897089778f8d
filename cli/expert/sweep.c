#include "cli/sweep/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/reports/reports.h"
#include "core/base/quote.h"
#include "core/base/threads.h"
#include "core/base/units.h"
#include "plots/charts/charts.h"

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
run_rows(const double *prices, RpSweepRows *rows, guint *done, GError **error)
{
    const RpSweepGrid *grid = rows->grid;
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

/* ---- the picture ---- */

/* Room left and right of an option's values, as a share of them. */
#define AROUND 0.1
/* More cannot be told apart. */
#define MOST_SERIES 16
/* rp_colour_of_series() has as many; further lines have crosses and dashes. */
#define N_COLOURS 8
/* An option's values that are so far apart stand on a logarithmic axis. */
#define WIDE_RANGE 8

typedef struct {
    double x, y;
} Point;

typedef struct {
    const RpSweepRows *rows;
    const RpSweepGrid *grid;
    guint32 x, y;     /* columns */
    GArray *series;   /* guint32: columns that tell series apart; none: one for all */
    GPtrArray *names; /* of series, as series_of() has them */
} Drawing;

static const char *
axis_title(const RpSweepRows *rows, guint32 column)
{
    const RpSweepColumn *result = rp_sweep_rows_result(rows, column);

    return result != NULL && result->title != NULL ? result->title : rows->columns[column];
}

/* Whether more of it is better; an option's value is neither. */
static gboolean
more_is_better(const RpSweepRows *rows, guint32 column)
{
    const RpSweepColumn *result = rp_sweep_rows_result(rows, column);

    return result != NULL && result->more;
}

static gboolean
is_option(const Drawing *drawing, guint32 column)
{
    return column < drawing->grid->axes->len;
}

/* ---- what is asked for ---- */

/* The options of several values that are neither axis: a line joins points that have all of them in
 * common. Points alone differ by the last, which changes fastest. */
static void
take_usual_series(const Drawing *drawing)
{
    for (guint32 a = 0; a < drawing->grid->axes->len; a++) {
        if (g_array_index(drawing->grid->axes, RpSweepAxis, a).n < 2 || a == drawing->x ||
            a == drawing->y)
            continue;
        if (!is_option(drawing, drawing->x))
            g_array_set_size(drawing->series, 0);
        g_array_append_val(drawing->series, a);
    }
}

static gboolean
find_column(const RpSweepRows *rows, const char *option, const char *name, guint32 *column,
            GError **error)
{
    const int found = rp_cli_choice(option, name, rows->columns, error);

    *column = (guint32)found;
    return found >= 0;
}

static gboolean
read_drawing(Drawing *drawing, const RpArgs *args, GError **error)
{
    const char *text = args->axes != NULL ? args->axes : "tokens_per_s:host_gib";
    const RpSweepRows *rows = drawing->rows;
    g_auto(GStrv) names = g_strsplit(text, ":", -1);
    guint32 column;

    if (g_strv_length(names) != 2)
        return rp_cli_refuse(
            error, "--axes: expected two columns as tokens_per_s:host_gib, found \"%s\"", text);
    if (!find_column(rows, "axes", names[0], &drawing->y, error) ||
        !find_column(rows, "axes", names[1], &drawing->x, error) ||
        (args->series != NULL && !find_column(rows, "series", args->series, &column, error)))
        return FALSE;
    if (args->series != NULL)
        g_array_append_val(drawing->series, column);
    else
        take_usual_series(drawing);
    return TRUE;
}

/* ---- points ---- */

static double
number_of(const char *cell)
{
    char *end = NULL;
    const double value = g_ascii_strtod(cell, &end);

    return end != cell && *end == '\0' ? value : NAN;
}

/* "gpipe", "gpus 8, gpipe"; "" where there is one series. (transfer full) */
static char *
series_of(const Drawing *drawing, const char *const *cells)
{
    GString *name = g_string_new(NULL);

    for (guint i = 0; i < drawing->series->len; i++) {
        const guint32 column = g_array_index(drawing->series, guint32, i);
        const gboolean number = isfinite(number_of(cells[column])) != 0;

        g_string_append_printf(name, "%s%s%s%s", i > 0 ? ", " : "",
                               number ? drawing->rows->columns[column] : "", number ? " " : "",
                               cells[column]);
    }
    return g_string_free(name, FALSE);
}

static gboolean
is_in(const Drawing *drawing, const char *const *cells, const char *series)
{
    g_autofree char *name = series_of(drawing, cells);

    return g_str_equal(name, series);
}

/* Finite points of a series; %NULL: of all. What does not fit is none. */
static GArray *
points_of(const Drawing *drawing, const char *series)
{
    const guint fits = drawing->grid->axes->len + RP_SWEEP_FITS;
    GArray *points = g_array_new(FALSE, FALSE, sizeof(Point));

    for (guint i = 0; i < drawing->grid->n; i++) {
        const char *const *cells = (const char *const *)drawing->rows->cells[i];

        if (cells == NULL || g_str_equal(cells[fits], "no") ||
            (series != NULL && !is_in(drawing, cells, series)))
            continue;
        const Point point = {number_of(cells[drawing->x]), number_of(cells[drawing->y])};

        if (isfinite(point.x) && isfinite(point.y))
            g_array_append_val(points, point);
    }
    return points;
}

static int
compare_x(const void *a, const void *b)
{
    const Point *left = a, *right = b;

    if (left->x != right->x)
        return left->x < right->x ? -1 : 1;
    return (left->y > right->y) - (left->y < right->y);
}

/* Keeps the best y so far of points sorted by x, from the better end of x. */
static GArray *
front_of(const Drawing *drawing, GArray *points)
{
    const gboolean more_x = more_is_better(drawing->rows, drawing->x);
    const gboolean more_y = more_is_better(drawing->rows, drawing->y);
    GArray *front = g_array_new(FALSE, FALSE, sizeof(Point));

    for (guint k = 0; k < points->len; k++) {
        const guint i = more_x ? points->len - 1 - k : k;
        const Point *point = &g_array_index(points, Point, i);
        Point *last = front->len > 0 ? &g_array_index(front, Point, front->len - 1) : NULL;

        if (last != NULL && (more_y ? point->y <= last->y : point->y >= last->y))
            continue;
        if (last != NULL && last->x == point->x)
            *last = *point;
        else
            g_array_append_val(front, *point);
    }
    return front;
}

static void
add_points(RpLineChart *chart, const char *title, RpColour colour, RpLineStyle style,
           const GArray *points)
{
    g_autofree double *x = g_new(double, points->len + 1);
    g_autofree double *y = g_new(double, points->len + 1);

    for (guint i = 0; i < points->len; i++) {
        x[i] = g_array_index(points, Point, i).x;
        y[i] = g_array_index(points, Point, i).y;
    }
    rp_line_chart_add(chart, title, colour, style, x, y, points->len);
}

static gboolean
collect_series(Drawing *drawing, GError **error)
{
    for (guint i = 0; i < drawing->grid->n; i++) {
        const char *const *cells = (const char *const *)drawing->rows->cells[i];
        g_autofree char *name = cells != NULL ? series_of(drawing, cells) : NULL;

        if (name != NULL &&
            !g_ptr_array_find_with_equal_func(drawing->names, name, g_str_equal, NULL))
            g_ptr_array_add(drawing->names, g_steal_pointer(&name));
    }
    if (drawing->names->len <= MOST_SERIES)
        return TRUE;
    return rp_cli_refuse(
        error, "--series: expected at most %d values of %s%s, found %u", MOST_SERIES,
        drawing->rows->columns[g_array_index(drawing->series, guint32, 0)],
        drawing->series->len > 1 ? " and the other options together" : "", drawing->names->len);
}

/* The values of options that are the same in all rows. */
static char *
what_is_fixed(const RpSweepGrid *grid)
{
    GString *text = g_string_new(NULL);

    for (guint a = 0; a < grid->axes->len; a++) {
        const RpSweepAxis *axis = &g_array_index(grid->axes, RpSweepAxis, a);

        if (axis->n == 1)
            g_string_append_printf(text, "%s%s %s", text->len > 0 ? ", " : "",
                                   rp_sweep_axis_name(axis), axis->values[0]);
    }
    return g_string_free(text, FALSE);
}

/* Without its unit. (transfer full) */
static char *
short_title(const char *title)
{
    const char *comma = strchr(title, ',');

    return comma != NULL ? g_strndup(title, (gsize)(comma - title)) : g_strdup(title);
}

/* Tics at the option's values. */
static void
set_option_axis(const Drawing *drawing, RpLineChart *chart)
{
    const RpSweepAxis *axis = &g_array_index(drawing->grid->axes, RpSweepAxis, drawing->x);
    g_autofree double *values = g_new(double, axis->n);
    double low = G_MAXDOUBLE, high = 0;

    for (guint i = 0; i < axis->n; i++) {
        values[i] = number_of(axis->values[i]);
        if (!isfinite(values[i]))
            return;
        low = fmin(low, values[i]);
        high = fmax(high, values[i]);
    }
    rp_line_chart_set_tics(chart, values, axis->n);
    rp_line_chart_set_x_range(chart, low - AROUND * low, high + AROUND * high);
    if (low > 0 && high >= WIDE_RANGE * low)
        rp_line_chart_set_log(chart, 2, 0);
}

static RpFigure *
draw(const Drawing *drawing, const RpFigureStyle *style, GError **error)
{
    const gboolean lines = is_option(drawing, drawing->x);
    const char *x_title = axis_title(drawing->rows, drawing->x);
    const char *y_title = axis_title(drawing->rows, drawing->y);
    g_autofree char *short_x = short_title(x_title);
    g_autofree char *short_y = short_title(y_title);
    g_autofree char *title = g_strdup_printf("%s against %s (predicted)", short_y, short_x);
    g_autofree char *fixed = what_is_fixed(drawing->grid);
    g_autoptr(RpLineChart) chart = rp_line_chart_new("sweep", title, x_title, y_title);
    g_autoptr(GArray) all = points_of(drawing, NULL);

    if (all->len == 0)
        return rp_null(rp_fail(
            error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA,
            "--picture: expected rows with numbers in both columns of --axes %s:%s, found none "
            "that fits",
            drawing->rows->columns[drawing->y], drawing->rows->columns[drawing->x]));
    rp_line_chart_set_subtitle(chart, fixed);
    rp_line_chart_set_style(chart, style);
    if (lines)
        set_option_axis(drawing, chart);
    for (guint s = 0; s < drawing->names->len; s++) {
        const char *name = g_ptr_array_index(drawing->names, s);
        const char *entry = drawing->series->len > 0 ? name : NULL;
        g_autoptr(GArray) points = points_of(drawing, name);

        qsort(points->data, points->len, sizeof(Point), compare_x);
        if (points->len > 0)
            add_points(chart, entry, rp_colour_of_series(s),
                       lines           ? s < N_COLOURS ? RP_LINE_WITH_POINTS : RP_LINE_DASHED
                       : s < N_COLOURS ? RP_LINE_POINTS
                                       : RP_LINE_CROSSES,
                       points);
    }
    if (!lines) {
        qsort(all->data, all->len, sizeof(Point), compare_x);
        g_autoptr(GArray) front = front_of(drawing, all);

        qsort(front->data, front->len, sizeof(Point), compare_x);
        add_points(chart, "none is better in both", RP_COLOUR_GREY, RP_LINE_DASHED, front);
    }
    return rp_line_chart_figure(chart);
}

static gboolean
draw_picture(Drawing *drawing, const RpFigureStyle *style, const char *path, GError **error)
{
    if (!collect_series(drawing, error))
        return FALSE;
    g_autoptr(RpFigure) figure = draw(drawing, style, error);

    return figure != NULL && rp_cli_picture_write(figure, path, error);
}

/* ---- the command ---- */

#define DEFAULT_OUTPUT "sweep.csv"
/* Rows that people see; the file has all. */
#define MOST_SHOWN 40

/* One price of each card, or one for all. @prices: (out) (transfer full): %NULL where none is given */
static gboolean
read_prices(const char *text, const RpSweepGrid *grid, double **prices, GError **error)
{
    const RpSweepAxis *cards = find_axis(grid, "gpu");
    const guint n = cards != NULL ? cards->n : 1;
    g_auto(GStrv) words = g_strsplit(text != NULL ? text : "", ",", -1);
    const guint given = g_strv_length(words);

    if (text == NULL)
        return TRUE;
    if (given != 1 && given != n)
        return rp_cli_refuse(error, "--gpu-price: expected one price, or %u as --gpu has, found %u",
                             n, given);
    *prices = g_new0(double, n);
    for (guint i = 0; i < n; i++) {
        const char *word = words[given == 1 ? 0 : i];

        (*prices)[i] = rp_cli_parse_positive(word);
        if ((*prices)[i] > 0)
            continue;
        g_autofree char *shown = rp_quote(word);

        return rp_cli_refuse(
            error, "--gpu-price: expected dollars an hour of a GPU, as 0.35, found %s", shown);
    }
    return TRUE;
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
report_row(RpReport *report, const RpSweepRows *rows, guint i, gboolean priced)
{
    const char *const *cells = (const char *const *)rows->cells[i];
    const guint n = rows->n_columns;
    const char *problem = cells[n - 1];

    rp_report_object(report, NULL, NULL);
    for (guint c = 0; c < n; c++) {
        const char *name = rows->columns[c];
        const gboolean shown =
            is_shown(rows, c, priced) && (*problem == '\0' || c < rows->grid->axes->len);
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
report_rows(RpReport *report, const RpSweepRows *rows, const char *output, guint done,
            gboolean priced)
{
    const RpSweepGrid *grid = rows->grid;
    g_autofree char *file = rp_display_name(output);

    rp_report_say(report, "%u combinations, %u simulated now, %u taken from %s: predicted", grid->n,
                  done, grid->n - done, file);
    rp_report_text(report, "origin", "predicted", NULL);
    rp_report_text(report, "csv", output, NULL);
    rp_report_count(report, "combinations", grid->n, NULL);
    rp_report_count(report, "simulated", done, NULL);
    rp_report_table(report, "rows", "fits,bubble_pct,gpu_gib", MOST_SHOWN);
    for (guint i = 0; i < grid->n; i++)
        report_row(report, rows, i, priced);
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
    g_autofree double *prices = NULL;
    guint done = 0;

    if (!rp_cli_picture_style(args, args->picture != NULL, &style, error) ||
        !check_files(args, words, output, error) ||
        !rp_sweep_grid_make(&grid, words, args->swept, error) ||
        !read_prices(args->gpu_price, &grid, &prices, error))
        return FALSE;
    g_autoptr(RpSweepRows) rows = rp_sweep_rows_open(output, &grid, error);
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GArray) series = g_array_new(FALSE, FALSE, sizeof(guint32));
    Drawing drawing = {.rows = rows, .grid = &grid, .series = series, .names = names};

    if (rows == NULL || (args->picture != NULL && !read_drawing(&drawing, args, error)) ||
        !run_rows(prices, rows, &done, error) ||
        (args->picture != NULL && !draw_picture(&drawing, &style, args->picture, error)))
        return FALSE;
    report_rows(report, rows, output, done, prices != NULL);
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
