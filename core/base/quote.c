#include "core/base/quote.h"

#include <string.h>

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

/* Longer names are never compared: nobody mistypes a known name into that many characters. */
#define MAX_NAME 64

/* Optimal string alignment distance; both lengths are at most MAX_NAME. */
static guint
distance(const char *a, gsize a_length, const char *b, gsize b_length)
{
    guint rows[3][MAX_NAME + 1];

    for (gsize j = 0; j <= b_length; j++)
        rows[0][j] = (guint)j;
    for (gsize i = 1; i <= a_length; i++) {
        guint *row = rows[i % 3];
        const guint *above = rows[(i + 2) % 3];
        const guint *two_above = rows[(i + 1) % 3];

        row[0] = (guint)i;
        for (gsize j = 1; j <= b_length; j++) {
            char x = g_ascii_tolower(a[i - 1]);
            char y = g_ascii_tolower(b[j - 1]);
            guint best = above[j - 1] + (x != y);

            best = MIN(best, above[j] + 1);
            best = MIN(best, row[j - 1] + 1);
            if (i > 1 && j > 1 && x == g_ascii_tolower(b[j - 2]) && y == g_ascii_tolower(a[i - 2]))
                best = MIN(best, two_above[j - 2] + 1);
            row[j] = best;
        }
    }
    return rows[a_length % 3][b_length];
}

const char *
rp_nearest_name(const char *wrong, const char *const *names)
{
    const char *nearest = NULL;
    guint nearest_distance = G_MAXUINT;

    g_return_val_if_fail(wrong && names, NULL);

    gsize wrong_length = strlen(wrong);
    if (wrong_length == 0 || wrong_length > MAX_NAME)
        return NULL;
    for (; *names; names++) {
        gsize length = strlen(*names);
        if (length == 0 || length > MAX_NAME)
            continue;
        guint limit = (guint)MAX(length, wrong_length) / 3;
        guint d = distance(wrong, wrong_length, *names, length);
        if (d <= limit && d < MAX(length, wrong_length) && d < nearest_distance) {
            nearest = *names;
            nearest_distance = d;
        }
    }
    return nearest;
}

gboolean
rp_fail(GError **error, GQuark domain, gint code, const char *format, ...)
{
    va_list arguments;

    if (error == NULL)
        return FALSE;
    va_start(arguments, format);
    g_propagate_error(error, g_error_new_valist(domain, code, format, arguments));
    va_end(arguments);
    return FALSE;
}

gboolean
rp_fail_in(GError **error, const char *path, GQuark domain, gint code, const char *format, ...)
{
    g_autofree char *shown = rp_display_name(path);
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail(error, domain, code, "%s: %s", shown, message);
}

gboolean
rp_prefix_error(GError **error, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *words = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    g_prefix_error(error, "%s", words);
    return FALSE;
}

gboolean
rp_propagate_error(GError **error, GError *problem)
{
    g_propagate_error(error, problem);
    return FALSE;
}

gboolean
rp_file_fail(GError **error, int number, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    g_autofree char *message = g_strdup_vprintf(format, arguments);
    va_end(arguments);
    return rp_fail(error, G_FILE_ERROR, (gint)g_file_error_from_errno(number), "%s: %s", message,
                   g_strerror(number));
}
