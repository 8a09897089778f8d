/* The programs and data of examples/, run as their pages say. */
#include "tests/cli/run-cli.h"

/* Mean of the last column of lines @from .. @end - 1. */
static double
mean_loss(char **lines, guint from, guint end)
{
    double sum = 0;

    for (guint i = from; i < end; i++) {
        const char *loss = strstr(lines[i], ": loss ");

        if (loss == NULL)
            fail_msg("expected a step and its loss, found: %s", lines[i]);
        sum += g_ascii_strtod(loss + strlen(": loss "), NULL);
    }
    return sum / (end - from);
}

static void
the_data_are_additions_and_the_same_every_time(void **state)
{
    g_auto(RpCliRun) first = rp_cli_shell("@R/examples/arithmetic/make-data 200");
    g_auto(RpCliRun) second = rp_cli_shell("@R/examples/arithmetic/make-data 200");
    g_auto(GStrv) lines = g_strsplit(first.out, "\n", -1);

    (void)state;
    assert_int_equal(first.code, 0);
    assert_string_equal(first.err, "");
    assert_string_equal(first.out, second.out);
    assert_int_equal(g_strv_length(lines), 201);
    for (guint i = 0; i < 200; i++) {
        g_autoptr(JsonNode) root = json_from_string(lines[i], NULL);
        gint64 ids[10];

        assert_non_null(root);
        JsonArray *tokens = json_node_get_array(rp_cli_member(root, "input_ids"));
        JsonArray *labels = json_node_get_array(rp_cli_member(root, "labels"));
        assert_int_equal(json_array_get_length(tokens), 10);
        assert_int_equal(json_array_get_length(labels), 10);
        for (guint t = 0; t < 10; t++) {
            ids[t] = json_array_get_int_element(tokens, t);
            assert_int_equal(json_array_get_int_element(labels, t), t < 6 ? -100 : ids[t]);
        }
        assert_true(ids[2] == 10 && ids[5] == 11 && ids[9] == 12);
        assert_int_equal(ids[0] + 10 * ids[1] + ids[3] + 10 * ids[4],
                         ids[6] + 10 * ids[7] + 100 * ids[8]);
    }
}

static void
the_run_file_plans_for_its_model_and_data(void **state)
{
    g_auto(RpCliRun) data = rp_cli_shell("@R/examples/arithmetic/make-data >@T/additions.jsonl");
    g_auto(RpCliRun) init = rp_cli_run("init @R/examples/arithmetic/config.json -o @T/adder");
    g_auto(RpCliRun) run = rp_cli_run("train @R/examples/arithmetic/run.yaml --dry-run --json "
                                      "--set model=@T/adder --set data=@T/additions.jsonl");
    g_autoptr(JsonNode) root = NULL;

    (void)state;
    assert_int_equal(data.code, 0);
    assert_int_equal(init.code, 0);
    root = rp_cli_json(&run);
    assert_int_equal(rp_cli_number(root, "parameters"), 223232);
    assert_int_equal(rp_cli_number(root, "samples"), 8192);
    assert_int_equal(rp_cli_number(root, "truncated_samples"), 0);
    assert_int_equal(rp_cli_number(root, "devices"), 4);
}

static void
a_loop_of_ones_own_learns(void **state)
{
    g_auto(RpCliRun) data = rp_cli_shell("@R/examples/arithmetic/make-data 64 >@T/few.jsonl");
    g_auto(RpCliRun) init =
        rp_cli_run("init @R/examples/arithmetic/config.json -o @T/small --seed 1 --force");
    g_auto(RpCliRun) run = rp_cli_shell("$EXAMPLE_TRAIN @T/small @T/few.jsonl 2 60");
    g_auto(GStrv) lines = g_strsplit(run.out, "\n", -1);

    (void)state;
    assert_int_equal(data.code, 0);
    assert_int_equal(init.code, 0);
    assert_string_equal(run.err, "");
    assert_int_equal(run.code, 0);
    assert_int_equal(g_strv_length(lines), 61);
    assert_true(mean_loss(lines, 0, 5) > 2);
    assert_true(mean_loss(lines, 55, 60) < 0.75 * mean_loss(lines, 0, 5));
}

static void
a_loop_of_ones_own_says_what_is_wrong(void **state)
{
    g_auto(RpCliRun) words = rp_cli_shell("$EXAMPLE_TRAIN");
    g_auto(RpCliRun) model = rp_cli_shell("$EXAMPLE_TRAIN @T/nowhere @T/few.jsonl 2 1");

    (void)state;
    assert_int_equal(words.code, 2);
    assert_non_null(strstr(words.err, "usage: train MODEL_DIR"));
    assert_int_equal(model.code, 1);
    assert_true(g_str_has_prefix(model.err, "train: "));
    assert_non_null(strstr(model.err, "nowhere"));
}

static int
teardown(void **state)
{
    g_auto(RpCliRun) removed = rp_cli_shell("rm -rf @T/*");

    return rp_cli_teardown(state);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_data_are_additions_and_the_same_every_time),
        cmocka_unit_test(the_run_file_plans_for_its_model_and_data),
        cmocka_unit_test(a_loop_of_ones_own_learns),
        cmocka_unit_test(a_loop_of_ones_own_says_what_is_wrong),
    };

    return cmocka_run_group_tests(tests, rp_cli_setup, teardown);
}
