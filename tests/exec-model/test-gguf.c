/*
 * Files for llama.cpp: the same bytes as those that gguf's reader and llama.cpp have been shown to read
 * (tests/elsewhere/check-gguf), and what is refused.
 */
#include "tests/exec-model/tensor-fixture.h"

#include <math.h>

#include "exec/gguf/gguf.h"
#include "exec/model/hf-config.h"
#include "tests/json-tree.h"

#define FIXTURES RP_SOURCE_ROOT "/tests/exec-model/fixtures/gguf/"
#define TOKENIZERS RP_SOURCE_ROOT "/tests/text/fixtures/"

/* A model of the fixtures in a directory, with values that gguf_files.py makes, too. */
typedef struct {
    TensorFixture *files;
    RpModel config;
    RpSafetensors *checkpoint;
    RpWeights *weights;
    RpTokenizer *tokenizer;
    RpTree *keys;
    gint32 ends[RP_MODEL_MAX_EOS];
    RpGgufOptions options;
} Fixture;

static void
set_up(Fixture *f)
{
    assert_int_equal(tensor_setup((void **)&f->files), 0);
}

static void
close_model(Fixture *f)
{
    g_clear_pointer(&f->weights, rp_weights_free);
    g_clear_pointer(&f->checkpoint, rp_safetensors_free);
    g_clear_pointer(&f->tokenizer, rp_tokenizer_free);
    g_clear_pointer(&f->keys, rp_tree_free);
}

static void
tear_down(Fixture *f)
{
    close_model(f);
    tensor_teardown((void **)&f->files);
}

/* ---- values ---- */

/* Number @i, from 0 on, of those from -1 to 1 that follow from @name: splitmix64 of FNV-1a. */
static float
number_of(const char *name, guint64 i)
{
    guint64 z = G_GUINT64_CONSTANT(0xcbf29ce484222325);

    for (const char *p = name; *p != '\0'; p++)
        z = (z ^ (guint8)*p) * G_GUINT64_CONSTANT(0x100000001b3);
    z += (i + 1) * G_GUINT64_CONSTANT(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * G_GUINT64_CONSTANT(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * G_GUINT64_CONSTANT(0x94d049bb133111eb);
    z ^= z >> 31;
    return (float)(z >> 40) / 8388608.0f - 1.0f;
}

static void
write_values(const RpWeights *weights, const char *path)
{
    g_autoptr(RpSafetensorsWriter) writer = rp_safetensors_writer_new(path, 0);
    guint n = 0;

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);

        if (!weight->tied)
            (void)rp_safetensors_writer_add(writer, weight->name, RP_DTYPE_FP32, weight->shape,
                                            weight->rank);
    }
    assert_true(rp_safetensors_writer_begin(writer, NULL));
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        g_autofree float *values = g_new(float, weight->elements);

        if (weight->tied)
            continue;
        for (guint64 k = 0; k < weight->elements; k++)
            values[k] = (weight->norm ? 1.0f : 0.0f) + 0.25f * number_of(weight->name, k);
        assert_true(rp_safetensors_writer_write(writer, n++, values, weight->elements * 4, NULL));
    }
    assert_true(rp_safetensors_writer_finish(writer, NULL));
}

/* ---- models ---- */

static void
copy_text(const Fixture *f, const char *from, const char *name)
{
    g_autofree char *text = NULL;

    if (!g_file_get_contents(from, &text, NULL, NULL))
        fail_msg("no %s", from);
    tensor_save_text(f->files, name, text);
}

static void
open_model(Fixture *f, const char *name)
{
    g_autofree char *path = g_strdup_printf(FIXTURES "%s.json", name);
    g_autofree char *values = tensor_path(f->files, "model.safetensors");
    g_autofree char *text = NULL;

    close_model(f);
    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    f->keys = rp_tree_parse(text);
    assert_true(rp_hf_config_load(path, &f->config, NULL));
    f->weights = rp_weights_new(&f->config);
    write_values(f->weights, values);
    f->checkpoint = rp_safetensors_open(values, NULL);
    assert_true(rp_weights_bind(f->weights, f->checkpoint, NULL));

    g_autofree char *tokenizer =
        g_strdup_printf(TOKENIZERS "%s.json", rp_tree_find(f->keys, "tokenizer")->text);
    copy_text(f, tokenizer, "tokenizer.json");
    copy_text(f, path, "tokenizer_config.json");
    f->tokenizer = rp_tokenizer_open(f->files->directory, NULL);
    for (guint i = 0; i < f->config.n_eos; i++)
        f->ends[i] = (gint32)f->config.eos_ids[i];

    const RpTree *template = rp_tree_find(f->keys, "chat_template");
    f->options = (RpGgufOptions){.name = name,
                                 .tokenizer = f->tokenizer,
                                 .chat_template = template != NULL ? template->text : NULL,
                                 .ends = f->ends,
                                 .n_ends = f->config.n_eos};
}

static gboolean
write_file(Fixture *f, const char *name)
{
    g_autofree char *path = tensor_path(f->files, name);

    g_clear_error(&f->files->error);
    return rp_gguf_write(f->weights, path, &f->options, &f->files->error);
}

/* ---- the files ---- */

static void
check_file(Fixture *f, const char *sum, const char *name)
{
    const char *dash = strrchr(name, '-');
    g_autofree char *model = g_strndup(name, (gsize)(dash - name));
    g_autofree char *type = g_strndup(dash + 1, strlen(dash + 1) - strlen(".gguf"));

    open_model(f, model);
    while (strcmp(rp_gguf_type_names[f->options.type], type) != 0)
        f->options.type++;
    assert_true(write_file(f, "out.gguf"));
    g_autoptr(GBytes) bytes = tensor_load(f->files, "out.gguf");
    g_autofree char *found = g_compute_checksum_for_bytes(G_CHECKSUM_SHA256, bytes);

    if (strcmp(found, sum) != 0)
        fail_msg("%s has other bytes than the file that llama.cpp was shown to read", name);
}

RP_TEST_OF(writes_the_bytes_that_llama_cpp_was_shown_to_read, Fixture *f)
{
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(FIXTURES "sha256", &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);

    for (char **line = lines; **line != '\0'; line++) {
        g_auto(GStrv) words = g_strsplit(*line, "  ", 2);

        check_file(f, words[0], words[1]);
    }
}

/* ---- blocks ---- */

/* Zeros, ties, a lone large value, halves that are rounded away from zero. Source: gguf 0.19 quants.py */
RP_TEST(quantizes_blocks_as_gguf_does)
{
    float values[32] = {0};
    guint8 block[34];

    memset(block, 0xff, sizeof block);
    rp_gguf_encode(RP_GGUF_Q8_0, values, 32, block);
    for (guint i = 0; i < 34; i++)
        assert_int_equal(block[i], 0);
    rp_gguf_encode(RP_GGUF_Q4_0, values, 32, block);
    assert_int_equal(block[2], 0x88);

    values[0] = 127, values[1] = -0.5f, values[2] = 2.5f, values[31] = -127;
    rp_gguf_encode(RP_GGUF_Q8_0, values, 32, block);
    assert_int_equal(block[0] | block[1] << 8, 0x3c00); /* 1 */
    assert_int_equal((gint8)block[2], 127);
    assert_int_equal((gint8)block[3], -1);
    assert_int_equal((gint8)block[4], 3);
    assert_int_equal((gint8)block[33], -127);

    values[0] = 8, values[1] = -1, values[16] = 8, values[31] = -8; /* the first of equal ones */
    rp_gguf_encode(RP_GGUF_Q4_0, values, 32, block);
    assert_int_equal(block[0] | block[1] << 8, 0xbc00); /* -1 */
    assert_int_equal(block[2], 0x00);
    assert_int_equal(block[3], 0x89);
    assert_int_equal(block[17], 0xf8);
    memset(values, 0, sizeof values);
    values[0] = -6, values[1] = 0.5f, values[2] = 1.25f, values[16] = 2.75f, values[17] = -0.1f;
    rp_gguf_encode(RP_GGUF_MXFP4, values, 32, block);
    assert_int_equal(block[0], 127); /* 2^0 */
    assert_int_equal(block[1], 0x5f);
    assert_int_equal(block[2], 0x01);
    assert_int_equal(block[3], 0x02); /* the smaller of two */
    memset(values, 0, sizeof values);
    values[5] = 1e-45f; /* its inverse is infinite */
    rp_gguf_encode(RP_GGUF_Q8_0, values, 32, block);
    assert_int_equal(block[7], 0);
}

/* ---- refusals ---- */

static void
must_refuse(Fixture *f, const char *message)
{
    g_autofree char *before = tensor_list(f->files);

    if (write_file(f, "refused.gguf"))
        fail_msg("it was written; expected: %s", message);
    g_autofree char *after = tensor_list(f->files);

    rp_assert_error_message_contains(f->files->error, message);
    assert_null(strchr(f->files->error->message, '\n'));
    assert_string_equal(before, after);
}

/* The model with another value, which @change sets. */
#define REFUSES(name, change, message)                                                             \
    do {                                                                                           \
        open_model(f, name);                                                                       \
        ((RpModel *)(gpointer)rp_weights_model(f->weights))->change;                               \
        must_refuse(f, message);                                                                   \
    } while (0)

RP_TEST_OF(refuses_values_that_llama_cpp_does_not_compute, Fixture *f)
{
    REFUSES("qwen3", attention_bias = TRUE, "config.json: attention_bias: expected false");
    REFUSES("smollm3", mlp_bias = TRUE, "config.json: mlp_bias: expected false");
    REFUSES("smollm3", no_rope_period = 3, "no_rope_layers: expected every fourth");
    REFUSES("qwen2", head_dim = 32, "head_dim: expected hidden_size / num_attention_heads");
    REFUSES("qwen3-moe", norm_topk = FALSE, "norm_topk_prob: expected true");
    REFUSES("gpt-oss", swiglu_limit = 5, "swiglu_alpha, swiglu_limit: expected 1.702 and 7");
    REFUSES("gpt-oss", sliding_period = 3, "layer_types: expected sliding_attention");
    REFUSES("gpt-oss", attention_bias = FALSE, "attention_bias: expected true");
    REFUSES("qwen3", rope.beta_fast = 16, "beta_fast, beta_slow: expected 32 and 1");
    REFUSES("qwen3", rope.type = RP_ROPE_LLAMA3, "rope_type: expected none, linear or yarn");
    REFUSES("llama", rope.type = RP_ROPE_DYNAMIC, "found dynamic");
    REFUSES("llama", rope.type = RP_ROPE_LONGROPE, "found longrope");
}

static void
use_tokenizer(Fixture *f, const char *json)
{
    g_clear_pointer(&f->tokenizer, rp_tokenizer_free);
    f->tokenizer = rp_tokenizer_parse("tokenizer.json", json, strlen(json), NULL);
    assert_non_null(f->tokenizer);
    f->options.tokenizer = f->tokenizer;
}

#define BYTE_LEVEL "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
#define BPE(more, merges)                                                                          \
    "{" more "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"ba\":3,\"aba\":4}" \
    ",\"merges\":[" merges "]"

RP_TEST_OF(refuses_tokenizers_that_llama_cpp_does_not_know, Fixture *f)
{
    open_model(f, "qwen3");
    use_tokenizer(f, BPE(BYTE_LEVEL, "") "}}");
    must_refuse(f, "tokenizer.json: merges: expected pairs of tokens, found none");
    use_tokenizer(f, BPE("", "\"a b\"") "}}");
    must_refuse(f, "tokenizer.json: model: expected byte-level tokens or byte_fallback");
    use_tokenizer(f, BPE("\"normalizer\":{\"type\":\"NFKC\"}," BYTE_LEVEL, "\"a b\"") "}}");
    must_refuse(f, "tokenizer.json: normalizer: expected one that leaves text as it is");
    use_tokenizer(f, BPE("\"pre_tokenizer\":{\"type\":\"ByteLevel\"},", "\"a b\"") "}}");
    must_refuse(f, "tokenizer.json: normalizer: expected one that leaves text as it is");
    use_tokenizer(f, BPE("\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":false,"
                         "\"add_prefix_space\":false},",
                         "\"a b\"") "}}");
    must_refuse(f, "tokenizer.json: pre_tokenizer: expected the pattern of Llama 3");
    use_tokenizer(f, BPE("", "\"a ba\",\"b a\",\"ab a\"") ",\"byte_fallback\":true}}");
    must_refuse(f, "tokenizer.json: merges: expected those of a token one after the other");
    f->config.vocab = 3;
    ((RpModel *)(gpointer)rp_weights_model(f->weights))->vocab = 3;
    must_refuse(f,
                "tokenizer.json: vocab: expected ids below the model's vocabulary of 3, found 4");
}

RP_TEST_OF(refuses_places_that_no_file_can_take, Fixture *f)
{
    open_model(f, "qwen2");
    f->files->text = g_build_filename(f->files->directory, "none", "out.gguf", NULL);
    assert_false(rp_gguf_write(f->weights, f->files->text, &f->options, &f->files->error));
    rp_assert_error_message_contains(f->files->error, "No such file or directory");
    g_clear_error(&f->files->error);
    assert_false(rp_gguf_write(f->weights, f->files->directory, &f->options, &f->files->error));
    rp_assert_error_message_contains(f->files->error, "Is a directory");
    g_clear_error(&f->files->error);
    assert_false(rp_gguf_write(f->weights, "/dev/full", &f->options, &f->files->error));
    rp_assert_error_message_contains(f->files->error, "Invalid argument");
}

RP_TEST_STATE(Fixture, set_up, tear_down)
