#include "plots/figure.h"

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

/**
 *   \put(472,2573){\makebox(0,0)[l]{\strut{}bubble ratio, %}}%          becomes ratio, \%
 *   \put(81,1593){\rotatebox{-270}{\makebox(0,0){\strut{}tokens/s}}}%
 */

#define TEXT "\\strut{}"

static void
append_escaped(GString *line, const char *text, gsize length)
{
    /* the tics of an axis are in mathematics already */
    if (length >= 2 && text[0] == '$' && text[length - 1] == '$') {
        g_string_append_len(line, text, (gssize)length);
        return;
    }
    for (gsize i = 0; i < length; i++)
        if (strchr("%&#_{}$", text[i]) != NULL)
            g_string_append_printf(line, "\\%c", text[i]);
        else if (text[i] == '\\')
            g_string_append(line, "\\textbackslash{}");
        else if (text[i] == '~' || text[i] == '^')
            g_string_append_printf(line, "\\%c{}", text[i]);
        else
            g_string_append_c(line, text[i]);
}

/* @line: without its end */
static void
escape_line(GString *made, const char *line, const char *unused)
{
    const gsize braces = strstr(line, "\\rotatebox") != NULL ? 3 : 2;
    const char *text = strstr(line, TEXT);
    const gsize length = strlen(line);

    if (text == NULL || line + length < text + strlen(TEXT) + braces + 1) {
        g_string_append(made, line);
        return;
    }
    text += strlen(TEXT);
    const gsize own = (gsize)(line + length - text) - braces - 1;

    g_string_append_len(made, line, text - line);
    append_escaped(made, text, own);
    g_string_append(made, text + own);
}

/*   \put(0,0){\includegraphics[width={237.00bp},height={144.00bp}]{timeline}}%   */
static void
rename_line(GString *made, const char *line, const char *name)
{
    const char *graphics = strstr(line, "{\\includegraphics[");
    const char *brace = graphics != NULL ? strrchr(graphics, '{') : NULL;

    if (brace == NULL || strchr(brace, '}') == NULL) {
        g_string_append(made, line);
        return;
    }
    g_string_append_len(made, line, brace + 1 - line);
    g_string_append_printf(made, "%s%s", name, strchr(brace, '}'));
}

static char *
change_lines(const char *text, void (*change)(GString *, const char *, const char *),
             const char *name)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    GString *made = g_string_new(NULL);

    for (char **line = lines; *line != NULL; line++) {
        change(made, *line, name);
        if (line[1] != NULL)
            g_string_append_c(made, '\n');
    }
    return g_string_free(made, FALSE);
}

char *
rp_latex_escape_picture(const char *text)
{
    return change_lines(text, escape_line, NULL);
}

char *
rp_latex_rename_graphics(const char *text, const char *name)
{
    return change_lines(text, rename_line, name);
}
