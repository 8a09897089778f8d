/* `roundpipe replay` as a user runs it: short runs, whose times are looked at for sense only. */
#include "tests/cli/run-cli.h"

#include <math.h>

#define RUN "--schedule roundpipe --gpus 2 --micro-batches 4 --partition paper"

RP_TEST(prints_what_was_predicted_and_what_was_measured)
{
    static const char *const fidelities[] = {"compute", "full"};

    for (gsize i = 0; i < G_N_ELEMENTS(fidelities); i++) {
        g_autoptr(RpTree) root =
            rp_cli_run_json("replay @Q " RUN " --seconds 0.3 --fidelity %s --json", fidelities[i]);
        g_autoptr(RpTree) expected =
            rp_cli_run_json("simulate @Q " RUN " --fidelity %s --json", fidelities[i]);

        assert_string_equal(rp_cli_member(root, "fidelity")->text, fidelities[i]);
        assert_int_equal(rp_cli_number(root, "gpus"), 2);
        assert_true(rp_cli_number(root, "plan_tasks") > 0);
        assert_true(rp_cli_number(root, "scale") > 0);
        assert_true(rp_cli_number(root, "predicted.makespan_ms") > 0);
        assert_true(rp_cli_number(root, "measured.makespan_ms") > 0);
        assert_true(rp_cli_number(root, "measured.bubble_ratio") >= 0);
        assert_true(rp_cli_number(root, "measured.bubble_ratio") < 1);
        assert_true(rp_cli_number(root, "engine_us_per_task.worker_cpu") > 0);
        assert_true(rp_cli_number(root, "device_threads_late_us.max") >=
                    rp_cli_number(root, "device_threads_late_us.mean"));
        if (i == 0) /* the shared links of `full` are not replayed */
            assert_true(fabs(rp_cli_number(root, "predicted.makespan_ms") -
                             rp_cli_number(expected, "makespan_ms")) < 1e-6);
    }
}

/* The processors of a profile are not what a replay runs on. */
RP_TEST(tasks_that_only_take_their_time_share_no_processors)
{
    static const char text[] =
        "{\"format\":\"roundpipe-profile/1\",\"processors\":1,\"layers\":"
        "[{\"kind\":\"block\",\"count\":4,\"forward_ms\":10,\"backward_ms\":20}]}";
    g_autofree char *path = rp_cli_temporary("one.json");

    assert_true(g_file_set_contents(path, text, -1, NULL));
    g_autoptr(RpTree) root = rp_cli_run_json("replay @T/one.json --schedule gpipe --gpus 4 "
                                             "--micro-batches 4 --published --seconds 0.1 --json");
    g_autoptr(RpTree) shared = rp_cli_run_json("simulate @T/one.json --schedule gpipe --gpus 4 "
                                               "--micro-batches 4 --json");

    /* (M + N - 1) (forward + recompute + backward); on one processor all the work */
    assert_true(fabs(rp_cli_number(root, "predicted.makespan_ms") - 7 * 40) < 1e-3);
    assert_true(fabs(rp_cli_number(shared, "makespan_ms") - 4 * 4 * 40) < 1e-3);
}

RP_TEST(writes_the_measured_trace)
{
    g_auto(RpCliRun) run = rp_cli_run("replay @Q " RUN " --seconds 0.1 --trace @T/trace.json");

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "the trace follows the plan (verified)"));
    assert_non_null(strstr(run.out, "makespan, ms"));
    rp_cli_must_run("verify @Q " RUN " --fidelity compute --trace @T/trace.json");
}

RP_TEST(says_what_is_wrong)
{
    rp_cli_must_refuse_all("replay-cmd: says what is wrong");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
