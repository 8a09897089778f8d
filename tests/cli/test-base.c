/* `roundpipe train` beside a base in few bits: made once, used as it is, refused by what is wrong. */
#include <glib/gstdio.h>
#include <math.h>
#include <stdio.h>

#include "tests/cli/train-files.h"

#define LORA "--set lora.rank=3 --set steps=4 --set model=@T/wide "
#define EVERY "--set checkpoint.every=2 --set checkpoint.keep=0 --set checkpoint.minutes=0 "
/* Experts' rows are of 32, for mxfp4. */
#define EXPERTS                                                                                    \
    "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","                   \
    "\"hidden_size\":32,\"num_hidden_layers\":4,\"num_attention_heads\":4,"                        \
    "\"num_key_value_heads\":2,\"head_dim\":8,\"intermediate_size\":24,"                           \
    "\"moe_intermediate_size\":32,\"num_experts\":5,\"num_experts_per_tok\":2,"                    \
    "\"norm_topk_prob\":true,\"vocab_size\":33,\"torch_dtype\":\"bfloat16\"}"
#define GPT_OSS                                                                                    \
    "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"hidden_size\":32,"    \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"  \
    "\"intermediate_size\":64,\"num_local_experts\":5,\"num_experts_per_tok\":2,"                  \
    "\"vocab_size\":33,\"torch_dtype\":\"bfloat16\",\"attention_bias\":true,"                      \
    "\"sliding_window\":4,\"layer_types\":[\"sliding_attention\",\"full_attention\","              \
    "\"sliding_attention\",\"full_attention\"],"                                                   \
    "\"max_position_embeddings\":256,\"rope_parameters\":{\"rope_type\":\"yarn\","                 \
    "\"rope_theta\":150000.0,\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"                \
    "\"original_max_position_embeddings\":128,\"truncate\":false}}"
#define CONFIG                                                                                     \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","                          \
    "\"hidden_size\":32,\"num_hidden_layers\":4,\"torch_dtype\":\"bfloat16\","                     \
    "\"num_attention_heads\":4,\"intermediate_size\":64,\"vocab_size\":33}"

static int
set_up(void **state)
{
    const int done = rp_train_files_setup(state);

    rp_cli_write("wide.json", CONFIG);
    rp_cli_must_run("init @T/wide.json -o @T/wide");
    rp_cli_write("experts.json", EXPERTS);
    rp_cli_must_run("init @T/experts.json -o @T/experts");
    rp_cli_write("gpt-oss.json", GPT_OSS);
    rp_cli_must_run("init @T/gpt-oss.json -o @T/gpt-oss");
    return done;
}

static void
refuse(const char *line, int code, const char *part)
{
    g_autofree char *whole = g_strconcat("train @T/run.yaml --set output=@T/never ", line, NULL);

    rp_cli_must_refuse(whole, code, part);
}

static void
assert_same(const char *a, const char *b)
{
    rp_train_files_assert_same_file(a, b, "checkpoint-4/adapter_model.safetensors");
}

/* The one file in @T/@model whose name holds @part. (transfer full) */
static char *
find_packed(const char *model, const char *part)
{
    g_autofree char *list = rp_train_files_list(model);
    g_auto(GStrv) names = g_strsplit(list, " ", -1);

    for (guint i = 0; names[i] != NULL; i++)
        if (strstr(names[i], part) != NULL)
            return g_strdup(names[i]);
    fail_msg("no %s in %s", part, list);
    return NULL;
}

RP_TEST(trains_beside_a_packed_base_on_any_devices_and_resumed)
{
    static const char *const formats[] = {"nf4", "mxfp4", "fp8", "nf4-single"};

    for (guint i = 0; i < G_N_ELEMENTS(formats); i++) {
        g_autofree char *base = g_strdup_printf(LORA EVERY "--set base=%s ", formats[i]);
        g_autofree char *one =
            g_strdup_printf("%s--set output=@T/%s-1 --set devices=host:1", base, formats[i]);
        g_autofree char *two =
            g_strdup_printf("%s--set output=@T/%s-2 --set devices=host:2", base, formats[i]);
        g_autofree char *again = g_strdup_printf(
            "%s--set output=@T/%s-2 --resume --set devices=host:3", base, formats[i]);
        g_autofree char *part = g_strdup_printf("model.%s-", formats[i]);
        g_autofree char *first = g_strdup_printf("%s-1", formats[i]);
        g_autofree char *second = g_strdup_printf("%s-2", formats[i]);

        rp_train_files_train(one);
        g_autofree char *packed = find_packed("wide", part);
        rp_train_files_train(two);
        assert_same(first, second);
        rp_cli_must_shell("rm -r @T/%s/checkpoint-4", second);
        rp_train_files_train(again);
        assert_same(first, second);
    }
}

/* A packed checkpoint needs no key, and gives what packing its original gave. */
RP_TEST(trains_a_packed_checkpoint_as_it_is)
{
    rp_train_files_train(LORA EVERY "--set base=nf4 --set output=@T/made");
    g_autofree char *packed = find_packed("wide", "model.nf4-");
    rp_cli_must_shell("mkdir @T/packed && cp @T/wide/config.json @T/packed/ && "
                      "cp @T/wide/%s @T/packed/model.safetensors",
                      packed);
    rp_train_files_train(LORA EVERY "--set model=@T/packed --set output=@T/as-it-is");
    assert_same("made", "as-it-is");
    rp_train_files_train(LORA EVERY "--set model=@T/packed --set base=nf4 --set output=@T/named");
    assert_same("made", "named");
    refuse(LORA "--set model=@T/packed --set base=mxfp4", 1,
           "base: expected nf4, as the model's file has it, found mxfp4");
    /* expanded as it is read: the same values; whole, 16 bits are saved */
    rp_train_files_train(LORA EVERY
                         "--set model=@T/packed --set base=bf16 --set output=@T/expanded");
    assert_same("made", "expanded");
    rp_train_files_train("--set model=@T/packed --set steps=1 --set output=@T/whole-packed");
    rp_train_files_train("--set model=@T/whole-packed/checkpoint-1 --set steps=1 "
                         "--set output=@T/whole-again");
    rp_cli_must_run("merge @T/packed @T/as-it-is/checkpoint-4 -o @T/merged");

    rp_train_files_train("--set model=@T/merged --set steps=1 --set output=@T/of-merged");
    /* adapters are added to 16-bit numbers, as training expands them: adapters that add zeros leave these */
    rp_train_files_train(LORA "--set model=@T/packed --set optimizer.learning_rate=1e-30 "
                              "--set output=@T/zeros");
    g_auto(RpCliRun) zeros = rp_cli_run("merge @T/packed @T/zeros/checkpoint-4 -o @T/sixteen");
    g_auto(RpCliRun) again =
        rp_cli_run("merge @T/sixteen @T/as-it-is/checkpoint-4 --any-base -o @T/merged-again");
    if (zeros.code + again.code != 0)
        fail_msg("%s%s", zeros.err, again.err);
    rp_cli_must_shell("cmp @T/merged/model.safetensors @T/merged-again/model.safetensors");
}

/* A packed model answers, alone and with the adapters that were trained beside it. */
RP_TEST(answers_beside_a_packed_base)
{
    rp_cli_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n{\"input_ids\":[6,7,8]}\n");
    rp_cli_must_run("init @T/wide.json -o @T/talker --base nf4");
    rp_train_files_train(
        "--set lora.rank=3 --set steps=4 --set model=@T/talker --set output=@T/told "
        "--set optimizer.learning_rate=0.3");
    g_auto(RpCliRun) plain = rp_cli_run("generate @T/talker --prompts @T/ask.jsonl "
                                        "-o @T/plain.jsonl --max-new-tokens 8");
    g_auto(RpCliRun) adapted = rp_cli_run("generate @T/talker --adapter @T/told/checkpoint-4 "
                                          "--prompts @T/ask.jsonl -o @T/adapted.jsonl "
                                          "--max-new-tokens 8");
    if (plain.code + adapted.code != 0)
        fail_msg("%s%s", plain.err, adapted.err);
    g_autofree char *one = rp_cli_read("plain.jsonl");
    g_autofree char *other = rp_cli_read("adapted.jsonl");
    assert_string_not_equal(one, other);
}

/* The values of the base are others; nothing is lost, and the run goes on beside its own. */
RP_TEST(refuses_to_resume_beside_another_base)
{
    rp_train_files_train(LORA "--set base=nf4 --set output=@T/same-base");
    rp_train_files_train(LORA "--set base=bf16 --set output=@T/plain-base");
    refuse(LORA "--resume=@T/same-base/checkpoint-4 --set steps=6", 1,
           "base: expected bf16, as this run has it, found nf4");
    refuse(LORA "--resume=@T/same-base/checkpoint-4 --set steps=6 --set base=nf4-single", 1,
           "base: expected nf4-single, as this run has it, found nf4");
    refuse(LORA "--resume=@T/plain-base/checkpoint-4 --set steps=6 --set base=fp8", 1,
           "base: expected fp8, as this run has it, found bf16");
    rp_train_files_train(LORA "--set base=nf4 --set output=@T/same-base --set steps=5 --resume");
    rp_train_files_train(LORA "--set output=@T/plain-base --set steps=5 --resume");
}

/* Random weights are packed as they are made: the very file that packing a 16-bit model gives. */
static void
assert_made_packed(const char *model, const char *format)
{
    g_autofree char *line =
        g_strdup_printf("--set lora.rank=3 --set lora.targets=q_proj,o_proj --set model=@T/%s "
                        "--set steps=1 "
                        "--set base=%s --set output=@T/random-%s-%s",
                        model, format, model, format);
    g_autofree char *part = g_strdup_printf("model.%s-", format);
    rp_cli_must_run("init @T/%s.json -o @T/packed-%s-%s --base %s", model, model, format, format);

    rp_train_files_train(line);
    g_autofree char *packed = find_packed(model, part);
    rp_cli_must_shell("cmp @T/%s/%s @T/packed-%s-%s/model.safetensors && "
                      "cmp @T/%s/config.json @T/packed-%s-%s/config.json",
                      model, packed, model, format, model, model, format);
}

RP_TEST(makes_random_weights_packed)
{
    static const char *const formats[] = {"nf4", "mxfp4", "fp8", "nf4-single"};

    for (guint i = 0; i < G_N_ELEMENTS(formats); i++) {
        assert_made_packed("wide", formats[i]);
        assert_made_packed("experts", formats[i]);
        assert_made_packed("gpt-oss", formats[i]);
    }
}

/* The experts of GPT-OSS stay in the 4 bits that they are published in. Their 16-bit values, which
 * stand the other way round in a file, give the same. */
RP_TEST(trains_gpt_oss_beside_its_mxfp4)
{
#define GPT                                                                                        \
    "--set model=@T/oss --set lora.rank=3 --set lora.targets=q_proj,o_proj --set steps=4 " EVERY
    rp_cli_must_run("init @T/gpt-oss.json -o @T/oss --base mxfp4");
    rp_train_files_train(GPT "--set output=@T/oss-1 --set devices=host:1");
    rp_train_files_train(GPT "--set output=@T/oss-3 --set devices=host:3");
    rp_train_files_train(GPT "--set output=@T/oss-16 --set base=bf16");
    assert_same("oss-1", "oss-3");
    assert_same("oss-1", "oss-16");
    refuse(GPT "--set base=nf4", 1, "base: expected mxfp4, as the model's file has it, found nf4");
#undef GPT
}

/* Beside the base and merged into it: the same answers. */
RP_TEST(merges_gpt_oss_in_any_format)
{
    static const char *const formats[] = {"nf4", "mxfp4", "fp8"};

    rp_cli_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n{\"input_ids\":[6,7,8]}\n");
    for (guint i = 0; i < G_N_ELEMENTS(formats); i++) {
        const char *format = formats[i];
        g_autofree char *line = g_strdup_printf(
            "--set model=@T/gpt-%s --set output=@T/gpt-%s-run --set steps=3 "
            "--set lora.rank=3 --set lora.alpha=8 --set lora.targets=q_proj,experts.down_proj "
            "--set optimizer.learning_rate=0.07",
            format, format);
        rp_cli_must_run("init @T/gpt-oss.json -o @T/gpt-%s --base %s", format, format);
        rp_train_files_train(line);
        g_auto(RpCliRun) merged =
            rp_cli_run("merge @T/gpt-%s @T/gpt-%s-run/checkpoint-3 -o @T/gpt-%s-merged", format,
                       format, format);
        g_auto(RpCliRun) beside =
            rp_cli_run("generate @T/gpt-%s --adapter @T/gpt-%s-run/checkpoint-3 --prompts "
                       "@T/ask.jsonl -o @T/gpt-beside.jsonl --max-new-tokens 8",
                       format, format);
        g_auto(RpCliRun) within =
            rp_cli_run("generate @T/gpt-%s-merged --prompts @T/ask.jsonl -o @T/gpt-within.jsonl "
                       "--max-new-tokens 8",
                       format);

        if (merged.code + beside.code + within.code != 0)
            fail_msg("%s%s%s", merged.err, beside.err, within.err);
        g_autofree char *one = rp_cli_read("gpt-beside.jsonl");
        g_autofree char *other = rp_cli_read("gpt-within.jsonl");
        assert_string_equal(one, other);
    }
}

/* Where the data of a tensor of a safetensors file begin. */
static gsize
place_of(const char *bytes, const char *name)
{
    guint64 header;
    unsigned long begin = 0;
    g_autofree char *key = g_strdup_printf("\"%s\":{", name);

    memcpy(&header, bytes, sizeof header);
    const char *at = g_strstr_len(bytes + 8, (gssize)header, key);
    assert_non_null(at);
    assert_int_equal(sscanf(strstr(at, "\"data_offsets\":["), "\"data_offsets\":[%lu", &begin), 1);
    return 8 + (gsize)header + begin;
}

RP_TEST(refuses_scales_that_are_not_finite_and_files_that_are_cut)
{
    const float nan = NAN;
    gsize length = 0;

    rp_train_files_train(LORA "--set base=nf4-single --set output=@T/good");
    g_autofree char *name = find_packed("wide", "model.nf4-single-");
    g_autofree char *path = g_strdup_printf("wide/%s", name);
    g_autofree char *bytes = rp_cli_read_bytes(path, &length);
    const gsize at = place_of(bytes, "model.layers.2.mlp.up_proj.weight.absmax");
    char kept[sizeof nan];

    memcpy(kept, bytes + at, sizeof kept);
    memcpy(bytes + at, &nan, sizeof nan);
    rp_cli_write_bytes(path, bytes, (gssize)length);
    refuse(LORA "--set base=nf4-single", 1, "found one that is infinite or NaN at [0, 0]");
    memcpy(bytes + at, kept, sizeof kept);
    rp_cli_write_bytes(path, bytes, (gssize)length - 64);
    refuse(LORA "--set base=nf4-single", 1, "; remove the file, and it is packed again\n");
    rp_cli_write_bytes(path, bytes, (gssize)length);
    rp_train_files_train(LORA "--set base=nf4-single --set output=@T/good-again");
}

/* Another name in a header, with spaces behind it. */
static void
rename_tensor(char *bytes, const char *from, const char *to)
{
    g_autofree char *old = g_strdup_printf("\"%s\"", from);
    g_autofree char *new = g_strdup_printf("\"%s\"", to);
    char *at = strstr(bytes + 8, old);

    assert_non_null(at);
    assert_true(strlen(new) <= strlen(old));
    memset(at, ' ', strlen(old));
    memcpy(at, new, strlen(new));
}

RP_TEST(names_formats_that_are_not_read)
{
    static const char *const formats[][2] = {
        {"qweight", "AWQ"}, {"g_idx", "GPTQ"}, {"SCB", "bitsandbytes int8"}};

    rp_cli_must_shell("mkdir @T/foreign && cp @T/wide/config.json @T/foreign/");
    for (guint i = 0; i < G_N_ELEMENTS(formats); i++) {
        gsize length = 0;
        g_autofree char *bytes = rp_cli_read_bytes("wide/model.safetensors", &length);
        g_autofree char *mark =
            g_strdup_printf("model.layers.0.self_attn.q_proj.%s", formats[i][0]);

        rename_tensor(bytes, "model.layers.0.self_attn.q_proj.weight", "gone");
        rename_tensor(bytes, "model.layers.0.post_attention_layernorm.weight", mark);
        rp_cli_write_bytes("foreign/model.safetensors", bytes, (gssize)length);
        refuse("--set lora.rank=3 --set model=@T/foreign", 1, formats[i][1]);
    }
}

RP_TEST(refuses_a_packed_base_that_is_trained_and_a_full_disk)
{
    refuse("--set base=nf4 --set model=@T/wide", 1,
           "base: expected bf16 without lora.rank, found nf4: a packed base is frozen");
    refuse(LORA "--set base=int4", 2, "base: expected one of bf16, fp8, nf4, nf4-single, mxfp4");
    rp_train_files_train("--set base=bf16 --set model=@T/wide --set steps=1 --set output=@T/whole");
    /* nothing is left of an attempt, and nothing is in the way of the next */
    rp_cli_must_shell("mkdir @T/bare && cp @T/wide/config.json @T/wide/model.safetensors @T/bare/");
    g_auto(RpCliRun) full =
        rp_cli_shell("ulimit -f 8; trap '' XFSZ; $ROUNDPIPE train @T/run.yaml " LORA
                     "--set base=nf4 --set model=@T/bare --set output=@T/never 2>@T/full.txt");
    assert_int_not_equal(full.code, 0);
    g_autofree char *told = rp_cli_read("full.txt");
    assert_non_null(strstr(told, "model.nf4-"));
    g_autofree char *left = rp_train_files_list("bare");
    assert_string_equal(left, "config.json model.safetensors");
    /* as a killed attempt would leave it; other files stay */
    g_autofree char *name = find_packed("wide", "model.nf4-");
    rp_cli_must_shell("echo a >@T/bare/%s.a1B2c3; echo b >@T/bare/notes.txt", name);
    rp_train_files_train(LORA "--set base=nf4 --set model=@T/bare --set output=@T/after");
    g_autofree char *files = rp_train_files_list("bare");
    g_autofree char *expected =
        g_strdup_printf("config.json %s %s.base model.safetensors notes.txt", name, name);
    assert_string_equal(files, expected);
}

/* A dry run writes nothing; where the model is a link into a hub's cache, the packed form is in ours. */
RP_TEST(packs_no_base_in_a_dry_run_nor_into_a_foreign_folder)
{
    g_auto(RpCliRun) made =
        rp_cli_shell("mkdir @T/hub && cp @T/wide/config.json @T/hub/ && "
                     "ln -s ../wide/model.safetensors @T/hub/model.safetensors");
    g_auto(RpCliRun) dry = rp_cli_run("train @T/run.yaml " LORA "--set base=nf4 --set "
                                      "model=@T/hub --set output=@T/hub-run --dry-run --json");
    g_autofree char *before = rp_train_files_list("hub");
    g_auto(RpCliRun) none = rp_cli_shell("test ! -e @T/cache/roundpipe/bases");
    g_autoptr(RpTree) ran = rp_cli_run_json("train @T/run.yaml " LORA "--set base=nf4 --set "
                                            "model=@T/hub --set output=@T/hub-run --json");
    g_autofree char *after = rp_train_files_list("hub");
    g_autofree char *cached = rp_train_files_list("cache/roundpipe/bases");
    g_autoptr(RpTree) planned = rp_cli_json(&dry);

    assert_int_equal(made.code + none.code, 0);
    assert_string_equal(before, "config.json model.safetensors");
    assert_string_equal(after, before);
    assert_true(g_str_has_prefix(cached, "model.nf4-"));
    assert_non_null(strstr(dry.err, "note: the base is not packed in nf4 yet"));
    assert_true(rp_cli_number(planned, "predicted.host_bytes") ==
                rp_cli_number(ran, "predicted.host_bytes"));
    assert_true(rp_cli_number(planned, "parameters") == rp_cli_number(ran, "parameters"));
}

RP_TEST_GROUP(set_up, rp_cli_teardown)
