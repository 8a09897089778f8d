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

RP_TEST(draws_the_steady_window_with_the_reports_bubble)
{
    g_autoptr(RpTree) root = rp_cli_run_json(ASYNC "--json --picture @T/steady.svg");
    guint first = (guint)rp_cli_number(root, "window.first_iteration");
    guint end = (guint)rp_cli_number(root, "window.end_iteration");
    g_autofree char *expected = g_strdup_printf(
        "iterations %u to %u of %.0f, %.1f ms each, bubble ratio %.1f %% (predicted)", first,
        end - 1, rp_cli_number(root, "iterations"), rp_cli_number(root, "iteration_ms"),
        100 * rp_cli_number(root, "bubble_ratio"));

    assert_true(first > 0);
    expect("steady.svg", expected);
    expect("steady.svg", "RoundPipe (asynchronous), qwen3-1.7b");
}

RP_TEST(draws_the_window_that_is_asked_for)
{
    rp_cli_must_run(ASYNC "--window 1:3 --picture @T/two.svg");
    rp_cli_must_run(ASYNC "--iterations 3 --window 2:3 --picture @T/one.svg");
    rp_cli_must_run(ASYNC "--iterations 3 --picture @T/all.svg");

    expect("two.svg", "iterations 1 to 2 of ");
    expect("one.svg", "iteration 2 of 3, ");
    expect("all.svg", ", makespan ");
}

RP_TEST(refuses_a_window_that_is_not_there)
{
    rp_cli_must_refuse_all("pictures: windows that are not there");
}

RP_TEST(long_runs_are_drawn_in_seconds)
{
    rp_cli_must_run("simulate qwen3-32b --schedule 1f1b --gpus 8 --micro-batches "
                    "64 --picture @T/long.svg");

    expect("long.svg", "time, s");
    expect("long.svg", "makespan 104.1 s, bubble ratio 14.0 % (predicted)");
}

RP_TEST(memory_has_a_panel_for_each_device)
{
    static const char *const parts[] = {"GPU 0", "GPU 3", "host", "arena ", "peak "};
    rp_cli_must_run(ASYNC "--fidelity full --memory-picture @T/memory.svg --window 2:4");

    for (guint i = 0; i < G_N_ELEMENTS(parts); i++)
        expect("memory.svg", parts[i]);
}

/* Width and height stand in a PNG file's first chunk. */
RP_TEST(png_files_have_twice_the_pixels)
{
    rp_cli_must_run(ASYNC "--picture @T/size.png");
    g_autofree char *path = rp_cli_temporary("size.png");
    g_autofree char *data = NULL;
    gsize length;

    assert_true(g_file_get_contents(path, &data, &length, NULL));
    assert_true(length > 24);
    assert_int_equal((guchar)data[18] * 256 + (guchar)data[19], 2200);
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
