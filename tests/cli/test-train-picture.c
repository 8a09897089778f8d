/* roundpipe train --picture: the timeline of a run, measured or predicted. */
#include "tests/cli/train-files.h"

#define TRAIN "train @T/run.yaml --set profile=@T/times.json --set output=@T/"

/* Fails unless @T/@name shows what was @origin, on two devices. */
static void
assert_timeline(const char *name, const char *origin)
{
    g_autofree char *svg = rp_train_files_read(name, NULL);

    if (strstr(svg, origin) == NULL)
        fail_msg("%s: expected \"%s\" in its title, found: %.2000s", name, origin, svg);
    assert_non_null(strstr(svg, "GPU 0 compute"));
    assert_non_null(strstr(svg, "GPU 1 compute"));
    assert_non_null(strstr(svg, "parameter up"));
}

static void
draws_what_was_measured_beside_its_trace(void **state)
{
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "both --set devices=host:2 --set steps=2 "
                                            "--picture @T/both.svg --trace @T/both.json");

    (void)state;
    assert_string_equal(run.err, "");
    assert_int_equal(run.code, 0);
    assert_timeline("both.svg", "(measured)");
    g_autofree char *svg = rp_train_files_read("both.svg", NULL);
    assert_non_null(strstr(svg, "CPU optimizer"));
    g_autofree char *trace = rp_train_files_read("both.json", NULL);
    assert_non_null(strstr(trace, "traceEvents"));
}

static void
draws_the_steps_after_a_resume_as_png(void **state)
{
    g_auto(RpCliRun) first = rp_cli_run(TRAIN "on --set devices=host:2 --set steps=1");
    g_auto(RpCliRun) rest = rp_cli_run(TRAIN "on --set devices=host:2 --set steps=3 --resume "
                                             "--picture @T/on.png");
    gsize length;

    (void)state;
    assert_int_equal(first.code, 0);
    assert_int_equal(rest.code, 0);
    g_autofree char *png = rp_train_files_read("on.png", &length);
    assert_true(length > 1000);
    assert_memory_equal(png, "\x89PNG\r\n", 6);
}

static void
draws_what_was_predicted_in_a_dry_run(void **state)
{
    g_auto(RpCliRun) run =
        rp_cli_run(TRAIN "dry --set devices=host:2 --dry-run --picture @T/dry.svg");
    g_autofree char *output = rp_cli_temporary("dry");

    (void)state;
    assert_string_equal(run.err, "");
    assert_int_equal(run.code, 0);
    assert_timeline("dry.svg", "(predicted)");
    assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
}

static void
says_that_a_run_without_steps_has_no_timeline(void **state)
{
    g_auto(RpCliRun) first = rp_cli_run(TRAIN "done --set steps=1");
    g_auto(RpCliRun) rest = rp_cli_run(TRAIN "done --set steps=1 --resume --picture @T/done.svg");
    g_autofree char *picture = rp_cli_temporary("done.svg");

    (void)state;
    assert_int_equal(first.code, 0);
    assert_int_equal(rest.code, 0);
    assert_string_equal(rest.err,
                        "roundpipe train: note: --picture: no step was run, nothing was drawn\n");
    assert_false(g_file_test(picture, G_FILE_TEST_EXISTS));
}

static void
draws_nothing_of_a_run_that_breaks_off(void **state)
{
    g_autoptr(GString) data = g_string_new(NULL);
    g_autofree char *picture = rp_cli_temporary("broken.svg");

    (void)state;
    for (guint i = 0; i < 40; i++)
        g_string_append_printf(data, "{\"input_ids\":[1,2,3],\"labels\":[1,%d,-100]}\n",
                               i < 8 ? 2 : -100);
    rp_train_files_write("broken.jsonl", data->str, -1);
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "broken --set data=@T/broken.jsonl "
                                            "--set shuffle=false --picture @T/broken.svg");
    assert_int_equal(run.code, 1);
    assert_non_null(strstr(run.err, "checkpoint"));
    assert_false(g_file_test(picture, G_FILE_TEST_EXISTS));
}

/* Before the first step. */
static void
refuses_what_it_cannot_draw(void **state)
{
    static const struct {
        const char *before; /* for the shell */
        const char *line;
        int code;
        const char *part;
    } cases[] = {
        {"", "--picture @T/x.gif", 2,
         "--picture: expected a name that ends in .png, .svg or .pdf, found \""},
        {"", "--picture @T/no/x.png", 1, "cannot write"},
        {"ln -s model/config.json @T/link.png;", "--picture @T/link.png", 1,
         "--picture: expected a file that the run does not read"},
        {"PATH=/nowhere;", "--picture @T/x.png", 1, "gnuplot not found"},
        {"PATH=/nowhere;", "--dry-run --picture @T/x.png", 1, "gnuplot not found"},
    };
    g_autofree char *output = rp_cli_temporary("none");
    g_autofree char *picture = rp_cli_temporary("x.png");

    (void)state;
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(RpCliRun) run =
            rp_cli_shell("%s \"$ROUNDPIPE\" " TRAIN "none %s", cases[i].before, cases[i].line);

        if (run.code != cases[i].code || strstr(run.err, cases[i].part) == NULL)
            fail_msg("%s: expected exit code %d and \"%s\", found %d and %s", cases[i].line,
                     cases[i].code, cases[i].part, run.code, run.err);
        assert_false(g_file_test(output, G_FILE_TEST_EXISTS));
        assert_false(g_file_test(picture, G_FILE_TEST_EXISTS));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_what_was_measured_beside_its_trace),
        cmocka_unit_test(draws_the_steps_after_a_resume_as_png),
        cmocka_unit_test(draws_what_was_predicted_in_a_dry_run),
        cmocka_unit_test(says_that_a_run_without_steps_has_no_timeline),
        cmocka_unit_test(draws_nothing_of_a_run_that_breaks_off),
        cmocka_unit_test(refuses_what_it_cannot_draw),
    };

    return cmocka_run_group_tests(tests, rp_train_files_setup, rp_train_files_teardown);
}
