#include "text/samples/samples.h"

#include <string.h>

#include "core/base/quote.h"

#define PIECE_BYTES ((gsize)1 << 18)
#define MAX_COLUMNS 1024

/* Endings of names, and how records stand in such a file. */
typedef enum { NONE, LINES, ARRAY, COMMAS, TABS } Kind;
static const struct {
    const char *ending;
    Kind kind;
} endings[] = {
    {".jsonl", LINES}, {".ndjson", LINES}, {".json", ARRAY}, {".csv", COMMAS}, {".tsv", TABS}};

struct _RpRecords {
    RpInflate *inflate;
    char *name;
    Kind kind;
    GPtrArray *columns; /* of a table: names in JSON; %NULL: its first row was not read yet */
    char *piece;
    gsize from, to;
    guint64 line; /* newlines before @from */
    gboolean ended;
    enum { BEFORE, FIRST, WITHIN, BEHIND } place; /* place in an array */
};

static Kind
find_kind(const char *path)
{
    g_autofree char *name = rp_inflate_name(path);

    for (guint i = 0; i < G_N_ELEMENTS(endings); i++)
        if (g_str_has_suffix(name, endings[i].ending))
            return endings[i].kind;
    return NONE;
}

gboolean
rp_records_can_read(const char *path)
{
    return find_kind(path) != NONE;
}

char *
rp_records_hint(const char *path)
{
    const char *slash = strchr(path, '/');

    if (g_str_has_suffix(path, ".parquet"))
        return g_strdup_printf(
            "Python's datasets rewrites it: load_dataset(\"parquet\", data_files=\"%s\", "
            "split=\"train\").to_json(\"data.jsonl\")",
            path);
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
    const Kind kind = find_kind(path);
    g_autofree char *name = rp_display_name(path);

    if (kind == NONE) {
        g_autofree char *hint = rp_records_hint(path);

        return rp_null(
            rp_fail(error, RP_SAMPLES_ERROR, RP_SAMPLES_ERROR_FILE,
                    "%s: expected a name that ends in .jsonl, .json, .csv or .tsv, perhaps with "
                    ".gz or .zst behind it, found another%s%s",
                    name, hint != NULL ? "; " : "", hint != NULL ? hint : ""));
    }
    RpInflate *inflate = rp_inflate_open(path, error);
    if (inflate == NULL)
        return NULL;
    RpRecords *records = g_new0(RpRecords, 1);
    records->inflate = inflate;
    records->name = g_steal_pointer(&name);
    records->kind = kind;
    records->piece = g_malloc(PIECE_BYTES);
    return records;
}

void
rp_records_free(RpRecords *records)
{
    if (records == NULL)
        return;
    rp_inflate_free(records->inflate);
    g_clear_pointer(&records->columns, g_ptr_array_unref);
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
fail_long(const RpRecords *records, guint64 line, GError **error)
{
    return rp_samples_fail(records->name, line, "at most " G_STRINGIFY(64) " MiB in a record",
                           "more", error);
}

static gboolean
append(const RpRecords *records, GString *text, const char *bytes, gsize n, guint64 line,
       GError **error)
{
    if (text->len + n > RP_RECORD_MAX_BYTES)
        return fail_long(records, line, error);
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

/* ---- tables: RFC 4180, whose first row names the columns ---- */

/* Appends the cell at @records to @cell. @c: (out): the byte behind it, or -1 */
static gboolean
read_cell(RpRecords *records, char separator, guint64 line, GString *cell, int *c, GError **error)
{
    *c = peek(records, error);
    gboolean quoted = *c == '"';
    if (quoted)
        step(records);
    while ((*c = peek(records, error)) != -2) {
        const char byte = (char)*c;

        if (*c == -1 && quoted)
            return rp_samples_fail(records->name, line, "the \" that ends a cell",
                                   "the end of the file", error);
        if (!quoted && (*c == -1 || byte == separator || byte == '\n'))
            break;
        step(records);
        if (quoted && byte == '"' && (*c = peek(records, error)) != '"')
            break;
        if (quoted && byte == '"')
            step(records);
        if (!append(records, cell, &byte, 1, line, error))
            return FALSE;
    }
    if (!quoted && cell->len > 0 && cell->str[cell->len - 1] == '\r')
        g_string_truncate(cell, cell->len - 1);
    if (quoted && *c == '\r') {
        step(records);
        *c = peek(records, error);
    }
    return *c == -2 ? FALSE
                    : *c == -1 || *c == separator || *c == '\n' ||
                          rp_samples_fail(records->name, records->line,
                                          "a separator or a line's end behind a quoted cell",
                                          "something else", error);
}

/* Reads a row's cells into @cells. @found: (out): FALSE at the end; empty lines are passed over */
static gboolean
read_row(RpRecords *records, GPtrArray *cells, guint64 *line, gboolean *found, GError **error)
{
    const char separator = records->kind == TABS ? '\t' : ',';
    gsize bytes = 0;
    int c;

    while ((c = peek(records, error)) == '\n' || c == '\r')
        step(records);
    *line = records->line;
    *found = c >= 0;
    for (gboolean more = *found; more;) {
        GString *cell = g_string_new(NULL);

        g_ptr_array_add(cells, cell);
        if (cells->len > MAX_COLUMNS)
            return rp_samples_fail(records->name, *line,
                                   "at most " G_STRINGIFY(MAX_COLUMNS) " columns", "more", error);
        if (!read_cell(records, separator, *line, cell, &c, error))
            return FALSE;
        bytes += cell->len;
        if (bytes > RP_RECORD_MAX_BYTES)
            return fail_long(records, *line, error);
        if (c >= 0)
            step(records);
        more = c == separator;
    }
    return c != -2;
}

static void
free_cell(gpointer cell)
{
    g_string_free(cell, TRUE);
}

/* @text as a string of JSON. */
static void
append_string(GString *json, const GString *text)
{
    g_string_append_c(json, '"');
    for (gsize i = 0; i < text->len; i++) {
        const guchar byte = (guchar)text->str[i];

        if (byte < ' ')
            g_string_append_printf(json, "\\u%04x", byte);
        else if (byte == '"' || byte == '\\')
            g_string_append_printf(json, "\\%c", byte);
        else
            g_string_append_c(json, (char)byte);
    }
    g_string_append_c(json, '"');
}

static gboolean
read_columns(RpRecords *records, GError **error)
{
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(free_cell);
    guint64 line;
    gboolean found;

    if (!read_row(records, names, &line, &found, error))
        return FALSE;
    if (found && g_str_has_prefix(((GString *)names->pdata[0])->str, "\xef\xbb\xbf"))
        g_string_erase(names->pdata[0], 0, 3);
    for (guint i = 0; i < names->len; i++)
        for (guint k = 0; k <= i; k++) {
            const GString *name = names->pdata[i], *other = names->pdata[k];
            const gboolean again = k < i && g_string_equal(name, other);

            if (again || name->len == 0)
                return rp_samples_fail(records->name, line, "a name for each column",
                                       again ? "the same name twice" : "an empty cell", error);
        }
    records->columns = g_steal_pointer(&names);
    return TRUE;
}

/* The row as an object of JSON, without the columns whose cells are empty. */
static gboolean
next_row(RpRecords *records, GString *text, guint64 *line, gboolean *found, GError **error)
{
    g_autoptr(GPtrArray) cells = g_ptr_array_new_with_free_func(free_cell);
    const gsize at = text->len;

    if ((records->columns == NULL && !read_columns(records, error)) ||
        !read_row(records, cells, line, found, error))
        return FALSE;
    if (!*found)
        return TRUE;
    if (cells->len != records->columns->len) {
        g_autofree char *expected = g_strdup_printf("%u cells", records->columns->len);
        g_autofree char *were = g_strdup_printf("%u", cells->len);

        return rp_samples_fail(records->name, *line, expected, were, error);
    }
    g_string_append_c(text, '{');
    for (guint i = 0; i < cells->len; i++) {
        const GString *cell = cells->pdata[i];

        if (cell->len == 0)
            continue;
        if (text->len > at + 1)
            g_string_append_c(text, ',');
        append_string(text, records->columns->pdata[i]);
        g_string_append_c(text, ':');
        append_string(text, cell);
    }
    g_string_append_c(text, '}');
    return TRUE;
}

gboolean
rp_records_next(RpRecords *records, GString *text, guint64 *line, gboolean *found, GError **error)
{
    *found = FALSE;
    return (records->kind == LINES   ? next_line
            : records->kind == ARRAY ? next_element
                                     : next_row)(records, text, line, found, error);
}
