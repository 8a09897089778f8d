/* The JSON of torch.profiler (Kineto). Most of its events are of the host; only spans of devices and steps
 * are kept. */
#include "core/recording/recording.h"

#include <math.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/json/json-record.h"

#define MAX_DEVICES 1024
/* Times of a file's origin, in 2042: the difference of any two still fits 64 bits. */
#define MAX_ORIGIN_NS G_GINT64_CONSTANT(2300000000000000000)
#define MAX_SPAN_NS G_GINT64_CONSTANT(2000000000000000) /* 23 days */
#define NO_NS G_MININT64                                /* a number that is no time */
#define STEP_PREFIX "ProfilerStep#"

typedef enum {
    CATEGORY_OTHER,
    CATEGORY_KERNEL,
    CATEGORY_COPY,
    CATEGORY_DEVICE_NOTE /* what the host was doing when it launched the work */
} Category;

/* Also as PyTorch 1.8 to 1.12 wrote them. */
static const struct {
    const char *name;
    Category category;
} categories[] = {
    {"kernel", CATEGORY_KERNEL},
    {"Kernel", CATEGORY_KERNEL},
    {"gpu_memcpy", CATEGORY_COPY},
    {"Memcpy", CATEGORY_COPY},
    {"gpu_memset", CATEGORY_COPY},
    {"Memset", CATEGORY_COPY},
    {"gpu_user_annotation", CATEGORY_DEVICE_NOTE},
};

typedef struct {
    const RpWorkPatterns *patterns;
    RpRecording *recording;
    gboolean started; /* an event is kept: */
    gint64 least_ns;  /* their first start */
    gint64 most_ns;   /* and last end */
    guint last;       /* index of the device of the event before */
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
    gboolean has_process, has_device;
} Event;

/* The nanoseconds of microseconds with decimals as they stand in the text: in a double, those since 1970 have none. */
static gint64
ns_of(const char *text, const char *end, double us)
{
    const gboolean negative = *text == '-';
    gint64 ns = 0;
    guint decimals = 0;

    if (!(fabs(us) <= (double)(MAX_ORIGIN_NS / 1000)))
        return NO_NS;
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

    *(gint64 *)value = NO_NS;
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

static const RpJsonField argument_fields[] = {{"device", read_device},
                                              {NULL, rp_json_read_ignored}};

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

/* Checks the times of an event that is kept. */
static gboolean
check_times(RpJsonPull *pull, const RpJsonRecord *read, const Event *event)
{
    Reader *reader = event->reader;

    if (rp_json_record_at(read, "ts") == NULL || event->start_ns == NO_NS)
        return rp_json_record_fail(read, pull, "ts", "microseconds before the year 2042");
    if (rp_json_record_at(read, "dur") == NULL || event->length_ns < 0 ||
        event->length_ns > MAX_SPAN_NS)
        return rp_json_record_fail(read, pull, "dur", "microseconds from 0 to 23 days");
    const gint64 end_ns = event->start_ns + event->length_ns;

    reader->least_ns = reader->started ? MIN(reader->least_ns, event->start_ns) : event->start_ns;
    reader->most_ns = reader->started ? MAX(reader->most_ns, end_ns) : end_ns;
    reader->started = TRUE;
    return reader->most_ns - reader->least_ns <= MAX_SPAN_NS ||
           rp_json_record_fail(read, pull, "ts", "microseconds within 23 days of all other work");
}

static gboolean
add_step(RpJsonPull *pull, const RpJsonRecord *read, const Event *event, GArray *steps)
{
    const char *digits = event->reader->name->str + strlen(STEP_PREFIX);
    RpRecordedStep step = {0};

    if (!g_ascii_string_to_unsigned(digits, 10, 0, G_MAXUINT32, &step.number, NULL))
        return TRUE; /* the name of something else */
    if (!check_times(pull, read, event))
        return FALSE;
    step.start_ns = event->start_ns;
    step.end_ns = event->start_ns + event->length_ns;
    g_array_append_val(steps, step);
    return TRUE;
}

/* The device with @number, new where it is the first time. Returns: (nullable): too many */
static RpRecordedDevice *
find_device(Reader *reader, guint64 number)
{
    GArray *devices = reader->recording->devices;

    if (reader->last < devices->len &&
        g_array_index(devices, RpRecordedDevice, reader->last).number == number)
        return &g_array_index(devices, RpRecordedDevice, reader->last);
    for (reader->last = 0; reader->last < devices->len; reader->last++)
        if (g_array_index(devices, RpRecordedDevice, reader->last).number == number)
            return &g_array_index(devices, RpRecordedDevice, reader->last);
    if (devices->len == MAX_DEVICES)
        return NULL;
    const RpRecordedDevice device = {number, g_array_new(FALSE, FALSE, sizeof(RpWorkSpan))};

    g_array_append_val(devices, device);
    return &g_array_index(devices, RpRecordedDevice, reader->last);
}

static gboolean
add_work(RpJsonPull *pull, const RpJsonRecord *read, const Event *event, Category category)
{
    Reader *reader = event->reader;
    const RpWorkKind kind =
        rp_work_patterns_match(reader->patterns, reader->name->str,
                               category == CATEGORY_COPY ? RP_WORK_COPY : RP_WORK_COMPUTE);

    if (kind == RP_N_WORK_KINDS)
        return TRUE;
    if (!event->has_device && !event->has_process)
        return rp_json_record_fail(read, pull, "pid", "the number of a device");
    if (!check_times(pull, read, event))
        return FALSE;
    const RpWorkSpan span = {event->start_ns, event->start_ns + event->length_ns, kind};
    RpRecordedDevice *device =
        find_device(reader, event->has_device ? event->device : event->process);

    if (device == NULL)
        return rp_json_record_fail(read, pull, "pid", "at most 1024 devices");
    g_array_append_val(device->spans, span);
    return TRUE;
}

static gboolean
add_event(RpJsonPull *pull, const RpJsonRecord *read, const Event *event)
{
    const Reader *reader = event->reader;
    RpRecording *recording = reader->recording;
    Category category = CATEGORY_OTHER;

    if (!g_str_equal(reader->phase->str, "X"))
        return TRUE;
    for (guint i = 0; i < G_N_ELEMENTS(categories); i++)
        if (g_str_equal(categories[i].name, reader->category->str))
            category = categories[i].category;
    if (category == CATEGORY_KERNEL || category == CATEGORY_COPY)
        return add_work(pull, read, event, category);
    if (!g_str_has_prefix(reader->name->str, STEP_PREFIX))
        return TRUE;
    return add_step(pull, read, event,
                    category == CATEGORY_DEVICE_NOTE ? recording->device_steps : recording->steps);
}

static gboolean
read_events(RpJsonPull *pull, const RpJsonField *field, gpointer value)
{
    Reader *reader = value;

    if (!rp_json_pull_enter_array(pull))
        return FALSE;
    while (rp_json_pull_next_element(pull)) {
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
    {"baseTimeNanoseconds", read_base, .max = (double)MAX_ORIGIN_NS,
     .expected = "nanoseconds from 1970 to 2042"},
    {NULL, rp_json_read_ignored},
};

static gint
compare_steps(gconstpointer a, gconstpointer b)
{
    const guint64 first = ((const RpRecordedStep *)a)->number;
    const guint64 second = ((const RpRecordedStep *)b)->number;

    return (first > second) - (first < second);
}

static gint
compare_devices(gconstpointer a, gconstpointer b)
{
    const guint64 first = ((const RpRecordedDevice *)a)->number;
    const guint64 second = ((const RpRecordedDevice *)b)->number;

    return (first > second) - (first < second);
}

/* Makes one step of those with one number: each stream of a device has its own. Times are from @origin_ns on. */
static void
finish_steps(GArray *steps, gint64 origin_ns)
{
    guint n = 0;

    g_array_sort(steps, compare_steps);
    for (guint i = 0; i < steps->len; i++) {
        RpRecordedStep step = g_array_index(steps, RpRecordedStep, i);
        RpRecordedStep *before = n > 0 ? &g_array_index(steps, RpRecordedStep, n - 1) : NULL;

        step.start_ns -= origin_ns;
        step.end_ns -= origin_ns;
        if (before == NULL || before->number != step.number) {
            g_array_index(steps, RpRecordedStep, n++) = step;
        } else {
            before->start_ns = MIN(before->start_ns, step.start_ns);
            before->end_ns = MAX(before->end_ns, step.end_ns);
        }
    }
    g_array_set_size(steps, n);
}

static void
finish(const Reader *reader, RpRecording *recording)
{
    g_array_sort(recording->devices, compare_devices);
    for (guint d = 0; d < recording->devices->len; d++) {
        const GArray *spans = g_array_index(recording->devices, RpRecordedDevice, d).spans;

        for (guint i = 0; i < spans->len; i++) {
            g_array_index(spans, RpWorkSpan, i).start_ns -= reader->least_ns;
            g_array_index(spans, RpWorkSpan, i).end_ns -= reader->least_ns;
        }
    }
    finish_steps(recording->steps, reader->least_ns);
    finish_steps(recording->device_steps, reader->least_ns);
    recording->has_clock = reader->has_base;
    recording->origin_ns = (gint64)reader->base_ns + reader->least_ns;
    recording->has_rank = reader->has_rank;
    recording->rank = reader->rank;
}

static void
clear_device(gpointer device)
{
    g_array_unref(((RpRecordedDevice *)device)->spans);
}

static RpRecording *
recording_new(const char *name)
{
    RpRecording *recording = g_new0(RpRecording, 1);

    recording->file = rp_display_name(name);
    recording->devices = g_array_new(FALSE, FALSE, sizeof(RpRecordedDevice));
    g_array_set_clear_func(recording->devices, clear_device);
    recording->steps = g_array_new(FALSE, FALSE, sizeof(RpRecordedStep));
    recording->device_steps = g_array_new(FALSE, FALSE, sizeof(RpRecordedStep));
    return recording;
}

void
rp_recording_free(RpRecording *recording)
{
    if (recording == NULL)
        return;
    g_free(recording->file);
    g_array_unref(recording->devices);
    g_array_unref(recording->steps);
    g_array_unref(recording->device_steps);
    g_free(recording);
}

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
    g_autoptr(RpRecording) recording = recording_new(name);
    g_autoptr(GString) phase = g_string_new(NULL);
    g_autoptr(GString) category = g_string_new(NULL);
    g_autoptr(GString) kernel = g_string_new(NULL);
    Reader reader = {.patterns = patterns,
                     .recording = recording,
                     .phase = phase,
                     .category = category,
                     .name = kernel};
    RpJsonPull pull;

    if (!rp_json_pull_init(&pull, recording->file, text != NULL ? text : "", length,
                           RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE, error) ||
        !rp_json_read_record(&pull, file_fields, G_N_ELEMENTS(file_fields), &reader, NULL) ||
        !rp_json_pull_end(&pull))
        return NULL;
    if (recording->devices->len == 0) {
        (void)rp_fail(error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE,
                      "%s: expected work of a GPU (events of category kernel, gpu_memcpy or "
                      "gpu_memset), found none; record with ProfilerActivity.CUDA",
                      recording->file);
        return NULL;
    }
    finish(&reader, recording);
    return g_steal_pointer(&recording);
}
