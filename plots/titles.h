/**
 * Places of a figure's titles, and of everything below them, in its script.
 *
 *   with long titles      without titles
 *   |title        |       |plot         |
 *   |and its rest |       |             |
 *   |plot         |
 */
#pragma once

#include <glib.h>

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

/* Characters of the texts of a .tex file of that terminal that mean something to LaTeX are escaped;
 * numbers of axes stay. (transfer full) */
char *rp_latex_escape_picture(const char *text);

/* @name: name of the graphics that it includes, without directory and ending. (transfer full) */
char *rp_latex_rename_graphics(const char *text, const char *name);
