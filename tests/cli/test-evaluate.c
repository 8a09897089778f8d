/* `roundpipe evaluate`: the loss of transformers, and what is refused. */
#include "tests/cli/run-cli.h"

#include <math.h>

#define TINY "@R/tests/exec-generate/fixtures/"

RP_TEST(prints_the_loss_of_transformers)
{
    static const char *const names[] = {"llama", "qwen3", "qwen3-moe", "gpt-oss"};

    for (gsize m = 0; m < G_N_ELEMENTS(names); m++) {
        g_autofree char *path =
            g_strdup_printf(RP_SOURCE_ROOT "/tests/exec-generate/fixtures/%s/loss.txt", names[m]);
        g_autofree char *text = NULL;
        g_autoptr(RpTree) root =
            rp_cli_run_json("evaluate " TINY "%s --data " TINY "%s/data.jsonl --devices host:2 "
                            "--dtype fp32 --json",
                            names[m], names[m]);

        assert_true(g_file_get_contents(path, &text, NULL, NULL));
        const double expected = g_ascii_strtod(text, NULL);

        assert_float_equal(rp_cli_number(root, "loss"), expected, 1e-4);
        assert_float_equal(rp_cli_number(root, "perplexity"), exp(expected), 1e-4 * exp(expected));
        assert_int_equal(rp_cli_number(root, "samples"), 5);
        assert_true(rp_cli_number(root, "bubble_ratio") >= 0);
    }
}

/* A text is the ids of its letters. */
RP_TEST(takes_text_as_training_does)
{
    static const char tokenizer[] = "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\","
                                    "\"merges\":[],\"vocab\":{\"a\":5,\"b\":6,\"c\":7}}}";
    g_autofree char *model = rp_cli_temporary("model");
    g_autofree char *json = rp_cli_temporary("model/tokenizer.json");
    g_autofree char *texts = rp_cli_temporary("texts.jsonl");
    g_autofree char *ids = rp_cli_temporary("ids.jsonl");
    rp_cli_must_shell("cp -r " TINY "qwen3 @T/model");

    assert_true(g_file_set_contents(json, tokenizer, -1, NULL));
    assert_true(g_file_set_contents(texts, "{\"text\":\"abcabca\"}\n", -1, NULL));
    assert_true(g_file_set_contents(ids, "{\"input_ids\":[5,6,7,5,6,7,5]}\n", -1, NULL));
    g_autoptr(RpTree) text = rp_cli_run_json("evaluate @T/model --data @T/texts.jsonl --json");
    g_autoptr(RpTree) same = rp_cli_run_json("evaluate @T/model --data @T/ids.jsonl --json");

    assert_int_equal(rp_cli_number(text, "targets"), 6);
    assert_float_equal(rp_cli_number(text, "loss"), rp_cli_number(same, "loss"), 1e-6);
}

RP_TEST(says_what_is_wrong)
{
    g_autofree char *masked = rp_cli_temporary("masked.jsonl");

    assert_true(
        g_file_set_contents(masked, "{\"input_ids\":[1,2],\"labels\":[-100,-100]}\n", -1, NULL));
    rp_cli_must_refuse_all("evaluate: says what is wrong");
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
