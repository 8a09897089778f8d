#include "tests/exec-model/tensor-fixture.h"

#include <math.h>

#include "exec/model/weights.h"

/* Larger than a piece of the search (2^20 values), and by no whole number of its blocks. */
#define HIDDEN 10u
#define VOCABULARY 120001u

typedef struct {
    TensorFixture *files;
    RpModel config;
    RpWeights *weights;
    guint8 *bytes;
    gsize length;
} Model;

static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16, RP_DTYPE_FP16};

static void
model_clear(Model *model)
{
    g_clear_error(&model->files->error);
    g_clear_pointer(&model->files->tensors, rp_safetensors_free);
    g_clear_pointer(&model->weights, rp_weights_free);
    g_clear_pointer(&model->bytes, g_free);
}

/* All weights in one file in memory, that can be changed. */
static void
model_make(Model *model, RpDtype dtype)
{
    TensorFixture *f = model->files;
    g_autofree char *path = tensor_path(f, "model.safetensors");

    model_clear(model);
    model->config = (RpModel){.architecture = RP_ARCHITECTURE_LLAMA,
                              .hidden = HIDDEN,
                              .blocks = 2,
                              .heads = 5,
                              .kv_heads = 5,
                              .head_dim = 2,
                              .intermediate = 12,
                              .vocab = VOCABULARY,
                              .tied = TRUE,
                              .has_dtype = TRUE,
                              .dtype = dtype};
    model->weights = rp_weights_new(&model->config);
    g_autofree guint8 *zeros = g_malloc0((gsize)VOCABULARY * HIDDEN * sizeof(float));
    g_clear_pointer(&f->writer, rp_safetensors_writer_free);
    f->writer = rp_safetensors_writer_new(path, 0);
    for (guint i = 0; i + 1 < rp_weights_count(model->weights); i++) {
        const RpWeight *weight = rp_weights_nth(model->weights, i);
        rp_safetensors_writer_add(f->writer, weight->name, dtype, weight->shape, weight->rank);
    }
    assert_true(rp_safetensors_writer_begin(f->writer, &f->error));
    for (guint i = 0; i + 1 < rp_weights_count(model->weights); i++)
        assert_true(rp_safetensors_writer_write(
            f->writer, i, zeros, rp_weights_nth(model->weights, i)->elements * rp_dtype_size(dtype),
            &f->error));
    assert_true(rp_safetensors_writer_finish(f->writer, &f->error));
    assert_true(g_file_get_contents(path, (char **)&model->bytes, &model->length, NULL));
    f->tensors = rp_must(rp_safetensors_parse, "FILE", model->bytes, model->length);
    assert_true(rp_weights_bind(model->weights, f->tensors, &f->error));
}

static guint8 *
model_values(Model *model, guint weight)
{
    const guint8 *data = rp_weights_source(model->weights, weight)->data;

    return model->bytes + (data - model->bytes);
}

static gboolean
check(Model *model, RpDtype dtype)
{
    g_clear_error(&model->files->error);
    return rp_weights_check_finite(model->weights, dtype, &model->files->error);
}

static gboolean
is_finite_in(RpDtype from, guint32 bits, RpDtype to)
{
    guint8 rounded[sizeof(float)];
    float value;

    rp_dtype_to_float(from, &bits, &value, 1);
    rp_dtype_from_float(to, &value, rounded, 1);
    rp_dtype_to_float(to, rounded, &value, 1);
    return isfinite(value);
}

/* The @k-th pattern of a type; of fp32 one in 65521, and all near the limits. */
static guint32
pattern(RpDtype dtype, guint64 k)
{
    static const guint32 limits[] = {0x477ff000, 0x7f7f8000, 0x7f800000, 0x7fc00000};

    if (dtype != RP_DTYPE_FP32)
        return (guint32)(k & 0xffff);
    guint32 near = limits[k % 4] + (guint32)(k / 4 % 64) - 32;
    return k % 2 == 0 ? (guint32)(k * 65521) : k % 3 == 0 ? near : near | 0x80000000;
}

/* All finite values pass, at once; each of the others is found by itself. */
RP_TEST(agrees_with_rounding_for_every_pattern)
{
    Model model = {.files = *state};

    for (gsize from = 0; from < G_N_ELEMENTS(dtypes); from++) {
        gsize size = rp_dtype_size(dtypes[from]);
        for (gsize to = 0; to < G_N_ELEMENTS(dtypes); to++) {
            guint n_bad = 0;
            model_make(&model, dtypes[from]);
            guint8 *values = model_values(&model, 0);
            for (guint64 k = 0; k < (guint64)VOCABULARY * HIDDEN; k++) {
                guint32 bits = pattern(dtypes[from], k);
                if (is_finite_in(dtypes[from], bits, dtypes[to]))
                    memcpy(values + k * size, &bits, size);
            }
            if (!check(&model, dtypes[to]))
                fail_msg("%s", model.files->error->message);
            for (guint64 k = 0; k < 1 << 16; k += k % 5 + 1) {
                guint32 before, bits = pattern(dtypes[from], k);
                if (is_finite_in(dtypes[from], bits, dtypes[to]) ||
                    n_bad++ > (RP_TEST_FEW ? 20 : 200))
                    continue;
                memcpy(&before, values + k * size, size);
                memcpy(values + k * size, &bits, size);
                assert_false(check(&model, dtypes[to]));
                g_autofree char *place = g_strdup_printf(" at [%" G_GUINT64_FORMAT ", %u]",
                                                         k / HIDDEN, (guint)(k % HIDDEN));
                rp_assert_error_message_contains(model.files->error, place);
                memcpy(values + k * size, &before, size);
            }
            assert_true(n_bad > 10);
        }
    }
    model_clear(&model);
}

RP_TEST(names_the_first_by_tensor_and_index)
{
    static const struct {
        guint layer;
        RpWeightKind kind;
        guint64 index;
        guint16 bits; /* bf16 bits */
        const char *message;
    } cases[] = {
        /* from behind: each is nearer to the front than those before */
        {2, RP_WEIGHT_O, 17, 0xff80,
         "tensor \"model.layers.1.self_attn.o_proj.weight\": expected finite values in fp16, found "
         "-inf at [1, 7]"},
        {1, RP_WEIGHT_POST_NORM, HIDDEN - 1, 0x4780,
         "\"model.layers.0.post_attention_layernorm.weight\": expected finite values in fp16, "
         "found "
         "65536, which is infinite there, at [9]"},
        {0, RP_WEIGHT_EMBEDDING, (guint64)VOCABULARY * HIDDEN - 1, 0x7fc0,
         "FILE: tensor \"model.embed_tokens.weight\": expected finite values in fp16, found nan at "
         "[120000, 9]"},
        {0, RP_WEIGHT_EMBEDDING, 1 << 20, 0x4780, "there, at [104857, 6]"},
        {0, RP_WEIGHT_EMBEDDING, 0, 0xff80, "found -inf at [0, 0]"},
    };
    Model model = {.files = *state};

    model_make(&model, RP_DTYPE_BF16);
    assert_true(check(&model, RP_DTYPE_FP16));
    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++) {
        int weight = rp_weights_find(model.weights, cases[i].layer, cases[i].kind);
        memcpy(model_values(&model, (guint)weight) + 2 * cases[i].index, &cases[i].bits, 2);
        assert_false(check(&model, RP_DTYPE_FP16));
        rp_assert_error_message_contains(model.files->error, cases[i].message);
        assert_true(g_error_matches(model.files->error, RP_WEIGHTS_ERROR, RP_WEIGHTS_ERROR_VALUE));
    }
    model_clear(&model);
}

RP_TEST_FIXTURE(tensor_setup, tensor_teardown)
