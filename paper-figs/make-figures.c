/**
 * Draws the paper's figures without the `roundpipe` command:
 *
 *   make-figures PROFILES-DIR OUTPUT-DIR [FIGURE...]
 *
 * The targets paper-figs (all), figure-1, figure-15 ... of the build call it
 * (paper-figs/README.md).
 */
#include <stdio.h>

#include "paper-figs/figures.h"

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
    g_autoptr(GPtrArray) left_out = g_ptr_array_new_with_free_func(g_free);
    RpFiguresRequest request = {.formats = RP_PICTURE_ALL, .progress = show};

    if (argc < 3) {
        fprintf(stderr, "usage: %s PROFILES-DIR OUTPUT-DIR [FIGURE...]\n", argv[0]);
        return 2;
    }
    request.profiles_dir = argv[1];
    request.output_dir = argv[2];
    request.names = argc > 3 ? (const char *const *)argv + 3 : NULL;
    if (!rp_figures_make(&request, left_out, &error)) {
        fprintf(stderr, "%s: %s\n", argv[0], error->message);
        return 1;
    }
    for (guint i = 0; i < left_out->len; i++)
        fprintf(stderr, "not drawn: %s\n", (const char *)g_ptr_array_index(left_out, i));
    return 0;
}
