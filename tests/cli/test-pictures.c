/* Pictures of `simulate`: what part of the run they show, and that they say what the report says.
 */
#include "tests/cli/run-cli.h"

#define ASYNC                                                                                      \
    "simulate @Q --schedule roundpipe --gpus 4 --micro-batches 8 --partition paper --async "

static void
expect(const char *name, const char *part)
{
    g_autofree char *text = rp_cli_read(name);

    if (strstr(text, part) == NULL)
        fail_msg("%s: expected \"%s\"", name, part);
}

static void
draws_the_steady_window_with_the_reports_bubble(void **state)
{
    g_auto(RpCliRun) run = rp_cli_run(ASYNC "--json --picture @T/steady.svg");
    g_autoptr(RpTree) root = rp_cli_json(&run);
    guint first = (guint)rp_cli_number(root, "window.first_iteration");
    guint end = (guint)rp_cli_number(root, "window.end_iteration");
    g_autofree char *expected = g_strdup_printf(
        "iterations %u to %u of %.0f, %.1f ms each, bubble ratio %.1f %% (predicted)", first,
        end - 1, rp_cli_number(root, "iterations"), rp_cli_number(root, "iteration_ms"),
        100 * rp_cli_number(root, "bubble_ratio"));

    (void)state;
    assert_true(first > 0);
    expect("steady.svg", expected);
    expect("steady.svg", "RoundPipe (asynchronous), qwen3-1.7b");
}

static void
draws_the_window_that_is_asked_for(void **state)
{
    g_auto(RpCliRun) two = rp_cli_run(ASYNC "--window 1:3 --picture @T/two.svg");
    g_auto(RpCliRun) one = rp_cli_run(ASYNC "--iterations 3 --window 2:3 --picture @T/one.svg");
    g_auto(RpCliRun) all = rp_cli_run(ASYNC "--iterations 3 --picture @T/all.svg");

    (void)state;
    assert_int_equal(two.code, 0);
    assert_int_equal(one.code, 0);
    assert_int_equal(all.code, 0);
    expect("two.svg", "iterations 1 to 2 of ");
    expect("one.svg", "iteration 2 of 3, ");
    expect("all.svg", ", makespan ");
}

static void
refuses_a_window_that_is_not_there(void **state)
{
    static const struct {
        const char *line;
        const char *part;
    } cases[] = {
        {ASYNC "--window 1:2", "--window: expected --picture or --memory-picture"},
        {ASYNC "--window 2:1 --picture @T/x.svg", "--window: expected A:B, A < B"},
        {ASYNC "--window x --picture @T/x.svg", "--window: expected A:B"},
        {ASYNC "--iterations 3 --window 2:9 --picture @T/x.svg", "at most the 3 iterations"},
    };

    (void)state;
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(RpCliRun) run = rp_cli_run("%s", cases[i].line);

        if (run.code != 2 || strstr(run.err, cases[i].part) == NULL)
            fail_msg("%s: exit code %d: %s", cases[i].line, run.code, run.err);
    }
}

static void
long_runs_are_drawn_in_seconds(void **state)
{
    g_auto(RpCliRun) run = rp_cli_run("simulate qwen3-32b --schedule 1f1b --gpus 8 --micro-batches "
                                      "64 --picture @T/long.svg");

    (void)state;
    assert_int_equal(run.code, 0);
    expect("long.svg", "time, s");
    expect("long.svg", "makespan 104.1 s, bubble ratio 14.0 % (predicted)");
}

static void
memory_has_a_panel_for_each_device(void **state)
{
    static const char *const parts[] = {"GPU 0", "GPU 3", "host", "arena ", "peak "};
    g_auto(RpCliRun) run =
        rp_cli_run(ASYNC "--fidelity full --memory-picture @T/memory.svg --window 2:4");

    (void)state;
    assert_int_equal(run.code, 0);
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        expect("memory.svg", parts[i]);
}

/* Width and height stand in a PNG file's first chunk. */
static void
png_files_have_twice_the_pixels(void **state)
{
    g_auto(RpCliRun) run = rp_cli_run(ASYNC "--picture @T/size.png");
    g_autofree char *path = rp_cli_temporary("size.png");
    g_autofree char *data = NULL;
    gsize length;

    (void)state;
    assert_int_equal(run.code, 0);
    assert_true(g_file_get_contents(path, &data, &length, NULL));
    assert_true(length > 24);
    assert_int_equal((guchar)data[18] * 256 + (guchar)data[19], 2200);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_the_steady_window_with_the_reports_bubble),
        cmocka_unit_test(draws_the_window_that_is_asked_for),
        cmocka_unit_test(refuses_a_window_that_is_not_there),
        cmocka_unit_test(long_runs_are_drawn_in_seconds),
        cmocka_unit_test(memory_has_a_panel_for_each_device),
        cmocka_unit_test(png_files_have_twice_the_pixels),
    };

    return cmocka_run_group_tests(tests, rp_cli_setup, rp_cli_teardown);
}
