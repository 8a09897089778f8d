/**
 *   \put(472,2573){\makebox(0,0)[l]{\strut{}bubble ratio, %}}%          becomes ratio, \%
 *   \put(81,1593){\rotatebox{-270}{\makebox(0,0){\strut{}tokens/s}}}%
 */
#include "plots/latex.h"

#include <string.h>

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
