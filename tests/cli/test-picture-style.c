/* How pictures look on paper: --width, --no-title, .tex; and what stands in slots. */
#include "tests/cli/run-cli.h"

#include <stdio.h>
#include <string.h>

#define RUN "simulate @Q --schedule 1f1b --gpus 4 --micro-batches 8 --stages 7*4 "

/* The size of an SVG picture. */
static void
read_size(const char *name, guint *width, guint *height)
{
    g_autofree char *svg = rp_cli_read(name);
    const char *at = strstr(svg, "viewBox=\"0 0 ");

    assert_non_null(at);
    assert_int_equal(sscanf(at, "viewBox=\"0 0 %u %u\"", width, height), 2);
}

RP_TEST(a_picture_is_as_wide_as_its_paper)
{
    guint width, height;

    rp_cli_must_run(RUN "--picture @T/usual.svg");
    rp_cli_must_run(RUN "--picture @T/narrow.svg --width 84mm");
    read_size("usual.svg", &width, &height);
    assert_int_equal(width, 1100);
    read_size("narrow.svg", &width, &height);
    assert_int_equal(width, 386); /* 84 mm at 116 2/3 pixels an inch */
    rp_cli_must_run(RUN "--picture @T/narrow.pdf --width 8.4cm");
    g_autofree char *narrow = rp_cli_temporary("narrow.pdf");
    g_autofree char *pdf = NULL;
    gsize length;

    assert_true(g_file_get_contents(narrow, &pdf, &length, NULL));
    /* 84 mm = 238.1 pt; the picture is binary before its page is told */
    assert_non_null(memmem(pdf, length, "/MediaBox [ 0 0 238 ", 20));
}

RP_TEST(without_its_title_a_picture_is_lower)
{
    guint width, height, less;

    rp_cli_must_run(RUN "--picture @T/titled.svg");
    rp_cli_must_run(RUN "--picture @T/plain.svg --no-title");
    read_size("titled.svg", &width, &height);
    read_size("plain.svg", &width, &less);
    assert_int_equal(height - less, 66 - 12);
    g_autofree char *titled = rp_cli_read("titled.svg");
    g_autofree char *plain = rp_cli_read("plain.svg");

    assert_non_null(strstr(titled, "bubble ratio"));
    assert_null(strstr(plain, "bubble ratio"));
    assert_non_null(strstr(plain, "GPU 0"));
}

RP_TEST(latex_gets_text_and_graphics)
{
    rp_cli_must_run(RUN "--picture @T/for-latex.tex --width 84mm");
    g_autofree char *tex = rp_cli_read("for-latex.tex");
    g_autofree char *pdf = rp_cli_read("for-latex.pdf");

    assert_non_null(strstr(tex, "bubble ratio 32.5 \\%"));
    assert_non_null(strstr(tex, "]{for-latex}}%"));
    assert_true(g_str_has_prefix(pdf, "%PDF-"));
}

RP_TEST(slots_carry_the_number_of_their_stage)
{
    rp_cli_must_run(RUN "--picture @T/slots.svg");
    g_autofree char *svg = rp_cli_read("slots.svg");

    for (guint stage = 0; stage < 4; stage++) {
        g_autofree char *label = g_strdup_printf(">%u·7<", stage);

        if (strstr(svg, label) == NULL)
            fail_msg("expected %s in %.3000s", label, svg);
    }
}

/* One GPU has nothing to wait for but its copies. */
RP_TEST(a_small_share_is_not_nothing)
{
    rp_cli_must_run("simulate gpt-oss-20b --schedule roundpipe --gpus 4 --micro-batches 8 --async "
                    "--picture @T/small.svg");
    g_autofree char *svg = rp_cli_read("small.svg");

    assert_non_null(strstr(svg, "bubble ratio"));
    assert_null(strstr(svg, "bubble ratio 0.0 %"));
}

RP_TEST(every_command_that_draws_has_the_options)
{
    rp_cli_must_run(RUN
                    "--trace @T/t.json --fidelity full --memory-picture @T/memory.pdf --width 84mm "
                    "--no-title");
    rp_cli_must_run(
        "report --late @T/t.json @T/t.json --picture @T/diff.tex --width 170mm --no-title");
    rp_cli_must_run(
        "sweep @Q --gpus 2 --micro-batches 4,8 -o @T/s.csv --picture @T/s.tex --width 3.3in "
        "--no-title");
    rp_cli_must_run("figures -o @T/figures --format tex --no-title figure-2");
    g_autofree char *figure = rp_cli_read("figures/figure-2.tex");

    assert_null(strstr(figure, "Figure 2"));
}

RP_TEST(figures_are_as_wide_as_their_paper)
{
    guint width, height;

    rp_cli_must_run(
        "figures -o @T/narrow --format svg --width 84mm figure-1 figure-2 figure-5 figure-17");
    for (guint i = 0; i < 3; i++) {
        static const char *const laid_out[] = {"figure-1", "figure-2", "figure-17"};
        g_autofree char *name = g_strdup_printf("narrow/%s.svg", laid_out[i]);

        read_size(name, &width, &height);
        assert_int_equal(width, 386);
    }
    /* a drawing is not laid out anew, only smaller on paper */
    read_size("narrow/figure-5.svg", &width, &height);
    assert_int_equal(width, 1000);
    g_autofree char *drawing = rp_cli_read("narrow/figure-5.gp");
    assert_non_null(strstr(drawing, "per_inch = 302.38")); /* 1000 pixels on 84 mm */
    /* what stands behind a bar is short, and headings begin at the edge */
    g_autofree char *bars = rp_cli_read("narrow/figure-2.gp");
    g_autofree char *data = rp_cli_read("narrow/figure-2.dat");
    assert_non_null(strstr(bars, "at screen px(8)"));
    assert_null(strstr(data, "times the recompute"));
    rp_cli_must_refuse("figures -o @T/narrow --width 84 figure-1", 2,
                       "--width: expected 40 to 2000 mm");
}

RP_TEST(refuses_options_without_effect)
{
    rp_cli_must_refuse_all("picture-style: refuses options without effect");
}

/* Files of figures' names that are somebody's own; those of figures are drawn anew. */
RP_TEST(figures_replace_no_foreign_file)
{
    rp_cli_must_shell("mkdir @T/own && echo mine >@T/own/figure-2.png");
    rp_cli_must_refuse("figures -o @T/own --format png figure-2", 1,
                       "expected no figure-2.png there");
    rp_cli_must_run("figures -o @T/own --format tex figure-5");
    rp_cli_must_run("figures -o @T/own --format tex figure-5");
    g_autofree char *mine = rp_cli_read("own/figure-2.png");
    assert_string_equal(mine, "mine\n");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
