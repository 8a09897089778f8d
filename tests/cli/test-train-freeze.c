/* Tensors that are not trained: they stay as they are, the gradients of the others too. */
#include "tests/cli/train-files.h"

#define TRAIN "train @T/run.yaml --set output=@T/"
#define FREEZE                                                                                     \
    "'--set=freeze=[embed_tokens, model.layers.0.*, model.layers.2.mlp.down_proj, norm]' "

/* A file of tensors, taken apart. */
typedef struct {
    char *bytes;
    RpTree *header;
    const char *data;
} Tensors;

static Tensors
load(const char *name)
{
    gsize n;
    Tensors tensors = {.bytes = rp_cli_read_bytes(name, &n)};
    guint64 length;

    memcpy(&length, tensors.bytes, sizeof length);
    length = GUINT64_FROM_LE(length);
    assert_true(length + 8 <= n);
    g_autofree char *header = g_strndup(tensors.bytes + 8, length);
    tensors.header = rp_tree_parse(header);
    assert_non_null(tensors.header);
    tensors.data = tensors.bytes + 8 + length;
    return tensors;
}

static void
unload(Tensors *tensors)
{
    rp_tree_free(tensors->header);
    g_free(tensors->bytes);
}

/* %NULL: it has none of that name. @n: (out): bytes */
static const char *
find(const Tensors *tensors, const char *name, gsize *n)
{
    for (guint i = 0; i < tensors->header->items->len; i++) {
        const RpTree *item = rp_tree_nth(tensors->header, i);

        if (strcmp(item->key, name) != 0 || strcmp(name, "__metadata__") == 0)
            continue;
        const RpTree *offsets = rp_tree_find(item, "data_offsets");
        const gsize from = (gsize)rp_tree_nth(offsets, 0)->number;

        *n = (gsize)rp_tree_nth(offsets, 1)->number - from;
        return tensors->data + from;
    }
    return NULL;
}

static gboolean
is_frozen(const char *name)
{
    return strstr(name, "embed_tokens") != NULL || strstr(name, "layers.0.") != NULL ||
           strstr(name, "layers.2.mlp.down_proj") != NULL || strcmp(name, "model.norm.weight") == 0;
}

RP_TEST(frozen_tensors_stay_and_others_do_not)
{
    static const char *const kinds[] = {"--set async=true", "--set async=false",
                                        "--set async=true --set checkpoint.beside=true "
                                        "--set checkpoint.every=2 --set checkpoint.keep=0"};

    for (guint k = 0; k < G_N_ELEMENTS(kinds); k++) {
        g_auto(RpCliRun) run = rp_cli_run(TRAIN "frozen --set steps=4 --set devices=host:2 "
                                                "--set optimizer.learning_rate=0.05 " FREEZE "%s",
                                          kinds[k]);
        Tensors before = load("model/model.safetensors"),
                after = load("frozen/checkpoint-4/model.safetensors");
        guint n_frozen = 0, n_trained = 0;

        if (run.code != 0)
            fail_msg("%s", run.err);
        assert_null(strstr(run.err, "CRITICAL"));
        assert_int_equal(before.header->items->len, after.header->items->len);
        for (guint i = 0; i < before.header->items->len; i++) {
            const char *name = rp_tree_nth(before.header, i)->key;
            gsize n, m;
            const char *was = find(&before, name, &n), *is = find(&after, name, &m);

            if (was == NULL)
                continue;
            assert_non_null(is);
            assert_int_equal(n, m);
            if ((memcmp(was, is, n) == 0) != is_frozen(name))
                fail_msg("%s", name);
            n_frozen += is_frozen(name);
            n_trained += !is_frozen(name);
        }
        assert_true(n_frozen > 5 && n_trained > 10);
        unload(&before);
        unload(&after);
        rp_cli_must_shell("rm -rf @T/frozen");
    }
}

/* With @freeze, the gradients that are left are those of all. Returns: how many tensors have none */
static guint
compare_gradients(const char *model, const char *freeze, gboolean (*frozen)(const char *name))
{
    rp_cli_must_run(
        TRAIN "none --set dtype=fp32 --set model=@T/%s --save-gradients @T/all.safetensors", model);
    rp_cli_must_run(TRAIN "none --set dtype=fp32 --set model=@T/%s %s "
                          "--save-gradients @T/some.safetensors",
                    model, freeze);
    Tensors whole, part;
    guint n_same = 0, n_frozen = 0;

    whole = load("all.safetensors");
    part = load("some.safetensors");
    for (guint i = 0; i < whole.header->items->len; i++) {
        const char *name = rp_tree_nth(whole.header, i)->key;
        gsize n, m;
        const char *of_all = find(&whole, name, &n), *of_some = find(&part, name, &m);

        if (of_all == NULL)
            continue;
        assert_int_equal(of_some == NULL, frozen(name));
        n_frozen += of_some == NULL;
        if (of_some == NULL)
            continue;
        assert_int_equal(n, m);
        if (memcmp(of_all, of_some, n) != 0)
            fail_msg("%s", name);
        n_same++;
    }
    assert_true(n_same > 10);
    unload(&whole);
    unload(&part);
    return n_frozen;
}

RP_TEST(gradients_of_the_others_are_the_same)
{
    assert_true(compare_gradients("model", FREEZE, is_frozen) > 5);
}

#define TIED_CONFIG                                                                                \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":16,"       \
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"intermediate_size\":24,"                  \
    "\"vocab_size\":33,\"tie_word_embeddings\":true}"

static gboolean
is_norm(const char *name)
{
    return strcmp(name, "model.norm.weight") == 0;
}

static gboolean
is_embedding(const char *name)
{
    return strcmp(name, "model.embed_tokens.weight") == 0;
}

/* A tied model's head has its matrix or its norm trained alone: the dry run proves the plan, and
 * devices do not change the bits. */
RP_TEST(a_tied_head_may_be_trained_in_part)
{
    static const char *const choices[] = {
        "--set freeze=norm", "--set freeze=embed_tokens",
        "--set lora.rank=3 --set lora.targets=q_proj --set lora.save=norm"};
    static const char *const modes[] = {"", "--set async=false", "--set consistency=blocking",
                                        "--set optimizer.max_grad_norm=0"};

    rp_cli_write("tied.json", TIED_CONFIG);
    rp_cli_must_run("init @T/tied.json -o @T/tied --seed 1");
    for (guint i = 0; i < G_N_ELEMENTS(choices); i++)
        for (guint k = 0; k < G_N_ELEMENTS(modes); k++) {
            g_autofree char *what = g_strdup_printf(
                "--set model=@T/tied --set steps=3 --set output=@T/tied-%u-%u %s %s", i, k,
                choices[i], modes[k]);
            g_autofree char *alone =
                g_strdup_printf("%s --set output=@T/alone-%u-%u --set devices=host:1", what, i, k);
            g_autofree char *one = g_strdup_printf("alone-%u-%u/checkpoint-3", i, k);
            g_autofree char *two = g_strdup_printf("tied-%u-%u/checkpoint-3", i, k);
            rp_cli_must_run("train @T/run.yaml --dry-run %s", what);

            rp_train_files_train(what);
            rp_train_files_train(alone);
            rp_train_files_assert_same(one, two);
        }
    assert_int_equal(compare_gradients("tied", "--set freeze=norm", is_norm), 1);
    assert_int_equal(compare_gradients("tied", "--set freeze=embed_tokens", is_embedding), 1);
}

/* Names and shapes are those of a checkpoint, whose tensors of experts stand in another order than in
 * memory. */
RP_TEST(gradients_of_adapters_are_named_as_in_checkpoints)
{
    static const char *const models[] = {"model", "experts"};

    rp_cli_must_run("init @T/tiny-gpt-oss.json -o @T/experts --seed 1");
    for (guint i = 0; i < G_N_ELEMENTS(models); i++) {
        g_autofree char *what = g_strdup_printf(
            "--set lora.rank=2 --set steps=1 --set dtype=fp32 --set model=@T/%s", models[i]);
        rp_cli_must_run(TRAIN "%s-lora %s --save-gradients @T/%s-lora.safetensors", models[i], what,
                        models[i]);
        g_autofree char *train = g_strdup_printf("%s --set output=@T/%s-lora", what, models[i]);
        g_autofree char *one = g_strdup_printf("%s-lora.safetensors", models[i]);
        g_autofree char *other =
            g_strdup_printf("%s-lora/checkpoint-1/adapter_model.safetensors", models[i]);
        guint n_same = 0;

        rp_train_files_train(train);
        Tensors gradients = load(one), saved = load(other);
        for (guint k = 0; k < saved.header->items->len; k++) {
            const RpTree *tensor = rp_tree_nth(saved.header, k);
            const RpTree *gradient = NULL;

            for (guint g = 0; g < gradients.header->items->len; g++)
                if (strcmp(rp_tree_nth(gradients.header, g)->key, tensor->key) == 0)
                    gradient = rp_tree_nth(gradients.header, g);
            if (strcmp(tensor->key, "__metadata__") == 0)
                continue;
            if (gradient == NULL)
                fail_msg("no gradient of %s", tensor->key);
            const RpTree *a = rp_tree_find(tensor, "shape"), *b = rp_tree_find(gradient, "shape");
            assert_int_equal(a->items->len, b->items->len);
            for (guint d = 0; d < a->items->len; d++)
                assert_true(rp_tree_nth(a, d)->number == rp_tree_nth(b, d)->number);
            n_same++;
        }
        assert_true(n_same > 10);
        unload(&gradients);
        unload(&saved);
    }
}

RP_TEST(a_resumed_run_has_the_same_bits)
{
    rp_cli_must_run(TRAIN "whole --set steps=6 " FREEZE);
    rp_cli_must_run(TRAIN "part --set steps=6 --set checkpoint.every=3 " FREEZE);
    rp_cli_must_run(TRAIN "part --set steps=6 " FREEZE "--resume=@T/part/checkpoint-3");
    g_autofree char *expected = rp_train_files_learned("whole");
    g_autofree char *found = rp_train_files_learned("part");

    assert_string_equal(expected, found);
    rp_train_files_assert_same("whole/checkpoint-6", "part/checkpoint-6");
}

/* A resumed run may not freeze what it has trained, nor train what was frozen. */
RP_TEST(a_resume_with_other_frozen_tensors_is_refused)
{
    rp_cli_must_run(TRAIN "other --set steps=2 --set optimizer.learning_rate=0.05 "
                          "--set freeze=embed_tokens");
    g_auto(RpCliRun) more =
        rp_cli_run(TRAIN "other --set steps=3 '--set=freeze=[embed_tokens, lm_head]' --resume");
    rp_cli_must_refuse(TRAIN "other --set steps=3 --resume", 1, "model.embed_tokens.weight");

    assert_int_equal(more.code, 1);
    if (strstr(more.err, "lm_head.weight: expected it as in the checkpoint") == NULL)
        fail_msg("%s", more.err);
}

RP_TEST(names_that_make_no_sense_are_refused)
{
    rp_cli_must_refuse_all("train-freeze: names that make no sense are refused");
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
