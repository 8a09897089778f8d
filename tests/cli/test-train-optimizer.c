/* States of the optimizer: Lion, weights in bf16, moments in int8. */
#include "tests/cli/train-files.h"

#define TRAIN "train @T/run.yaml --set dtype=bf16 --set output=@T/"
#define SMALL "--set optimizer.name=lion --set optimizer.master=bf16 --set optimizer.state=int8 "

static void
train(const char *output, const char *options)
{
    rp_cli_must_run(TRAIN "%s %s", output, options);
}

RP_TEST(has_the_same_bits_on_any_devices_and_after_a_resume)
{
    static const char *const others[] = {
        "--set devices=host:2",
        "--set devices=host:4 --set optimizer.mode=lean",
        "--set devices=host:2 --set checkpoint.beside=true",
        "--set consistency=blocking",
        "--set optimizer.early_steps=on",
    };
    static const char *const kinds[] = {
        SMALL, "--set optimizer.name=lion", "--set optimizer.master=bf16",
        "--set optimizer.master=bf16 --set async=false",
        "--set optimizer.master=bf16 --set optimizer.state=bf16 --set lora.rank=4"};

    for (guint k = 0; k < G_N_ELEMENTS(kinds); k++) {
        g_autofree char *one =
            g_strconcat("--set steps=4 --set checkpoint.every=2 ", kinds[k], NULL);

        train("one", one);
        for (guint i = 0; i < G_N_ELEMENTS(others); i++) {
            g_autofree char *options = g_strconcat(one, " ", others[i], NULL);

            train("other", options);
            rp_train_files_assert_same("one/checkpoint-4", "other/checkpoint-4");
            g_auto(RpCliRun) clean = rp_cli_shell("rm -rf @T/other");
            assert_int_equal(clean.code, 0);
        }
        rp_cli_must_shell("cp -r @T/one @T/part && rm -r @T/part/checkpoint-4");
        g_autofree char *rest = g_strconcat(one, " --set devices=host:2 --resume", NULL);

        train("part", rest);
        rp_train_files_assert_same("one/checkpoint-4", "part/checkpoint-4");
        g_auto(RpCliRun) clean = rp_cli_shell("rm -rf @T/one @T/part");
        assert_int_equal(clean.code, 0);
    }
}

RP_TEST(refuses_a_checkpoint_that_keeps_something_else)
{
    train("small", "--set steps=2 " SMALL);
    rp_cli_must_refuse_all("train-optimizer: a checkpoint that keeps something else");
}

/* Bytes of the host's arena, of a plan in bf16 of 1.7 billion parameters. */
static double
planned_bytes(const char *options)
{
    g_autoptr(RpTree) json =
        rp_cli_run_json("simulate @R/profiles/h200/qwen3-1.7b-8x2048-one-gpu.json "
                        "--schedule roundpipe --gpus 2 --micro-batches 4 "
                        "--fidelity full --json %s",
                        options);

    return rp_cli_number(json, "host_peak_bytes");
}

RP_TEST(plans_have_its_bytes)
{
    const double all = planned_bytes("");
    const double each = (all - planned_bytes("--optimizer-name lion")) / 4;

    assert_true(each > 1.7e9 && each < 2.1e9);
    /* devices read the optimizer's weights, unless early steps write others */
    assert_float_equal((all - planned_bytes("--optimizer-master bf16")) / each, 4, 1e-3);
    assert_float_equal((all - planned_bytes("--optimizer-master bf16 --early-steps on")) / each, 2,
                       1e-3);
    assert_float_equal((all - planned_bytes("--optimizer-name lion --optimizer-master bf16 "
                                            "--optimizer-state int8")) /
                           each,
                       12 - 1 - 4.0 / 256, 1e-3);
}

RP_TEST(says_that_the_warm_up_is_longer_than_the_run)
{
    g_auto(RpCliRun) longer =
        rp_cli_run("train @T/run.yaml --dry-run --set steps=4 --set optimizer.warmup_steps=5 "
                   "--set output=@T/warm");
    g_auto(RpCliRun) equal =
        rp_cli_run("train @T/run.yaml --dry-run --set steps=4 --set optimizer.warmup_steps=4 "
                   "--set output=@T/warm");

    assert_int_equal(longer.code + equal.code, 0);
    assert_non_null(strstr(longer.err, "optimizer.warmup_steps 5 is beyond the run's 4 steps"));
    assert_null(strstr(equal.err, "optimizer.warmup_steps"));
}

/* Weights that early steps write hold unless gradients are clipped: a run says what its steps take then, and how many
 * of them it met. */
RP_TEST(predicts_steps_that_clip)
{
    static const struct {
        const char *max_grad_norm;
        double clipped; /* of three steps that count */
    } rows[] = {{"1e-3", 3}, {"1e9", 0}};

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autoptr(RpTree) json = rp_cli_run_json(
            TRAIN "clip%u --json --set devices=host:2 --set steps=5 --set async=false "
                  "--set optimizer.early_steps=on --set optimizer.max_grad_norm=%s",
            i, rows[i].max_grad_norm);

        assert_float_equal(rp_cli_number(json, "measured.steady_steps"), 3, 0);
        assert_float_equal(rp_cli_number(json, "measured.clipped_steps"), rows[i].clipped, 0);
        assert_true(rp_cli_number(json, "predicted.clipped.step_ms") > 0);
    }
    g_autoptr(RpTree) unclipped =
        rp_cli_run_json(TRAIN "clip --json --dry-run --set devices=host:2 --set steps=5 "
                              "--set async=false --set optimizer.max_grad_norm=0");

    assert_null(rp_tree_find(rp_tree_find(unclipped, "predicted"), "clipped"));
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
