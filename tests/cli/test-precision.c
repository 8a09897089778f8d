/* examples/precision: its data, its first steps beside the kept curve, and its comparison. */
#include "tests/cli/train-files.h"

#include <math.h>
#include <stdio.h>

#define COMPARE "@R/examples/precision/compare "
/* Steps of the warm-up have the same learning rate in a shorter run. */
#define STEPS "6"
#define TRAIN                                                                                      \
    "train @R/examples/precision/run.yaml --set steps=" STEPS " --set model=@T/model "             \
    "--set data=@T/text.jsonl --set profile=@T/times.json "

/* About three times what was measured; of fp32 what other compilers and libraries may change. */
static const struct {
    const char *dtype, *mean, *greatest;
} runs[] = {
    {"fp32", "0.00001", "0.00002"},
    {"bf16", "0.0006", "0.001"},
    {"fp16", "0.0001", "0.0002"},
};

static void
succeed(const RpCliRun *run)
{
    if (run->code != 0)
        fail_msg("exit code %d: %s%s", run->code, run->out, run->err);
}

/* The line of @run in a comparison: mean, greatest and its step. */
static void
assert_distance(const char *out, const char *run, double mean, double greatest, guint step)
{
    g_autofree char *begin = g_strdup_printf("\n%s ", run);
    const char *line = strstr(out, begin);
    double found_mean = -1, found_greatest = -1;
    guint found_step = 0;

    if (line == NULL || sscanf(line + strlen(begin), "%*u %lf %lf, %u", &found_mean,
                               &found_greatest, &found_step) != 3)
        fail_msg("expected a line of %s, found: %s", run, out);
    if (fabs(found_mean - mean) > 1e-6 || fabs(found_greatest - greatest) > 1e-6 ||
        found_step != step)
        fail_msg("%s: expected %f, %f at %u, found: %s", run, mean, greatest, step, out);
}

/* ---- data and runs ---- */

RP_TEST(the_data_are_windows_of_the_license)
{
    rp_cli_must_shell("@R/examples/precision/make-data >@T/text.jsonl");
    rp_cli_must_shell("cd / && @R/examples/precision/make-data | cmp - @T/text.jsonl");
    g_autofree char *path = rp_cli_temporary("text.jsonl");
    g_autofree char *text = NULL;
    g_autofree char *samples = NULL;
    gsize length;

    assert_true(g_file_get_contents(RP_SOURCE_ROOT "/LICENSE", &text, &length, NULL));
    assert_true(g_file_get_contents(path, &samples, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(samples, "\n", -1);
    guint n = g_strv_length(lines) - 1; /* nothing follows the last newline */

    assert_int_equal(n, (length - 128) / 32 + 1);
    for (guint i = 0; i < n; i++) {
        g_autoptr(RpTree) root = rp_tree_parse(lines[i]);
        const RpTree *ids = rp_cli_member(root, "input_ids");

        assert_int_equal(ids->items->len, 128);
        for (guint t = 0; t < 128; t++)
            assert_int_equal((gint64)rp_tree_nth(ids, t)->number, (guchar)text[32 * i + t]);
    }
}

RP_TEST(the_first_steps_are_those_of_the_curve_that_is_kept)
{
    rp_cli_must_shell("@R/examples/precision/make-data >@T/text.jsonl");
    rp_cli_must_run("init @R/examples/precision/config.json -o @T/model --seed 1");

    rp_train_files_times();
    if (RP_TEST_FEW) /* the rest is of values alone; what computes them has tests of its own */
        return;
    for (guint i = 0; i < G_N_ELEMENTS(runs); i++) {
        rp_cli_must_run(TRAIN "--set dtype=%s --set output=@T/%s", runs[i].dtype, runs[i].dtype);
        rp_cli_must_shell(COMPARE "--mean %s --greatest %s --steps " STEPS
                                  " @R/examples/precision/host-fp32.csv "
                                  "@T/%s",
                          runs[i].mean, runs[i].greatest, runs[i].dtype);
    }

    g_auto(RpCliRun) not_same = rp_cli_shell(COMPARE "--mean 0.00001 @T/fp32 @T/bf16");

    assert_int_equal(not_same.code, 1);
}

/* ---- the comparison ---- */

RP_TEST(compares_step_by_step)
{
    g_auto(RpCliRun) within = {0};
    g_auto(RpCliRun) beyond = {0};
    g_auto(RpCliRun) first = {0};
    g_auto(RpCliRun) table = {0};

    rp_cli_write("reference.csv", "# made by hand\nstep,loss\n1,3\n2,2.5\n3,2\n4,1e0\n");
    rp_cli_write("near.jsonl", "{\"step\":1,\"loss\":3,\"tokens\":9}\n{\"step\":2,\"loss\":2.52}\n"
                               "{\"step\":3,\"loss\":1.99}\n{\"step\":4,\"loss\":1.0e0}\n");
    rp_cli_write("far.csv", "1,3\n2,2.5\n3,2.07\n4,1.5\n");

    within = rp_cli_shell(COMPARE "@T/reference.csv @T/near.jsonl");
    assert_int_equal(within.code, 0);
    assert_distance(within.out, "near", 0.0075, 0.02, 2);
    assert_non_null(strstr(within.out, "bounds: mean 0.01, greatest 0.05: all within"));

    beyond = rp_cli_shell(COMPARE "@T/reference.csv @T/near.jsonl @T/far.csv");
    assert_int_equal(beyond.code, 1);
    assert_distance(beyond.out, "far", 0.1425, 0.5, 4);
    assert_non_null(strstr(beyond.out, "1 of 2 beyond"));

    first =
        rp_cli_shell(COMPARE "--mean 0.03 --greatest 0.08 --steps 3 @T/reference.csv @T/far.csv");
    assert_int_equal(first.code, 0);
    assert_distance(first.out, "far", 0.07 / 3, 0.07, 3);

    table = rp_cli_shell(COMPARE "--table @T/table @T/reference.csv @T/near.jsonl >/dev/null "
                                 "&& cat @T/table");
    assert_int_equal(table.code, 0);
    assert_string_equal(table.out,
                        "step\treference\tnear\n1\t3\t3\n2\t2.5\t2.52\n3\t2\t1.99\n4\t1\t1\n");
}

RP_TEST(refuses_what_it_cannot_compare)
{
    static const struct {
        const char *text; /* of the run; NULL = no file */
        const char *words;
        const char *part;
    } cases[] = {
        {"1,3\n", "", "run.csv: expected 2 steps, found 1"},
        {"", "", "found 1 without a line"},
        {"step,loss\n", "", "run.csv: expected 2 steps, found 0"},
        {"1,3\n3,2\n", "", "run.csv: line 2: expected step 2, found 3"},
        {"1,3\n2,nan\n", "", "run.csv: line 2: expected a step and its loss, found \"2,nan\""},
        {"{\"step\":1,\"loss\":null}\n", "", "line 1: expected a step and its loss"},
        {NULL, "", "run.csv: cannot be read"},
        {"1,3\n2,2\n", "--mean x", "--mean: expected a number, found \"x\""},
        {"1,3\n2,2\n", "--steps 0", "--steps: expected a number from 1"},
        {"1,3\n2,2\n", "--means 1", "no option --means"},
    };

    rp_cli_write("two.csv", "1,3\n2,2\n");
    for (guint i = 0; i < G_N_ELEMENTS(cases); i++) {
        if (cases[i].text != NULL)
            rp_cli_write("run.csv", cases[i].text);
        g_auto(RpCliRun) run =
            rp_cli_shell("%s" COMPARE "%s @T/two.csv @T/run.csv",
                         cases[i].text == NULL ? "rm @T/run.csv; " : "", cases[i].words);

        if (run.code != 2 || strstr(run.err, cases[i].part) == NULL ||
            !g_str_has_prefix(run.err, "compare: ") ||
            strchr(run.err, '\n') != run.err + strlen(run.err) - 1)
            fail_msg("expected exit code 2 and \"%s\", found %d: %s%s", cases[i].part, run.code,
                     run.out, run.err);
    }
}

RP_TEST(draws_the_curves)
{
    g_autofree char *gnuplot = g_find_program_in_path("gnuplot");
    g_autofree char *path = rp_cli_temporary("curves.png");

    if (gnuplot == NULL) {
        g_clear_pointer(&gnuplot, g_free);
        g_clear_pointer(&path, g_free);
        skip();
    }
    rp_cli_write("apart.csv", "1,3\n2,2.5\n3,2.07\n");
    g_auto(RpCliRun) run =
        rp_cli_shell("@R/examples/precision/draw @T/curves.png @T/apart.csv @T/apart.csv");
    g_autofree char *picture = NULL;
    gsize length = 0;

    succeed(&run);
    assert_string_equal(run.err, "");
    assert_true(g_file_get_contents(path, &picture, &length, NULL));
    assert_true(length > 1000 && memcmp(picture, "\x89PNG", 4) == 0);
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
