#include "core/base/quote.h"

#define MAX_QUOTED 60

/* Refuses characters that would break a line or hide text: control characters, ends of lines, and
 * marks that reverse or hide the text after them (bidirectional ones, zero-width ones, tags). */
static gboolean
is_plain(gunichar c)
{
    switch (g_unichar_type(c)) {
    case G_UNICODE_CONTROL:
    case G_UNICODE_FORMAT:
    case G_UNICODE_LINE_SEPARATOR:
    case G_UNICODE_PARAGRAPH_SEPARATOR:
    case G_UNICODE_UNASSIGNED:
    case G_UNICODE_PRIVATE_USE:
    case G_UNICODE_SURROGATE:
        return FALSE;
    default:
        return TRUE;
    }
}

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
        if (!is_plain(c))
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
        plain = is_plain(g_utf8_get_char(p));
    return plain ? g_strdup(name) : rp_quote(name);
}
