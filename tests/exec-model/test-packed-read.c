/* Weights that are packed, read element by element: the values that devices expand them to. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

#include "exec/model/init.h"
#include "exec/quantise/quantise.h"

/* Blocks of fp8 and of nf4's nested scales end within rows, and within matrices. */
static const RpModel model = {
    .architecture = RP_ARCHITECTURE_QWEN3_MOE,
    .hidden = 160,
    .blocks = 1,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 40,
    .intermediate = 96,
    .experts = 3,
    .active_experts = 2,
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

/* In pieces that begin and end anywhere. */
static void
check_weight(const RpWeights *weights, guint index)
{
    const RpWeight *weight = rp_weights_nth(weights, index);
    const RpLowbitSource *source = rp_weights_packed(weights, index);
    const RpLowbitShape shape = rp_weight_lowbit_shape(weight);
    g_autofree guint8 *packed = g_malloc(rp_lowbit_layout(weight->format, shape).total);
    g_autofree float *expected = g_new(float, weight->elements);
    g_autofree float *found = g_new(float, weight->elements);

    rp_lowbit_source_load(source, packed, NULL);
    rp_lowbit_expand(weight->format, shape, packed, RP_DTYPE_FP32, (gsize)weight->offset,
                     (gsize)weight->elements, expected);
    for (guint64 at = 0, n = 1; at < weight->elements; at += n, n = 3 * n + 1) {
        n = MIN(n, weight->elements - at);
        rp_weights_read(weights, index, at, found + at, (gsize)n);
    }
    assert_memory_equal(found, expected, weight->elements * sizeof *found);
}

RP_TEST(reads_what_devices_expand)
{
    const RpLora lora = {.rank = 1, .alpha = 1};

    for (guint f = 0; f < RP_N_LOWBITS; f++) {
        char *directory = g_dir_make_tmp("rp-packed-XXXXXX", NULL);
        const RpInitOptions options = {.seed = f};
        GError *error = NULL;
        guint n_packed = 0;

        if (!rp_quantise_random(&model, (RpLowbit)f, directory, &options, &error))
            rp_assert_no_error(error);
        RpSafetensors *file = rp_safetensors_open(directory, &error);
        RpWeights *weights = rp_weights_new_adapted(&model, &lora);

        if (file == NULL || !rp_weights_adopt(weights, file, &error) ||
            !rp_weights_bind(weights, file, &error))
            rp_assert_no_error(error);
        for (guint i = 0; i < rp_weights_count(weights); i++) {
            if (!rp_weights_nth(weights, i)->is_packed)
                continue;
            check_weight(weights, i);
            n_packed++;
        }
        assert_true(n_packed >= 9);
        rp_weights_free(weights);
        rp_safetensors_free(file);
        g_autofree char *line = g_strdup_printf("rm -r %s", directory);
        assert_int_equal(system(line), 0);
        g_free(directory);
    }
}

/* ---- one scale of a whole weight ---- */

#define ONE_SCALE 0.37f /* is no bf16 */

/* Copies a model in fp8, its scales cut to one: in fp32 or, of every second, in bf16. @left_out: (nullable): a scale
 * that gets another name */
static void
write_one_scale(const RpSafetensors *from, const char *path, const char *left_out)
{
    RpSafetensorsWriter *writer = rp_safetensors_writer_new(path, 0);
    const float scale = ONE_SCALE;
    const guint16 half = rp_bf16_from_float(ONE_SCALE);
    GError *error = NULL;

    for (guint i = 0; i < rp_safetensors_count(from); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(from, i);
        const gboolean cut = g_str_has_suffix(tensor->name, "_scale_inv");

        rp_safetensors_writer_add_type(
            writer, g_strcmp0(tensor->name, left_out) == 0 ? "mtp.left" : tensor->name,
            cut && i % 2 > 0 ? "BF16" : tensor->dtype_name, tensor->shape, cut ? 0 : tensor->rank);
    }
    assert_true(rp_safetensors_writer_begin(writer, &error));
    for (guint i = 0; i < rp_safetensors_count(from); i++) {
        const RpSafetensor *tensor = rp_safetensors_nth(from, i);
        const gboolean cut = g_str_has_suffix(tensor->name, "_scale_inv");
        const void *data = !cut ? tensor->data : i % 2 > 0 ? (const void *)&half : &scale;

        assert_true(rp_safetensors_writer_write(writer, i, data,
                                                !cut        ? tensor->bytes
                                                : i % 2 > 0 ? 2
                                                            : 4,
                                                &error));
    }
    assert_true(rp_safetensors_writer_finish(writer, &error));
    rp_safetensors_writer_free(writer);
}

/* Every scale in memory is the one of the file. */
static void
check_scales(const RpWeights *weights, guint index)
{
    const RpLowbitSource *source = rp_weights_packed(weights, index);
    const RpLowbitShape shape = rp_weight_lowbit_shape(rp_weights_nth(weights, index));
    const RpLowbitLayout layout = rp_lowbit_layout(RP_LOWBIT_FP8, shape);
    g_autofree guint8 *packed = g_malloc(layout.total);
    const float bf16 = rp_float_from_bf16(rp_bf16_from_float(ONE_SCALE));

    rp_lowbit_source_load(source, packed, NULL);
    for (gsize at = 0; at < layout.bytes[RP_LOWBIT_SCALES]; at += sizeof(float)) {
        float found;

        memcpy(&found, packed + layout.at[RP_LOWBIT_SCALES] + at, sizeof found);
        assert_true(found == ONE_SCALE || found == bf16);
    }
}

RP_TEST(reads_fp8_with_one_scale_a_tensor)
{
    const RpLora lora = {.rank = 1, .alpha = 1};
    g_autofree char *directory = g_dir_make_tmp("rp-packed-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(directory, "one.safetensors", NULL);
    g_autofree char *line = g_strdup_printf("rm -r %s", directory);
    const RpInitOptions options = {.seed = 5};
    GError *error = NULL;
    guint n_packed = 0;

    if (!rp_quantise_random(&model, RP_LOWBIT_FP8, directory, &options, &error))
        rp_assert_no_error(error);
    RpSafetensors *blocks = rp_safetensors_open(directory, &error);
    write_one_scale(blocks, path, NULL);
    RpSafetensors *file = rp_safetensors_open(path, &error);
    RpWeights *weights = rp_weights_new_adapted(&model, &lora);

    if (file == NULL || !rp_weights_adopt(weights, file, &error) ||
        !rp_weights_bind(weights, file, &error))
        rp_assert_no_error(error);
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        if (!rp_weights_nth(weights, i)->is_packed)
            continue;
        check_weight(weights, i);
        check_scales(weights, i);
        n_packed++;
    }
    assert_true(n_packed >= 9);
    rp_weights_free(weights);
    /* without adapters weights are expanded as they are read; a scale that is not there is named */
    weights = rp_weights_new(&model);
    assert_true(rp_weights_bind(weights, file, &error));
    rp_safetensors_free(file);
    write_one_scale(blocks, path, "model.layers.0.self_attn.k_proj.weight_scale_inv");
    file = rp_safetensors_open(path, &error);
    assert_false(rp_weights_bind(weights, file, &error));
    rp_assert_error_message_contains(error, "k_proj.weight_scale_inv\": expected it beside");
    g_clear_error(&error);
    rp_weights_free(weights);
    rp_safetensors_free(file);
    rp_safetensors_free(blocks);
    assert_int_equal(system(line), 0);
}

/* ---- experts that are packed one by one ---- */

#define LAST "model.layers.0.mlp.experts.2.up_proj.weight" /* the last of gate and up */

/* Flaws of a file. */
typedef enum { GOOD, PLAIN_PIECE, PLAIN_FIRST, NO_PIECE, OTHER_FORMAT, NAN_SCALE } Flaw;

typedef struct {
    char *directory;
    RpSafetensors *file;
    RpWeights *weights; /* adopted and bound to @file, if that went well */
    GError *error;
} Apart;

static void
apart_clear(Apart *apart)
{
    g_autofree char *line = g_strdup_printf("rm -r %s", apart->directory);

    rp_weights_free(apart->weights);
    rp_safetensors_free(apart->file);
    g_clear_error(&apart->error);
    assert_int_equal(system(line), 0);
    g_free(apart->directory);
}
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(Apart, apart_clear)

static RpSafetensor
random_tensor(const RpModel *of, const RpWeight *weight)
{
    RpSafetensor tensor = {.name = weight->name,
                           .file = "random",
                           .dtype = RP_DTYPE_BF16,
                           .supported = TRUE,
                           .rank = weight->rank,
                           .elements = weight->elements,
                           .bytes = 2 * weight->elements};
    g_autofree float *values = g_new(float, weight->elements);
    guint8 *bytes = g_malloc(tensor.bytes);

    memcpy(tensor.shape, weight->shape, sizeof weight->shape);
    rp_init_fill(of, weight, 7, 0, values, (gsize)weight->elements);
    rp_dtype_from_float(RP_DTYPE_BF16, values, bytes, (gsize)weight->elements);
    tensor.data = bytes;
    return tensor;
}

static gboolean
is_plain(const RpModel *of, const RpWeight *weight, RpLowbit format, Flaw flaw)
{
    return !rp_weight_packs(of, weight, format) ||
           (flaw == PLAIN_PIECE && g_str_equal(weight->name, LAST)) ||
           (flaw == PLAIN_FIRST && strstr(weight->name, "experts.0.gate_proj") != NULL);
}

static RpLowbit
format_of(const RpWeight *weight, RpLowbit format, Flaw flaw)
{
    return flaw == OTHER_FORMAT && g_str_equal(weight->name, LAST) ? RP_LOWBIT_FP8 : format;
}

/* Writes every matrix by itself, experts' too. */
static void
write_apart(const RpModel *of, RpLowbit format, Flaw flaw, const char *path)
{
    g_autoptr(RpWeights) plain = rp_weights_new(of);
    g_autoptr(RpSafetensorsWriter) writer = rp_safetensors_writer_new(path, 0);
    const guint n = rp_weights_count(plain);
    g_autofree RpLowbitTarget *targets = g_new0(RpLowbitTarget, n);
    g_autofree guint *numbers = g_new0(guint, n);
    GError *error = NULL;

    for (guint i = 0; i < n; i++) {
        const RpWeight *weight = rp_weights_nth(plain, i);

        if (flaw == NO_PIECE && g_str_equal(weight->name, LAST))
            continue;
        if (is_plain(of, weight, format, flaw))
            numbers[i] = rp_safetensors_writer_add(writer, weight->name, RP_DTYPE_BF16,
                                                   weight->shape, weight->rank);
        else if (!rp_lowbit_target_add(writer, weight->name, format_of(weight, format, flaw),
                                       weight->shape, weight->rank, RP_DTYPE_BF16, &targets[i],
                                       &error))
            rp_assert_no_error(error);
    }
    assert_true(rp_safetensors_writer_begin(writer, &error));
    for (guint i = 0; i < n; i++) {
        const RpWeight *weight = rp_weights_nth(plain, i);
        const RpLowbit as = format_of(weight, format, flaw);
        const RpSafetensor tensor = random_tensor(of, weight);
        const RpLowbitShape shape = {1, (gsize)weight->shape[0], (gsize)weight->shape[1]};
        const RpLowbitLayout layout = rp_lowbit_layout(as, shape);
        guint8 *packed = g_aligned_alloc0(1, layout.total, RP_LOWBIT_ALIGNMENT);
        const float nan = NAN;
        gboolean good = TRUE;

        if (is_plain(of, weight, format, flaw)) {
            good =
                rp_safetensors_writer_write(writer, numbers[i], tensor.data, tensor.bytes, &error);
        } else if (flaw != NO_PIECE || !g_str_equal(weight->name, LAST)) {
            good = rp_lowbit_pack_tensor(as, &tensor, packed, NULL, &error);
            if (flaw == NAN_SCALE && g_str_equal(weight->name, LAST))
                memcpy(packed + layout.at[RP_LOWBIT_SCALES], &nan, sizeof nan);
            good = good && rp_lowbit_target_write(writer, &targets[i], packed, &error);
        }
        if (!good)
            rp_assert_no_error(error);
        rp_lowbit_target_clear(&targets[i]);
        g_aligned_free(packed);
        g_free((gpointer)(guintptr)tensor.data);
    }
    assert_true(rp_safetensors_writer_finish(writer, &error));
}

static Apart
open_apart(const RpModel *of, RpLowbit format, Flaw flaw)
{
    const RpLora lora = {.rank = 1, .alpha = 1};
    Apart apart = {.directory = g_dir_make_tmp("rp-apart-XXXXXX", NULL)};
    g_autofree char *path = g_build_filename(apart.directory, "model.safetensors", NULL);

    write_apart(of, format, flaw, path);
    apart.file = rp_safetensors_open(apart.directory, &apart.error);
    apart.weights = rp_weights_new_adapted(of, &lora);
    if (apart.file != NULL && rp_weights_adopt(apart.weights, apart.file, &apart.error) &&
        rp_weights_bind(apart.weights, apart.file, &apart.error) &&
        rp_weights_check_finite(apart.weights, RP_DTYPE_BF16, &apart.error))
        assert_int_equal(strlen(rp_weights_base_hash(apart.weights)), RP_WEIGHTS_HASH_DIGITS);
    return apart;
}

/* Compares a piece with the same matrix expanded by itself. */
static void
check_piece(const Apart *apart, guint index, RpLowbit format)
{
    const RpWeight *weight = rp_weights_nth(apart->weights, index);
    const RpLowbitShape shape = {1, weight->shape[0], weight->shape[1]};
    g_autofree float *expected = g_new(float, weight->elements);
    g_autofree float *found = g_new(float, weight->elements);
    GError *error = NULL;
    RpLowbitSource source;

    assert_true(rp_lowbit_source_find(apart->file, weight->name, &source, &error));
    g_autofree guint8 *packed = g_malloc(rp_lowbit_layout(format, shape).total);
    rp_lowbit_source_load(&source, packed, NULL);
    rp_lowbit_expand(format, shape, packed, RP_DTYPE_FP32, 0, (gsize)weight->elements, expected);
    rp_weights_read(apart->weights, index, 0, found, (gsize)weight->elements);
    assert_memory_equal(found, expected, weight->elements * sizeof *found);
}

/* Weights that do not stay packed have the same values, and the same base of adapters. */
static void
check_expanded(const Apart *apart, const RpModel *of)
{
    const RpLora lora = {.rank = 1, .alpha = 1};
    g_autoptr(RpWeights) weights = rp_weights_new_adapted(of, &lora);
    GError *error = NULL;

    if (!rp_weights_bind(weights, apart->file, &error) ||
        !rp_weights_check_finite(weights, RP_DTYPE_BF16, &error))
        rp_assert_no_error(error);
    assert_false(rp_weights_is_packed(weights));
    assert_string_equal(rp_weights_base_hash(weights), rp_weights_base_hash(apart->weights));
    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const gsize n = (gsize)rp_weights_nth(weights, i)->elements;
        g_autofree float *expected = g_new(float, n), *found = g_new(float, n);

        rp_weights_read(apart->weights, i, 0, expected, n);
        rp_weights_read(weights, i, 0, found, n);
        assert_memory_equal(found, expected, n * sizeof *found);
    }
}

RP_TEST(stacks_experts_that_are_packed_one_by_one)
{
    static const RpLowbit formats[] = {RP_LOWBIT_NF4, RP_LOWBIT_NF4_SINGLE, RP_LOWBIT_FP8};
    RpModel of = model;

    for (guint f = 0; f < G_N_ELEMENTS(formats); f++) {
        of.intermediate = formats[f] == RP_LOWBIT_FP8 ? 2 * RP_FP8_BLOCK : model.intermediate;
        g_auto(Apart) apart = open_apart(&of, formats[f], GOOD);
        guint stacked = 0;

        rp_assert_no_error(apart.error);
        for (guint i = 0; i < rp_weights_count(apart.weights); i++) {
            const RpWeight *weight = rp_weights_nth(apart.weights, i);

            if (!weight->is_packed)
                continue;
            check_weight(apart.weights, i);
            check_piece(&apart, i, formats[f]);
            stacked += weight->stack[0] > 0;
        }
        assert_int_equal(stacked, 3 * model.experts);
        check_expanded(&apart, &of);
    }
}

RP_TEST(names_the_matrix_that_does_not_stack)
{
    static const struct {
        Flaw flaw;
        RpLowbit format;
        const char *says;
    } rows[] = {
        {PLAIN_PIECE, RP_LOWBIT_NF4, "\"" LAST "\": expected nf4-single [96, 160], found BF16 "},
        {PLAIN_FIRST, RP_LOWBIT_NF4, "experts.0.up_proj.weight\": expected it in 16 or 32 bits"},
        {NO_PIECE, RP_LOWBIT_NF4_SINGLE, "\"" LAST "\": expected a weight, found no such tensor"},
        {OTHER_FORMAT, RP_LOWBIT_NF4_SINGLE,
         "\"" LAST "\": expected nf4-single [96, 160], found fp8"},
        {GOOD, RP_LOWBIT_FP8,
         "experts.0.gate_proj.weight\": expected whole blocks of fp8, found fp8 [96, 160]"},
        {NAN_SCALE, RP_LOWBIT_NF4_SINGLE,
         "\"" LAST
         "\": expected finite values in bf16, found one that is infinite or NaN at [0, 0]"},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_auto(Apart) apart = open_apart(&model, rows[i].format, rows[i].flaw);

        rp_assert_error_message_contains(apart.error, rows[i].says);
    }
}
