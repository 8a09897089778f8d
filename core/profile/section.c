/**
 * Single values of a JSON object, each checked and each with its message; see section.h.
 */
#include "core/profile/section.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/base/quote.h"
#include "core/base/suggest.h"
#include "core/base/units.h"
#include "core/profile/private.h"

void
rp_section_clear(RpSection *section)
{
    g_free(section->place);
}

char *
rp_section_place(const RpSection *section, const char *key)
{
    if (!key)
        return g_strdup(*section->place ? section->place : "the file");
    return g_strdup_printf("%s%s%s", section->place, *section->place ? "." : "", key);
}

gboolean
rp_section_fail(const RpSection *section, RpProfileError code, const char *key,
                const char *expected, const char *found)
{
    g_autofree char *file = rp_display_name(section->file);
    g_autofree char *place = rp_section_place(section, key);

    g_set_error(section->error, RP_PROFILE_ERROR, code, "%s: %s: expected %s, found %s", file,
                place, expected, found);
    return FALSE;
}

char *
rp_json_node_describe(JsonNode *node)
{
    if (!node)
        return g_strdup("nothing");
    if (JSON_NODE_HOLDS_OBJECT(node))
        return g_strdup("an object");
    if (JSON_NODE_HOLDS_ARRAY(node))
        return g_strdup("an array");
    if (JSON_NODE_HOLDS_NULL(node))
        return g_strdup("null");
    if (json_node_get_value_type(node) == G_TYPE_STRING)
        return rp_quote(json_node_get_string(node));
    if (json_node_get_value_type(node) == G_TYPE_BOOLEAN)
        return g_strdup(json_node_get_boolean(node) ? "true" : "false");
    if (json_node_get_value_type(node) == G_TYPE_INT64)
        return g_strdup_printf("%" G_GINT64_FORMAT, json_node_get_int(node));
    char number[G_ASCII_DTOSTR_BUF_SIZE];
    return g_strdup(g_ascii_formatd(number, sizeof number, "%.15g", json_node_get_double(node)));
}

gboolean
rp_section_fail_value(const RpSection *section, const char *key, const char *expected)
{
    g_autofree char *found = rp_json_node_describe(json_object_get_member(section->object, key));
    return rp_section_fail(section, RP_PROFILE_ERROR_VALUE, key, expected, found);
}

gboolean
rp_section_check_keys(const RpSection *section, const char *const *known)
{
    JsonObjectIter iter;
    const char *key;

    json_object_iter_init_ordered(&iter, section->object);
    while (json_object_iter_next_ordered(&iter, &key, NULL)) {
        if (g_strv_contains(known, key))
            continue;
        const char *nearest = rp_nearest_name(key, known);
        g_autofree char *expected = nearest ? g_strdup_printf("a known key such as \"%s\"", nearest)
                                            : g_strdup("a known key");
        g_autofree char *found = rp_quote(key);
        return rp_section_fail(section, RP_PROFILE_ERROR_FORMAT, NULL, expected, found);
    }
    return TRUE;
}

static gboolean
node_number(JsonNode *node, double *value)
{
    if (!node || !JSON_NODE_HOLDS_VALUE(node))
        return FALSE;
    GType type = json_node_get_value_type(node);
    if (type != G_TYPE_INT64 && type != G_TYPE_DOUBLE)
        return FALSE;
    double number =
        type == G_TYPE_INT64 ? (double)json_node_get_int(node) : json_node_get_double(node);
    if (!isfinite(number))
        return FALSE;
    *value = number + 0.0; /* -0 becomes 0 */
    return TRUE;
}

gboolean
rp_section_number(const RpSection *section, const char *key, double min, double max,
                  const char *expected, double *value)
{
    JsonNode *node = json_object_get_member(section->object, key);
    double number;

    if (!node)
        return TRUE;
    if (!node_number(node, &number) || number < min || number > max)
        return rp_section_fail_value(section, key, expected);
    *value = number;
    return TRUE;
}

gboolean
rp_section_time(const RpSection *section, const char *key, gint64 *time_ns)
{
    double ms = rp_ms_from_ns(*time_ns);

    if (!json_object_has_member(section->object, key))
        return TRUE;
    if (!rp_section_number(section, key, 0, RP_PROFILE_MAX_MS, "milliseconds from 0 to 1e9", &ms))
        return FALSE;
    *time_ns = rp_ns_from_ms(ms);
    return TRUE;
}

gboolean
rp_json_node_size(JsonNode *node, guint64 *bytes)
{
    double number;

    if (!node_number(node, &number) || number < 0 || number > (double)RP_PROFILE_MAX_BYTES ||
        number != floor(number))
        return FALSE;
    *bytes = (guint64)number;
    return TRUE;
}

gboolean
rp_section_size(const RpSection *section, const char *key, guint64 *bytes)
{
    JsonNode *node = json_object_get_member(section->object, key);

    return !node || rp_json_node_size(node, bytes) ||
           rp_section_fail_value(section, key, "whole bytes from 0 to 2^50");
}

gboolean
rp_section_count(const RpSection *section, const char *key, guint max, guint *count)
{
    JsonNode *node = json_object_get_member(section->object, key);
    guint64 value;

    if (!node)
        return TRUE;
    if (!rp_json_node_size(node, &value) || value < 1 || value > max) {
        g_autofree char *expected = g_strdup_printf("a whole number from 1 to %u", max);
        return rp_section_fail_value(section, key, expected);
    }
    *count = (guint)value;
    return TRUE;
}

static gboolean
is_plain_text(const char *text)
{
    if (!g_utf8_validate(text, -1, NULL))
        return FALSE;
    for (const char *p = text; *p; p = g_utf8_next_char(p)) {
        gunichar c = g_utf8_get_char(p);
        if (g_unichar_iscntrl(c) || c == 0x2028 || c == 0x2029)
            return FALSE;
    }
    return TRUE;
}

gboolean
rp_section_string(const RpSection *section, const char *key, gsize max_length, char **text)
{
    JsonNode *node = json_object_get_member(section->object, key);

    if (!node)
        return TRUE;
    if (!JSON_NODE_HOLDS_VALUE(node) || json_node_get_value_type(node) != G_TYPE_STRING ||
        !is_plain_text(json_node_get_string(node)))
        return rp_section_fail_value(section, key, "text on one line");
    if (strlen(json_node_get_string(node)) > max_length) {
        g_autofree char *expected = g_strdup_printf("at most %zu bytes", max_length);
        return rp_section_fail_value(section, key, expected);
    }
    g_free(*text);
    *text = json_node_dup_string(node);
    return TRUE;
}

gboolean
rp_section_choice(const RpSection *section, const char *key, const char *const *choices,
                  char **text)
{
    if (!json_object_has_member(section->object, key))
        return TRUE;
    if (!rp_section_string(section, key, RP_PROFILE_MAX_STRING, text))
        return FALSE;
    if (g_strv_contains(choices, *text))
        return TRUE;
    g_autofree char *joined = g_strjoinv("\", \"", (char **)choices);
    g_autofree char *expected = g_strdup_printf("one of \"%s\"", joined);
    return rp_section_fail_value(section, key, expected);
}

gboolean
rp_section_date(const RpSection *section, const char *key, char **date)
{
    guint year, month, day;
    int length = 0;

    if (!json_object_has_member(section->object, key))
        return TRUE;
    if (!rp_section_string(section, key, RP_PROFILE_MAX_STRING, date))
        return FALSE;
    if (strspn(*date, "0123456789-") == 10 && (*date)[4] == '-' && (*date)[7] == '-' &&
        sscanf(*date, "%4u-%2u-%2u%n", &year, &month, &day, &length) == 3 && length == 10 &&
        (*date)[10] == '\0' && g_date_valid_dmy(day, month, year))
        return TRUE;
    return rp_section_fail_value(section, key, "a date as 2026-04-29");
}

gboolean
rp_section_open(const RpSection *section, const char *key, RpSection *inner, gboolean *found)
{
    JsonNode *node = json_object_get_member(section->object, key);

    *found = node != NULL;
    if (!node)
        return TRUE;
    if (!JSON_NODE_HOLDS_OBJECT(node))
        return rp_section_fail_value(section, key, "an object");
    *inner = (RpSection){section->file, rp_section_place(section, key), json_node_get_object(node),
                         section->error};
    return TRUE;
}
