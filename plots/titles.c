#include "plots/titles.h"

#include <string.h>

#include "plots/gnuplot.h"

#define FROM_TOP "screen 1 - py("
/* Above the plot of a figure without titles. */
#define UNTITLED_TOP 12

char *
rp_titles_wrap(const char *text, guint characters, guint *n)
{
    g_auto(GStrv) words = g_strsplit(text, " ", -1);
    g_autoptr(GString) all = g_string_new(NULL);
    g_autofree char *line = g_strdup(words[0] != NULL ? words[0] : "");

    *n = 1;
    for (guint i = 1; words[0] != NULL && words[i] != NULL; i++) {
        char *longer = g_strjoin(" ", line, words[i], NULL);

        if (g_utf8_strlen(longer, -1) > (glong)characters) {
            g_autofree char *quoted = rp_gnuplot_quote(line);

            g_string_append_printf(all, "%s.\"\\n\".", quoted);
            g_free(longer);
            longer = g_strdup(words[i]);
            (*n)++;
        }
        g_free(line);
        line = longer;
    }
    g_autofree char *quoted = rp_gnuplot_quote(line);

    g_string_append(all, quoted);
    return g_string_free(g_steal_pointer(&all), FALSE);
}

/* Where the plot begins: the least distance from the upper edge. */
static guint
find_top(const char *line)
{
    guint64 least = G_MAXUINT;

    for (const char *at = line; (at = strstr(at, FROM_TOP)) != NULL; at++)
        least = MIN(least, g_ascii_strtoull(at + strlen(FROM_TOP), NULL, 10));
    return (guint)least;
}

static gboolean
is_title(const char *line)
{
    guint64 tag;

    if (!g_str_has_prefix(line, "set label "))
        return FALSE;
    tag = g_ascii_strtoull(line + strlen("set label "), NULL, 10);
    return tag == RP_TITLE_TAG || tag == RP_SUBTITLE_TAG;
}

/* With each distance from the upper edge made @more pixels larger, or smaller, but not than 0. */
static void
append_moved(GString *script, const char *line, gint more)
{
    const char *next;

    while ((next = strstr(line, FROM_TOP)) != NULL) {
        char *end = NULL;
        const gint pixels = (gint)g_ascii_strtoull(next + strlen(FROM_TOP), &end, 10);

        g_string_append_len(script, line, next - line);
        g_string_append_printf(script, FROM_TOP "%d", MAX(pixels + more, 0));
        line = end;
    }
    g_string_append(script, line);
}

char *
rp_titles_place(const char *script, gboolean titled, guint space, gint *more)
{
    g_auto(GStrv) lines = g_strsplit(script, "\n", -1);
    g_autoptr(GString) placed = g_string_new(NULL);
    guint top = G_MAXUINT;

    for (char **line = lines; *line != NULL; line++)
        if (!is_title(*line))
            top = MIN(top, find_top(*line));
    *more = (gint)space;
    if (!titled)
        *more = top < G_MAXUINT && top > UNTITLED_TOP ? UNTITLED_TOP - (gint)top : 0;
    for (char **line = lines; *line != NULL; line++) {
        if (is_title(*line) && !titled)
            continue;
        append_moved(placed, *line, is_title(*line) ? 0 : *more);
        if (line[1] != NULL)
            g_string_append_c(placed, '\n');
    }
    return g_string_free(g_steal_pointer(&placed), FALSE);
}
