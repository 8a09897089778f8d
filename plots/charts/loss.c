#include "plots/charts/charts.h"

#include <math.h>

#include "plots/figure.h"

/* Pixels. */
#define WIDTH 880
#define HEIGHT 400
#define LEFT 80
#define RIGHT 95
#define TOP 70

/* More points than this in a row of the picture cannot be distinguished. */
#define MAX_COLUMNS 400
#define MEAN_SHARE 50

/* Sums of finite losses before each step: sum[i] is over points 0 .. i - 1. */
typedef struct {
    double *sum;
    guint *count;
} Sums;

static Sums
sums_of(const RpLossPoint *points, guint n)
{
    Sums sums = {g_new0(double, n + 1), g_new0(guint, n + 1)};

    for (guint i = 0; i < n; i++) {
        gboolean finite = isfinite(points[i].loss) != 0;

        sums.sum[i + 1] = sums.sum[i] + (finite ? points[i].loss : 0);
        sums.count[i + 1] = sums.count[i] + (finite ? 1 : 0);
    }
    return sums;
}

/* Over steps @i - @reach .. @i + @reach, fewer on both sides near an end. NAN: all gaps. */
static double
mean_around(const Sums *sums, guint n, guint i, guint reach)
{
    guint side = MIN(reach, MIN(i, n - 1 - i));
    guint from = i - side, end = i + side + 1;
    guint count = sums->count[end] - sums->count[from];

    return count > 0 ? (sums->sum[end] - sums->sum[from]) / count : NAN;
}

static void
append_point(GString *data, double x, double y)
{
    if (isfinite(y))
        rp_text_append(data, "%.12g %.9g\n", x, y);
    else
        rp_text_append(data, "%.12g NaN\n", x);
}

/* Points @from .. @end - 1 as at most two: the least and the greatest, in their order. */
static void
append_column(GString *data, const RpLossPoint *points, guint from, guint end)
{
    guint least = from, greatest = from;

    for (guint i = from + 1; i < end; i++) {
        if (points[i].loss < points[least].loss || !isfinite(points[least].loss))
            least = i;
        if (points[i].loss > points[greatest].loss || !isfinite(points[greatest].loss))
            greatest = i;
    }
    append_point(data, points[MIN(least, greatest)].step, points[MIN(least, greatest)].loss);
    if (least != greatest)
        append_point(data, points[MAX(least, greatest)].step, points[MAX(least, greatest)].loss);
}

/* Three blocks: the losses, their mean, the learning rate. @reach: the mean's */
static void
append_data(GString *data, const RpLossPoint *points, guint n, guint reach)
{
    const guint width = (n + MAX_COLUMNS - 1) / MAX_COLUMNS;
    Sums sums = sums_of(points, n);

    g_string_append(data, "# loss\n# step; loss\n");
    for (guint i = 0; i < n; i += width)
        append_column(data, points, i, MIN(n, i + width));
    rp_text_append(data, "\n\n# mean of %u steps\n# step; loss\n", 2 * reach + 1);
    for (guint i = 0; i < n; i += width)
        append_point(data, points[i].step, mean_around(&sums, n, i, reach));
    if ((n - 1) % width != 0)
        append_point(data, points[n - 1].step, mean_around(&sums, n, n - 1, reach));
    g_string_append(data, "\n\n# learning rate\n# step; learning rate\n");
    for (guint i = 0; i < n; i += width)
        append_point(data, points[i].step, points[i].learning_rate);
    if ((n - 1) % width != 0)
        append_point(data, points[n - 1].step, points[n - 1].learning_rate);
    g_free(sums.sum);
    g_free(sums.count);
}

/* A fourth block. */
static void
append_evaluations(GString *data, const RpLossPoint *evaluations, guint n)
{
    g_string_append(data, "\n\n# validation loss\n# step; loss\n");
    for (guint i = 0; i < n; i++)
        append_point(data, evaluations[i].step, evaluations[i].loss);
}

/* @first: step of the first evaluation. The axis begins at 0 if much was learned, else at the least
 * value, or the curve would be flat. */
static void
append_range(GString *script, const RpLossPoint *points, guint n, double first)
{
    double least = INFINITY, greatest = -INFINITY;

    for (guint i = 0; i < n; i++) {
        if (!isfinite(points[i].loss))
            continue;
        least = fmin(least, points[i].loss);
        greatest = fmax(greatest, points[i].loss);
    }
    if (least >= 0 && (least < greatest / 2 || least == greatest))
        g_string_append(script, "set yrange [0:*]\n");
    rp_text_append(script, "set xrange [%.12g:%.12g]\n", n > 1 ? fmin(points[0].step, first) : 0,
                   n > 1 ? points[n - 1].step : 2 * points[0].step);
}

static void
append_plot(GString *script, gboolean one, guint reach, gboolean evaluated)
{
    rp_text_append(script,
                   "plot \\\n  DATA index 2 using 1:2 axes x1y2 with %s linewidth 1.2 dashtype "
                   "(6,4) linecolor rgb '#%06x' title 'learning rate', \\\n",
                   one ? "points pointtype 1" : "lines", RP_COLOUR_GREY);
    rp_text_append(script,
                   "  DATA index 0 using 1:2 with %s linewidth 1 linecolor rgb '#%06x' "
                   "title 'loss of a step'",
                   one ? "points pointtype 7" : "lines",
                   rp_colour_lighten(RP_COLOUR_BLUE, one ? 0 : 0.55));
    if (reach > 0)
        rp_text_append(script,
                       ", \\\n  DATA index 1 using 1:2 with lines linewidth 2.6 linecolor rgb "
                       "'#%06x' title 'mean of %u steps'",
                       RP_COLOUR_BLUE, 2 * reach + 1);
    if (evaluated)
        rp_text_append(script,
                       ", \\\n  DATA index 3 using 1:2 with linespoints pointtype 7 linewidth 1.2 "
                       "linecolor rgb '#%06x' title 'validation loss'",
                       RP_COLOUR_VERMILLION);
    g_string_append_c(script, '\n');
}

RpFigure *
rp_loss_figure(const char *name, const char *title, const char *subtitle, const RpLossPoint *points,
               guint n, const RpLossPoint *evaluations, guint n_evaluations, GError **error)
{
    static const char *const legend[] = {"loss of a step", "mean of 1000 steps", "learning rate",
                                         "validation loss"};
    guint finite = 0;

    for (guint i = 0; i < n; i++)
        finite += isfinite(points[i].loss) ? 1 : 0;
    if (finite == 0) {
        g_set_error(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DATA,
                    "no data: expected steps with a loss, found %u without", n);
        return NULL;
    }

    const guint reach = n / MEAN_SHARE / 2 > 0 ? n / MEAN_SHARE / 2 : MIN(2, (n - 1) / 4);
    RpFigure *figure = rp_figure_new(name, title, WIDTH, HEIGHT);
    GString *script = rp_figure_script(figure);
    guint bottom =
        rp_figure_add_legend_below(figure, legend, n_evaluations > 0 ? 4 : 3, WIDTH - LEFT - RIGHT);

    append_data(rp_figure_data(figure), points, n, reach);
    if (n_evaluations > 0)
        append_evaluations(rp_figure_data(figure), evaluations, n_evaluations);
    rp_figure_add_titles(figure, title, subtitle);
    rp_figure_add_x_title(figure, "optimizer step", bottom);
    rp_figure_add_y_title(figure, "mean loss of the target tokens (measured)");
    rp_text_append(script,
                   "set label 104 'learning rate' at screen 1 - px(14), graph 0.5 center rotate by "
                   "-90 textcolor rgb '#555555'\n"
                   "set border 11\nset y2tics textcolor rgb '#555555'\nset y2range [0:*]\n"
                   "set format y2 '%%g'\n"
                   "set lmargin at screen px(%d)\nset rmargin at screen 1 - px(%d)\n"
                   "set tmargin at screen 1 - py(%d)\n",
                   LEFT, RIGHT, TOP);
    append_range(script, points, n, n_evaluations > 0 ? evaluations[0].step : points[0].step);
    append_plot(script, n == 1, reach, n_evaluations > 0);
    rp_figure_set_caption(figure, "Loss and learning rate of every step: measured.");
    return figure;
}
