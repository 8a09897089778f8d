#include "plots/charts/charts.h"

#include <math.h>
#include <string.h>

#include "core/base/units.h"

typedef struct {
    double from_ms;
    double end_ms;
    const RpTraceRecord *record;
} Box;

typedef struct {
    double y;
    GArray *boxes; /* Box; NULL = the lane has no row */
} Row;

/* One figure in the making. */
typedef struct {
    RpFigure *figure;
    GString *boxes;
    GString *labels;
    GString *tics;
    RpTimeUnit unit; /* unit of written times; everything else is in ms */
    double pixels_per_ms;
    double y;
    guint most_narrow_boxes; /* in a row */
    double narrowest_pixels; /* mean width of the boxes of the panel with the narrowest ones */
    guint n_legend;
    RpTaskKind legend[RP_N_TASK_KINDS]; /* kinds that look different */
} Drawing;

/* A box is four of these high: overlapped actions share it. */
#define HALF 0.21
/* Pixels of a letter, and around a label. */
#define CHARACTER 6.5
#define MARGIN 1.5

/* ---- rows: the lanes that are shown, their order and their boxes ---- */

static gboolean
is_shown(const RpTimelinePanel *panel, guint32 lane)
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

static guint
count_lanes(const RpTrace *trace)
{
    return rp_trace_gpus(trace) * RP_LANES_PER_DEVICE + RP_HOST_LANES;
}

static gint64
end_of(const RpTimelinePanel *panel)
{
    gboolean compute = panel->lanes == 0 || panel->lanes == RP_TIMELINE_COMPUTE;

    if (panel->end_ns > panel->from_ns)
        return panel->end_ns;
    return compute ? rp_trace_makespan_ns(panel->trace) : rp_trace_end_ns(panel->trace);
}

static gint
compare_boxes(gconstpointer a, gconstpointer b)
{
    double difference = ((const Box *)a)->from_ms - ((const Box *)b)->from_ms;

    return difference < 0 ? -1 : difference > 0;
}

/* The rows of a panel by lane; lanes without a task in the window and hidden ones have none. */
static Row *
make_rows(const RpTimelinePanel *panel)
{
    const RpTraceRecord *records = rp_trace_records(panel->trace);
    guint count = count_lanes(panel->trace);
    Row *rows = g_new0(Row, count);
    gint64 end_ns = end_of(panel);

    for (guint lane = 0; lane < count; lane++) {
        gboolean device = rp_trace_lane_device(panel->trace, lane) != RP_NONE;

        if (device && is_shown(panel, lane) && row_lane(panel, lane) == lane)
            rows[lane].boxes = g_array_new(FALSE, FALSE, sizeof(Box));
    }
    for (gsize i = 0; i < rp_trace_n_records(panel->trace); i++) {
        const RpTraceRecord *record = &records[i];
        gint64 from_ns = MAX(record->start_ns, panel->from_ns);
        gint64 to_ns = MIN(record->end_ns, end_ns);
        Box box = {rp_ms_from_ns(from_ns - panel->from_ns), rp_ms_from_ns(to_ns - panel->from_ns),
                   record};

        if (to_ns <= from_ns || record->lane >= count || !is_shown(panel, record->lane))
            continue;
        Row *row = &rows[row_lane(panel, record->lane)];
        if (row->boxes == NULL)
            row->boxes = g_array_new(FALSE, FALSE, sizeof(Box));
        g_array_append_val(row->boxes, box);
    }
    for (guint lane = 0; lane < count && panel->lanes & RP_TIMELINE_ENGINES; lane++)
        if (rows[lane].boxes != NULL)
            g_array_sort(rows[lane].boxes, compare_boxes);
    return rows;
}

static void
free_rows(Row *rows, guint count)
{
    for (guint i = 0; i < count; i++)
        if (rows[i].boxes != NULL)
            g_array_unref(rows[i].boxes);
    g_free(rows);
}

/* The lanes from top to bottom: with RP_TIMELINE_ENGINES a device's compute stands between its two
 * directions. */
static guint32
lane_in_order(const RpTimelinePanel *panel, guint32 position)
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

static char *
lane_title(const RpTimelinePanel *panel, guint32 lane)
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

static gboolean
same_slot(const RpTraceRecord *a, const RpTraceRecord *b)
{
    return a->kind == b->kind && a->stage == b->stage && a->round == b->round &&
           a->iteration == b->iteration && a->layer == b->layer;
}

static gboolean
same_part(const RpTraceRecord *a, const RpTraceRecord *b)
{
    return a->kind == b->kind && a->iteration == b->iteration;
}

/* The longest part of one kind without a gap among boxes [@first, @end). */
static Box
longest_part(const Row *row, guint first, guint end)
{
    Box part = g_array_index(row->boxes, Box, first);
    Box longest = part;

    for (guint i = first + 1; i < end; i++) {
        const Box *box = &g_array_index(row->boxes, Box, i);

        if (same_part(part.record, box->record) &&
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
static RpColour
shade_of(const RpTimelinePanel *panel, const RpTraceRecord *record, RpTaskKind kind)
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
    return rp_colour_lighten(rp_task_kind(kind)->colour, shares[number % G_N_ELEMENTS(shares)]);
}

/* ---- labels in the boxes ---- */

static char *
box_text(const RpTimelinePanel *panel, const RpTraceRecord *record, RpTimelineLabel label)
{
    guint32 number = label == RP_LABEL_MICRO_BATCH ? record->micro_batch
                     : label == RP_LABEL_ITERATION ? record->iteration
                                                   : record->stage;

    if (number == RP_NONE)
        return NULL;
    if (label == RP_LABEL_BOTH && record->micro_batch != RP_NONE)
        return g_strdup_printf("%u·%u", number, record->micro_batch);
    if (label == RP_LABEL_MICRO_BATCH)
        return g_strdup_printf("%u", number);
    if (label == RP_LABEL_ITERATION)
        return number == 0 ? g_strdup("T") : g_strdup_printf("T+%u", number);
    if (panel->stage_names != NULL) {
        static const char *const prefixes[] = {"F", "B", "FB", "I", "W", "F&B"};

        return g_strconcat(record->kind <= RP_TASK_OVERLAP ? prefixes[record->kind] : "",
                           panel->stage_names[number], NULL);
    }
    return g_strdup_printf("%u", number);
}

static gboolean
same_label(const RpTraceRecord *a, const RpTraceRecord *b, RpTimelineLabel label)
{
    if (label == RP_LABEL_SLOT)
        return same_slot(a, b);
    return label == RP_LABEL_ITERATION && a->iteration == b->iteration;
}

static void
append_text(Drawing *drawing, double time_ms, double y, const char *text, RpColour behind)
{
    g_autofree char *quoted = rp_gnuplot_quote_datum(text);

    rp_text_append(drawing->labels, "%.6f %.3f %s %u\n", time_ms * drawing->unit.per_ms, y, quoted,
                   rp_colour_of_text_on(behind));
}

static void
append_label(Drawing *drawing, const RpTimelinePanel *panel, const Box *box, double y,
             RpTimelineLabel label, const char *text)
{
    const RpTraceRecord *record = box->record;
    double middle_ms = (box->from_ms + box->end_ms) / 2;

    if (record->kind != RP_TASK_OVERLAP) {
        append_text(drawing, middle_ms, y, text, shade_of(panel, record, (RpTaskKind)record->kind));
        return;
    }
    g_autofree char *lower = label == RP_LABEL_MICRO_BATCH ? g_strdup_printf("%u", record->chunk)
                             : label == RP_LABEL_BOTH
                                 ? g_strdup_printf("%u·%u", record->layer, record->chunk)
                                 : g_strdup(text);
    append_text(drawing, middle_ms, y - HALF, text, shade_of(panel, record, RP_TASK_FORWARD));
    append_text(drawing, middle_ms, y + HALF, lower, shade_of(panel, record, RP_TASK_BACKWARD));
}

/* Whether @text, %NULL: none, fits in @span. */
static gboolean
fits(const Drawing *drawing, const Box *span, const char *text)
{
    const double pixels = (span->end_ms - span->from_ms) * drawing->pixels_per_ms;

    return text != NULL && pixels >= CHARACTER * (double)g_utf8_strlen(text, -1) + MARGIN;
}

/* timeline-labels.c: one label for each run of boxes that share it. */
static void
label_row(Drawing *drawing, const RpTimelinePanel *panel, const Row *row, RpTimelineLabel label)
{
    for (guint i = 0, next; i < row->boxes->len; i = next) {
        Box span = g_array_index(row->boxes, Box, i);
        double busy_ms = span.end_ms - span.from_ms;

        for (next = i + 1; next < row->boxes->len; next++) {
            const Box *other = &g_array_index(row->boxes, Box, next);

            if (!same_label(span.record, other->record, label))
                break;
            span.end_ms = other->end_ms;
            busy_ms += other->end_ms - other->from_ms;
        }
        /* a label must not stand in a bubble */
        if (label == RP_LABEL_ITERATION)
            span = longest_part(row, i, next);
        else if (busy_ms < 0.98 * (span.end_ms - span.from_ms))
            span = g_array_index(row->boxes, Box, i);
        g_autofree char *text = box_text(panel, span.record, label);
        if (label == RP_LABEL_BOTH && !fits(drawing, &span, text)) {
            g_free(text);
            text = box_text(panel, span.record, RP_LABEL_STAGE);
        }
        if (fits(drawing, &span, text))
            append_label(drawing, panel, &span, row->y, label, text);
    }
}

/* Pixels. */
#define WIDTH 1100
#define TOP 44
#define SUBTITLE 22
#define LEFT_COMPUTE 70
#define LEFT_LANES 150
#define LEFT_NAMED 175
#define RIGHT 30
#define ROW_COMPUTE 30
#define ROW_MANY 24
#define ROW_LANES 20
#define MANY_ROWS 9
/* Letters of a stage and a micro-batch, with the dot between them. */
#define MEAN_LABEL 4
/* Boxes narrower than this are merged, and none of them has a border, which would cover it. */
#define JOIN_BELOW 3.0
/* The others have one if compute boxes are wider than this. */
#define BORDER_FROM 5.0
/* Narrower boxes are drawn this wide, in pixels of the PNG file, but less wide where those of a row
 * would fill more than this share of it: it would look busier than it is. */
#define LEAST_WIDTH 1.0
#define LEAST_WIDTH_SHARE 0.3
/* In rows. */
#define PANEL_TITLE 0.95
#define PANEL_GAP 0.45
#define DEVICE_GAP 0.3
/* Space right of the longest panel for its makespan, as a share of the axis, and in pixels. */
#define END_SPACE 0.075
#define END_PIXELS 62.0

static void
append_box(Drawing *drawing, const RpTimelinePanel *panel, const Box *box, double y, double half,
           RpTaskKind kind)
{
    const RpTraceRecord *record = box->record;

    rp_text_append(drawing->boxes, "%.6f %.6f %.3f %.3f %u %s", box->from_ms * drawing->unit.per_ms,
                   box->end_ms * drawing->unit.per_ms, y - half, y + half,
                   shade_of(panel, record, kind), rp_task_kind_name(kind));
    rp_text_append(
        drawing->boxes, " %d %d %u\n", record->stage == RP_NONE ? -1 : (int)record->stage,
        record->micro_batch == RP_NONE ? -1 : (int)record->micro_batch, record->iteration);
}

/* Returns: whether it is narrow. */
static gboolean
draw_box(Drawing *drawing, const RpTimelinePanel *panel, const Box *box, double y)
{
    if (box->record->kind == RP_TASK_OVERLAP) {
        append_box(drawing, panel, box, y - HALF, HALF, RP_TASK_FORWARD);
        append_box(drawing, panel, box, y + HALF, HALF, RP_TASK_BACKWARD);
    } else {
        append_box(drawing, panel, box, y, 2 * HALF, (RpTaskKind)box->record->kind);
    }
    return (box->end_ms - box->from_ms) * drawing->pixels_per_ms < JOIN_BELOW;
}

/* Writes a row's boxes; those too narrow to be distinguished are merged. */
static void
draw_row(Drawing *drawing, const RpTimelinePanel *panel, const Row *row)
{
    double pixel_ms = 1.0 / drawing->pixels_per_ms;
    gboolean iterations = panel->label == RP_LABEL_ITERATION;
    Box joined = {0, 0, NULL};
    guint n_narrow = 0;

    for (guint i = 0; i < row->boxes->len; i++) {
        Box box = g_array_index(row->boxes, Box, i);
        gboolean narrow = box.end_ms - box.from_ms < JOIN_BELOW * pixel_ms;

        if (joined.record != NULL && box.from_ms - joined.end_ms < 0.3 * pixel_ms &&
            (iterations ? same_part(joined.record, box.record)
                        : narrow && same_slot(joined.record, box.record))) {
            joined.end_ms = box.end_ms;
            continue;
        }
        if (joined.record != NULL)
            n_narrow += draw_box(drawing, panel, &joined, row->y) ? 1 : 0;
        joined = box;
    }
    if (joined.record != NULL)
        n_narrow += draw_box(drawing, panel, &joined, row->y) ? 1 : 0;
    drawing->most_narrow_boxes = MAX(drawing->most_narrow_boxes, n_narrow);
}

/* Mean width of the compute boxes, in pixels. */
static double
mean_width(const Drawing *drawing, const RpTimelinePanel *panel, const Row *rows)
{
    double sum_ms = 0;
    guint count = 0;

    for (guint lane = 0; lane < count_lanes(panel->trace); lane++) {
        if (rows[lane].boxes == NULL || rp_trace_lane_kind(panel->trace, lane) != RP_LANE_COMPUTE)
            continue;
        for (guint i = 0; i < rows[lane].boxes->len; i++) {
            const Box *box = &g_array_index(rows[lane].boxes, Box, i);

            sum_ms += box->end_ms - box->from_ms;
            count++;
        }
    }
    return count > 0 ? sum_ms / count * drawing->pixels_per_ms : 0;
}

static void
place_row(Drawing *drawing, const RpTimelinePanel *panel, Row *row, guint32 lane)
{
    g_autofree char *title = lane_title(panel, lane);
    g_autofree char *quoted = rp_gnuplot_quote(title);

    row->y = drawing->y + 0.5;
    drawing->y += 1;
    rp_text_append(drawing->tics, "%s%s %.3f", drawing->tics->len > 0 ? ", " : "", quoted, row->y);
}

static void
mark_end(Drawing *drawing, const RpTimelinePanel *panel, double top)
{
    double end = rp_ms_from_ns(end_of(panel) - panel->from_ns) * drawing->unit.per_ms;

    rp_text_append(rp_figure_script(drawing->figure),
                   "set arrow from first %.6f, first %.3f to first %.6f, first %.3f nohead front "
                   "linewidth 1.2 dashtype (4,3) linecolor rgb '#222222'\n"
                   "set label '%.*f %s' at first %.6f, first %.3f left offset 0.5,0 font "
                   "font_small front\n",
                   end, top, end, drawing->y, end < 100 ? 1 : 0, end, drawing->unit.name, end,
                   (top + drawing->y) / 2);
}

/* Whether there is a gap between @device and the one before it. */
static gboolean
gap_before(const RpTimelinePanel *panel, guint32 device)
{
    if (panel->group > 0)
        return device % panel->group == 0;
    return (panel->lanes & (RP_TIMELINE_TRANSFERS | RP_TIMELINE_ENGINES)) != 0;
}

static void
draw_panel(Drawing *drawing, const RpTimelinePanel *panel, gboolean titled)
{
    guint count = count_lanes(panel->trace);
    Row *rows = make_rows(panel);
    double width = mean_width(drawing, panel, rows);
    RpTimelineLabel label = panel->label;
    guint32 device = RP_NONE;

    if (label == RP_LABEL_AUTO)
        label = width >= MEAN_LABEL * CHARACTER + MARGIN ? RP_LABEL_BOTH : RP_LABEL_SLOT;
    if (titled) {
        const char *title = panel->title != NULL ? panel->title : "";
        g_autofree char *quoted = rp_gnuplot_quote(title);

        drawing->y += PANEL_TITLE;
        rp_text_append(rp_figure_script(drawing->figure),
                       "set label %s at %s, first %.3f left offset 0.2,0 font %s\n", quoted,
                       rp_figure_heading_left(drawing->figure), drawing->y - 0.4,
                       rp_figure_heading_font(drawing->figure, title));
    }
    drawing->narrowest_pixels = fmin(drawing->narrowest_pixels, width);
    double top = drawing->y;
    for (guint position = 0; position < count; position++) {
        guint32 lane = lane_in_order(panel, position);
        gboolean host = rp_trace_lane_device(panel->trace, lane) == RP_NONE;

        if (rows[lane].boxes == NULL)
            continue;
        if (rp_trace_lane_device(panel->trace, lane) != device && drawing->y > top &&
            (host || gap_before(panel, rp_trace_lane_device(panel->trace, lane))))
            drawing->y += DEVICE_GAP;
        device = rp_trace_lane_device(panel->trace, lane);
        place_row(drawing, panel, &rows[lane], lane);
        draw_row(drawing, panel, &rows[lane]);
        if (label != RP_LABEL_NONE)
            label_row(drawing, panel, &rows[lane], label);
    }
    if (panel->mark_end)
        mark_end(drawing, panel, top);
    drawing->y += PANEL_GAP;
    free_rows(rows, count);
}

/* Rows of all panels, in units of a row. */
static double
count_rows(const RpTimelinePanel *panels, guint n_panels, gboolean titled)
{
    double sum = 0;

    for (guint i = 0; i < n_panels; i++) {
        Row *rows = make_rows(&panels[i]);
        guint shown = panels[i].gpus > 0 ? panels[i].gpus : rp_trace_gpus(panels[i].trace);

        for (guint lane = 0; lane < count_lanes(panels[i].trace); lane++)
            sum += rows[lane].boxes != NULL ? 1 : 0;
        for (guint device = 1; device < shown; device++)
            sum += gap_before(&panels[i], device) ? DEVICE_GAP : 0;
        if (panels[i].lanes & RP_TIMELINE_HOST)
            sum += DEVICE_GAP;
        sum += PANEL_GAP + (titled ? PANEL_TITLE : 0);
        free_rows(rows, count_lanes(panels[i].trace));
    }
    return sum;
}

/* The kinds of task to be explained, in the order of RpTaskKind. */
static void
append_legend(Drawing *drawing, const RpTimelinePanel *panels, guint n_panels, guint width)
{
    gboolean kinds[RP_N_TASK_KINDS] = {FALSE};
    const char *titles[RP_N_TASK_KINDS + 1] = {NULL};

    for (guint i = 0; i < n_panels; i++) {
        const RpTraceRecord *records = rp_trace_records(panels[i].trace);
        gint64 end_ns = end_of(&panels[i]);

        for (gsize r = 0; r < rp_trace_n_records(panels[i].trace); r++) {
            const RpTraceRecord *record = &records[r];

            if (record->end_ns > MAX(record->start_ns, panels[i].from_ns) &&
                record->start_ns < end_ns && is_shown(&panels[i], record->lane))
                kinds[record->kind] = TRUE;
        }
    }
    if (kinds[RP_TASK_OVERLAP])
        kinds[RP_TASK_FORWARD] = kinds[RP_TASK_BACKWARD] = TRUE;
    kinds[RP_TASK_OVERLAP] = FALSE;
    for (guint kind = 0; kind < RP_N_TASK_KINDS; kind++) {
        const char *title = rp_task_kind((RpTaskKind)kind)->title;

        if (!kinds[kind] || g_strv_contains(titles, title))
            continue;
        titles[drawing->n_legend] = title;
        drawing->legend[drawing->n_legend++] = (RpTaskKind)kind;
    }
    g_autofree char *axis = g_strdup_printf("time, %s", drawing->unit.name);

    rp_figure_add_x_title(
        drawing->figure, axis,
        rp_figure_add_legend_below(drawing->figure, titles, drawing->n_legend, width));
}

/* Narrow boxes on top of the borders of their neighbours. */
static void
append_boxes(const Drawing *drawing, GString *script, guint plot_width)
{
    double share = LEAST_WIDTH_SHARE * plot_width / MAX(1, drawing->most_narrow_boxes);
    gboolean border = drawing->narrowest_pixels >= BORDER_FROM;

    if (drawing->most_narrow_boxes == 0) {
        rp_text_append(script,
                       "plot DATA index 0 using (($1+$2)/2):(($3+$4)/2):1:2:3:4:5 with boxxyerror "
                       "linecolor rgb variable linewidth 0.6 fillstyle solid %s, \\\n",
                       border ? "border linecolor rgb '#ffffff'" : "noborder");
        return;
    }
    rp_text_append(
        script,
        "narrow = %.9g\nleast = %.9g\nhalf(a, b) = (b - a < least ? least : b - a) / 2\n"
        "plot DATA index 0 using ($2-$1 < narrow ? NaN : ($1+$2)/2):(($3+$4)/2):1:2:3:4:5 with "
        "boxxyerror linecolor rgb variable linewidth 0.6 fillstyle solid %s, \\\n"
        "  DATA index 0 using ($2-$1 < narrow ? ($1+$2)/2 : NaN):(($3+$4)/2):"
        "(($1+$2)/2-half($1,$2)):(($1+$2)/2+half($1,$2)):3:4:5 with boxxyerror linecolor rgb "
        "variable linewidth 0.6 fillstyle solid noborder, \\\n",
        JOIN_BELOW / drawing->pixels_per_ms * drawing->unit.per_ms,
        fmin(LEAST_WIDTH, share) / drawing->pixels_per_ms * drawing->unit.per_ms,
        border ? "border linecolor rgb '#ffffff'" : "noborder");
}

static void
append_script(Drawing *drawing, guint wide, guint left, guint top, double axis_ms)
{
    GString *script = rp_figure_script(drawing->figure);

    rp_text_append(script,
                   "set lmargin at screen px(%u)\nset rmargin at screen 1 - px(%d)\n"
                   "set tmargin at screen 1 - py(%u)\n"
                   "set xrange [0:%.6f]\nset yrange [%.3f:0]\nset format x '%%.10g'\n"
                   "set border 1\nunset grid\nset grid xtics back linetype 1 linewidth 0.5 "
                   "linecolor rgb '#dddddd'\nset ytics scale 0 (%s)\n",
                   left, RIGHT, top, axis_ms * drawing->unit.per_ms, drawing->y,
                   drawing->tics->str);
    rp_figure_add_narrow_tics(drawing->figure, wide - left - RIGHT, axis_ms * drawing->unit.per_ms);
    append_boxes(drawing, script, wide - left - RIGHT);
    g_string_append(script, "  DATA index 1 using 1:2:3:4 with labels font font_small textcolor "
                            "rgb variable");
    for (guint i = 0; i < drawing->n_legend; i++)
        rp_text_append(script,
                       ", \\\n  keyentry with boxes fillstyle solid noborder linecolor rgb '#%06x' "
                       "title '%s'",
                       rp_task_kind(drawing->legend[i])->colour,
                       rp_task_kind(drawing->legend[i])->title);
    g_string_append_c(script, '\n');
}

RpFigure *
rp_timeline_figure(const char *name, const char *title, const RpTimelinePanel *panels,
                   guint n_panels)
{
    g_auto(GStrv) titles = g_strsplit(title, "\n", 2);
    guint top = TOP + (titles[1] != NULL ? SUBTITLE : 0);
    gboolean titled = n_panels > 1;
    double rows = count_rows(panels, n_panels, titled);
    const RpFigureStyle *style = panels[0].style;
    const guint wide = rp_figure_wide(style, WIDTH);
    guint left = LEFT_COMPUTE;
    guint row_pixels = rows < MANY_ROWS ? ROW_COMPUTE : ROW_MANY;
    gboolean ends = FALSE;
    gint64 longest_ns = 1;

    for (guint i = 0; i < n_panels; i++) {
        longest_ns = MAX(longest_ns, end_of(&panels[i]) - panels[i].from_ns);
        ends = ends || panels[i].mark_end;
        if (panels[i].lanes > RP_TIMELINE_COMPUTE)
            left = MAX(left, LEFT_LANES);
        if (panels[i].device_names != NULL)
            left = LEFT_NAMED;
        if (panels[i].lanes & RP_TIMELINE_TRANSFERS)
            row_pixels = ROW_LANES;
    }
    const double end_space = fmax(END_SPACE, END_PIXELS / (wide - left - RIGHT - END_PIXELS));
    double axis_ms = rp_ms_from_ns(longest_ns) * (ends ? 1 + end_space : 1.0);
    Drawing drawing = {
        .boxes = g_string_new(NULL),
        .labels = g_string_new(NULL),
        .unit = rp_time_unit(longest_ns),
        .tics = g_string_new(NULL),
        .pixels_per_ms = (wide - left - RIGHT) / axis_ms,
        .narrowest_pixels = G_MAXDOUBLE,
    };
    rp_text_append(drawing.boxes,
                   "# start_%s end_%s row_top row_bottom colour(decimal RRGGBB) task stage "
                   "micro_batch iteration (of the first if joined)\n",
                   drawing.unit.name, drawing.unit.name);
    rp_text_append(drawing.labels, "\n\n# time_%s row label colour\n", drawing.unit.name);
    drawing.figure =
        rp_figure_new_styled(name, titles[0], style, WIDTH, (guint)(top + rows * row_pixels));
    rp_figure_add_titles(drawing.figure, titles[0], titles[1]);
    append_legend(&drawing, panels, n_panels, wide - left - RIGHT);
    for (guint i = 0; i < n_panels; i++) {
        rp_text_append(drawing.boxes, "# panel %u: %s\n", i,
                       panels[i].title != NULL ? panels[i].title : titles[0]);
        draw_panel(&drawing, &panels[i], titled);
    }
    append_script(&drawing, wide, left, top, axis_ms);
    /* without a label the second block still needs a line; on NaN gnuplot 5.4 would crash */
    if (strchr(drawing.labels->str + 2, '\n')[1] == '\0')
        g_string_append(drawing.labels, "0 0 \"\" 0\n");
    g_string_append(rp_figure_data(drawing.figure), drawing.boxes->str);
    g_string_append(rp_figure_data(drawing.figure), drawing.labels->str);
    g_string_free(drawing.boxes, TRUE);
    g_string_free(drawing.labels, TRUE);
    g_string_free(drawing.tics, TRUE);
    return drawing.figure;
}

char *
rp_timeline_title(const char *schedule, const RpTrace *trace, guint micro_batches, guint round)
{
    RpBubble bubble = rp_report_bubble(trace);
    GString *title = g_string_new(schedule);

    rp_text_append(title, ": N = %u, M = %u", rp_trace_gpus(trace), micro_batches);
    if (round > 0)
        rp_text_append(title, ", M_R = %u", round);
    g_autofree char *makespan = rp_text_time(bubble.makespan_ns);

    g_autofree char *percent = rp_text_percent(bubble.ratio);

    rp_text_append(title, ", makespan %s, bubble ratio %s (%s)", makespan, percent,
                   rp_trace_origin(trace) == RP_TRACE_MEASURED ? "measured" : "predicted");
    return g_string_free(title, FALSE);
}
