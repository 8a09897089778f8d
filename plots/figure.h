/**
 * A figure: data, script, caption and the command that made it, in memory until it is written.
 *
 * Making one needs no gnuplot; rp_figure_write() leaves in a directory
 *
 *   NAME.png NAME.svg NAME.pdf   pictures, in the requested formats
 *   NAME.dat                     the numbers drawn; columns are named in comments
 *   NAME.gp                      draws NAME.png by itself: gnuplot NAME.gp
 *   NAME.txt                     caption and commands
 *   NAME.json                    the made-up profile that the commands name, if there is one
 *   NAME.orders                  the orders that --schedule-file names in a command, if one does
 *   NAME.csv                     the same in full, for spreadsheets, if there is one
 *   style.gp                     shared by all scripts (plots/style.gp)
 */
#pragma once

#include <glib.h>

#include "core/plan/plan.h"
#include "plots/gnuplot.h"

/*
 * Colours, the same in every figure: of task kinds, models and parts of a bubble ratio.
 * All from Okabe and Ito's set, which is safe for any colour vision.
 */

/* 0xRRGGBB */
typedef guint32 RpColour;

#define RP_COLOUR_BLACK 0x000000
#define RP_COLOUR_GREY 0x8c8c8c
#define RP_COLOUR_ORANGE 0xe69f00
#define RP_COLOUR_SKY 0x56b4e9
#define RP_COLOUR_GREEN 0x009e73
#define RP_COLOUR_YELLOW 0xf0e442
#define RP_COLOUR_BLUE 0x0072b2
#define RP_COLOUR_VERMILLION 0xd55e00
#define RP_COLOUR_PURPLE 0xcc79a7

RpColour rp_colour_of_model(const char *name);
/* A series without a meaning of its own. */
RpColour rp_colour_of_series(guint index);

/* Mixed with white; 0 = as it is, 1 = white. */
RpColour rp_colour_lighten(RpColour colour, double share);
/* Text that can be read on it: black or white. */
RpColour rp_colour_of_text_on(RpColour colour);

typedef struct _RpFigure RpFigure;

/* How a figure is to look, where that is not as usual. Zero-initialise. */
typedef struct {
    double width_mm;   /* on paper, where its text has six points; 0: as usual */
    gboolean untitled; /* without title and second line, and the space for them */
} RpFigureStyle;

/* Pixels that a chart is wide which as usual has @usual. @style: (nullable) */
guint rp_figure_wide(const RpFigureStyle *style, guint usual);

/**
 * rp_figure_new:
 * @name: base name of its files, e.g. "figure-15"
 * @title: one line for the index
 * @width: pixels of the PNG file
 * @height: pixels of the PNG file
 */
RpFigure *rp_figure_new(const char *name, const char *title, guint width, guint height);
/* The same, @width as rp_figure_wide() has it. @style: (nullable) */
RpFigure *rp_figure_new_styled(const char *name, const char *title, const RpFigureStyle *style,
                               guint width, guint height);
/* Sets the style of a finished figure: its pixels stay, and on paper they are as wide as @style
 * says. */
void rp_figure_set_style(RpFigure *figure, const RpFigureStyle *style);
void rp_figure_free(RpFigure *figure);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpFigure, rp_figure_free)

const char *rp_figure_name(const RpFigure *figure);
const char *rp_figure_title(const RpFigure *figure);
guint rp_figure_width(const RpFigure *figure);
guint rp_figure_height(const RpFigure *figure);

/* Text so far; append with rp_text_append(). A script names its data file DATA and begins after
 * style.gp has set the terminal, with `wide` and `high` set to the size in pixels. */
GString *rp_figure_data(RpFigure *figure);
GString *rp_figure_script(RpFigure *figure);

/* The caption describes the figure and says of every series whether it is predicted, published or
 * measured. */
void rp_figure_set_caption(RpFigure *figure, const char *caption);
const char *rp_figure_caption(const RpFigure *figure);

/* Adds a line to the commands that make the figure or one part of it. */
void rp_figure_add_command(RpFigure *figure, const char *command);
/* Lines. */
const char *rp_figure_commands(const RpFigure *figure);

/* Files beside the figure's own: NAME.json, a profile that stands in no file; NAME.orders; NAME.csv. */
typedef enum {
    RP_FIGURE_PROFILE,
    RP_FIGURE_ORDERS,
    RP_FIGURE_TABLE,
    RP_FIGURE_N_FILES
} RpFigureFile;
void rp_figure_set_file(RpFigure *figure, RpFigureFile file, const char *text);

/* Title and (nullable) second line in the upper left corner. */
void rp_figure_add_titles(RpFigure *figure, const char *title, const char *subtitle);
/* Name of the x axis, below a plot that ends @bottom pixels above the figure's lower edge. */
void rp_figure_add_x_title(RpFigure *figure, const char *title, guint bottom);
/* Name of the y axis, upright at the left edge. */
void rp_figure_add_y_title(RpFigure *figure, const char *title);

/* Less wide than 500 pixels: headings begin at its left edge, and long texts are smaller. */
gboolean rp_figure_is_narrow(const RpFigure *figure);
/* "graph 0", or a narrow figure's left edge: where headings begin. Static. */
const char *rp_figure_heading_left(const RpFigure *figure);
/* "font_bold", or the font in which a heading fits into a narrow figure. Static. */
const char *rp_figure_heading_font(const RpFigure *figure, const char *text);

/* Tics of an x axis that is @axis long, so that they do not run into each other on narrow paper;
 * wider plots keep gnuplot's own. */
void rp_figure_add_narrow_tics(RpFigure *figure, guint plot_width, double axis);

/**
 * rp_figure_add_legend_below:
 * @titles: (array length=n): titles that the plot commands will name; %NULL = no entry
 * @plot_width: pixels
 *
 * Makes the figure higher by the space for tics, the axis' name and a legend of @n entries, and
 * sets bmargin and key. gnuplot makes all columns of a legend as wide as the widest.
 *
 * Returns: pixels added, for rp_figure_add_x_title()
 */
guint rp_figure_add_legend_below(RpFigure *figure, const char *const *titles, guint n,
                                 guint plot_width);

/**
 * rp_figure_write:
 * @directory: exists (rp_output_directory_check())
 *
 * Errors: RP_PLOT_ERROR_DIRECTORY, RP_PLOT_ERROR_GNUPLOT, RP_PLOT_ERROR_DRAW, each naming the
 * figure
 */
gboolean rp_figure_write(const RpFigure *figure, const char *directory, RpPictureFormat formats,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The unit in which times of a figure are drawn. */
typedef struct {
    const char *name; /* "ms" */
    double per_ms;
} RpTimeUnit;

/* @longest_ns: the longest of the figure's times. Ten seconds and more are seconds. */
RpTimeUnit rp_time_unit(gint64 longest_ns);

/* "8,651": whole. (transfer full) */
char *rp_text_thousands(double value);
/* "2177.6 ms", "254.7 s". (transfer full) */
char *rp_text_time(gint64 time_ns);
/* "19.1 %"; where that would be "0.0 %" as many decimals as the first digit takes, four at most:
 * "0.02 %". (transfer full) */
char *rp_text_percent(double ratio);

/*
 * Places of a figure's titles, and of everything below them, in its script.
 *
 *   with long titles      without titles
 *   |title        |       |plot         |
 *   |and its rest |       |             |
 *   |plot         |
 */

/* The labels that are titles. */
#define RP_TITLE_TAG 100
#define RP_SUBTITLE_TAG 101

/**
 * rp_titles_wrap:
 * @characters: characters that fit in a line; a longer word gets a line of its own
 * @n: (out): lines
 *
 * Returns: (transfer full): @text in lines, an expression of gnuplot
 */
char *rp_titles_wrap(const char *text, guint characters, guint *n);

/**
 * rp_titles_place:
 * @script: places below the titles are "screen 1 - py(PIXELS)"
 * @titled: else titles are left out, and all below them moves up
 * @space: height of titles beyond a line each, pixels: all below them moves down by it
 * @more: (out): by how many pixels the figure is higher
 *
 * Returns: (transfer full): the script
 */
char *rp_titles_place(const char *script, gboolean titled, guint space, gint *more);

/* @name: name of the graphics that it includes, without directory and ending. (transfer full) */
char *rp_latex_rename_graphics(const char *text, const char *name);
