/**
 * Makes the output of gnuplot's terminal `cairolatex` fit for LaTeX.
 */
#pragma once

#include <glib.h>

/* Characters of the texts of a .tex file of that terminal that mean something to LaTeX are escaped;
 * numbers of axes stay. (transfer full) */
char *rp_latex_escape_picture(const char *text);

/* @name: name of the graphics that it includes, without directory and ending. (transfer full) */
char *rp_latex_rename_graphics(const char *text, const char *name);
