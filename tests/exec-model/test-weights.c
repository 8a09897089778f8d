#include "tests/exec-model/tensor-fixture.h"

#include "exec/model/init.h"

static const RpModel qwen3 = {
    .architecture = RP_ARCHITECTURE_QWEN3,
    .hidden = 8,
    .blocks = 2,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 6,
    .intermediate = 12,
    .vocab = 10,
    .max_positions = 32,
    .rms_norm_eps = 1e-6,
    .initializer_range = 0.02,
    .rope = {.theta = 1e4},
    .has_dtype = TRUE,
    .dtype = RP_DTYPE_BF16,
    .bos_id = RP_MODEL_NO_TOKEN,
    .pad_id = RP_MODEL_NO_TOKEN,
};

/* Writes the tensors of @config, all zero, but @left_out, and then @more with the given type. */
static void
make_checkpoint(TensorFixture *f, const RpModel *config, const char *left_out, const char *more,
                RpDtype dtype, const guint64 *shape, guint rank)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");
    g_autoptr(RpWeights) weights = rp_weights_new(config);
    g_autofree guint8 *zeros = g_malloc0(1 << 16);
    g_autoptr(GArray) sizes = g_array_new(FALSE, FALSE, sizeof(guint64));

    g_clear_error(&f->error);
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    g_clear_pointer(&f->writer, rp_safetensors_writer_free);
    f->writer = rp_safetensors_writer_new(path, 0);
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        if (weight->tied || g_strcmp0(weight->name, left_out) == 0)
            continue;
        guint64 bytes = weight->elements * rp_dtype_size(config->dtype);
        rp_safetensors_writer_add(f->writer, weight->name, config->dtype, weight->shape,
                                  weight->rank);
        g_array_append_val(sizes, bytes);
    }
    if (more != NULL) {
        guint64 bytes = rp_dtype_size(dtype);
        for (guint i = 0; i < rank; i++)
            bytes *= shape[i];
        rp_safetensors_writer_add(f->writer, more, dtype, shape, rank);
        g_array_append_val(sizes, bytes);
    }
    assert_true(rp_safetensors_writer_begin(f->writer, &f->error));
    for (guint i = 0; i < sizes->len; i++)
        assert_true(rp_safetensors_writer_write(f->writer, i, zeros,
                                                g_array_index(sizes, guint64, i), &f->error));
    assert_true(rp_safetensors_writer_finish(f->writer, &f->error));
    f->tensors = rp_must(rp_safetensors_open, path);
}

static gboolean
bind(TensorFixture *f, const RpModel *config)
{
    g_autoptr(RpWeights) weights = rp_weights_new(config);

    g_clear_error(&f->error);
    gboolean bound = rp_weights_bind(weights, f->tensors, &f->error);
    assert_true(bound == (f->error == NULL));
    assert_true(bound == (rp_weights_source(weights, 0) != NULL));
    return bound;
}

RP_TEST(marks_kinds_ranks_and_ties)
{
    RpModel config = qwen3;

    config.attention_bias = TRUE;
    config.tied = TRUE;
    g_autoptr(RpWeights) weights = rp_weights_new(&config);
    int at = rp_weights_find(weights, 2, RP_WEIGHT_O_BIAS);
    const RpWeight *bias = rp_weights_nth(weights, (guint)at);
    assert_string_equal(bias->name, "model.layers.1.self_attn.o_proj.bias");
    assert_false(bias->rank == 2 || bias->norm);
    assert_int_equal(bias->shape[0], 8);
    assert_int_equal(rp_weights_find(weights, 2, RP_WEIGHT_UP_BIAS), -1);
    at = rp_weights_find(weights, 1, RP_WEIGHT_K_NORM);
    assert_true(rp_weights_nth(weights, (guint)at)->norm);
    assert_int_equal(rp_weights_nth(weights, (guint)at)->elements, 6);
    at = rp_weights_find(weights, 3, RP_WEIGHT_HEAD);
    assert_true(rp_weights_nth(weights, (guint)at)->tied);
    assert_int_equal((guint)at, rp_weights_count(weights) - 1);
}

RP_TEST_OF(binds_each_weight_to_its_tensor, TensorFixture *f)
{
    for (guint tied = 0; tied < 2; tied++) {
        RpModel config = qwen3;
        config.tied = (gboolean)tied;
        make_checkpoint(f, &config, NULL, NULL, 0, NULL, 0);
        g_autoptr(RpWeights) weights = rp_weights_new(&config);
        gboolean bound = rp_must(rp_weights_bind, weights, f->tensors);
        assert_true(bound);
        assert_int_equal(rp_weights_dtype(weights), RP_DTYPE_BF16);
        for (guint i = 0; i < rp_weights_count(weights); i++) {
            const RpWeight *weight = rp_weights_nth(weights, i);
            assert_string_equal(rp_weights_source(weights, i)->name,
                                weight->tied ? "model.embed_tokens.weight" : weight->name);
        }
    }
}

RP_TEST_OF(names_each_disagreement, TensorFixture *f)
{
    static const guint64 shape[] = {24, 8};
    static const guint64 wrong[] = {8, 24};
    static const struct {
        const char *left_out;
        const char *more;
        RpDtype dtype;
        const guint64 *shape;
        guint rank;
        RpWeightsError code;
        const char *message;
    } cases[] = {
        {"model.layers.1.self_attn.q_proj.weight", NULL, 0, NULL, 0, RP_WEIGHTS_ERROR_MISSING,
         "model.safetensors: tensor \"model.layers.1.self_attn.q_proj.weight\": expected BF16 "
         "[24, 8], found no such tensor"},
        {"lm_head.weight", NULL, 0, NULL, 0, RP_WEIGHTS_ERROR_MISSING, "expected BF16 [10, 8]"},
        {NULL, "model.layers.2.mlp.up_proj.weight", RP_DTYPE_BF16, shape, 2, RP_WEIGHTS_ERROR_EXTRA,
         "tensor \"model.layers.2.mlp.up_proj.weight\": expected no such tensor for this "
         "config.json, found BF16 [24, 8]"},
        {NULL, "model.layers.1.self_attn.q_proj.bias", RP_DTYPE_BF16, shape, 1,
         RP_WEIGHTS_ERROR_EXTRA, "expected no such tensor"},
        {"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight",
         RP_DTYPE_BF16, wrong, 2, RP_WEIGHTS_ERROR_SHAPE,
         "expected BF16 [24, 8], as config.json has it, found BF16 [8, 24]"},
        {"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight",
         RP_DTYPE_BF16, shape, 1, RP_WEIGHTS_ERROR_SHAPE, "found BF16 [24]"},
        {"model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight",
         RP_DTYPE_FP32, shape, 2, RP_WEIGHTS_ERROR_DTYPE, "found F32 [24, 8]"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        make_checkpoint(f, &qwen3, cases[i].left_out, cases[i].more, cases[i].dtype, cases[i].shape,
                        cases[i].rank);
        assert_false(bind(f, &qwen3));
        rp_assert_error_message_contains(f->error, cases[i].message);
        assert_int_equal(f->error->code, cases[i].code);
    }
}

/* The refusal of "BYTES HEADER": a header over so many bytes of data. (transfer full) */
static char *
refusal(const char *words, gpointer data)
{
    TensorFixture *f = data;
    char *header = NULL;
    const gsize data_bytes = (gsize)g_ascii_strtoull(words, &header, 10);

    tensor_make(f, header + 1, data_bytes);
    assert_true(tensor_parse(f));
    (void)bind(f, &qwen3);
    return rp_test_refusal(&f->error);
}

/* Tests our formats, and others that are recognised by a tensor beside the weight. */
RP_TEST(refuses_packed_weights_by_their_format)
{
    rp_test_lines("tests/exec-model/messages.txt", "weights: packed", refusal, *state);
}

RP_TEST_OF(refuses_another_models_weights, TensorFixture *f)
{
    RpModel other = qwen3;

    make_checkpoint(f, &qwen3, NULL, NULL, 0, NULL, 0);
    other.intermediate = 16;
    assert_false(bind(f, &other));
    rp_assert_error_message_contains(f->error, "mlp.gate_proj.weight\": expected BF16 [16, 8], as "
                                               "config.json has it, found BF16 [12, 8]");
    other = qwen3;
    other.dtype = RP_DTYPE_FP16;
    assert_false(bind(f, &other));
    rp_assert_error_message_contains(f->error, "expected F16 [10, 8], as config.json has it, found "
                                               "BF16 [10, 8]");
    other.has_dtype = FALSE; /* then that of the file */
    assert_true(bind(f, &other));
    other.architecture = RP_ARCHITECTURE_LLAMA;
    assert_false(bind(f, &other));
    assert_int_equal(f->error->code, RP_WEIGHTS_ERROR_EXTRA);
}

RP_TEST_OF(takes_a_second_copy_of_a_tied_matrix_only_if_it_is_one, TensorFixture *f)
{
    static const guint64 shape[] = {10, 8};
    RpModel tied = qwen3;

    tied.tied = TRUE;
    make_checkpoint(f, &tied, NULL, "lm_head.weight", RP_DTYPE_BF16, shape, 2);
    assert_true(bind(f, &tied));
    g_autoptr(GBytes) file = tensor_load(f, "model.safetensors");
    gsize length;
    const guint8 *bytes = g_bytes_get_data(file, &length);
    gsize at = (gsize)((const guint8 *)rp_safetensors_find(f->tensors, "lm_head.weight")->data -
                       (const guint8 *)rp_safetensors_nth(f->tensors, 0)->data);
    gsize data = length;
    for (guint i = 0; i < rp_safetensors_count(f->tensors); i++)
        data -= rp_safetensors_nth(f->tensors, i)->bytes;
    g_autofree guint8 *changed = g_memdup2(bytes, length);
    changed[data + at + 7] = 1;
    g_bytes_unref(g_steal_pointer(&file));
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    g_clear_pointer(&f->bytes, g_bytes_unref);
    f->bytes = g_bytes_new_take(g_steal_pointer(&changed), length);
    assert_true(tensor_parse(f));
    assert_false(bind(f, &tied));
    assert_int_equal(f->error->code, RP_WEIGHTS_ERROR_TIED);
    rp_assert_error_message_contains(f->error, "tensor \"lm_head.weight\": expected the bytes of "
                                               "model.embed_tokens.weight");
}

RP_TEST_OF(ignores_inv_freq_as_transformers_does, TensorFixture *f)
{
    static const guint64 shape[] = {3};

    make_checkpoint(f, &qwen3, NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", RP_DTYPE_FP32,
                    shape, 1);
    assert_true(bind(f, &qwen3));
}

RP_TEST_OF(ignores_scales_of_activations_and_further_heads, TensorFixture *f)
{
    static const guint64 shape[] = {3};

    make_checkpoint(f, &qwen3, NULL, "model.layers.0.mlp.up_proj.activation_scale", RP_DTYPE_FP32,
                    shape, 0);
    assert_true(bind(f, &qwen3));
    make_checkpoint(f, &qwen3, NULL, "mtp.layers.0.mlp.up_proj.weight", RP_DTYPE_BF16, shape, 1);
    assert_true(bind(f, &qwen3));
}

RP_TEST_FIXTURE(tensor_setup, tensor_teardown)
