/**
 * Draws the paper's figures without the `roundpipe` command:
 *
 *   make-figures PROFILES-DIR OUTPUT-DIR [FIGURE...]
 *
 * The targets figure-1, figure-15 ... of the build call it (paper-figs/README.md).
 */
#include <stdio.h>

#include "plots/figures.h"

static void
show(const char *name, guint done, guint total, gpointer user_data)
{
    (void)user_data;
    fprintf(stderr, "[%u/%u] %s\n", done + 1, total, name);
}

int
main(int argc, char **argv)
{
    g_autoptr(GError) error = NULL;
    const char *const *names = argc > 3 ? (const char *const *)argv + 3 : NULL;

    if (argc < 3) {
        fprintf(stderr, "usage: %s PROFILES-DIR OUTPUT-DIR [FIGURE...]\n", argv[0]);
        return 2;
    }
    if (rp_figures_make(argv[2], argv[1], names, RP_PICTURE_ALL, show, NULL, &error))
        return 0;
    fprintf(stderr, "%s: %s\n", argv[0], error->message);
    return 1;
}
