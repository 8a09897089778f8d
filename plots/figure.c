#include "plots/figure.h"

#include <gio/gio.h>
#include <math.h>
#include <string.h>

#include "core/base/units.h"
#include "plots/table.h"

RpColour
rp_colour_of_model(const char *name)
{
    static const struct {
        const char *name;
        RpColour colour;
    } models[] = {
        {"qwen3-1.7b", RP_COLOUR_SKY},         {"llama-3.1-8b", RP_COLOUR_ORANGE},
        {"gpt-oss-20b", RP_COLOUR_GREEN},      {"qwen3-32b", RP_COLOUR_BLUE},
        {"qwen3-235b-a22b", RP_COLOUR_PURPLE},
    };

    for (guint i = 0; i < G_N_ELEMENTS(models); i++)
        if (strcmp(models[i].name, name) == 0)
            return models[i].colour;
    return rp_colour_of_series(g_str_hash(name));
}

RpColour
rp_colour_of_series(guint index)
{
    static const RpColour cycle[] = {
        RP_COLOUR_BLUE, RP_COLOUR_VERMILLION, RP_COLOUR_GREEN, RP_COLOUR_PURPLE,
        RP_COLOUR_SKY,  RP_COLOUR_ORANGE,     RP_COLOUR_GREY,  RP_COLOUR_BLACK,
    };

    return cycle[index % G_N_ELEMENTS(cycle)];
}

RpColour
rp_colour_lighten(RpColour colour, double share)
{
    RpColour mixed = 0;

    for (guint shift = 0; shift <= 16; shift += 8) {
        double channel = (double)((colour >> shift) & 0xff);

        mixed |= (RpColour)(channel + (255.0 - channel) * share + 0.5) << shift;
    }
    return mixed;
}

RpColour
rp_colour_of_text_on(RpColour colour)
{
    double red = (double)((colour >> 16) & 0xff);
    double green = (double)((colour >> 8) & 0xff);
    double blue = (double)(colour & 0xff);

    return 0.299 * red + 0.587 * green + 0.114 * blue > 128 ? RP_COLOUR_BLACK : 0xffffff;
}

/* Pixels below a plot: tics and the axis' name, then each row of a legend. */
#define LEGEND_TOP 72
#define LEGEND_OFFSET 66
#define LEGEND_ROW 19

#define MM_PER_INCH 25.4
/* So that letters of ten pixels have six points. */
#define PAPER_PIXELS_PER_INCH (100 * 7 / 6.0)
#define LEAST_WIDE 200
/* Plots less wide than this have fewer tics. */
#define NARROW 500
/* Width of a character at ten points, in bold, and in style.gp's font_small and font_title. */
#define CHARACTER 7.4
#define BOLD_CHARACTER 8.2
#define SMALL_CHARACTER 6.3
#define TITLE_CHARACTER 9.4
#define TITLE_LINE 16 /* from one line of a long title to the next */
#define TIC_PIXELS 48.0

struct _RpFigure {
    RpFigureStyle style;
    char *name;
    char *title;
    char *caption;
    char *files[RP_FIGURE_N_FILES]; /* texts, or NULL */
    guint width;
    guint height;
    guint title_space; /* height of the titles' lines beyond the first, pixels */
    GString *data;
    GString *script;
    GString *commands; /* lines */
};

RpFigure *
rp_figure_new(const char *name, const char *title, guint width, guint height)
{
    RpFigure *figure = g_new0(RpFigure, 1);

    figure->name = g_strdup(name);
    figure->title = g_strdup(title);
    figure->caption = g_strdup("");
    figure->width = width;
    figure->height = height;
    figure->data = g_string_new(NULL);
    figure->script = g_string_new(NULL);
    figure->commands = g_string_new(NULL);
    return figure;
}

void
rp_figure_free(RpFigure *figure)
{
    if (figure == NULL)
        return;
    g_free(figure->name);
    g_free(figure->title);
    g_free(figure->caption);
    for (guint i = 0; i < RP_FIGURE_N_FILES; i++)
        g_free(figure->files[i]);
    g_string_free(figure->data, TRUE);
    g_string_free(figure->script, TRUE);
    g_string_free(figure->commands, TRUE);
    g_free(figure);
}

guint
rp_figure_wide(const RpFigureStyle *style, guint usual)
{
    return style != NULL && style->width_mm > 0
               ? MAX(LEAST_WIDE,
                     (guint)lround(style->width_mm / MM_PER_INCH * PAPER_PIXELS_PER_INCH))
               : usual;
}

RpFigure *
rp_figure_new_styled(const char *name, const char *title, const RpFigureStyle *style, guint width,
                     guint height)
{
    RpFigure *figure = rp_figure_new(name, title, rp_figure_wide(style, width), height);

    if (style != NULL)
        figure->style = *style;
    return figure;
}

void
rp_figure_set_style(RpFigure *figure, const RpFigureStyle *style)
{
    figure->style = *style;
}

const char *
rp_figure_name(const RpFigure *figure)
{
    return figure->name;
}

const char *
rp_figure_title(const RpFigure *figure)
{
    return figure->title;
}

guint
rp_figure_width(const RpFigure *figure)
{
    return figure->width;
}

guint
rp_figure_height(const RpFigure *figure)
{
    return figure->height;
}

GString *
rp_figure_data(RpFigure *figure)
{
    return figure->data;
}

GString *
rp_figure_script(RpFigure *figure)
{
    return figure->script;
}

void
rp_figure_set_caption(RpFigure *figure, const char *caption)
{
    g_free(figure->caption);
    figure->caption = g_strdup(caption);
}

const char *
rp_figure_caption(const RpFigure *figure)
{
    return figure->caption;
}

void
rp_figure_add_command(RpFigure *figure, const char *command)
{
    g_string_append_printf(figure->commands, "%s\n", command);
}

const char *
rp_figure_commands(const RpFigure *figure)
{
    return figure->commands->str;
}

void
rp_figure_set_file(RpFigure *figure, RpFigureFile file, const char *text)
{
    g_free(figure->files[file]);
    figure->files[file] = g_strdup(text);
}

/* The largest of style.gp's fonts in which @text fits beside the edges, @usual if that does. */
static const char *
fitting_font(const RpFigure *figure, const char *text, const char *usual, double character)
{
    const double space = (double)figure->width - 16;
    const double length = (double)g_utf8_strlen(text, -1);

    if (!rp_figure_is_narrow(figure) || length * character <= space)
        return usual;
    return length * SMALL_CHARACTER <= space ? "font_small" : "font_tiny";
}

/* Whether @text fits beside the edges in letters so wide. */
static gboolean
fits(const RpFigure *figure, const char *text, double character)
{
    return (double)g_utf8_strlen(text, -1) * character <= (double)figure->width - 16;
}

/* In lines of a narrow figure, which grows by all but the first. */
static void
add_title(RpFigure *figure, guint tag, const char *text, guint top, const char *font,
          double character, const char *more)
{
    const gboolean whole = !rp_figure_is_narrow(figure) || fits(figure, text, character);
    guint n = 1;
    g_autofree char *quoted =
        whole ? rp_gnuplot_quote(text)
              : rp_titles_wrap(text, (guint)((figure->width - 16) / SMALL_CHARACTER), &n);

    if (!whole)
        font = "font_small";
    rp_text_append(figure->script,
                   "set label %u %s at screen px(10), screen 1 - py(%u) left%s%s%s\n", tag, quoted,
                   top + figure->title_space, more, font != NULL ? " font " : "",
                   font != NULL ? font : "");
    figure->title_space += (n - 1) * TITLE_LINE;
}

void
rp_figure_add_titles(RpFigure *figure, const char *title, const char *subtitle)
{
    add_title(figure, RP_TITLE_TAG, title, 20, "font_title", TITLE_CHARACTER, "");
    if (subtitle != NULL)
        add_title(figure, RP_SUBTITLE_TAG, subtitle, 42, NULL, CHARACTER,
                  " textcolor rgb '#444444'");
}

gboolean
rp_figure_is_narrow(const RpFigure *figure)
{
    return figure->width < NARROW;
}

const char *
rp_figure_heading_left(const RpFigure *figure)
{
    return rp_figure_is_narrow(figure) ? "screen px(8)" : "graph 0";
}

const char *
rp_figure_heading_font(const RpFigure *figure, const char *text)
{
    return fitting_font(figure, text, "font_bold", BOLD_CHARACTER);
}

void
rp_figure_add_x_title(RpFigure *figure, const char *title, guint bottom)
{
    g_autofree char *quoted = rp_gnuplot_quote(title);
    const char *font = fitting_font(figure, title, NULL, CHARACTER);
    const gboolean beyond = rp_figure_is_narrow(figure) &&
                            (double)g_utf8_strlen(title, -1) * CHARACTER > figure->width / 2.0;

    rp_text_append(figure->script, "set label 102 %s at %s, screen py(%d) center%s%s\n", quoted,
                   beyond ? "screen 0.5" : "graph 0.5", (int)bottom - 46,
                   font != NULL ? " font " : "", font != NULL ? font : "");
}

void
rp_figure_add_y_title(RpFigure *figure, const char *title)
{
    g_autofree char *quoted = rp_gnuplot_quote(title);

    rp_text_append(figure->script, "set label 103 %s at screen px(18), graph 0.5 center rotate\n",
                   quoted);
}

void
rp_figure_add_narrow_tics(RpFigure *figure, guint plot_width, double axis)
{
    const double rough = axis * TIC_PIXELS / plot_width;
    const double power = pow(10, floor(log10(rough)));
    const double step = rough <= power       ? power
                        : rough <= 2 * power ? 2 * power
                        : rough <= 5 * power ? 5 * power
                                             : 10 * power;

    if (plot_width < NARROW)
        rp_text_append(figure->script, "set xtics %.9g\n", step);
}

guint
rp_figure_add_legend_below(RpFigure *figure, const char *const *titles, guint n, guint plot_width)
{
    guint entries = 0;
    glong widest = 1;

    for (guint i = 0; i < n; i++) {
        if (titles[i] == NULL)
            continue;
        widest = MAX(widest, g_utf8_strlen(titles[i], -1));
        entries++;
    }
    guint columns = MAX(1, (guint)(plot_width / ((double)widest * 8.6 + 60)));
    guint rows = MAX(1, (entries + columns - 1) / columns);
    guint bottom = LEGEND_TOP + LEGEND_ROW * rows;

    rp_text_append(
        figure->script,
        "set bmargin at screen py(%u)\n"
        "set key at screen 0.5, screen py(%u) center top horizontal Left reverse maxcols "
        "%u\n",
        bottom, bottom - LEGEND_OFFSET, columns);
    figure->height += bottom;
    return bottom;
}

static char *
one_line(const char *text)
{
    return g_strdelimit(g_strdup(text), "\n\r", ' ');
}

static char *
script_text(const RpFigure *figure)
{
    gint more = 0;
    g_autofree char *body =
        rp_titles_place(figure->script->str, !figure->style.untitled, figure->title_space, &more);
    g_autofree char *title = one_line(figure->title);
    g_autofree char *data = g_strconcat(figure->name, ".dat", NULL);
    g_autofree char *quoted_name = rp_gnuplot_quote(figure->name);
    g_autofree char *quoted_data = rp_gnuplot_quote(data);
    GString *script = g_string_new(NULL);

    rp_text_append(script,
                   "# %s\n"
                   "# draws the PNG file; for the others: gnuplot -e \"format='svg'\" %s.gp\n"
                   "name = %s\nDATA = %s\nwide = %u\nhigh = %u\n",
                   title, figure->name, quoted_name, quoted_data, figure->width,
                   (guint)((gint)figure->height + more));
    if (figure->style.width_mm > 0)
        rp_text_append(script, "per_inch = %.6f\n",
                       figure->width * MM_PER_INCH / figure->style.width_mm);
    g_string_append_printf(script, "load 'style.gp'\n\n%s", body);
    g_string_append(script, "\nunset output\n");
    return g_string_free(script, FALSE);
}

static char *
caption_text(const RpFigure *figure)
{
    return g_strdup_printf("%s\n\n%s\n\nmade by\n\n%s", figure->title, figure->caption,
                           figure->commands->str);
}

static gboolean
write_file(const RpFigure *figure, const char *directory, const char *file, const char *suffix,
           const char *text, gssize length, GError **error)
{
    g_autofree char *base = g_strconcat(file, suffix, NULL);
    g_autofree char *path = g_build_filename(directory, base, NULL);
    g_autoptr(GError) local = NULL;

    if (g_file_set_contents_full(path, text, length, G_FILE_SET_CONTENTS_CONSISTENT, 0644, &local))
        return TRUE;
    return rp_fail(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DIRECTORY, "figure %s: cannot write %s: %s",
                   figure->name, path, local->message);
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
rp_latex_rename_graphics(const char *text, const char *name)
{
    return change_lines(text, rename_line, name);
}

/* gnuplot hands text to LaTeX as it is: characters that mean something there are escaped; numbers of axes
 * stay. */
static gboolean
escape_tex(const RpFigure *figure, const char *directory, GError **error)
{
    g_autofree char *base = g_strconcat(figure->name, ".tex", NULL);
    g_autofree char *path = g_build_filename(directory, base, NULL);
    g_autofree char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, error))
        return FALSE;
    g_autofree char *escaped = change_lines(text, escape_line, NULL);

    return write_file(figure, directory, figure->name, ".tex", escaped, -1, error);
}

/* One gnuplot process draws every format: the script is loaded once for each. */
static gboolean
draw(const RpFigure *figure, const char *directory, RpPictureFormat formats, GError **error)
{
    g_autoptr(GString) commands = g_string_new(NULL);
    g_autofree char *file = g_strconcat(figure->name, ".gp", NULL);
    g_autofree char *quoted = rp_gnuplot_quote(file);

    for (guint format = RP_PICTURE_PNG; format <= RP_PICTURE_TEX; format *= 2)
        if ((guint)formats & format)
            rp_text_append(commands, "format = '%s'\nload %s\n",
                           rp_picture_format_name((RpPictureFormat)format), quoted);
    if (rp_gnuplot_run(directory, commands->str, error))
        return !((guint)formats & (guint)RP_PICTURE_TEX) || escape_tex(figure, directory, error);
    return rp_prefix_error(error, "figure %s: ", figure->name);
}

gboolean
rp_figure_write(const RpFigure *figure, const char *directory, RpPictureFormat formats,
                GError **error)
{
    static const char *const suffixes[RP_FIGURE_N_FILES] = {".json", ".orders", ".csv"};
    g_autofree char *style = rp_table_built_in("style.gp");
    g_autofree char *script = script_text(figure);
    g_autofree char *caption = caption_text(figure);

    for (guint i = 0; i < RP_FIGURE_N_FILES; i++)
        if (figure->files[i] != NULL &&
            !write_file(figure, directory, figure->name, suffixes[i], figure->files[i], -1, error))
            return FALSE;
    return write_file(figure, directory, "style", ".gp", style, -1, error) &&
           write_file(figure, directory, figure->name, ".dat", figure->data->str,
                      (gssize)figure->data->len, error) &&
           write_file(figure, directory, figure->name, ".gp", script, -1, error) &&
           write_file(figure, directory, figure->name, ".txt", caption, -1, error) &&
           draw(figure, directory, formats, error);
}

RpTimeUnit
rp_time_unit(gint64 longest_ns)
{
    return longest_ns >= 10 * RP_NS_PER_S ? (RpTimeUnit){"s", 1e-3} : (RpTimeUnit){"ms", 1};
}

char *
rp_text_thousands(double value)
{
    g_autofree char *digits = g_strdup_printf("%.0f", value);
    GString *text = g_string_new(NULL);
    const gsize length = strlen(digits);

    for (gsize i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-')
            g_string_append_c(text, ',');
        g_string_append_c(text, digits[i]);
    }
    return g_string_free(text, FALSE);
}

char *
rp_text_time(gint64 time_ns)
{
    RpTimeUnit unit = rp_time_unit(time_ns);
    GString *text = g_string_new(NULL);

    rp_text_append(text, "%.1f %s", rp_ms_from_ns(time_ns) * unit.per_ms, unit.name);
    return g_string_free(text, FALSE);
}

char *
rp_text_percent(double ratio)
{
    const double percent = 100 * ratio;
    GString *text = g_string_new(NULL);

    rp_text_append(text, "%.*f %%", (int)rp_percent_decimals(percent, 1), percent);
    return g_string_free(text, FALSE);
}

/* ---- places of titles; LaTeX ---- */

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
    if (!g_str_has_prefix(line, "set label "))
        return FALSE;
    guint64 tag = g_ascii_strtoull(line + strlen("set label "), NULL, 10);
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
