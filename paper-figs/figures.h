/**
 * Every figure at once, the paper's and a few of our own: predicted, or drawn from earlier
 * measurements.
 */
#pragma once

#include <glib.h>

#include "plots/figure.h"

/**
 * RpFiguresProgress:
 * @name: the recipe that begins or has ended, e.g. "figure-15"; one call at a time, from any thread
 * @done: recipes finished
 * @total: recipes in all
 */
typedef void (*RpFiguresProgress)(const char *name, guint done, guint total, gpointer user_data);

/* Names of the recipes, %NULL-terminated, static. A recipe makes one figure or a few. */
const char *const *rp_figures_names(void);

/* The figures to draw. Zero-initialise. */
typedef struct {
    const char *output_dir;   /* made if missing */
    const char *profiles_dir; /* the project's profiles/ */
    const char *measured_dir; /* holds figure-13.csv and others; NULL = those built in */
    const char *const *names; /* NULL-terminated names of recipes; NULL = all */
    RpPictureFormat formats;
    RpFigureStyle style;
    RpFiguresProgress progress; /* or NULL */
    gpointer user_data;
} RpFiguresRequest;

/**
 * rp_figures_make:
 * @left_out: (element-type utf8): why figures are missing that nothing was measured for; NULL =
 *   nobody asks
 *
 * Checks gnuplot, its terminals and @output_dir before it does any work. Writes the figures and
 * index.txt, which lists them with captions and commands. Data files and scripts are the same for
 * the same input, byte for byte. A figure without measurements is left out; one that was requested
 * by its name is an error.
 *
 * Errors: RP_PLOT_ERROR_*, and whatever a profile or a plan can be refused for
 */
gboolean rp_figures_make(const RpFiguresRequest *request, GPtrArray *left_out,
                         GError **error) G_GNUC_WARN_UNUSED_RESULT;
