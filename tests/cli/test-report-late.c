/* `roundpipe report --late` as a user runs it, on traces of the shipped profile. */
#include "tests/cli/run-cli.h"

#include <math.h>

#define RUN                                                                                        \
    "--schedule roundpipe --gpus 2 --micro-batches 4 --round 4 --forward-stages 7*4 "              \
    "--backward-stages 0,7*4"

static int
make_traces(void **state)
{
    static const char *const commands[] = {
        "simulate @Q " RUN " --trace @T/a.json",
        "simulate @R/profiles/rtx4090/qwen3-1.7b.json --schedule 1f1b --gpus 2 --micro-batches 4 "
        "--stages 14,14 --trace @T/bound.json",
        "simulate @Q --schedule roundpipe --gpus 2 --micro-batches 4 --round 4 --forward-stages "
        "14*2 --backward-stages 0,7*4 --trace @T/stages.json",
        "simulate @Q --schedule roundpipe --gpus 4 --micro-batches 4 --round 4 --forward-stages "
        "7*4 --backward-stages 0,7*4 --trace @T/gpus.json",
        "simulate @Q " RUN " --async --iterations 4 --trace @T/four.json",
        "simulate @Q " RUN " --async --iterations 2 --trace @T/two.json",
        "simulate @Q " RUN " --fidelity full --trace @T/full.json",
    };

    if (rp_cli_setup(state) != 0)
        return 1;
    for (gsize i = 0; i < G_N_ELEMENTS(commands); i++) {
        g_auto(RpCliRun) run = rp_cli_run("%s", commands[i]);

        if (run.code != 0) {
            print_error("%s: %s\n", commands[i], run.err);
            return 1;
        }
    }
    return 0;
}

/* The profile with blocks a tenth slower in forward. */
static void
simulate_slower(void)
{
    g_autofree char *from = rp_test_source_path("profiles/rtx4090/qwen3-1.7b.json");
    g_autofree char *to = rp_cli_temporary("slow-profile.json");
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(from, &text, NULL, NULL));
    GString *slow = g_string_new(text);
    assert_true(g_string_replace(slow, "\"forward_ms\": 7.429", "\"forward_ms\": 8.1719", 0) > 0);
    assert_true(g_file_set_contents(to, slow->str, -1, NULL));
    g_string_free(slow, TRUE);
    rp_cli_must_run("simulate @T/slow-profile.json " RUN " --trace @T/slow.json");
}

RP_TEST(two_predictions_differ_by_what_the_profiles_differ_by)
{
    simulate_slower();
    g_auto(RpCliRun) run = rp_cli_run("report --late @T/a.json @T/slow.json --top 3 --json");
    g_autoptr(RpTree) root = rp_cli_json(&run);
    g_auto(RpCliRun) again = rp_cli_run("report --late @T/a.json @T/slow.json --top 3 --json");

    assert_string_equal(run.out, again.out);
    assert_string_equal(rp_cli_member(root, "second.origin")->text, "predicted");
    /* 4 forward and 4 backward stages (recompute), 4 micro-batches, 7 blocks each 0.7429 ms longer
     */
    assert_true(fabs(rp_cli_number(root, "difference.busy_ms.compute") - 32 * 7 * 0.7429) < 1e-3);
    assert_true(fabs(rp_cli_number(root, "groups.0.difference_ms") - 4 * 7 * 0.7429) < 1e-3);
    assert_true(fabs(rp_cli_number(root, "groups.0.ratio") - 1.1) < 1e-6);
    assert_string_equal(rp_cli_member(root, "groups.0.kind")->text, "forward");
    assert_int_equal(rp_cli_member(root, "durations")->items->len, 3);
    assert_true(fabs(rp_cli_number(root, "durations.0.longer_ms") - 7 * 0.7429) < 1e-3);
    /* all that starts later does because of what came before it */
    assert_int_equal(rp_cli_member(root, "slips")->items->len, 0);
    assert_true(fabs(rp_cli_number(root, "difference.bubble.fill") +
                     rp_cli_number(root, "difference.bubble.switch") +
                     rp_cli_number(root, "difference.bubble.drain") +
                     rp_cli_number(root, "difference.bubble.intra") -
                     rp_cli_number(root, "difference.bubble_ratio")) < 1e-8);
}

/* A trace of actions has all predecessors of a task, in any order of a schedule. */
RP_TEST(predictions_with_other_layer_times_have_no_slips)
{
    static const char *const schedules[] = {
        "gpipe --stages 14,14",
        "1f1b --stages 14,14 --async",
        "zb-h1 --stages 14,14",
        "interleaved-1f1b --stages 7*4",
        "interleaved-zb --stages 7*4",
        "looped-bfs --stages 7*4",
        "zb-v --stages 7*4 --async",
        "dualpipe-v --stages 7*4",
        "mobius --stages 7*4 --async",
        "roundpipe --round 4 --forward-stages 7*4 "
        "--backward-stages 0,7*4 --async",
    };

    simulate_slower();
    for (gsize i = 0; i < G_N_ELEMENTS(schedules); i++) {
        g_auto(RpCliRun) first =
            rp_cli_run("simulate @Q --gpus 2 --micro-batches 8 --iterations 3 --schedule %s "
                       "--trace @T/1.json",
                       schedules[i]);
        g_auto(RpCliRun) second =
            rp_cli_run("simulate @T/slow-profile.json --gpus 2 --micro-batches 8 --iterations 3 "
                       "--schedule %s --trace @T/2.json",
                       schedules[i]);
        g_auto(RpCliRun) run = rp_cli_run("report --late @T/1.json @T/2.json --json");

        if (first.code != 0 || second.code != 0)
            fail_msg("%s: %s%s", schedules[i], first.err, second.err);
        g_autoptr(RpTree) root = rp_cli_json(&run);
        if (rp_cli_member(root, "slips")->items->len != 0)
            fail_msg("%s: %s", schedules[i], run.out);
        assert_true(rp_cli_number(root, "difference.makespan_ms") > 0);
    }
}

RP_TEST(a_replay_is_compared_at_its_scale)
{
    g_autoptr(RpTree) result = rp_cli_run_json("replay @Q " RUN " --seconds 0.5 --trace @T/m.json "
                                               "--json");
    double scale = rp_cli_number(result, "scale");
    g_autoptr(RpTree) root =
        rp_cli_run_json("report --late @T/a.json @T/m.json --scale %.9f --json", scale);
    g_auto(RpCliRun) text = rp_cli_run("report --late @T/a.json @T/m.json --scale auto");

    assert_string_equal(rp_cli_member(root, "second.origin")->text, "measured");
    assert_int_equal(rp_cli_member(root, "tasks")->number, 36);
    assert_true(fabs(rp_cli_number(root, "scale") - scale) < 1e-8);
    assert_true(fabs(rp_cli_number(root, "first.makespan_ms") -
                     rp_cli_number(result, "predicted.makespan_ms")) < 1e-5);
    /* replay counts from the start of the run, --late from the first action */
    assert_true(rp_cli_number(root, "second.makespan_ms") <=
                rp_cli_number(result, "measured.makespan_ms") + 1e-3);
    assert_true(rp_cli_number(root, "second.makespan_ms") > 0);
    assert_true(rp_cli_member(root, "same_order")->number);
    assert_int_equal(text.code, 0);
    assert_non_null(strstr(text.out, "those of measured divided by"));
    assert_non_null(strstr(text.out, "makespan, ms"));
    assert_non_null(strstr(text.out, "Largest differences of duration"));
    assert_non_null(strstr(text.out, "(slip)"));
}

RP_TEST(compares_the_iterations_that_both_have)
{
    g_autoptr(RpTree) root = rp_cli_run_json("report --late @T/four.json @T/two.json --json");
    g_auto(RpCliRun) one = rp_cli_run("report --late @T/four.json @T/two.json --iterations 1:2");

    assert_int_equal(rp_cli_member(root, "end_iteration")->number, 2);
    assert_int_equal(rp_cli_member(root, "tasks")->number, 72);
    assert_true(rp_cli_number(root, "difference.makespan_ms") == 0);
    assert_int_equal(one.code, 0);
    assert_non_null(strstr(one.out, "iteration 1, 36 tasks in both"));
}

RP_TEST(fidelities_may_differ_and_the_rest_is_counted)
{
    g_auto(RpCliRun) run = rp_cli_run("report --late @T/a.json @T/full.json");

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "note: tasks that only second has: "));
    assert_non_null(strstr(run.out, " parameter-upload"));
}

RP_TEST(draws_both_timelines_device_by_device)
{
    static const char *const wanted[] = {"GPU 0 first", "GPU 0 second", "GPU 1 first",
                                         "GPU 1 second"};
    g_autofree char *gnuplot = g_find_program_in_path("gnuplot");
    g_autofree char *path = rp_cli_temporary("diff.svg");
    g_autofree char *svg = NULL;

    if (gnuplot == NULL) {
        g_clear_pointer(&path, g_free); /* skip() jumps */
        skip();
    }
    rp_cli_must_run("report --late @T/a.json @T/full.json --picture @T/diff.svg");
    assert_true(g_file_get_contents(path, &svg, NULL, NULL));
    const char *at = svg;
    for (gsize i = 0; i < G_N_ELEMENTS(wanted); i++) { /* each below the one before it */
        at = strstr(at, wanted[i]);
        if (at == NULL)
            fail_msg("%s is not drawn, or not in its place", wanted[i]);
    }
}

/* Qwen3-32B's iteration takes 33 seconds. */
RP_TEST(long_times_are_in_seconds)
{
    g_autofree char *gnuplot = g_find_program_in_path("gnuplot");
    g_autofree char *svg = NULL;

    g_autoptr(RpTree) root = rp_cli_run_json(
        "simulate @R/profiles/rtx4090/qwen3-32b.json --schedule 1f1b --gpus 8 --micro-batches 16 "
        "--trace @T/long.json --json");
    g_auto(RpCliRun) run = rp_cli_run("report --late @T/long.json @T/long.json %s",
                                      gnuplot != NULL ? "--picture @T/long.svg" : "");
    g_autofree char *time =
        g_strdup_printf("makespan, s %.3f", rp_cli_number(root, "makespan_ms") / 1000);
    g_autoptr(GRegex) spaces = g_regex_new(" +", 0, 0, NULL);
    g_autofree char *text = g_regex_replace_literal(spaces, run.out, -1, 0, " ", 0, NULL);

    assert_true(rp_cli_number(root, "makespan_ms") > 10000);
    assert_int_equal(run.code, 0);
    if (strstr(text, time) == NULL || strstr(text, "busy compute, s ") == NULL)
        fail_msg("expected \"%s\", found: %s", time, run.out);
    if (gnuplot == NULL)
        return;
    g_autofree char *path = rp_cli_temporary("long.svg");
    g_autofree char *title =
        g_strdup_printf("first: %.1f s, bubble", rp_cli_number(root, "makespan_ms") / 1000);

    assert_true(g_file_get_contents(path, &svg, NULL, NULL));
    assert_non_null(strstr(svg, title));
}

RP_TEST(says_what_is_wrong)
{
    rp_cli_must_refuse_all("report-late: says what is wrong");
}

RP_TEST_GROUP(make_traces, rp_cli_teardown)
