/* Tensors that `roundpipe plan` saves instead of recomputing them, without a host memory limit, and where
 * choices are nearly as fast in few tries. */
#include "tests/cli/train-files.h"

#define PLAN "plan --gpu rtx4090 --gpus 4 --schedules roundpipe --json --model "

static RpTree *
plan(const char *options)
{
    g_autofree char *command = g_strconcat(PLAN, options, NULL);
    g_auto(RpCliRun) run = rp_cli_run(command);

    if (run.code != 0)
        fail_msg("%s: exit code %d: %s", command, run.code, run.err);
    return rp_cli_json(&run);
}

/* The fastest takes more than twice the memory of the smallest plan that recomputes all. Without a limit no more
 * than 1.25 times that memory is taken (RP_ADVISE_HOST_GROWTH), whatever speed it costs: a plan is preferred
 * for its memory only within 1 % (RP_ADVISE_AS_FAST), so that one within 3 % of the fastest may be missing. */
RP_TEST(little_host_memory_is_taken_where_none_is_told)
{
    if (RP_TEST_FEW) /* of values alone: the test "plan" runs the same */
        return;
    g_autoptr(RpTree) untold = plan("qwen3-8b --batch 64 --sequence 4096");
    g_autoptr(RpTree) told = plan("qwen3-8b --batch 64 --sequence 4096 --host-memory 1024");
    g_autoptr(RpTree) full = plan("qwen3-8b --batch 64 --sequence 4096 --recompute full");
    const double tokens_per_s = rp_cli_number(untold, "recommendation.tokens_per_s");
    const double host_bytes = rp_cli_number(untold, "recommendation.host_peak_bytes");

    assert_true(tokens_per_s >
                1.02 * rp_cli_number(untold, "recommendation.recomputed_tokens_per_s"));
    assert_true(tokens_per_s > 1.02 * rp_cli_number(full, "recommendation.tokens_per_s"));
    assert_true(tokens_per_s < rp_cli_number(told, "recommendation.tokens_per_s"));
    assert_true(host_bytes <= 1.25 * rp_cli_number(full, "recommendation.host_peak_bytes"));
    assert_true(host_bytes < 0.9 * rp_cli_number(told, "recommendation.host_peak_bytes"));
}

/* In few tries gate and up of the last quarter are 0.5 % faster than queries, keys, values and residuals of
 * all layers, and then 5 % slower. */
RP_TEST(choices_that_are_nearly_as_fast_are_weighed)
{
    if (RP_TEST_FEW) /* of values alone: the test "plan" runs the same */
        return;
    g_autoptr(RpTree) best = plan("llama-3.1-8b --batch 128 --host-memory 800GB");

    assert_true(rp_cli_number(best, "recommendation.tokens_per_s") >
                1.04 * rp_cli_number(best, "recommendation.recomputed_tokens_per_s"));
}

/* Queries, keys, values and residuals beside attention take three times the bytes for less than 1 %. */
RP_TEST(more_is_saved_where_that_brings_a_hundredth)
{
    rp_cli_must_run("export --profile qwen3-8b --gpu rtx4090 --gpus 4 --sequence 4096 "
                    "--micro-batch 1 -o @T/links.json");
    g_auto(RpCliRun) run = rp_cli_run("simulate @T/links.json --gpus 4 --schedule roundpipe "
                                      "--micro-batches 24 --fidelity full");

    assert_int_equal(run.code, 0);
    assert_non_null(strstr(run.out, "saved             attention of "));
    assert_null(strstr(run.out, "layers, "));
}

/* By their names, in any order; "none" is all of them. */
RP_TEST(groups_of_a_list_are_saved)
{
#define SIMULATE                                                                                   \
    "simulate qwen3-1.7b --gpu rtx4090 --gpus 2 --schedule roundpipe --micro-batches 4 "           \
    "--fidelity full --forward-stages 10,9,9 --backward-stages 0,14,14 --json --recompute "
    g_autoptr(RpTree) tree = rp_cli_run_json(SIMULATE "residual,attention,qkv");
    g_auto(RpCliRun) four = rp_cli_run(SIMULATE "attention,qkv,residual,mlp");
    g_auto(RpCliRun) none = rp_cli_run(SIMULATE "none");

    assert_string_equal(rp_cli_member(tree, "saved")->text,
                        "attention of 28 layers, qkv of 28, residual of 28");
    assert_string_equal(four.out, none.out);
    rp_cli_must_refuse_all("plan-saved: groups of a list are saved");
#undef SIMULATE

    /* a plan's run file keeps it */
    rp_cli_must_run("plan qwen3-1.7b --gpu rtx4090 --gpus 2 --batch 4 --schedules roundpipe "
                    "--recompute qkv,residual -o @T/plan.yaml");
    g_autofree char *file = rp_cli_read("plan.yaml");

    assert_non_null(strstr(file, "\nrecompute: \"qkv,residual\"\n"));
}

/* A card with a MiB beyond what a plan that recomputes all needs: buffers for what is saved do not fit. */
RP_TEST(where_nothing_can_be_saved_all_is_recomputed)
{
#define SIMULATE " --gpus 1 --schedule roundpipe --micro-batches 1 --fidelity full"
    rp_cli_must_run(
        "export --profile qwen3-4b --gpu rtx4090 --gpus 1 --sequence 32768 --micro-batch 1 "
        "-o @T/roomy.json");
    g_autoptr(RpTree) tree = rp_cli_run_json("simulate @T/roomy.json" SIMULATE
                                             " --recompute full --forward-stages 0,1*36 "
                                             "--backward-stages 0,1*36,0 --json");
    rp_cli_must_shell("sed 's/predicted/measured/; " /* whose memory is all for plans */
                      "s/\"gpu_memory_bytes\": [0-9]*/\"gpu_memory_bytes\": %.0f/' "
                      "@T/roomy.json >@T/tight.json",
                      rp_cli_number(tree, "gpu_peak_bytes") + 1048576);

    g_auto(RpCliRun) roomy = rp_cli_run("simulate @T/roomy.json" SIMULATE);
    g_auto(RpCliRun) tight = rp_cli_run("simulate @T/tight.json" SIMULATE);
#undef SIMULATE

    assert_non_null(strstr(roomy.out, "\n  saved "));
    if (tight.code != 0)
        fail_msg("exit code %d: %s", tight.code, tight.err);
    assert_null(strstr(tight.out, "\n  saved "));
}

/* Rounds of 1, 2 and 4 leave a card waiting for a fifth of the time, one of all does not. */
RP_TEST(the_longest_round_is_tried_where_short_ones_wait)
{
#define ONE                                                                                        \
    "plan --model qwen3-1.7b --gpu h200 --gpu-memory 24GiB --batch 64 --schedules roundpipe "      \
    "--json"
    if (RP_TEST_FEW) /* of values alone: the test "plan" runs the same */
        return;
    g_autoptr(RpTree) found = rp_cli_run_json(ONE);
    g_autoptr(RpTree) best = rp_cli_run_json(ONE " --micro-batch 4 --round 16");
#undef ONE

    assert_true(rp_cli_number(found, "recommendation.tokens_per_s") >=
                0.99 * rp_cli_number(best, "recommendation.tokens_per_s"));
}

/* A file that has the times of each micro-batch that the cost model would try gives the cost model's answer. */
RP_TEST(a_timing_file_has_several_micro_batches)
{
    g_autoptr(GString) all = g_string_new("[");

    for (guint b = 1; b <= 4; b *= 2) {
        g_autofree char *command =
            g_strdup_printf("export --profile qwen3-1.7b --gpu rtx4090 --gpus 4 "
                            "--tokens 2048 --sequences %u -o @T/one.json",
                            b);

        rp_cli_must_run("%s", command);
        g_autofree char *one = rp_cli_read("one.json");

        g_string_append_printf(all, "%s%s", b > 1 ? "," : "", one);
    }
    g_string_append_c(all, ']');
    g_autofree char *path = rp_cli_temporary("all.json");
    assert_true(g_file_set_contents(path, all->str, -1, NULL));

    g_autoptr(RpTree) found = rp_cli_run_json(
        "plan --profile @T/all.json --gpus 4 --batch 16 --schedules roundpipe --json");
    g_auto(RpCliRun) one = rp_cli_run("simulate @T/all.json --gpus 4");
    rp_cli_must_refuse("plan --profile @T/all.json --gpus 4 --batch 48 --micro-batch 3", 2,
                       "micro-batches of 1, 2 and 4 sequences, found 3 asked for");
    g_autoptr(RpTree) expected = plan("qwen3-1.7b --batch 16 --sequence 2048");

    assert_true(rp_cli_number(found, "recommendation.tokens_per_s") ==
                rp_cli_number(expected, "recommendation.tokens_per_s"));
    assert_true(rp_cli_number(found, "recommendation.micro_batch") ==
                rp_cli_number(expected, "recommendation.micro_batch"));
    assert_int_equal(one.code, 2);
    assert_non_null(strstr(one.err, "found those of 1, 2 and 4 sequences"));
}

/* The plan has groups of GPUs, and the rows of other schedules have none. */
RP_TEST(other_schedules_have_the_round_that_is_asked_for)
{
    g_autoptr(RpTree) found =
        rp_cli_run_json("plan qwen3-1.7b --gpu rtx4090 --gpus 2 --round 4 --json");

    assert_true(rp_cli_number(found, "recommendation.replicas") == 2);
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
