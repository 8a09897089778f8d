/**
 * JSON on stdout. json-glib builds the tree; it is written here because json-glib writes 19.0676 as
 * 19.067599999999999 and gives every number of a list a line of its own.
 */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#define INDENT 2

static void append_node(GString *text, JsonNode *node, int indent);

/* The fewest digits that are read back as the same number. */
static void
append_double(GString *text, double value)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];

    for (int precision = 15; precision <= 17; precision++) {
        char format[8];

        g_snprintf(format, sizeof format, "%%.%dg", precision);
        g_ascii_formatd(digits, sizeof digits, format, value);
        if (g_ascii_strtod(digits, NULL) == value)
            break;
    }
    g_string_append(text, digits);
    if (digits[strspn(digits, "-0123456789")] == '\0')
        g_string_append(text, ".0"); /* so that a reader sees no integer */
}

static void
append_object(GString *text, JsonObject *object, int indent)
{
    g_autoptr(GList) keys = json_object_get_members(object);

    g_string_append_c(text, '{');
    for (GList *key = keys; key != NULL; key = key->next) {
        g_string_append_printf(text, "%s\n%*s\"%s\": ", key == keys ? "" : ",", indent + INDENT, "",
                               (const char *)key->data);
        append_node(text, json_object_get_member(object, key->data), indent + INDENT);
    }
    g_string_append_printf(text, "\n%*s}", indent, "");
}

/* Numbers and names on one line, objects on lines of their own. */
static void
append_array(GString *text, JsonArray *array, int indent)
{
    guint n = json_array_get_length(array);
    gboolean lines = n > 0 && !JSON_NODE_HOLDS_VALUE(json_array_get_element(array, 0));

    g_string_append_c(text, '[');
    for (guint i = 0; i < n; i++) {
        if (i > 0)
            g_string_append(text, lines ? "," : ", ");
        if (lines)
            g_string_append_printf(text, "\n%*s", indent + INDENT, "");
        append_node(text, json_array_get_element(array, i), indent + INDENT);
    }
    if (lines)
        g_string_append_printf(text, "\n%*s", indent, "");
    g_string_append_c(text, ']');
}

static void
append_node(GString *text, JsonNode *node, int indent)
{
    if (JSON_NODE_HOLDS_OBJECT(node)) {
        append_object(text, json_node_get_object(node), indent);
    } else if (JSON_NODE_HOLDS_ARRAY(node)) {
        append_array(text, json_node_get_array(node), indent);
    } else if (json_node_get_value_type(node) == G_TYPE_DOUBLE) {
        append_double(text, json_node_get_double(node));
    } else {
        g_autofree char *scalar = json_to_string(node, FALSE);

        g_string_append(text, scalar);
    }
}

void
rp_cli_print_json(JsonBuilder *builder)
{
    JsonNode *root = json_builder_get_root(builder);
    g_autoptr(GString) text = g_string_new(NULL);

    append_node(text, root, 0);
    puts(text->str);
    json_node_unref(root);
}

void
rp_json_string(JsonBuilder *builder, const char *key, const char *value)
{
    json_builder_set_member_name(builder, key);
    json_builder_add_string_value(builder, value);
}

void
rp_json_int(JsonBuilder *builder, const char *key, gint64 value)
{
    json_builder_set_member_name(builder, key);
    json_builder_add_int_value(builder, value);
}

double
rp_cli_round(double value, guint digits)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE + 64];
    char format[8];

    g_snprintf(format, sizeof format, "%%.%uf", digits);
    g_ascii_formatd(text, sizeof text, format, value);
    return g_ascii_strtod(text, NULL);
}

void
rp_json_double(JsonBuilder *builder, const char *key, double value, guint digits)
{
    json_builder_set_member_name(builder, key);
    json_builder_add_double_value(builder, rp_cli_round(value, digits));
}

void
rp_json_bool(JsonBuilder *builder, const char *key, gboolean value)
{
    json_builder_set_member_name(builder, key);
    json_builder_add_boolean_value(builder, value);
}

void
rp_json_object(JsonBuilder *builder, const char *key)
{
    json_builder_set_member_name(builder, key);
    json_builder_begin_object(builder);
}

void
rp_json_counts(JsonBuilder *builder, const char *key, const RpProfile *profile,
               const RpInterval *stages, guint n)
{
    g_autoptr(GArray) counts = rp_partition_block_counts(profile, stages, n);

    json_builder_set_member_name(builder, key);
    json_builder_begin_array(builder);
    for (guint i = 0; i < counts->len; i++)
        json_builder_add_int_value(builder, g_array_index(counts, guint, i));
    json_builder_end_array(builder);
}
