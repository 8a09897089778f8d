/**
 * Every figure that needs no GPU, at once: the paper's and a few of our own.
 */
#pragma once

#include <glib.h>

#include "plots/gnuplot.h"

/**
 * RpFiguresProgress:
 * @name: the recipe at work, e.g. "figure-15"
 * @done: recipes finished
 * @total: recipes in all
 */
typedef void (*RpFiguresProgress)(const char *name, guint done, guint total, gpointer user_data);

/* Names of the recipes, %NULL-terminated, static. A recipe makes one figure or a few. */
const char *const *rp_figures_names(void);

/**
 * rp_figures_make:
 * @output_dir: made if missing
 * @profiles_dir: the project's profiles/
 * @names: (nullable): %NULL-terminated names of recipes; %NULL = all
 * @progress: (nullable)
 *
 * Checks gnuplot, its terminals and @output_dir before it does any work. Writes the figures and
 * index.txt, which lists them with captions and commands. Data files and scripts are the same for
 * the same input, byte for byte.
 *
 * Errors: RP_PLOT_ERROR_*, and whatever a profile or a plan can be refused for
 */
gboolean rp_figures_make(const char *output_dir, const char *profiles_dir, const char *const *names,
                         RpPictureFormat formats, RpFiguresProgress progress, gpointer user_data,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
