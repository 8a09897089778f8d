#include "cli/sweep/sweep.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/quote.h"

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

/* Cells of a line without its end; %NULL: not so many. (transfer full) */
static char **
split_line(const char *line, gsize length, guint n)
{
    g_autoptr(GPtrArray) cells = g_ptr_array_new_with_free_func(g_free);
    const char *end = line + length;
    gboolean more = TRUE;

    while (more) {
        g_autoptr(GString) cell = g_string_new(NULL);
        const gboolean quoted = line < end && *line == '"';

        for (line += quoted; line < end; line++) {
            if (!quoted && *line == ',')
                break;
            if (quoted && *line == '"' && (line + 1 == end || line[1] != '"'))
                break;
            line += quoted && *line == '"';
            g_string_append_c(cell, *line);
        }
        if (quoted && (line == end || *line++ != '"'))
            return NULL;
        g_ptr_array_add(cells, g_strndup(cell->str, cell->len));
        more = line < end && *line == ',';
        if (!more && line < end)
            return NULL;
        line += more;
    }
    if (cells->len != n)
        return NULL;
    g_ptr_array_add(cells, NULL);
    return (char **)g_ptr_array_steal(cells, NULL);
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
        char **cells = split_line(at, (gsize)(end - at), n);

        if (cells == NULL)
            return refuse_line(rows, number,
                               number == 1 ? "the columns of these options"
                                           : "as many cells as there are columns",
                               error);
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
    g_autofree char *text = NULL;
    gsize length;

    rows->fd = open(rows->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (rows->fd < 0)
        return set_file_error(rows, errno, error);
    if (flock(rows->fd, LOCK_EX | LOCK_NB) != 0) {
        g_autofree char *shown = rp_display_name(rows->path);

        return rp_fail(
            error, G_FILE_ERROR, G_FILE_ERROR_ACCES,
            "%s: another process writes this file; wait for it, or take another --output", shown);
    }
    text = rp_file_read(rows->path, MOST_BYTES, &length, error);
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

static void
free_cells(gpointer cells)
{
    g_strfreev(cells);
}

RpSweepRows *
rp_sweep_rows_open(const char *path, const RpSweepGrid *grid, GError **error)
{
    g_autoptr(RpSweepRows) rows = g_new0(RpSweepRows, 1);

    rows->grid = grid;
    rows->fd = -1;
    rows->path = g_strdup(path);
    rows->columns = g_new0(const char *, grid->axes->len + RP_SWEEP_N_RESULTS + 1);
    rows->others = g_ptr_array_new_with_free_func(free_cells);
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
