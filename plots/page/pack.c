/* Numbers of a page: columns of differences as varints in base64, a byte or two a task each. */
#include "plots/page/pack.h"

#include "core/json/json-write.h"
#include "core/trace/needs.h"

/* Zigzag, seven bits a byte, the lowest first. */
static void
add_varint(GByteArray *bytes, gint64 value)
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
        add_varint(gaps, sorted[i]->start_ns - end_ns);
        add_varint(durations, duration_ns - before_ns);
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

        add_varint(bytes, gate == RP_NONE ? 0 : (gint64)place - (gint64)places[gate]);
    }
    end_column(json, "gate", bytes);
}

/* A curve of memory, for the JSON of its trace. */
static void
pack_memory(RpJsonWriter *json, guint arena, const GArray *steps)
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

            add_varint(bytes, value - before);
            before = value;
        }
        end_column(json, column == 0 ? "time" : "bytes", bytes);
    }
    rp_json_end(json);
}

guint32 *
rp_pack_places(const RpTrace *trace)
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

char *
rp_pack_trace(const RpPageTrace *trace, const guint32 *places, const guint32 *twins)
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
    pack_times(json, sorted, n);
    for (guint column = 0; column < G_N_ELEMENTS(member_keys); column++) {
        gint64 before = 0;

        for (gsize i = 0; i < n; i++) {
            const gint64 value = member(sorted[i], column);

            add_varint(bytes, value - before);
            before = value;
        }
        end_column(json, member_keys[column], bytes);
    }
    pack_gates(json, trace, places, sorted);
    if (twins != NULL) {
        gint64 before = 0;

        for (gsize i = 0; i < n; i++) {
            const gint64 value = twins[sorted[i] - rp_trace_records(trace->trace)];

            add_varint(bytes, value - before);
            before = value;
        }
        end_column(json, "pair", bytes);
    }
    if (trace->memory != NULL) {
        rp_json_array(json, "memory");
        for (guint arena = 0; arena < trace->memory->len; arena++)
            pack_memory(json, arena, g_ptr_array_index(trace->memory, arena));
        rp_json_end(json);
    }
    rp_json_end(json);
    return g_strdup(rp_json_writer_text(json)->str);
}

/* ---- recordings ---- */

static const char *const box_keys[] = {"gap", "duration", "work", "label", "count"};

/* A recording's boxes, lane by lane. */
typedef struct {
    RpJsonWriter *lanes;
    GByteArray *columns[G_N_ELEMENTS(box_keys)];
    GHashTable *numbers; /* text -> number + 1 */
    GPtrArray *texts;    /* (element-type char *), of the recordings */
    guint n;
} Boxes;

static guint
number_of(Boxes *all, const char *text)
{
    guint number = GPOINTER_TO_UINT(g_hash_table_lookup(all->numbers, text));

    if (number == 0) {
        g_ptr_array_add(all->texts, (gpointer)text);
        number = all->texts->len;
        g_hash_table_insert(all->numbers, (gpointer)text, GUINT_TO_POINTER(number));
    }
    return number - 1;
}

static void
add_boxes(Boxes *all, const RpRecording *recording, const RpRecordedDevice *device, RpWorkKind kind,
          guint lane, const RpRecordedWindow *window)
{
    g_autoptr(GArray) boxes = rp_recorded_boxes(device, kind, window);
    gint64 end_ns = window->start_ns, before_ns = 0;

    if (boxes->len == 0)
        return;
    rp_json_array(all->lanes, NULL);
    rp_json_uint(all->lanes, NULL, lane);
    rp_json_uint(all->lanes, NULL, boxes->len);
    rp_json_end(all->lanes);
    for (guint i = 0; i < boxes->len; i++) {
        const RpRecordedBox *box = &g_array_index(boxes, RpRecordedBox, i);
        const gint64 duration_ns = box->end_ns - box->start_ns;
        const gint64 values[G_N_ELEMENTS(box_keys)] = {
            box->start_ns - end_ns, duration_ns - before_ns, kind,
            number_of(all, g_ptr_array_index(recording->names, box->name)), box->count};

        for (guint column = 0; column < G_N_ELEMENTS(box_keys); column++)
            add_varint(all->columns[column], values[column]);
        end_ns = box->end_ns;
        before_ns = duration_ns;
    }
    all->n += boxes->len;
}

static void
write_texts(RpJsonWriter *json, const char *key, const char *const *texts, guint n)
{
    rp_json_array(json, key);
    for (guint i = 0; i < n; i++)
        rp_json_string(json, NULL, texts[i]);
    rp_json_end(json);
}

char *
rp_pack_recordings(const GPtrArray *recordings, const char *const *titles,
                   const RpRecordedWindow *window)
{
    g_autoptr(RpJsonWriter) json = rp_json_writer_new(RP_JSON_COMPACT);
    g_autoptr(RpJsonWriter) lanes = rp_json_writer_new(RP_JSON_COMPACT);
    g_autoptr(GHashTable) numbers = g_hash_table_new(g_str_hash, g_str_equal);
    g_autoptr(GPtrArray) texts = g_ptr_array_new();
    Boxes all = {.lanes = lanes, .numbers = numbers, .texts = texts};
    guint device = 0;

    for (guint column = 0; column < G_N_ELEMENTS(box_keys); column++)
        all.columns[column] = g_byte_array_new();
    rp_json_array(lanes, NULL);
    for (guint i = 0; i < recordings->len; i++) {
        const RpRecording *recording = g_ptr_array_index(recordings, i);

        for (guint d = 0; d < recording->devices->len; d++, device++)
            for (guint kind = 0; kind < RP_N_WORK_KINDS; kind++)
                add_boxes(&all, recording, &g_array_index(recording->devices, RpRecordedDevice, d),
                          (RpWorkKind)kind, device * RP_N_WORK_KINDS + kind, window);
    }
    rp_json_end(lanes);
    rp_json_object(json, NULL);
    rp_json_string(json, "name", "recorded");
    rp_json_uint(json, "gpus", device);
    rp_json_uint(json, "tasks", all.n);
    rp_json_raw(json, "lanes", rp_json_writer_text(lanes)->str);
    for (guint column = 0; column < G_N_ELEMENTS(box_keys); column++) {
        end_column(json, box_keys[column], all.columns[column]);
        g_byte_array_unref(all.columns[column]);
    }
    write_texts(json, "names", (const char *const *)texts->pdata, texts->len);
    write_texts(json, "devices", titles, device);
    rp_json_end(json);
    return g_strdup(rp_json_writer_text(json)->str);
}
