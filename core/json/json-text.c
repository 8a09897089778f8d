/* What json-pull.h has for writing and for messages. */
#include "core/json/json-pull.h"

#include <string.h>

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
