/* The box that commands are asked about: its card by name or file, its links, a model by name or config. */
#include "tests/cli/run-cli.h"

#include <string.h>

#define SHAPE " --schedule roundpipe --gpus 4 --micro-batches 8 --fidelity full --partition paper"

static double
iteration_ms(const char *words)
{
    g_auto(RpCliRun) run = rp_cli_run("simulate %s" SHAPE " --json", words);
    g_autoptr(RpTree) root = rp_cli_json(&run);

    return rp_cli_number(root, "iteration_ms");
}

static void
a_model_by_name_runs_on_a_card_by_name(void **state)
{
    const double on_4090 = iteration_ms("qwen3-8b --gpu rtx4090");
    g_auto(RpCliRun) exported =
        rp_cli_run("export --profile qwen3-8b --gpu rtx4090 --gpus 4 -o @T/qwen3-8b.json");

    (void)state;
    assert_int_equal(exported.code, 0);
    assert_true(on_4090 == iteration_ms("@T/qwen3-8b.json"));
    assert_true(on_4090 < iteration_ms("qwen3-8b --gpu rtx3090"));
    assert_true(on_4090 > iteration_ms("qwen3-8b --gpu RTX-5090"));
    assert_true(on_4090 == iteration_ms("Qwen/Qwen3-8B --gpu rtx4090"));
    assert_true(iteration_ms("qwen3-1.7b") == iteration_ms("unsloth/Qwen3-1.7B"));
    /* shipped times without a card, the cost model's with one */
    assert_true(iteration_ms("qwen3-1.7b") == iteration_ms("@Q"));
    assert_true(iteration_ms("qwen3-1.7b") != iteration_ms("qwen3-1.7b --gpu rtx4090"));
}

static void
a_cards_file_is_an_object_of_gpus(void **state)
{
    g_auto(RpCliRun) whole = rp_cli_shell("$ROUNDPIPE gpus --json rtx4090 >@T/whole.json");

    (void)state;
    assert_int_equal(whole.code, 0);
    assert_true(iteration_ms("qwen3-8b --gpu @T/whole.json") ==
                iteration_ms("qwen3-8b --gpu rtx4090"));
    rp_cli_write("slow.json", "{\"like\": \"rtx4090\", \"name\": \"slow\", \"h2d_gb_per_s\": 12, "
                              "\"d2h_gb_per_s\": 12, \"root_gb_per_s\": 24}");
    assert_true(iteration_ms("qwen3-8b --gpu @T/slow.json") ==
                iteration_ms("qwen3-8b --gpu rtx4090 --pcie 12"));
    g_auto(RpCliRun) plan = rp_cli_run("plan --model qwen3-8b --gpu @T/slow.json --gpus 4");

    assert_int_equal(plan.code, 0);
    assert_non_null(strstr(plan.out, "4 x slow"));
    g_auto(RpCliRun) gpus = rp_cli_run("gpus @T/slow.json");

    assert_non_null(strstr(gpus.out, "12/12"));
    assert_null(strstr(gpus.out, "rtx3090"));
}

static void
links_may_differ_from_the_cards_usual_ones(void **state)
{
    (void)state;
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --pcie 4x16") ==
                iteration_ms("qwen3-8b --gpu rtx4090"));
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --pcie 3x16") ==
                iteration_ms("qwen3-8b --gpu rtx4090 --pcie 4x8"));
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --pcie 3x4") >
                iteration_ms("qwen3-8b --gpu rtx4090"));
    assert_true(iteration_ms("qwen3-8b --gpu rtx4090 --host-bandwidth 30") >
                iteration_ms("qwen3-8b --gpu rtx4090"));
    /* of a timing file, too */
    assert_true(iteration_ms("@Q --pcie 25") == iteration_ms("@Q"));
    assert_true(iteration_ms("@Q --pcie 3x4") > iteration_ms("@Q"));
    assert_true(iteration_ms("@Q --host-bandwidth 20") > iteration_ms("@Q"));
}

static void
a_model_by_its_config_runs_wherever_a_profile_does(void **state)
{
    static const char *const commands[] = {"simulate", "partition", "compare", "verify"};

    (void)state;
    for (guint i = 0; i < G_N_ELEMENTS(commands); i++) {
        g_auto(RpCliRun) file =
            rp_cli_run("%s @R/examples/fine-tune/tiny/config.json --gpu l40s --gpus 1 "
                       "--micro-batches 4 %s",
                       commands[i], i == 2 ? "--schedules gpipe" : "--schedule gpipe");
        g_auto(RpCliRun) directory =
            rp_cli_run("%s @R/examples/fine-tune/tiny --gpu l40s --gpus 1 "
                       "--micro-batches 4 %s",
                       commands[i], i == 2 ? "--schedules gpipe" : "--schedule gpipe");

        assert_int_equal(file.code, 0);
        assert_int_equal(directory.code, 0);
        assert_true(i == 3 || strstr(file.out, "tiny") != NULL ||
                    strstr(file.out, "config") != NULL);
    }
}

static void
a_foreign_card_says_so_and_has_no_range(void **state)
{
    g_auto(RpCliRun) foreign = rp_cli_run("plan --model qwen3-8b --gpu mi300x");
    g_auto(RpCliRun) own = rp_cli_run("plan --model qwen3-8b --gpu l40s --sequence 512");

    (void)state;
    assert_non_null(strstr(foreign.out, "nothing of this project runs on it\n"));
    assert_null(strstr(foreign.out, "range "));
    assert_non_null(strstr(own.out, "range "));
    /* nor is it proposed where another card is too small */
    g_auto(RpCliRun) small =
        rp_cli_run("plan --model qwen3-8b --gpu rtx3060 --sequence 32768 --json");

    assert_null(strstr(small.out, "mi300x"));
    assert_null(strstr(small.out, "w7800"));
}

static void
refuses_boxes_that_there_are_not(void **state)
{
    static const struct {
        const char *words;
        int code;
        const char *part;
    } cases[] = {
        {"qwen3-8b --gpu rtx4091", 2, "--gpu: unknown GPU \"rtx4091\"; did you mean"},
        {"qwen3-8b --gpu @T/none.json", 1, "none.json: "},
        {"qwen3-8b --gpu @T/bad.json", 1,
         "bad.json: line 2, column 18: h2d_gb_per_s: expected a number"},
        {"@Q --gpu rtx4090", 2, "has the times of its card"},
        {"qwen3-8b --pcie 4x3", 2, "--pcie: expected a generation"},
        {"qwen3-8b --pcie 0", 2, "--pcie: expected a generation"},
        {"qwen3-8b --host-bandwidth -1", 2, "--host-bandwidth: expected GB/s"},
        {"@T/linkless.json --pcie 4x8", 2,
         "--pcie: expected a profile with the speed of its links"},
        {"@T/nothing --gpu l4", 1, "nothing: cannot read"},
    };

    (void)state;
    rp_cli_write("bad.json", "{\"like\": \"l4\",\n \"h2d_gb_per_s\": \"3\"}");
    rp_cli_write("linkless.json",
                 "{\"format\":\"roundpipe-profile/1\",\"layers\":[{\"kind\":\"block\",\"count\":4,"
                 "\"forward_ms\":1,\"backward_ms\":2}]}");
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_auto(RpCliRun) run =
            rp_cli_run("simulate %s --schedule gpipe --gpus 2 --micro-batches 4", cases[i].words);

        if (run.code != cases[i].code || strstr(run.err, cases[i].part) == NULL)
            fail_msg("%s: %d, %s", cases[i].words, run.code, run.err);
        assert_ptr_equal(strchr(run.err, '\n'), run.err + strlen(run.err) - 1);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_by_name_runs_on_a_card_by_name),
        cmocka_unit_test(a_cards_file_is_an_object_of_gpus),
        cmocka_unit_test(links_may_differ_from_the_cards_usual_ones),
        cmocka_unit_test(a_model_by_its_config_runs_wherever_a_profile_does),
        cmocka_unit_test(a_foreign_card_says_so_and_has_no_range),
        cmocka_unit_test(refuses_boxes_that_there_are_not),
    };

    return cmocka_run_group_tests(tests, rp_cli_setup, rp_cli_teardown);
}
