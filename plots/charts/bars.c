#include "plots/charts/charts.h"

#include <math.h>
#include <string.h>

/* Pixels. */
#define WIDTH 1000
#define ROW 19
#define TOP 62
#define TOP_PLAIN 42 /* without a subtitle */
#define LEFT 190
#define RIGHT 40
#define CHARACTER 6.8
#define MARKER 18
/* Rows that stay empty around a heading. */
#define HEADING 1.15

struct _RpBarChart {
    RpFigureStyle style;
    char *name;
    char *title;
    char *subtitle;
    char *axis;
    char *hatched_title;
    char *marker_title;
    guint decimals;
    guint n_parts;
    char *part_titles[RP_BAR_MAX_PARTS];
    RpColour part_colours[RP_BAR_MAX_PARTS];
    GPtrArray *rows; /* RpBarRow */
};

static void
free_row(gpointer data)
{
    RpBarRow *row = data;

    g_free((gpointer)row->group);
    g_free((gpointer)row->label);
    g_free((gpointer)row->text);
    g_free(row);
}

RpBarChart *
rp_bar_chart_new(const char *name, const char *title, const char *axis, guint decimals,
                 const RpBarPart *parts, guint n_parts)
{
    g_return_val_if_fail(n_parts >= 1 && n_parts <= RP_BAR_MAX_PARTS, NULL);
    RpBarChart *chart = g_new0(RpBarChart, 1);

    chart->name = g_strdup(name);
    chart->title = g_strdup(title);
    chart->axis = g_strdup(axis);
    chart->decimals = decimals;
    chart->n_parts = n_parts;
    for (guint i = 0; i < n_parts; i++) {
        chart->part_titles[i] = g_strdup(parts[i].title);
        chart->part_colours[i] = parts[i].colour;
    }
    chart->rows = g_ptr_array_new_with_free_func(free_row);
    return chart;
}

void
rp_bar_chart_free(RpBarChart *chart)
{
    if (chart == NULL)
        return;
    g_free(chart->name);
    g_free(chart->title);
    g_free(chart->subtitle);
    g_free(chart->axis);
    g_free(chart->hatched_title);
    g_free(chart->marker_title);
    for (guint i = 0; i < chart->n_parts; i++)
        g_free(chart->part_titles[i]);
    g_ptr_array_unref(chart->rows);
    g_free(chart);
}

static void
set_string(char **string, const char *value)
{
    g_free(*string);
    *string = g_strdup(value);
}

void
rp_bar_chart_set_subtitle(RpBarChart *chart, const char *subtitle)
{
    set_string(&chart->subtitle, subtitle);
}

void
rp_bar_chart_set_style(RpBarChart *chart, const RpFigureStyle *style)
{
    chart->style = *style;
}

void
rp_bar_chart_set_marker_title(RpBarChart *chart, const char *title)
{
    set_string(&chart->marker_title, title);
}

void
rp_bar_chart_set_hatched_title(RpBarChart *chart, const char *title)
{
    set_string(&chart->hatched_title, title);
}

void
rp_bar_chart_add(RpBarChart *chart, const RpBarRow *source)
{
    RpBarRow *row = g_memdup2(source, sizeof *source);

    row->group = g_strdup(source->group);
    row->label = g_strdup(source->label);
    row->text = g_strdup(source->text);
    row->colour = source->colour != 0 ? source->colour : chart->part_colours[0];
    g_ptr_array_add(chart->rows, row);
}

static double
row_total(const RpBarChart *chart, const RpBarRow *row)
{
    double total = 0;

    for (guint i = 0; i < chart->n_parts; i++)
        total += row->values[i];
    return total;
}

/* Columns of the data file: the parts begin at the fourth. */
enum { COLUMN_Y = 1, COLUMN_LABEL, COLUMN_COLOUR, COLUMN_FIRST_PART };

/* Where the text behind a bar begins. */
static double
row_end(const RpBarChart *chart, const RpBarRow *row)
{
    return fmax(row_total(chart, row), isfinite(row->marker) ? row->marker : 0);
}

/* Returns: width of the text behind it, pixels. */
static double
append_row(const RpBarChart *chart, GString *data, const RpBarRow *row, double y, gboolean narrow)
{
    double total = row_total(chart, row);
    g_autofree char *label = rp_gnuplot_quote_datum(row->label);
    g_autofree char *text = NULL;
    g_autoptr(GString) length = g_string_new(NULL);

    rp_text_append(length, "%.*f", (int)chart->decimals, total);
    if (row->text != NULL) {
        g_string_assign(length, row->text);
        if (narrow)
            g_string_truncate(length, strcspn(length->str, ";("));
    }
    text = rp_gnuplot_quote_datum(g_strchomp(length->str));
    rp_text_append(data, "%.2f %s %u", y, label, row->colour);
    for (guint i = 0; i < chart->n_parts; i++)
        rp_text_append(data, " %.6g", row->values[i]);
    rp_text_append(data, " %.6g %.6g", total, row->hatched);
    if (isfinite(row->marker))
        rp_text_append(data, " %.6g", row->marker);
    else
        g_string_append(data, " NaN");
    rp_text_append(data, " %.6g %s\n", row_end(chart, row), text);
    return (double)g_utf8_strlen(text, -1) * CHARACTER + MARKER;
}

static guint
plot_width(const RpBarChart *chart)
{
    return rp_figure_wide(&chart->style, WIDTH) - LEFT - RIGHT;
}

/* Data and headings; @axis: length of the axis. Returns: the last row's y. */
static double
append_rows(const RpBarChart *chart, RpFigure *figure, double *axis)
{
    double plot = plot_width(chart);
    GString *data = rp_figure_data(figure);
    const char *group = NULL;
    double y = -1;

    g_string_append(data, "# y label colour(decimal RRGGBB)");
    for (guint i = 0; i < chart->n_parts; i++)
        rp_text_append(data, " %s",
                       chart->part_titles[i] != NULL ? chart->part_titles[i] : "value");
    rp_text_append(data, " total hatched marker text_at text\n# %s\n", chart->axis);
    for (guint i = 0; i < chart->rows->len; i++) {
        const RpBarRow *row = g_ptr_array_index(chart->rows, i);

        if (row->group != NULL && (group == NULL || strcmp(row->group, group) != 0)) {
            g_autofree char *heading = rp_gnuplot_quote(row->group);

            group = row->group;
            y += HEADING;
            rp_text_append(rp_figure_script(figure),
                           "set label %s at %s, first %.2f left offset 0.4,0 font %s\n", heading,
                           rp_figure_heading_left(figure), y,
                           rp_figure_heading_font(figure, row->group));
            rp_text_append(data, "# %s\n", group);
        }
        y += 1;
        double text = append_row(chart, data, row, y, rp_figure_is_narrow(figure));
        /* bar and text together fill the width */
        *axis = fmax(*axis, row_end(chart, row) * plot / fmax(plot - text, plot / 4));
    }
    return y;
}

/* Whether a bar has the part: the legend explains only parts that are drawn. */
static gboolean
has_part(const RpBarChart *chart, guint part)
{
    for (guint i = 0; i < chart->rows->len; i++)
        if (((const RpBarRow *)g_ptr_array_index(chart->rows, i))->values[part] > 0)
            return TRUE;
    return FALSE;
}

static gboolean
has_hatched(const RpBarChart *chart)
{
    for (guint i = 0; chart->hatched_title != NULL && i < chart->rows->len; i++)
        if (((const RpBarRow *)g_ptr_array_index(chart->rows, i))->hatched > 0)
            return TRUE;
    return FALSE;
}

static gboolean
has_marker(const RpBarChart *chart)
{
    for (guint i = 0; chart->marker_title != NULL && i < chart->rows->len; i++)
        if (isfinite(((const RpBarRow *)g_ptr_array_index(chart->rows, i))->marker))
            return TRUE;
    return FALSE;
}

static void
append_stack(const RpBarChart *chart, GString *script)
{
    for (guint i = 0; i < chart->n_parts; i++) {
        g_autoptr(GString) low = g_string_new("0");
        g_autofree char *title =
            rp_gnuplot_quote(chart->part_titles[i] != NULL ? chart->part_titles[i] : "");

        for (guint j = 0; j < i; j++)
            rp_text_append(low, "+$%u", COLUMN_FIRST_PART + j);
        rp_text_append(script,
                       "  DATA using (%s):1:(%s):(%s+$%u):($1-0.39):($1+0.39)%s with boxxyerror "
                       "fillstyle solid noborder linecolor rgb ",
                       low->str, low->str, low->str, COLUMN_FIRST_PART + i,
                       chart->n_parts == 1 ? ":3" : "");
        if (chart->n_parts == 1)
            g_string_append(script, "variable");
        else
            rp_text_append(script, "'#%06x'", chart->part_colours[i]);
        if (chart->part_titles[i] != NULL && has_part(chart, i))
            rp_text_append(script, " title %s", title);
        g_string_append(script, ", \\\n");
    }
}

static void
append_plot(const RpBarChart *chart, RpFigure *figure)
{
    GString *script = rp_figure_script(figure);
    guint total = COLUMN_FIRST_PART + chart->n_parts;

    g_string_append(script, "plot \\\n");
    append_stack(chart, script);
    if (has_hatched(chart)) {
        g_autofree char *title = rp_gnuplot_quote(chart->hatched_title);

        rp_text_append(script,
                       "  DATA using ($%u):1:($%u-$%u):($%u):($1-0.39):($1+0.39) with boxxyerror "
                       "fillstyle transparent pattern 4 noborder linecolor rgb '#000000' title %s, "
                       "\\\n",
                       total, total, total + 1, total, title);
    }
    if (has_marker(chart)) {
        g_autofree char *title = rp_gnuplot_quote(chart->marker_title);

        rp_text_append(
            script,
            "  DATA using ($%u):1 with points pointtype 13 pointsize 1.5*dot linecolor rgb "
            "'#ffffff' notitle, \\\n"
            "  DATA using ($%u):1 with points pointtype 12 pointsize 1.3*dot linewidth 1.4 "
            "linecolor rgb '#000000' title %s, \\\n",
            total + 2, total + 2, title);
    }
    rp_text_append(script,
                   "  DATA using %u:1:%u with labels left offset %s,0 font font_small notitle, \\\n"
                   "  DATA using (0):1:ytic(%u) with points pointtype -1 notitle\n",
                   total + 3, total + 4, has_marker(chart) ? "1.1" : "0.5", COLUMN_LABEL);
}

static void
append_legend(const RpBarChart *chart, RpFigure *figure)
{
    const char *titles[RP_BAR_MAX_PARTS + 2];
    guint n = 0;

    for (guint i = 0; i < chart->n_parts; i++)
        titles[n++] = has_part(chart, i) ? chart->part_titles[i] : NULL;
    titles[n++] = has_hatched(chart) ? chart->hatched_title : NULL;
    titles[n++] = has_marker(chart) ? chart->marker_title : NULL;
    rp_figure_add_x_title(figure, chart->axis,
                          rp_figure_add_legend_below(figure, titles, n, plot_width(chart)));
}

RpFigure *
rp_bar_chart_figure(const RpBarChart *chart)
{
    /* how many rows there will be decides the height, which a figure is made with */
    guint groups = 0;
    const char *group = NULL;
    for (guint i = 0; i < chart->rows->len; i++) {
        const RpBarRow *row = g_ptr_array_index(chart->rows, i);

        groups += row->group != NULL && (group == NULL || strcmp(row->group, group) != 0) ? 1 : 0;
        group = row->group != NULL ? row->group : group;
    }
    double rows = chart->rows->len + HEADING * groups + 0.4;
    guint top = chart->subtitle != NULL ? TOP : TOP_PLAIN;
    guint height = (guint)(top + ROW * rows);
    RpFigure *figure =
        rp_figure_new_styled(chart->name, chart->title, &chart->style, WIDTH, height);
    GString *script = rp_figure_script(figure);
    double axis = 0;

    rp_figure_add_titles(figure, chart->title, chart->subtitle);
    double last = append_rows(chart, figure, &axis);
    rp_text_append(script,
                   "set lmargin at screen px(%d)\nset rmargin at screen 1 - px(%d)\n"
                   "set tmargin at screen 1 - py(%u)\n"
                   "set yrange [%.2f:-0.7]\nset xrange [0:%.6g]\n"
                   "set border 1\nset ytics scale 0\nunset grid\n"
                   "set grid xtics back linetype 1 linewidth 0.5 linecolor rgb '#dddddd'\n",
                   LEFT, RIGHT, top, last + 0.7, axis > 0 ? axis : 1);
    rp_figure_add_narrow_tics(figure, plot_width(chart), axis > 0 ? axis : 1);
    append_legend(chart, figure);
    append_plot(chart, figure);
    return figure;
}

RpBarChart *
rp_bubble_chart_new(const char *name, const char *title)
{
    static const RpBarPart parts[] = {
        {"fill", RP_COLOUR_SKY},     {"switch", RP_COLOUR_ORANGE},     {"drain", RP_COLOUR_BLUE},
        {"intra", RP_COLOUR_PURPLE}, {"steady state", RP_COLOUR_GREY},
    };
    RpBarChart *chart =
        rp_bar_chart_new(name, title, "bubble ratio, % of GPU time", 1, parts, G_N_ELEMENTS(parts));

    set_string(&chart->hatched_title, "exposed communication");
    return chart;
}

void
rp_bubble_chart_add(RpBarChart *chart, const char *group, const char *label, const RpBubble *bubble,
                    double published)
{
    g_autofree char *text = rp_text_percent(bubble->ratio);
    const RpBarRow row = {
        .group = group,
        .label = label,
        .values = {100 * bubble->fill, 100 * bubble->switch_, 100 * bubble->drain,
                   100 * bubble->intra},
        .hatched = 100 * bubble->comm_exposed,
        .marker = published,
        .text = text,
    };

    rp_bar_chart_add(chart, &row);
}

void
rp_bubble_chart_add_steady(RpBarChart *chart, const char *group, const char *label,
                           const RpSteady *steady, double published)
{
    g_autofree char *text = rp_text_percent(steady->ratio);
    const RpBarRow row = {
        .group = group,
        .label = label,
        .values = {0, 0, 0, 0, 100 * steady->ratio},
        .marker = published,
        .text = text,
    };

    rp_bar_chart_add(chart, &row);
}
