/* Output of `roundpipe`: the contract of --json, published results, files there and back. */
#include "tests/cli/run-cli.h"

#include <glib/gstdio.h>
#include <math.h>

/* ---- simulate ---- */

RP_TEST(prints_every_key_of_the_contract)
{
    static const char *const keys[] = {
        "schedule",        "gpus",         "micro_batches", "forward_stages",
        "backward_stages", "makespan_ms",  "bubble_ratio",  "bubble.fill",
        "bubble.switch",   "bubble.drain", "bubble.intra",  "comm_exposed_ratio",
        "tasks",
    };
    g_auto(RpCliRun) run =
        rp_cli_run("simulate @Q --schedule 1f1b --gpus 8 --micro-batches 16 --json");
    g_autoptr(RpTree) root = rp_cli_json(&run);

    for (gsize i = 0; i < G_N_ELEMENTS(keys); i++)
        assert_non_null(rp_cli_member(root, keys[i]));
    assert_string_equal(rp_cli_member(root, "schedule")->text, "1f1b");
    assert_int_equal(rp_cli_number(root, "gpus"), 8);
    assert_int_equal(rp_cli_number(root, "micro_batches"), 16);
    assert_int_equal(rp_cli_number(root, "tasks"), 2 * 8 * 16);
    assert_string_equal(run.err, "");
}

RP_TEST(prints_the_given_stage_lists)
{
    g_autoptr(RpTree) bound_root =
        rp_cli_run_json("simulate @Q --schedule 1f1b --gpus 8 --micro-batches 16 "
                        "--stages 3,3,4*5,2 --json");
    g_autofree char *stages = rp_cli_list(bound_root, "forward_stages");
    g_autoptr(RpTree) root =
        rp_cli_run_json("simulate @Q --schedule roundpipe --gpus 8 --micro-batches "
                        "16 --round 8 --forward-stages 7*4 --backward-stages "
                        "0,3*8,2*2 --json");
    g_autofree char *forward = rp_cli_list(root, "forward_stages");
    g_autofree char *backward = rp_cli_list(root, "backward_stages");

    assert_string_equal(stages, "3,3,4,4,4,4,4,2");
    assert_string_equal(forward, "7,7,7,7");
    assert_string_equal(backward, "0,3,3,3,3,3,3,3,3,2,2");
}

/* In every mode the parts add up to the ratio. */
RP_TEST(divides_the_bubble_ratio_into_its_parts)
{
    static const char *const modes[] = {
        "--schedule 1f1b",
        "--schedule zb-v --published",
        "--schedule roundpipe",
        "--schedule roundpipe --iterations 3",
        "--schedule roundpipe --async",
        "--schedule roundpipe --async --iterations 1",
        "--schedule roundpipe --async --iterations 3",
        "--schedule looped-bfs --async",
        "--schedule roundpipe --fidelity full",
        "--schedule roundpipe --fidelity full --async",
    };

    for (gsize i = 0; i < G_N_ELEMENTS(modes); i++) {
        g_autoptr(RpTree) root =
            rp_cli_run_json("simulate @Q --gpus 8 --micro-batches 16 --json %s", modes[i]);
        double sum = rp_cli_number(root, "bubble.fill") + rp_cli_number(root, "bubble.switch") +
                     rp_cli_number(root, "bubble.drain") + rp_cli_number(root, "bubble.intra");

        if (fabs(sum - rp_cli_number(root, "bubble_ratio")) > 1e-8)
            fail_msg("%s: the parts add up to %.9f", modes[i], sum);
        assert_true(rp_cli_number(root, "comm_exposed_ratio") <= sum + 1e-8);
    }
}

RP_TEST(has_neither_fill_nor_drain_in_steady_state)
{
    g_autoptr(RpTree) root = rp_cli_run_json(
        "simulate @Q --schedule roundpipe --gpus 8 --micro-batches 16 --round 8 "
        "--forward-stages 7*4 --backward-stages 0,3*8,2*2 --async --published --json");

    assert_true(rp_cli_member(root, "steady_state")->number);
    assert_true(rp_cli_number(root, "bubble.fill") == 0);
    assert_true(rp_cli_number(root, "bubble.drain") == 0);
    assert_true(rp_cli_number(root, "bubble_ratio") < 0.06);
    /* published: switch + intra of one isolated iteration */
    assert_true(fabs(rp_cli_number(root, "isolated.switch_intra_ratio") - 0.040495) < 5e-6);
    assert_true(fabs(rp_cli_number(root, "isolated.bubble_ratio") - 0.190676) < 5e-6);
}

RP_TEST(reports_one_asynchronous_iteration_as_an_isolated_one)
{
    g_autoptr(RpTree) one = rp_cli_run_json(
        "simulate @Q --schedule roundpipe --gpus 8 --micro-batches 16 --round 8 "
        "--forward-stages 7*4 --backward-stages 0,3*8,2*2 --async --iterations 1 --json");
    g_autoptr(RpTree) other =
        rp_cli_run_json("simulate @Q --schedule roundpipe --gpus 8 --micro-batches 16 --round 8 "
                        "--forward-stages 7*4 --backward-stages 0,3*8,2*2 --json");

    assert_false(rp_cli_member(one, "steady_state")->number);
    assert_true(rp_cli_number(one, "bubble_ratio") == rp_cli_number(other, "bubble_ratio"));
    assert_true(rp_cli_number(one, "bubble.drain") == rp_cli_number(other, "bubble.drain"));
    assert_true(rp_cli_number(one, "isolated.bubble_ratio") ==
                rp_cli_number(other, "bubble_ratio"));
}

RP_TEST(prints_the_same_bytes_twice)
{
    static const char *const lines[] = {
        "simulate @Q --schedule roundpipe --gpus 8 --micro-batches 16 --async --fidelity full "
        "--json",
        "simulate @Q --schedule interleaved-zb --gpus 8 --micro-batches 16",
        "export @Q --schedule zb-v --gpus 4 --micro-batches 8 --fidelity full --chrome -",
        "export --profile qwen3-4b --gpu h200 -o -",
        "compare @Q @R/profiles/rtx4090/llama-3.1-8b.json --schedules 1f1b,roundpipe --json",
    };
    /* every access is seen once, and compare's in another test */
    const gsize n_lines = G_N_ELEMENTS(lines) - (RP_TEST_FEW ? 1 : 0);

    for (gsize i = 0; i < n_lines; i++) {
        g_auto(RpCliRun) first = rp_cli_run("%s", lines[i]);

        assert_int_equal(first.code, 0);
        if (RP_TEST_FEW)
            continue;
        g_auto(RpCliRun) second = rp_cli_run("%s", lines[i]);
        assert_string_equal(first.out, second.out);
    }
}

/* The bubble's parts under their keys; tests/sim/test-published.c has all rows. */
RP_TEST(reproduces_a_published_row)
{
    static const struct {
        const char *key;
        double percent;
    } parts[] = {{"bubble_ratio", 19.0676}, {"bubble.fill", 7.5105},
                 {"bubble.switch", 0},      {"bubble.drain", 7.5075},
                 {"bubble.intra", 4.0495},  {"comm_exposed_ratio", 0.2625}};
    g_autoptr(RpTree) root =
        rp_cli_run_json("simulate @Q --schedule roundpipe --gpus 8 --micro-batches 16 --published "
                        "--round 8 --forward-stages 7*4 --backward-stages 0,3*8,2*2 --json");

    assert_float_equal(rp_cli_number(root, "makespan_ms"), 2286.0170, 0.001);
    for (gsize i = 0; i < G_N_ELEMENTS(parts); i++)
        assert_float_equal(100 * rp_cli_number(root, parts[i].key), parts[i].percent, 0.0005);
}

/* ---- the other commands ---- */

RP_TEST(lists_the_catalogue)
{
    g_autoptr(RpTree) model_root = rp_cli_run_json("models --json");
    g_autoptr(RpTree) gpu_root = rp_cli_run_json("gpus --json");
    g_auto(RpCliRun) table = rp_cli_run("models");

    assert_true(model_root->items->len >= 11);
    assert_true(gpu_root->items->len >= 7);
    assert_true(rp_cli_number(model_root, "0.parameters") > 4e8);
    assert_true(rp_cli_number(gpu_root, "0.memory_bytes") > 2e10);
    assert_non_null(strstr(table.out, "qwen3-235b-a22b"));
}

RP_TEST(compares_every_schedule_and_marks_the_best)
{
    if (RP_TEST_FEW) /* of values alone: others run the same */
        return;
    g_autoptr(RpTree) root = rp_cli_run_json("compare @Q --json");
    g_auto(RpCliRun) text = rp_cli_run("compare @Q --partition paper");
    const RpTree *array = rp_cli_member(root, "rows");
    guint fastest[2] = {0, 0}, n_roundpipe = 0, n_planned = 0;

    assert_true(array->items->len >= 14); /* roundpipe twice */
    for (guint i = 0; i < array->items->len; i++) {
        const RpTree *row = rp_tree_nth(array, i);

        /* none has more than others */
        assert_string_equal(rp_tree_find(row, "recompute")->text, "early");
        const RpTree *bytes = rp_tree_find(row, "gpu_peak_bytes");

        n_planned += bytes != NULL && bytes->number > 0;
        n_roundpipe += g_str_equal(rp_tree_find(row, "schedule")->text, "roundpipe");
        if (rp_tree_find(row, "fastest")->number == 1)
            fastest[rp_tree_find(row, "async")->number == 1]++;
    }
    assert_int_equal(n_roundpipe, 2);
    /* but of chimera, dualpipe and pipedream-2bw, which hold weights twice, and of slices */
    assert_int_equal(n_planned, array->items->len - 5);
    /* each group has its own */
    assert_int_equal(fastest[0], 1);
    assert_int_equal(fastest[1], 1);
    assert_non_null(strstr(text.out, "recompute early, fused forward physical, alike for all"));
    assert_non_null(strstr(text.out, "\nSynchronous\n"));
    assert_non_null(strstr(text.out, "\nAsynchronous: no flush"));
}

RP_TEST(compares_alike_and_says_what_fits)
{
    g_autoptr(RpTree) fits =
        rp_cli_run_json("compare llama-3.1-8b --schedules zb-v,roundpipe,zb-v-async --json");
    g_autoptr(RpTree) fair = rp_cli_run_json("compare @Q --schedules zb-v,roundpipe --json");
    g_autoptr(RpTree) paper =
        rp_cli_run_json("compare @Q --schedules zb-v,roundpipe --published --json");

    /* the zero-bubble schedule does not fit in 24 GB, so that it is not the best */
    assert_false(rp_cli_member(fits, "rows.0.fits_gpu_memory")->number);
    assert_true(rp_cli_member(fits, "rows.1.fits_gpu_memory")->number);
    assert_true(rp_cli_number(fits, "rows.0.gpu_peak_bytes") > 25e9);
    assert_true(rp_cli_member(fits, "rows.1.fastest")->number);
    assert_true(rp_cli_member(fits, "rows.2.async")->number);
    assert_string_equal(rp_cli_member(paper, "rows.0.recompute")->text, "gated");
    assert_true(rp_cli_number(paper, "rows.0.bubble_ratio") >
                rp_cli_number(fair, "rows.0.bubble_ratio"));
}

/* Every command simulates by one rule, and by the paper's with one flag. */
RP_TEST(every_command_has_one_convention)
{
    static const char *const schedules[] = {"1f1b", "roundpipe"};
    static const char *const rules[] = {"", "--published"};

    for (gsize i = 0; i < 4; i++) {
        g_autofree char *file = g_strdup_printf("convention-%u.csv", (guint)i);
        const char *schedule = schedules[i / 2], *rule = rules[i % 2];
        g_autoptr(RpTree) compared =
            rp_cli_run_json("compare @Q --schedules %s %s --json", schedule, rule);
        g_autofree char *words =
            g_strdup_printf("@Q --schedule %s --gpus 8 --micro-batches 16 %s", schedule, rule);
        g_autoptr(RpTree) simulated = rp_cli_run_json("simulate %s --json", words);
        g_autoptr(RpTree) replayed = rp_cli_run_json("replay %s --seconds 0.2 --json", words);
        rp_cli_must_run("verify %s", words);
        g_autoptr(RpTree) swept = rp_cli_run_json("sweep %s -o @T/%s --json", words, file);
        const double ratio = rp_cli_number(compared, "rows.0.bubble_ratio");

        assert_float_equal(rp_cli_number(simulated, "bubble_ratio"), ratio, 1e-9);
        assert_float_equal(rp_cli_number(replayed, "predicted.bubble_ratio"), ratio, 1e-9);
        assert_float_equal(g_ascii_strtod(rp_cli_member(swept, "rows.0.bubble_pct")->text, NULL),
                           100 * ratio, 1e-4);
    }
}

/* With its optimizer, as `plan` has it. */
RP_TEST(a_synchronous_step_is_that_of_plan)
{
    g_autoptr(RpTree) planned =
        rp_cli_run_json("plan --profile @Q --gpus 4 --micro-batches 16 --sync --json");
    g_autofree char *forward = rp_cli_list(planned, "recommendation.forward_stages");
    g_autofree char *backward = rp_cli_list(planned, "recommendation.backward_stages");
    g_autoptr(RpTree) simulated = rp_cli_run_json(
        "simulate @Q --schedule roundpipe --gpus 4 --micro-batches 16 --round %.0f --replicas %.0f "
        "--forward-stages %s --backward-stages %s --fidelity full --early-steps auto --json",
        rp_cli_number(planned, "recommendation.round"),
        rp_cli_number(planned, "recommendation.replicas"), forward, backward);

    assert_float_equal(rp_cli_number(simulated, "iteration_ms"),
                       rp_cli_number(planned, "recommendation.step_ms"), 1e-3);
    assert_float_equal(rp_cli_number(simulated, "bubble_ratio"),
                       rp_cli_number(planned, "recommendation.bubble_ratio"), 1e-6);
}

/* The textbook's (M + N - 1)(F + B), of a backward that makes nothing again: bubble (N - 1) / (M + N - 1). */
RP_TEST(bound_schedules_may_recompute_nothing)
{
    static const char *const fidelities[] = {"compute", "full"};
    static const char text[] =
        "{\"format\": \"roundpipe-profile/1\", \"model\": \"unit\", "
        "\"links\": {\"h2d_gb_per_s\": 1e6, \"d2h_gb_per_s\": 1e6}, \"layers\": ["
        "{\"kind\": \"block\", \"count\": 4, \"forward_ms\": 1, \"backward_ms\": 2, "
        "\"parameter_bytes\": 64, \"gradient_bytes\": 64, \"input_bytes\": 64, "
        "\"output_bytes\": 64, \"forward_workspace_bytes\": 64, "
        "\"backward_workspace_bytes\": 64, \"activation_bytes\": 4096}]}";

    g_autofree char *path = rp_cli_temporary("unit.json");

    rp_cli_write("unit.json", text);
    for (gsize i = 0; i < 2; i++) {
        g_autoptr(RpTree) root =
            rp_cli_run_json("simulate @T/unit.json --schedule 1f1b --gpus 4 "
                            "--micro-batches 8 --recompute none --fidelity %s --json",
                            fidelities[i]);

        assert_float_equal(rp_cli_number(root, "iteration_ms"), 33, 1e-9);
        assert_float_equal(rp_cli_number(root, "bubble_ratio"), 3.0 / 11, 1e-9);
        assert_string_equal(rp_cli_member(root, "recompute")->text, "none");
        if (i == 1) /* the first GPU holds those of four micro-batches */
            assert_true(rp_cli_number(root, "gpu_peak_bytes") >= 4 * 4096);
    }
    g_remove(path); /* other tests look for profiles there */
    rp_cli_must_run("verify @Q --schedule zb-v --gpus 4 --micro-batches 8 --recompute none");
    rp_cli_must_run("verify @Q --schedule dualpipe-v --gpus 4 --micro-batches 8 --recompute none");
    rp_cli_must_run("verify @Q --schedule mobius --gpus 4 --micro-batches 8 --recompute none");
}

RP_TEST(spreads_of_a_profile_give_a_range)
{
    g_autofree char *path = rp_cli_temporary("spread.json");

    assert_true(g_file_set_contents(
        path,
        "{\"format\":\"roundpipe-profile/1\",\"layers\":[{\"kind\":\"block\",\"forward_ms\":1,"
        "\"backward_ms\":2,\"recompute_ms\":1,\"forward_spread_ms\":0.1,"
        "\"recompute_spread_ms\":0.1,\"backward_spread_ms\":0.2}]}",
        -1, NULL));
    /* two micro-batches of 1 + 1 + 2 ms */
    g_autoptr(RpTree) root = rp_cli_run_json("simulate @T/spread.json --schedule gpipe --gpus 1 "
                                             "--micro-batches 2 --json");
    g_auto(RpCliRun) text =
        rp_cli_run("simulate @T/spread.json --schedule gpipe --gpus 1 --micro-batches 2");
    g_auto(RpCliRun) none = rp_cli_run("simulate @Q --schedule gpipe --gpus 1 --micro-batches 2");

    assert_int_equal(g_remove(path), 0); /* other tests look at every profile here */
    assert_true(fabs(rp_cli_number(root, "iteration_ms") - 8) < 1e-6);
    assert_true(fabs(rp_cli_number(root, "iteration_ms_range.least") - 7.2) < 1e-6);
    assert_true(fabs(rp_cli_number(root, "iteration_ms_range.most") - 8.8) < 1e-6);
    assert_non_null(strstr(text.out, "8.0000 ms, 7.2000 to 8.8000 with every layer"));
    assert_null(strstr(none.out, "with every layer"));
}

/* The tests of sim have what draws, slow GPUs and links, and free dispatch do to times. */
RP_TEST(draws_are_the_same_for_a_seed_and_of_no_effect_without_spreads)
{
    g_autofree char *path = rp_cli_temporary("drawn.json");

    rp_cli_write("drawn.json",
                 "{\"format\":\"roundpipe-profile/1\",\"layers\":[{\"kind\":\"block\",\"count\":4,"
                 "\"forward_ms\":1,\"backward_ms\":2,\"forward_spread_ms\":0.1,"
                 "\"recompute_spread_ms\":0.1,\"backward_spread_ms\":0.2}]}");
#define DRAWN "simulate @T/drawn.json --schedule 1f1b --gpus 2 --micro-batches 8 --json"
    g_auto(RpCliRun) once = rp_cli_run(DRAWN " --draws 40 --seed 7");
    g_auto(RpCliRun) again = rp_cli_run(DRAWN " --draws 40 --seed 7");
    g_auto(RpCliRun) other = rp_cli_run(DRAWN " --draws 40 --seed 8");
    g_auto(RpCliRun) undrawn = rp_cli_run(DRAWN);
    rp_cli_must_refuse_all("cli: draws are the same for a seed and of no effect without spreads");
    rp_cli_must_refuse_all(
        "cli: draws are the same for a seed and of no effect without spreads (2)");
    g_autoptr(RpTree) slow = rp_cli_run_json(DRAWN " --slow 1=1.5");
#undef DRAWN
#define TURNS "simulate @Q --schedule roundpipe --gpus 4 --micro-batches 8 --json --slow 1=1.5"
    g_auto(RpCliRun) turns = rp_cli_run(TURNS " --dispatch rotation");
    g_auto(RpCliRun) freely = rp_cli_run(TURNS " --dispatch free");
    g_autoptr(RpTree) link = rp_cli_run_json(TURNS ",link2=3");
    rp_cli_must_run(TURNS " --dispatch free --fidelity full");
#undef TURNS
#define PLAIN "simulate @Q --schedule 1f1b --gpus 2 --micro-batches 8 --json"
    g_autoptr(RpTree) noisy = rp_cli_run_json(PLAIN " --draws 40 --noise 0.2 --slow 0=1.25,1=1.5");
    g_auto(RpCliRun) none = rp_cli_run(PLAIN);
    g_auto(RpCliRun) none_drawn = rp_cli_run(PLAIN " --draws 40");
#undef PLAIN
    g_auto(RpCliRun) compared = rp_cli_run("compare @Q --schedules 1f1b --gpus 2 --micro-batches 8 "
                                           "--draws 10 --noise 0.1 --slow 0=1.5");
    g_autoptr(RpTree) root = rp_cli_json(&once);

    assert_int_equal(g_remove(path), 0); /* other tests look at every profile here */
    assert_string_equal(once.out, again.out);
    assert_string_not_equal(once.out, other.out);
    assert_null(strstr(undrawn.out, "drawn"));
    assert_string_equal(none.out, none_drawn.out);
    assert_non_null(strstr(none_drawn.err, "have no spread"));
    assert_true(rp_cli_number(slow, "slow.1") == 1.5);
    assert_true(rp_cli_number(link, "slow.link2") == 3);
    assert_null(strstr(turns.out, "dispatch"));
    assert_non_null(strstr(freely.out, "\"dispatch\": \"free\""));
    assert_true(rp_cli_number(noisy, "slow.0") == 1.25);
    assert_true(rp_cli_number(noisy, "drawn.iteration_ms.p5") <
                rp_cli_number(noisy, "drawn.iteration_ms.p50"));
    assert_true(rp_cli_number(noisy, "drawn.bubble_ratio.p95") >
                rp_cli_number(noisy, "drawn.bubble_ratio.p50"));
    assert_non_null(strstr(compared.out, "p95 ms"));
    assert_true(rp_cli_number(root, "drawn.makespan_ms.p10") <
                rp_cli_number(root, "drawn.makespan_ms.mean"));
    assert_true(rp_cli_number(root, "drawn.makespan_ms.deviation") > 0);
}

RP_TEST(compares_on_when_a_schedule_cannot_run)
{
    g_autoptr(RpTree) root =
        rp_cli_run_json("compare @Q --micro-batches 12 --schedules gpipe,dualpipe-v --json");
    g_auto(RpCliRun) csv =
        rp_cli_run("compare @Q --micro-batches 12 --schedules gpipe,dualpipe-v --csv -");

    assert_true(rp_cli_number(root, "rows.0.bubble_ratio") > 0);
    assert_non_null(strstr(rp_cli_member(root, "rows.1.error")->text, "2N = 16"));
    assert_true(g_str_has_prefix(csv.out, "profile,schedule,"));
    assert_non_null(strstr(csv.out, "\nqwen3-1.7b,dualpipe-v,0,"));
}

RP_TEST(reads_profiles_from_the_environment)
{
    g_auto(RpCliRun) run = rp_cli_shell(
        "ROUNDPIPE_PROFILES=@R/profiles/rtx4090 \"$ROUNDPIPE\" compare --schedules "
        "gpipe --partition paper --json && ROUNDPIPE_PROFILES=@T \"$ROUNDPIPE\" compare");

    assert_int_equal(run.code, 1);
    assert_non_null(strstr(run.out, "qwen3-235b-a22b"));
    assert_non_null(strstr(run.err, "expected profiles (*.json), found none"));
}

RP_TEST(shows_both_partitions_side_by_side)
{
    g_autoptr(RpTree) root =
        rp_cli_run_json("partition @Q --gpus 8 --micro-batches 16 --round 8 "
                        "--forward-stages 7*4 --backward-stages 0,3*8,2*2 --json");
    g_auto(RpCliRun) text =
        rp_cli_run("partition @Q --gpus 8 --micro-batches 16 --schedule looped-bfs");

    assert_string_equal(rp_cli_member(root, "partitions.0.partition")->text, "paper");
    assert_string_equal(rp_cli_member(root, "partitions.1.partition")->text, "simulated");
    assert_string_equal(rp_cli_member(root, "partitions.2.partition")->text, "given");
    assert_true(rp_cli_number(root, "partitions.1.makespan_ms") <=
                rp_cli_number(root, "partitions.0.makespan_ms"));
    assert_true(fabs(rp_cli_number(root, "partitions.2.makespan_ms") - 2286.017) < 0.001);
    assert_int_equal(text.code, 0);
    assert_non_null(strstr(text.out, "####"));
}

/* tests/core/test-verify.c proves plans of every schedule. */
RP_TEST(says_which_rules_of_a_plan_are_proved)
{
    static const char *const schedules[] = {"zb-v", "roundpipe --async"};

    for (gsize i = 0; i < G_N_ELEMENTS(schedules); i++) {
        g_autoptr(RpTree) root = rp_cli_run_json(
            "verify @Q --gpus 4 --micro-batches 8 --partition paper --json --schedule %s",
            schedules[i]);
        g_autofree char *rules = rp_cli_list(root, "1.rules");

        assert_true(rp_cli_number(root, "0.actions") > 0);
        assert_string_equal(rules, "1,2,3,4,5");
    }
}

/* ---- there and back ---- */

RP_TEST(simulates_the_profile_that_it_exported)
{
    g_auto(RpCliRun) written = rp_cli_run("export --profile qwen3-8b --gpu rtx4090 --sequences 2 "
                                          "--tokens 4096 --gpus 4 -o @T/qwen3-8b.json");
    g_auto(RpCliRun) printed = rp_cli_run("export --profile qwen3-8b --gpu rtx4090 --sequences 2 "
                                          "--tokens 4096 --gpus 4 -o -");
    g_autofree char *path = rp_cli_temporary("qwen3-8b.json");
    g_autofree char *text = NULL;
    g_autoptr(RpTree) root =
        rp_cli_run_json("simulate @T/qwen3-8b.json --schedule roundpipe --gpus 4 "
                        "--micro-batches 8 --fidelity full --json");

    assert_int_equal(written.code, 0);
    assert_string_equal(written.out, "");
    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    assert_string_equal(text, printed.out);
    assert_true(rp_cli_number(root, "tokens_per_s") > 0);
    assert_true(rp_cli_number(root, "gpu_peak_bytes") > 0);
}

RP_TEST(verifies_the_trace_that_it_wrote)
{
    static const char *const modes[] = {
        "--partition paper --schedule 1f1b",
        "--partition paper --schedule roundpipe --async --iterations 5",
        "--partition paper --schedule roundpipe --fidelity full --iterations 2",
    };

    for (gsize i = 0; i < G_N_ELEMENTS(modes); i++) {
        rp_cli_must_run("simulate @Q --gpus 4 --micro-batches 8 --trace @T/trace.json %s",
                        modes[i]);
        g_auto(RpCliRun) verified =
            rp_cli_run("verify @Q --gpus 4 --micro-batches 8 --trace @T/trace.json %s", modes[i]);
        g_auto(RpCliRun) other =
            rp_cli_run("verify @Q --gpus 4 --micro-batches 12 --trace @T/trace.json %s", modes[i]);

        if (verified.code != 0)
            fail_msg("%s: %s", modes[i], verified.err);
        assert_non_null(strstr(verified.out, "trace"));
        assert_int_equal(other.code, 1);
        assert_non_null(strstr(other.err, "task"));
    }
}

RP_TEST(verifies_the_pytorch_csv_that_it_exported)
{
    static const struct {
        const char *schedule;
        gboolean superset;
    } orders[] = {{"1f1b", FALSE},
                  {"gpipe", FALSE},
                  {"interleaved-zb", FALSE},
                  {"zb-v", FALSE},
                  {"roundpipe", TRUE}};

    for (gsize i = 0; i < G_N_ELEMENTS(orders); i++) {
        g_auto(RpCliRun) run =
            rp_cli_run("export @Q --gpus 4 --micro-batches 8 --partition paper --schedule %s "
                       "--pytorch-csv @T/order.csv --csv @T/tasks.csv",
                       orders[i].schedule);
        rp_cli_must_run("verify --pytorch-csv @T/order.csv");

        assert_int_equal(run.code, 0);
        assert_string_equal(run.out, "");
        assert_int_equal(strstr(run.err, "superset") != NULL, orders[i].superset);
    }
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
