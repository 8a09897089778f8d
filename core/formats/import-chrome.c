/* Reads back the file that chrome.c wrote: the tasks, and on request the counters of memory. Names
 * and arrows are for viewers. */
#include "core/formats/private.h"

#include <math.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "core/json/json-record.h"
#include "core/trace/report.h"

#define MAX_GPUS 65536
#define MAX_US 2e12 /* 23 days: a double of microseconds still has whole nanoseconds */
#define MAX_INDEX (RP_NONE - 1)

typedef struct {
    gsize length; /* the file's, bytes */
    guint origin;
    guint gpus;
    gboolean dispatched;
    guint64 n_records;
    guint last_process; /* that an event is of */
    RpTrace *trace;     /* %NULL before otherData */
    GPtrArray *memory;  /* (nullable) (element-type GArray<RpMemoryStep>): [process] */
} Reader;

typedef struct {
    guint phase; /* index into phases[] */
    guint pid;
    guint thread; /* lane + 1 */
    guint round;
    gint64 duration_ns;
    RpTraceRecord record;
} Event;

static gboolean
read_us(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double us;

    if (!rp_json_read_number(pull, field, &us))
        return FALSE;
    *(gint64 *)value = llround(us * 1000);
    return TRUE;
}

/* Events that are no task have others. */
static gboolean
read_kind(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    g_autoptr(GString) name = g_string_new(NULL);
    guint8 *kind = value;

    if (!rp_json_pull_string(pull, name))
        return FALSE;
    for (*kind = 0; *kind < RP_N_TASK_KINDS; (*kind)++)
        if (g_str_equal(rp_task_kind_name((RpTaskKind)*kind), name->str))
            break;
    return TRUE;
}

#define RECORD(key, read, member, most)                                                            \
    {                                                                                              \
        key, read, G_STRUCT_OFFSET(Event, record.member), .max = (double)(most)                    \
    }

static const RpJsonField argument_fields[] = {
    RECORD("task", rp_json_read_uint64, task, 0),
    RECORD("iteration", rp_json_read_uint, iteration, MAX_INDEX),
    {"round", rp_json_read_uint, G_STRUCT_OFFSET(Event, round), .max = G_MAXUINT16},
    RECORD("stage", rp_json_read_uint, stage, MAX_INDEX),
    RECORD("micro_batch", rp_json_read_uint, micro_batch, MAX_INDEX),
    RECORD("layer", rp_json_read_uint, layer, MAX_INDEX),
    RECORD("backward_stage", rp_json_read_uint, layer, MAX_INDEX),
    RECORD("chunk", rp_json_read_uint, chunk, MAX_INDEX),
    RECORD("backward_micro_batch", rp_json_read_uint, chunk, MAX_INDEX),
    RECORD("bytes", rp_json_read_uint64, bytes, 0),
    RECORD("transfer_ns", rp_json_read_uint64, transfer_ns, MAX_US * 1000),
    {"name", rp_json_read_ignored},
    {"sort_index", rp_json_read_ignored},
};

static const char *const phases[] = {"X", "C", "s", "f", "M", NULL};
enum { PHASE_TASK, PHASE_COUNTER };

static const RpJsonField event_fields[] = {
    {"ph", rp_json_read_choice_index, G_STRUCT_OFFSET(Event, phase), .required = TRUE,
     .choices = phases},
    {"pid", rp_json_read_uint, G_STRUCT_OFFSET(Event, pid)},
    {"tid", rp_json_read_uint, G_STRUCT_OFFSET(Event, thread)},
    {"ts", read_us, G_STRUCT_OFFSET(Event, record.start_ns), .min = -MAX_US, .max = MAX_US,
     .expected = "microseconds within 23 days"},
    {"dur", read_us, G_STRUCT_OFFSET(Event, duration_ns), .max = MAX_US,
     .expected = "microseconds from 0 to 23 days"},
    {"cat", read_kind, G_STRUCT_OFFSET(Event, record.kind)},
    {"args", RP_JSON_NESTED(argument_fields)},
    {"name", rp_json_read_ignored},
    {"cname", rp_json_read_ignored},
    {"id", rp_json_read_ignored},
    {"bp", rp_json_read_ignored},
};

/* A task, with all that it has to have, behind the last one. */
static gboolean
add_task(RpJsonPull *pull, const RpJsonRecord *read, Event *event, Reader *reader)
{
    static const char *const needed[] = {"pid", "tid", "ts", "dur", "cat", "args"};
    const guint n_lanes = reader->gpus * RP_LANES_PER_DEVICE + RP_HOST_LANES;
    const gsize n = rp_trace_n_records(reader->trace);
    RpTraceRecord *record = &event->record;

    for (guint i = 0; i < G_N_ELEMENTS(needed); i++)
        if (rp_json_record_at(read, needed[i]) == NULL)
            return rp_json_record_fail(read, pull, needed[i], "a value, as each task has it");
    if (event->thread == 0 || event->thread > n_lanes)
        return rp_json_record_fail(read, pull, "tid", "one of the trace's lanes");
    record->lane = event->thread - 1;
    if (event->pid != record->lane / RP_LANES_PER_DEVICE + 1)
        return rp_json_record_fail(read, pull, "pid", "the process of the lane");
    if (record->kind == RP_N_TASK_KINDS)
        return rp_json_record_fail(read, pull, "cat", "a task of a known kind");
    if (record->task == RP_TASK_NONE)
        return rp_json_record_fail(read, pull, "args", "the number of the task");
    if (n > 0 && rp_trace_records(reader->trace)[n - 1].task >= record->task)
        return rp_json_record_fail(read, pull, "args", "tasks with rising numbers");
    record->end_ns = record->start_ns + event->duration_ns;
    record->round = (guint16)event->round;
    rp_trace_append(reader->trace, record);
    return TRUE;
}

/* A step of the memory of a process, behind the last one. */
static gboolean
add_memory(RpJsonPull *pull, const RpJsonRecord *read, const Event *event, Reader *reader)
{
    const RpMemoryStep step = {event->record.start_ns, event->record.bytes};

    if (event->pid == 0)
        return rp_json_record_fail(read, pull, "pid", "a process of otherData.gpus");
    GArray *steps = g_ptr_array_index(reader->memory, event->pid - 1);

    if (steps->len > 0 && g_array_index(steps, RpMemoryStep, steps->len - 1).time_ns > step.time_ns)
        return rp_json_record_fail(read, pull, "ts", "counters in the order of time");
    g_array_append_val(steps, step);
    return TRUE;
}

static gboolean
read_events(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Reader *reader = value;

    if (reader->trace == NULL)
        return rp_json_pull_fail(pull, "otherData before the events");
    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    for (guint i = 0; i <= reader->gpus && reader->memory != NULL; i++)
        g_ptr_array_add(reader->memory, g_array_new(FALSE, FALSE, sizeof(RpMemoryStep)));
    while (rp_json_pull_next_element(pull)) {
        Event event = {.record = {.task = RP_TASK_NONE,
                                  .micro_batch = RP_NONE,
                                  .stage = RP_NONE,
                                  .layer = RP_NONE,
                                  .chunk = RP_NONE}};
        RpJsonRecord read;
        if (!rp_json_read_record(pull, event_fields, G_N_ELEMENTS(event_fields), &event, &read))
            return FALSE;
        reader->last_process = MAX(reader->last_process, event.pid);
        if (event.pid > reader->gpus + 1)
            return rp_json_record_fail(&read, pull, "pid", "a process of otherData.gpus");
        if (event.phase == PHASE_TASK && !add_task(pull, &read, &event, reader))
            return FALSE;
        if (event.phase == PHASE_COUNTER && reader->memory != NULL &&
            !add_memory(pull, &read, &event, reader))
            return FALSE;
    }
    return !pull->failed;
}

static gboolean
read_header(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const char *const formats[] = {RP_CHROME_FORMAT, NULL};
    static const RpJsonField fields[] = {
        {"format", rp_json_read_constant, .required = TRUE, .choices = formats},
        {"origin", rp_json_read_choice_index, G_STRUCT_OFFSET(Reader, origin), .required = TRUE,
         .choices = rp_chrome_origins},
        {"gpus", rp_json_read_uint, G_STRUCT_OFFSET(Reader, gpus), .required = TRUE,
         .max = MAX_GPUS},
        {"dispatched", rp_json_read_boolean, G_STRUCT_OFFSET(Reader, dispatched), .required = TRUE},
        {"records", rp_json_read_uint64, G_STRUCT_OFFSET(Reader, n_records), .required = TRUE},
    };
    Reader *reader = value;
    RpJsonRecord read;

    if (!rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), reader, &read))
        return FALSE;
    /* each takes a dozen lines of names, so a short file cannot ask for a lot of memory */
    if ((gsize)reader->gpus * 100 > reader->length)
        return rp_json_record_fail(&read, pull, "gpus", "as many gpus as the file names");
    reader->trace = rp_trace_new_empty(reader->gpus, (RpTraceOrigin)reader->origin);
    rp_trace_set_dispatched(reader->trace, reader->dispatched);
    return TRUE;
}

static const RpJsonField file_fields[] = {
    {"otherData", read_header, .required = TRUE,
     .expected = "that of a trace that roundpipe wrote (" RP_CHROME_FORMAT ")"},
    {"displayTimeUnit", rp_json_read_ignored},
    {"traceEvents", read_events, .required = TRUE, .expected = "an array of events"},
    {NULL, rp_json_read_ignored},
};

static RpTrace *
parse(const char *name, const char *text, gsize length, GPtrArray *memory, GError **error)
{
    g_autofree char *shown = rp_display_name(name);
    Reader reader = {.length = length, .memory = memory};
    RpJsonRecord read;
    RpJsonPull pull;

    gboolean good =
        rp_json_pull_init(&pull, shown, text != NULL ? text : "", length, RP_EXPORT_ERROR,
                          RP_EXPORT_ERROR_TRACE, error) &&
        rp_json_read_record(&pull, file_fields, G_N_ELEMENTS(file_fields), &reader, &read) &&
        rp_json_pull_end(&pull);
    if (good && reader.last_process != reader.gpus + 1)
        good = rp_json_record_fail(&read, &pull, "otherData", "as many gpus as the file names");
    if (good && rp_trace_n_records(reader.trace) != reader.n_records)
        good = rp_json_record_fail(&read, &pull, "otherData", "the number of tasks in records");
    if (!good)
        g_clear_pointer(&reader.trace, rp_trace_free);
    return reader.trace;
}

RpTrace *
rp_trace_parse_chrome(const char *name, const char *text, gsize length, GError **error)
{
    g_return_val_if_fail(name && (text || length == 0), NULL);

    return parse(name, text, length, NULL, error);
}

RpTrace *
rp_trace_load_chrome(const char *path, GError **error)
{
    return rp_trace_load_chrome_memory(path, NULL, error);
}

RpTrace *
rp_trace_load_chrome_memory(const char *path, GPtrArray **memory, GError **error)
{
    g_autoptr(GMappedFile) file = rp_file_map(path, error);
    g_autoptr(GPtrArray) curves = g_ptr_array_new_with_free_func((GDestroyNotify)g_array_unref);

    if (file == NULL)
        return NULL;
    RpTrace *trace = parse(path, g_mapped_file_get_contents(file), g_mapped_file_get_length(file),
                           memory != NULL ? curves : NULL, error);

    if (trace != NULL && memory != NULL)
        *memory = g_steal_pointer(&curves);
    return trace;
}
