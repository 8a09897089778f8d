#include "core/json/json-write.h"

#include <math.h>
#include <string.h>

#define MAX_DEPTH 32
#define INDENT 2
#define NUMBER_DIGITS 15

typedef struct {
    RpJsonLayout layout;
    gboolean is_object;
    gboolean empty;
    gboolean in_lines; /* each value on its own */
} Level;

struct _RpJsonWriter {
    GString *text;
    RpJsonLayout layout;
    gboolean broken;
    guint depth;
    Level levels[MAX_DEPTH];
};

RpJsonWriter *
rp_json_writer_new(RpJsonLayout layout)
{
    RpJsonWriter *json = g_new0(RpJsonWriter, 1);

    json->text = g_string_new(NULL);
    json->layout = layout;
    return json;
}

void
rp_json_writer_free(RpJsonWriter *json)
{
    if (json != NULL)
        g_free(rp_json_writer_finish(json));
}

GString *
rp_json_writer_text(RpJsonWriter *json)
{
    return json->text;
}

char *
rp_json_writer_finish(RpJsonWriter *json)
{
    char *text = g_string_free(json->text, FALSE);

    g_free(json);
    return text;
}

static void
append_string(GString *text, const char *value, gsize length)
{
    static const char plain[] = "\"\\\b\f\n\r\t";
    static const char letters[] = "\"\\bfnrt";

    g_string_append_c(text, '"');
    for (const char *p = value; p < value + length; p++) {
        const char *escaped = (guchar)*p >= 0x20 && *p != '"' && *p != '\\' ? p
                              : *p == '\0'                                  ? NULL
                                                                            : strchr(plain, *p);
        if (escaped == p) {
            g_string_append_c(text, *p);
        } else if (escaped != NULL) {
            g_string_append_c(text, '\\');
            g_string_append_c(text, letters[escaped - plain]);
        } else {
            g_string_append_printf(text, "\\u%04x", (guint)*p);
        }
    }
    g_string_append_c(text, '"');
}

static void
append_newline(const RpJsonWriter *json)
{
    g_string_append_printf(json->text, "\n%*s", (int)json->depth * INDENT, "");
}

/* All before a value: comma, space or line, and key. */
static void
begin(RpJsonWriter *json, const char *key, gboolean nested)
{
    if (json->depth == 0)
        return;
    Level *level = &json->levels[json->depth - 1];
    g_assert(level->is_object == (key != NULL));
    if (level->empty && level->layout == RP_JSON_LINES)
        level->in_lines = level->is_object || nested || json->broken;
    if (!level->empty)
        g_string_append_c(json->text, ',');
    if (level->in_lines || json->broken)
        append_newline(json);
    else if (!level->empty && level->layout != RP_JSON_COMPACT)
        g_string_append_c(json->text, ' ');
    level->empty = json->broken = FALSE;
    if (key == NULL)
        return;
    append_string(json->text, key, strlen(key));
    g_string_append(json->text, level->layout == RP_JSON_COMPACT ? ":" : ": ");
}

static void
open_level(RpJsonWriter *json, const char *key, gboolean is_object, RpJsonLayout layout)
{
    g_assert(json->depth < MAX_DEPTH);
    begin(json, key, TRUE);
    json->levels[json->depth++] = (Level){.layout = layout,
                                          .is_object = is_object,
                                          .empty = TRUE,
                                          .in_lines = is_object && layout == RP_JSON_LINES};
    g_string_append_c(json->text, is_object ? '{' : '[');
    if (is_object && layout == RP_JSON_PADDED)
        g_string_append_c(json->text, ' ');
}

static RpJsonLayout
inherited(const RpJsonWriter *json)
{
    return json->depth > 0 ? json->levels[json->depth - 1].layout : json->layout;
}

void
rp_json_object(RpJsonWriter *json, const char *key)
{
    open_level(json, key, TRUE, inherited(json));
}

void
rp_json_array(RpJsonWriter *json, const char *key)
{
    open_level(json, key, FALSE, inherited(json));
}

void
rp_json_object_as(RpJsonWriter *json, const char *key, RpJsonLayout layout)
{
    open_level(json, key, TRUE, layout);
}

void
rp_json_end(RpJsonWriter *json)
{
    g_assert(json->depth > 0);
    const Level *level = &json->levels[--json->depth];
    if (level->in_lines)
        append_newline(json);
    else if (level->is_object && level->layout == RP_JSON_PADDED)
        g_string_append_c(json->text, ' ');
    g_string_append_c(json->text, level->is_object ? '}' : ']');
    if (json->depth == 0 && level->layout == RP_JSON_LINES)
        g_string_append_c(json->text, '\n');
    json->broken = FALSE;
}

char *
rp_json_writer_so_far(const RpJsonWriter *json, const char *unfinished)
{
    RpJsonWriter copy = *json;

    copy.text = g_string_new_len(json->text->str, (gssize)json->text->len);
    while (copy.depth > 1)
        rp_json_end(&copy);
    if (copy.depth == 1 && unfinished != NULL)
        rp_json_bool(&copy, unfinished, FALSE);
    if (copy.depth == 1)
        rp_json_end(&copy);
    return g_string_free(copy.text, FALSE);
}

void
rp_json_break(RpJsonWriter *json)
{
    json->broken = TRUE;
}

/* ---- values ---- */

void
rp_json_raw(RpJsonWriter *json, const char *key, const char *value)
{
    begin(json, key, FALSE);
    g_string_append(json->text, value);
}

void
rp_json_string(RpJsonWriter *json, const char *key, const char *value)
{
    if (value == NULL) {
        rp_json_null(json, key);
        return;
    }
    rp_json_bytes(json, key, value, strlen(value));
}

void
rp_json_bytes(RpJsonWriter *json, const char *key, const char *value, gsize length)
{
    begin(json, key, FALSE);
    append_string(json->text, value, length);
}

void
rp_json_int(RpJsonWriter *json, const char *key, gint64 value)
{
    begin(json, key, FALSE);
    g_string_append_printf(json->text, "%" G_GINT64_FORMAT, value);
}

void
rp_json_uint(RpJsonWriter *json, const char *key, guint64 value)
{
    begin(json, key, FALSE);
    g_string_append_printf(json->text, "%" G_GUINT64_FORMAT, value);
}

void
rp_json_bool(RpJsonWriter *json, const char *key, gboolean value)
{
    rp_json_raw(json, key, value ? "true" : "false");
}

void
rp_json_null(RpJsonWriter *json, const char *key)
{
    rp_json_raw(json, key, "null");
}

void
rp_json_append_number(GString *text, double value, guint digits)
{
    char number[G_ASCII_DTOSTR_BUF_SIZE];

    for (guint precision = digits; precision <= 17; precision++) {
        char format[8];
        g_snprintf(format, sizeof format, "%%.%ug", precision);
        g_ascii_formatd(number, sizeof number, format, value);
        if (g_ascii_strtod(number, NULL) == value)
            break;
    }
    g_string_append(text, number);
    /* a float stays a float for readers that distinguish them */
    if (strpbrk(number, ".e") == NULL)
        g_string_append(text, ".0");
}

void
rp_json_number(RpJsonWriter *json, const char *key, double value)
{
    if (!isfinite(value)) {
        rp_json_null(json, key);
        return;
    }
    begin(json, key, FALSE);
    rp_json_append_number(json->text, value, NUMBER_DIGITS);
}

double
rp_json_round(double value, guint decimals)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE + 64];
    char format[8];

    g_snprintf(format, sizeof format, "%%.%uf", decimals);
    g_ascii_formatd(text, sizeof text, format, value);
    return g_ascii_strtod(text, NULL);
}

void
rp_json_double(RpJsonWriter *json, const char *key, double value, guint decimals)
{
    rp_json_number(json, key, rp_json_round(value, decimals));
}

void
rp_json_decimal(RpJsonWriter *json, const char *key, gint64 value, guint decimals, guint least)
{
    guint64 left = value < 0 ? -(guint64)value : (guint64)value;
    guint64 unit = 1;

    for (guint i = 0; i < decimals; i++)
        unit *= 10;
    guint64 whole = left / unit;
    left %= unit;
    for (; decimals > least && left % 10 == 0; decimals--)
        left /= 10;
    begin(json, key, FALSE);
    g_string_append_printf(json->text, "%s%" G_GUINT64_FORMAT ".%0*" G_GUINT64_FORMAT,
                           value < 0 ? "-" : "", whole, (int)decimals, left);
}
