/* Gradients that `roundpipe train` saves. */
#include "tests/cli/train-files.h"

#include <math.h>

#define TRAIN "train @T/run.yaml --set output=@T/"

/* Norm of the gradients in @T/@name; infinite if one of them is. */
static double
gradient_norm(const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    g_autofree char *data = NULL;
    gsize length = 0;
    guint64 header = 0;
    double squares = 0;

    assert_true(g_file_get_contents(path, &data, &length, NULL));
    memcpy(&header, data, sizeof header);
    assert_non_null(
        g_strstr_len(data + 8, (gssize)header, "\"model.layers.3.mlp.up_proj.weight\""));
    assert_non_null(g_strstr_len(data + 8, (gssize)header, "\"F32\""));
    for (gsize at = 8 + (gsize)header; at + 4 <= length; at += 4) {
        float value;

        memcpy(&value, data + at, sizeof value);
        squares += (double)value * value;
    }
    return sqrt(squares);
}

RP_TEST(saves_gradients_whose_norm_is_that_of_the_first_step)
{
    rp_cli_must_run(TRAIN "grad --set dtype=fp32 --save-gradients @T/gradients.safetensors");
    /* nothing was left in the output directory */
    rp_cli_must_run(TRAIN "grad --set dtype=fp32 --set steps=1");
    g_autofree char *line = rp_cli_read("grad/metrics.jsonl");
    g_autoptr(RpTree) metrics = rp_tree_parse(line);

    assert_float_equal(gradient_norm("gradients.safetensors"), rp_cli_number(metrics, "grad_norm"),
                       1e-5);
}

RP_TEST(saves_finite_gradients_of_fp16_although_the_first_scale_overflows)
{
    const char *const modes[] = {"false", "true"};
    rp_cli_must_run(TRAIN "grad16 --set dtype=fp32 --save-gradients @T/exact.safetensors");
    double norm = gradient_norm("exact.safetensors");

    for (gsize i = 0; i < G_N_ELEMENTS(modes); i++) {
        g_auto(RpCliRun) run = rp_cli_run(
            TRAIN "grad16 --set dtype=fp16 --set async=%s --set loss_scale.initial=16777216 "
                  "--save-gradients @T/scaled.safetensors",
            modes[i]);
        assert_int_equal(run.code, 0);
        assert_non_null(
            strstr(run.err, "they overflow at a loss scale of 1.67772e+07; these were"));
        assert_float_equal(gradient_norm("scaled.safetensors"), norm, norm * 0.01);
    }
}

RP_TEST_GROUP(rp_train_files_setup, rp_cli_teardown)
