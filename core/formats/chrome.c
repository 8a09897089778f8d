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

/* Nanoseconds as microseconds, exactly. */
static void
append_us(GString *text, gint64 ns)
{
    guint64 magnitude = ns < 0 ? -(guint64)ns : (guint64)ns;

    g_string_append_printf(text, "%s%" G_GUINT64_FORMAT ".%03u", ns < 0 ? "-" : "",
                           magnitude / 1000, (guint)(magnitude % 1000));
}

static void
append_metadata(GString *text, const char *first, guint pid, const char *what, const char *value)
{
    g_string_append_printf(text, "%s{\"ph\":\"M\",\"pid\":%u,\"name\":\"%s\",\"args\":{%s}}\n",
                           first, pid, what, value);
}

static void
append_lane(GString *text, guint pid, guint lane, guint lane_kind)
{
    g_string_append_printf(text,
                           ",{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_name\","
                           "\"args\":{\"name\":\"%s\"}}\n"
                           ",{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_sort_index\","
                           "\"args\":{\"sort_index\":%u}}\n",
                           pid, lane + 1, rp_lane_name(lane_kind), pid, lane + 1, lane_kind);
}

void
rp_chrome_format_header(GString *text, const RpChromeHeader *header)
{
    g_string_append_printf(text,
                           "{\"otherData\":{\"format\":\"roundpipe-trace/1\",\"origin\":\"%s\","
                           "\"gpus\":%u,\"dispatched\":%s,\"records\":%" G_GUINT64_FORMAT "},"
                           "\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n",
                           header->origin == RP_TRACE_PREDICTED ? "predicted" : "measured",
                           header->gpus, header->dispatched ? "true" : "false", header->n_records);
    for (guint g = 0; g <= header->gpus; g++) {
        gboolean host = g == header->gpus;
        guint n_lanes = host ? (guint)RP_HOST_LANES : (guint)RP_LANES_PER_DEVICE;
        char value[64];

        if (host)
            g_strlcpy(value, "\"name\":\"host\"", sizeof value);
        else
            g_snprintf(value, sizeof value, "\"name\":\"gpu %u\"", g);
        append_metadata(text, g == 0 ? "" : ",", g + 1, "process_name", value);
        g_snprintf(value, sizeof value, "\"sort_index\":%u", g);
        append_metadata(text, ",", g + 1, "process_sort_index", value);
        for (guint k = 0; k < n_lanes; k++)
            append_lane(text, g + 1, g * RP_LANES_PER_DEVICE + k,
                        host ? RP_LANES_PER_DEVICE + k : k);
    }
}

/* Names of Chrome's palette; what is not listed gets a colour from its name. */
static const char *
color(guint8 kind)
{
    switch (kind) {
    case RP_TASK_FORWARD:
        return "thread_state_runnable";
    case RP_TASK_BACKWARD:
        return "thread_state_running";
    case RP_TASK_FUSED:
    case RP_TASK_OVERLAP:
        return "rail_animation";
    case RP_TASK_INPUT_GRADIENT:
        return "rail_response";
    case RP_TASK_WEIGHT_GRADIENT:
        return "rail_load";
    default:
        return NULL;
    }
}

/* Actions are called as in PyTorch's CSV, `3F0`; everything else by its kind. */
static void
append_name(GString *text, const RpTraceRecord *record)
{
    static const char *const letters[] = {
        [RP_TASK_FORWARD] = "F",        [RP_TASK_BACKWARD] = "B",        [RP_TASK_FUSED] = "FB",
        [RP_TASK_INPUT_GRADIENT] = "I", [RP_TASK_WEIGHT_GRADIENT] = "W",
    };

    if (record->kind == RP_TASK_OVERLAP)
        g_string_append_printf(text, "%uF%u&%uB%u", record->stage, record->micro_batch,
                               record->layer, record->chunk);
    else if (record->kind < RP_TASK_OVERLAP)
        g_string_append_printf(text, "%u%s%u", record->stage, letters[record->kind],
                               record->micro_batch);
    else
        g_string_append(text, rp_task_kind_name((RpTaskKind)record->kind));
}

static void
append_index(GString *text, const char *key, guint32 value)
{
    if (value != RP_NONE)
        g_string_append_printf(text, ",\"%s\":%u", key, value);
}

void
rp_chrome_format_record(GString *text, const RpTraceRecord *record)
{
    const char *cname = color(record->kind);
    gboolean overlap = record->kind == RP_TASK_OVERLAP;

    g_string_append_printf(text, ",{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":",
                           record->lane / RP_LANES_PER_DEVICE + 1, record->lane + 1);
    append_us(text, record->start_ns);
    g_string_append(text, ",\"dur\":");
    append_us(text, record->end_ns - record->start_ns);
    g_string_append(text, ",\"name\":\"");
    append_name(text, record);
    g_string_append_printf(text, "\",\"cat\":\"%s\"", rp_task_kind_name((RpTaskKind)record->kind));
    if (cname)
        g_string_append_printf(text, ",\"cname\":\"%s\"", cname);
    g_string_append_printf(
        text, ",\"args\":{\"task\":%" G_GUINT64_FORMAT ",\"iteration\":%u,\"round\":%u",
        record->task, record->iteration, record->round);
    append_index(text, "stage", record->stage);
    append_index(text, "micro_batch", record->micro_batch);
    append_index(text, overlap ? "backward_stage" : "layer", record->layer);
    append_index(text, overlap ? "backward_micro_batch" : "chunk", record->chunk);
    if (record->bytes > 0)
        g_string_append_printf(text, ",\"bytes\":%" G_GUINT64_FORMAT, record->bytes);
    if (record->transfer_ns != 0)
        g_string_append_printf(text, ",\"transfer_ns\":%" G_GINT64_FORMAT, record->transfer_ns);
    g_string_append(text, "}}\n");
}

static gboolean
write_memory(RpSink *sink, const RpTrace *trace, const RpPlan *plan)
{
    for (guint32 arena = 0; arena <= rp_trace_gpus(trace); arena++) {
        g_autoptr(GArray) steps = rp_report_memory_curve(plan, trace, arena);

        for (guint i = 0; i < steps->len; i++) {
            const RpMemoryStep *step = &g_array_index(steps, RpMemoryStep, i);

            g_string_append_printf(sink->text, ",{\"ph\":\"C\",\"pid\":%u,\"ts\":", arena + 1);
            append_us(sink->text, step->time_ns);
            g_string_append_printf(
                sink->text, ",\"name\":\"memory\",\"args\":{\"bytes\":%" G_GUINT64_FORMAT "}}\n",
                step->bytes);
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
append_flow_end(GString *text, gboolean start, guint64 id, const RpTraceRecord *record)
{
    /* an arrow sticks to the event that its time is in, and the end of one is not in it */
    gint64 ns = start ? MAX(record->start_ns, record->end_ns - 1) : record->start_ns;

    g_string_append_printf(
        text, ",{\"ph\":\"%s\",\"id\":%" G_GUINT64_FORMAT ",\"pid\":%u,\"tid\":%u,\"ts\":",
        start ? "s" : "f", id, record->lane / RP_LANES_PER_DEVICE + 1, record->lane + 1);
    append_us(text, ns);
    g_string_append_printf(text, ",\"name\":\"dependency\",\"cat\":\"dependency\"%s}\n",
                           start ? "" : ",\"bp\":\"e\"");
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
            if (!from || from->lane == records[i].lane)
                continue;
            append_flow_end(sink->text, TRUE, id, from);
            append_flow_end(sink->text, FALSE, id, &records[i]);
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
    RpChromeHeader header = {
        .gpus = rp_trace_gpus(trace),
        .origin = rp_trace_origin(trace),
        .dispatched = rp_trace_dispatched(trace),
        .n_records = rp_trace_n_records(trace),
    };
    RpSink sink;

    g_return_val_if_fail(flags == 0 || plan != NULL, FALSE);

    rp_sink_init(&sink, stream);
    rp_chrome_format_header(sink.text, &header);
    for (gsize i = 0; i < header.n_records; i++) {
        rp_chrome_format_record(sink.text, &records[i]);
        if (!rp_sink_step(&sink))
            break;
    }
    if (!sink.error && (flags & RP_CHROME_MEMORY))
        write_memory(&sink, trace, plan);
    if (!sink.error && (flags & RP_CHROME_FLOWS))
        write_flows(&sink, trace, plan);
    g_string_append(sink.text, "]}\n");
    return rp_sink_finish(&sink, error);
}
