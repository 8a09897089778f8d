#include "cli/sweep/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/reports/reports.h"
#include "plots/charts/charts.h"

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

static gboolean
find_column(const RpSweepRows *rows, const char *option, const char *name, guint32 *column,
            GError **error)
{
    const int found = rp_cli_choice(option, name, rows->columns, error);

    *column = (guint32)found;
    return found >= 0;
}

static gboolean
read_axes(const RpSweepRows *rows, const char *axes, guint32 *y, guint32 *x, GError **error)
{
    const char *text = axes != NULL ? axes : "tokens_per_s:host_gib";
    g_auto(GStrv) names = g_strsplit(text, ":", -1);

    if (g_strv_length(names) != 2)
        return rp_cli_refuse(
            error, "--axes: expected two columns as tokens_per_s:host_gib, found \"%s\"", text);
    return find_column(rows, "axes", names[0], y, error) &&
           find_column(rows, "axes", names[1], x, error);
}

gboolean
rp_sweep_check_picture(const RpSweepRows *rows, const char *axes, const char *series,
                       GError **error)
{
    guint32 y, x;

    return read_axes(rows, axes, &y, &x, error) &&
           (series == NULL || find_column(rows, "series", series, &x, error));
}

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

    if (all->len == 0) {
        g_set_error(
            error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA,
            "--picture: expected rows with numbers in both columns of --axes %s:%s, found none "
            "that fits",
            drawing->rows->columns[drawing->y], drawing->rows->columns[drawing->x]);
        return NULL;
    }
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

gboolean
rp_sweep_picture(const RpSweepRows *rows, const RpSweepGrid *grid, const char *axes,
                 const char *series, const RpFigureStyle *style, const char *path, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GArray) columns = g_array_new(FALSE, FALSE, sizeof(guint32));
    Drawing drawing = {.rows = rows, .grid = grid, .names = names, .series = columns};
    guint32 column;

    if (!read_axes(rows, axes, &drawing.y, &drawing.x, error) ||
        (series != NULL && !find_column(rows, "series", series, &column, error)))
        return FALSE;
    if (series != NULL)
        g_array_append_val(columns, column);
    else
        take_usual_series(&drawing);
    if (!collect_series(&drawing, error))
        return FALSE;
    g_autoptr(RpFigure) figure = draw(&drawing, style, error);

    return figure != NULL && rp_cli_picture_write(figure, path, error);
}
