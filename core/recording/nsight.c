/* The SQLite file of Nsight Systems (`nsys export --type sqlite`). Its tables are made as they are needed, and columns
 * differ from version to version: what is not there is done without, as far as it can be.
 *
 * Source: Nsight Systems, "SQLite Export Schema Reference" (docs.nvidia.com/nsight-systems)
 */
#include <sqlite3.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/recording/collect.h"

#define MAGIC "SQLite format 3"   /* and the NUL behind it */
#define MOST_VALUE_BYTES 16777216 /* of a text; names of kernels have some thousands */
#define NO_NAME "unknown"

typedef enum {
    COLUMN_START, /* of all tables with times */
    COLUMN_END,
    COLUMN_DEVICE, /* of work */
    COLUMN_PROCESS,
    COLUMN_CORRELATION,
    COLUMN_NAME, /* of a copy its kind */
    COLUMN_SHORT_NAME,
    N_COLUMNS
} Column;

typedef struct {
    sqlite3 *database;
    RpCollector *collector;
    GHashTable *strings; /* gint64 -> text: StringIds */
    GHashTable *cards;   /* gint64: process and number there -> gint64: number of the card */
    gint64 clock_ns;     /* when the session began, which all times are from */
    gboolean has_clock;
    GError **error;
} Reader;

typedef struct _Table Table;

/* A query of a table, at a row. */
typedef struct {
    Reader *reader;
    const Table *table;
    sqlite3_stmt *statement;
    guint64 row;
} Query;

/* Columns that are not there are read as NULL. */
struct _Table {
    const char *name;
    gboolean (*read)(const Query *query); /* a row */
    const char *columns[N_COLUMNS];
    RpWorkKind kind;  /* of work */
    const char *work; /* its name; %NULL: COLUMN_NAME has it */
};

static gboolean
fail(Reader *reader, const char *where, const char *expected, const char *found)
{
    return rp_fail(reader->error, RP_RECORDING_ERROR, RP_RECORDING_ERROR_FILE,
                   "%s: %s%sexpected %s, found %s", rp_collector_file(reader->collector), where,
                   *where != '\0' ? ": " : "", expected, found);
}

/* Fails in the words of SQLite. */
static gboolean
fail_database(Reader *reader, const char *where)
{
    const int code = sqlite3_errcode(reader->database);
    g_autofree char *said = rp_quote(sqlite3_errmsg(reader->database));

    if (code == SQLITE_CANTOPEN)
        return fail(reader, where, "a closed export of nsys",
                    "a file with a log beside it; export it again");
    return fail(reader, where, "an export of nsys that is whole", said);
}

static gboolean
fail_value(const Query *query, const char *column, int index, const char *expected)
{
    g_autofree char *where = g_strdup_printf("%s, row %" G_GUINT64_FORMAT ": %s",
                                             query->table->name, query->row, column);
    const char *text = (const char *)sqlite3_column_text(query->statement, index);
    g_autofree char *found = sqlite3_column_type(query->statement, index) == SQLITE_INTEGER
                                 ? g_strdup(text)
                             : text == NULL ? g_strdup("nothing")
                                            : rp_quote(text);

    return fail(query->reader, where, expected, found);
}

/* ---- queries ---- */

static void
query_clear(Query *query)
{
    sqlite3_finalize(query->statement);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Query, query_clear)

/* Whether @table, a table and no view, has @column; %NULL: any. */
static gboolean
has_column(Reader *reader, const char *table, const char *column)
{
    g_auto(Query) query = {.reader = reader};

    return sqlite3_prepare_v2(reader->database,
                              "SELECT 1 FROM sqlite_master AS t, pragma_table_info(?1) AS c WHERE "
                              "t.type = 'table' AND t.name = ?1 COLLATE NOCASE AND "
                              "(?2 IS NULL OR c.name = ?2 COLLATE NOCASE)",
                              -1, &query.statement, NULL) == SQLITE_OK &&
           sqlite3_bind_text(query.statement, 1, table, -1, SQLITE_STATIC) == SQLITE_OK &&
           sqlite3_bind_text(query.statement, 2, column, -1, SQLITE_STATIC) == SQLITE_OK &&
           sqlite3_step(query.statement) == SQLITE_ROW;
}

/* FALSE: no whole number */
static gboolean
get_integer(const Query *query, int index, gint64 *value)
{
    *value = sqlite3_column_int64(query->statement, index);
    return sqlite3_column_type(query->statement, index) == SQLITE_INTEGER;
}

static guint32
get_process(const Query *query, int index)
{
    /* a global number of a process or thread has the machine above and the thread below these 24 bits */
    return (guint32)((guint64)sqlite3_column_int64(query->statement, index) >> 24 & 0xffffff);
}

/* ---- tables that others refer to ---- */

static gint64 *
copy_integer(gint64 value)
{
    gint64 *copy = g_new(gint64, 1);

    *copy = value;
    return copy;
}

static gboolean
read_string(const Query *query)
{
    gint64 id;

    if (get_integer(query, 0, &id) && sqlite3_column_type(query->statement, 1) == SQLITE_TEXT)
        g_hash_table_insert(query->reader->strings, copy_integer(id),
                            g_strdup((const char *)sqlite3_column_text(query->statement, 1)));
    return TRUE;
}

/* Numbers of a process's devices begin with 0; those of cards are the machine's. */
static gboolean
read_card(const Query *query)
{
    gint64 value[3]; /* process, device, card */

    for (int i = 0; i < (int)G_N_ELEMENTS(value); i++)
        if (!get_integer(query, i, &value[i]) || value[i] < 0 || value[i] > G_MAXUINT32)
            return TRUE;
    g_hash_table_insert(query->reader->cards, copy_integer(value[0] << 32 | value[1]),
                        copy_integer(value[2]));
    return TRUE;
}

static gboolean
read_clock(const Query *query)
{
    static const char *const column = "utcEpochNs";
    Reader *reader = query->reader;
    gint64 found;

    if (sqlite3_column_type(query->statement, 0) == SQLITE_NULL)
        return TRUE;
    if (!get_integer(query, 0, &found) || found < 0 || found > RP_COLLECT_MAX_ORIGIN_NS)
        return fail_value(query, column, 0, "nanoseconds from 1970 to 2042");
    if (reader->has_clock && found != reader->clock_ns)
        return fail_value(query, column, 0, "the same start of the session in all rows");
    reader->clock_ns = found;
    reader->has_clock = TRUE;
    return TRUE;
}

/* ---- notes, launches and work ---- */

static gboolean
refuse(const Query *query, RpCollectResult result)
{
    static const struct {
        const char *column;
        int index;
        const char *expected;
    } rows[] = {
        [RP_COLLECT_START] = {"start", COLUMN_START, "nanoseconds of at most 73 years"},
        [RP_COLLECT_LENGTH] = {"end", COLUMN_END,
                               "nanoseconds from the start to 23 days behind it"},
        [RP_COLLECT_APART] = {"start", COLUMN_START,
                              "nanoseconds within 23 days of all other work"},
        [RP_COLLECT_DEVICES] = {"deviceId", COLUMN_DEVICE, "at most 1024 devices"},
    };

    return result == RP_COLLECTED ||
           fail_value(query, rows[result].column, rows[result].index, rows[result].expected);
}

/* Start and length of a row. A length is only subtracted where it cannot overflow. */
static gboolean
get_times(const Query *query, gint64 *start_ns, gint64 *length_ns)
{
    gint64 end_ns;

    if (!get_integer(query, COLUMN_START, start_ns))
        return fail_value(query, "start", COLUMN_START, "nanoseconds");
    if (!get_integer(query, COLUMN_END, &end_ns))
        return fail_value(query, "end", COLUMN_END, "nanoseconds");
    if (*start_ns < -RP_COLLECT_MAX_ORIGIN_NS || *start_ns > RP_COLLECT_MAX_ORIGIN_NS)
        return refuse(query, RP_COLLECT_START);
    if (end_ns < *start_ns || end_ns > *start_ns + RP_COLLECT_MAX_SPAN_NS)
        return refuse(query, RP_COLLECT_LENGTH);
    *length_ns = end_ns - *start_ns;
    return TRUE;
}

/* Ranges of NVTX. Marks have no end; a range without one was open when the recording ended. */
static gboolean
read_note(const Query *query)
{
    const char *text = (const char *)sqlite3_column_text(query->statement, 2);
    const gint64 id = sqlite3_column_int64(query->statement, 3);
    gint64 start_ns, length_ns;

    if (text == NULL)
        text = g_hash_table_lookup(query->reader->strings, &id);
    if (text == NULL || sqlite3_column_type(query->statement, COLUMN_END) == SQLITE_NULL)
        return TRUE;
    return get_times(query, &start_ns, &length_ns) &&
           refuse(query, rp_collector_add_note(query->reader->collector, text, FALSE,
                                               get_process(query, 4), start_ns, length_ns));
}

static gboolean
read_launch(const Query *query)
{
    const guint32 correlation = (guint32)sqlite3_column_int64(query->statement, 2);
    gint64 start_ns;

    if (rp_collector_has_actions(query->reader->collector) &&
        get_integer(query, COLUMN_START, &start_ns))
        rp_collector_add_launch(query->reader->collector,
                                rp_collect_key(get_process(query, 1), correlation), start_ns);
    return TRUE;
}

/* (transfer full) */
static char *
name_of(const Query *query)
{
    static const char *const directions[] = {
        [1] = " HtoD", [2] = " DtoH", [8] = " DtoD", [9] = " HtoH", [10] = " PtoP"};
    const gint64 number = sqlite3_column_int64(query->statement, COLUMN_NAME);
    const gint64 other = sqlite3_column_int64(query->statement, COLUMN_SHORT_NAME);

    if (query->table->work != NULL)
        return g_strconcat(
            query->table->work,
            number > 0 && number < (gint64)G_N_ELEMENTS(directions) ? directions[number] : NULL,
            NULL);
    const char *name = g_hash_table_lookup(query->reader->strings, &number);

    if (name == NULL)
        name = g_hash_table_lookup(query->reader->strings, &other);
    return g_utf8_make_valid(name != NULL ? name : NO_NAME, -1);
}

static gboolean
read_work(const Query *query)
{
    const Reader *reader = query->reader;
    const guint32 process = get_process(query, COLUMN_PROCESS);
    const guint32 correlation = (guint32)sqlite3_column_int64(query->statement, COLUMN_CORRELATION);
    gint64 start_ns, length_ns, device;

    if (!get_times(query, &start_ns, &length_ns))
        return FALSE;
    if (!get_integer(query, COLUMN_DEVICE, &device) || device < 0 || device > G_MAXUINT32)
        return fail_value(query, "deviceId", COLUMN_DEVICE, "the number of a device");
    const gint64 key = (gint64)process << 32 | device;
    const gint64 *card = g_hash_table_lookup(reader->cards, &key);
    g_autofree char *name = name_of(query);

    return refuse(query, rp_collector_add_work(reader->collector, name, query->table->kind,
                                               (guint64)(card != NULL ? *card : device), start_ns,
                                               length_ns, rp_collect_key(process, correlation)));
}

/* ---- tables ---- */

#define WORK_COLUMNS "start", "end", "deviceId", "globalPid", "correlationId"

/* In an order in which a table stands behind those that it refers to. */
static const Table tables[] = {
    {"TARGET_INFO_SESSION_START_TIME", read_clock, {"utcEpochNs"}},
    {"StringIds", read_string, {"id", "value"}},
    {"TARGET_INFO_CUDA_DEVICE", read_card, {"pid", "cudaId", "gpuId"}},
    {"NVTX_EVENTS", read_note, {"start", "end", "text", "textId", "globalTid"}},
    {"CUPTI_ACTIVITY_KIND_RUNTIME", read_launch, {"start", "globalTid", "correlationId"}},
    {"CUPTI_ACTIVITY_KIND_KERNEL", read_work, {WORK_COLUMNS, "demangledName", "shortName"}},
    {"CUPTI_ACTIVITY_KIND_GRAPH_TRACE", read_work, {WORK_COLUMNS}, .work = "CUDA graph"},
    {"CUPTI_ACTIVITY_KIND_MEMCPY", read_work, {WORK_COLUMNS, "copyKind"}, RP_WORK_COPY, "Memcpy"},
    {"CUPTI_ACTIVITY_KIND_MEMSET", read_work, {WORK_COLUMNS}, RP_WORK_COPY, "Memset"},
};

static gboolean
open_query(Query *query)
{
    g_autoptr(GString) text = g_string_new("SELECT ");

    for (guint i = 0; i < N_COLUMNS; i++) {
        const char *column = query->table->columns[i];
        const gboolean there =
            column != NULL && has_column(query->reader, query->table->name, column);

        g_string_append_printf(text, there ? "%s\"%s\"" : "%sNULL", i > 0 ? ", " : "",
                               there ? column : "");
    }
    g_string_append_printf(text, " FROM %s", query->table->name);
    return sqlite3_prepare_v2(query->reader->database, text->str, -1, &query->statement, NULL) ==
           SQLITE_OK;
}

static gboolean
read_table(Reader *reader, const Table *table)
{
    g_auto(Query) query = {.reader = reader, .table = table};
    int code = SQLITE_ROW;

    if (!has_column(reader, table->name, NULL))
        return TRUE;
    if (!open_query(&query))
        return fail_database(reader, table->name);
    while ((code = sqlite3_step(query.statement)) == SQLITE_ROW) {
        query.row++;
        if (!table->read(&query))
            return FALSE;
    }
    return code == SQLITE_DONE || fail_database(reader, table->name);
}

/* ---- the file ---- */

/* A file may be anybody's: no views, no triggers, no functions of its schema, nothing written. */
static gboolean
open_database(Reader *reader, const char *text, gsize length)
{
    static const int off[] = {SQLITE_DBCONFIG_ENABLE_VIEW, SQLITE_DBCONFIG_ENABLE_TRIGGER,
                              SQLITE_DBCONFIG_TRUSTED_SCHEMA};
    int state;

    if (sqlite3_open_v2(":memory:", &reader->database, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK)
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(off); i++)
        (void)sqlite3_db_config(reader->database, off[i], 0, &state);
    (void)sqlite3_db_config(reader->database, SQLITE_DBCONFIG_DEFENSIVE, 1, &state);
    (void)sqlite3_limit(reader->database, SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES);
    /* it is read where it is: with this flag SQLite writes nothing there */
    return sqlite3_deserialize(reader->database, "main", (unsigned char *)(gpointer)text,
                               (sqlite3_int64)length, (sqlite3_int64)length,
                               SQLITE_DESERIALIZE_READONLY) == SQLITE_OK;
}

gboolean
rp_nsight_is(const char *text, gsize length)
{
    return length >= sizeof MAGIC && memcmp(text, MAGIC, sizeof MAGIC) == 0;
}

static gboolean
read_all(Reader *reader, const char *text, gsize length)
{
    if (!rp_nsight_is(text, length))
        return fail(reader, "", "a SQLite file, as `nsys export --type sqlite` writes it",
                    "something else");
    /* the first query reads the schema */
    if (!open_database(reader, text, length) ||
        sqlite3_exec(reader->database, "SELECT 1 FROM sqlite_master", NULL, NULL, NULL) !=
            SQLITE_OK)
        return fail_database(reader, "");
    for (guint i = 0; i < G_N_ELEMENTS(tables); i++)
        if (!read_table(reader, &tables[i]))
            return FALSE;
    return TRUE;
}

RpRecording *
rp_nsight_parse(const char *name, const char *text, gsize length, const RpWorkPatterns *patterns,
                GError **error)
{
    g_autoptr(RpCollector) collector = rp_collector_new(name, patterns);
    g_autoptr(GHashTable) strings =
        g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    g_autoptr(GHashTable) cards =
        g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, g_free);
    Reader reader = {.collector = collector, .strings = strings, .cards = cards, .error = error};
    RpRecording *recording = NULL;

    if (read_all(&reader, text, length))
        recording = rp_collector_finish(
            collector,
            "tables CUPTI_ACTIVITY_KIND_KERNEL, _MEMCPY or _MEMSET), found none; record with `nsys "
            "profile --trace cuda,nvtx`",
            error);
    sqlite3_close(reader.database);
    if (recording == NULL)
        return NULL;
    recording->has_clock = reader.has_clock;
    recording->origin_ns += reader.clock_ns;
    return recording;
}
