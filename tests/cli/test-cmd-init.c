/* `roundpipe init` as a user runs it. */
#include "tests/cli/run-cli.h"

#define CONFIG                                                                                     \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","                          \
    "\"hidden_size\":16,\"num_hidden_layers\":2,"                                                  \
    "\"num_attention_heads\":4,\"intermediate_size\":24,\"vocab_size\":33}"

static void
make_config(void)
{
    g_autofree char *path = rp_cli_temporary("tiny.json");

    assert_true(g_file_set_contents(path, CONFIG, -1, NULL));
}

static char *
checksum(const char *file)
{
    g_autofree char *path = rp_cli_temporary(file);
    g_autofree char *data = NULL;
    gsize length;

    assert_true(g_file_get_contents(path, &data, &length, NULL));
    return g_compute_checksum_for_data(G_CHECKSUM_SHA256, (const guchar *)data, length);
}

RP_TEST(makes_the_same_model_from_the_same_seed)
{
    make_config();
    g_auto(RpCliRun) a = rp_cli_run("init @T/tiny.json -o @T/a --seed 1 --json");
    rp_cli_must_run("init @T/tiny.json -o @T/new/b --seed 1");
    rp_cli_must_run("init @T/tiny.json -o @T/c --seed 2");
    g_autoptr(RpTree) root = rp_cli_json(&a);
    /* 2 x 33 x 16 + 16 + 2 x (2 x 16 + 4 x 16 x 16 + 3 x 16 x 24) */
    assert_int_equal(rp_cli_number(root, "parameters"), 5488);
    assert_int_equal(rp_cli_number(root, "bytes"), 2 * 5488); /* bf16 where nothing is said */
    assert_string_equal(a.err, "");                           /* no progress into a pipe */
    g_autofree char *sum_a = checksum("a/model.safetensors");
    g_autofree char *sum_b = checksum("new/b/model.safetensors");
    g_autofree char *sum_c = checksum("c/model.safetensors");
    assert_string_equal(sum_a, sum_b);
    assert_string_not_equal(sum_a, sum_c);
}

RP_TEST(replaces_a_model_only_by_force)
{
    make_config();
    rp_cli_must_run("init @T/tiny.json -o @T/f --seed 1");
    g_autofree char *before = checksum("f/model.safetensors");
    rp_cli_must_refuse("init @T/tiny.json -o @T/f --seed 2", 1,
                       "found config.json; --force replaces it");
    g_autofree char *kept = checksum("f/model.safetensors");
    assert_string_equal(before, kept);
    rp_cli_must_run("init @T/tiny.json -o @T/f --seed 2 --force --shard-size 4KB --dtype fp32");
    g_auto(RpCliRun) list = rp_cli_shell("ls @T/f");
    assert_non_null(strstr(list.out, "model.safetensors.index.json"));
    assert_null(strstr(list.out, "model.safetensors\n"));
}

RP_TEST(says_what_is_wrong)
{
    make_config();
    rp_cli_must_refuse_all("cmd-init: says what is wrong");
    g_autofree char *made = rp_cli_temporary("x/model.safetensors");
    assert_false(g_file_test(made, G_FILE_TEST_EXISTS));
}

/* The fixture's own takes files away, but not what is in directories. */
RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
