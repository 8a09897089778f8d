/* Runs with matmul: fp8: the same bits wherever they run, what is refused, steps that are skipped. */
#include "tests/cli/train-files.h"

#define TRAIN                                                                                      \
    "train @R/examples/precision/run.yaml --set model=@T/model --set data=@T/text.jsonl "          \
    "--set steps=3 --set sequence_length=32 --set micro_batch_size=2 --set dtype=bf16 "            \
    "--set matmul=fp8 --set profile=@T/times.json "

#define HEAD                                                                                       \
    "--set matmul=fp8-head --set sequence_length=128 --set profile=auto --set head_chunk=64 "

static void
succeed(const RpCliRun *run)
{
    if (run->code != 0)
        fail_msg("exit code %d: %s%s", run->code, run->out, run->err);
}

static void
make_model(void)
{
    rp_cli_must_shell("@R/examples/precision/make-data >@T/text.jsonl");
    rp_cli_must_run("init @R/examples/precision/config.json -o @T/model --seed 1 --force");

    rp_train_files_times();
}

/* Losses and norms of each step, to the last digit, and the weights at the end. */
static char *
results_of(const char *output)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "sed 's/,\"tokens.*//' @T/%s/metrics.jsonl; cksum < @T/%s/checkpoint-3/model.safetensors",
        output, output);

    succeed(&run);
    return g_strdup(run.out);
}

static char *
train(const char *output, const char *settings)
{
    rp_cli_must_run(TRAIN "--set output=@T/%s %s", output, settings);

    return results_of(output);
}

/* One, two and four devices, other stages, another schedule. */
RP_TEST(has_the_same_bits_on_any_devices_and_stages)
{
    static const char *const ways[] = {
        "--set devices=host:1",
        "--set devices=host:4",
        "--set devices=host:2 --set forward_stages=1,2 --set backward_stages=1,2,1",
        "--set devices=host:1 --set forward_stages=none --set backward_stages=4",
    };

    make_model();
    g_autofree char *want = train("two", "--set devices=host:2");

    assert_non_null(strstr(want, "\"step\":3"));
    for (guint i = 0; i < G_N_ELEMENTS(ways); i++) {
        g_autofree char *name = g_strdup_printf("way-%u", i);
        g_autofree char *got = train(name, ways[i]);

        assert_string_equal(got, want);
    }
    g_autofree char *plain = train("plain", "--set matmul=bf16");
    g_autofree char *e4m3 = train("e4m3", "--set fp8.format=e4m3");
    g_autofree char *first = train("first", "--set fp8.plain_blocks=1,0");

    assert_string_not_equal(plain, want);
    assert_string_not_equal(e4m3, want);
    assert_string_not_equal(first, want);
    assert_string_not_equal(first, plain);
}

/* The head in codes, too: 256 tokens are the least. */
RP_TEST(has_the_same_bits_with_a_head_of_codes)
{
    make_model();
    g_autofree char *want = train("head", HEAD);
    g_autofree char *cut = train("head-4", HEAD "--set devices=host:4 --set round=all");
    g_autofree char *plain = train("head-plain", HEAD "--set matmul=fp8");

    assert_non_null(strstr(want, "\"step\":3"));
    assert_string_equal(cut, want);
    assert_string_not_equal(plain, want);
}

RP_TEST(refuses_what_codes_cannot_do)
{
    make_model();
    rp_cli_must_refuse_all("train-fp8: what codes cannot do");
}

/* A run file of a plan in fp8, a card that has no units for it, and a timing file of its own. */
RP_TEST(plans_and_profiles_in_fp8)
{
    g_auto(RpCliRun) plain = rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --gpus 4 --json");
    g_auto(RpCliRun) codes = rp_cli_run(
        "plan --model qwen3-1.7b --gpu rtx4090 --gpus 4 --matmul fp8 --json -o @T/run-fp8.yaml");
    g_auto(RpCliRun) head =
        rp_cli_run("plan --model qwen3-1.7b --gpu l40s --gpus 4 --matmul fp8-head --json "
                   "-o @T/run-head.yaml");
    g_auto(RpCliRun) beside =
        rp_cli_run("plan --model qwen3-1.7b --gpu l40s --gpus 4 --matmul fp8 --json");
    rp_cli_must_shell("grep -c '^matmul: fp8$' @T/run-fp8.yaml && "
                      "grep -c '^matmul: fp8-head$' @T/run-head.yaml");
    g_auto(RpCliRun) card =
        rp_cli_run("plan --model qwen3-1.7b --gpu rtx3090 --gpus 4 --matmul fp8");
    rp_cli_must_refuse("plan --model qwen3-1.7b --gpu rtx4090 --sequence 2041 --matmul fp8", 2,
                       "--sequence: expected a multiple of 16 with --matmul fp8");

    succeed(&plain);
    succeed(&codes);
    g_autoptr(RpTree) a = rp_tree_parse(plain.out);
    g_autoptr(RpTree) b = rp_tree_parse(codes.out);
    g_autoptr(RpTree) c = rp_tree_parse(head.out);
    g_autoptr(RpTree) d = rp_tree_parse(beside.out);

    assert_string_equal(rp_cli_member(c, "matmul")->text, "fp8-head");
    assert_true(rp_cli_member(c, "tokens_per_s_slow")->number >
                rp_cli_member(d, "tokens_per_s_slow")->number);
    assert_string_equal(rp_cli_member(b, "matmul")->text, "fp8");
    assert_true(rp_cli_member(b, "tokens_per_s_slow")->number >
                1.1 * rp_cli_member(a, "tokens_per_s_slow")->number);
    assert_true(rp_cli_member(b, "checkpoint_bytes")->number ==
                rp_cli_member(a, "checkpoint_bytes")->number);
    assert_int_not_equal(card.code, 0);
    assert_non_null(strstr(card.err, "which has no fp8"));

    make_model();
    rp_cli_must_run(
        "profile --devices host:1 @T/model --dtype bf16 --matmul fp8-head --seconds 0.01 "
        "--sequence-length 256 -o @T/fp8.json");
    rp_cli_must_shell("grep -c '\"matmul\": \"fp8-head\"' @T/fp8.json && "
                      "grep -c expand_ms @T/fp8.json");
    rp_cli_must_refuse("profile --devices host:1 @T/model --dtype bf16 --matmul fp8 "
                       "--sequence-length 33 -o @T/no.json",
                       2, "--matmul: fp8 takes micro-batches of a multiple of 16 tokens");
}

/* Gradients of fp16 overflow at the largest loss scale: such steps are skipped, and the run goes on. */
RP_TEST(skips_steps_that_overflow)
{
    static const char *const ways[] = {"fp16", "fp8"};

    make_model();
    for (guint i = 0; i < G_N_ELEMENTS(ways); i++) {
        rp_cli_must_run(
            TRAIN "--set output=@T/skips-%s --set dtype=fp16 --set accumulate=fp16 --set matmul=%s "
                  "--set steps=12 --set loss_scale.initial=16777216",
            ways[i], ways[i]);
        rp_cli_must_shell("grep -c '\"skipped\":true' @T/skips-%s/metrics.jsonl", ways[i]);
        rp_cli_must_shell("grep -vc '\"skipped\":true' @T/skips-%s/metrics.jsonl", ways[i]);
    }
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
