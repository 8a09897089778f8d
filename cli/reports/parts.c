#include "cli/reports/parts.h"

#include <string.h>

#define SHOWN_ENDS 2000 /* characters of a long part */

#define LEARNED_COLOUR "\033[32m"
#define OTHER_COLOUR "\033[2m"
#define NO_COLOUR "\033[0m"

char *
rp_cli_harmless(const char *text)
{
    GString *out = g_string_new(NULL);

    for (const char *at = text; *at != '\0'; at = g_utf8_next_char(at)) {
        const gunichar c = g_utf8_get_char(at);

        g_string_append_unichar(out, g_unichar_iscntrl(c) && c != '\n' && c != '\t' ? 0xfffd : c);
    }
    return g_string_free(out, FALSE);
}

/* Shortens a text that would fill the screen to its beginning and end. (transfer full) (nullable): it is short */
static char *
cut_middle(const char *text)
{
    const glong n = g_utf8_strlen(text, -1);

    if (n <= 2 * SHOWN_ENDS)
        return NULL;
    g_autofree char *start = g_utf8_substring(text, 0, SHOWN_ENDS);

    return g_strdup_printf("%s [%ld more characters] %s", start, n - 2 * SHOWN_ENDS,
                           g_utf8_offset_to_pointer(text, n - SHOWN_ENDS));
}

void
rp_cli_append_part(GString *shown, const char *text, gboolean learned, gboolean colour)
{
    g_autofree char *cut = cut_middle(text);

    text = cut != NULL ? cut : text;
    if (colour) {
        g_string_append_printf(shown, "%s%s%s", learned ? LEARNED_COLOUR : OTHER_COLOUR, text,
                               NO_COLOUR);
        return;
    }
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    for (guint i = 0; lines[i] != NULL; i++)
        g_string_append_printf(shown, "%s  %c %s", shown->len > 0 ? "\n" : "", learned ? '+' : '|',
                               lines[i]);
}
