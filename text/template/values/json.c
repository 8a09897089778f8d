#include "text/template/values/value.h"

#include <stdlib.h>
#include <string.h>

/* A number in the text of @pull: digits alone are an integer. */
static gboolean
read_number(RpJsonPull *pull, RpValue *value)
{
    double number = 0.0;

    if (!rp_json_pull_number(pull, &number))
        return FALSE;
    gsize length = (gsize)(pull->at - pull->value);
    if (memchr(pull->value, '.', length) != NULL || memchr(pull->value, 'e', length) != NULL ||
        memchr(pull->value, 'E', length) != NULL) {
        *value = rp_value_float(number);
        return TRUE;
    }
    g_autofree char *digits = g_strndup(pull->value, length);
    gint64 integer = 0;
    if (!g_ascii_string_to_signed(digits, 10, G_MININT64, G_MAXINT64, &integer, NULL))
        return rp_json_pull_fail_value(pull, "a whole number of 64 bits");
    *value = rp_value_int(integer);
    return TRUE;
}

static gboolean
read_value(RpArena *arena, RpJsonPull *pull, GString *scratch, RpValue *value)
{
    gboolean truth = FALSE;

    if (!rp_arena_has_space(arena, 0))
        return rp_json_pull_refuse(pull, pull->at, NULL, "a value of less memory", "more of it");
    switch (rp_json_pull_peek(pull)) {
    case RP_JSON_OBJECT:
        if (!rp_json_pull_enter_object(pull))
            return FALSE;
        *value = rp_value_dict(rp_dict_new(arena));
        while (rp_json_pull_next_key(pull, scratch)) {
            RpValue key = rp_value_copy(arena, scratch->str, scratch->len);
            RpValue member;
            if (!read_value(arena, pull, scratch, &member))
                return FALSE;
            rp_dict_set(arena, value->dict, key, member);
        }
        return !pull->failed;
    case RP_JSON_ARRAY:
        if (!rp_json_pull_enter_array(pull))
            return FALSE;
        *value = rp_value_list(rp_list_new(arena, 0));
        while (rp_json_pull_next_element(pull)) {
            RpValue item;
            if (!read_value(arena, pull, scratch, &item))
                return FALSE;
            rp_list_append(arena, value->list, item);
        }
        return !pull->failed;
    case RP_JSON_STRING:
        if (!rp_json_pull_string(pull, scratch))
            return FALSE;
        *value = rp_value_copy(arena, scratch->str, scratch->len);
        return TRUE;
    case RP_JSON_NUMBER:
        return read_number(pull, value);
    case RP_JSON_BOOLEAN:
        if (!rp_json_pull_boolean(pull, &truth))
            return FALSE;
        *value = rp_value_bool(truth);
        return TRUE;
    case RP_JSON_NULL:
        *value = rp_none;
        return rp_json_pull_null(pull);
    default:
        return rp_json_pull_fail(pull, "a value");
    }
}

gboolean
rp_value_read_json(RpArena *arena, RpJsonPull *pull, RpValue *value)
{
    g_autoptr(GString) scratch = g_string_new(NULL);

    return read_value(arena, pull, scratch, value);
}

/* State that all levels share. */
typedef struct {
    RpArena *arena;
    const RpJsonStyle *style;
    GString *text;
    const char *item_separator;
    gsize item_length;
    const char *key_separator;
    gsize key_length;
    gboolean lines;
    const char **wrong;
} Writer;

static gboolean write_value(Writer *writer, RpValue value, guint level);

static void
write_string(const Writer *writer, RpValue string)
{
    GString *text = writer->text;
    static const char controls[] = "\b\t\n\f\r\"\\";
    static const char letters[] = "btnfr\"\\";

    g_string_append_c(text, '"');
    for (const char *p = string.text, *end = p + string.length; p < end;) {
        const char *run = p;
        while (p < end && (guchar)*p >= 0x20 && *p != '"' && *p != '\\' &&
               !((guchar)*p >= 0x7f && writer->style->ensure_ascii))
            p++;
        g_string_append_len(text, run, p - run);
        if (p == end)
            break;
        const char *control = *p != '\0' ? strchr(controls, *p) : NULL;
        if (control != NULL) {
            g_string_append_c(text, '\\');
            g_string_append_c(text, letters[control - controls]);
            p++;
            continue;
        }
        gunichar c = g_utf8_get_char(p);
        p += g_utf8_skip[(guchar)*p];
        if (c >= 0x10000)
            g_string_append_printf(text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                                   0xdc00 + ((c - 0x10000) & 0x3ff));
        else
            g_string_append_printf(text, "\\u%04x", c);
    }
    g_string_append_c(text, '"');
}

static void
write_line(const Writer *writer, guint level)
{
    const RpValue indent = writer->style->indent;

    if (!writer->lines)
        return;
    g_string_append_c(writer->text, '\n');
    for (guint i = 0; i < level && indent.type == RP_VALUE_STRING; i++)
        g_string_append_len(writer->text, indent.text, indent.length);
    for (gint64 i = 0; indent.type == RP_VALUE_INTEGER && i < indent.integer * level; i++)
        g_string_append_c(writer->text, ' ');
}

static gboolean
write_list(Writer *writer, const RpList *list, guint level)
{
    g_string_append_c(writer->text, '[');
    for (guint i = 0; i < list->length; i++) {
        if (i > 0)
            g_string_append_len(writer->text, writer->item_separator, (gssize)writer->item_length);
        write_line(writer, level + 1);
        if (!write_value(writer, list->items[i], level + 1))
            return FALSE;
    }
    if (list->length > 0)
        write_line(writer, level);
    g_string_append_c(writer->text, ']');
    return TRUE;
}

static int
compare_keys(gconstpointer a, gconstpointer b)
{
    const RpValue x = ((const RpPair *)a)->key, y = ((const RpPair *)b)->key;
    int order = memcmp(x.text, y.text, MIN(x.length, y.length));

    return order != 0 ? order : (x.length > y.length) - (x.length < y.length);
}

static gboolean
write_dict(Writer *writer, const RpDict *dict, guint level)
{
    g_autofree RpPair *sorted = NULL;
    const RpPair *pairs = dict->pairs;

    if (writer->style->sort_keys && dict->length > 0) {
        sorted = g_memdup2(pairs, dict->length * sizeof *pairs);
        for (guint i = 0; i < dict->length; i++)
            if (sorted[i].key.type != RP_VALUE_STRING) {
                *writer->wrong = "a dict whose keys are not all strings";
                return FALSE;
            }
        qsort(sorted, dict->length, sizeof *sorted, compare_keys);
        pairs = sorted;
    }
    g_string_append_c(writer->text, '{');
    for (guint i = 0; i < dict->length; i++) {
        const RpValue key = pairs[i].key;
        if (i > 0)
            g_string_append_len(writer->text, writer->item_separator, (gssize)writer->item_length);
        write_line(writer, level + 1);
        if (key.type != RP_VALUE_STRING)
            g_string_append_c(writer->text, '"');
        if (!write_value(writer, key, level + 1))
            return FALSE;
        if (key.type != RP_VALUE_STRING)
            g_string_append_c(writer->text, '"');
        g_string_append_len(writer->text, writer->key_separator, (gssize)writer->key_length);
        if (!write_value(writer, pairs[i].value, level + 1))
            return FALSE;
    }
    if (dict->length > 0)
        write_line(writer, level);
    g_string_append_c(writer->text, '}');
    return TRUE;
}

static gboolean
write_one(Writer *writer, RpValue value, guint level)
{
    switch (value.type) {
    case RP_VALUE_NONE:
        g_string_append(writer->text, "null");
        return TRUE;
    case RP_VALUE_BOOLEAN:
        g_string_append(writer->text, value.boolean ? "true" : "false");
        return TRUE;
    case RP_VALUE_INTEGER:
        g_string_append_printf(writer->text, "%" G_GINT64_FORMAT, value.integer);
        return TRUE;
    case RP_VALUE_FLOAT:
        rp_value_show_float(value.number, writer->text);
        return TRUE;
    case RP_VALUE_STRING:
        write_string(writer, value);
        return TRUE;
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
        return write_list(writer, value.list, level);
    case RP_VALUE_DICT:
        return write_dict(writer, value.dict, level);
    default:
        *writer->wrong = rp_value_type_name(value);
        return FALSE;
    }
}

static gboolean
write_value(Writer *writer, RpValue value, guint level)
{
    gboolean written = rp_arena_enter(writer->arena) &&
                       rp_arena_has_space(writer->arena, writer->text->len) &&
                       write_one(writer, value, level);

    rp_arena_leave(writer->arena);
    return written;
}

gboolean
rp_value_to_json(RpArena *arena, RpValue value, const RpJsonStyle *style, GString *text,
                 const char **wrong)
{
    Writer writer = {.arena = arena, .style = style, .text = text, .wrong = wrong};

    writer.lines = style->indent.type != RP_VALUE_NONE;
    writer.item_separator = writer.lines ? "," : ", ";
    writer.item_length = strlen(writer.item_separator);
    writer.key_separator = ": ";
    writer.key_length = 2;
    if (style->item_separator.type == RP_VALUE_STRING) {
        writer.item_separator = style->item_separator.text;
        writer.item_length = style->item_separator.length;
    }
    if (style->key_separator.type == RP_VALUE_STRING) {
        writer.key_separator = style->key_separator.text;
        writer.key_length = style->key_separator.length;
    }
    return write_value(&writer, value, 0);
}
