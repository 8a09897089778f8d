/* Experts' matrices in the forms that files have: one by one, in one tensor, packed. */
#include "tests/exec-model/tensor-fixture.h"

#include "exec/model/layout.h"

#define EXPERTS 3
#define HIDDEN 64
#define MLP 32

static RpModel
model_of(RpArchitecture architecture)
{
    return (RpModel){
        .architecture = architecture,
        .hidden = HIDDEN,
        .blocks = 1,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 6,
        .intermediate = MLP,
        .experts = EXPERTS,
        .active_experts = 2,
        .vocab = 10,
        .max_positions = 32,
        .rms_norm_eps = 1e-6,
        .initializer_range = 0.02,
        .rope = {.theta = 1e4},
        .has_dtype = TRUE,
        .dtype = RP_DTYPE_BF16,
        .mlp_bias = architecture == RP_ARCHITECTURE_GPT_OSS,
        .bos_id = RP_MODEL_NO_TOKEN,
        .pad_id = RP_MODEL_NO_TOKEN,
    };
}

/* A tensor to be written. */
typedef struct {
    char *name;
    const char *type;
    guint rank;
    guint64 shape[4];
    guint8 *bytes;
    guint64 n_bytes;
} Tensor;

static void
tensor_clear(gpointer data)
{
    Tensor *tensor = data;

    g_free(tensor->name);
    g_free(tensor->bytes);
}

static Tensor *
find(GArray *tensors, const char *name)
{
    for (guint i = 0; i < tensors->len; i++)
        if (strcmp(g_array_index(tensors, Tensor, i).name, name) == 0)
            return &g_array_index(tensors, Tensor, i);
    return NULL;
}

/* Finite bf16 numbers from @seed. */
static guint8 *
noise(guint64 seed, guint64 elements)
{
    guint16 *bits = g_new(guint16, elements);
    GRand *random = g_rand_new_with_seed((guint32)seed);

    for (guint64 i = 0; i < elements; i++)
        bits[i] = (guint16)(0x3c00 + g_rand_int_range(random, 0, 0x300) +
                            (g_rand_boolean(random) ? 0x8000 : 0));
    g_rand_free(random);
    return (guint8 *)bits;
}

/* Each weight of @model in a tensor of its own, or with @stacked experts' in one. */
static GArray *
tensors_of(const RpModel *model, gboolean stacked)
{
    g_autoptr(RpWeights) weights = rp_weights_new(model);
    GArray *tensors = g_array_new(FALSE, TRUE, sizeof(Tensor));

    g_array_set_clear_func(tensors, tensor_clear);
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const gboolean piece = stacked && weight->stack_name != NULL;
        g_autofree guint8 *bytes = noise(i, weight->elements);
        Tensor tensor = {.type = "BF16", .rank = piece ? 3 : weight->rank};
        Tensor *stack = piece ? find(tensors, weight->stack_name) : NULL;

        if (stack == NULL) {
            tensor.name = g_strdup(piece ? weight->stack_name : weight->name);
            memcpy(tensor.shape, piece ? weight->stack : weight->shape, 3 * sizeof(guint64));
            tensor.n_bytes = 2 * (piece ? rp_weight_stack_elements(weight) : weight->elements);
            tensor.bytes = g_malloc0(tensor.n_bytes);
            g_array_append_val(tensors, tensor);
            stack = &g_array_index(tensors, Tensor, tensors->len - 1);
        }
        memcpy(stack->bytes + (piece ? 2 * weight->offset : 0), bytes, 2 * weight->elements);
    }
    return tensors;
}

static void
remove_tensor(GArray *tensors, const char *name)
{
    for (guint i = 0; i < tensors->len; i++)
        if (strcmp(g_array_index(tensors, Tensor, i).name, name) == 0) {
            g_array_remove_index(tensors, i);
            return;
        }
    fail();
}

static void
write_file(TensorFixture *f, const GArray *tensors)
{
    g_autofree char *path = tensor_path(f, "model.safetensors");

    g_clear_error(&f->error);
    g_clear_pointer(&f->tensors, rp_safetensors_free);
    g_clear_pointer(&f->writer, rp_safetensors_writer_free);
    f->writer = rp_safetensors_writer_new(path, 0);
    for (guint i = 0; i < tensors->len; i++) {
        const Tensor *tensor = &g_array_index(tensors, Tensor, i);

        rp_safetensors_writer_add_type(f->writer, tensor->name, tensor->type, tensor->shape,
                                       tensor->rank);
    }
    assert_true(rp_safetensors_writer_begin(f->writer, &f->error));
    for (guint i = 0; i < tensors->len; i++) {
        const Tensor *tensor = &g_array_index(tensors, Tensor, i);

        assert_true(
            rp_safetensors_writer_write(f->writer, i, tensor->bytes, tensor->n_bytes, &f->error));
    }
    assert_true(rp_safetensors_writer_finish(f->writer, &f->error));
    f->tensors = rp_must(rp_safetensors_open, path);
}

static RpWeights *
bind(TensorFixture *f, const RpModel *model, const GArray *tensors)
{
    RpWeights *weights = rp_weights_new(model);

    write_file(f, tensors);
    assert_true(rp_weights_bind(weights, f->tensors, &f->error) == (f->error == NULL));
    return weights;
}

RP_TEST_OF(reads_experts_one_by_one_or_in_one_tensor, TensorFixture *f)
{
    const RpModel model = model_of(RP_ARCHITECTURE_QWEN3_MOE);
    guint experts = 0;

    for (guint stacked = 0; stacked < 2; stacked++) {
        g_autoptr(GArray) tensors = tensors_of(&model, (gboolean)stacked);
        g_autoptr(RpWeights) weights = bind(f, &model, tensors);

        rp_assert_no_error(f->error);
        assert_true(rp_weights_check_finite(weights, RP_DTYPE_BF16, &f->error));
        for (guint i = 0; i < rp_weights_count(weights); i++) {
            const RpWeight *weight = rp_weights_nth(weights, i);
            g_autofree guint8 *bytes = noise(i, weight->elements);
            g_autofree float *expected = g_new(float, weight->elements);
            g_autofree float *values = g_new(float, weight->elements);

            rp_dtype_to_float(RP_DTYPE_BF16, bytes, expected, weight->elements);
            rp_weights_read(weights, i, 0, values, weight->elements);
            assert_memory_equal(values, expected, weight->elements * sizeof *values);
            rp_weights_read(weights, i, 3, values, weight->elements - 3);
            assert_memory_equal(values, expected + 3, (weight->elements - 3) * sizeof *values);
            experts += weight->stack_name != NULL;
        }
    }
    assert_int_equal(experts, 2 * 3 * EXPERTS);
}

/* Replaces the stack @name by blocks and scales of [E,out,in]. */
static void
pack(GArray *tensors, const char *name, guint64 out, guint64 in)
{
    const guint64 blocks = in / RP_MXFP4_BLOCK;
    Tensor quantized = {.name = g_strconcat(name, "_blocks", NULL),
                        .type = "U8",
                        .rank = 4,
                        .shape = {EXPERTS, out, blocks, RP_MXFP4_BLOCK / 2},
                        .n_bytes = EXPERTS * out * in / 2};
    Tensor scales = {.name = g_strconcat(name, "_scales", NULL),
                     .type = "U8",
                     .rank = 3,
                     .shape = {EXPERTS, out, blocks},
                     .n_bytes = EXPERTS * out * blocks};
    GRand *random = g_rand_new_with_seed((guint32)out);

    remove_tensor(tensors, name);
    quantized.bytes = g_malloc(quantized.n_bytes);
    scales.bytes = g_malloc(scales.n_bytes);
    for (guint64 i = 0; i < quantized.n_bytes; i++)
        quantized.bytes[i] = (guint8)g_rand_int_range(random, 0, 256);
    for (guint64 i = 0; i < scales.n_bytes; i++)
        scales.bytes[i] = (guint8)g_rand_int_range(random, 115, 135);
    g_rand_free(random);
    g_array_append_val(tensors, quantized);
    g_array_append_val(tensors, scales);
}

#define BLOCK "model.layers.0.mlp.experts."

static GArray *
packed_tensors_of(const RpModel *model)
{
    GArray *tensors = tensors_of(model, FALSE);

    pack(tensors, BLOCK "gate_up_proj", 2 * MLP, HIDDEN);
    pack(tensors, BLOCK "down_proj", HIDDEN, MLP);
    return tensors;
}

RP_TEST_OF(expands_packed_experts_and_turns_them, TensorFixture *f)
{
    const RpModel model = model_of(RP_ARCHITECTURE_GPT_OSS);
    g_autoptr(GArray) tensors = packed_tensors_of(&model);
    g_autoptr(RpWeights) weights = bind(f, &model, tensors);
    guint packed = 0;

    rp_assert_no_error(f->error);
    assert_true(rp_weights_check_finite(weights, RP_DTYPE_BF16, &f->error));
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const RpLowbitSource *source = rp_weights_packed(weights, i);
        const guint64 n = weight->elements, in = weight->shape[1], out = weight->shape[2];

        if (source == NULL)
            continue;
        const RpLowbitShape shape = rp_lowbit_shape_of(source->shape, source->rank);
        g_autofree guint8 *bytes = g_malloc(rp_lowbit_layout(RP_LOWBIT_MXFP4, shape).total);
        g_autofree float *straight = g_new(float, n), *values = g_new(float, n);

        rp_lowbit_source_load(source, bytes, NULL);
        rp_lowbit_expand(RP_LOWBIT_MXFP4, shape, bytes, RP_DTYPE_FP32, 0, n, straight);
        for (guint64 first = 0; first < n; first += 777)
            rp_weights_read(weights, i, first, values + first, (gsize)MIN(777, n - first));
        for (guint64 k = 0; k < n; k++)
            assert_true(values[k] ==
                        straight[(k / (in * out) * out + k % out) * in + k / out % in]);
        packed++;
    }
    assert_int_equal(packed, 2);
}

/* Names the tensor that has a NaN. */
RP_TEST_OF(names_what_is_wrong_with_experts, TensorFixture *f)
{
    const RpModel qwen = model_of(RP_ARCHITECTURE_QWEN3_MOE);
    const RpModel gpt = model_of(RP_ARCHITECTURE_GPT_OSS);
    static const char *const expected[] = {
        "tensor \"" BLOCK "1.up_proj.weight\": expected BF16 [32, 64], found no such tensor",
        "tensor \"" BLOCK "gate_up_proj\": expected BF16 [3, 64, 64], as config.json has it, found "
        "BF16 [3, 32, 128]",
        "tensor \"" BLOCK "0.gate_proj.weight\": expected no such tensor for this config.json",
        "tensor \"" BLOCK "down_proj_blocks\": expected mxfp4 [3, 64, 32], found mxfp4 "
        "[3, 32, 64]",
        "tensor \"" BLOCK "gate_up_proj_scales\": expected 384 bytes of U8, found U8 [383]",
        "found names of OpenAI's own files (block.0.attn.norm.scale), which are not read",
    };

    for (guint i = 0; i < G_N_ELEMENTS(expected); i++) {
        const RpModel *model = i < 3 ? &qwen : &gpt;
        g_autoptr(GArray) tensors = i < 3 ? tensors_of(model, i > 0) : packed_tensors_of(model);

        if (i == 0)
            remove_tensor(tensors, BLOCK "1.up_proj.weight");
        if (i == 1) {
            find(tensors, BLOCK "gate_up_proj")->shape[1] = 32;
            find(tensors, BLOCK "gate_up_proj")->shape[2] = 128;
        }
        if (i == 2) {
            g_autoptr(GArray) others = tensors_of(model, FALSE);
            Tensor extra = *find(others, BLOCK "0.gate_proj.weight");

            extra.name = g_strdup(extra.name);
            extra.bytes = g_memdup2(extra.bytes, extra.n_bytes);
            g_array_append_val(tensors, extra);
        }
        if (i == 3) {
            find(tensors, BLOCK "down_proj_blocks")->shape[1] = 32;
            find(tensors, BLOCK "down_proj_blocks")->shape[2] = 2;
        }
        if (i == 4) {
            Tensor *scales = find(tensors, BLOCK "gate_up_proj_scales");

            scales->rank = 1;
            scales->shape[0] = --scales->n_bytes;
        }
        if (i == 5) {
            Tensor *embedding = find(tensors, "model.embed_tokens.weight");

            g_free(embedding->name);
            embedding->name = g_strdup("block.0.attn.norm.scale");
        }
        g_autoptr(RpWeights) weights = bind(f, model, tensors);

        rp_assert_error_message_contains(f->error, expected[i]);
    }
}

RP_TEST_OF(finds_a_scale_that_is_nan, TensorFixture *f)
{
    const RpModel model = model_of(RP_ARCHITECTURE_GPT_OSS);
    g_autoptr(GArray) tensors = packed_tensors_of(&model);

    /* the scale of expert 1, output 2, inputs 32 and up: element (1, 32, 2) of the trained stack */
    find(tensors, BLOCK "gate_up_proj_scales")->bytes[(1 * 2 * MLP + 2) * 2 + 1] = 255;
    g_autoptr(RpWeights) weights = bind(f, &model, tensors);

    rp_assert_no_error(f->error);
    rp_refuses("tensor \"" BLOCK "gate_up_proj_blocks\": expected "
               "finite values in bf16, found nan at [6146]",
               rp_weights_check_finite, weights, RP_DTYPE_BF16);
}

RP_TEST(stacks_stand_without_gaps_inside)
{
    RpModel model = model_of(RP_ARCHITECTURE_QWEN3_MOE);

    model.hidden = 10; /* 10 m elements a matrix: no multiple of 64 */
    model.intermediate = 7;
    g_autoptr(RpWeights) weights = rp_weights_new(&model);
    const RpLayerLayout layout = rp_layer_layout(weights, 1, RP_DTYPE_BF16, NULL);
    const RpWeightPlace *stack = &layout.place[RP_WEIGHT_GATE_UP];
    guint64 at = stack->element, rooms = 0;
    guint first;
    const guint n = rp_weights_layer(weights, 1, &first);

    assert_memory_equal(stack->shape, ((guint64[]){EXPERTS, 14, 10}), sizeof stack->shape);
    assert_false(stack->transposed);
    assert_int_equal(stack->element % RP_LAYOUT_ALIGNMENT, 0);
    for (guint i = first; i < first + n; i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        const RpWeightPlace place = rp_layout_place(&layout, weight);

        rooms += rp_layout_bytes_left(weight);
        assert_int_equal(place.byte, 2 * place.element);
        if (weight->kind != RP_WEIGHT_GATE_UP)
            continue;
        assert_int_equal(place.element, at);
        at += weight->elements;
    }
    assert_int_equal(at, stack->element + EXPERTS * 14 * 10);
    assert_int_equal(rooms, layout.elements);
    assert_int_equal(2 * rooms, layout.bytes);

    model = model_of(RP_ARCHITECTURE_GPT_OSS);
    g_autoptr(RpWeights) turned = rp_weights_new(&model);
    const RpLayerLayout other = rp_layer_layout(turned, 1, RP_DTYPE_BF16, NULL);

    assert_true(other.place[RP_WEIGHT_DOWN].transposed);
    assert_memory_equal(other.place[RP_WEIGHT_DOWN].shape, ((guint64[]){EXPERTS, MLP, HIDDEN}),
                        sizeof stack->shape);
}

RP_TEST_FIXTURE(tensor_setup, tensor_teardown)
