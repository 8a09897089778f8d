/* Both timelines in one: a trace of twice the devices, of which the even ones are the first's.
 *
 *   GPU 0 predicted |F0|F1|    |B0 |
 *   GPU 0 measured  |F0| F1  |    |B0 |
 *
 *   GPU 1 predicted    |F0|F1|...
 */
#include "cli/reports/diff.h"

#include "core/base/units.h"
#include "core/trace/report.h"
#include "plots/charts/charts.h"

const char *
rp_diff_label(const RpTraceDiff *diff, RpTraceSide side)
{
    static const char *const origins[] = {"predicted", "measured"};
    static const char *const numbers[] = {"first", "second"};
    gboolean same = rp_trace_origin(rp_trace_diff_trace(diff, RP_TRACE_FIRST)) ==
                    rp_trace_origin(rp_trace_diff_trace(diff, RP_TRACE_SECOND));

    return same ? numbers[side] : origins[side];
}

/* The lanes of a side in the picture; the host's are left out. */
static void
add_side(RpTrace *both, const RpTrace *trace, RpTraceSide side, RpTaskId *task, gint64 *from_ns)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n = rp_trace_n_records(trace);

    for (gsize i = 0; i < n; i++) {
        RpTraceRecord record = records[i];
        guint32 device = rp_trace_lane_device(trace, record.lane);

        if (device == RP_NONE)
            continue;
        record.lane += (device + side) * RP_LANES_PER_DEVICE;
        record.task = (*task)++;
        *from_ns = MIN(*from_ns, record.start_ns);
        rp_trace_append(both, &record);
    }
}

static gboolean
has_transfers(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);

    for (gsize i = 0; i < rp_trace_n_records(trace); i++)
        if (records[i].kind >= RP_TASK_ACTIVATION_DOWNLOAD &&
            records[i].kind <= RP_TASK_GRADIENT_DOWNLOAD)
            return TRUE;
    return FALSE;
}

static char *
figure_title(const RpTraceDiff *diff)
{
    GString *title = g_string_new("Iteration");
    guint first = rp_trace_diff_first_iteration(diff), end = rp_trace_diff_end_iteration(diff);

    if (end - first > 1)
        g_string_append_printf(title, "s %u to %u", first, end - 1);
    else
        g_string_append_printf(title, " %u", first);
    for (guint side = 0; side < RP_N_TRACE_SIDES; side++) {
        RpBubble bubble = rp_report_bubble(rp_trace_diff_trace(diff, (RpTraceSide)side));
        g_autofree char *time = rp_text_time(bubble.makespan_ns);

        g_autofree char *percent = rp_text_percent(bubble.ratio);

        rp_text_append(title, "%s %s: %s, bubble ratio %s", side == 0 ? "," : ";",
                       rp_diff_label(diff, (RpTraceSide)side), time, percent);
    }
    if (rp_trace_diff_scale(diff) != 1)
        rp_text_append(title, " (times / %.6g)", rp_trace_diff_scale(diff));
    return g_string_free(title, FALSE);
}

RpFigure *
rp_diff_figure(const RpTraceDiff *diff, const RpFigureStyle *style)
{
    const RpTrace *first = rp_trace_diff_trace(diff, RP_TRACE_FIRST);
    const RpTrace *second = rp_trace_diff_trace(diff, RP_TRACE_SECOND);
    guint gpus = rp_trace_gpus(first);
    g_autoptr(RpTrace) both = rp_trace_new_empty(2 * gpus, rp_trace_origin(second));
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    g_autofree char *title = figure_title(diff);
    RpTaskId task = 0;
    gint64 from_ns = 0;

    rp_trace_set_dispatched(both, rp_trace_dispatched(first));
    add_side(both, first, RP_TRACE_FIRST, &task, &from_ns);
    add_side(both, second, RP_TRACE_SECOND, &task, &from_ns);
    for (guint g = 0; g < 2 * gpus; g++)
        g_ptr_array_add(
            names, g_strdup_printf("GPU %u %s", g / 2, rp_diff_label(diff, (RpTraceSide)(g % 2))));
    RpTimelinePanel panel = {
        .trace = both,
        .lanes = has_transfers(both) ? RP_TIMELINE_ENGINES : RP_TIMELINE_COMPUTE,
        .from_ns = from_ns,
        .end_ns = has_transfers(both) ? rp_trace_end_ns(both) : rp_trace_makespan_ns(both),
        .device_names = (const char *const *)names->pdata,
        .group = 2,
        .style = style,
    };

    return rp_timeline_figure("diff", title, &panel, 1);
}
