/* Mixtures of experts from `init` to `generate`: devices, resuming, files, adapters, refusals. */
#include "tests/cli/train-files.h"

#include <string.h>

#define EVERY                                                                                      \
    "--set steps=4 --set checkpoint.every=2 --set checkpoint.keep=0 --set checkpoint.minutes=0 "

static const struct {
    const char *name, *config;
    const char *expert; /* a tensor of experts that is saved */
} models[] = {
    {"qwen",
     "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
     "\"hidden_size\":18,\"num_hidden_layers\":4,\"num_attention_heads\":4,"
     "\"num_key_value_heads\":2,\"head_dim\":6,\"intermediate_size\":24,"
     "\"moe_intermediate_size\":7,\"num_experts\":5,\"num_experts_per_tok\":2,"
     "\"norm_topk_prob\":true,\"vocab_size\":33,\"torch_dtype\":\"bfloat16\"}",
     "model.layers.2.mlp.experts.4.up_proj.weight"},
    {"gpt", RP_TINY_GPT_OSS_CONFIG, "model.layers.2.mlp.experts.gate_up_proj"},
};

static void
setup_model(guint i)
{
    g_autofree char *file = g_strconcat(models[i].name, ".json", NULL);

    rp_cli_write(file, models[i].config);
    rp_cli_must_run("init @T/%s -o @T/%s", file, models[i].name);
}

static int
set_up(void **state)
{
    if (rp_train_files_setup(state) != 0)
        return -1;
    for (guint i = 0; i < G_N_ELEMENTS(models); i++)
        setup_model(i);
    return 0;
}

static void
train(const char *model, const char *line)
{
    g_auto(RpCliRun) run = rp_cli_run("train @T/run.yaml --set model=@T/%s %s", model, line);

    if (run.code != 0)
        fail_msg("%s: %s: %s", model, line, run.err);
    assert_non_null(strstr(run.out, "+0 bytes"));
}

static void
train_to(const char *model, const char *output, guint devices, const char *more)
{
    g_autofree char *line = g_strdup_printf(EVERY "--set output=@T/%s-%s --set devices=host:%u %s",
                                            model, output, devices, more);

    train(model, line);
}

static void
assert_same(const char *model, const char *one, const char *other, const char *file)
{
    g_autofree char *a = g_strdup_printf("%s-%s/checkpoint-4", model, one);
    g_autofree char *b = g_strdup_printf("%s-%s/checkpoint-4", model, other);

    rp_train_files_assert_same_file(a, b, file);
}

/* The checkpoint's tensors are those of the model that it began with. */
static void
assert_has(const char *model, const char *expert)
{
    g_autofree char *relative = g_strdup_printf("%s-one/checkpoint-4/model.safetensors", model);
    g_autofree char *name = g_strdup_printf("\"%s\"", expert);
    gsize n = 0;
    g_autofree char *bytes = rp_cli_read_bytes(relative, &n);

    assert_non_null(memmem(bytes, n, name, strlen(name)));
}

RP_TEST(trains_the_same_experts_on_any_devices_and_resumed)
{
    for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
        const char *model = models[i].name;

        train_to(model, "one", 1, "");
        assert_has(model, models[i].expert);
        train_to(model, "two", 2, "");
        train_to(model, "four", 4, "");
        train_to(model, "half", 4, "");
        rp_cli_must_shell("rm -r @T/%s-half/checkpoint-4", model);
        train_to(model, "half", 2, "--resume");
        assert_same(model, "one", "two", "model.safetensors");
        assert_same(model, "one", "four", "model.safetensors");
        assert_same(model, "one", "half", "model.safetensors");
        assert_same(model, "one", "half", "optimizer.safetensors");
    }
}

/* Losses of steps, with the auxiliary ones beside them: of 2 experts a token, about 2. */
static void
assert_tells_aux_losses(const char *model, const char *output)
{
    g_autofree char *relative = g_strdup_printf("%s-%s/metrics.jsonl", model, output);
    gsize n = 0;
    g_autofree char *text = rp_cli_read_bytes(relative, &n);
    guint steps = 0;

    for (const char *at = text; (at = strstr(at, "\"aux_loss\":")) != NULL; at++, steps++) {
        const double loss = g_ascii_strtod(strchr(at, ':') + 1, NULL);

        if (!(loss > 1.9 && loss < 3))
            fail_msg("auxiliary loss %g", loss);
    }
    assert_int_equal(steps, 4);
}

RP_TEST(trains_routers_with_an_auxiliary_loss)
{
    static const char with[] = "--set router_aux_loss_coef=0.5 ";
    static const char adapters[] = "--set router_aux_loss_coef=0.5 --set lora.rank=3 "
                                   "--set lora.targets=q_proj";

    for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
        const char *model = models[i].name;

        train_to(model, "aux", 1, with);
        assert_tells_aux_losses(model, "aux");
        train_to(model, "aux2", 2, with);
        train_to(model, "aux4", 4, with);
        assert_same(model, "aux", "aux2", "model.safetensors");
        assert_same(model, "aux", "aux4", "model.safetensors");
        train_to(model, "lora-aux", 1, adapters);
        train_to(model, "lora-aux2", 2, adapters);
        assert_same(model, "lora-aux", "lora-aux2", "adapter_model.safetensors");
    }
}

/* A config that asks for the loss is obeyed, and saved as it was. */
RP_TEST(takes_the_auxiliary_loss_of_a_config)
{
    g_autoptr(GString) config = g_string_new(models[0].config);
    gsize n = 0;

    g_string_truncate(config, config->len - 1);
    g_string_append(config, ",\"output_router_logits\":true,\"router_aux_loss_coef\":0.25}");
    rp_cli_write("asks.json", config->str);
    rp_cli_must_run("init @T/asks.json -o @T/asks");
    train_to("asks", "own", 2, "");
    assert_tells_aux_losses("asks", "own");
    train_to("qwen", "given", 1, "--set router_aux_loss_coef=0.25");
    g_autofree char *own = rp_cli_read_bytes("asks-own/checkpoint-4/model.safetensors", &n);
    g_autofree char *given = rp_cli_read_bytes("qwen-given/checkpoint-4/model.safetensors", &n);
    assert_memory_equal(own, given, n);
    g_autofree char *saved = rp_cli_read_bytes("asks-own/checkpoint-4/config.json", &n);
    assert_non_null(strstr(saved, "\"output_router_logits\": true"));
    assert_non_null(strstr(saved, "\"router_aux_loss_coef\": 0.25"));
    train_to("asks", "off", 1, "--set router_aux_loss_coef=0");
    g_autofree char *metrics = rp_cli_read_bytes("asks-off/metrics.jsonl", &n);
    assert_null(strstr(metrics, "aux_loss"));
    rp_cli_must_refuse(
        "train @T/run.yaml --set output=@T/never --set router_aux_loss_coef=0.5", 1,
        "router_aux_loss_coef: expected 0 for LlamaForCausalLM, which has no experts, found 0.5");
}

#define ATTENTION "--set lora.rank=3 --set lora.targets=q_proj,k_proj,v_proj,o_proj "

RP_TEST(trains_adapters_of_attention_and_merges_them)
{
    rp_cli_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n{\"input_ids\":[6,7,8]}\n");
    for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
        const char *model = models[i].name;

        train_to(model, "lora", 1, ATTENTION);
        train_to(model, "lora2", 2, ATTENTION);
        assert_same(model, "lora", "lora2", "adapter_model.safetensors");
        g_auto(RpCliRun) merged =
            rp_cli_run("merge @T/%s @T/%s-lora/checkpoint-4 -o @T/%s-merged", model, model, model);
        g_auto(RpCliRun) answered =
            rp_cli_run("generate @T/%s-merged --prompts @T/ask.jsonl -o @T/%s.jsonl "
                       "--max-new-tokens 5",
                       model, model);

        if (merged.code + answered.code != 0)
            fail_msg("%s%s", merged.err, answered.err);
    }
}

#define ALL "--set lora.rank=3 --set lora.alpha=60 --set optimizer.learning_rate=0.3 "

/* In fp32, where a merged matrix is not rounded to 16 bits: the same tokens beside the model and merged
 * into it; resumed, on other devices. */
RP_TEST(trains_adapters_of_experts_and_merges_them)
{
    g_autoptr(GString) config = g_string_new(models[0].config);

    assert_int_equal(g_string_replace(config, "bfloat16", "float32", 0), 1);
    rp_cli_write("single.json", config->str);
    rp_cli_must_run("init @T/single.json -o @T/single");
    rp_cli_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n{\"input_ids\":[6,7,8]}\n");
    train_to("single", "all", 1, ALL);
    train_to("single", "all2", 2, ALL);
    train_to("single", "all4", 4, ALL);
    rp_cli_must_shell("rm -r @T/single-all4/checkpoint-4");
    train_to("single", "all4", 2, ALL "--resume");
    assert_same("single", "all", "all2", "adapter_model.safetensors");
    assert_same("single", "all", "all4", "adapter_model.safetensors");
    assert_same("single", "all", "all4", "optimizer.safetensors");
    train_to("single", "begun", 1, "--set steps=1 --set lora.start=@T/single-all/checkpoint-4");
    g_auto(RpCliRun) merged =
        rp_cli_run("merge @T/single @T/single-all/checkpoint-4 -o @T/single-all-merged");
    g_auto(RpCliRun) within =
        rp_cli_run("generate @T/single-all-merged --prompts @T/ask.jsonl -o @T/within.jsonl "
                   "--max-new-tokens 8");
    g_auto(RpCliRun) beside =
        rp_cli_run("generate @T/single --adapter @T/single-all/checkpoint-4 --prompts @T/ask.jsonl "
                   "-o @T/beside.jsonl --max-new-tokens 8");

    if (merged.code + within.code + beside.code != 0)
        fail_msg("%s%s%s", merged.err, within.err, beside.err);
    g_autofree char *one = rp_cli_read("within.jsonl");
    g_autofree char *other = rp_cli_read("beside.jsonl");
    assert_string_equal(one, other);
}

/* A packed base is trained whole in 16 or 32 bits, and saved so, as transformers stores it. */
RP_TEST(trains_a_gpt_oss_whose_experts_are_packed)
{
    rp_cli_must_shell("cp -r " RP_SOURCE_ROOT
                      "/tests/exec-network/fixtures/gpt-oss-mxfp4 @T/mxfp4");
    gsize n = 0;

    train("mxfp4", "--set steps=1 --set profile=auto --set output=@T/unpacked");
    g_autofree char *bytes = rp_cli_read_bytes("unpacked/checkpoint-1/model.safetensors", &n);
    g_autofree char *config = rp_cli_read("unpacked/checkpoint-1/config.json");

    assert_non_null(memmem(bytes, n, "experts.down_proj\"", 18));
    assert_null(memmem(bytes, n, "_blocks", 7));
    assert_null(strstr(config, "mxfp4"));
    train("unpacked/checkpoint-1",
          "--set steps=1 --set profile=@T/unpacked/profile.json --set output=@T/again");
}

RP_TEST(names_what_does_not_fit_the_config)
{
    rp_cli_must_shell("cp -r @T/qwen @T/few && "
                      "sed -i 's/\"num_experts\": 5/\"num_experts\": 6/' "
                      "@T/few/config.json");
    rp_cli_must_refuse("train @T/run.yaml --set model=@T/few --set output=@T/never", 1,
                       "tensor \"model.layers.0.mlp.gate.weight\": expected BF16 [6, 18]");
}

RP_TEST(refuses_what_adapters_cannot_be_of)
{
    rp_cli_must_refuse_all("experts: refuses what adapters cannot be of");
}

RP_TEST_GROUP(set_up, rp_cli_teardown)
