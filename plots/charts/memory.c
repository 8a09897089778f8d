#include "plots/charts/charts.h"

#include <math.h>

#include "core/base/units.h"
#include "core/trace/report.h"
#include "plots/figure.h"

/* Pixels. */
#define WIDTH 1000
#define PANEL 84
#define GAP 20
#define TOP 74
#define BOTTOM 64

static double
gib(guint64 bytes)
{
    return (double)bytes / (double)RP_GIB;
}

/* The part of the trace that is drawn, from 0 on. */
typedef struct {
    gint64 from_ns;
    gint64 end_ns;
    RpTimeUnit unit;
} Window;

static double
window_time(const Window *window, gint64 time_ns)
{
    return rp_ms_from_ns(CLAMP(time_ns, window->from_ns, window->end_ns) - window->from_ns) *
           window->unit.per_ms;
}

/* Returns: the highest step, bytes. */
static guint64
append_curve(GString *data, const RpPlan *plan, const RpTrace *trace, guint32 arena,
             const Window *window)
{
    g_autoptr(GArray) curve = rp_report_memory_curve(plan, trace, arena);
    guint64 bytes = 0;
    guint64 peak = 0;
    guint i = 0;

    rp_text_append(data, "# arena %u%s\n# time_%s GiB\n", arena,
                   arena == rp_plan_gpus(plan) ? " (host)" : "", window->unit.name);
    for (; i < curve->len; i++) {
        const RpMemoryStep *step = &g_array_index(curve, RpMemoryStep, i);

        if (step->time_ns > window->from_ns)
            break;
        bytes = step->bytes;
    }
    peak = bytes;
    rp_text_append(data, "0 %.6f\n", gib(bytes));
    for (; i < curve->len; i++) {
        const RpMemoryStep *step = &g_array_index(curve, RpMemoryStep, i);

        if (step->time_ns > window->end_ns)
            break;
        bytes = step->bytes;
        peak = MAX(peak, bytes);
        rp_text_append(data, "%.6f %.6f\n", window_time(window, step->time_ns), gib(bytes));
    }
    rp_text_append(data, "%.6f %.6f\n\n\n", window_time(window, window->end_ns), gib(bytes));
    return peak;
}

static void
append_panel(GString *script, const RpPlan *plan, guint32 arena, guint64 peak, guint64 gpu_bytes,
             const Window *window)
{
    gboolean host = arena == rp_plan_gpus(plan);
    double size = gib(rp_plan_arena_bytes(plan, arena));
    double limit = host ? 0 : gib(gpu_bytes);
    gboolean near = limit > 0 && size > 0.5 * limit;
    guint top = TOP + arena * (PANEL + GAP);
    double ceiling = 1.12 * fmax(near ? fmax(limit, size) : size, 1e-6);
    g_autofree char *name = host ? g_strdup("host") : g_strdup_printf("GPU %u", arena);

    rp_text_append(script,
                   "set tmargin at screen 1 - py(%u)\nset bmargin at screen 1 - py(%u)\n"
                   "set yrange [0:%.6g]\nset ytics %.6g\n"
                   "set label 1 '%s' at screen px(16), graph 0.5 left font font_bold\n"
                   "set label 2 'arena %.2f GiB' at graph 1, first %.6g left offset 0.6,0 font "
                   "font_small\n"
                   "set label 3 'peak %.2f GiB' at graph 1, first %.6g left offset 0.6,0 font "
                   "font_small textcolor rgb '#%06x'\n",
                   top, top + PANEL, ceiling, ldexp(1, (int)ceil(log2(ceiling / 4))), name, size,
                   size, gib(peak), fmin(gib(peak), size - 0.2 * ceiling),
                   host ? RP_COLOUR_GREEN : RP_COLOUR_BLUE);
    g_string_append(script, "unset label 4\n");
    if (near)
        rp_text_append(
            script,
            "set label 4 'GPU has %.2f GiB' at graph 1, first %.6g left offset 0.6,0 font "
            "font_small\n",
            limit, fmax(limit, size + 0.2 * ceiling));
    if (host)
        rp_text_append(script, "set xlabel 'time, %s'\nset format x '%%.10g'\n", window->unit.name);
    rp_text_append(script,
                   "plot DATA index %u using 1:2 with fillsteps fillstyle solid noborder linecolor "
                   "rgb '#%06x', DATA index %u using 1:2 with steps linewidth 1 linecolor rgb "
                   "'#%06x', %.6f with lines linewidth 1.2 dashtype (5,4) linecolor rgb '#222222'",
                   arena, rp_colour_lighten(host ? RP_COLOUR_GREEN : RP_COLOUR_BLUE, 0.6), arena,
                   host ? RP_COLOUR_GREEN : RP_COLOUR_BLUE, size);
    if (near)
        rp_text_append(script, ", %.6f with lines linewidth 1.2 linecolor rgb '#%06x'", limit,
                       RP_COLOUR_VERMILLION);
    g_string_append_c(script, '\n');
}

RpFigure *
rp_memory_figure(const char *name, const char *title, const RpPlan *plan, const RpTrace *trace,
                 guint64 gpu_bytes, gint64 from_ns, gint64 end_ns, const RpFigureStyle *style)
{
    Window window = {from_ns, end_ns > from_ns ? end_ns : rp_trace_end_ns(trace), {NULL, 0}};
    guint arenas = rp_plan_gpus(plan) + 1;
    RpFigure *figure = rp_figure_new_styled(name, title, style, WIDTH,
                                            TOP + arenas * PANEL + (arenas - 1) * GAP + BOTTOM);
    GString *script = rp_figure_script(figure);

    window.unit = rp_time_unit(window.end_ns - window.from_ns);
    g_string_append(script, "set multiplot\n");
    rp_figure_add_titles(figure, title, "GiB in use, on each device and the host");
    rp_text_append(script,
                   "set lmargin at screen px(110)\nset rmargin at screen 1 - px(130)\n"
                   "set xrange [0:%.6f]\nset format x ''\nset key off\n",
                   window_time(&window, window.end_ns));
    rp_figure_add_narrow_tics(figure, rp_figure_width(figure) - 110 - 130,
                              window_time(&window, window.end_ns));
    for (guint32 arena = 0; arena < arenas; arena++) {
        guint64 peak = append_curve(rp_figure_data(figure), plan, trace, arena, &window);

        append_panel(script, plan, arena, peak, gpu_bytes, &window);
        /* the figure's title once, not over each panel again */
        g_string_append(script, "unset label 100\nunset label 101\n");
    }
    g_string_append(script, "unset multiplot\n");
    return figure;
}

RpFigure *
rp_memory_categories_figure(const char *name, const char *title, const RpPlan *plan,
                            const RpFigureStyle *style)
{
    static const RpColour colours[RP_N_BUFFER_CATEGORIES] = {
        [RP_BUFFER_PARAMETERS] = 0x5a5a5a,           [RP_BUFFER_GRADIENTS] = 0xa6a6a6,
        [RP_BUFFER_ACCUMULATORS] = RP_COLOUR_PURPLE, [RP_BUFFER_ACTIVATIONS] = RP_COLOUR_SKY,
        [RP_BUFFER_STASH] = RP_COLOUR_BLUE,          [RP_BUFFER_WORKSPACE] = RP_COLOUR_ORANGE,
        [RP_BUFFER_STAGING] = RP_COLOUR_YELLOW,      [RP_BUFFER_OPTIMIZER] = RP_COLOUR_GREEN,
    };
    RpBarPart parts[RP_N_BUFFER_CATEGORIES];

    G_STATIC_ASSERT(RP_N_BUFFER_CATEGORIES <= RP_BAR_MAX_PARTS);
    for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
        parts[c] = (RpBarPart){rp_buffer_category_name((RpBufferCategory)c), colours[c]};
    g_autoptr(RpBarChart) chart =
        rp_bar_chart_new(name, title, "GiB", 2, parts, RP_N_BUFFER_CATEGORIES);
    for (guint32 arena = 0; arena <= rp_plan_gpus(plan); arena++) {
        g_autofree char *label =
            arena == rp_plan_gpus(plan) ? g_strdup("host") : g_strdup_printf("GPU %u", arena);
        RpBarRow row = {.label = label, .marker = NAN};

        for (guint c = 0; c < RP_N_BUFFER_CATEGORIES; c++)
            row.values[c] = gib(rp_plan_category_bytes(plan, arena, (RpBufferCategory)c));
        rp_bar_chart_add(chart, &row);
    }
    if (style != NULL)
        rp_bar_chart_set_style(chart, style);
    return rp_bar_chart_figure(chart);
}
