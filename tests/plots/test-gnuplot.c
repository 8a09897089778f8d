/* gnuplot as a tool: checks before any work, and text that reaches it unharmed. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <signal.h>

#include "paper-figs/figures.h"
#include "plots/gnuplot.h"

typedef struct {
    char *directory;
    char *path; /* PATH as it was */
} Fixture;

static int
set_up(void **state)
{
    Fixture *fixture = g_new0(Fixture, 1);

    fixture->directory = g_dir_make_tmp("rp-gnuplot-XXXXXX", NULL);
    fixture->path = g_strdup(g_getenv("PATH"));
    *state = fixture;
    return fixture->directory != NULL ? 0 : -1;
}

static int
tear_down(void **state)
{
    Fixture *fixture = *state;
    g_autofree char *file = g_build_filename(fixture->directory, "file", NULL);
    g_autofree char *program = g_build_filename(fixture->directory, "gnuplot", NULL);
    g_autofree char *inner = g_build_filename(fixture->directory, "a", "b", NULL);
    g_autofree char *outer = g_build_filename(fixture->directory, "a", NULL);

    g_setenv("PATH", fixture->path, TRUE);
    g_unlink(file);
    g_unlink(program);
    g_rmdir(inner);
    g_rmdir(outer);
    int left = g_rmdir(fixture->directory);
    g_free(fixture->directory);
    g_free(fixture->path);
    g_free(fixture);
    return left;
}

RP_TEST(scripts_quote_text_so_that_nothing_runs)
{
    static const struct {
        const char *text;
        const char *quoted;
    } cases[] = {
        {"plain", "'plain'"},
        {"it's", "'it''s'"},
        {"'it'", "\"'\".'it'''"}, /* three quotes are an empty text and an error */
        {"''", "\"'\".\"'\".''"},
        {"`rm -rf /` \"$HOME\" @m \\n", "'`rm -rf /` \"$HOME\" @m \\n'"},
        {"two\nlines", "'two'.\"\\n\".'lines'"},
        {"tab\there", "'tab here'"},
        {"", "''"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *quoted = rp_gnuplot_quote(cases[i].text);

        assert_string_equal(quoted, cases[i].quoted);
    }
}

RP_TEST(data_files_quote_text_so_that_columns_stay_apart)
{
    g_autofree char *quoted = rp_gnuplot_quote_datum("a \"b\" c\\n\td\n");

    assert_string_equal(quoted, "\"a 'b' c/n d \"");
}

RP_TEST(formats_are_read_from_a_list)
{
    RpPictureFormat formats = 0;
    g_autoptr(GError) error = NULL;

    assert_true(rp_picture_formats_parse("png", &formats, &error));
    assert_int_equal(formats, RP_PICTURE_PNG);
    assert_true(rp_picture_formats_parse("svg, pdf", &formats, &error));
    assert_int_equal(formats, RP_PICTURE_SVG | RP_PICTURE_PDF);
    assert_true(rp_picture_formats_parse("all", &formats, &error));
    assert_int_equal(formats, RP_PICTURE_ALL);
    rp_refuses("\"gif\"", rp_picture_formats_parse, "png,gif", &formats);
    assert_false(rp_picture_formats_parse("", &formats, &error));
    assert_non_null(error);
}

static void
count_calls(const char *name, guint done, guint total, gpointer user_data)
{
    (void)name;
    (void)done;
    (void)total;
    ++*(guint *)user_data;
}

RP_TEST_OF(a_missing_gnuplot_is_named_with_its_package_before_any_work, Fixture *fixture)
{
    g_autofree char *output = g_build_filename(fixture->directory, "a", NULL);
    g_autoptr(GError) error = NULL;
    guint calls = 0;

    g_setenv("PATH", fixture->directory, TRUE);
    assert_false(rp_gnuplot_check(&error));
    assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_GNUPLOT));
    assert_string_equal(error->message,
                        "gnuplot not found in PATH: install the Debian package gnuplot-nox");
    g_clear_error(&error);
    RpFiguresRequest request = {.output_dir = output,
                                .profiles_dir = "/no/such/profiles",
                                .formats = RP_PICTURE_PNG,
                                .progress = count_calls,
                                .user_data = &calls};
    rp_refuses("gnuplot-nox", rp_figures_make, &request, NULL);
    assert_int_equal(calls, 0);
    assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
}

RP_TEST_OF(an_output_directory_is_made_with_its_parents, Fixture *fixture)
{
    g_autofree char *output = g_build_filename(fixture->directory, "a", "b", NULL);
    g_autoptr(GError) error = NULL;

    assert_true(rp_output_directory_check(output, &error));
    assert_true(g_file_test(output, G_FILE_TEST_IS_DIR));
    assert_true(rp_output_directory_check(output, &error));
    assert_null(error);
}

RP_TEST_OF(an_output_directory_that_cannot_be_written_is_refused_before_any_work, Fixture *fixture)
{
    g_autofree char *file = g_build_filename(fixture->directory, "file", NULL);
    g_autofree char *below = g_build_filename(file, "figures", NULL);
    g_autoptr(GError) error = NULL;
    guint calls = 0;

    assert_true(g_file_set_contents(file, "", 0, NULL));
    assert_false(rp_output_directory_check(below, &error));
    assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DIRECTORY));
    rp_assert_error(&error, below);
    /* not even mkdir, but no file can be made in it, not by root either */
    rp_refuses("/proc/self", rp_output_directory_check, "/proc/self");
    if (!rp_gnuplot_check(NULL))
        skip();
    RpFiguresRequest request = {.output_dir = below,
                                .profiles_dir = "/no/such/profiles",
                                .formats = RP_PICTURE_PNG,
                                .progress = count_calls,
                                .user_data = &calls};
    rp_refuses(below, rp_figures_make, &request, NULL);
    assert_int_equal(calls, 0);
}

RP_TEST_OF(an_unknown_figure_is_refused_with_the_list, Fixture *fixture)
{
    static const char *const names[] = {"figure-99", NULL};
    g_autoptr(GError) error = NULL;

    RpFiguresRequest request = {.output_dir = fixture->directory,
                                .profiles_dir = "profiles",
                                .names = names,
                                .formats = RP_PICTURE_PNG};
    assert_false(rp_figures_make(&request, NULL, &error));
    rp_assert_error_message_contains(error, "figure-99");
    rp_assert_error_message_contains(error, "figure-15");
}

RP_TEST_OF(what_gnuplot_complains_about_becomes_an_error, Fixture *fixture)
{
    g_autoptr(GError) error = NULL;

    if (!rp_gnuplot_check(NULL))
        skip();
    assert_true(rp_gnuplot_run(fixture->directory, "x = 1\n", &error));
    assert_null(error);
    assert_false(rp_gnuplot_run(fixture->directory, "plot 'no-such-file.dat'\n", &error));
    assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DRAW));
    rp_assert_error(&error, "no-such-file.dat");
    rp_refuses("a warning", rp_gnuplot_run, fixture->directory, "print 'a warning'\n");
}

/* Another program of this name stands first in PATH: its behaviour, and the message about it. */
RP_TEST_OF(a_gnuplot_that_fails_is_reported_with_its_exit_status, Fixture *fixture)
{
    static const struct {
        const char *script;
        const char *message;
    } cases[] = {
        {"cat >/dev/null; kill -SEGV $$", "gnuplot was ended by signal 11 (Segmentation fault)"},
        {"cat >/dev/null; echo 'no memory' >&2; kill -ABRT $$",
         "gnuplot was ended by signal 6 (Aborted): no memory"},
        {"cat >/dev/null; exit 3", "gnuplot failed: no message"},
        {"cat >/dev/null; echo 'no such file' >&2; exit 1", "gnuplot failed: no such file"},
        /* it may be gone before it is written to */
        {"exec <&-; kill -KILL $$", "gnuplot was ended by signal 9 (Killed)"},
        {"exec sleep 1000", "gnuplot gave no answer for 1 s and was ended: try it by hand, or draw "
                            "less"},
    };
    g_autofree char *file = g_build_filename(fixture->directory, "gnuplot", NULL);
    g_autofree char *path = g_strconcat(fixture->directory, ":", fixture->path, NULL);
    g_autoptr(GString) commands = g_string_new(NULL);

    signal(SIGPIPE, SIG_IGN);
    while (commands->len < 1 << 18) /* no pipe takes it all at once */
        g_string_append(commands, "x = 1\n");
    g_setenv("PATH", path, TRUE);
    g_setenv("ROUNDPIPE_GNUPLOT_SECONDS", "1", TRUE);
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *script = g_strconcat("#!/bin/sh\n", cases[i].script, "\n", NULL);
        g_autoptr(GError) error = NULL;

        assert_true(g_file_set_contents(file, script, -1, NULL));
        assert_int_equal(g_chmod(file, 0755), 0);
        assert_false(rp_gnuplot_run(fixture->directory, commands->str, &error));
        assert_true(g_error_matches(error, RP_PLOT_ERROR, RP_PLOT_ERROR_DRAW));
        assert_string_equal(error->message, cases[i].message);
    }
}

RP_TEST_FIXTURE(set_up, tear_down)
