#include "plots/charts/charts.h"

#include "core/base/units.h"
#include "plots/figure.h"

/* Pixels. */
#define WIDTH 1000
#define PANEL 210
#define GAP 62
#define TOP 36

/* The layers that a slot holds: "e+7", "12", "2+h" blocks. */
static char *
slot_label(const RpProfile *profile, RpInterval stage)
{
    guint blocks = 0;
    gboolean embedding = FALSE;
    gboolean head = FALSE;

    for (guint l = stage.first; l < stage.first + stage.count; l++) {
        blocks += profile->layers[l].kind == RP_LAYER_BLOCK ? 1 : 0;
        embedding = embedding || profile->layers[l].kind == RP_LAYER_EMBEDDING;
        head = head || profile->layers[l].kind == RP_LAYER_HEAD;
    }
    if (head && blocks == 0)
        return g_strdup("h");
    return g_strdup_printf("%s%u%s", embedding ? "e+" : "", blocks, head ? "+h" : "");
}

static RpTaskKind
slot_kind(const RpPartition *partition, guint slot)
{
    if (!partition->dispatched)
        return RP_TASK_OVERLAP;
    if (slot < partition->n_forward)
        return RP_TASK_FORWARD;
    return slot == partition->n_forward ? RP_TASK_FUSED : RP_TASK_BACKWARD;
}

static RpBalance
append_panel_data(GString *data, const RpProfile *profile, const RpBalancePanel *panel)
{
    g_autoptr(GArray) times = NULL;
    RpBalance balance = rp_partition_balance(profile, panel->partition, &times);

    rp_text_append(data, "# %s\n# slot ms blocks colour(decimal RRGGBB)\n", panel->title);
    for (guint i = 0; i < times->len; i++) {
        RpInterval stage = i < panel->partition->n_forward
                               ? panel->partition->forward[i]
                               : panel->partition->backward[i - panel->partition->n_forward];
        g_autofree char *label = slot_label(profile, stage);

        rp_text_append(data, "%u %.6f \"%s\" %u\n", i,
                       rp_ms_from_ns(g_array_index(times, gint64, i)), label,
                       rp_task_kind(slot_kind(panel->partition, i))->colour);
    }
    g_string_append(data, "\n\n");
    return balance;
}

static void
append_panel(RpFigure *figure, const RpBalancePanel *panel, const RpBalance *balance, guint index,
             double ceiling_ms)
{
    GString *script = rp_figure_script(figure);
    guint top = TOP + 26 + index * (PANEL + GAP);
    g_autoptr(GString) title = g_string_new(panel->title);
    double max_ms = rp_ms_from_ns(balance->max_ns);

    rp_text_append(title, ": %u slots, t_max %.1f ms, mean / t_max %.3f", balance->n_stages, max_ms,
                   balance->balance);
    g_autofree char *quoted = rp_gnuplot_quote(title->str);
    rp_text_append(script,
                   "set label 1 %s at %s, graph 1 left offset 0,0.8 font %s\n"
                   "set tmargin at screen 1 - py(%u)\nset bmargin at screen 1 - py(%u)\n"
                   "set xrange [-0.7:%.1f]\nset yrange [0:%.6g]\n"
                   "plot DATA index %u using 1:2:4 with boxes linecolor rgb variable, \\\n"
                   "  %.6f with lines linewidth 1.2 dashtype (5,4) linecolor rgb '#222222', \\\n"
                   "  DATA index %u using 1:2:xtic(3) with points pointtype -1\n",
                   quoted, rp_figure_heading_left(figure),
                   rp_figure_heading_font(figure, title->str), top, top + PANEL,
                   balance->n_stages - 0.3, ceiling_ms, index, max_ms, index);
}

RpFigure *
rp_balance_figure(const char *name, const char *title, const RpProfile *profile,
                  const RpBalancePanel *panels, guint n_panels, const RpFigureStyle *style)
{
    guint height = TOP + 26 + n_panels * PANEL + (n_panels - 1) * GAP;
    RpFigure *figure = rp_figure_new_styled(name, title, style, WIDTH, height);
    GString *script = rp_figure_script(figure);
    g_autofree RpBalance *balances = g_new(RpBalance, n_panels);
    double highest_ms = 0;
    gboolean dispatched = FALSE;
    static const char *const legend[] = {"forward", "fused", "backward", "t_max"};

    for (guint i = 0; i < n_panels; i++) {
        balances[i] = append_panel_data(rp_figure_data(figure), profile, &panels[i]);
        highest_ms = MAX(highest_ms, rp_ms_from_ns(balances[i].max_ns));
        dispatched = dispatched || panels[i].partition->dispatched;
    }
    g_string_append(script, "set multiplot\n");
    rp_figure_add_titles(figure, title, NULL);
    guint bottom = rp_figure_add_legend_below(figure, legend, G_N_ELEMENTS(legend),
                                              rp_figure_width(figure) - 110);
    rp_text_append(script,
                   "set lmargin at screen px(80)\nset rmargin at screen 1 - px(30)\n"
                   "set boxwidth 0.82\nset xtics scale 0 font font_small\nunset grid\n"
                   "set grid ytics back linetype 1 linewidth 0.5 linecolor rgb '#dddddd'\n"
                   /* title and legend on a plot of their own: those of the panels come and go */
                   "set tmargin at screen 1 - py(%d)\nset bmargin at screen 1 - py(%d)\n"
                   "set border 0\nunset tics\nset xrange [0:1]\nset yrange [0:1]\nplot NaN, ",
                   TOP, TOP + 1);
    if (dispatched)
        rp_text_append(script,
                       "keyentry with boxes linecolor rgb '#%06x' title 'forward', "
                       "keyentry with boxes linecolor rgb '#%06x' title 'fused', "
                       "keyentry with boxes linecolor rgb '#%06x' title 'backward', ",
                       rp_task_kind(RP_TASK_FORWARD)->colour, rp_task_kind(RP_TASK_FUSED)->colour,
                       rp_task_kind(RP_TASK_BACKWARD)->colour);
    rp_text_append(script,
                   "keyentry with lines linewidth 1.2 dashtype (5,4) linecolor rgb '#222222' title "
                   "'t_max'\n"
                   "set key off\nset border 3\nset xtics nomirror scale 0\nset ytics nomirror out\n"
                   "set ylabel 'time of a slot, ms'\n");
    g_string_append(script, "unset label\n");
    for (guint i = 0; i < n_panels; i++) {
        if (i + 1 == n_panels)
            rp_figure_add_x_title(figure,
                                  "slots in order of execution: blocks of each (e = embedding, h = "
                                  "head)",
                                  bottom);
        append_panel(figure, &panels[i], &balances[i], i, highest_ms * 1.1);
    }
    g_string_append(script, "unset multiplot\n");
    return figure;
}
