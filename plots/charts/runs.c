#include "plots/charts/charts.h"

#include <math.h>
#include <stddef.h>

#include "plots/figure.h"

/* Pixels. */
#define WIDTH 880
#define LEFT 90
#define RIGHT 30
#define TOP 64
#define PANEL 150
#define GAP 44

#define MEAN_SHARE 50
/* More in a row of the picture cannot be told apart. */
#define MOST_COLUMNS 400
/* Values that differ by less, as a rate that has hardly decayed, are printed alike. */
#define SAME 1e-6

typedef struct {
    const char *title;
    gsize offset; /* in RpRunPoint */
    gboolean smooth;
    gboolean points;  /* few of them */
    gboolean spreads; /* over decades, if requested */
    double scale;
} Panel;

static const Panel panels[] = {
    {"loss of the target tokens", offsetof(RpRunPoint, loss), .smooth = TRUE, .spreads = TRUE,
     .scale = 1},
    {"validation loss", offsetof(RpRunPoint, eval_loss), .points = TRUE, .spreads = TRUE,
     .scale = 1},
    {"learning rate", offsetof(RpRunPoint, learning_rate), .scale = 1},
    {"norm of the gradient, before clipping", offsetof(RpRunPoint, grad_norm), .spreads = TRUE,
     .scale = 1},
    {"tokens/s", offsetof(RpRunPoint, tokens_per_s), .scale = 1},
    {"bubble ratio, %", offsetof(RpRunPoint, bubble_ratio), .scale = 100},
};

static double
value_of(const RpRunPoint *point, const Panel *panel)
{
    return *(const double *)(const void *)((const char *)point + panel->offset) * panel->scale;
}

static gboolean
has(const RpRunCurve *run, const Panel *panel)
{
    for (guint i = 0; i < run->n; i++)
        if (isfinite(value_of(&run->points[i], panel)))
            return TRUE;
    return FALSE;
}

static gboolean
any_has(const RpRunCurve *runs, guint n, const Panel *panel)
{
    for (guint r = 0; r < n; r++)
        if (has(&runs[r], panel))
            return TRUE;
    return FALSE;
}

/* Its finite values, in their order. */
static GArray *
values_of(const RpRunCurve *run, const Panel *panel)
{
    GArray *values = g_array_new(FALSE, FALSE, 2 * sizeof(double));

    for (guint i = 0; i < run->n; i++) {
        const double value[] = {run->points[i].step, value_of(&run->points[i], panel)};

        if (isfinite(value[1]))
            g_array_append_vals(values, value, 1);
    }
    return values;
}

/* Over values @i - @reach .. @i + @reach, fewer on both sides near an end. @sums: sums of the
 * values before */
static double
mean_around(const double *sums, guint n, guint i, guint reach)
{
    const guint side = MIN(reach, MIN(i, n - 1 - i));

    return (sums[i + side + 1] - sums[i - side]) / (2 * side + 1);
}

/* Picks the least and the greatest of values @from to @end - 1. @first: (out): the earlier of them. Returns: the
 * later */
static guint
pick(const double *value, guint from, guint end, guint *first)
{
    guint least = from, greatest = from;

    for (guint i = from + 1; i < end; i++) {
        least = value[2 * i + 1] < value[2 * least + 1] ? i : least;
        greatest = value[2 * i + 1] > value[2 * greatest + 1] ? i : greatest;
    }
    *first = MIN(least, greatest);
    return MAX(least, greatest);
}

/* A block of a run's values, behind their step: as they are, and their mean. */
static void
append_block(GString *data, const RpRunCurve *run, const Panel *panel)
{
    g_autoptr(GArray) values = values_of(run, panel);
    const double *value = (const double *)(void *)values->data;
    const guint n = values->len, reach = panel->smooth ? n / MEAN_SHARE / 2 : 0;
    const guint width = MAX(1, (n + MOST_COLUMNS - 1) / MOST_COLUMNS);
    g_autofree double *sums = g_new0(double, (gsize)n + 1);

    for (guint i = 0; i < n; i++)
        sums[i + 1] = sums[i] + value[2 * i + 1];
    rp_text_append(data, "# %s of %s\n# step; value; mean of %u\n", panel->title, run->title,
                   2 * reach + 1);
    for (guint from = 0; from < n; from += width) {
        guint first, last = pick(value, from, MIN(n, from + width), &first);

        if (from + width >= n)
            last = n - 1;
        for (guint i = first; i <= last; i += MAX(1, last - first))
            rp_text_append(data, "%.12g %.9g %.9g\n", value[2 * i], value[2 * i + 1],
                           mean_around(sums, n, i, reach));
    }
    if (n == 0)
        g_string_append(data, "NaN NaN NaN\n");
    g_string_append(data, "\n\n");
}

/* @logarithmic: only values above 0 count */
static void
find_range(const Panel *panel, const RpRunCurve *runs, guint n, gboolean logarithmic, double *least,
           double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (guint r = 0; r < n; r++) {
        g_autoptr(GArray) values = values_of(&runs[r], panel);

        for (guint i = 0; i < values->len; i++) {
            const double value = ((const double *)(const void *)values->data)[2 * i + 1];

            if (logarithmic && !(value > 0))
                continue;
            *least = fmin(*least, value);
            *most = fmax(*most, value);
        }
    }
}

/* Ticks at 1, 2 and 5 times powers of ten, and more of them within a decade, where gnuplot puts none.
 * Returns: whether the axis is logarithmic */
static gboolean
append_decades(GString *script, const Panel *panel, const RpRunCurve *runs, guint n)
{
    static const double sparse[] = {1, 2, 5}, dense[] = {1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8};
    double least, most;
    const char *comma = "";

    find_range(panel, runs, n, TRUE, &least, &most);
    if (!(2 * least < most))
        return FALSE; /* a linear axis shows it as well */
    const gboolean few = most / least >= 10;
    const double *factors = few ? sparse : dense;
    const guint n_factors = few ? G_N_ELEMENTS(sparse) : G_N_ELEMENTS(dense);
    const int first = (int)floor(log10(least)), last = (int)ceil(log10(most));
    const int step = MAX(1, (last - first) / 4); /* decades between ticks */

    g_string_append(script, "set logscale y\nset ytics (");
    for (int decade = first; decade <= last; decade += step)
        for (guint f = 0; f < (last - first > 3 ? 1 : n_factors); f++) {
            rp_text_append(script, "%s%.6g", comma, factors[f] * pow(10, decade));
            comma = ", ";
        }
    rp_text_append(script, ")\nset yrange [%.9g:%.9g]\n", least / 1.05, most * 1.05);
    return TRUE;
}

/* Values that are all the same, or nearly: a range around them, which gnuplot would complain of instead. Returns:
 * whether they are */
static gboolean
append_flat_range(GString *script, const Panel *panel, const RpRunCurve *runs, guint n)
{
    double least, most;

    find_range(panel, runs, n, FALSE, &least, &most);
    if (most - least > SAME * fabs(least))
        return FALSE;
    const double margin = least != 0 ? fabs(least) / 10 : 1;

    rp_text_append(script, "set yrange [%.12g:%.12g]\n", least - margin, least + margin);
    return TRUE;
}

static void
append_panel(RpFigure *figure, const Panel *panel, const RpRunCurve *runs, guint n, guint place,
             gboolean last, gboolean logarithmic)
{
    GString *script = rp_figure_script(figure);
    const guint top = TOP + 26 + place * (PANEL + GAP);
    g_autofree char *quoted = rp_gnuplot_quote(panel->title);
    const gboolean decades =
        logarithmic && panel->spreads && append_decades(script, panel, runs, n);
    const gboolean flat = !decades && append_flat_range(script, panel, runs, n);

    rp_text_append(script,
                   "set label 1 %s at graph 0, graph 1 left offset 0,0.8 font font_bold\n"
                   "set tmargin at screen 1 - py(%u)\nset bmargin at screen 1 - py(%u)\n"
                   "set format x '%s'\nplot ",
                   quoted, top, top + PANEL, last ? "%g" : "");
    for (guint r = 0; r < n; r++) {
        const guint index = place * n + r;
        const RpColour colour = rp_colour_of_series(r);

        append_block(rp_figure_data(figure), &runs[r], panel);
        if (panel->smooth && n == 1)
            rp_text_append(script,
                           "DATA index %u using 1:2 with lines linewidth 0.8 linecolor rgb "
                           "'#%06x', ",
                           index, rp_colour_lighten(colour, 0.6));
        rp_text_append(
            script, "%sDATA index %u using 1:3 with %s linewidth 1.6 linecolor rgb '#%06x'",
            r > 0 ? ", " : "", index, panel->points ? "linespoints pointtype 7" : "lines", colour);
    }
    g_string_append(
        script,
        decades ? "\nunset logscale y\nset ytics autofreq nomirror out\nset yrange [*:*]" : "");
    g_string_append(script, flat ? "\nset yrange [*:*]\nunset label\n" : "\nunset label\n");
}

/* The names of runs, on a plot of their own. */
static void
append_legend(GString *script, const RpRunCurve *runs, guint n)
{
    rp_text_append(script,
                   "set tmargin at screen 1 - py(%d)\nset bmargin at screen 1 - py(%d)\n"
                   "set border 0\nunset tics\nset xrange [0:1]\nset yrange [0:1]\n"
                   "set key at graph 1, screen 1 - py(30) right top horizontal\nplot NaN",
                   TOP, TOP + 1);
    for (guint r = 0; r < n; r++) {
        g_autofree char *quoted = rp_gnuplot_quote(runs[r].title);

        rp_text_append(script, ", keyentry with lines linewidth 2 linecolor rgb '#%06x' title %s",
                       rp_colour_of_series(r), quoted);
    }
    g_string_append(script, "\nset key off\nunset label\nset border 3\nset xtics nomirror out\n"
                            "set ytics nomirror out\nset yrange [*:*]\n");
}

static void
append_steps(GString *script, const RpRunCurve *runs, guint n)
{
    double first = INFINITY, last = -INFINITY;

    for (guint r = 0; r < n; r++) {
        if (runs[r].n == 0)
            continue;
        first = fmin(first, runs[r].points[0].step);
        last = fmax(last, runs[r].points[runs[r].n - 1].step);
    }
    rp_text_append(script, "set xrange [%.12g:%.12g]\n", first < last ? first : first - 1,
                   first < last ? last : last + 1);
}

RpFigure *
rp_runs_figure(const char *name, const char *title, const RpRunCurve *runs, guint n,
               gboolean logarithmic, const RpFigureStyle *style, GError **error)
{
    guint n_panels = 0, place = 0;

    for (guint p = 0; p < G_N_ELEMENTS(panels); p++)
        n_panels += any_has(runs, n, &panels[p]);
    if (n_panels == 0)
        return rp_null(rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA,
                               "no data: expected steps with numbers, found none"));
    RpFigure *figure = rp_figure_new_styled(
        name, title, style, WIDTH, TOP + 26 + n_panels * PANEL + (n_panels - 1) * GAP + 56);
    GString *script = rp_figure_script(figure);

    g_string_append(script, "set multiplot\n");
    rp_figure_add_titles(figure, title, NULL);
    rp_text_append(script, "set lmargin at screen px(%d)\nset rmargin at screen 1 - px(%d)\n", LEFT,
                   RIGHT);
    append_legend(script, runs, n);
    append_steps(script, runs, n);
    for (guint p = 0; p < G_N_ELEMENTS(panels); p++) {
        if (!any_has(runs, n, &panels[p]))
            continue;
        if (place + 1 == n_panels)
            rp_figure_add_x_title(figure, "optimizer step", 60);
        append_panel(figure, &panels[p], runs, n, place, place + 1 == n_panels, logarithmic);
        place++;
    }
    g_string_append(script, "unset multiplot\n");
    rp_figure_set_caption(figure, "Numbers of every step and evaluation: measured.");
    return figure;
}
