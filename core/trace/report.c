/**
 * Bubble ratio and its parts, steady state, use per device. Every report is one pass over the
 * records with a few numbers per device, so traces of tens of millions of records are no matter.
 *
 *   1F1B, N = 2, M = 2, F = 1, B = 2, no hop
 *
 *   gpu 0 |F0|F1|     | B0  |  | B1  |    switch 2 (from the end of its 2nd forward), intra 1
 *   gpu 1 |  |F0| B0  |F1| B1  |     |    fill 1, switch 0 (from the end of its 1st), drain 2
 */
#include "core/trace/report.h"

/* Sums over devices: each one's times fit 63 bits, those of up to 2^16 together need not. */
__extension__ typedef __int128 Wide;

/* Times of one device, as the pass over the records collects them. */
typedef struct {
    gboolean started;
    gint64 first_start_ns;
    gint64 previous_end_ns;
    gint64 busy_ns;
    gint64 last_backward_end_ns; /* or of the last action, if there is no backward */
    gint64 busy_after_ns;        /* after the last backward */
    gint64 expand_ns;            /* part of @busy_ns */
    gint64 expand_before_ns;     /* part of that before the first action */
    gint64 expand_gap_ns;        /* and since the last action */
    gint64 switch_ns;
    gint64 exposed_ns;
    gboolean had_backward;
    /* in the iteration that the device is in */
    guint32 iteration;
    guint forwards;
    gboolean in_backward; /* its first backward has come */
    gboolean window_open; /* the window of `switch` */
    gint64 window_start_ns;
    gint64 window_busy_ns;
    gint64 undecided_ns; /* counts if no forward follows in this iteration */
} Device;

/* A pure forward; an overlapped action is a forward and a backward. */
static gboolean
has_forward(const RpTraceRecord *record)
{
    return record->kind == RP_TASK_FORWARD || record->kind == RP_TASK_OVERLAP;
}

static gboolean
has_backward(const RpTraceRecord *record)
{
    return record->kind != RP_TASK_FORWARD;
}

static void
leave_iteration(Device *device)
{
    device->switch_ns += device->undecided_ns;
    device->undecided_ns = 0;
    device->forwards = 0;
    device->in_backward = FALSE;
    device->window_open = FALSE;
}

/* The window ends where the first backward of an iteration starts. */
static void
close_window(Device *device, const RpTraceRecord *record, gboolean dispatched, guint opening)
{
    gint64 idle_ns = record->start_ns - device->window_start_ns - device->window_busy_ns;

    device->in_backward = TRUE;
    if (!device->window_open)
        return;
    device->window_open = FALSE;
    if (dispatched || device->forwards >= opening)
        device->switch_ns += idle_ns;
    else
        device->undecided_ns = idle_ns;
}

/* A forward (or, where @dispatched, any action) that may open the window. */
static void
count_forward(Device *device, const RpTraceRecord *record, gboolean dispatched, guint opening)
{
    if (has_forward(record))
        device->forwards++;
    device->undecided_ns = has_forward(record) ? 0 : device->undecided_ns;
    if (device->in_backward)
        return;
    if (dispatched || (has_forward(record) && device->forwards <= opening)) {
        device->window_open = TRUE;
        device->window_start_ns = record->end_ns;
        device->window_busy_ns = 0;
    } else {
        device->window_busy_ns += record->end_ns - record->start_ns;
    }
}

/* Busy, but no action: whatever idle time it stands in is less. */
static void
count_expansion(Device *device, gint64 duration_ns)
{
    device->busy_ns += duration_ns;
    device->expand_ns += duration_ns;
    device->expand_gap_ns += duration_ns;
    device->busy_after_ns += duration_ns;
    device->window_busy_ns += duration_ns;
    if (!device->started)
        device->expand_before_ns += duration_ns;
}

/* @opening: the forward whose end opens the window of a bound schedule, N - g, counted from 1. */
static void
count_action(Device *device, const RpTraceRecord *record, gboolean dispatched, guint opening)
{
    gint64 gap_ns = record->start_ns - device->previous_end_ns - device->expand_gap_ns;

    device->expand_gap_ns = 0;
    if (!device->started) {
        device->started = TRUE;
        device->first_start_ns = record->start_ns;
        device->iteration = record->iteration;
    }
    if (device->iteration != record->iteration) {
        leave_iteration(device);
        device->iteration = record->iteration;
    }
    if (gap_ns > 0)
        device->exposed_ns += MIN(gap_ns, record->transfer_ns);

    if (has_backward(record) && !device->in_backward)
        close_window(device, record, dispatched, opening);
    count_forward(device, record, dispatched, opening);

    gint64 duration_ns = record->end_ns - record->start_ns;
    device->busy_ns += duration_ns;
    if (has_backward(record) || !device->had_backward) {
        device->last_backward_end_ns = record->end_ns;
        device->busy_after_ns = 0;
    } else {
        device->busy_after_ns += duration_ns;
    }
    device->had_backward = device->had_backward || has_backward(record);
    device->previous_end_ns = record->end_ns;
}

static gboolean
is_compute(const RpTrace *trace, const RpTraceRecord *record)
{
    return record->kind <= RP_TASK_OVERLAP && rp_trace_lane_device(trace, record->lane) != RP_NONE;
}

static gboolean
is_expansion(const RpTrace *trace, const RpTraceRecord *record)
{
    return record->kind == RP_TASK_EXPAND && rp_trace_lane_device(trace, record->lane) != RP_NONE;
}

static gint64
within(const RpTraceRecord *record, gint64 from_ns, gint64 to_ns)
{
    return MAX(0, MIN(record->end_ns, to_ns) - MAX(record->start_ns, from_ns));
}

/* @iteration: RP_NONE = all */
static RpBubble
bubble(const RpTrace *trace, guint32 iteration, gint64 origin_ns, gint64 end_ns)
{
    guint n_devices = rp_trace_gpus(trace);
    gboolean dispatched = rp_trace_dispatched(trace);
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n_records = rp_trace_n_records(trace);
    g_autofree Device *devices = g_new0(Device, n_devices);
    RpBubble result = {.makespan_ns = end_ns - origin_ns};
    Wide busy_ns = 0, fill_ns = 0, switch_ns = 0, drain_ns = 0, exposed_ns = 0, expand_ns = 0;

    for (guint g = 0; g < n_devices; g++)
        devices[g].previous_end_ns = origin_ns;
    for (gsize i = 0; i < n_records; i++) {
        if (iteration != RP_NONE && records[i].iteration != iteration)
            continue;
        guint g = rp_trace_lane_device(trace, records[i].lane);
        if (is_expansion(trace, &records[i]))
            count_expansion(&devices[g], within(&records[i], origin_ns, end_ns));
        if (!is_compute(trace, &records[i]))
            continue;
        count_action(&devices[g], &records[i], dispatched, n_devices - g);
    }
    if (result.makespan_ns <= 0)
        return result;

    for (guint g = 0; g < n_devices; g++) {
        Device *device = &devices[g];

        leave_iteration(device);
        busy_ns += device->busy_ns;
        switch_ns += device->switch_ns;
        exposed_ns += device->exposed_ns;
        expand_ns += device->expand_ns;
        fill_ns += (device->started ? device->first_start_ns : end_ns) - origin_ns -
                   device->expand_before_ns;
        if (device->started)
            drain_ns += end_ns - device->last_backward_end_ns - device->busy_after_ns;
    }
    double all = (double)n_devices * (double)result.makespan_ns;
    Wide idle_ns = (Wide)n_devices * result.makespan_ns - busy_ns;
    result.busy_ns = (gint64)MIN(busy_ns, (Wide)G_MAXINT64);
    result.ratio = (double)idle_ns / all;
    result.fill = (double)fill_ns / all;
    result.switch_ = (double)switch_ns / all;
    result.drain = (double)drain_ns / all;
    result.intra = (double)(idle_ns - fill_ns - switch_ns - drain_ns) / all;
    result.comm_exposed = (double)exposed_ns / all;
    result.expand = (double)expand_ns / all;
    return result;
}

RpBubble
rp_report_bubble(const RpTrace *trace)
{
    return bubble(trace, RP_NONE, 0, rp_trace_makespan_ns(trace));
}

/* Start of the first and end of the last action; FALSE if the iteration has none. */
gboolean
rp_report_iteration_span(const RpTrace *trace, guint32 iteration, gint64 *start_ns, gint64 *end_ns)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n_records = rp_trace_n_records(trace);

    *start_ns = G_MAXINT64;
    *end_ns = G_MININT64;
    for (gsize i = 0; i < n_records; i++) {
        if (records[i].iteration != iteration || !is_compute(trace, &records[i]))
            continue;
        *start_ns = MIN(*start_ns, records[i].start_ns);
        *end_ns = MAX(*end_ns, records[i].end_ns);
    }
    return *start_ns != G_MAXINT64;
}

RpBubble
rp_report_bubble_of_iteration(const RpTrace *trace, guint iteration)
{
    gint64 start_ns, end_ns;

    if (!rp_report_iteration_span(trace, iteration, &start_ns, &end_ns))
        return (RpBubble){0};
    return bubble(trace, iteration, start_ns, end_ns);
}

/* The sum over all devices, within a window. */
static Wide
sum_within(const RpTrace *trace, gboolean (*counts)(const RpTrace *, const RpTraceRecord *),
           gint64 from_ns, gint64 to_ns)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n_records = rp_trace_n_records(trace);
    Wide sum_ns = 0;

    for (gsize i = 0; i < n_records; i++)
        if (counts(trace, &records[i]))
            sum_ns += within(&records[i], from_ns, to_ns);
    return sum_ns;
}

static gboolean
is_busy(const RpTrace *trace, const RpTraceRecord *record)
{
    return is_compute(trace, record) || is_expansion(trace, record);
}

double
rp_report_ratio_between(const RpTrace *trace, gint64 from_ns, gint64 to_ns)
{
    if (to_ns <= from_ns)
        return 0;
    return 1 - (double)sum_within(trace, is_busy, from_ns, to_ns) /
                   ((double)rp_trace_gpus(trace) * (double)(to_ns - from_ns));
}

RpSteady
rp_report_steady(const RpTrace *trace, guint first, guint end)
{
    gint64 from_ns, to_ns, unused_ns;
    RpSteady steady = {.first_iteration = first, .end_iteration = end};

    g_return_val_if_fail(first < end, steady);
    gboolean found = rp_report_iteration_span(trace, first, &from_ns, &unused_ns) &&
                     rp_report_iteration_span(trace, end, &to_ns, &unused_ns);
    g_return_val_if_fail(found, steady);
    if (to_ns <= from_ns)
        return steady;
    steady.iteration_ns = (to_ns - from_ns + (end - first) / 2) / (end - first);
    steady.ratio = rp_report_ratio_between(trace, from_ns, to_ns);
    return steady;
}

/* Exposed communication of the window: as bubble() counts it, gaps clipped. */
static gint64
exposed_ns(const RpTrace *trace, gint64 from_ns, gint64 to_ns)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n_records = rp_trace_n_records(trace);
    guint n_devices = rp_trace_gpus(trace);
    g_autofree gint64 *previous_end_ns = g_new(gint64, n_devices);
    g_autofree gint64 *expand_ns = g_new0(gint64, n_devices); /* since then */
    gint64 exposed = 0;

    for (guint g = 0; g < n_devices; g++)
        previous_end_ns[g] = from_ns;
    for (gsize i = 0; i < n_records; i++) {
        guint g = rp_trace_lane_device(trace, records[i].lane);
        if (is_expansion(trace, &records[i]))
            expand_ns[g] += within(&records[i], from_ns, to_ns);
        if (!is_compute(trace, &records[i]))
            continue;
        gint64 gap_ns = MIN(records[i].start_ns, to_ns) - previous_end_ns[g] - expand_ns[g];

        expand_ns[g] = 0;
        exposed += CLAMP(gap_ns, 0, records[i].transfer_ns);
        previous_end_ns[g] = MAX(previous_end_ns[g], records[i].end_ns);
    }
    return exposed;
}

RpBubble
rp_report_steady_bubble(const RpTrace *trace, const RpSteady *steady, gboolean flushed)
{
    gint64 from_ns, to_ns, unused_ns;
    double gpus = rp_trace_gpus(trace);
    RpBubble bubble = {.ratio = steady->ratio};
    gboolean found =
        rp_report_iteration_span(trace, steady->first_iteration, &from_ns, &unused_ns) &&
        rp_report_iteration_span(trace, steady->end_iteration, &to_ns, &unused_ns);

    g_return_val_if_fail(found, bubble);
    double all = gpus * (double)(to_ns - from_ns);
    bubble.makespan_ns = to_ns - from_ns;
    if (!(all > 0))
        return bubble;
    for (guint k = steady->first_iteration; k < steady->end_iteration; k++) {
        RpBubble one = rp_report_bubble_of_iteration(trace, k);
        const double share = gpus * (double)one.makespan_ns / all;

        bubble.switch_ += one.switch_ * share;
        bubble.fill += flushed ? one.fill * share : 0;
        bubble.intra += flushed ? one.intra * share : 0;
    }
    bubble.busy_ns = (gint64)(all * (1 - bubble.ratio));
    bubble.expand = (double)sum_within(trace, is_expansion, from_ns, to_ns) / all;
    bubble.switch_ = MIN(bubble.switch_, bubble.ratio);
    if (flushed)
        bubble.drain = bubble.ratio - bubble.switch_ - bubble.fill - bubble.intra;
    else
        bubble.intra = bubble.ratio - bubble.switch_;
    bubble.comm_exposed = (double)exposed_ns(trace, from_ns, to_ns) / all;
    return bubble;
}

GArray *
rp_report_device_use(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n_records = rp_trace_n_records(trace);
    GArray *uses = g_array_new(FALSE, TRUE, sizeof(RpDeviceUse));

    g_array_set_size(uses, rp_trace_gpus(trace));
    for (gsize i = 0; i < n_records; i++) {
        const RpTraceRecord *record = &records[i];
        guint g = rp_trace_lane_device(trace, record->lane);
        if (g == RP_NONE)
            continue;
        RpDeviceUse *use = &g_array_index(uses, RpDeviceUse, g);
        guint kind = rp_trace_lane_kind(trace, record->lane);

        use->busy_ns[kind] += record->end_ns - record->start_ns;
        if (kind == RP_LANE_COMPUTE) {
            if (use->actions == 0 || record->start_ns < use->first_start_ns)
                use->first_start_ns = record->start_ns;
            use->last_end_ns = MAX(use->last_end_ns, record->end_ns);
            use->actions++;
        } else if (kind == RP_LANE_ACTIVATION_UP || kind == RP_LANE_PARAMETER_UP) {
            use->bytes_up += record->bytes;
        } else {
            use->bytes_down += record->bytes;
        }
    }
    return uses;
}

/**
 * Memory over time: which buffers of an arena hold something that is still to be read.
 *
 *   accesses of a buffer    W   W        R     R            W     R
 *   holds something         |------------------|            |-----|
 *
 * A value is written, in one piece or in several that count as they come, then read; the next pure write after a read starts
 * another. A buffer whose first access reads held its value from the start; one that is read and never
 * written, and the master weights and optimizer state on the host, hold theirs all the time. A buffer that
 * no task touches holds nothing: its bytes may be another's.
 */

/* The value that a buffer holds. */
typedef struct {
    gboolean held;
    gboolean read;    /* since it was written */
    gboolean written; /* ever */
    guint64 bytes;    /* bytes written so far, if it comes in pieces; else all */
    gint64 end_ns;    /* end of its last access so far */
} Value;

/* @bytes more from @time_ns on. */
typedef struct {
    gint64 time_ns;
    gint64 bytes;
} Change;

static void
add_change(GArray *changes, gint64 time_ns, gint64 bytes)
{
    const Change change = {time_ns, bytes};

    if (bytes != 0)
        g_array_append_val(changes, change);
}

/* The value takes @bytes more, from @start_ns on. */
static void
grow(GArray *changes, Value *value, gint64 start_ns, guint64 bytes)
{
    add_change(changes, start_ns, (gint64)bytes);
    value->bytes += bytes;
}

static void
count_access(GArray *changes, Value *value, guint32 mode, const RpTask *task,
             const RpTraceRecord *record, const RpBuffer *buffer)
{
    const gboolean reads = (mode & RP_ACCESS_READ) != 0;
    /* scratch space holds nothing from one task to the next */
    const gboolean anew = !value->held || value->read || buffer->category == RP_BUFFER_WORKSPACE;
    const guint64 piece = task->bytes > 0 ? MIN(task->bytes, buffer->bytes) : buffer->bytes;

    if (!reads && anew) {
        /* in a valid trace the old value is not needed any more when the new one is written */
        add_change(changes, MIN(value->end_ns, record->start_ns), -(gint64)value->bytes);
        *value = (Value){.held = TRUE, .end_ns = record->start_ns};
        grow(changes, value, record->start_ns, piece);
    } else if (!reads) {
        grow(changes, value, record->start_ns, MIN(piece, buffer->bytes - value->bytes));
    } else {
        grow(changes, value, value->held ? record->start_ns : 0, buffer->bytes - value->bytes);
        value->held = TRUE;
    }
    value->read |= reads;
    value->written |= (mode & RP_ACCESS_WRITE) != 0;
    value->end_ns = MAX(value->end_ns, record->end_ns);
}

/* Master weights and optimizer state are still to be read after the last task. */
static gboolean
is_home(const RpPlan *plan, const RpBuffer *buffer)
{
    return buffer->arena == rp_plan_gpus(plan) &&
           (buffer->category == RP_BUFFER_PARAMETERS || buffer->category == RP_BUFFER_OPTIMIZER);
}

static gint
compare_changes(gconstpointer a, gconstpointer b)
{
    const Change *x = a, *y = b;

    return (x->time_ns > y->time_ns) - (x->time_ns < y->time_ns);
}

/* Sorts and sums up; one step for each time at which the sum differs. */
static GArray *
steps_from_changes(GArray *changes)
{
    GArray *steps = g_array_new(FALSE, FALSE, sizeof(RpMemoryStep));
    RpMemoryStep step = {0};
    gint64 bytes = 0;

    g_array_sort(changes, compare_changes);
    for (guint i = 0; i < changes->len;) {
        gint64 time_ns = g_array_index(changes, Change, i).time_ns;
        if (i == 0 && time_ns > 0)
            g_array_append_val(steps, step);
        for (; i < changes->len && g_array_index(changes, Change, i).time_ns == time_ns; i++)
            bytes += g_array_index(changes, Change, i).bytes;
        if (steps->len > 0 && (guint64)bytes == step.bytes)
            continue;
        step = (RpMemoryStep){.time_ns = time_ns, .bytes = (guint64)bytes};
        g_array_append_val(steps, step);
    }
    return steps;
}

GArray *
rp_report_memory_curve(const RpPlan *plan, const RpTrace *trace, guint32 arena)
{
    guint n_buffers = rp_plan_n_buffers(plan);
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize n_records = rp_trace_n_records(trace);
    gint64 trace_end_ns = rp_trace_end_ns(trace);
    g_autofree Value *values = g_new0(Value, n_buffers);
    g_autoptr(GArray) changes = g_array_new(FALSE, FALSE, sizeof(Change));

    for (gsize i = 0; i < n_records; i++) {
        const RpTraceRecord *record = &records[i];
        if (record->task < rp_plan_first_id(plan) || record->task >= rp_plan_end_id(plan))
            continue;
        const RpTask *task = rp_plan_task(plan, record->task);
        const RpAccess *accesses = rp_plan_accesses(plan, task);

        for (guint k = 0; k < task->access_count; k++) {
            const RpBuffer *buffer = rp_plan_buffer(plan, accesses[k].buffer);
            if (buffer->arena == arena && !is_home(plan, buffer))
                count_access(changes, &values[accesses[k].buffer], accesses[k].mode, task, record,
                             buffer);
        }
    }
    for (guint32 b = 0; b < n_buffers; b++) {
        const RpBuffer *buffer = rp_plan_buffer(plan, b);
        if (buffer->arena != arena)
            continue;
        if (is_home(plan, buffer) || (values[b].held && !values[b].written))
            values[b].end_ns = trace_end_ns;
        if (is_home(plan, buffer))
            grow(changes, &values[b], 0, buffer->bytes);
        add_change(changes, values[b].end_ns,
                   -(gint64)values[b].bytes); /* 0, if no task has touched it */
    }
    return steps_from_changes(changes);
}
