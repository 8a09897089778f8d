/* `roundpipe train` with adapters and `roundpipe merge`: devices, resuming, files, refusals. */
#include "tests/cli/train-files.h"

#include <unistd.h>

#define LORA "--set lora.rank=3 --set lora.targets=q_proj,down_proj --set steps=4 "
#define DROPOUT "--set lora.rank=3 --set lora.dropout=0.3 --set steps=4 "
#define EVERY "--set checkpoint.every=2 --set checkpoint.keep=0 --set checkpoint.minutes=0 "

static void
assert_same(const char *a, const char *b)
{
    rp_train_files_assert_same_file(a, b, "adapter_model.safetensors");
    rp_train_files_assert_same_file(a, b, "optimizer.safetensors");
}

#define TRAIN_SAME(what)                                                                           \
    do {                                                                                           \
        rp_train_files_train(what EVERY "--set output=@T/one --set devices=host:1");               \
        rp_train_files_train(what EVERY "--set output=@T/two --set devices=host:2");               \
        rp_train_files_train(what EVERY "--set output=@T/four --set devices=host:4");              \
        assert_same("one/checkpoint-4", "two/checkpoint-4");                                       \
        assert_same("one/checkpoint-4", "four/checkpoint-4");                                      \
        rp_train_files_train(what EVERY "--set output=@T/half --set devices=host:2");              \
        rp_cli_must_shell("rm -r @T/half/checkpoint-4");                                           \
        rp_train_files_train(what EVERY "--set output=@T/half --set devices=host:1 --resume");     \
        assert_same("one/checkpoint-4", "half/checkpoint-4");                                      \
        rp_cli_must_shell("rm -r @T/one @T/two @T/four @T/half");                                  \
    } while (0)

RP_TEST(trains_the_same_adapters_on_any_devices_and_resumed)
{
    TRAIN_SAME(LORA);
    TRAIN_SAME(DROPOUT);
}

#define STAGES                                                                                     \
    "--set lora.rank=3 --set steps=4 --set forward_stages=2,1 --set backward_stages=1,1,1,1 "

#define BOUND "--set lora.rank=3 --set steps=4 --set schedule=1f1b --set round=all "
#define EVALUATED "--set eval.data=@T/data.jsonl --set eval.every=1 "

/* The planned value of @key on a device, of a run with @options. */
static gint64
planned(const char *options, const char *key)
{
    g_autoptr(RpTree) root = rp_cli_run_json("train @T/run.yaml --dry-run --json %s", options);

    return (gint64)rp_cli_number(root, key);
}

static void
remove_all(const char *what)
{
    rp_cli_must_shell("rm -r @T/%s", what);
}

/* Frozen weights that stay on their devices: the same steps and validation losses, on any devices and
 * resumed. Of six stages, two devices run three each, and forward alone as well. */
RP_TEST(trains_the_same_adapters_with_weights_that_stay)
{
    /* of the last ones the first stage has nothing left to go up */
    static const char *const adapters[] = {
        "--set lora.targets=q_proj,down_proj ",
        "--set lora.targets=q_proj,down_proj --set base=nf4 ",
        "--set lora.targets=layers.3.mlp.up_proj ",
        "--set lora.targets=layers.3.mlp.up_proj --set base=nf4 ",
    };

    for (guint i = 0; i < G_N_ELEMENTS(adapters); i++) {
        g_autofree char *plain =
            g_strconcat(EVERY STAGES EVALUATED, adapters[i], "--set output=@T/plain", NULL);
        g_autofree char *all = g_strconcat(EVERY STAGES EVALUATED, adapters[i],
                                           "--set output=@T/all --set resident=on", NULL);
        g_autofree char *again = g_strconcat(all, " --set devices=host:1 --resume", NULL);

        rp_train_files_train(plain);
        rp_train_files_train(all);
        assert_same("plain/checkpoint-4", "all/checkpoint-4");
        g_autofree char *learned = rp_train_files_learned("plain");
        g_autofree char *also = rp_train_files_learned("all");
        assert_string_equal(learned, also);
        remove_all("all/checkpoint-4");
        rp_train_files_train(again);
        assert_same("plain/checkpoint-4", "all/checkpoint-4");
        remove_all("plain");
        remove_all("all");
    }
}

/* Bound stages, whose weights are on their devices anyway. */
RP_TEST(trains_the_same_adapters_with_bound_weights_that_stay)
{
    const char *plain = EVERY BOUND "--set output=@T/plain";
    const char *all = EVERY BOUND "--set output=@T/all --set resident=on";

    assert_true(planned(all, "predicted.resident_bytes") > 0);
    rp_train_files_train(plain);
    rp_train_files_train(all);
    assert_same("plain/checkpoint-4", "all/checkpoint-4");
    remove_all("plain");
    remove_all("all");
}

/* As many layers as some memory holds. */
RP_TEST(trains_the_same_adapters_with_some_weights_that_stay)
{
    const char *plain = EVERY STAGES "--set output=@T/plain";
    const char *all = EVERY STAGES "--set output=@T/all --set resident=on";
    const gint64 least = planned(plain, "predicted.device_bytes.0");
    const gint64 limit = (least + planned(all, "predicted.device_bytes.0")) / 2;
    g_autofree char *some = g_strdup_printf(
        EVERY STAGES "--set output=@T/some --set resident=on --set device_memory=%" G_GINT64_FORMAT,
        limit);

    assert_true(planned(some, "predicted.device_bytes.0") <= limit);
    assert_in_range(planned(some, "predicted.resident_bytes"), 1,
                    planned(all, "predicted.resident_bytes") - 1);
    rp_train_files_train(plain);
    rp_train_files_train(some);
    assert_same("plain/checkpoint-4", "some/checkpoint-4");
    remove_all("plain");
    remove_all("some");
}

RP_TEST(begins_with_adapters_and_merges_them)
{
    rp_train_files_train(LORA EVERY "--set output=@T/begun");
    rp_train_files_train(
        "--set steps=1 --set output=@T/more --set lora.start=@T/begun/checkpoint-4");
    rp_cli_must_run("merge @T/model @T/begun/checkpoint-4 -o @T/merged");
    rp_train_files_train("--set steps=1 --set model=@T/merged --set output=@T/whole");
    rp_cli_must_refuse_all("lora: begins with adapters and merges them");
    g_autofree char *link = rp_cli_temporary("link"), *model = rp_cli_temporary("model");
    assert_int_equal(symlink(model, link), 0);
    rp_cli_must_refuse_all("lora: begins with adapters and merges them (2)");
}

/* The same likeliest tokens, beside the model and merged into it. */
RP_TEST(answers_with_adapters_beside_the_model)
{
    rp_cli_must_run("init @T/model/config.json -o @T/wide --dtype fp32");
    rp_train_files_train(
        LORA EVERY "--set model=@T/wide --set output=@T/tuned --set optimizer.learning_rate=0.3");
    rp_cli_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n{\"input_ids\":[6,7,8]}\n");
    g_auto(RpCliRun) merged = rp_cli_run("merge @T/wide @T/tuned/checkpoint-4 -o @T/one-model");
    g_auto(RpCliRun) plain =
        rp_cli_run("generate @T/wide --prompts @T/ask.jsonl -o @T/plain.jsonl --max-new-tokens 8");
    g_auto(RpCliRun) beside =
        rp_cli_run("generate @T/wide --adapter @T/tuned/checkpoint-4 "
                   "--prompts @T/ask.jsonl -o @T/beside.jsonl --max-new-tokens 8");
    g_auto(RpCliRun) within = rp_cli_run(
        "generate @T/one-model --prompts @T/ask.jsonl -o @T/within.jsonl --max-new-tokens 8");

    if (merged.code + plain.code + beside.code + within.code != 0)
        fail_msg("%s%s%s%s", merged.err, plain.err, beside.err, within.err);
    g_autofree char *base = rp_cli_read("plain.jsonl");
    g_autofree char *one = rp_cli_read("beside.jsonl");
    g_autofree char *other = rp_cli_read("within.jsonl");
    assert_string_equal(one, other);
    assert_string_not_equal(one, base);
}

RP_TEST(refuses_another_base_and_other_adapters)
{
    rp_cli_must_run("init @T/model/config.json -o @T/other --seed 99");
    rp_train_files_train(LORA EVERY "--set output=@T/kept");
    rp_cli_must_refuse(
        "merge @T/other @T/kept/checkpoint-4 -o @T/never", 1,
        "those of one with other values: the first that differ are of model.embed_tokens");
    /* one byte, in the middle of a tensor */
    rp_cli_must_shell("cp -r @T/model @T/touched && cd @T/touched && "
                      "printf '\\001' | dd of=model.safetensors bs=1 conv=notrunc "
                      "seek=$(($(stat -c %%s model.safetensors) * 3 / 5)) 2>/dev/null && ! cmp -s "
                      "model.safetensors ../model/model.safetensors");
    rp_cli_must_refuse_all("lora: refuses another base and other adapters");
    rp_train_files_train(LORA "--set lora.targets=[q_proj,v_proj] --set output=@T/two");
    rp_cli_must_refuse_all("lora: refuses another base and other adapters (2)");
}

/* A checkpoint's manifest shows damage; an adapter without one may still have a NaN in it. */
RP_TEST(refuses_damaged_adapters_and_bases)
{
    static const char *const commands[] = {
        "merge @T/model @T/%s -o @T/never",
        "generate @T/model --adapter @T/%s --prompts @T/ask.jsonl -o @T/never.jsonl",
        "evaluate @T/model --adapter @T/%s --data @T/ask.jsonl"};

    rp_cli_write("ask.jsonl", "{\"input_ids\":[3,4,5]}\n");
    rp_train_files_train(LORA EVERY "--set output=@T/sound");
    rp_cli_must_shell(
        "cd @T && cp -r sound/checkpoint-4 damaged && cp -r damaged foreign && "
        "rm foreign/manifest.json foreign/trainer_state.json && "
        "printf '\\377\\377\\377\\377' | dd of=foreign/adapter_model.safetensors bs=1 "
        "conv=notrunc seek=$(($(stat -c %%s foreign/adapter_model.safetensors) - 4)) && "
        "printf '\\001' | dd of=damaged/adapter_model.safetensors bs=1 "
        "conv=notrunc seek=$(($(stat -c %%s damaged/adapter_model.safetensors) - 3))");
    for (guint i = 0; i < G_N_ELEMENTS(commands); i++) {
        g_auto(GStrv) halves = g_strsplit(commands[i], "%s", 2);
        g_autofree char *of_damaged = g_strconcat(halves[0], "damaged", halves[1], NULL);
        g_autofree char *of_foreign = g_strconcat(halves[0], "foreign", halves[1], NULL);

        rp_cli_must_refuse(of_damaged, 1, "expected SHA-256");
        rp_cli_must_refuse(of_foreign, 1, "expected finite values in fp32, found ");
    }
    /* a model that was trained whole; without the optimizer's state it is one still */
    rp_train_files_train("--set steps=1 --set output=@T/all");
    rp_cli_must_shell("cd @T/all/checkpoint-1 && rm optimizer.safetensors && "
                      "cd @T && cp -r all/checkpoint-1 broken && printf '\\001' | "
                      "dd of=broken/model.safetensors bs=1 conv=notrunc "
                      "seek=$(($(stat -c %%s broken/model.safetensors) - 3))");
    rp_cli_must_run("evaluate @T/all/checkpoint-1 --data @T/ask.jsonl");
    rp_cli_must_refuse_all("lora: refuses damaged adapters and bases");
}

/* Copies of one base in another type are one base; another one is taken if that is said. */
RP_TEST(takes_adapters_of_a_copy_in_another_type)
{
    /* the same numbers as text: 16-bit ones in 32 bits */
    g_auto(RpCliRun) made = rp_cli_run("init @T/tiny.json -o @T/copy --seed 1 --dtype fp32");
    g_auto(RpCliRun) other = rp_cli_run("init @T/tiny.json -o @T/unlike --seed 2");
    rp_cli_must_shell(
        "cp -r @T/model @T/other-rope && sed -i 's/\"rope_theta\": [0-9.e+]*/\"rope_theta\": "
        "77.0/' "
        "@T/other-rope/config.json && ! cmp -s @T/other-rope/config.json @T/model/config.json");
    if (made.code != 0 || other.code != 0)
        fail_msg("%s%s", made.err, other.err);
    rp_train_files_train(LORA "--set dtype=bf16 --set model=@T/copy --set output=@T/copy-run");
    rp_cli_must_run("merge @T/model @T/copy-run/checkpoint-4 -o @T/narrow");
    rp_train_files_train(LORA "--set output=@T/narrow-run");
    rp_train_files_train("--set lora.start=@T/narrow-run/checkpoint-4 --set model=@T/copy "
                         "--set dtype=bf16 --set output=@T/copied");
    rp_cli_must_refuse_all("lora: takes adapters of a copy in another type");
    rp_cli_must_run("merge @T/unlike @T/narrow-run/checkpoint-4 -o @T/any --any-base");
    rp_cli_must_refuse("train @T/run.yaml --set lora.start=@T/narrow-run/checkpoint-4 "
                       "--set model=@T/unlike --set output=@T/never",
                       1, "lora.start: ");
    rp_train_files_train("--set lora.start=@T/narrow-run/checkpoint-4 --set model=@T/unlike "
                         "--set lora.any_base=true --set output=@T/any-run");
}

/* Adapters name their base from the root on; or from where a run was begun, in any folder above them. */
RP_TEST(finds_the_base_from_any_folder)
{
    rp_cli_must_shell(
        "mkdir @T/there && cp -r @T/model @T/there/model && cp @T/data.jsonl @T/times.json "
        "@T/there "
        "&& cd @T/there && $ROUNDPIPE train @T/run.yaml --set model=model --set output=run "
        "--set data=data.jsonl --set lora.rank=2 --set steps=1 && mv @T/there @T/here");
    rp_cli_must_run("evaluate @T/here/run --data @T/data.jsonl");
    rp_cli_must_shell(
        "cd / && sed -i 's|\"base_model_name_or_path\": \".*\"|\"base_model_name_or_path\": "
        "\"model\"|' @T/here/run/checkpoint-1/adapter_config.json && rm "
        "@T/here/run/checkpoint-1/manifest.json");
    rp_cli_must_run("evaluate @T/here/run/checkpoint-1 --data @T/data.jsonl");
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
