/* Selects the lanes of a trace that become rows, their order and their boxes. */
#include "plots/charts/timeline-private.h"

#include "core/base/units.h"

gboolean
rp_timeline_shows(const RpTimelinePanel *panel, guint32 lane)
{
    guint lanes = panel->lanes ? panel->lanes : RP_TIMELINE_COMPUTE;
    guint32 device = rp_trace_lane_device(panel->trace, lane);
    guint kind = rp_trace_lane_kind(panel->trace, lane);

    if (device == RP_NONE)
        return (lanes & RP_TIMELINE_HOST) != 0;
    if (panel->gpus > 0 && device >= panel->gpus)
        return FALSE;
    if (lanes & RP_TIMELINE_ENGINES)
        return TRUE;
    return (lanes & (kind == RP_LANE_COMPUTE ? RP_TIMELINE_COMPUTE : RP_TIMELINE_TRANSFERS)) != 0;
}

/* The lane whose row shows @lane: with RP_TIMELINE_ENGINES the two of a direction share one. */
static guint32
row_lane(const RpTimelinePanel *panel, guint32 lane)
{
    guint kind = rp_trace_lane_kind(panel->trace, lane);

    if (!(panel->lanes & RP_TIMELINE_ENGINES))
        return lane;
    if (kind == RP_LANE_PARAMETER_UP)
        return lane - RP_LANE_PARAMETER_UP + RP_LANE_ACTIVATION_UP;
    if (kind == RP_LANE_GRADIENT_DOWN)
        return lane - RP_LANE_GRADIENT_DOWN + RP_LANE_ACTIVATION_DOWN;
    return lane;
}

guint
rp_timeline_n_lanes(const RpTrace *trace)
{
    return rp_trace_gpus(trace) * RP_LANES_PER_DEVICE + RP_HOST_LANES;
}

gint64
rp_timeline_end_ns(const RpTimelinePanel *panel)
{
    gboolean compute = panel->lanes == 0 || panel->lanes == RP_TIMELINE_COMPUTE;

    if (panel->end_ns > panel->from_ns)
        return panel->end_ns;
    return compute ? rp_trace_makespan_ns(panel->trace) : rp_trace_end_ns(panel->trace);
}

static gint
compare_boxes(gconstpointer a, gconstpointer b)
{
    double difference = ((const RpTimelineBox *)a)->from_ms - ((const RpTimelineBox *)b)->from_ms;

    return difference < 0 ? -1 : difference > 0;
}

/* The rows of a panel by lane; lanes without a task in the window and hidden ones have none. */
RpTimelineRow *
rp_timeline_rows(const RpTimelinePanel *panel)
{
    const RpTraceRecord *records = rp_trace_records(panel->trace);
    guint count = rp_timeline_n_lanes(panel->trace);
    RpTimelineRow *rows = g_new0(RpTimelineRow, count);
    gint64 end_ns = rp_timeline_end_ns(panel);

    for (guint lane = 0; lane < count; lane++) {
        gboolean device = rp_trace_lane_device(panel->trace, lane) != RP_NONE;

        if (device && rp_timeline_shows(panel, lane) && row_lane(panel, lane) == lane)
            rows[lane].boxes = g_array_new(FALSE, FALSE, sizeof(RpTimelineBox));
    }
    for (gsize i = 0; i < rp_trace_n_records(panel->trace); i++) {
        const RpTraceRecord *record = &records[i];
        gint64 from_ns = MAX(record->start_ns, panel->from_ns);
        gint64 to_ns = MIN(record->end_ns, end_ns);
        RpTimelineBox box = {rp_ms_from_ns(from_ns - panel->from_ns),
                             rp_ms_from_ns(to_ns - panel->from_ns), record};

        if (to_ns <= from_ns || record->lane >= count || !rp_timeline_shows(panel, record->lane))
            continue;
        RpTimelineRow *row = &rows[row_lane(panel, record->lane)];
        if (row->boxes == NULL)
            row->boxes = g_array_new(FALSE, FALSE, sizeof(RpTimelineBox));
        g_array_append_val(row->boxes, box);
    }
    for (guint lane = 0; lane < count && panel->lanes & RP_TIMELINE_ENGINES; lane++)
        if (rows[lane].boxes != NULL)
            g_array_sort(rows[lane].boxes, compare_boxes);
    return rows;
}

void
rp_timeline_rows_free(RpTimelineRow *rows, guint count)
{
    for (guint i = 0; i < count; i++)
        if (rows[i].boxes != NULL)
            g_array_unref(rows[i].boxes);
    g_free(rows);
}

/* The lanes from top to bottom: with RP_TIMELINE_ENGINES a device's compute stands between its two
 * directions. */
guint32
rp_timeline_lane_in_order(const RpTimelinePanel *panel, guint32 position)
{
    guint32 first = position - position % RP_LANES_PER_DEVICE;

    if (!(panel->lanes & RP_TIMELINE_ENGINES) ||
        rp_trace_lane_device(panel->trace, position) == RP_NONE)
        return position;
    switch (position - first) {
    case 0:
        return first + RP_LANE_ACTIVATION_UP;
    case 1:
        return first + RP_LANE_COMPUTE;
    default:
        return position;
    }
}

char *
rp_timeline_lane_title(const RpTimelinePanel *panel, guint32 lane)
{
    guint32 device = rp_trace_lane_device(panel->trace, lane);
    guint kind = rp_trace_lane_kind(panel->trace, lane);
    const char *name = rp_lane_name(kind);

    if (device == RP_NONE)
        return g_strdup_printf("CPU %s", name);
    g_autofree char *gpu = panel->device_names != NULL ? g_strdup(panel->device_names[device])
                                                       : g_strdup_printf("GPU %u", device);
    if (panel->lanes & RP_TIMELINE_ENGINES && kind != RP_LANE_COMPUTE)
        return g_strdup_printf("%s %s", gpu, kind == RP_LANE_ACTIVATION_UP ? "up" : "down");
    if (kind == RP_LANE_COMPUTE)
        return panel->device_names == NULL &&
                       panel->lanes & (RP_TIMELINE_TRANSFERS | RP_TIMELINE_ENGINES)
                   ? g_strdup_printf("%s compute", gpu)
                   : g_steal_pointer(&gpu);
    return g_strdelimit(g_strdup(name), "-", ' ');
}

gboolean
rp_timeline_same_slot(const RpTraceRecord *a, const RpTraceRecord *b)
{
    return a->kind == b->kind && a->stage == b->stage && a->round == b->round &&
           a->iteration == b->iteration && a->layer == b->layer;
}

gboolean
rp_timeline_same_part(const RpTraceRecord *a, const RpTraceRecord *b)
{
    return a->kind == b->kind && a->iteration == b->iteration;
}

/* The longest part of one kind without a gap among boxes [@first, @end). */
RpTimelineBox
rp_timeline_longest_part(const RpTimelineRow *row, guint first, guint end)
{
    RpTimelineBox part = g_array_index(row->boxes, RpTimelineBox, first);
    RpTimelineBox longest = part;

    for (guint i = first + 1; i < end; i++) {
        const RpTimelineBox *box = &g_array_index(row->boxes, RpTimelineBox, i);

        if (rp_timeline_same_part(part.record, box->record) &&
            box->from_ms - part.end_ms < 0.01 * (box->end_ms - box->from_ms))
            part.end_ms = box->end_ms;
        else
            part = *box;
        if (part.end_ms - part.from_ms > longest.end_ms - longest.from_ms)
            longest = part;
    }
    return longest;
}

/* Three shades of each colour; neighbours differ. */
RpColour
rp_timeline_shade(const RpTimelinePanel *panel, const RpTraceRecord *record, RpTaskKind kind)
{
    static const double shares[] = {0.0, 0.42, 0.22};
    guint gpus = rp_trace_gpus(panel->trace);
    guint32 number = record->stage;

    if (panel->shade == RP_SHADE_MICRO_BATCH)
        number = record->micro_batch;
    else if (panel->shade == RP_SHADE_ITERATION)
        number = record->iteration;
    else if (kind == RP_TASK_FUSED)
        number = 0; /* there is one */
    else if (number != RP_NONE && gpus > 0 && gpus % G_N_ELEMENTS(shares) == 0)
        number += number / gpus; /* or a device's stages would all look alike */
    if (number == RP_NONE)
        number = record->layer == RP_NONE ? 0 : record->layer;
    return rp_colour_lighten(rp_colour_of_task(kind), shares[number % G_N_ELEMENTS(shares)]);
}
