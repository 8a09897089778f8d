/* `roundpipe bench-card` on processor threads: its file, what is left of a run that fails or is killed, and the
 * page that scripts/make-cards makes of it. */
#include "tests/cli/run-cli.h"

#include <string.h>
#include <unistd.h>

#define BENCH "bench-card --devices host:2 "

/* In a shell, behind `bench-card & pid=$!`. */
#define WHEN_TRAINING(name)                                                                        \
    "while ! grep -qs tiny-1m @T/" name "; do kill -0 $pid || exit 9; sleep 0.05; done\n"

/* Files of runs go where nothing may be left. */
static int
set_up(void **state)
{
    if (rp_cli_setup(state) != 0)
        return -1;
    g_autofree char *directory = rp_cli_temporary("runs");

    g_setenv("TMPDIR", directory, TRUE);
    g_setenv("XDG_CACHE_HOME", directory, TRUE);
    return g_mkdir_with_parents(directory, 0777);
}

static RpTree *
load(const char *name)
{
    g_autofree char *text = rp_cli_read(name);
    RpTree *tree = rp_tree_parse(text);

    if (tree == NULL)
        fail_msg("%s is no JSON: %s", name, text);
    assert_string_equal(rp_cli_member(tree, "format")->text, "roundpipe-card/1");
    return tree;
}

static void
assert_no_name(const RpTree *tree, const char *name)
{
    for (guint i = 0; i < tree->items->len; i++)
        assert_no_name(rp_tree_nth(tree, i), name);
    if (tree->type == RP_JSON_STRING && strstr(tree->text, name) != NULL)
        fail_msg("\"%s\" is in \"%s\"", name, tree->text);
}

static void
assert_no_names(const RpTree *tree)
{
    g_autofree char *directory = rp_cli_temporary("");

    assert_no_name(tree, g_get_host_name());
    assert_no_name(tree, g_get_user_name());
    assert_no_name(tree, g_get_home_dir());
    assert_no_name(tree, directory);
    assert_no_name(tree, " /");
    assert_no_name(tree, "roundpipe-card-");
}

/* Figures that are predicted and measured, or why they are not. Returns: whether they are */
static gboolean
check_model(const RpTree *model)
{
    static const char *const figures[] = {"step_ms", "tokens_per_s", "host_bytes"};

    assert_true(rp_cli_number(model, "micro_batches") >= 4);
    if (rp_tree_find(model, "problem") != NULL)
        return FALSE;
    for (guint i = 0; i < G_N_ELEMENTS(figures); i++) {
        g_autofree char *predicted = g_strconcat("predicted.", figures[i], NULL);
        g_autofree char *measured = g_strconcat("measured.", figures[i], NULL);

        assert_true(rp_cli_number(model, predicted) > 0);
        assert_true(rp_cli_number(model, measured) > 0);
    }
    assert_true(rp_cli_number(model, "measured.bubble_ratio") >= 0);
    assert_true(rp_cli_number(model, "measured.steady_steps") >= 2);
    assert_int_equal(rp_cli_number(model, "predicted.device_bytes.1"),
                     rp_cli_number(model, "measured.device_bytes.1"));
    assert_int_equal(rp_cli_member(model, "layers")->items->len, 3);
    assert_true(rp_cli_number(model, "layers.1.backward_ms") > 0);
    assert_true(rp_cli_number(model, "optimizer_parameters_per_s") > 0);
    return TRUE;
}

/* The time is enough for the first model, and on a busy machine for no other. */
RP_TEST(measures_three_models_and_names_nobody)
{
    g_auto(RpCliRun) run =
        rp_cli_run(BENCH "--seconds 2 --set optimizer.learning_rate=1e-5 -o @T/card.json --json");
    g_autofree char *text = rp_cli_read("card.json");
    g_autoptr(RpTree) card = load("card.json");
    g_autofree char *runs = rp_cli_temporary("runs");
    guint measured = 0;

    assert_string_equal(run.out, text);
    assert_string_equal(rp_cli_member(card, "kind")->text, "host");
    assert_int_equal(rp_cli_number(card, "devices"), 2);
    assert_true(rp_cli_number(card, "links.h2d_gb_per_s") > 0);
    assert_true(rp_cli_number(card, "matmuls.0.tflops") > 0);
    assert_string_equal(rp_cli_member(card, "settings.0")->text, "optimizer.learning_rate=1e-5");
    assert_int_equal(rp_cli_member(card, "models")->items->len, 3);
    for (guint i = 0; i < 3; i++)
        measured += check_model(rp_tree_nth(rp_cli_member(card, "models"), i));
    assert_true(measured >= 1);
    assert_int_equal(rp_cli_number(card, "complete"), measured == 3);
    assert_int_equal(run.code, measured == 3 ? 0 : 1);
    assert_no_names(card);
    assert_int_equal(rmdir(runs), 0); /* it is empty */
    assert_int_equal(g_mkdir_with_parents(runs, 0777), 0);
}

RP_TEST(keeps_what_was_measured_when_runs_fail)
{
    g_auto(RpCliRun) small =
        rp_cli_run(BENCH "--seconds 1 --set device_memory=1MiB -o @T/small.json");
    rp_cli_must_shell("\"$ROUNDPIPE\" " BENCH
                      "--seconds 600 -o @T/gone.json >@T/said 2>&1 & pid=$!\n" WHEN_TRAINING(
                          "gone.json") "kill -9 $pid; rm -rf @T/runs/*");
    g_autoptr(RpTree) failed = load("small.json"), killed = load("gone.json");

    assert_int_equal(small.code, 1);
    assert_non_null(strstr(small.out, "\n! layer 0 (embed) alone needs "));
    assert_non_null(strstr(small.out, "not all was measured"));
    assert_non_null(strstr(rp_cli_member(failed, "models.0.problem")->text, "use a smaller"));
    assert_null(rp_tree_find(failed, "models.0.measured"));
    assert_string_equal(rp_cli_member(killed, "models.0.model")->text, "tiny-1m");
    for (guint i = 0; i < 2; i++) {
        const RpTree *card = i == 0 ? failed : killed;

        assert_true(rp_cli_number(card, "links.h2d_gb_per_s") > 0);
        assert_int_equal(rp_cli_number(card, "complete"), 0);
        assert_no_names(card);
    }
}

/* The data of later models are gone, and messages say where they were. */
RP_TEST(leaves_names_out_of_messages)
{
    g_auto(RpCliRun) swept =
        rp_cli_shell("\"$ROUNDPIPE\" " BENCH
                     "--seconds 60 -o @T/swept.json >@T/said 2>&1 & pid=$!\n" WHEN_TRAINING(
                         "swept.json") "rm -rf @T/runs/*; wait $pid");
    g_autoptr(RpTree) card = load("swept.json");

    assert_int_equal(swept.code, 1);
    assert_non_null(strstr(rp_cli_member(card, "models.2.problem")->text, "(name left out)"));
    assert_no_names(card);
}

RP_TEST(refuses_wrong_words)
{
    rp_cli_must_refuse_all("bench-card: refuses wrong words");
    g_autofree char *path = rp_cli_temporary("no.json");

    assert_false(g_file_test(path, G_FILE_TEST_EXISTS));
}

RP_TEST(makes_a_page_of_files)
{
    g_auto(RpCliRun) page =
        rp_cli_shell("@R/scripts/make-cards @T/card.json @T/small.json @T/gone.json");
    g_auto(RpCliRun) wrong =
        rp_cli_shell("echo '{\"format\":\"roundpipe-card/0\"}' >@T/wrong.json; "
                     "@R/scripts/make-cards @T/wrong.json");

    if (page.code != 0)
        fail_msg("%s", page.err);
    assert_non_null(strstr(page.out,
                           "| **a processor**, 2 threads as devices (no card) | tiny-1m | "
                           "all | 8 × 1 × 128 | "));
    assert_non_null(strstr(page.out, "| layer 0 (embed) alone needs "));
    assert_non_null(strstr(page.out, "| device_memory=1MiB | "));
    assert_non_null(strstr(page.out, "| not all was measured |"));
    assert_non_null(strstr(page.out, "| tiny-1m | block × 8 | "));
    rp_cli_assert_refused(&wrong, "make-cards", 1,
                          "wrong.json: expected a file of roundpipe bench-card");
}

RP_TEST_GROUP(set_up, rp_cli_teardown)
