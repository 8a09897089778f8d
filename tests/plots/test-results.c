/* docs/results.md agrees with Figures 13 and 14. */
#include "tests/rp-test.h"

#include <math.h>
#include <string.h>

#include "paper-figs/paper.h"

#define COLUMNS 6

/* Points of a figure, block by block. (transfer full) (element-type char *): "x y\n..." */
static GPtrArray *
blocks_of(RpPaperRecipe *recipe, const char *name)
{
    g_autoptr(RpPaper) paper = rp_paper_new(RP_SOURCE_ROOT "/profiles", NULL);
    g_autoptr(GPtrArray) figures = g_ptr_array_new_with_free_func((GDestroyNotify)rp_figure_free);
    GPtrArray *blocks = g_ptr_array_new_with_free_func(g_free);
    gboolean made = rp_must(recipe, paper, name, figures);

    assert_true(made);
    g_auto(GStrv) texts =
        g_strsplit(rp_figure_data(g_ptr_array_index(figures, 0))->str, "\n\n\n", -1);
    for (char **text = texts; *text != NULL; text++)
        g_ptr_array_add(blocks, g_strdup(*text));
    return blocks;
}

/* The y of a block's point; fails where there is none. */
static double
value_at(const GPtrArray *blocks, guint block, double x)
{
    assert_true(block < blocks->len);
    g_auto(GStrv) lines = g_strsplit(g_ptr_array_index(blocks, block), "\n", -1);

    for (char **line = lines; *line != NULL; line++) {
        char *end = NULL;

        if (**line != '#' && **line != '\0' && g_ascii_strtod(*line, &end) == x)
            return g_ascii_strtod(end, NULL);
    }
    fail_msg("block %u has no point at %g", block, x);
    return NAN;
}

/* Fails unless the row's cells from @first on are the figure's: predicted, published and error. */
static void
check_row(char **cells, guint first, double predicted, double published)
{
    g_autofree char *texts[] = {g_strdup_printf("%.0f", predicted),
                                g_strdup_printf("%.0f", published),
                                g_strdup_printf("%+.1f %%", 100 * (predicted / published - 1))};

    for (guint i = 0; i < G_N_ELEMENTS(texts); i++) {
        if (strcmp(g_strstrip(cells[first + i]), texts[i]) != 0)
            fail_msg("docs/results.md, %s %s: found %s, the figure shows %s", cells[1], cells[2],
                     cells[first + i], texts[i]);
        g_free(g_steal_pointer(&texts[i]));
    }
}

/* The rows of the table below @heading as cells: the first and the last are empty. (transfer full)
 */
static GPtrArray *
rows_below(const char *heading)
{
    g_autofree char *text = NULL;
    GPtrArray *rows = g_ptr_array_new_with_free_func((GDestroyNotify)g_strfreev);

    assert_true(g_file_get_contents(RP_SOURCE_ROOT "/docs/results.md", &text, NULL, NULL));
    const char *table = strstr(text, heading);
    assert_non_null(table);
    table = strstr(table, "|---");
    assert_non_null(table);
    g_auto(GStrv) lines = g_strsplit(strchr(table, '\n') + 1, "\n", -1);

    for (char **line = lines; g_str_has_prefix(*line, "|"); line++) {
        char **cells = g_strsplit(*line, "|", -1);

        assert_int_equal(g_strv_length(cells), COLUMNS + 2);
        g_ptr_array_add(rows, cells);
    }
    return rows;
}

/* Lines of a model: predicted, published. */
RP_TEST(figure_13_is_the_table_of_machines)
{
    g_autoptr(GPtrArray) blocks = blocks_of(rp_paper_figure_13, "figure-13");
    g_autoptr(GPtrArray) rows = rows_below("## Against the real machine");

    assert_int_equal(rows->len, RP_PAPER_N_MODELS * 4); /* 1, 2, 4 and 8 GPUs */
    for (guint i = 0; i < rows->len; i++) {
        char **cells = g_ptr_array_index(rows, i);
        const double gpus = g_ascii_strtod(cells[2], NULL);
        guint model = 0;

        g_strstrip(cells[1]);
        while (model < RP_PAPER_N_MODELS && strcmp(rp_paper_models[model].name, cells[1]) != 0)
            model++;
        assert_true(model < RP_PAPER_N_MODELS);
        check_row(cells, 3, value_at(blocks, 2 * model, gpus),
                  value_at(blocks, 2 * model + 1, gpus));
    }
}

RP_TEST(figure_14_is_the_table_of_lengths)
{
    g_autoptr(GPtrArray) blocks = blocks_of(rp_paper_figure_14, "figure-14");
    g_autoptr(GPtrArray) rows = rows_below("### Sequence length");

    assert_int_equal(rows->len, 8);
    for (guint i = 0; i < rows->len; i++) {
        char **cells = g_ptr_array_index(rows, i);
        const double length = g_ascii_strtod(cells[1], NULL);

        check_row(cells, 4, value_at(blocks, 0, length), value_at(blocks, 1, length));
    }
}
