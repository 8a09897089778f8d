/* How a run of `roundpipe train` is stopped and kept: signals, checkpoints by time, an output
 * directory that is taken away. */
#include "tests/cli/train-files.h"

#define TRAIN "$ROUNDPIPE train @T/run.yaml --set steps=1000000 --set output=@T/"
/* Until the run has reported a step; it must not end before. */
#define STEPS(output)                                                                              \
    "until [ -s @T/" output "/metrics.jsonl ]; do kill -0 $pid || exit 9; sleep 0.05; done; "
/* A step of many seconds. */
#define LONG                                                                                       \
    " --set steps=2 --set sequence_length=2048 --set micro_batch_size=8 --set micro_batches=512 "  \
    "--set round=512"
/* Steps of about a second. */
#define SLOW                                                                                       \
    " --set steps=50 --set sequence_length=2048 --set micro_batch_size=2 --set micro_batches=16 "  \
    "--set round=16 "

static void
expect(const RpCliRun *run, int code, const char *output, const char *names)
{
    g_autofree char *found = rp_train_files_list(output);

    if (run->code != code || strstr(found, names) == NULL)
        fail_msg("exit code %d, expected %d; %s has \"%s\", expected \"%s\": %s", run->code, code,
                 output, found, names, run->err);
}

RP_TEST(a_closed_terminal_and_used_up_time_end_a_run_saved)
{
    g_auto(RpCliRun) closed = rp_cli_shell(
        TRAIN "closed >/dev/null & pid=$!; " STEPS("closed") "kill -HUP $pid; kill -HUP $pid; "
                                                             "wait $pid");
    g_auto(RpCliRun) used = rp_cli_shell(
        TRAIN "used >/dev/null & pid=$!; " STEPS("used") "kill -XCPU $pid; sleep 0.2; "
                                                         "kill -XCPU $pid 2>/dev/null; wait $pid");

    expect(&closed, 129, "closed", "checkpoint-");
    expect(&used, 152, "used", "checkpoint-");
}

RP_TEST(nohup_goes_on_when_the_terminal_closes)
{
    g_auto(RpCliRun) run = rp_cli_shell("trap '' HUP; " TRAIN "nohup >/dev/null & pid=$!; " STEPS(
        "nohup") "kill -HUP $pid; sleep 0.5; kill -0 $pid || exit 8; kill -TERM $pid; wait $pid");

    expect(&run, 143, "nohup", "checkpoint-");
}

/* As timeout sends it: to the process, and to its group. */
RP_TEST(two_requests_at_once_are_one)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        TRAIN "twice >/dev/null & pid=$!; " STEPS("twice") "kill -TERM $pid; kill -TERM $pid; "
                                                           "wait $pid");

    expect(&run, 143, "twice", "checkpoint-");
}

RP_TEST(a_second_request_to_stop_ends_at_once)
{
    const gint64 begin_us = g_get_monotonic_time();
    g_auto(RpCliRun) run =
        rp_cli_shell("$ROUNDPIPE train @T/run.yaml --set output=@T/hang" LONG
                     " >/dev/null & pid=$!; until [ -e @T/hang/metrics.jsonl ]; do kill -0 $pid || "
                     "exit 9; sleep 0.05; done; sleep 0.2; kill -TERM $pid; sleep 1.2; "
                     "kill -0 $pid || exit 8; kill -TERM $pid; wait $pid");

    expect(&run, 143, "hang", "metrics.jsonl");
    if (g_get_monotonic_time() - begin_us > 10 * G_USEC_PER_SEC)
        fail_msg("it took longer than the second signal");
    g_autofree char *names = rp_train_files_list("hang");
    assert_null(strstr(names, "checkpoint-"));
}

/* The line is there before the step is over; no step begins after it, and the end tells how to continue. */
RP_TEST(ctrl_c_tells_the_step_that_it_finishes_and_how_to_continue)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "$ROUNDPIPE train @T/run.yaml --set output=@T/told" SLOW " >@T/told.out & pid=$!; " STEPS(
            "told") "n=$(wc -l <@T/told/metrics.jsonl); "
                    "kill -INT $pid; sleep 0.1; kill -0 $pid || exit 7; echo $n; wait $pid");
    g_autofree char *report = rp_cli_read("told.out");
    g_autofree char *learned = rp_train_files_learned("told");
    g_auto(GStrv) lines = g_strsplit(learned, "\n", -1);
    const guint last = g_strv_length(lines) - 1;
    g_autofree char *told = g_strdup_printf(
        "finishing step %u, then saving (again: stop now, nothing is saved)\n", last);
    g_autofree char *path = rp_cli_temporary("");
    g_autofree char *next =
        g_strdup_printf("interrupted at step %u; continue with: roundpipe train %s/run.yaml --set "
                        "output=%s/told",
                        last, path, path);
    g_autofree char *saved = g_strdup_printf("told/checkpoint-%u", last);
    g_auto(RpCliRun) resumed = rp_cli_shell("$ROUNDPIPE train @T/run.yaml --resume --set "
                                            "output=@T/told" SLOW " --set steps=%u",
                                            last);
    g_autofree char *from = g_strdup_printf("from step %u, ", last);

    expect(&run, 130, "told", "checkpoint-");
    assert_non_null(strstr(run.err, told));
    assert_non_null(strstr(report, next));
    assert_true(g_str_has_suffix(report, "--resume\n"));
    assert_int_equal(resumed.code, 0);
    assert_non_null(strstr(resumed.out, from));
    assert_non_null(strstr(resumed.out, saved));
}

RP_TEST(ctrl_c_names_the_last_checkpoint)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "$ROUNDPIPE train @T/run.yaml --set checkpoint.every=1 --set output=@T/kept" SLOW
        " >/dev/null & pid=$!; until [ -e @T/kept/checkpoint-2 ]; do kill -0 $pid || exit 9; "
        "sleep 0.05; done; sleep 0.1; kill -INT $pid; wait $pid");

    expect(&run, 130, "kept", "checkpoint-2 ");
    if (!g_regex_match_simple("finishing step [0-9]+, then saving "
                              "\\(again: stop now, nothing saved since step [1-5]\\)",
                              run.err, 0, 0))
        fail_msg("it says: %s", run.err);
}

RP_TEST(saves_by_time)
{
    g_autoptr(RpTree) root =
        rp_cli_run_json("train @T/run.yaml --set output=@T/often --set steps=30 "
                        "--set checkpoint.minutes=1e-5 --set checkpoint.keep=0 --json");
    g_auto(RpCliRun) never = rp_cli_run("train @T/run.yaml --set output=@T/never --set steps=30 "
                                        "--set checkpoint.minutes=0 --set checkpoint.keep=0");
    g_auto(RpCliRun) usual = rp_cli_run("train @T/run.yaml --set output=@T/usual --set steps=1");
    g_autofree char *metrics = rp_cli_read("often/metrics.jsonl");
    g_autofree char *resolved = rp_cli_read("usual/run.yaml");
    g_autofree char *once = rp_train_files_list("never");

    assert_true(rp_cli_number(root, "checkpoints.saved") > 5);
    assert_true(rp_cli_number(root, "checkpoints.seconds") > 0);
    assert_non_null(strstr(metrics, "\"checkpoint_ms\":"));
    assert_true(g_str_has_prefix(once, "checkpoint-30 "));
    assert_true(g_regex_match_simple("minutes: .?30", resolved, 0, 0));
}

RP_TEST(an_output_that_is_removed_is_made_anew_and_that_is_said)
{
    g_auto(RpCliRun) run = rp_cli_shell(TRAIN "gone >/dev/null & pid=$!; " STEPS(
        "gone") "rm -rf @T/gone; " STEPS("gone") "kill -TERM $pid; wait $pid");
    rp_cli_must_shell("$ROUNDPIPE train @T/gone/run.yaml --resume --dry-run >/dev/null");

    expect(&run, 143, "gone", "checkpoint-");
    assert_non_null(strstr(run.err, "gone was removed or replaced before step "));
    assert_non_null(strstr(run.err, "it is made anew"));
}

RP_TEST(an_output_that_became_another_runs_is_left_alone)
{
    g_auto(RpCliRun) run = rp_cli_shell(TRAIN "taken >/dev/null & pid=$!; " STEPS(
        "taken") "rm -rf @T/taken; mkdir -p @T/taken/checkpoint-7; sleep 1.5; "
                 "kill -TERM $pid; wait $pid");

    expect(&run, 1, "taken", "checkpoint-7");
    assert_non_null(strstr(run.err, "removed or replaced: output: "));
    assert_non_null(strstr(run.err, "nothing can be saved there"));
    g_autofree char *names = rp_train_files_list("taken");
    assert_null(strstr(names, "metrics.jsonl"));
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
