/* What json-pull.h has for writing and for messages. */
#include "exec/model/json-pull.h"

#include <string.h>

#define MAX_QUOTED 100

char *
rp_json_quote(const char *text)
{
    g_autoptr(GString) out = g_string_new("\"");
    const char *p = text;

    for (gsize n = 0; *p && n < MAX_QUOTED; n++) {
        gunichar c = g_utf8_get_char_validated(p, -1);
        if (c == (gunichar)-1 || c == (gunichar)-2) {
            g_string_append_printf(out, "\\x%02x", (guchar)*p);
            p++;
            continue;
        }
        if (g_unichar_iscntrl(c) || c == 0x2028 || c == 0x2029)
            g_string_append_printf(out, "\\u%04x", c);
        else
            g_string_append_unichar(out, c);
        p = g_utf8_next_char(p);
    }
    g_string_append(out, *p ? "…\"" : "\"");
    return g_string_free(g_steal_pointer(&out), FALSE);
}

void
rp_json_append_string(GString *json, const char *text)
{
    g_string_append_c(json, '"');
    for (const char *p = text; *p; p++) {
        if ((guchar)*p < 0x20)
            g_string_append_printf(json, "\\u%04x", (guint)*p);
        else if (*p == '"' || *p == '\\')
            g_string_append_printf(json, "\\%c", *p);
        else
            g_string_append_c(json, *p);
    }
    g_string_append_c(json, '"');
}

void
rp_json_append_number(GString *json, double value)
{
    char digits[G_ASCII_DTOSTR_BUF_SIZE];

    for (int precision = 1; precision <= 17; precision++) {
        char format[8];
        g_snprintf(format, sizeof format, "%%.%dg", precision);
        g_ascii_formatd(digits, sizeof digits, format, value);
        if (g_ascii_strtod(digits, NULL) == value)
            break;
    }
    g_string_append(json, digits);
    /* a float stays a float for readers that tell them apart */
    if (!strpbrk(digits, ".e"))
        g_string_append(json, ".0");
}
