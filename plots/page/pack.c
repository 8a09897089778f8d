/* Numbers of a page: columns of differences as varints in base64, a byte or two a task each. */
#include "plots/page/page-private.h"

#include "core/trace/needs.h"

/* Zigzag, seven bits a byte, the lowest first. */
static void
add_number(GByteArray *bytes, gint64 value)
{
    guint64 left = ((guint64)value << 1) ^ (value < 0 ? G_MAXUINT64 : 0);

    do {
        const guint8 byte = (guint8)((left & 127) | (left > 127 ? 128 : 0));

        g_byte_array_append(bytes, &byte, 1);
        left >>= 7;
    } while (left > 0);
}

static void
end_column(RpJsonWriter *json, const char *key, GByteArray *bytes)
{
    g_autofree char *text = g_base64_encode(bytes->data, bytes->len);

    rp_json_string(json, key, text);
    g_byte_array_set_size(bytes, 0);
}

/* Columns that change little from one task to the next, so that their differences compress well. */
static gint64
member(const RpTraceRecord *record, guint column)
{
    const guint32 values[] = {record->kind,  record->stage, record->micro_batch, record->iteration,
                              record->round, record->layer, record->chunk};

    if (column == G_N_ELEMENTS(values))
        return (gint64)MIN(record->bytes, (guint64)1 << 52);
    return values[column] == RP_NONE ? -1 : (gint64)values[column];
}

static const char *const member_keys[] = {"kind",  "stage", "micro_batch", "iteration",
                                          "round", "layer", "chunk",       "bytes"};

/* Records by place. (transfer full) */
static const RpTraceRecord **
in_places(const RpTrace *trace, const guint32 *places)
{
    const gsize n = rp_trace_n_records(trace);
    const RpTraceRecord **sorted = g_new(const RpTraceRecord *, n + 1);

    for (gsize i = 0; i < n; i++)
        sorted[places[i]] = rp_trace_records(trace) + i;
    return sorted;
}

static void
pack_lanes(RpJsonWriter *json, const RpTraceRecord *const *sorted, gsize n)
{
    rp_json_array(json, "lanes");
    for (gsize first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && sorted[end]->lane == sorted[first]->lane;)
            end++;
        rp_json_array(json, NULL);
        rp_json_uint(json, NULL, sorted[first]->lane);
        rp_json_uint(json, NULL, end - first);
        rp_json_end(json);
    }
    rp_json_end(json);
}

/* From the end of the task before it on its lane, and how much longer than that it takes. */
static void
pack_times(RpJsonWriter *json, const RpTraceRecord *const *sorted, gsize n)
{
    g_autoptr(GByteArray) gaps = g_byte_array_new();
    g_autoptr(GByteArray) durations = g_byte_array_new();
    gint64 end_ns = 0, before_ns = 0;

    for (gsize i = 0; i < n; i++) {
        const gint64 duration_ns = sorted[i]->end_ns - sorted[i]->start_ns;

        if (i == 0 || sorted[i]->lane != sorted[i - 1]->lane)
            end_ns = before_ns = 0;
        add_number(gaps, sorted[i]->start_ns - end_ns);
        add_number(durations, duration_ns - before_ns);
        end_ns = sorted[i]->end_ns;
        before_ns = duration_ns;
    }
    end_column(json, "gap", gaps);
    end_column(json, "duration", durations);
}

static void
pack_gates(RpJsonWriter *json, const RpPageTrace *trace, const guint32 *places,
           const RpTraceRecord *const *sorted)
{
    const gsize n = rp_trace_n_records(trace->trace);
    const RpTraceRecord *records = rp_trace_records(trace->trace);
    g_autofree guint32 *gates = rp_trace_gates(trace->trace, trace->plan);
    g_autoptr(GByteArray) bytes = g_byte_array_new();

    for (gsize place = 0; place < n; place++) {
        const guint32 gate = gates[sorted[place] - records];

        add_number(bytes, gate == RP_NONE ? 0 : (gint64)place - (gint64)places[gate]);
    }
    end_column(json, "gate", bytes);
}

void
rp_page_pack_memory(RpJsonWriter *json, guint arena, const GArray *steps)
{
    g_autoptr(GByteArray) bytes = g_byte_array_new();

    rp_json_object(json, NULL);
    rp_json_uint(json, "arena", arena);
    rp_json_uint(json, "steps", steps->len);
    for (guint column = 0; column < 2; column++) {
        gint64 before = 0;

        for (guint i = 0; i < steps->len; i++) {
            const RpMemoryStep *step = &g_array_index(steps, RpMemoryStep, i);
            const gint64 value =
                column == 0 ? step->time_ns : (gint64)MIN(step->bytes, (guint64)1 << 52);

            add_number(bytes, value - before);
            before = value;
        }
        end_column(json, column == 0 ? "time" : "bytes", bytes);
    }
    rp_json_end(json);
}

guint32 *
rp_page_places(const RpTrace *trace)
{
    const RpTraceRecord *records = rp_trace_records(trace);
    const gsize n = rp_trace_n_records(trace);
    const gsize n_lanes = (gsize)rp_trace_gpus(trace) * RP_LANES_PER_DEVICE + RP_HOST_LANES;
    g_autofree guint32 *next = g_new0(guint32, n_lanes + 1);
    guint32 *places = g_new(guint32, n + 1);

    for (gsize i = 0; i < n; i++)
        next[records[i].lane + 1]++;
    for (gsize lane = 0; lane < n_lanes; lane++)
        next[lane + 1] += next[lane];
    for (gsize i = 0; i < n; i++)
        places[i] = next[records[i].lane]++;
    return places;
}

void
rp_page_pack_trace(RpPage *page, const RpPageTrace *trace, const guint32 *places,
                   const guint32 *twins)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);
    g_autofree const RpTraceRecord **sorted = in_places(trace->trace, places);
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    const gsize n = rp_trace_n_records(trace->trace);

    rp_json_object(json, NULL);
    rp_json_string(json, "name", trace->name);
    rp_json_uint(json, "gpus", rp_trace_gpus(trace->trace));
    rp_json_uint(json, "tasks", n);
    pack_lanes(json, sorted, n);
    for (gsize i = 0; i < n; i++)
        page->servers = page->servers || sorted[i]->kind >= RP_TASK_REDUCE;
    pack_times(json, sorted, n);
    for (guint column = 0; column < G_N_ELEMENTS(member_keys); column++) {
        gint64 before = 0;

        for (gsize i = 0; i < n; i++) {
            const gint64 value = member(sorted[i], column);

            add_number(bytes, value - before);
            before = value;
        }
        end_column(json, member_keys[column], bytes);
    }
    pack_gates(json, trace, places, sorted);
    if (twins != NULL) {
        gint64 before = 0;

        for (gsize i = 0; i < n; i++) {
            const gint64 value = twins[sorted[i] - rp_trace_records(trace->trace)];

            add_number(bytes, value - before);
            before = value;
        }
        end_column(json, "pair", bytes);
    }
    if (trace->memory != NULL) {
        rp_json_array(json, "memory");
        for (guint arena = 0; arena < trace->memory->len; arena++)
            rp_page_pack_memory(json, arena, g_ptr_array_index(trace->memory, arena));
        rp_json_end(json);
    }
    rp_json_end(json);
    if (page->traces->len > 0)
        g_string_append(page->traces, ",\n");
    g_string_append(page->traces, rp_json_writer_text(json)->str);
}
