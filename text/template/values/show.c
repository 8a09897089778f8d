#include "text/template/values/value.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void
rp_value_show_float(double number, GString *text)
{
    char digits[40];

    if (!isfinite(number)) {
        g_string_append(text, isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
        return;
    }
    for (int n = 0; n < 17; n++) {
        const char format[] = {'%', '.', (char)('0' + n / 10), (char)('0' + n % 10), 'e', '\0'};
        g_ascii_formatd(digits, sizeof digits, format, number);
        if (g_ascii_strtod(digits, NULL) == number)
            break;
    }
    char *e = strchr(digits, 'e');
    const int exponent = atoi(e + 1);
    *e = '\0';
    const char *sign = digits[0] == '-' ? "-" : "";
    const char first = digits[*sign != '\0'];
    const char *rest = strchr(digits, '.') != NULL ? strchr(digits, '.') + 1 : "";
    const int n_rest = (int)strlen(rest);

    if (exponent < -4 || exponent >= 16) {
        g_string_append_printf(text, "%s%c%s%se%c%02d", sign, first, n_rest > 0 ? "." : "", rest,
                               exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        g_string_append_printf(text, "%s0.%.*s%c%s", sign, -exponent - 1, "0000", first, rest);
    } else {
        g_string_append_printf(text, "%s%c", sign, first);
        for (int i = 0; i < exponent; i++)
            g_string_append_c(text, i < n_rest ? rest[i] : '0');
        g_string_append_printf(text, ".%s", exponent < n_rest ? rest + exponent : "0");
    }
}

/* Whether Python's repr() leaves @c as it is. */
static gboolean
is_printable(gunichar c)
{
    return c == ' ' || (g_unichar_isprint(c) && !g_unichar_isspace(c) &&
                        g_unichar_type(c) != G_UNICODE_SPACE_SEPARATOR);
}

static void
repr_string(RpValue string, GString *text)
{
    const gboolean single = string.length > 0 && memchr(string.text, '\'', string.length) != NULL;
    const gboolean twofold = string.length > 0 && memchr(string.text, '"', string.length) != NULL;
    const char quote = single && !twofold ? '"' : '\'';

    g_string_append_c(text, quote);
    for (const char *p = string.text, *end = p + string.length; p < end;
         p += g_utf8_skip[(guchar)*p]) {
        gunichar c = g_utf8_get_char(p);
        if (c == (gunichar)quote || c == '\\')
            g_string_append_printf(text, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            g_string_append(text, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (is_printable(c))
            g_string_append_len(text, p, g_utf8_skip[(guchar)*p]);
        else
            g_string_append_printf(text,
                                   c < 0x100     ? "\\x%02x"
                                   : c < 0x10000 ? "\\u%04x"
                                                 : "\\U%08x",
                                   c);
    }
    g_string_append_c(text, quote);
}

static gboolean
repr_dict(RpArena *arena, const RpDict *dict, GString *text, const char **wrong)
{
    g_string_append_c(text, '{');
    for (guint i = 0; i < dict->length; i++) {
        if (i > 0)
            g_string_append(text, ", ");
        if (!rp_value_repr(arena, dict->pairs[i].key, text, wrong))
            return FALSE;
        g_string_append(text, ": ");
        if (!rp_value_repr(arena, dict->pairs[i].value, text, wrong))
            return FALSE;
    }
    g_string_append_c(text, '}');
    return TRUE;
}

static gboolean
repr_one(RpArena *arena, RpValue value, GString *text, const char **wrong)
{
    const gboolean tuple = value.type == RP_VALUE_TUPLE;

    switch (value.type) {
    case RP_VALUE_UNDEFINED:
        g_string_append(text, "Undefined");
        return TRUE;
    case RP_VALUE_STRING:
        repr_string(value, text);
        return TRUE;
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
        g_string_append_c(text, tuple ? '(' : '[');
        for (guint i = 0; i < value.list->length; i++) {
            if (i > 0)
                g_string_append(text, ", ");
            if (!rp_value_repr(arena, value.list->items[i], text, wrong))
                return FALSE;
        }
        if (tuple && value.list->length == 1)
            g_string_append_c(text, ',');
        g_string_append_c(text, tuple ? ')' : ']');
        return TRUE;
    case RP_VALUE_DICT:
        return repr_dict(arena, value.dict, text, wrong);
    case RP_VALUE_NAMESPACE:
        g_string_append(text, "<Namespace ");
        if (!repr_dict(arena, value.dict, text, wrong))
            return FALSE;
        g_string_append_c(text, '>');
        return TRUE;
    default:
        return rp_value_show(arena, value, text, wrong);
    }
}

gboolean
rp_value_repr(RpArena *arena, RpValue value, GString *text, const char **wrong)
{
    gboolean shown = rp_arena_enter(arena) && rp_arena_has_space(arena, text->len) &&
                     repr_one(arena, value, text, wrong);

    rp_arena_leave(arena);
    return shown;
}

gboolean
rp_value_show(RpArena *arena, RpValue value, GString *text, const char **wrong)
{
    switch (value.type) {
    case RP_VALUE_UNDEFINED:
        return TRUE;
    case RP_VALUE_NONE:
        g_string_append(text, "None");
        return TRUE;
    case RP_VALUE_BOOLEAN:
        g_string_append(text, value.boolean ? "True" : "False");
        return TRUE;
    case RP_VALUE_INTEGER:
        g_string_append_printf(text, "%" G_GINT64_FORMAT, value.integer);
        return TRUE;
    case RP_VALUE_FLOAT:
        rp_value_show_float(value.number, text);
        return TRUE;
    case RP_VALUE_STRING:
        g_string_append_len(text, value.text, value.length);
        return rp_arena_has_space(arena, text->len);
    case RP_VALUE_LIST:
    case RP_VALUE_TUPLE:
    case RP_VALUE_DICT:
    case RP_VALUE_NAMESPACE:
        return rp_value_repr(arena, value, text, wrong);
    default:
        *wrong = rp_value_type_name(value);
        return FALSE;
    }
}
