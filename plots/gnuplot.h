/**
 * gnuplot as a tool: is it there, can it draw the wanted formats, run one script, quote text for
 * it.
 *
 * Everything that can go wrong because of the machine (no gnuplot, a directory that cannot be
 * written) is checked before the work that makes the data, by rp_gnuplot_check_formats() and
 * rp_output_directory_check().
 */
#pragma once

#include <glib.h>

#include "core/base/quote.h"

#define RP_PLOT_ERROR (rp_plot_error_quark())
GQuark rp_plot_error_quark(void);

typedef enum {
    RP_PLOT_ERROR_GNUPLOT,   /* not installed, or without a terminal that is needed */
    RP_PLOT_ERROR_DIRECTORY, /* cannot be made or written */
    RP_PLOT_ERROR_DRAW,      /* gnuplot failed: its message */
    RP_PLOT_ERROR_DATA,      /* input that no picture can be made of */
    RP_PLOT_ERROR_FORMAT,    /* unknown picture format */
    RP_PLOT_ERROR_EMPTY      /* a table of measurements that has none yet */
} RpPlotError;

/* Flags. */
typedef enum {
    RP_PICTURE_PNG = 1,
    RP_PICTURE_SVG = 2,
    RP_PICTURE_PDF = 4,
    RP_PICTURE_ALL = 7,
    RP_PICTURE_TEX = 8 /* for LaTeX: NAME.tex, which shows NAME.pdf below its own text */
} RpPictureFormat;

/**
 * rp_picture_formats_parse:
 * @text: comma-separated: "png", "svg,pdf", "all"
 * @formats: (out): set on success only
 *
 * Errors: RP_PLOT_ERROR_FORMAT
 */
gboolean rp_picture_formats_parse(const char *text, RpPictureFormat *formats,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* That of a file's name, "figure.png"; 0: none. */
guint rp_picture_format_of(const char *path);
/* "png" of one format. */
const char *rp_picture_format_name(RpPictureFormat format);

/* Errors: RP_PLOT_ERROR_GNUPLOT when PATH has none */
gboolean rp_gnuplot_check(GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* The same, and that it can draw @formats. Errors: RP_PLOT_ERROR_GNUPLOT */
gboolean rp_gnuplot_check_formats(RpPictureFormat formats,
                                  GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_output_directory_check:
 *
 * Makes @directory with its parents if it is missing, and proves that files can be written to it.
 *
 * Errors: RP_PLOT_ERROR_DIRECTORY
 */
gboolean rp_output_directory_check(const char *directory, GError **error) G_GNUC_WARN_UNUSED_RESULT;

/**
 * rp_gnuplot_run:
 * @directory: where it runs, so that scripts name their files relatively
 * @commands: gnuplot commands
 *
 * Errors: RP_PLOT_ERROR_DRAW on a bad exit status or any complaint on stderr, which is quoted
 */
gboolean rp_gnuplot_run(const char *directory, const char *commands,
                        GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* @text as a string expression of a script: single quotes, in which gnuplot runs no command; lines
 * are joined with "\n". (transfer full) */
char *rp_gnuplot_quote(const char *text);

/* @text as a quoted column of a data file; characters that would end or change it are replaced.
 * (transfer full) */
char *rp_gnuplot_quote_datum(const char *text);

/* g_string_append_printf() that writes decimal points whatever the locale. */
void rp_text_append(GString *text, const char *format, ...) G_GNUC_PRINTF(2, 3);
