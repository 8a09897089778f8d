#include "text/samples/samples.h"

#include <string.h>

#include "core/base/quote.h"

#define PIECE_BYTES ((gsize)1 << 18)

struct _RpRecords {
    RpInflate *inflate;
    char *name;
    gboolean array; /* .json */
    char *piece;
    gsize from, to;
    guint64 line; /* newlines before @from */
    gboolean ended;
    enum { BEFORE, FIRST, WITHIN, BEHIND } place; /* place in an array */
};

static gboolean
find_kind(const char *path, gboolean *array)
{
    g_autofree char *name = rp_inflate_name(path);

    *array = g_str_has_suffix(name, ".json");
    return *array || g_str_has_suffix(name, ".jsonl") || g_str_has_suffix(name, ".ndjson");
}

gboolean
rp_records_can_read(const char *path)
{
    gboolean array;

    return find_kind(path, &array);
}

char *
rp_records_hint(const char *path)
{
    static const char *const kinds[] = {"parquet", "csv"};
    const char *slash = strchr(path, '/');

    for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
        if (g_str_has_suffix(path, kinds[i]))
            return g_strdup_printf(
                "Python's datasets rewrites it: load_dataset(\"%s\", data_files=\"%s\", "
                "split=\"train\").to_json(\"data.jsonl\")",
                kinds[i], path);
    if (g_file_test(path, G_FILE_TEST_EXISTS) || slash == NULL || slash == path || *path == '.' ||
        strchr(slash + 1, '/') != NULL || strchr(slash + 1, '.') != NULL)
        return NULL;
    return g_strdup_printf("no such file; Python's datasets writes one of a dataset "
                           "of the hub: load_dataset(\"%s\", "
                           "split=\"train\").to_json(\"data.jsonl\")",
                           path);
}

RpRecords *
rp_records_open(const char *path, GError **error)
{
    gboolean array;
    g_autofree char *name = rp_display_name(path);

    if (!find_kind(path, &array)) {
        g_autofree char *hint = rp_records_hint(path);

        g_set_error(error, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_FILE,
                    "%s: expected a name that ends in .jsonl or .json, perhaps with .gz or .zst "
                    "behind it, found another%s%s",
                    name, hint != NULL ? "; " : "", hint != NULL ? hint : "");
        return NULL;
    }
    RpInflate *inflate = rp_inflate_open(path, error);
    if (inflate == NULL)
        return NULL;
    RpRecords *records = g_new0(RpRecords, 1);
    records->inflate = inflate;
    records->name = g_steal_pointer(&name);
    records->array = array;
    records->piece = g_malloc(PIECE_BYTES);
    return records;
}

void
rp_records_free(RpRecords *records)
{
    if (records == NULL)
        return;
    rp_inflate_free(records->inflate);
    g_free(records->piece);
    g_free(records->name);
    g_free(records);
}

guint64
rp_records_offset(const RpRecords *records)
{
    return rp_inflate_offset(records->inflate);
}

static gboolean
fill(RpRecords *records, GError **error)
{
    gsize n;

    if (records->from < records->to || records->ended)
        return TRUE;
    if (!rp_inflate_read(records->inflate, records->piece, PIECE_BYTES, &n, error))
        return FALSE;
    records->from = 0;
    records->to = n;
    records->ended = n == 0;
    return TRUE;
}

static gboolean
append(const RpRecords *records, GString *text, const char *bytes, gsize n, guint64 line,
       GError **error)
{
    if (text->len + n > RP_RECORD_MAX_BYTES)
        return rp_samples_fail(records->name, line, "at most " G_STRINGIFY(64) " MiB in a record",
                               "more", error);
    g_string_append_len(text, bytes, (gssize)n);
    return TRUE;
}

static gboolean
next_line(RpRecords *records, GString *text, guint64 *line, gboolean *found, GError **error)
{
    *line = records->line;
    for (;;) {
        if (!fill(records, error))
            return FALSE;
        if (records->ended)
            return TRUE;
        const char *start = records->piece + records->from;
        const gsize left = records->to - records->from;
        const char *end = memchr(start, '\n', left);
        const gsize n = end != NULL ? (gsize)(end - start) : left;
        *found = TRUE;
        if (!append(records, text, start, n, *line, error))
            return FALSE;
        records->from += n + (end != NULL);
        if (end == NULL)
            continue;
        records->line++;
        return TRUE;
    }
}

/* The next byte, which stays; -1 at the end, -2 on error */
static int
peek(RpRecords *records, GError **error)
{
    if (!fill(records, error))
        return -2;
    return records->ended ? -1 : (unsigned char)records->piece[records->from];
}

static void
step(RpRecords *records)
{
    records->line += records->piece[records->from++] == '\n';
}

static int
skip_space(RpRecords *records, GError **error)
{
    int c;

    while ((c = peek(records, error)) == ' ' || c == '\t' || c == '\n' || c == '\r')
        step(records);
    return c;
}

/* As far as the comma or bracket behind the element. Others check the inside. */
static gboolean
copy_element(RpRecords *records, GString *text, guint64 line, GError **error)
{
    gboolean string = FALSE, escaped = FALSE;
    guint64 depth = 0;

    for (;;) {
        const int c = peek(records, error);
        if (c == -2)
            return FALSE;
        if (c == -1)
            return rp_samples_fail(records->name, records->line, "the array's ]",
                                   "the end of the file", error);
        if (!string && depth == 0 && (c == ',' || c == ']'))
            return TRUE;
        if (string) {
            string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if (c == '"') {
            string = TRUE;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
        const char byte = (char)c;
        if (!append(records, text, &byte, 1, line, error))
            return FALSE;
        step(records);
    }
}

static gboolean
next_element(RpRecords *records, GString *text, guint64 *line, gboolean *found, GError **error)
{
    int c = skip_space(records, error);

    if (c != -2 && records->place == BEFORE) {
        if (c != '[')
            return rp_samples_fail(records->name, records->line, "an array of records: [",
                                   c == -1 ? "an empty file" : "something else", error);
        step(records);
        records->place = FIRST;
        c = skip_space(records, error);
    }
    if (c == -2)
        return FALSE;
    if (records->place == BEHIND)
        return c == -1 || rp_samples_fail(records->name, records->line, "nothing behind the array",
                                          "more", error);
    if (c == ']') {
        step(records);
        records->place = BEHIND;
        return next_element(records, text, line, found, error);
    }
    if (records->place == WITHIN) {
        if (c != ',')
            return rp_samples_fail(records->name, records->line, "a comma or the array's ]",
                                   c == -1 ? "the end of the file" : "something else", error);
        step(records);
        if (skip_space(records, error) == -2)
            return FALSE;
    }
    records->place = WITHIN;
    *line = records->line;
    *found = TRUE;
    return copy_element(records, text, *line, error);
}

gboolean
rp_records_next(RpRecords *records, GString *text, guint64 *line, gboolean *found, GError **error)
{
    *found = FALSE;
    return (records->array ? next_element : next_line)(records, text, line, found, error);
}
