/**
 * Reads back what chrome.c wrote. Each line is scanned for its numbers, then written again
 * from them: the two must be the same bytes. So nothing in a file can be misread or overlooked.
 */
#include "core/formats/private.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/quote.h"

#define HEADER                                                                                     \
    "{\"otherData\":{\"format\":\"roundpipe-trace/1\",\"origin\":\"$\",\"gpus\":#,"                \
    "\"dispatched\":$,\"records\":#},\"displayTimeUnit\":\"ms\",\"traceEvents\":["
#define RECORD "{\"ph\":\"X\",\"pid\":#,\"tid\":#,\"ts\":@,\"dur\":@,\"name\":\"$\",\"cat\":\"$\""
#define COUNTER "{\"ph\":\"C\",\"pid\":#,\"ts\":@,\"name\":\"memory\",\"args\":{\"bytes\":#}}"
#define FLOW_START                                                                                 \
    "{\"ph\":\"s\",\"id\":#,\"pid\":#,\"tid\":#,\"ts\":@,\"name\":\"dependency\","                 \
    "\"cat\":\"dependency\"}"
#define FLOW_END                                                                                   \
    "{\"ph\":\"f\",\"id\":#,\"pid\":#,\"tid\":#,\"ts\":@,\"name\":\"dependency\","                 \
    "\"cat\":\"dependency\",\"bp\":\"e\"}"

#define MAX_GPUS 65536
#define MAX_US (G_MAXINT64 / 1000 / 4)
#define MAX_FIELDS 8

/* One number or word of a line. */
typedef struct {
    guint64 number;   /* # */
    gint64 ns;        /* @ */
    const char *word; /* $ */
    gsize length;
} Field;

typedef struct {
    const char *name;
    const char *at;
    const char *end;
    guint64 line;
    GString *text; /* the line as it should be */
    GError **error;
} Reader;

static gboolean
fail(const Reader *reader, RpExportError code, const char *expected)
{
    const char *line_end = memchr(reader->at, '\n', (gsize)(reader->end - reader->at));
    gsize length = (gsize)((line_end ? line_end : reader->end) - reader->at);
    g_autofree char *name = rp_display_name(reader->name);
    g_autofree char *found = g_strndup(reader->at, MIN(length, 240));
    g_autofree char *quoted = rp_quote(found);

    g_set_error(reader->error, RP_EXPORT_ERROR, code,
                "%s: line %" G_GUINT64_FORMAT ": expected %s, found %s", name, reader->line,
                expected, reader->at == reader->end ? "the end of the file" : quoted);
    return FALSE;
}

static gboolean
take_number(const char **at, const char *end, guint64 *number)
{
    const char *start = *at;

    *number = 0;
    while (*at < end && g_ascii_isdigit(**at)) {
        guint64 digit = (guint64)(**at - '0');
        if (*number > (G_MAXUINT64 - digit) / 10)
            return FALSE;
        *number = *number * 10 + digit;
        (*at)++;
    }
    return *at > start;
}

/* Microseconds with three decimals. */
static gboolean
take_time(const char **at, const char *end, gint64 *ns)
{
    gboolean negative = *at < end && **at == '-';
    guint64 us, fraction;

    *at += negative;
    if (!take_number(at, end, &us) || us > MAX_US || *at == end || **at != '.')
        return FALSE;
    (*at)++;
    const char *decimals = *at;
    if (!take_number(at, end, &fraction) || *at - decimals != 3)
        return FALSE;
    *ns = (gint64)(us * 1000 + fraction);
    if (negative)
        *ns = -*ns;
    return TRUE;
}

/**
 * Whether the text from @at on begins as @pattern says, where # is a number, @ a time and $ any
 * text without a quote, brace or comma. Returns: where the match ends, %NULL if there is none
 */
static const char *
match(const char *at, const char *end, const char *pattern, Field *fields)
{
    for (; *pattern; pattern++) {
        switch (*pattern) {
        case '#':
            if (!take_number(&at, end, &(fields++)->number))
                return NULL;
            break;
        case '@':
            if (!take_time(&at, end, &(fields++)->ns))
                return NULL;
            break;
        case '$':
            fields->word = at;
            while (at < end && !strchr("\",{}\n", *at))
                at++;
            fields->length = (gsize)(at - fields->word);
            fields++;
            break;
        default:
            if (at == end || *at++ != *pattern)
                return NULL;
        }
    }
    return at;
}

static gboolean
word_is(const Field *field, const char *word)
{
    return field->length == strlen(word) && memcmp(field->word, word, field->length) == 0;
}

static gboolean
find_kind(const Field *field, guint8 *kind)
{
    for (guint k = 0; k < RP_N_TASK_KINDS; k++) {
        if (word_is(field, rp_task_kind_name((RpTaskKind)k))) {
            *kind = (guint8)k;
            return TRUE;
        }
    }
    return FALSE;
}

/* Fits @value into the 32-bit index at @index; RP_NONE is never written. */
static gboolean
set_index(guint32 *index, guint64 value)
{
    *index = (guint32)value;
    return value < RP_NONE;
}

static gboolean
set_argument(RpTraceRecord *record, const Field *key, guint64 value)
{
    if (word_is(key, "task"))
        return (record->task = value) != RP_TASK_NONE;
    if (word_is(key, "bytes")) {
        record->bytes = value;
        return TRUE;
    }
    if (word_is(key, "round")) {
        record->round = (guint16)value;
        return value <= G_MAXUINT16;
    }
    if (word_is(key, "transfer_ns")) {
        record->transfer_ns = (gint64)value;
        return value <= G_MAXINT64;
    }
    if (word_is(key, "iteration"))
        return set_index(&record->iteration, value);
    if (word_is(key, "stage"))
        return set_index(&record->stage, value);
    if (word_is(key, "micro_batch"))
        return set_index(&record->micro_batch, value);
    if (word_is(key, "layer") || word_is(key, "backward_stage"))
        return set_index(&record->layer, value);
    if (word_is(key, "chunk") || word_is(key, "backward_micro_batch"))
        return set_index(&record->chunk, value);
    return FALSE;
}

/* The numbers of a record's line, as they are; read_record() then checks the line as a whole. */
static gboolean
scan_record(Reader *reader, const char *at, RpTraceRecord *record)
{
    Field fields[MAX_FIELDS];

    *record = (RpTraceRecord){
        .micro_batch = RP_NONE, .stage = RP_NONE, .layer = RP_NONE, .chunk = RP_NONE};
    at = match(at, reader->end, RECORD, fields);
    if (!at)
        return fail(reader, RP_EXPORT_ERROR_SYNTAX, "a task");
    if (!find_kind(&fields[5], &record->kind))
        return fail(reader, RP_EXPORT_ERROR_VALUE, "a task of a known kind");
    if (fields[1].number == 0 || fields[1].number > G_MAXUINT32)
        return fail(reader, RP_EXPORT_ERROR_VALUE, "a thread that is a lane");
    record->lane = (guint32)(fields[1].number - 1);
    record->start_ns = fields[2].ns;
    record->end_ns = fields[2].ns + fields[3].ns;
    if (fields[3].ns < 0)
        return fail(reader, RP_EXPORT_ERROR_VALUE, "a task that ends after its start");

    const char *next = match(at, reader->end, ",\"cname\":\"$\"", fields);
    at = match(next ? next : at, reader->end, ",\"args\":{", fields);
    if (!at)
        return fail(reader, RP_EXPORT_ERROR_SYNTAX, "a task with arguments");
    do {
        at = match(at, reader->end, "\"$\":#", fields);
        if (!at)
            return fail(reader, RP_EXPORT_ERROR_SYNTAX, "a task whose arguments are numbers");
        if (!set_argument(record, &fields[0], fields[1].number))
            return fail(reader, RP_EXPORT_ERROR_VALUE, "a task with known arguments in range");
    } while (at < reader->end && *at++ == ',');
    return TRUE;
}

/* Whether reader->text stands at reader->at; then moves behind it. */
static gboolean
take_text(Reader *reader)
{
    gsize length = reader->text->len;

    if ((gsize)(reader->end - reader->at) < length ||
        memcmp(reader->at, reader->text->str, length) != 0) {
        g_autofree char *line = g_strndup(reader->text->str, length - 1);
        g_autofree char *expected = g_strdup_printf("exactly %s", line);
        return fail(reader, RP_EXPORT_ERROR_SYNTAX, expected);
    }
    reader->at += length;
    reader->line++;
    return TRUE;
}

static gboolean
read_record(Reader *reader, RpTrace *trace, guint n_lanes)
{
    gsize n = rp_trace_n_records(trace);
    RpTraceRecord record;

    if (!match(reader->at, reader->end, ",", NULL))
        return fail(reader, RP_EXPORT_ERROR_SYNTAX, "a comma and a task");
    if (!scan_record(reader, reader->at + 1, &record))
        return FALSE;
    if (record.lane >= n_lanes)
        return fail(reader, RP_EXPORT_ERROR_VALUE, "a task on one of the trace's lanes");
    if (n > 0 && rp_trace_records(trace)[n - 1].task >= record.task)
        return fail(reader, RP_EXPORT_ERROR_VALUE, "tasks with rising numbers");
    g_string_truncate(reader->text, 0);
    rp_chrome_format_record(reader->text, &record);
    if (!take_text(reader))
        return FALSE;
    rp_trace_append(trace, &record);
    return TRUE;
}

static gboolean
read_header(Reader *reader, RpChromeHeader *header)
{
    Field fields[MAX_FIELDS];

    if (!match(reader->at, reader->end, HEADER, fields))
        return fail(reader, RP_EXPORT_ERROR_SYNTAX,
                    "the first line of a trace that roundpipe wrote (roundpipe-trace/1)");
    if (fields[1].number > MAX_GPUS)
        return fail(reader, RP_EXPORT_ERROR_VALUE, "at most 65536 gpus");
    /* each takes a dozen lines of names, so a short file cannot ask for a lot of memory */
    if (fields[1].number * 100 > (guint64)(reader->end - reader->at))
        return fail(reader, RP_EXPORT_ERROR_VALUE, "as many gpus as the file names");
    *header = (RpChromeHeader){
        .gpus = (guint)fields[1].number,
        .origin = word_is(&fields[0], "measured") ? RP_TRACE_MEASURED : RP_TRACE_PREDICTED,
        .dispatched = word_is(&fields[2], "true"),
        .n_records = fields[3].number,
    };
    rp_chrome_format_header(reader->text, header);

    /* line by line, for the message */
    g_autofree char *whole = g_strdup(reader->text->str);
    for (char *line = whole; *line;) {
        char *next = strchr(line, '\n') + 1;
        g_string_truncate(reader->text, 0);
        g_string_append_len(reader->text, line, next - line);
        if (!take_text(reader))
            return FALSE;
        line = next;
    }
    return TRUE;
}

/* Counters and arrows: drawn, not read. */
static gboolean
skip_decoration(Reader *reader)
{
    static const char *const patterns[] = {"," COUNTER "\n", "," FLOW_START "\n",
                                           "," FLOW_END "\n"};
    Field fields[MAX_FIELDS];

    for (guint i = 0; i < G_N_ELEMENTS(patterns); i++) {
        const char *end = match(reader->at, reader->end, patterns[i], fields);
        if (!end)
            continue;
        reader->at = end;
        reader->line++;
        return TRUE;
    }
    return FALSE;
}

static RpTrace *
read_trace(Reader *reader)
{
    RpChromeHeader header;

    if (!read_header(reader, &header))
        return NULL;
    g_autoptr(RpTrace) trace = rp_trace_new_empty(header.gpus, header.origin);
    guint n_lanes = header.gpus * RP_LANES_PER_DEVICE + RP_HOST_LANES;

    rp_trace_set_dispatched(trace, header.dispatched);
    for (guint64 i = 0; i < header.n_records; i++)
        if (!read_record(reader, trace, n_lanes))
            return NULL;
    while (skip_decoration(reader))
        ;
    g_string_assign(reader->text, "]}\n");
    if (!take_text(reader))
        return NULL;
    if (reader->at != reader->end) {
        fail(reader, RP_EXPORT_ERROR_SYNTAX, "the end of the file");
        return NULL;
    }
    return g_steal_pointer(&trace);
}

RpTrace *
rp_trace_parse_chrome(const char *name, const char *text, gsize length, GError **error)
{
    g_return_val_if_fail(name && (text || length == 0), NULL);

    text = length > 0 ? text : "";
    Reader reader = {
        .name = name,
        .at = text,
        .end = text + length,
        .line = 1,
        .text = g_string_new(NULL),
        .error = error,
    };

    RpTrace *trace = read_trace(&reader);
    g_string_free(reader.text, TRUE);
    return trace;
}

RpTrace *
rp_trace_load_chrome(const char *path, GError **error)
{
    g_autoptr(GMappedFile) file = rp_file_map(path, error);

    if (!file)
        return NULL;
    return rp_trace_parse_chrome(path, g_mapped_file_get_contents(file),
                                 g_mapped_file_get_length(file), error);
}
