/* Recordings as pictures and as traces: boxes of work, and the actions that the program annotated. */
#include "core/recording/recording.h"

#include "core/base/quote.h"

/* ---- boxes ---- */

gint
rp_recorded_compare(gconstpointer a, gconstpointer b)
{
    const gint64 *first = a, *second = b; /* start, end */

    if (first[0] != second[0])
        return first[0] > second[0] ? 1 : -1;
    return (first[1] > second[1]) - (first[1] < second[1]);
}

GArray *
rp_recorded_boxes(const RpRecordedDevice *device, RpWorkKind kind, const RpRecordedWindow *window)
{
    g_autoptr(GArray) spans = g_array_new(FALSE, FALSE, sizeof(RpWorkSpan));
    GArray *boxes = g_array_new(FALSE, FALSE, sizeof(RpRecordedBox));
    gint64 longest_ns = 0;

    for (guint i = 0; i < device->spans->len; i++) {
        RpWorkSpan span = g_array_index(device->spans, RpWorkSpan, i);

        span.start_ns = MAX(span.start_ns, window->start_ns);
        span.end_ns = MIN(span.end_ns, window->end_ns);
        if (span.kind == kind && span.start_ns < span.end_ns)
            g_array_append_val(spans, span);
    }
    g_array_sort(spans, rp_recorded_compare);
    for (guint i = 0; i < spans->len; i++) {
        const RpWorkSpan *span = &g_array_index(spans, RpWorkSpan, i);
        RpRecordedBox *before =
            boxes->len > 0 ? &g_array_index(boxes, RpRecordedBox, boxes->len - 1) : NULL;
        const gint64 length_ns = span->end_ns - span->start_ns;

        if (before == NULL || span->start_ns >= before->end_ns) {
            const RpRecordedBox box = {span->start_ns, span->end_ns, span->name, 1};

            g_array_append_val(boxes, box);
            longest_ns = length_ns;
            continue;
        }
        before->end_ns = MAX(before->end_ns, span->end_ns);
        before->name = length_ns > longest_ns ? span->name : before->name;
        before->count++;
        longest_ns = MAX(longest_ns, length_ns);
    }
    return boxes;
}

/* ---- the trace ---- */

/* Whether two records are of one action, or which stands first. */
static gint
compare_actions(const RpTraceRecord *a, const RpTraceRecord *b)
{
    const guint32 first[] = {a->kind, a->stage, a->micro_batch, a->layer, a->chunk};
    const guint32 second[] = {b->kind, b->stage, b->micro_batch, b->layer, b->chunk};

    for (guint i = 0; i < G_N_ELEMENTS(first); i++)
        if (first[i] != second[i])
            return first[i] > second[i] ? 1 : -1;
    return 0;
}

static gint
compare_runs(gconstpointer a, gconstpointer b)
{
    const gint order = compare_actions(a, b);

    return order != 0 ? order : rp_recorded_compare(a, b);
}

/* The k-th run of an action is of iteration k - 1. */
static void
count_iterations(GArray *records)
{
    g_array_sort(records, compare_runs);
    for (guint i = 1; i < records->len; i++) {
        RpTraceRecord *record = &g_array_index(records, RpTraceRecord, i);

        if (compare_actions(&record[-1], record) == 0)
            record->iteration = record[-1].iteration + 1;
    }
}

static void
add_records(GArray *records, const RpRecordedDevice *device, guint gpu)
{
    for (guint i = 0; i < device->actions->len; i++) {
        const RpRecordedAction *at = &g_array_index(device->actions, RpRecordedAction, i);
        const gboolean overlap = at->action.kind == RP_ACTION_OVERLAP;
        const RpTraceRecord record = {
            .start_ns = at->start_ns,
            .end_ns = at->end_ns,
            .lane = gpu * RP_LANES_PER_DEVICE + RP_LANE_COMPUTE,
            .stage = at->action.stage,
            .micro_batch = at->action.micro_batch,
            .layer = overlap ? at->action.backward_stage : RP_NONE,
            .chunk = overlap ? at->action.backward_micro_batch : RP_NONE,
            .kind = at->action.kind, /* kinds of actions are the first kinds of tasks */
        };

        g_array_append_val(records, record);
    }
}

RpTrace *
rp_recordings_trace(const GPtrArray *recordings, GError **error)
{
    g_autoptr(GArray) records = g_array_new(FALSE, FALSE, sizeof(RpTraceRecord));
    guint gpus = 0;

    for (guint i = 0; i < recordings->len; i++) {
        const RpRecording *recording = g_ptr_array_index(recordings, i);

        for (guint d = 0; d < recording->devices->len; d++)
            add_records(records, &g_array_index(recording->devices, RpRecordedDevice, d), gpus++);
    }
    if (records->len == 0) {
        const RpRecording *first = g_ptr_array_index(recordings, 0);

        return rp_null(
            rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_STEPS,
                    "%s: expected notes of actions with launches of their kernels, found none; "
                    "run each action within record_function(\"3F0\") or, for nsys, "
                    "torch.cuda.nvtx.range(\"3F0\"): stage 3, forward, micro-batch 0",
                    first->file));
    }
    count_iterations(records);
    g_array_sort(records, rp_recorded_compare);
    RpTrace *trace = rp_trace_new_empty(gpus, RP_TRACE_MEASURED);

    for (guint i = 0; i < records->len; i++) {
        g_array_index(records, RpTraceRecord, i).task = i;
        rp_trace_append(trace, &g_array_index(records, RpTraceRecord, i));
    }
    return trace;
}
