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
#include "core/trace/report.h"

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
