/* Cards of several kinds as a user has them: plans, replays, and runs on devices that are slowed down. */
#include "tests/cli/train-files.h"

#include <math.h>

#define BOX "--gpu rtx4090:2,rtx3090:2 "
#define RUN "qwen3-1.7b " BOX "--schedule roundpipe --micro-batches 8 --async --json "

RP_TEST(the_naive_split_is_slower_than_stages_that_suit_the_cards)
{
    g_auto(RpCliRun) naive = rp_cli_run(
        "simulate qwen3-1.7b " BOX "--schedule 1f1b --micro-batches 8 --partition paper --json");
    g_auto(RpCliRun) suited =
        rp_cli_run("simulate qwen3-1.7b " BOX "--schedule 1f1b --micro-batches 8 --json");
    g_auto(RpCliRun) turns = rp_cli_run("simulate " RUN);
    g_auto(RpCliRun) freely = rp_cli_run("simulate " RUN "--dispatch free");
    g_auto(RpCliRun) again = rp_cli_run("simulate " RUN "--dispatch free");
    g_autoptr(RpTree) slow_root =
        rp_cli_run_json("simulate qwen3-1.7b --gpu rtx3090:4 --schedule roundpipe "
                        "--micro-batches 8 --async --json");
    g_autoptr(RpTree) naive_root = rp_cli_json(&naive), suited_root = rp_cli_json(&suited);
    g_autoptr(RpTree) turns_root = rp_cli_json(&turns), free_root = rp_cli_json(&freely);
    const double free_ms = rp_cli_number(free_root, "iteration_ms");

    assert_string_equal(freely.out, again.out);
    assert_int_equal(rp_cli_number(naive_root, "gpus"), 4);
    assert_string_equal(rp_cli_member(naive_root, "device")->text, "2 x RTX 4090 + 2 x RTX 3090");
    assert_true(rp_cli_number(suited_root, "iteration_ms") <
                0.8 * rp_cli_number(naive_root, "iteration_ms"));
    /* in turns the slowest card sets the pace */
    assert_float_equal(rp_cli_number(turns_root, "iteration_ms"),
                       rp_cli_number(slow_root, "iteration_ms"),
                       0.01 * rp_cli_number(slow_root, "iteration_ms"));
    assert_true(free_ms < 0.7 * rp_cli_number(turns_root, "iteration_ms"));
    assert_true(rp_cli_number(free_root, "bubble_ratio") < 0.05);
}

/* A bound stage is as large as its own card lets it be, a dispatched one as the smallest. */
RP_TEST(memory_is_that_of_each_devices_card)
{
#define WORK "simulate qwen3-1.7b --micro-batches 4 --micro-batch 2 --fidelity full --json "
#define UNEVEN "--schedule 1f1b --stages 22,6 --gpu "
    g_auto(RpCliRun) large = rp_cli_run(WORK UNEVEN "rtx4090,rtx3060");
    g_auto(RpCliRun) small = rp_cli_run(WORK UNEVEN "rtx3060,rtx4090");
    g_autoptr(RpTree) dispatched_root =
        rp_cli_run_json(WORK "--schedule roundpipe --dispatch free --gpu rtx4090,rtx3060");
#undef UNEVEN
#undef WORK
    g_autoptr(RpTree) large_root = rp_cli_json(&large), small_root = rp_cli_json(&small);

    assert_string_equal(rp_cli_member(large_root, "fits_gpu_memory")->text, "true");
    assert_true(rp_cli_number(large_root, "gpu_peak_bytes") > 12.0 * (1 << 30));
    assert_string_equal(rp_cli_member(small_root, "fits_gpu_memory")->text, "false");
    assert_string_equal(rp_cli_member(dispatched_root, "fits_gpu_memory")->text, "true");
    assert_true(rp_cli_number(dispatched_root, "gpu_peak_bytes") <= 12.0 * (1 << 30));
}

RP_TEST(lists_of_cards_are_read_strictly)
{
    rp_cli_must_refuse_all("mixed-cards: lists of cards");
}

RP_TEST(a_plan_of_a_mixed_box_dispatches_freely_and_says_so_in_the_run_file)
{
    if (RP_TEST_FEW) /* of values alone: plan.script and test-cards.c run the same code */
        return;
    g_auto(RpCliRun) plan = rp_cli_run("plan --model qwen3-1.7b " BOX
                                       "--schedules roundpipe --micro-batch 4 --batch 64 "
                                       "-o @T/planned.yaml --json");
    g_auto(RpCliRun) old = rp_cli_run("plan --model qwen3-1.7b --gpu rtx3090 --gpus 4 "
                                      "--schedules roundpipe --micro-batch 4 --batch 64 --json");
    rp_cli_must_shell("grep '^dispatch: free' @T/planned.yaml");
    g_autoptr(RpTree) root = rp_cli_json(&plan), old_root = rp_cli_json(&old);

    assert_int_equal(plan.code, 0);
    assert_string_equal(rp_cli_member(root, "device")->text, "2 x RTX 4090 + 2 x RTX 3090");
    assert_true(rp_cli_number(root, "recommendation.tokens_per_s") >
                1.3 * rp_cli_number(old_root, "recommendation.tokens_per_s"));
}

/* Threads of two speeds, which follow the plan (replay proves the trace). */
RP_TEST(a_mixed_box_is_replayed)
{
    static const char *const fidelities[] = {"compute", "full"};

    for (gsize i = 0; i < G_N_ELEMENTS(fidelities); i++) {
        g_auto(RpCliRun) run =
            rp_cli_run("replay qwen3-1.7b --gpu rtx4090,rtx3090 --schedule roundpipe "
                       "--micro-batches 4 --round 2 --iterations 2 --dispatch free --seconds 0.3 "
                       "--fidelity %s --json",
                       fidelities[i]);
        g_autoptr(RpTree) root = rp_cli_json(&run);

        assert_int_equal(run.code, 0);
        assert_true(rp_cli_number(root, "predicted.makespan_ms") > 0);
        assert_true(rp_cli_number(root, "measured.makespan_ms") > 0);
    }
}

#define STAGES "--set forward_stages=1,1,1 --set backward_stages=1,1,1,1 --set steps=4 "
#define SLOW "--set devices=host:3 --set host_slow=0=1.5,2=2 --set dispatch=free "
#define ROUNDS "--set micro_batches=8 --set round=4 --set gradient_accumulation_steps=2 "

/* Wherever stages go, gradients are added in the order of rounds; evaluations and resumed runs, too. */
RP_TEST(free_dispatch_trains_the_same_bits)
{
    static const char *const kinds[] = {
        STAGES ROUNDS,
        STAGES "--set async=false --set eval.data=@T/data.jsonl --set eval.every=2 ",
        STAGES "--set lora.rank=3 --set resident=on ",
    };

    for (gsize i = RP_TEST_FEW ? G_N_ELEMENTS(kinds) - 1 : 0; i < G_N_ELEMENTS(kinds); i++) {
        g_autofree char *one =
            g_strconcat(kinds[i], "--set output=@T/one --set devices=host:1", NULL);
        g_autofree char *freely = g_strconcat(kinds[i], SLOW, "--set output=@T/free", NULL);
        g_autofree char *cut =
            g_strconcat(kinds[i], SLOW, "--set output=@T/cut --set checkpoint.every=2", NULL);
        g_autofree char *resumed = g_strconcat(cut, " --resume", NULL);

        rp_train_files_train(one);
        rp_train_files_train(freely);
        rp_train_files_train(cut);
        rp_cli_must_shell("rm -r @T/cut/checkpoint-4");

        rp_train_files_train(resumed);
        rp_cli_must_shell(
            "cd @T; for file in $(cd one/checkpoint-4 && ls *.safetensors); do for run in "
            "free cut; do cmp one/checkpoint-4/$file $run/checkpoint-4/$file || exit 1; "
            "done; done");

        rp_cli_must_shell("rm -r @T/one @T/free @T/cut");
    }
}

RP_TEST(the_plan_of_a_run_knows_of_slow_devices)
{
#define DRY                                                                                        \
    "train @T/run.yaml --dry-run --json --set devices=host:2 --set micro_batches=8 "               \
    "--set round=2 --set profile=@T/times.json "
    g_auto(RpCliRun) alike = rp_cli_run(DRY);
    g_auto(RpCliRun) turns = rp_cli_run(DRY "--set host_slow=1=3");
    g_autoptr(RpTree) free_root = rp_cli_run_json(DRY "--set host_slow=1=3 --set dispatch=free");
    g_autoptr(RpTree) alike_root = rp_cli_json(&alike), turns_root = rp_cli_json(&turns);
    const double alike_ms = rp_cli_number(alike_root, "predicted.step_ms");
    const double turns_ms = rp_cli_number(turns_root, "predicted.step_ms");
    const double free_ms = rp_cli_number(free_root, "predicted.step_ms");
    rp_cli_must_refuse_all("mixed-cards: the plan of a run knows of slow devices");
#undef DRY

    assert_true(turns_ms > 2 * alike_ms);
    assert_true(free_ms < 0.8 * turns_ms);
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
