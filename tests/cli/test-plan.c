/* `roundpipe plan` as a newcomer meets it: its first sentence, its remedies, its refusals. */
#include <math.h>

#include "tests/cli/train-files.h"

#define ONLY " --schedules roundpipe"

static void
assert_says(const RpCliRun *run, int code, const char *const *parts)
{
    if (run->code != code)
        fail_msg("exit code %d, expected %d: %s%s", run->code, code, run->err, run->out);
    for (; *parts != NULL; parts++)
        if (strstr(run->out, *parts) == NULL && strstr(run->err, *parts) == NULL)
            fail_msg("expected \"%s\", found: %s%s", *parts, run->err, run->out);
}

#define SAYS(run, code, ...) assert_says(run, code, (const char *const[]){__VA_ARGS__, NULL})

RP_TEST(one_sentence_answers_first)
{
    g_auto(RpCliRun) run = rp_cli_run("plan --model Qwen/Qwen3-0.6B --gpu rtx4090 --gpus 4 "
                                      "--host-memory 256 --tokens 100M" ONLY);

    SAYS(&run, 0, " GiB a card, ", " of 256 GiB of host memory.\n",
         " hours for 100,000,000 tokens, ", "checkpoint.keep", "PCIe 25 GB/s", "AdamW on the host",
         "derived from", "taken as --sequence 2048 --batch 64");
    assert_true(g_str_has_prefix(run.out, "Yes: "));
    assert_non_null(strstr(run.out, " tokens/s, "));
    assert_true(strchr(run.out, '\n') > strstr(run.out, "host memory."));
}

RP_TEST(says_that_the_h200_was_measured)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
    g_autoptr(RpTree) plan = rp_cli_run_json("plan --model qwen3-1.7b --gpu h200 --batch 64 "
                                             "--micro-batch 8 --json" ONLY);
    double tokens = rp_cli_number(plan, "recommendation.tokens_per_s");

    assert_true(rp_cli_member(plan, "times_measured")->number);
    /* docs/measurements.md: 49,379 */
    if (ABS(tokens / 49379 - 1) > 0.03)
        fail_msg("%.0f tokens/s, measured 49,379", tokens);
}

/* bf16 with fp8 whose sums have fewer bits, as `train` takes it; and what is not counted of a data sheet. */
RP_TEST(takes_the_arithmetic_that_train_takes)
{
    g_auto(RpCliRun) text =
        rp_cli_run("plan --model qwen3-0.6b --gpu rtx4090 --batch 16 --dtype bf16 "
                   "--matmul fp8 --accumulate fp16" ONLY);
    g_auto(RpCliRun) adapters =
        rp_cli_run("plan --model qwen3-0.6b --gpu rtx4090 --batch 16 --dtype fp16 --matmul fp8 "
                   "--accumulate fp16 --lora-rank 8" ONLY);
    rp_cli_must_refuse("plan --model qwen3-0.6b --gpu rtx4090 --batch 16 "
                       "--accumulate fp16" ONLY,
                       2, "accumulate: expected fp32 with dtype bf16");

    g_auto(RpCliRun) times =
        rp_cli_run("export --profile qwen3-0.6b --gpu rtx4090 -o - --dtype bf16 "
                   "--matmul fp8 --accumulate fp16");

    assert_int_equal(times.code, 0);
    assert_non_null(strstr(times.out, "\"accumulate\": \"fp16\""));
    assert_int_equal(text.code, 0);
    assert_non_null(strstr(text.out, "bf16 with fp32 sums"));
    assert_non_null(strstr(text.out, "the card's 330 TFLOP/s with fp32 sums"));
    assert_non_null(strstr(text.out, "the data sheet has 660"));
    assert_null(strstr(text.out, "it is faster"));
    assert_int_equal(adapters.code, 0);
    assert_non_null(strstr(adapters.out, "without `matmul: fp8` it is faster"));
}

/* The plan is the same, its times are others. */
RP_TEST(gives_a_range_where_nobody_has_measured)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
    g_auto(RpCliRun) run =
        rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --batch 64 --json" ONLY);
    g_auto(RpCliRun) text = rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --batch 64" ONLY);
    g_auto(RpCliRun) half = rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --batch 64 --json "
                                       "--dtype fp16 --accumulate fp16" ONLY);
    g_autoptr(RpTree) plan = rp_cli_json(&run), fp16 = rp_cli_json(&half);
    const double expected = rp_cli_number(plan, "recommendation.tokens_per_s");
    const double slow = rp_cli_number(plan, "tokens_per_s_slow");
    const double fast = rp_cli_number(plan, "tokens_per_s_fast");

    assert_true(0.85 * expected < slow && slow < expected);
    assert_true(expected < fast && fast < 1.15 * expected);
    assert_true(rp_cli_number(fp16, "tokens_per_s_slow") > expected);

    /* of the plan that is recommended, whose forwards save something */
    g_autoptr(RpTree) saved = rp_cli_run_json("plan --model qwen3-8b --gpu rtx4090 --gpus 4 "
                                              "--sequence 4096 --batch 64 --host-memory 400GB "
                                              "--json" ONLY);
    const double saving = rp_cli_number(saved, "recommendation.tokens_per_s");

    assert_true(rp_cli_number(saved, "recommendation.saved_bytes") > 0);
    assert_string_equal(rp_cli_member(saved, "unknowns.0.key")->text, "times");
    assert_true(rp_cli_number(saved, "unknowns.0.tokens_per_s_slow") > 0.9 * saving);
    assert_true(rp_cli_number(saved, "tokens_per_s_fast") >= saving);
    SAYS(&text, 0, " tokens/s: `roundpipe profile` on the machine settles the times of layers");
}

RP_TEST(plans_matmuls_in_fp8)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
    g_auto(RpCliRun) text =
        rp_cli_run("plan --model qwen3-0.6b --gpu rtx4090 --batch 64 --matmul fp8" ONLY);

    rp_cli_must_refuse_all("plan: plans matmuls in fp8");
    SAYS(&text, 0, "matmuls of blocks in fp8: `matmul: fp8` in the run file");
}

RP_TEST(packed_samples_take_less)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
    g_auto(RpCliRun) whole =
        rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --batch 64 --json" ONLY);
    g_auto(RpCliRun) packed =
        rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --batch 64 --packed 700 --json" ONLY);
    g_auto(RpCliRun) text =
        rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --batch 64 --packed 700" ONLY);
    rp_cli_must_refuse("plan --model qwen3-1.7b --gpu rtx4090 --sequence 512 --packed 513", 2,
                       "--packed: expected at most 512, the sequence, found 513");
    g_autoptr(RpTree) a = rp_cli_json(&whole), b = rp_cli_json(&packed);

    assert_true(rp_cli_number(b, "recommendation.tokens_per_s") >
                1.01 * rp_cli_number(a, "recommendation.tokens_per_s"));
    SAYS(&text, 0, "samples share them: attention as of samples of 700 tokens");
}

RP_TEST(gpus_says_of_each_whether_it_was_measured)
{
    g_auto(RpCliRun) run = rp_cli_run("gpus");

    SAYS(&run, 0, "measured with this project's kernels",
         "derived from this project's kernels on an H200, by the card's own rates",
         "derived from the H200's");
}

RP_TEST(all_that_is_missing_is_told_at_once)
{
    g_auto(RpCliRun) both = rp_cli_run("plan --gpus 4");
    rp_cli_must_refuse("plan --model qwen3-8b", 2, "--gpu: expected a name");
    g_auto(RpCliRun) model = rp_cli_run("plan --gpu rtx4090");

    SAYS(&both, 2, "--model and --gpu: expected names", "roundpipe models", "roundpipe gpus");
    SAYS(&model, 2, "--model: expected a name", "config.json");
}

RP_TEST(a_number_alone_is_in_gib)
{
    static const struct {
        const char *word;
        double bytes; /* 0: refused */
    } rows[] = {
        {"256", 256.0 * (1 << 30)},
        {"0.5", 0.5 * (1 << 30)},
        {"256GiB", 256.0 * (1 << 30)},
        {"256GB", 256e9},
        {"1048576B", 1048576},
        {"256g", 256.0 * (1 << 30)},
        {"256000000000", 0},
        {"0", 0},
        {"-5", 0},
        {"256GX", 0},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_auto(RpCliRun) run = rp_cli_run("plan @T/model --gpu rtx4090 --batch 2 "
                                          "--host-memory=%s --json" ONLY,
                                          rows[i].word);

        if (rows[i].bytes == 0) {
            SAYS(&run, 2, "--host-memory: ", rows[i].word);
            continue;
        }
        g_autoptr(RpTree) plan = rp_tree_parse(run.out);
        assert_non_null(plan);
        assert_true(rp_cli_number(plan, "host_memory_bytes") == rows[i].bytes);
    }
}

RP_TEST(a_model_has_a_name_a_directory_or_a_config)
{
    static const char *const same[][2] = {
        {"--model qwen3-0.6b", "--model unsloth/Qwen3-0.6B"},
        {"--model @T/model", "--model @T/model/config.json"},
        {"@T/model", "@T/model/config.json"},
        {"--model qwen3-0.6b", "qwen3-0.6b"},
        {"--model Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B --dtype bfloat16"},
        {"--model qwen3-0.6b --host-memory 64", "qwen3-0.6b --host-memory '64 GiB'"},
        {"--model qwen3-0.6b --host-memory 64", "qwen3-0.6b --host-memory 64G"},
    };

    for (guint i = RP_TEST_FEW ? 1 : 0; i < G_N_ELEMENTS(same); i++) {
        g_auto(RpCliRun) one =
            rp_cli_run("plan %s --gpu rtx4090 --gpus 2 --dtype bf16 --json" ONLY, same[i][0]);
        g_auto(RpCliRun) other =
            rp_cli_run("plan %s --gpu 4090 --gpus 2 %s --json" ONLY, same[i][1],
                       strstr(same[i][1], "--dtype") != NULL ? "" : "--dtype bf16");

        assert_int_equal(one.code, 0);
        assert_string_equal(one.out, other.out);
    }
    rp_cli_must_refuse_all("plan: a model has a name a directory or a config");
}

/* Options of a remedy go behind the command as they stand: the last one of a name counts. */
RP_TEST(every_remedy_can_be_typed_and_helps)
{
    static const char *const commands[] = {
        "plan --model qwen3-8b --gpu rtx4090 --gpus 4 --host-memory 144 --sequence 80000 --batch 8",
        "plan --model qwen3-8b --gpu rtx4090 --gpus 4 --host-memory 135 --batch 8",
        "plan --model qwen3-8b --gpu rtx4090 --gpus 4 --host-memory 110 --batch 8 --sync",
        "plan --model qwen3-1.7b --gpu rtx4090 --gpus 2 --sequence 200000 --batch 8 "
        "--micro-batch 4 --optimizer lean",
    };

    for (guint i = 0; i < G_N_ELEMENTS(commands); i += RP_TEST_EVERY(1, 2)) {
        g_auto(RpCliRun) run = rp_cli_run("%s --json" ONLY, commands[i]);
        g_autoptr(RpTree) plan = rp_tree_parse(run.out);
        const RpTree *remedies = rp_cli_member(plan, "remedies");

        assert_false(rp_cli_member(plan, "fits")->number);
        assert_true(remedies->items->len > 0);
        for (guint j = 0; j < remedies->items->len; j++) {
            const char *change = rp_tree_find(rp_tree_nth(remedies, j), "change")->text;
            g_autoptr(RpTree) fixed_plan =
                rp_cli_run_json("%s %s --json" ONLY, commands[i], change);

            if (!rp_cli_member(fixed_plan, "fits")->number)
                fail_msg("%s %s does not fit", commands[i], change);
            if ((strstr(change, "--sync") != NULL && strstr(commands[i], "--sync") != NULL) ||
                (strstr(change, "lean") != NULL && strstr(commands[i], "lean") != NULL))
                fail_msg("%s: %s", commands[i], change);
        }
    }
}

/* The fastest first; adapters behind all that train every weight. */
RP_TEST(remedies_have_their_speed)
{
    g_auto(RpCliRun) run = rp_cli_run("plan --model llama-3.1-8b --gpu rtx3090 --gpus 2 "
                                      "--host-memory 64 --json" ONLY);
    g_autoptr(RpTree) plan = rp_tree_parse(run.out);
    const RpTree *remedies = rp_cli_member(plan, "remedies");
    g_autoptr(GString) changes = g_string_new(NULL);
    gboolean adapters = FALSE;
    double before = G_MAXDOUBLE;

    for (guint i = 0; i < remedies->items->len; i++) {
        const RpTree *remedy = rp_tree_nth(remedies, i);
        const char *change = rp_tree_find(remedy, "change")->text;
        const double speed = rp_tree_find(remedy, "tokens_per_s")->number;

        if (strstr(change, "--lora-rank") == NULL) {
            assert_false(adapters);
            assert_true(speed > 0 && speed <= before);
            before = speed;
        } else {
            adapters = TRUE;
            assert_true(speed > 3500);
        }
        g_string_append_printf(changes, "%s|", change);
    }
    assert_non_null(strstr(changes->str, "--optimizer-state int8 --optimizer-master bf16 --sync|"));
    assert_non_null(strstr(changes->str, "--host-memory 141GiB|"));
    assert_non_null(strstr(changes->str, "|--lora-rank 16|--lora-rank 16 --base nf4|"));
}

RP_TEST(remedies_are_combined_where_one_does_not_do)
{
    g_auto(RpCliRun) run = rp_cli_run("plan --model qwen3-8b --gpu rtx4090 --gpus 4 "
                                      "--host-memory 136 --sequence 80000 --batch 8" ONLY);

    SAYS(&run, 1, "No: ", "would fit with one of these",
         "--optimizer-state int8 --optimizer-master bf16 --sync ", "--lora-rank 16 ");
}

RP_TEST(what_fits_in_another_way_is_a_yes)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
    g_auto(RpCliRun) sync = rp_cli_run("plan --model qwen3-8b --gpu rtx4090 --gpus 4 "
                                       "--host-memory 135 --batch 16" ONLY);
    g_auto(RpCliRun) bound = rp_cli_run("plan --model qwen3-8b --gpu rtx4090 --gpus 4 "
                                        "--host-memory 135 --batch 128 --round 128 --sync "
                                        "--schedules 1f1b,roundpipe");

    SAYS(&sync, 0, "Yes, with --sync: ", "GiB of host memory are missing",
         "RoundPipe as asked would fit with", "--optimizer lean");
    SAYS(&bound, 0, "Yes, with schedule 1f1b: ");
}

RP_TEST(adapters_are_predicted_as_train_runs_them)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
    g_auto(RpCliRun) run = rp_cli_run("plan --model qwen3-8b --gpu rtx4090 --gpus 4 "
                                      "--host-memory 64 --lora-rank 32" ONLY);

    g_auto(RpCliRun) experts = rp_cli_run("plan --model qwen3-30b-a3b --gpu rtx4090 --gpus 4 "
                                          "--recompute full --lora-rank 32" ONLY);
    rp_cli_must_refuse("plan --model qwen3-8b --gpu rtx4090 --lora-rank 5000", 2,
                       "--lora-rank: expected at most 1024");

    SAYS(&run, 0, "Yes: ", "LoRA of rank 32");
    assert_null(strstr(run.out, "`roundpipe train` has no"));
    SAYS(&experts, 0, "Yes: ", "LoRA of rank 32");
    assert_null(strstr(experts.out, "`roundpipe train` has no"));
}

RP_TEST(a_packed_base_takes_a_quarter_of_the_host)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
#define PLAN                                                                                       \
    "plan --model qwen3-235b-a22b --gpu rtx4090 --gpus 8 --batch 64 --recompute full --lora-rank " \
    "32"
#define ATTENTION " --lora-targets q_proj,k_proj,v_proj,o_proj"
    g_autoptr(RpTree) before = rp_cli_run_json(PLAN ATTENTION " --json" ONLY);
    g_autoptr(RpTree) after = rp_cli_run_json(PLAN ATTENTION " --base nf4 --json" ONLY);
    g_auto(RpCliRun) text = rp_cli_run(PLAN " --base nf4 --lora-targets q_proj,v_proj" ONLY);
#undef ATTENTION
#undef PLAN
    rp_cli_must_refuse_all("plan: a packed base takes a quarter of the host");

    assert_string_equal(rp_cli_member(after, "base")->text, "nf4");
    /* 470 GB and 121 GB of weights, and stashes of about the same */
    const double saved =
        rp_cli_number(before, "host.parameters") - rp_cli_number(after, "host.parameters");

    assert_true(saved > 345e9 && saved < 352e9);
    assert_true(rp_cli_number(after, "recommendation.tokens_per_s") >
                rp_cli_number(before, "recommendation.tokens_per_s"));
    SAYS(&text, 0, "Yes: ", "frozen weights in nf4");
}

/* At long sequences attention's output first; where memory of the host is short, in less of it. */
RP_TEST(forwards_save_what_is_faster)
{
#define PLAN                                                                                       \
    "plan --model qwen3-1.7b --gpu rtx4090 --gpus 4 --sequence 32768 --batch 32 "                  \
    "--schedules roundpipe --json "
    g_autoptr(RpTree) best = rp_cli_run_json(PLAN "--host-memory 512");

    assert_true(rp_cli_number(best, "recommendation.saved_bytes") > 3e9);
    if (RP_TEST_FEW) /* the rest is of values alone: others run the same */
        return;
    g_auto(RpCliRun) full = rp_cli_run(PLAN "--host-memory 512 --recompute full");
    g_autoptr(RpTree) attention = rp_cli_run_json(PLAN "--host-memory 512 --recompute selective");
    g_autoptr(RpTree) less = rp_cli_run_json(PLAN "--host-memory 100");
#undef PLAN
    g_auto(RpCliRun) shorter =
        rp_cli_run("plan --model qwen3-8b --gpu rtx4090 --gpus 4 --host-memory 256 --json" ONLY);
    g_autoptr(RpTree) recomputed = rp_cli_json(&full);
    const double tokens_per_s = rp_cli_number(recomputed, "recommendation.tokens_per_s");

    assert_true(rp_cli_number(best, "recommendation.tokens_per_s") > 1.05 * tokens_per_s);
    /* in one group, and searched for less long */
    assert_float_equal(rp_cli_number(best, "recommendation.recomputed_tokens_per_s") /
                           rp_cli_number(recomputed, "recommendation.one_group_tokens_per_s"),
                       1, 0.02);
    assert_true(rp_cli_number(best, "host.stash") >
                rp_cli_number(recomputed, "host.stash") +
                    4 * rp_cli_number(best, "recommendation.saved_bytes"));
    /* 2 a d + 4 a bytes of a token, of 28 layers at most */
    assert_true(rp_cli_number(attention, "recommendation.saved_bytes") <=
                rp_cli_number(attention, "recommendation.micro_batch") * 28 * 32768 *
                    (2 * 2048 + 4 * 16));
    assert_true(rp_cli_number(less, "recommendation.host_peak_bytes") <= 100 * 0x1p30);
    assert_null(strstr(full.out, "saved_bytes"));
    assert_non_null(strstr(shorter.out, "saved_bytes"));
}

/* README's question: 10,298 tokens/s are within reach, and what a little more host memory brings is said. */
RP_TEST(a_faster_plan_that_was_not_taken_is_named)
{
    g_autoptr(RpTree) root = rp_cli_run_json("plan --model qwen3-4b --gpu rtx4090 --gpus 2 "
                                             "--host-memory 128 --schedules roundpipe --json");
    g_auto(RpCliRun) text = rp_cli_run("plan --model qwen3-4b --gpu rtx4090 --gpus 2 "
                                       "--host-memory 128 --schedules roundpipe");
    const double chosen = rp_cli_number(root, "recommendation.tokens_per_s");
    const double faster = rp_cli_number(root, "faster.tokens_per_s");

    assert_true(chosen > 9370);
    assert_true(faster > chosen && 0.99 * faster <= chosen);
    assert_true(rp_cli_number(root, "faster.host_peak_bytes") >
                rp_cli_number(root, "recommendation.host_peak_bytes"));
    assert_non_null(strstr(text.out, "\n  faster     "));
    assert_non_null(strstr(text.out, " GiB of host memory\n"));
}

/* The whole model as one stage, which has no room with two slots for it. */
RP_TEST(frozen_weights_stay_where_that_is_faster)
{
#define PLAN "plan --model qwen3-8b --gpu rtx4090 --lora-rank 16"
    g_auto(RpCliRun) text = rp_cli_run(PLAN ONLY);

    SAYS(&text, 0, "of frozen weights a card, uploaded once; ", "with uploads in each round");
    if (RP_TEST_FEW) /* the rest is of values alone: others run the same */
        return;
    g_autoptr(RpTree) with = rp_cli_run_json(PLAN " --json" ONLY);
    g_auto(RpCliRun) streamed = rp_cli_run(PLAN " --resident off --json" ONLY);
#undef PLAN
    g_auto(RpCliRun) trained = rp_cli_run("plan --model qwen3-4b --gpu rtx4090 --json" ONLY);
    g_autoptr(RpTree) without = rp_cli_json(&streamed);
    const double tokens_per_s = rp_cli_number(without, "recommendation.tokens_per_s");

    assert_true(rp_cli_number(with, "recommendation.tokens_per_s") > 1.05 * tokens_per_s);
    /* plans within 1 % of each other are chosen for their memory */
    assert_true(fabs(rp_cli_number(with, "recommendation.streamed_tokens_per_s") - tokens_per_s) <=
                0.01 * tokens_per_s);
    assert_true(rp_cli_number(with, "recommendation.resident_bytes") > 16e9);
    assert_true(rp_cli_number(with, "gpu.total") <= rp_cli_number(with, "gpu.limit"));
    assert_null(strstr(streamed.out, "resident"));
    assert_null(strstr(trained.out, "resident"));
}

/* The same of `simulate`, and of bound stages; without transfers there is nothing to stay. */
RP_TEST(simulate_says_what_stays)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
#define SIMULATE "simulate @T/lora.json --gpus 2 --micro-batches 8 --schedule "
#define FULL " --fidelity full --async --recompute full --json"
    rp_cli_must_run(
        "export --profile qwen3-4b --lora-rank 16 --gpu rtx4090 --gpus 2 -o @T/lora.json");
    g_autoptr(RpTree) with = rp_cli_run_json(SIMULATE "roundpipe" FULL);
    g_auto(RpCliRun) streamed = rp_cli_run(SIMULATE "roundpipe --resident off" FULL);
    g_autoptr(RpTree) stages =
        rp_cli_run_json(SIMULATE "1f1b --resident on --fidelity full --json");
    rp_cli_must_refuse(SIMULATE "roundpipe --resident on", 2,
                       "--resident: compute fidelity uploads no weights");
#undef SIMULATE
#undef FULL
    g_autoptr(RpTree) without = rp_cli_json(&streamed);

    assert_true(rp_cli_number(with, "resident_bytes") > 8e9);
    assert_true(rp_cli_number(with, "iteration_ms") <=
                rp_cli_number(with, "streamed_iteration_ms"));
    assert_true(rp_cli_number(with, "tokens_per_s") >= rp_cli_number(without, "tokens_per_s"));
    assert_true(rp_cli_number(stages, "resident_bytes") > 4e9);
    assert_null(strstr(streamed.out, "resident"));
}

RP_TEST(draws_of_measured_times_give_a_deviation)
{
#define DRAWN "plan --profile @R/profiles/h200/qwen3-1.7b-8x2048.json --gpus 4 --draws 20"
    g_auto(RpCliRun) once = rp_cli_run(DRAWN " --seed 3 --json" ONLY);
    g_auto(RpCliRun) again = rp_cli_run(DRAWN " --seed 3 --json" ONLY);
    g_auto(RpCliRun) text = rp_cli_run(DRAWN ONLY);
#undef DRAWN
    rp_cli_must_refuse("plan --model qwen3-8b --gpu rtx4090 --draws 4", 2,
                       "--draws: expected --profile with a timing file");
    g_autoptr(RpTree) root = rp_cli_json(&once);
    const double step_ms = rp_cli_number(root, "recommendation.step_ms");
    const double mean_ms = rp_cli_number(root, "drawn.step_ms.mean");

    assert_string_equal(once.out, again.out);
    assert_true(mean_ms > 0.99 * step_ms && mean_ms < 1.03 * step_ms);
    assert_true(rp_cli_number(root, "drawn.step_ms.deviation") > 0);
    SAYS(&text, 0, "drawn step", "deviation ");
}

RP_TEST(the_cause_of_waiting_is_told)
{
    g_auto(RpCliRun) run = rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --gpus 4 "
                                      "--sequence 512 --batch 8" ONLY);

    SAYS(&run, 0, "of the time for the optimizer on the host", "about --batch ", "would hide");
}

RP_TEST(groups_of_cards_are_proposed_with_what_they_gain)
{
    g_auto(RpCliRun) run = rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --gpus 8 --batch 64 "
                                      "--sync -o @T/groups.yaml" ONLY);
    g_autofree char *file = rp_cli_read("groups.yaml");

    SAYS(&run, 0, "2 groups of 4 cards, which take rounds in turn; ", " tokens/s in one group");
    assert_non_null(strstr(file, "\nreplicas: 2\n"));
    if (RP_TEST_FEW) /* the rest is of values alone: others run the same */
        return;
    g_auto(RpCliRun) json = rp_cli_run("plan --model qwen3-1.7b --gpu rtx4090 --gpus 8 --batch 64 "
                                       "--sync --json" ONLY);

    SAYS(&json, 0, "\"replicas\": 2", "\"one_group_tokens_per_s\": ");
}

RP_TEST(a_batch_that_does_not_divide_is_rounded_and_said_to_be)
{
    g_auto(RpCliRun) run = rp_cli_run("plan --model qwen3-0.6b --gpu rtx4090 --gpus 4 "
                                      "--sequence 512 --batch 211" ONLY);

    SAYS(&run, 0, "212 sequences of 512 tokens", "not 211, which divides into one round");
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
