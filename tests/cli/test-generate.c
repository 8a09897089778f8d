/* `roundpipe generate`: which part of a line is the prompt, which answers are right, and what is
 * refused; how `train` on processors says whether its times can be compared. */
#include "tests/cli/train-files.h"

#include <stdio.h>

static void
refuse(const char *line, int code, const char *part)
{
    g_auto(RpCliRun) run = rp_cli_run("%s", line);

    if (run.code != code || strstr(run.err, part) == NULL ||
        strchr(run.err, '\n') != run.err + strlen(run.err) - 1)
        fail_msg("%s: exit code %d, expected %d and one line with \"%s\": %s", line, run.code, code,
                 part, run.err);
}

/* Its own answers, given back as those expected, are right; one changed token is not. */
static void
tells_right_answers_from_wrong_ones(void **state)
{
    rp_train_files_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n{\"input_ids\":[6,7,8]}\n", -1);

    g_auto(RpCliRun) asked = rp_cli_run(
        "generate @T/model --prompts @T/ask.jsonl -o @T/said.jsonl --max-new-tokens 2 --json");
    g_autoptr(RpTree) first = rp_cli_json(&asked);
    g_autofree char *said = rp_train_files_read("said.jsonl", NULL);
    int a, b, c, d;

    assert_int_equal(rp_cli_number(first, "expected"), 0);
    assert_int_equal(sscanf(said,
                            "{\"prompt\":[3,4,5],\"answer\":[%d,%d]}\n"
                            "{\"prompt\":[6,7,8],\"answer\":[%d,%d]}\n",
                            &a, &b, &c, &d),
                     4);
    g_autofree char *lines =
        g_strdup_printf("{\"input_ids\":[3,4,5,%d,%d],\"labels\":[-100,-100,-100,%d,%d]}\n"
                        "{\"input_ids\":[6,7,8,%d,%d],\"labels\":[-100,-100,-100,%d,%d]}\n",
                        a, b, a, b, c, (d + 1) % 33, c, (d + 1) % 33);
    rp_train_files_write("know.jsonl", lines, -1);

    g_auto(RpCliRun) known =
        rp_cli_run("generate @T/model --prompts @T/know.jsonl -o @T/said-2.jsonl --json");
    g_autoptr(RpTree) second = rp_cli_json(&known);

    assert_int_equal(rp_cli_number(second, "prompts"), 2);
    assert_int_equal(rp_cli_number(second, "expected"), 2);
    assert_int_equal(rp_cli_number(second, "right"), 1);
    assert_int_equal(rp_cli_number(second, "max_new_tokens"), 2);
    (void)state;
}

static void
says_what_is_wrong(void **state)
{
    rp_train_files_write("one.jsonl", "{\"input_ids\":[3,4,5]}\n", -1);
    rp_train_files_write("alien.jsonl", "{\"input_ids\":[3]}\n{\"input_ids\":[33]}\n", -1);
    refuse("generate @T/model -o @T/x.jsonl", 2, "--prompts: expected a file");
    refuse("generate @T/model --prompts @T/one.jsonl", 2, "--output: expected a file");
    refuse("generate @T/model --prompts @T/one.jsonl -o @T/one.jsonl", 2, "one.jsonl");
    refuse("generate @T/model --prompts @T/one.jsonl -o - --json", 2, "standard output");
    refuse("generate @T/model --prompts /dev/zero -o @T/x.jsonl", 1, "regular file");
    refuse("generate @T/nowhere --prompts @T/one.jsonl -o @T/x.jsonl", 1, "nowhere");
    refuse("generate @T/model --prompts @T/alien.jsonl -o @T/x.jsonl", 1, "line 2");
    refuse("generate @T/model --prompts @T/one.jsonl -o @T/x.jsonl --max-new-tokens 100000", 2,
           "--max-new-tokens: expected at most");
    (void)state;
}

/* Four devices of one processor wait for each other most of the time. */
static void
train_compares_times_only_if_processors_were_free(void **state)
{
    g_auto(RpCliRun) wide = rp_cli_shell(
        "taskset -c 0 $ROUNDPIPE train @T/run.yaml --set output=@T/waits --set devices=host:4 "
        "--set sequence_length=256 --set micro_batch_size=8 --set steps=12 --json");
    g_autoptr(RpTree) root = rp_cli_json(&wide);
    const double waited = rp_cli_number(root, "measured.processor_wait_ratio");

    (void)state;
    if (waited <= 0.05 || waited >= 1)
        fail_msg("actions waited %g of their time", waited);
    assert_false(rp_cli_member(root, "measured.times_comparable")->number);
}

static void
version_tells_of_gpu_code(void **state)
{
    g_auto(RpCliRun) run = rp_cli_run("--version");

    (void)state;
    assert_int_equal(run.code, 0);
    assert_true(strstr(run.out, "\nGPU code: CUDA 1") != NULL ||
                strstr(run.out, "\nGPU code: not built in: ") != NULL);
    assert_true(strstr(run.out, "not built in") == NULL ||
                strstr(run.out, "docs/install-cuda.md") != NULL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_right_answers_from_wrong_ones),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(train_compares_times_only_if_processors_were_free),
        cmocka_unit_test(version_tells_of_gpu_code),
    };

    return cmocka_run_group_tests(tests, rp_train_files_setup, rp_train_files_teardown);
}
