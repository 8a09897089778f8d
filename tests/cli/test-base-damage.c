/* `roundpipe train` beside a base in few bits whose files are damaged, or of a format that is not read. */
#include <math.h>
#include <stdio.h>

#include "tests/cli/train-files.h"

#define LORA "--set lora.rank=3 --set steps=4 --set model=@T/wide "
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
    return done;
}

static void
refuse(const char *line, int code, const char *part)
{
    g_autofree char *whole = g_strconcat("train @T/run.yaml --set output=@T/never ", line, NULL);

    rp_cli_must_refuse(whole, code, part);
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

RP_TEST_GROUP(set_up, rp_cli_teardown)
