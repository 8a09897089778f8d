#include "core/quote.h"

#define MAX_QUOTED 60

char *
rp_quote(const char *text)
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

char *
rp_display_name(const char *name)
{
    gboolean plain = g_utf8_validate(name, -1, NULL);

    for (const char *p = name; plain && *p; p = g_utf8_next_char(p))
        plain = !g_unichar_iscntrl(g_utf8_get_char(p));
    return plain ? g_strdup(name) : rp_quote(name);
}
