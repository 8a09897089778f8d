/* Progress that `roundpipe train` prints, and the time that is left. */
#include "tests/cli/train-files.h"

#define TRAIN "train @T/run.yaml --set output=@T/"

static guint
count_lines(const char *text, const char *prefix)
{
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    guint n = 0;

    for (char **line = lines; *line != NULL; line++)
        n += g_str_has_prefix(*line, prefix);
    return n;
}

RP_TEST(a_log_file_gets_a_plain_line_at_intervals)
{
    /* shorter than a step, so that each has its line */
    g_auto(RpCliRun) often =
        rp_cli_run(TRAIN "often --set checkpoint.final=false --progress 0.000001");
    g_auto(RpCliRun) never = rp_cli_run(TRAIN "never --set checkpoint.final=false --progress 0");
    g_auto(RpCliRun) usual = rp_cli_run(TRAIN "usual --set checkpoint.final=false");

    assert_int_equal(often.code, 0);
    assert_int_equal(count_lines(often.err, "step "), 5);
    assert_non_null(strstr(often.err, "step 3/5, loss "));
    assert_non_null(strstr(often.err, " left\n"));
    assert_null(strchr(often.err, '\033'));
    assert_int_equal(never.code, 0);
    assert_string_equal(never.err, "");
    /* half a minute is not over */
    assert_int_equal(usual.code, 0);
    assert_string_equal(usual.err, "");
}

RP_TEST(refuses_an_interval_that_is_none)
{
    static const char *const words[] = {"-1", "nan", "1e9", "often"};

    for (guint i = 0; i < G_N_ELEMENTS(words); i++) {
        g_auto(RpCliRun) run = rp_cli_run(TRAIN "wrong --progress %s", words[i]);

        if (run.code != 2 || strstr(run.err, "--progress") == NULL)
            fail_msg("%s: exit code %d: %s", words[i], run.code, run.err);
    }
}

RP_TEST(the_header_tells_epochs_and_total_time)
{
    /* 40 samples, 4 micro-batches of 1: ten steps an epoch */
    g_auto(RpCliRun) run = rp_cli_run(TRAIN "dry --dry-run --set packing=false --set steps=25");
    g_auto(RpCliRun) twice = rp_cli_run(
        TRAIN
        "dry --dry-run --set packing=false --set steps=25 --set gradient_accumulation_steps=2");

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "  steps            25: 2.5 epochs, about 0 s predicted\n"));
    assert_non_null(strstr(twice.out, "25: 5 epochs, about"));

    g_auto(RpCliRun) run_long =
        rp_cli_run(TRAIN "dry --dry-run --set packing=false --set steps=1000000");
    g_autoptr(RpTree) root = rp_cli_run_json(TRAIN "dry --dry-run --set packing=false --json");
    double hours = rp_cli_number(root, "predicted.step_ms") / 3.6;
    g_autofree char *expected =
        g_strdup_printf("1000000: 100000 epochs, about %.0f min", 60 * hours);

    assert_true(hours * 60 >= 2 && hours < 2);
    if (strstr(run_long.out, expected) == NULL)
        fail_msg("expected \"%s\" in: %s", expected, run_long.out);
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
