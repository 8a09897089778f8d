#include "core/trace/trace.h"

/* Records for which a trace without a plan first gets memory. */
#define FIRST_CAPACITY 256

struct _RpTrace {
    guint gpus;
    RpTraceOrigin origin;
    gboolean dispatched;
    gsize n_records;
    gsize capacity;
    gsize first_capacity; /* tasks of the plan, all of which are likely to run */
    RpTraceRecord *records;
};

RpTrace *
rp_trace_new_empty(guint gpus, RpTraceOrigin origin)
{
    RpTrace *trace = g_new0(RpTrace, 1);

    trace->gpus = gpus;
    trace->origin = origin;
    trace->first_capacity = FIRST_CAPACITY;
    return trace;
}

RpTrace *
rp_trace_new(const RpPlan *plan, RpTraceOrigin origin)
{
    g_return_val_if_fail(plan != NULL, NULL);

    RpTrace *trace = rp_trace_new_empty(rp_plan_gpus(plan), origin);
    trace->first_capacity =
        MAX(FIRST_CAPACITY, (gsize)(rp_plan_end_id(plan) - rp_plan_first_id(plan)));
    for (guint32 s = 0; s < rp_plan_n_stages(plan); s++)
        if (!rp_plan_stage(plan, s)->bound)
            trace->dispatched = TRUE;
    return trace;
}

void
rp_trace_free(RpTrace *trace)
{
    if (trace == NULL)
        return;
    g_free(trace->records);
    g_free(trace);
}

guint
rp_trace_gpus(const RpTrace *trace)
{
    return trace->gpus;
}

guint32
rp_trace_lane_device(const RpTrace *trace, guint32 lane)
{
    guint32 device = lane / RP_LANES_PER_DEVICE;

    return device < trace->gpus ? device : RP_NONE;
}

guint
rp_trace_lane_kind(const RpTrace *trace, guint32 lane)
{
    guint32 host = trace->gpus * RP_LANES_PER_DEVICE;

    return lane < host ? lane % RP_LANES_PER_DEVICE : RP_LANES_PER_DEVICE + (lane - host);
}

RpTraceOrigin
rp_trace_origin(const RpTrace *trace)
{
    return trace->origin;
}

gboolean
rp_trace_dispatched(const RpTrace *trace)
{
    return trace->dispatched;
}

void
rp_trace_set_dispatched(RpTrace *trace, gboolean dispatched)
{
    trace->dispatched = dispatched;
}

RpTraceRecord *
rp_trace_extend(RpTrace *trace, gsize n)
{
    g_return_val_if_fail(n <= G_MAXSIZE / sizeof(RpTraceRecord) / 2 - trace->n_records, NULL);

    if (trace->n_records + n > trace->capacity) {
        gsize capacity = MAX(trace->first_capacity, trace->capacity + trace->capacity / 2);
        capacity = MAX(capacity, trace->n_records + n);
        trace->records = g_renew(RpTraceRecord, trace->records, capacity);
        trace->capacity = capacity;
    }
    RpTraceRecord *first = trace->records + trace->n_records;
    trace->n_records += n;
    return first;
}

void
rp_trace_append(RpTrace *trace, const RpTraceRecord *record)
{
    *rp_trace_extend(trace, 1) = *record;
}

void
rp_trace_record_init(RpTraceRecord *record, RpTaskId id, const RpTask *task)
{
    *record = (RpTraceRecord){
        .bytes = task->bytes,
        .task = id,
        .lane = task->lane,
        .iteration = task->iteration,
        .micro_batch = task->micro_batch,
        .stage = task->stage,
        .layer = task->layer,
        .chunk = task->chunk,
        .round = task->round,
        .kind = task->kind,
    };
}

gsize
rp_trace_n_records(const RpTrace *trace)
{
    return trace->n_records;
}

const RpTraceRecord *
rp_trace_records(const RpTrace *trace)
{
    return trace->records;
}

gint64
rp_trace_end_ns(const RpTrace *trace)
{
    gint64 end_ns = 0;

    for (gsize i = 0; i < trace->n_records; i++)
        end_ns = MAX(end_ns, trace->records[i].end_ns);
    return end_ns;
}

gint64
rp_trace_makespan_ns(const RpTrace *trace)
{
    gint64 end_ns = 0;

    for (gsize i = 0; i < trace->n_records; i++)
        if (trace->records[i].kind <= RP_TASK_OVERLAP)
            end_ns = MAX(end_ns, trace->records[i].end_ns);
    return end_ns;
}
