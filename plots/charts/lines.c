#include "plots/charts/charts.h"

#include <math.h>
#include <string.h>

/* Pixels. */
#define WIDTH 1000
#define HEIGHT 600
#define BOTTOM 60
#define LEFT 95
#define TITLES 70
/* A logarithmic axis of at most this range names values between powers of ten. */
#define MOST_NAMED_RANGE 1000
/* Less wide than that, the legend is below, and the plot so high as a share of the width. */
#define NARROW 600
#define NARROW_SHAPE 0.5
#define NARROW_RIGHT 20
/* Width of a character of a tic's label, and the least gap between two labels. */
#define TIC_CHARACTER 8.4
#define TIC_GAP 5

typedef struct {
    char *title;
    RpColour colour;
    RpLineStyle style;
    guint n;
    double *x;
    double *y;
} Series;

struct _RpLineChart {
    RpFigureStyle style;
    char *name;
    char *title;
    char *subtitle;
    char *x_title;
    char *y_title;
    gboolean tics_at_points;
    GArray *tics; /* (element-type double) */
    guint x_base;
    guint y_base;
    double x_low, x_high;
    double y_low, y_high;
    GPtrArray *series; /* Series; n = 0: an explanation */
    GPtrArray *levels; /* Series, of one y */
};

static void
free_series(gpointer data)
{
    Series *series = data;

    g_free(series->title);
    g_free(series->x);
    g_free(series->y);
    g_free(series);
}

RpLineChart *
rp_line_chart_new(const char *name, const char *title, const char *x_title, const char *y_title)
{
    RpLineChart *chart = g_new0(RpLineChart, 1);

    chart->name = g_strdup(name);
    chart->title = g_strdup(title);
    chart->x_title = g_strdup(x_title);
    chart->y_title = g_strdup(y_title);
    chart->series = g_ptr_array_new_with_free_func(free_series);
    chart->levels = g_ptr_array_new_with_free_func(free_series);
    chart->tics = g_array_new(FALSE, FALSE, sizeof(double));
    return chart;
}

void
rp_line_chart_free(RpLineChart *chart)
{
    if (chart == NULL)
        return;
    g_free(chart->name);
    g_free(chart->title);
    g_free(chart->subtitle);
    g_free(chart->x_title);
    g_free(chart->y_title);
    g_ptr_array_unref(chart->series);
    g_ptr_array_unref(chart->levels);
    g_array_unref(chart->tics);
    g_free(chart);
}

void
rp_line_chart_set_subtitle(RpLineChart *chart, const char *subtitle)
{
    g_free(chart->subtitle);
    chart->subtitle = g_strdup(subtitle);
}

void
rp_line_chart_set_style(RpLineChart *chart, const RpFigureStyle *style)
{
    chart->style = *style;
}

void
rp_line_chart_set_log(RpLineChart *chart, guint x_base, guint y_base)
{
    chart->x_base = x_base;
    chart->y_base = y_base;
}

void
rp_line_chart_set_tics_at_points(RpLineChart *chart)
{
    chart->tics_at_points = TRUE;
}

void
rp_line_chart_set_tics(RpLineChart *chart, const double *x, guint n)
{
    g_array_set_size(chart->tics, 0);
    g_array_append_vals(chart->tics, x, n);
}

void
rp_line_chart_set_x_range(RpLineChart *chart, double low, double high)
{
    chart->x_low = low;
    chart->x_high = high;
}

void
rp_line_chart_set_y_range(RpLineChart *chart, double low, double high)
{
    chart->y_low = low;
    chart->y_high = high;
}

static void
add(GPtrArray *to, const char *title, RpColour colour, RpLineStyle style, const double *x,
    const double *y, guint n)
{
    const Series series = {
        g_strdup(title), colour, style, n, g_memdup2(x, n * sizeof *x), g_memdup2(y, n * sizeof *y),
    };

    g_ptr_array_add(to, g_memdup2(&series, sizeof series));
}

void
rp_line_chart_add(RpLineChart *chart, const char *title, RpColour colour, RpLineStyle style,
                  const double *x, const double *y, guint n)
{
    add(chart->series, title, colour, style, x, y, n);
}

void
rp_line_chart_explain(RpLineChart *chart, const char *title, RpLineStyle style)
{
    rp_line_chart_add(chart, title, 0x555555, style, NULL, NULL, 0);
}

void
rp_line_chart_add_level(RpLineChart *chart, const char *title, double y)
{
    add(chart->levels, title, 0, RP_LINE_DASHED, &y, &y, 1);
}

/* Beside a narrow plot stands a letter for it, which the legend explains: "a" */
static char *
level_letter(guint i)
{
    return g_strdup_printf("%c", 'a' + (char)(i % 26));
}

static char *
level_entry(const RpLineChart *chart, guint i)
{
    const Series *level = g_ptr_array_index(chart->levels, i);
    g_autofree char *letter = level_letter(i);

    return g_strdup_printf("%s: %s", letter, level->title);
}

static void
append_style(GString *script, const Series *series)
{
    static const char *const styles[] = {
        [RP_LINE_SOLID] = "lines linewidth 2",
        [RP_LINE_DASHED] = "lines linewidth 2 dashtype (8,5)",
        [RP_LINE_DOTTED] = "lines linewidth 1.2 dashtype (2,4)",
        [RP_LINE_POINTS] = "points pointtype 6 pointsize 1.2*dot linewidth 1.6",
        [RP_LINE_CROSSES] = "points pointtype 2 pointsize 1.1*dot linewidth 1.8",
        [RP_LINE_WITH_POINTS] = "linespoints linewidth 2 pointtype 7 pointsize 0.8*dot",
    };

    rp_text_append(script, "with %s linecolor rgb '#%06x'", styles[series->style], series->colour);
}

static void
append_data(const RpLineChart *chart, GString *data)
{
    for (guint i = 0; i < chart->series->len; i++) {
        const Series *series = g_ptr_array_index(chart->series, i);

        if (series->n == 0)
            continue;
        rp_text_append(data, "# %s\n# %s; %s\n",
                       series->title != NULL ? series->title : "(as above)", chart->x_title,
                       chart->y_title);
        for (guint j = 0; j < series->n; j++)
            if (isfinite(series->y[j]))
                rp_text_append(data, "%.9g %.9g\n", series->x[j], series->y[j]);
            else
                rp_text_append(data, "%.9g NaN\n", series->x[j]);
        g_string_append(data, "\n\n");
    }
}

static void
append_plot(const RpLineChart *chart, gboolean narrow, GString *script)
{
    const guint entries = narrow ? chart->levels->len : 0;
    guint index = 0;

    g_string_append(script, "plot \\\n");
    for (guint i = 0; i < chart->series->len; i++) {
        const Series *series = g_ptr_array_index(chart->series, i);
        g_autofree char *title = rp_gnuplot_quote(series->title != NULL ? series->title : "");

        if (series->n > 0)
            rp_text_append(script, "  DATA index %u using 1:2 ", index++);
        else
            g_string_append(script, "  keyentry ");
        append_style(script, series);
        rp_text_append(script, " %s%s%s\n", series->title != NULL ? "title " : "notitle",
                       series->title != NULL ? title : "",
                       i + 1 < chart->series->len + entries ? ", \\" : "");
    }
    for (guint i = 0; i < entries; i++) {
        g_autofree char *entry = level_entry(chart, i);
        g_autofree char *title = rp_gnuplot_quote(entry);

        rp_text_append(script,
                       "  keyentry with lines linewidth 1 dashtype (4,4) linecolor rgb '#555555' "
                       "title %s%s\n",
                       title, i + 1 < entries ? ", \\" : "");
    }
}

/* At 1, 2 and 5 times powers of ten: gnuplot names powers alone, of which an axis may have but two. */
static void
append_decades(GString *script, double low, double high)
{
    static const guint factors[] = {1, 2, 5};
    const char *comma = "";

    g_string_append(script, "set ytics (");
    for (double power = pow(10, floor(log10(low))); power <= high; power *= 10)
        for (guint f = 0; f < G_N_ELEMENTS(factors); f++)
            if (factors[f] * power >= low && factors[f] * power <= high) {
                rp_text_append(script, "%s%.9g", comma, factors[f] * power);
                comma = ", ";
            }
    g_string_append(script, ")\n");
}

static void
append_axis(GString *script, char axis, guint base, double low, double high)
{
    if (base > 0)
        rp_text_append(script, "set logscale %c %u\n", axis, base);
    if (low < high)
        rp_text_append(script, "set %crange [%.9g:%.9g]\n", axis, low, high);
    else
        rp_text_append(script, "set %crange [%s:*]\n", axis, base > 0 ? "*" : "0");
    if (base == 10)
        rp_text_append(script, "set m%ctics 10\n", axis);
}

static void
append_levels(const RpLineChart *chart, gboolean narrow, GString *script)
{
    for (guint i = 0; i < chart->levels->len; i++) {
        const Series *level = g_ptr_array_index(chart->levels, i);
        g_autofree char *shown = narrow ? level_letter(i) : g_strdup(level->title);
        g_autofree char *title = rp_gnuplot_quote(shown);

        rp_text_append(script,
                       "set arrow from graph 0, first %.9g to graph 1, first %.9g nohead "
                       "linewidth 1 dashtype (4,4) linecolor rgb '#555555'\n"
                       "set label %s at graph 1, first %.9g left offset 0.6,0 font font_small\n",
                       *level->y, *level->y, title, *level->y);
    }
}

/* Whether levels are named beside the plot, or below it for lack of space. Returns: pixels that
 * they take below the plot. */
static guint
add_legend_below(const RpLineChart *chart, gboolean narrow, RpFigure *figure, guint plot_width)
{
    g_autoptr(GPtrArray) titles = g_ptr_array_new_with_free_func(g_free);

    for (guint i = 0; i < chart->series->len; i++)
        g_ptr_array_add(titles,
                        g_strdup(((const Series *)g_ptr_array_index(chart->series, i))->title));
    for (guint i = 0; narrow && i < chart->levels->len; i++)
        g_ptr_array_add(titles, level_entry(chart, i));
    return rp_figure_add_legend_below(figure, (const char *const *)(gconstpointer)titles->pdata,
                                      titles->len, plot_width);
}

/* Pixels that the names of levels, or else the legend, take beside the plot. */
static guint
right_width(const RpLineChart *chart)
{
    double width = 0;

    for (guint i = 0; i < chart->series->len && chart->levels->len == 0; i++) {
        const Series *series = g_ptr_array_index(chart->series, i);

        if (series->title != NULL)
            width = fmax(width, 52 + 7.4 * (double)g_utf8_strlen(series->title, -1));
    }
    for (guint i = 0; i < chart->levels->len; i++) {
        const Series *level = g_ptr_array_index(chart->levels, i);

        width = fmax(width, 14 + 6.8 * (double)g_utf8_strlen(level->title, -1));
    }
    return (guint)width + 10;
}

/* Where @x is on an axis from 0 to 1. */
static double
along_axis(const RpLineChart *chart, double low, double high, double x)
{
    return chart->x_base > 0 ? log(x / low) / log(high / low) : (x - low) / (high - low);
}

/* Every how many of the tics has a label, so that none runs into the next. */
static guint
labelled_tics(const RpLineChart *chart, const double *x, guint n, guint plot_width)
{
    const gboolean given = chart->x_low < chart->x_high;
    const double low = given ? chart->x_low : chart->x_base > 0 ? x[0] : 0;
    const double high = given ? chart->x_high : x[n - 1];

    for (guint step = 1; step < n; step++) {
        gboolean fit = TRUE;

        for (guint i = 0; i + step < n && fit; i += step) {
            g_autofree char *label = g_strdup_printf("%.9g", x[i]);
            g_autofree char *next = g_strdup_printf("%.9g", x[i + step]);
            const double apart =
                (along_axis(chart, low, high, x[i + step]) - along_axis(chart, low, high, x[i])) *
                plot_width;

            fit = apart >= TIC_CHARACTER * (double)(strlen(label) + strlen(next)) / 2 + TIC_GAP;
        }
        if (fit)
            return step;
    }
    return MAX(1, n);
}

/* Tics that were given, or at the abscissas of the first series. */
static void
append_tics(const RpLineChart *chart, guint plot_width, GString *script)
{
    const Series *series = chart->series->len > 0 ? g_ptr_array_index(chart->series, 0) : NULL;
    const double *x = (const double *)(gconstpointer)chart->tics->data;
    guint n = chart->tics->len;

    if (n == 0 && chart->tics_at_points && series != NULL) {
        x = series->x;
        n = series->n;
    }
    if (n == 0)
        return;
    const guint step = labelled_tics(chart, x, n, plot_width);

    g_string_append(script, "set xtics (");
    for (guint i = 0; i < n; i++)
        rp_text_append(script, "%s%s%.9g", i > 0 ? ", " : "", i % step > 0 ? "'' " : "", x[i]);
    g_string_append(script, ")\n");
}

RpFigure *
rp_line_chart_figure(const RpLineChart *chart)
{
    const guint wide = rp_figure_wide(&chart->style, WIDTH);
    const gboolean narrow = wide < NARROW, below = narrow || chart->levels->len > 0;
    RpFigure *figure =
        rp_figure_new_styled(chart->name, chart->title, &chart->style, WIDTH,
                             narrow ? TITLES + (guint)(NARROW_SHAPE * wide) : HEIGHT);
    GString *script = rp_figure_script(figure);
    guint right = narrow ? NARROW_RIGHT : right_width(chart);
    guint bottom = below ? add_legend_below(chart, narrow, figure, wide - LEFT - right) : BOTTOM;

    append_data(chart, rp_figure_data(figure));
    rp_figure_add_titles(figure, chart->title, chart->subtitle);
    rp_figure_add_x_title(figure, chart->x_title, bottom);
    rp_figure_add_y_title(figure, chart->y_title);
    append_axis(script, 'x', chart->x_base, chart->x_low, chart->x_high);
    append_axis(script, 'y', chart->y_base, chart->y_low, chart->y_high);
    if (chart->y_base == 10 && chart->y_low > 0 && chart->y_high > chart->y_low &&
        chart->y_high / chart->y_low <= MOST_NAMED_RANGE)
        append_decades(script, chart->y_low, chart->y_high);
    append_levels(chart, narrow, script);
    append_tics(chart, wide - LEFT - right, script);
    rp_text_append(script,
                   "set lmargin at screen px(%d)\nset rmargin at screen 1 - px(%u)\n"
                   "set tmargin at screen 1 - py(%d)\n",
                   LEFT, right, TITLES);
    if (!below)
        rp_text_append(script,
                       "set bmargin at screen py(%d)\n"
                       "set key at screen 1 - px(%u), graph 1 left top Left reverse\n",
                       BOTTOM, right - 8);
    append_plot(chart, narrow, script);
    return figure;
}
