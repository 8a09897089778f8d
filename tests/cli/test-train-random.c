/* `model: random:`: weights that are made in memory are those that `init` writes. */
#include "tests/cli/train-files.h"

#include <string.h>

#define TRAIN "train @T/run.yaml --set seed=7 --set steps=3 "

static const struct {
    const char *name, *config;
} models[] = {
    {"llama", RP_TINY_CONFIG},
    {"tied",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_size\":16,"
     "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
     "\"head_dim\":6,\"intermediate_size\":24,\"vocab_size\":33,\"tie_word_embeddings\":true,"
     "\"pad_token_id\":5,\"torch_dtype\":\"float32\"}"},
    {"experts", RP_TINY_GPT_OSS_CONFIG},
};

/* How the weights are held and trained. */
static const struct {
    const char *words;
    const char *saved; /* the model itself, or adapters */
} ways[] = {
    {"", "model.safetensors"},
    {"--set dtype=fp16 --set async=false", "model.safetensors"},
    {"--set freeze=embed_tokens --set dtype=fp32", "model.safetensors"},
    {"--set lora.rank=2", "adapter_model.safetensors"},
};

static int
set_up(void **state)
{
    if (rp_train_files_setup(state) != 0)
        return -1;
    for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
        g_autofree char *config = g_strdup_printf("%s/config.json", models[i].name);
        g_auto(RpCliRun) directory = rp_cli_shell("mkdir @T/%s", models[i].name);

        rp_cli_write(config, models[i].config);
        rp_cli_must_run("init @T/%s -o @T/%s-file --seed 7", config, models[i].name);
        rp_cli_must_shell("echo {} >@T/%s/tokenizer.json && "
                          "cp @T/%s/tokenizer.json @T/%s-file",
                          models[i].name, models[i].name, models[i].name);
    }
    return 0;
}

static void
train(const char *model, const char *output, const char *words)
{
    g_auto(RpCliRun) run =
        rp_cli_run(TRAIN "--set model=%s --set output=@T/%s %s", model, output, words);

    if (run.code != 0)
        fail_msg("%s: %s: %s", model, words, run.err);
    assert_null(strstr(run.err, "CRITICAL"));
    assert_non_null(strstr(run.out, "+0 bytes"));
}

static void
sweep(void)
{
    rp_cli_must_shell("rm -rf @T/file @T/made");
}

/* Where adapters are told which model they are for, the two have other names. */
RP_TEST(trains_what_it_trains_from_the_files_of_init)
{
    static const char *const names[] = {"config.json", "optimizer.safetensors",
                                        "trainer_state.json", "tokenizer.json"};

    for (guint m = 0; m < G_N_ELEMENTS(models); m++)
        for (guint w = 0; w < G_N_ELEMENTS(ways); w++) {
            g_autofree char *file = g_strdup_printf("@T/%s-file", models[m].name);
            g_autofree char *made = g_strdup_printf("random:@T/%s", models[m].name);

            train(file, "file", ways[w].words);
            train(made, "made", ways[w].words);
            for (guint i = 0; i < G_N_ELEMENTS(names); i++)
                rp_train_files_assert_same_file("file/checkpoint-3", "made/checkpoint-3", names[i]);
            rp_train_files_assert_same_file("file/checkpoint-3", "made/checkpoint-3",
                                            ways[w].saved);
            if (strstr(ways[w].words, "lora") == NULL)
                rp_train_files_assert_same("file/checkpoint-3", "made/checkpoint-3");
            sweep();
        }
}

/* @T/tiny.json is named itself: beside it is no tokenizer. */
RP_TEST(has_the_same_bits_on_any_devices_and_after_a_resume)
{
    static const char *const devices[] = {"1", "4"};

    train("random:@T/tiny.json", "file", "--set checkpoint.every=2 --set optimizer.threads=2");
    for (guint i = 0; i < G_N_ELEMENTS(devices); i++) {
        g_autofree char *words = g_strdup_printf("--set devices=host:%s", devices[i]);

        train("random:@T/tiny.json", "made", words);
        rp_train_files_assert_same("file/checkpoint-3", "made/checkpoint-3");
        rp_cli_must_shell("rm -r @T/made");
    }
    /* as the directory says it */
    rp_cli_must_shell("mv @T/file/checkpoint-3 @T/whole");
    rp_cli_must_run("train @T/file/run.yaml --resume");
    rp_train_files_assert_same("whole", "file/checkpoint-3");
    rp_cli_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n");
    rp_cli_must_run("generate @T/file/checkpoint-3 --prompts @T/ask.jsonl "
                    "-o @T/said.jsonl --max-new-tokens 2");
    sweep();
}

/* Adapters that were trained over the one go on over the other, and over no other. */
RP_TEST(adapters_know_the_weights_that_were_made)
{
    train("random:@T/llama", "made", "--set lora.rank=2");
    train("@T/llama-file", "file", "--set lora.start=@T/made/checkpoint-3");
    rp_cli_must_refuse("train @T/run.yaml --set model=random:@T/llama --set seed=8 --set steps=3 "
                       "--set output=@T/none --set lora.start=@T/made/checkpoint-3",
                       1, "expected adapters of this base");
    sweep();
}

RP_TEST(plans_a_model_of_the_catalogue)
{
    rp_cli_must_run("export --profile qwen3-0.6b --gpu rtx4090 -o @T/qwen.json");
    g_auto(RpCliRun) run = rp_cli_run("train @T/run.yaml --dry-run --set model=random:qwen3-0.6b "
                                      "--set profile=@T/qwen.json --json");

    if (run.code != 0)
        fail_msg("%s", run.err);
    assert_non_null(strstr(run.out, "\"random:qwen3-0.6b\""));
    assert_null(strstr(run.err, "no weights"));
}

/* With what is left of a run that is timed and no more. */
RP_TEST(saves_nothing_where_that_is_asked_for)
{
    train("random:@T/llama", "made", "--set checkpoint.final=false --set checkpoint.minutes=0");
    g_autofree char *names = rp_train_files_list("made");
    assert_string_equal(names, "metrics.jsonl profile.json run.yaml");
    g_auto(RpCliRun) dry = rp_cli_run(TRAIN "--dry-run --set model=random:@T/llama --json "
                                            "--set checkpoint.final=false "
                                            "--set checkpoint.minutes=0");
    assert_int_equal(dry.code, 0);
    assert_non_null(strstr(dry.out, "\"needed_bytes\": 0"));
    sweep();
}

RP_TEST(refuses_what_is_no_model)
{
    rp_cli_write("text.jsonl", "{\"text\":\"a\"}\n");
    rp_cli_must_refuse_all("train-random: refuses what is no model");
}

RP_TEST_GROUP(set_up, rp_cli_teardown)
