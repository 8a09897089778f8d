/**
 * Chrome trace JSON, one event a line, so that it can be written and read back as a stream.
 *
 *   {"otherData":{"format":"roundpipe-trace/1",...},"displayTimeUnit":"ms","traceEvents":[
 *   {"ph":"M","pid":1,"name":"process_name","args":{"name":"gpu 0"}}
 *   ,{"ph":"X","pid":1,"tid":1,"ts":0.000,"dur":1.000,"name":"0F0","cat":"forward",...}
 *   ]}
 *
 * Process g + 1 is device g, the one after the devices is the host; thread l + 1 is lane l. Neither
 * starts at 0: Perfetto takes thread 0 of every process for the same idle thread.
 */
#include "core/formats/private.h"

#include "core/trace/report.h"

const char *const rp_chrome_origins[] = {"predicted", "measured", NULL};

#define US_DECIMALS 3

static void
add_us(RpJsonWriter *json, const char *key, gint64 ns)
{
    rp_json_decimal(json, key, ns, US_DECIMALS, US_DECIMALS);
}

static void
begin_event(RpJsonWriter *json, const char *phase, guint pid)
{
    rp_json_object(json, NULL);
    rp_json_string(json, "ph", phase);
    rp_json_uint(json, "pid", pid);
}

static void
end_line(RpJsonWriter *json)
{
    g_string_append_c(rp_json_writer_text(json), '\n');
}

static void
end_event(RpJsonWriter *json)
{
    rp_json_end(json);
    end_line(json);
}

/* Names a process, or with @tid > 0 a thread; with @name NULL it gives its place in their order
 * instead. */
static void
add_metadata(RpJsonWriter *json, guint pid, guint tid, const char *what, const char *name,
             guint index)
{
    begin_event(json, "M", pid);
    if (tid > 0)
        rp_json_uint(json, "tid", tid);
    rp_json_string(json, "name", what);
    rp_json_object(json, "args");
    if (name != NULL)
        rp_json_string(json, "name", name);
    else
        rp_json_uint(json, "sort_index", index);
    rp_json_end(json);
    end_event(json);
}

/* Lanes of the host: that of the network if there is anything on it. */
static guint
host_lanes(const RpTrace *trace)
{
    const guint32 network = rp_trace_gpus(trace) * RP_LANES_PER_DEVICE + RP_HOST_LANE_NETWORK;

    for (gsize i = 0; i < rp_trace_n_records(trace); i++)
        if (rp_trace_records(trace)[i].lane == network)
            return RP_HOST_LANES;
    return RP_HOST_LANE_NETWORK;
}

/* Up to the first task; the file's object and the array of events stay open. */
static void
begin_file(RpJsonWriter *json, const RpTrace *trace)
{
    guint gpus = rp_trace_gpus(trace);

    rp_json_object(json, NULL);
    rp_json_object(json, "otherData");
    rp_json_string(json, "format", RP_CHROME_FORMAT);
    rp_json_string(json, "origin", rp_chrome_origins[rp_trace_origin(trace)]);
    rp_json_uint(json, "gpus", gpus);
    rp_json_bool(json, "dispatched", rp_trace_dispatched(trace));
    rp_json_uint(json, "records", rp_trace_n_records(trace));
    rp_json_end(json);
    rp_json_string(json, "displayTimeUnit", "ms");
    rp_json_array(json, "traceEvents");
    end_line(json);
    for (guint g = 0; g <= gpus; g++) {
        gboolean host = g == gpus;
        guint n_lanes = host ? host_lanes(trace) : (guint)RP_LANES_PER_DEVICE;
        g_autofree char *name = host ? g_strdup("host") : g_strdup_printf("gpu %u", g);

        add_metadata(json, g + 1, 0, "process_name", name, 0);
        add_metadata(json, g + 1, 0, "process_sort_index", NULL, g);
        for (guint k = 0; k < n_lanes; k++) {
            guint lane = g * RP_LANES_PER_DEVICE + k;
            guint kind = host ? RP_LANES_PER_DEVICE + k : k;
            add_metadata(json, g + 1, lane + 1, "thread_name", rp_lane_name(kind), 0);
            add_metadata(json, g + 1, lane + 1, "thread_sort_index", NULL, kind);
        }
    }
}

/* Names of Chrome's palette; a name that is not listed gets a colour from its letters. */
static const char *const colours[RP_N_TASK_KINDS] = {
    [RP_TASK_FORWARD] = "thread_state_runnable", [RP_TASK_BACKWARD] = "thread_state_running",
    [RP_TASK_FUSED] = "rail_animation",          [RP_TASK_OVERLAP] = "rail_animation",
    [RP_TASK_INPUT_GRADIENT] = "rail_response",  [RP_TASK_WEIGHT_GRADIENT] = "rail_load",
};

/* Actions are called as in PyTorch's CSV, `3F0`; everything else by its kind. */
static void
add_name(RpJsonWriter *json, const RpTraceRecord *record)
{
    static const char *const letters[] = {
        [RP_TASK_FORWARD] = "F",        [RP_TASK_BACKWARD] = "B",        [RP_TASK_FUSED] = "FB",
        [RP_TASK_INPUT_GRADIENT] = "I", [RP_TASK_WEIGHT_GRADIENT] = "W",
    };
    char name[64];

    if (record->kind == RP_TASK_OVERLAP)
        g_snprintf(name, sizeof name, "%uF%u&%uB%u", record->stage, record->micro_batch,
                   record->layer, record->chunk);
    else if (record->kind < RP_TASK_OVERLAP)
        g_snprintf(name, sizeof name, "%u%s%u", record->stage, letters[record->kind],
                   record->micro_batch);
    else
        g_strlcpy(name, rp_task_kind_name((RpTaskKind)record->kind), sizeof name);
    rp_json_string(json, "name", name);
}

static void
add_index(RpJsonWriter *json, const char *key, guint32 value)
{
    if (value != RP_NONE)
        rp_json_uint(json, key, value);
}

static void
add_record(RpJsonWriter *json, const RpTraceRecord *record)
{
    const char *cname = record->kind < RP_N_TASK_KINDS ? colours[record->kind] : NULL;
    gboolean overlap = record->kind == RP_TASK_OVERLAP;

    begin_event(json, "X", record->lane / RP_LANES_PER_DEVICE + 1);
    rp_json_uint(json, "tid", record->lane + 1);
    add_us(json, "ts", record->start_ns);
    add_us(json, "dur", record->end_ns - record->start_ns);
    add_name(json, record);
    rp_json_string(json, "cat", rp_task_kind_name((RpTaskKind)record->kind));
    if (cname != NULL)
        rp_json_string(json, "cname", cname);
    rp_json_object(json, "args");
    rp_json_uint(json, "task", record->task);
    rp_json_uint(json, "iteration", record->iteration);
    rp_json_uint(json, "round", record->round);
    add_index(json, "stage", record->stage);
    add_index(json, "micro_batch", record->micro_batch);
    add_index(json, overlap ? "backward_stage" : "layer", record->layer);
    add_index(json, overlap ? "backward_micro_batch" : "chunk", record->chunk);
    if (record->bytes > 0)
        rp_json_uint(json, "bytes", record->bytes);
    if (record->transfer_ns != 0)
        rp_json_int(json, "transfer_ns", record->transfer_ns);
    rp_json_end(json);
    end_event(json);
}

static gboolean
write_memory(RpSink *sink, const RpTrace *trace, const RpPlan *plan)
{
    for (guint32 arena = 0; arena <= rp_trace_gpus(trace); arena++) {
        g_autoptr(GArray) steps = rp_report_memory_curve(plan, trace, arena);

        for (guint i = 0; i < steps->len; i++) {
            const RpMemoryStep *step = &g_array_index(steps, RpMemoryStep, i);

            begin_event(sink->json, "C", arena + 1);
            add_us(sink->json, "ts", step->time_ns);
            rp_json_string(sink->json, "name", "memory");
            rp_json_object(sink->json, "args");
            rp_json_uint(sink->json, "bytes", step->bytes);
            rp_json_end(sink->json);
            end_event(sink->json);
            if (!rp_sink_step(sink))
                return FALSE;
        }
    }
    return TRUE;
}

static const RpTraceRecord *
find_record(const RpTrace *trace, RpTaskId task)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    gsize low = 0, high = rp_trace_n_records(trace);

    while (low < high) {
        gsize middle = low + (high - low) / 2;
        if (records[middle].task < task)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < rp_trace_n_records(trace) && records[low].task == task)
        return &records[low];
    return NULL;
}

static void
add_flow_end(RpJsonWriter *json, gboolean start, guint64 id, const RpTraceRecord *record)
{
    rp_json_object(json, NULL);
    rp_json_string(json, "ph", start ? "s" : "f");
    rp_json_uint(json, "id", id);
    rp_json_uint(json, "pid", record->lane / RP_LANES_PER_DEVICE + 1);
    rp_json_uint(json, "tid", record->lane + 1);
    /* an arrow sticks to the event that its time is in, and the end of one is not in it */
    add_us(json, "ts", start ? MAX(record->start_ns, record->end_ns - 1) : record->start_ns);
    rp_json_string(json, "name", "dependency");
    rp_json_string(json, "cat", "dependency");
    if (!start)
        rp_json_string(json, "bp", "e");
    end_event(json);
}

static gboolean
write_flows(RpSink *sink, const RpTrace *trace, const RpPlan *plan)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    guint64 id = 0;

    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        if (records[i].task < rp_plan_first_id(plan) || records[i].task >= rp_plan_end_id(plan))
            continue;
        const RpTask *task = rp_plan_task(plan, records[i].task);
        const RpDependency *dependencies = rp_plan_dependencies(plan, task);

        for (guint k = 0; k < task->dependency_count; k++) {
            const RpTraceRecord *from = find_record(trace, dependencies[k].task);
            if (from == NULL || from->lane == records[i].lane)
                continue;
            add_flow_end(sink->json, TRUE, id, from);
            add_flow_end(sink->json, FALSE, id, &records[i]);
            id++;
        }
        if (!rp_sink_step(sink))
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_export_chrome(const RpTrace *trace, const RpPlan *plan, guint flags, GOutputStream *stream,
                 GError **error)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    RpSink sink;

    g_return_val_if_fail(flags == 0 || plan != NULL, FALSE);

    rp_sink_init(&sink, stream);
    begin_file(sink.json, trace);
    for (gsize i = 0; i < rp_trace_n_records(trace); i++) {
        add_record(sink.json, &records[i]);
        if (!rp_sink_step(&sink))
            break;
    }
    if (sink.error == NULL && (flags & RP_CHROME_MEMORY))
        write_memory(&sink, trace, plan);
    if (sink.error == NULL && (flags & RP_CHROME_FLOWS))
        write_flows(&sink, trace, plan);
    rp_json_end(sink.json);
    rp_json_end(sink.json);
    end_line(sink.json);
    return rp_sink_finish(&sink, error);
}
