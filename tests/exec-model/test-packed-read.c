/* Weights that are packed, read element by element: the values that devices expand them to. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>

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

static void
reads_what_devices_expand(void **state)
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_devices_expand),
    };

    return cmocka_run_group_tests_name("packed weights read", tests, NULL, NULL);
}
