/* Titles of narrow figures: in lines, and all below them further down. */
#include "tests/rp-test.h"

#include "plots/figure.h"

RP_TEST(a_text_is_wrapped_between_words)
{
    guint n = 0;
    g_autofree char *one = rp_titles_wrap("it's one line", 13, &n);

    assert_int_equal(n, 1);
    assert_string_equal(one, "'it''s one line'");
    g_autofree char *two = rp_titles_wrap("it's one line", 12, &n);

    assert_int_equal(n, 2);
    assert_string_equal(two, "'it''s one'.\"\\n\".'line'");
    g_autofree char *words = rp_titles_wrap("a longest word", 3, &n);

    assert_int_equal(n, 3);
    assert_string_equal(words, "'a'.\"\\n\".'longest'.\"\\n\".'word'");
    g_autofree char *none = rp_titles_wrap("", 3, &n);

    assert_int_equal(n, 1);
    assert_string_equal(none, "''");
}

#define TITLE "set label 100 'T' at screen px(10), screen 1 - py(20) left\n"
#define REST "set tmargin at screen 1 - py(50)\nset label 1 'x' at screen 1 - py(60), screen py(7)"

RP_TEST(what_is_below_titles_moves_with_them)
{
    gint more;
    g_autofree char *same = rp_titles_place(TITLE REST, TRUE, 0, &more);

    assert_int_equal(more, 0);
    assert_string_equal(same, TITLE REST);
    g_autofree char *lower = rp_titles_place(TITLE REST, TRUE, 32, &more);

    assert_int_equal(more, 32);
    assert_string_equal(lower, TITLE "set tmargin at screen 1 - py(82)\n"
                                     "set label 1 'x' at screen 1 - py(92), screen py(7)");
    g_autofree char *without = rp_titles_place(TITLE REST, FALSE, 32, &more);

    assert_int_equal(more, -38);
    assert_string_equal(without, "set tmargin at screen 1 - py(12)\n"
                                 "set label 1 'x' at screen 1 - py(22), screen py(7)");
}

RP_TEST(only_a_narrow_figure_wraps_its_titles)
{
    static const char text[] =
        "a title of some seventy characters, which no column of text has room for";
    const RpFigureStyle narrow = {.width_mm = 84};
    RpFigure *column = rp_figure_new_styled("column", text, &narrow, 900, 200);
    RpFigure *page = rp_figure_new_styled("page", text, NULL, 900, 200);

    rp_figure_add_titles(column, text, "short");
    rp_figure_add_titles(page, text, "short");
    assert_non_null(strstr(rp_figure_script(column)->str, ".\"\\n\".'"));
    assert_null(strstr(rp_figure_script(page)->str, "\\n"));
    /* the second line is below all lines of the first */
    assert_non_null(
        strstr(rp_figure_script(column)->str, "'short' at screen px(10), screen 1 - py(58)"));
    assert_non_null(
        strstr(rp_figure_script(page)->str, "'short' at screen px(10), screen 1 - py(42)"));
    rp_figure_free(column);
    rp_figure_free(page);
}
