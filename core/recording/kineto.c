/* The JSON of torch.profiler (Kineto). Most of its events are of the host; only spans of devices and steps
 * are kept. */
#include "core/recording/collect.h"

#include <math.h>
#include <string.h>

#include "core/json/json-record.h"

typedef enum {
    CATEGORY_OTHER,
    CATEGORY_KERNEL,
    CATEGORY_COPY,
    CATEGORY_LAUNCH,
    CATEGORY_DEVICE_NOTE /* what the host was doing when it launched the work */
} Category;

/* Also as PyTorch 1.8 to 1.12 wrote them. */
static const struct {
    const char *name;
    Category category;
} categories[] = {
    {"kernel", CATEGORY_KERNEL},       {"Kernel", CATEGORY_KERNEL},
    {"gpu_memcpy", CATEGORY_COPY},     {"Memcpy", CATEGORY_COPY},
    {"gpu_memset", CATEGORY_COPY},     {"Memset", CATEGORY_COPY},
    {"cuda_runtime", CATEGORY_LAUNCH}, {"cuda_driver", CATEGORY_LAUNCH},
    {"Runtime", CATEGORY_LAUNCH},      {"gpu_user_annotation", CATEGORY_DEVICE_NOTE},
};

typedef struct {
    RpCollector *collector;
    guint64 base_ns;
    guint64 rank;
    gboolean has_base, has_rank;
    GString *phase, *category, *name; /* of an event */
} Reader;

typedef struct {
    Reader *reader;
    gint64 start_ns;
    gint64 length_ns;
    guint64 process; /* of a device's work the device */
    guint64 device;  /* of its arguments, which are surer */
    guint64 correlation;
    gboolean has_process, has_device, has_correlation;
} Event;

/* The nanoseconds of microseconds with decimals as they stand in the text: in a double, those since 1970 have none. */
static gint64
ns_of(const char *text, const char *end, double us)
{
    const gboolean negative = *text == '-';
    gint64 ns = 0;
    guint decimals = 0;

    if (!(fabs(us) <= (double)(RP_COLLECT_MAX_ORIGIN_NS / 1000)))
        return RP_COLLECT_NO_NS;
    text += negative;
    if (memchr(text, 'e', (gsize)(end - text)) != NULL ||
        memchr(text, 'E', (gsize)(end - text)) != NULL)
        return llround(us * 1000);
    for (; text < end && *text != '.'; text++)
        ns = ns * 10 + (*text - '0');
    for (text++; decimals < 3; decimals++)
        ns = ns * 10 + (text < end ? *text++ - '0' : 0);
    if (text < end && *text >= '5')
        ns++;
    return negative ? -ns : ns;
}

/* Events that are not kept may have any. */
static gboolean
read_us(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    double us;

    *(gint64 *)value = RP_COLLECT_NO_NS;
    if (rp_json_pull_peek(pull) != RP_JSON_NUMBER)
        return rp_json_pull_skip(pull);
    if (!rp_json_pull_number(pull, &us))
        return FALSE;
    *(gint64 *)value = ns_of(pull->value, pull->at, us);
    return TRUE;
}

/* A number of a device; the host's processes may have names. */
static gboolean
read_number(RpJsonPull *pull, guint64 *number, gboolean *known)
{
    double value;

    *known = FALSE;
    if (rp_json_pull_peek(pull) != RP_JSON_NUMBER)
        return rp_json_pull_skip(pull);
    if (!rp_json_pull_number(pull, &value))
        return FALSE;
    *known = value >= 0 && value <= G_MAXUINT32 && value == floor(value);
    *number = *known ? (guint64)value : 0;
    return TRUE;
}

static gboolean
read_process(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Event *event = value;

    return read_number(pull, &event->process, &event->has_process);
}

static gboolean
read_device(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Event *event = value;

    return read_number(pull, &event->device, &event->has_device);
}

static gboolean
read_word(RpJsonPull *pull, GString *word)
{
    g_string_truncate(word, 0);
    return rp_json_pull_peek(pull) == RP_JSON_STRING ? rp_json_pull_string(pull, word)
                                                     : rp_json_pull_skip(pull);
}

static gboolean
read_phase(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return read_word(pull, ((Event *)value)->reader->phase);
}

static gboolean
read_category(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return read_word(pull, ((Event *)value)->reader->category);
}

static gboolean
read_name(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    return read_word(pull, ((Event *)value)->reader->name);
}

static gboolean
read_correlation(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Event *event = value;

    return read_number(pull, &event->correlation, &event->has_correlation);
}

static const RpJsonField argument_fields[] = {
    {"device", read_device}, {"correlation", read_correlation}, {NULL, rp_json_read_ignored}};

static gboolean
read_arguments(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    if (rp_json_pull_peek(pull) != RP_JSON_OBJECT)
        return rp_json_pull_skip(pull);
    return rp_json_read_record(pull, argument_fields, G_N_ELEMENTS(argument_fields), value, NULL);
}

static const RpJsonField event_fields[] = {
    {"ph", read_phase},
    {"cat", read_category},
    {"name", read_name},
    {"pid", read_process},
    {"ts", read_us, G_STRUCT_OFFSET(Event, start_ns)},
    {"dur", read_us, G_STRUCT_OFFSET(Event, length_ns)},
    {"args", read_arguments},
    {NULL, rp_json_read_ignored},
};

/* Refuses an event that the collector did not take. */
static gboolean
refuse(RpJsonPull *pull, const RpJsonRecord *read, RpCollectResult result)
{
    static const struct {
        const char *key;
        const char *expected;
    } rows[] = {
        [RP_COLLECT_START] = {"ts", "microseconds before the year 2042"},
        [RP_COLLECT_LENGTH] = {"dur", "microseconds from 0 to 23 days"},
        [RP_COLLECT_APART] = {"ts", "microseconds within 23 days of all other work"},
        [RP_COLLECT_DEVICES] = {"pid", "at most 1024 devices"},
    };

    return result == RP_COLLECTED ||
           rp_json_record_fail(read, pull, rows[result].key, rows[result].expected);
}

static gboolean
add_work(RpJsonPull *pull, const RpJsonRecord *read, const Event *event, Category category)
{
    RpCollector *collector = event->reader->collector;
    const guint64 device = event->has_device ? event->device : event->process;

    if (!event->has_device && !event->has_process)
        return rp_json_record_fail(read, pull, "pid", "the number of a device");
    const RpCollectResult result = rp_collector_add_work(
        collector, event->reader->name->str,
        category == CATEGORY_COPY ? RP_WORK_COPY : RP_WORK_COMPUTE, device, event->start_ns,
        event->length_ns, rp_collect_key(0, (guint32)event->correlation));

    return refuse(pull, read, result);
}

static gboolean
add_event(RpJsonPull *pull, const RpJsonRecord *read, Event *event)
{
    const Reader *reader = event->reader;
    Category category = CATEGORY_OTHER;

    if (!g_str_equal(reader->phase->str, "X"))
        return TRUE;
    if (rp_json_record_at(read, "ts") == NULL)
        event->start_ns = RP_COLLECT_NO_NS;
    if (rp_json_record_at(read, "dur") == NULL)
        event->length_ns = -1;
    for (guint i = 0; i < G_N_ELEMENTS(categories); i++)
        if (g_str_equal(categories[i].name, reader->category->str))
            category = categories[i].category;
    if (category == CATEGORY_KERNEL || category == CATEGORY_COPY)
        return add_work(pull, read, event, category);
    if (category == CATEGORY_LAUNCH)
        rp_collector_add_launch(reader->collector, rp_collect_key(0, (guint32)event->correlation),
                                event->start_ns);
    return category == CATEGORY_LAUNCH ||
           refuse(pull, read,
                  rp_collector_add_note(reader->collector, reader->name->str,
                                        category == CATEGORY_DEVICE_NOTE, 0, event->start_ns,
                                        event->length_ns));
}

static gboolean
read_events(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Reader *reader = value;

    for (rp_json_pull_enter_array(pull); rp_json_pull_next_element(pull);) {
        Event event = {.reader = reader};
        RpJsonRecord read;

        g_string_truncate(reader->phase, 0);
        g_string_truncate(reader->category, 0);
        g_string_truncate(reader->name, 0);
        if (!rp_json_read_record(pull, event_fields, G_N_ELEMENTS(event_fields), &event, &read) ||
            !add_event(pull, &read, &event))
            return FALSE;
    }
    return !pull->failed;
}

static gboolean
read_rank(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Reader *reader = value;

    return read_number(pull, &reader->rank, &reader->has_rank);
}

static gboolean
read_distributed(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    static const RpJsonField fields[] = {{"rank", read_rank}, {NULL, rp_json_read_ignored}};

    return rp_json_read_record(pull, fields, G_N_ELEMENTS(fields), value, NULL);
}

static gboolean
read_base(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Reader *reader = value;

    reader->has_base = TRUE;
    return rp_json_read_uint64(pull, field, &reader->base_ns);
}

static const RpJsonField file_fields[] = {
    {"traceEvents", read_events, .required = TRUE, .expected = "the events of torch.profiler"},
    {"distributedInfo", read_distributed},
    {"baseTimeNanoseconds", read_base, .max = (double)RP_COLLECT_MAX_ORIGIN_NS,
     .expected = "nanoseconds from 1970 to 2042"},
    {NULL, rp_json_read_ignored},
};

gboolean
rp_kineto_is(const char *text, gsize length)
{
    static const char *const first[] = {"\"schemaVersion\"", "\"deviceProperties\"",
                                        "\"distributedInfo\"", "\"traceEvents\"",
                                        "\"baseTimeNanoseconds\""};
    const char *const end = text + length;

    while (text < end && (g_ascii_isspace(*text) || *text == '{'))
        text++;
    for (guint i = 0; i < G_N_ELEMENTS(first); i++)
        if ((gsize)(end - text) >= strlen(first[i]) &&
            memcmp(text, first[i], strlen(first[i])) == 0)
            return TRUE;
    return FALSE;
}

RpRecording *
rp_kineto_parse(const char *name, const char *text, gsize length, const RpWorkPatterns *patterns,
                GError **error)
{
    g_autoptr(RpCollector) collector = rp_collector_new(name, patterns);
    g_autoptr(GString) phase = g_string_new(NULL);
    g_autoptr(GString) category = g_string_new(NULL);
    g_autoptr(GString) kernel = g_string_new(NULL);
    Reader reader = {.collector = collector, .phase = phase, .category = category, .name = kernel};
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, rp_collector_file(collector), text != NULL ? text : "", length,
                           RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE, error) ||
        !rp_json_read_record(&pull, file_fields, G_N_ELEMENTS(file_fields), &reader, NULL) ||
        !rp_json_pull_end(&pull))
        return NULL;
    RpRecording *recording =
        rp_collector_finish(collector,
                            "events of category kernel, gpu_memcpy or gpu_memset), found none; "
                            "record with ProfilerActivity.CUDA",
                            error);

    if (recording == NULL)
        return NULL;
    recording->has_clock = reader.has_base;
    recording->origin_ns += (gint64)reader.base_ns;
    recording->has_rank = reader.has_rank;
    recording->rank = reader.rank;
    return recording;
}
