/* Labels in the boxes of a timeline. */
#include "plots/charts/timeline-private.h"

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
        return rp_timeline_same_slot(a, b);
    return label == RP_LABEL_ITERATION && a->iteration == b->iteration;
}

static void
append_text(RpTimelineDrawing *drawing, double time_ms, double y, const char *text, RpColour behind)
{
    g_autofree char *quoted = rp_gnuplot_quote_datum(text);

    rp_text_append(drawing->labels, "%.6f %.3f %s %u\n", time_ms * drawing->unit.per_ms, y, quoted,
                   rp_colour_of_text_on(behind));
}

static void
append_label(RpTimelineDrawing *drawing, const RpTimelinePanel *panel, const RpTimelineBox *box,
             double y, RpTimelineLabel label, const char *text)
{
    const RpTraceRecord *record = box->record;
    double middle_ms = (box->from_ms + box->end_ms) / 2;

    if (record->kind != RP_TASK_OVERLAP) {
        append_text(drawing, middle_ms, y, text,
                    rp_timeline_shade(panel, record, (RpTaskKind)record->kind));
        return;
    }
    g_autofree char *lower = label == RP_LABEL_MICRO_BATCH ? g_strdup_printf("%u", record->chunk)
                             : label == RP_LABEL_BOTH
                                 ? g_strdup_printf("%u·%u", record->layer, record->chunk)
                                 : g_strdup(text);
    append_text(drawing, middle_ms, y - RP_TIMELINE_HALF, text,
                rp_timeline_shade(panel, record, RP_TASK_FORWARD));
    append_text(drawing, middle_ms, y + RP_TIMELINE_HALF, lower,
                rp_timeline_shade(panel, record, RP_TASK_BACKWARD));
}

/* Whether @text, %NULL: none, fits in @span. */
static gboolean
fits(const RpTimelineDrawing *drawing, const RpTimelineBox *span, const char *text)
{
    const double pixels = (span->end_ms - span->from_ms) * drawing->pixels_per_ms;

    return text != NULL &&
           pixels >= RP_TIMELINE_CHARACTER * (double)g_utf8_strlen(text, -1) + RP_TIMELINE_MARGIN;
}

void
rp_timeline_label_row(RpTimelineDrawing *drawing, const RpTimelinePanel *panel,
                      const RpTimelineRow *row, RpTimelineLabel label)
{
    for (guint i = 0, next; i < row->boxes->len; i = next) {
        RpTimelineBox span = g_array_index(row->boxes, RpTimelineBox, i);
        double busy_ms = span.end_ms - span.from_ms;

        for (next = i + 1; next < row->boxes->len; next++) {
            const RpTimelineBox *other = &g_array_index(row->boxes, RpTimelineBox, next);

            if (!same_label(span.record, other->record, label))
                break;
            span.end_ms = other->end_ms;
            busy_ms += other->end_ms - other->from_ms;
        }
        /* a label must not stand in a bubble */
        if (label == RP_LABEL_ITERATION)
            span = rp_timeline_longest_part(row, i, next);
        else if (busy_ms < 0.98 * (span.end_ms - span.from_ms))
            span = g_array_index(row->boxes, RpTimelineBox, i);
        g_autofree char *text = box_text(panel, span.record, label);
        if (label == RP_LABEL_BOTH && !fits(drawing, &span, text)) {
            g_free(text);
            text = box_text(panel, span.record, RP_LABEL_STAGE);
        }
        if (fits(drawing, &span, text))
            append_label(drawing, panel, &span, row->y, label, text);
    }
}
