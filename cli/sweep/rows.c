#include "cli/sweep/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/schedules/schedule.h"
#include "plots/table.h"

#define USUAL_MODEL "qwen3-1.7b"
/* Most values of one option; a longer range is a typing error. */
#define MOST_VALUES 1000

/* Defaults of a sweep, those of `compare`. */
static const struct {
    const char *option, *value;
} usual[] = {{"schedule", "roundpipe"}, {"gpus", "8"}, {"micro-batches", "16"}};

static void
clear_axis(gpointer data)
{
    g_strfreev(((RpSweepAxis *)data)->values);
}

void
rp_sweep_grid_clear(RpSweepGrid *grid)
{
    g_clear_pointer(&grid->axes, g_array_unref);
}

const char *
rp_sweep_axis_name(const RpSweepAxis *axis)
{
    return axis->option != NULL ? axis->option->name : "model";
}

/* ---- lists and ranges ---- */

/* A number of which k is 1024. Returns: NAN: it is none */
static double
read_number(const char *text)
{
    char *end = NULL;
    double value = g_ascii_strtod(text, &end);

    if (end == text || !g_ascii_isdigit(*text))
        return NAN;
    if (*end == 'k' || *end == 'K') {
        value *= 1024;
        end++;
    }
    return *end == '\0' ? value : NAN;
}

static char *
text_number(double value)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];

    return g_strdup(g_ascii_formatd(text, sizeof text, "%.12g", value));
}

/* "A..B" doubles, "A..B+S" adds. @texts: appended to. Returns: FALSE: it is no range */
static gboolean
add_range(const char *text, GPtrArray *texts)
{
    const char *dots = strstr(text, "..");
    const char *plus = dots != NULL ? strchr(dots, '+') : NULL;

    if (dots == NULL)
        return FALSE;
    g_autofree char *low = g_strndup(text, (gsize)(dots - text));
    g_autofree char *high =
        plus != NULL ? g_strndup(dots + 2, (gsize)(plus - dots - 2)) : g_strdup(dots + 2);
    const double from = read_number(low), to = read_number(high);
    const double step = plus != NULL ? read_number(plus + 1) : 0;

    if (!(from > 0) || !(to >= from) || (plus != NULL && !(step > 0)))
        return FALSE;
    for (double at = from; at <= to && texts->len <= MOST_VALUES;
         at = step > 0 ? at + step : 2 * at)
        g_ptr_array_add(texts, text_number(at));
    return TRUE;
}

static gboolean
is_one_of(const GPtrArray *texts, const char *text)
{
    for (guint i = 0; i < texts->len; i++)
        if (g_str_equal(g_ptr_array_index(texts, i), text))
            return TRUE;
    return FALSE;
}

static void
add_schedules(GPtrArray *texts)
{
    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++)
        g_ptr_array_add(texts, g_strdup((*s)->name));
}

static gboolean
is_flag(const RpOption *option)
{
    return option->kind == RP_OPTION_FLAG;
}

/* The values of an option, each once. */
static gboolean
read_values(const RpOption *option, const char *given, RpSweepAxis *axis, GError **error)
{
    /* stage lists have commas of their own */
    const char *between = g_strcmp0(option->value, "LIST") == 0 ? ";" : ",";
    const char *text = is_flag(option) && *given == '\0' ? "yes" : given;
    g_auto(GStrv) words = g_strsplit(text, between, -1);
    g_autoptr(GPtrArray) found = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) values = g_ptr_array_new_with_free_func(g_free);

    for (char **word = words; *word != NULL; word++) {
        const double number = read_number(g_strstrip(*word));

        if (g_str_equal(option->name, "schedule") && g_str_equal(*word, "all"))
            add_schedules(found);
        else if (!add_range(*word, found))
            g_ptr_array_add(found, isnan(number) ? g_strdup(*word) : text_number(number));
    }
    for (guint i = 0; i < found->len; i++)
        if (!is_one_of(values, g_ptr_array_index(found, i)))
            g_ptr_array_add(values, g_strdup(g_ptr_array_index(found, i)));
    if (values->len == 0 || values->len > MOST_VALUES) {
        g_autofree char *shown = rp_quote(given);

        return rp_cli_refuse(error, "--%s: expected 1 to %d values, found %s", option->name,
                             MOST_VALUES, shown);
    }
    *axis = (RpSweepAxis){.option = option, .n = values->len};
    g_ptr_array_add(values, NULL);
    axis->values = (char **)g_ptr_array_steal(values, NULL);
    return TRUE;
}

/* ---- values into options ---- */

/* Every value alone, before any is simulated: a wrong word is not a row that fails. */
static gboolean
check_values(const RpSweepAxis *axis, GError **error)
{
    for (guint i = 0; i < axis->n && axis->option != NULL; i++) {
        RpArgs args = {0};
        RpRunSpec run;

        rp_run_spec_init(&args.run);
        args.run.plan.gpus = args.run.plan.micro_batches = 1;
        if (!rp_option_store(axis->option, axis->values[i], &args, error) ||
            !rp_schedule_args_read(&args, &run, error))
            return FALSE;
        if (args.schedule != NULL && rp_schedule_find(args.schedule, error) == NULL)
            return rp_prefix_error(error, "--schedule: ");
    }
    return TRUE;
}

static const char *
usual_value(const char *option)
{
    for (guint i = 0; i < G_N_ELEMENTS(usual); i++)
        if (g_str_equal(usual[i].option, option))
            return usual[i].value;
    return NULL;
}

/* A schedule's file has its own numbers, or those that are given. */
static gboolean
has_file(char *const *texts)
{
    for (guint i = 0; rp_schedule_options()[i].name != NULL; i++)
        if (g_str_equal(rp_schedule_options()[i].name, "schedule-file"))
            return texts[i] != NULL;
    return FALSE;
}

static void
add_models(RpSweepGrid *grid, char *const *models)
{
    static char *const usual_models[] = {(char *)USUAL_MODEL, NULL};
    char *const *words = models != NULL && *models != NULL ? models : usual_models;
    const RpSweepAxis axis = {NULL, g_strdupv((char **)words), g_strv_length((char **)words)};

    g_array_append_val(grid->axes, axis);
}

gboolean
rp_sweep_grid_make(RpSweepGrid *grid, char *const *models, char *const *texts, GError **error)
{
    guint64 n;

    grid->axes = g_array_new(FALSE, FALSE, sizeof(RpSweepAxis));
    g_array_set_clear_func(grid->axes, clear_axis);
    add_models(grid, models);
    n = g_array_index(grid->axes, RpSweepAxis, 0).n;
    for (guint i = 0; rp_schedule_options()[i].name != NULL; i++) {
        const RpOption *option = &rp_schedule_options()[i];
        const char *text =
            texts[i] != NULL || has_file(texts) ? texts[i] : usual_value(option->name);
        RpSweepAxis axis;

        if (text == NULL)
            continue;
        if (!read_values(option, text, &axis, error))
            return FALSE;
        g_array_append_val(grid->axes, axis);
        n *= axis.n;
        if (!check_values(&axis, error))
            return FALSE;
        if (n > RP_SWEEP_MOST_ROWS)
            return rp_cli_refuse(
                error, "expected at most %d combinations, found %" G_GUINT64_FORMAT " up to --%s",
                RP_SWEEP_MOST_ROWS, n, option->name);
    }
    grid->n = (guint)n;
    return TRUE;
}

/* ---- combinations ---- */

guint
rp_sweep_grid_place(const RpSweepGrid *grid, guint i, guint axis)
{
    for (guint behind = grid->axes->len - 1; behind > axis; behind--)
        i /= g_array_index(grid->axes, RpSweepAxis, behind).n;
    return i % g_array_index(grid->axes, RpSweepAxis, axis).n;
}

void
rp_sweep_grid_args(const RpSweepGrid *grid, guint i, RpArgs *args)
{
    *args = (RpArgs){0};
    rp_run_spec_init(&args->run);
    for (guint a = 1; a < grid->axes->len; a++) {
        const RpSweepAxis *axis = &g_array_index(grid->axes, RpSweepAxis, a);
        const gboolean set = rp_option_store(
            axis->option, axis->values[rp_sweep_grid_place(grid, i, a)], args, NULL);

        g_assert(set); /* check_values() */
    }
}

/* ---- rows ---- */

#define MOST_BYTES ((gsize)256 << 20)

const RpSweepColumn rp_sweep_columns[RP_SWEEP_N_RESULTS] = {
    [RP_SWEEP_DEVICE] = {"device"},
    [RP_SWEEP_ITERATION_MS] = {"iteration_ms", "iteration, ms", .shown = TRUE},
    [RP_SWEEP_BUBBLE_PCT] = {"bubble_pct", "bubble ratio, %", .shown = TRUE},
    [RP_SWEEP_FILL_PCT] = {"fill_pct", "fill, %"},
    [RP_SWEEP_SWITCH_PCT] = {"switch_pct", "switch, %"},
    [RP_SWEEP_DRAIN_PCT] = {"drain_pct", "drain, %"},
    [RP_SWEEP_INTRA_PCT] = {"intra_pct", "intra, %"},
    [RP_SWEEP_TOKENS_PER_S] = {"tokens_per_s", "tokens/s", .more = TRUE, .shown = TRUE},
    [RP_SWEEP_GPU_GIB] = {"gpu_gib", "fullest GPU, GiB", .shown = TRUE},
    [RP_SWEEP_HOST_GIB] = {"host_gib", "host memory, GiB", .shown = TRUE},
    [RP_SWEEP_FITS] = {"fits", .shown = TRUE},
    [RP_SWEEP_DOLLARS] = {"dollars_per_billion_tokens", "dollars a billion tokens"},
    [RP_SWEEP_ERROR] = {"error"},
};

const RpSweepColumn *
rp_sweep_rows_result(const RpSweepRows *rows, guint column)
{
    const guint n_axes = rows->grid->axes->len;

    return column >= n_axes ? &rp_sweep_columns[column - n_axes] : NULL;
}

/* ---- lines ---- */

static void
append_line(GString *text, const char *const *cells, guint n)
{
    for (guint i = 0; i < n; i++) {
        g_string_append(text, i > 0 ? "," : "");
        rp_report_append_cell(text, cells[i]);
    }
    g_string_append_c(text, '\n');
}

/* ---- rows that are there ---- */

/* Row of the grid; RP_NONE: of another. */
static guint32
find_row(const RpSweepGrid *grid, char *const *cells)
{
    guint row = 0;

    for (guint a = 0; a < grid->axes->len; a++) {
        const RpSweepAxis *axis = &g_array_index(grid->axes, RpSweepAxis, a);
        guint place = 0;

        while (place < axis->n && !g_str_equal(axis->values[place], cells[a]))
            place++;
        if (place == axis->n)
            return RP_NONE;
        row = row * axis->n + place;
    }
    return row;
}

static void
take_row(RpSweepRows *rows, char **cells)
{
    const guint32 row = find_row(rows->grid, cells);

    if (row == RP_NONE)
        g_ptr_array_add(rows->others, cells);
    else if (rows->cells[row] != NULL)
        g_strfreev(cells);
    else
        rows->cells[row] = cells;
}

static gboolean
refuse_line(const RpSweepRows *rows, guint number, const char *expected, GError **error)
{
    g_autofree char *shown = rp_display_name(rows->path);

    return rp_cli_refuse(
        error, "%s: line %u: expected %s; another --output, or without that file, begins anew",
        shown, number, expected);
}

/* A last line without its end is of a sweep that was killed. */
static gboolean
read_lines(RpSweepRows *rows, const char *text, GError **error)
{
    const guint n = rows->n_columns;
    guint number = 1;

    for (const char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1, number++) {
        g_autofree char *line = g_strndup(at, (gsize)(end - at));
        char **cells = rp_table_split_line(line);

        if (cells == NULL || g_strv_length(cells) != n) {
            g_strfreev(cells);
            return refuse_line(rows, number,
                               number == 1 ? "the columns of these options"
                                           : "as many cells as there are columns",
                               error);
        }
        if (number > 1) {
            take_row(rows, cells);
            continue;
        }
        for (guint c = 0; c < n; c++)
            if (!g_str_equal(cells[c], rows->columns[c])) {
                g_autofree char *expected =
                    g_strdup_printf("column %s, found %.60s", rows->columns[c], cells[c]);

                g_strfreev(cells);
                return refuse_line(rows, number, expected, error);
            }
        g_strfreev(cells);
    }
    return TRUE;
}

static GString *
whole_text(const RpSweepRows *rows)
{
    GString *text = g_string_new(NULL);
    const guint n = rows->n_columns;

    append_line(text, rows->columns, n);
    for (guint i = 0; i < rows->grid->n; i++)
        if (rows->cells[i] != NULL)
            append_line(text, (const char *const *)rows->cells[i], n);
    for (guint i = 0; i < rows->others->len; i++)
        append_line(text, g_ptr_array_index(rows->others, i), n);
    return text;
}

static gboolean
set_file_error(const RpSweepRows *rows, int number, GError **error)
{
    g_autofree char *shown = rp_display_name(rows->path);

    return rp_file_fail(error, number, "cannot write %s", shown);
}

/* Locked as long as it is open; without the torn row of a sweep that was killed. */
static gboolean
open_file(RpSweepRows *rows, GError **error)
{
    gsize length;

    rows->fd = open(rows->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (rows->fd < 0)
        return set_file_error(rows, errno, error);
    if (flock(rows->fd, LOCK_EX | LOCK_NB) != 0)
        return rp_fail_in(
            error, rows->path, G_FILE_ERROR, G_FILE_ERROR_ACCES,
            "another process writes this file; wait for it, or take another --output");
    g_autofree char *text = rp_file_read(rows->path, MOST_BYTES, &length, error);
    if (text == NULL || !read_lines(rows, text, error))
        return FALSE;
    g_autoptr(GString) whole = whole_text(rows);
    const char *end = strrchr(text, '\n');
    const gsize good = end != NULL ? (gsize)(end + 1 - text) : 0;

    /* something else is not taken for a torn row */
    if (strlen(text) != length || (good == 0 && !g_str_has_prefix(whole->str, text)))
        return refuse_line(rows, 1, "rows of a sweep", error);

    if (ftruncate(rows->fd, (off_t)good) != 0 ||
        (good == 0 && write(rows->fd, whole->str, whole->len) != (gssize)whole->len))
        return set_file_error(rows, errno, error);
    return TRUE;
}

RpSweepRows *
rp_sweep_rows_open(const char *path, const RpSweepGrid *grid, GError **error)
{
    g_autoptr(RpSweepRows) rows = g_new0(RpSweepRows, 1);

    rows->grid = grid;
    rows->fd = -1;
    rows->path = g_strdup(path);
    rows->columns = g_new0(const char *, grid->axes->len + RP_SWEEP_N_RESULTS + 1);
    rows->others = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);
    rows->cells = g_new0(char **, grid->n);
    g_mutex_init(&rows->lock);
    for (guint a = 0; a < grid->axes->len; a++)
        rows->columns[rows->n_columns++] =
            rp_sweep_axis_name(&g_array_index(grid->axes, RpSweepAxis, a));
    for (guint r = 0; r < RP_SWEEP_N_RESULTS; r++)
        rows->columns[rows->n_columns++] = rp_sweep_columns[r].name;
    return open_file(rows, error) ? g_steal_pointer(&rows) : NULL;
}

void
rp_sweep_rows_free(RpSweepRows *rows)
{
    if (rows == NULL)
        return;
    if (rows->fd >= 0)
        close(rows->fd);
    for (guint i = 0; i < rows->grid->n; i++)
        g_strfreev(rows->cells[i]);
    g_free(rows->cells);
    g_ptr_array_unref(rows->others);
    g_free(rows->columns);
    g_mutex_clear(&rows->lock);
    g_free(rows->path);
    g_free(rows);
}

/* ---- new rows ---- */

void
rp_sweep_rows_add(RpSweepRows *rows, guint i, const char *const *results)
{
    const guint n_axes = rows->grid->axes->len;
    char **cells = g_new0(char *, rows->n_columns + 1);
    g_autoptr(GString) line = g_string_new(NULL);

    for (guint a = 0; a < n_axes; a++) {
        const RpSweepAxis *axis = &g_array_index(rows->grid->axes, RpSweepAxis, a);

        cells[a] = g_strdup(axis->values[rp_sweep_grid_place(rows->grid, i, a)]);
    }
    for (guint r = 0; r < RP_SWEEP_N_RESULTS; r++)
        cells[n_axes + r] =
            g_strdelimit(g_strdup(results[r] != NULL ? results[r] : ""), "\r\n", ' ');
    append_line(line, (const char *const *)cells, rows->n_columns);
    g_mutex_lock(&rows->lock);
    rows->cells[i] = cells;
    errno = 0;
    if (rows->problem == 0 && write(rows->fd, line->str, line->len) != (gssize)line->len)
        rows->problem = errno != 0 ? errno : ENOSPC;
    g_mutex_unlock(&rows->lock);
}

gboolean
rp_sweep_rows_finish(RpSweepRows *rows, GError **error)
{
    g_autoptr(GString) whole = whole_text(rows);

    if (rows->problem != 0)
        return set_file_error(rows, rows->problem, error);
    return g_file_set_contents(rows->path, whole->str, (gssize)whole->len, error);
}
