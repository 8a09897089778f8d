/* `compare --systems`: figures beside those of other commands, costs, CSV, and what is refused. */
#include "tests/cli/run-cli.h"

#include <math.h>

/* Row of the system called @name. */
static const RpTree *
row_of(const RpTree *root, const char *name)
{
    const RpTree *rows = rp_cli_member(root, "rows");

    for (guint i = 0; i < rows->items->len; i++)
        if (g_str_equal(rp_tree_find(rp_tree_nth(rows, i), "system")->text, name))
            return rp_tree_nth(rows, i);
    fail_msg("no row of %s", name);
    return NULL;
}

static double
figure_of(const RpTree *root, const char *system, const char *key)
{
    const RpTree *figure = rp_tree_find(row_of(root, system), key);

    if (figure == NULL)
        fail_msg("%s has no %s", system, key);
    return figure->number;
}

RP_TEST(compares_every_system)
{
    g_autoptr(RpTree) root = rp_cli_run_json("compare @Q --systems all --micro-batches 128 --json");
    const RpTree *rows = rp_cli_member(root, "rows");
    guint fastest = 0;

    assert_int_equal(rows->items->len, 8);
    for (guint i = 0; i < 8; i++) {
        const RpTree *row = rp_tree_nth(rows, i);
        double parts = 0;
        static const char *const keys[] = {"compute_ms", "wait_ms", "collectives_ms", "copies_ms",
                                           "optimizer_ms"};

        for (guint k = 0; k < G_N_ELEMENTS(keys); k++)
            parts += rp_tree_find(row, keys[k])->number;
        assert_true(fabs(parts - rp_tree_find(row, "step_ms")->number) < 0.001);
        assert_true(rp_tree_find(row, "fits_gpu_memory")->number == 1);
        assert_true(rp_tree_find(row, "longest_sequence")->number > 2048);
        assert_null(rp_tree_find(row, "dollars_per_billion_tokens"));
        fastest += rp_tree_find(row, "fastest")->number == 1;
    }
    assert_int_equal(fastest, 1);
    assert_true(figure_of(root, "roundpipe", "fastest") == 1);
    /* published: 10,171 tokens/s, with micro-batches of 2 sequences */
    assert_true(fabs(figure_of(root, "zero-2", "tokens_per_s") - 10171) < 1017);
    assert_true(figure_of(root, "zero-2", "micro_batch") == 2);
    assert_true(figure_of(root, "zero-2", "micro_batches") == 32);
}

RP_TEST(roundpipe_is_as_simulate_has_it)
{
    /* simulate takes all of the card's memory, systems leave 0.9 GiB: this model needs neither */
    g_autoptr(RpTree) root =
        rp_cli_run_json("compare @Q --systems roundpipe,roundpipe-sync --gpus 4 --json");
    g_autoptr(RpTree) other =
        rp_cli_run_json("simulate @Q --schedule roundpipe --gpus 4 --micro-batches "
                        "16 --fidelity full --recompute full --json");

    assert_int_equal(rp_cli_member(root, "rows")->items->len, 2);
    assert_true(figure_of(root, "roundpipe-sync", "gpu_bytes") ==
                rp_cli_number(other, "gpu_peak_bytes"));
    assert_true(fabs(figure_of(root, "roundpipe-sync", "tokens_per_s") /
                         rp_cli_number(other, "tokens_per_s") -
                     1) < 1e-3);
}

RP_TEST(prices_become_costs)
{
    g_autoptr(RpTree) root = rp_cli_run_json("compare @Q --systems fsdp --price 2.32 --json");
    g_auto(RpCliRun) csv = rp_cli_run("compare @Q --systems fsdp --price 2.32 --csv -");
    g_auto(RpCliRun) text = rp_cli_run("compare @Q --systems fsdp --price 2.32 --wide");
    const double cost = figure_of(root, "fsdp", "dollars_per_billion_tokens");

    assert_true(fabs(cost * figure_of(root, "fsdp", "tokens_per_s") * 3600 / 1e9 - 2.32) < 1e-5);
    assert_true(rp_cli_number(root, "dollars_per_hour") == 2.32);
    assert_true(g_str_has_prefix(csv.out, "profile,system,micro_batch,micro_batches,gpu_bytes,"));
    assert_non_null(strstr(csv.out, "\nqwen3-1.7b,fsdp,"));
    assert_non_null(strstr(text.out, "$/billion"));
}

RP_TEST(a_chunked_head_changes_baselines_alone)
{
    g_autoptr(RpTree) root =
        rp_cli_run_json("compare @Q --systems fsdp,roundpipe --micro-batches 128 --json");
    g_autoptr(RpTree) chunked = rp_cli_run_json(
        "compare @Q --systems fsdp,roundpipe --micro-batches 128 --chunked-head --json");

    assert_true(figure_of(chunked, "fsdp", "longest_sequence") >
                5 * figure_of(root, "fsdp", "longest_sequence"));
    assert_true(figure_of(chunked, "fsdp", "micro_batch") > figure_of(root, "fsdp", "micro_batch"));
    assert_true(figure_of(chunked, "roundpipe", "tokens_per_s") ==
                figure_of(root, "roundpipe", "tokens_per_s"));
}

RP_TEST(goes_on_when_a_system_cannot_take_a_model)
{
    g_autoptr(RpTree) root =
        rp_cli_run_json("compare qwen3-235b-a22b --systems megatron-tp,zero-infinity,fsdp --json");
    g_auto(RpCliRun) text =
        rp_cli_run("compare qwen3-235b-a22b --systems megatron-tp,zero-infinity,fsdp");

    assert_non_null(strstr(rp_tree_find(row_of(root, "megatron-tp"), "error")->text,
                           "has 4 heads of keys and values"));
    assert_true(figure_of(root, "zero-infinity", "fits_gpu_memory") == 1);
    assert_true(figure_of(root, "fsdp", "fits_gpu_memory") == 0);
    assert_true(figure_of(root, "fsdp", "fastest") == 0);
    assert_non_null(strstr(text.out, "cannot run: qwen3-235b-a22b has 4 heads"));
}

RP_TEST(refuses_what_makes_no_sense)
{
    rp_cli_must_refuse_all("compare-systems: refuses what makes no sense");
}

RP_TEST(takes_the_box_and_refuses_what_is_too_large)
{
    g_autoptr(RpTree) fast = rp_cli_run_json("compare qwen3-8b --systems fsdp --gpu a800 --json");
    g_autoptr(RpTree) slow =
        rp_cli_run_json("compare qwen3-8b --systems fsdp --gpu rtx5090 --pcie 5x8 --json");
    g_autoptr(RpTree) usual =
        rp_cli_run_json("compare qwen3-8b --systems fsdp --gpu rtx5090 --json");
    rp_cli_must_refuse("compare qwen3-8b --systems fsdp --gpu rtx5091", 2,
                       "did you mean \"rtx5090\"?");
    g_auto(RpCliRun) large = rp_cli_run(
        "compare @Q --systems zero-2,roundpipe,megatron-pp --micro-batches 2000000000 --json");
    g_auto(RpCliRun) many = rp_cli_run("compare @Q --systems all --gpus 2000000000 --json");
    RpTree *refused[] = {rp_cli_json(&large), rp_cli_json(&many)};

    assert_true(figure_of(fast, "fsdp", "collectives_ms") <
                figure_of(slow, "fsdp", "collectives_ms") / 10);
    assert_true(figure_of(usual, "fsdp", "collectives_ms") <
                figure_of(slow, "fsdp", "collectives_ms") / 1.5);
    for (guint r = 0; r < G_N_ELEMENTS(refused); r++) {
        const RpTree *rows = rp_cli_member(refused[r], "rows");

        for (guint i = 0; i < rows->items->len; i++)
            assert_non_null(strstr(rp_tree_find(rp_tree_nth(rows, i), "error")->text,
                                   "expected at most 1024 GPUs and 65536 sequences of a step"));
        rp_tree_free(refused[r]);
    }
}

RP_TEST(says_which_sizes_a_profile_lacks)
{
    g_autofree char *path = rp_cli_temporary("times.json");

    assert_true(g_file_set_contents(
        path,
        "{\"format\":\"roundpipe-profile/1\",\"layers\":[{\"kind\":\"block\",\"forward_ms\":1,"
        "\"backward_ms\":2}]}",
        -1, NULL));
    g_autoptr(RpTree) root = rp_cli_run_json("compare @T/times.json --systems fsdp --json");

    assert_non_null(strstr(rp_cli_member(root, "rows.0.error")->text, "parameter_bytes"));
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
