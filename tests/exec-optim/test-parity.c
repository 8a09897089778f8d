/*
 * Against PyTorch and transformers: fixtures/adamw.txt, written by fixtures/make-adamw.py.
 */
#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/optimizer.h"
#include "exec/optim/rules.h"

#define N 59 /* 7x5 weight, 5 norm, 7 bias, 3x4 weight */

static const RpParameterSpan spans[] = {{35, TRUE}, {12, FALSE}, {12, TRUE}};

typedef struct {
    char **lines;
    char **line; /* the next */
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
} Fixture;

static void
set_up(Fixture *f)
{
    g_autofree char *path = rp_test_source_path("tests/exec-optim/fixtures/adamw.txt");
    g_autofree char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, NULL))
        fail();
    f->lines = g_strsplit(g_strchomp(text), "\n", -1);
    f->line = f->lines;
}

static void
tear_down(Fixture *f)
{
    g_clear_pointer(&f->layer, rp_optimizer_layer_free);
    g_clear_pointer(&f->optimizer, rp_optimizer_free);
    g_strfreev(f->lines);
}

/* The words of the next line whose first word is @tag, or NULL. (transfer full) */
static char **
next_words(Fixture *f, const char *tag)
{
    while (*f->line != NULL) {
        char **words = g_strsplit(*f->line++, " ", -1);
        if (g_strcmp0(words[0], tag) == 0)
            return words;
        g_strfreev(words);
    }
    return NULL;
}

static void
read_floats(Fixture *f, const char *tag, float *values)
{
    g_auto(GStrv) words = next_words(f, tag);
    assert_non_null(words);
    assert_int_equal(g_strv_length(words), N + 1);
    for (gsize i = 0; i < N; i++)
        values[i] = rp_float_from_bits((uint32_t)g_ascii_strtoull(words[i + 1], NULL, 16));
}

static double
read_double(Fixture *f, const char *tag)
{
    g_auto(GStrv) words = next_words(f, tag);
    assert_non_null(words);
    return g_ascii_strtod(words[1], NULL);
}

/* |found - expected| / |expected|, Euclidean norms */
static double
relative_error(const float *found, const float *expected)
{
    double difference = 0, size = 0;
    for (gsize i = 0; i < N; i++) {
        difference += pow((double)found[i] - (double)expected[i], 2);
        size += pow((double)expected[i], 2);
    }
    return sqrt(difference / size);
}

RP_TEST_OF(ten_steps_equal_torch, Fixture *f)
{
    const RpAdamwOptions options = {
        .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
    const RpLearningRate rate = {RP_LEARNING_RATE_COSINE, 1e-2, 3, 10};
    float state_of_layer[3 * N], values[N], gradient[N];

    f->optimizer = rp_must(rp_optimizer_new, &options, NULL, NULL);
    f->layer = rp_optimizer_layer_new(f->optimizer, state_of_layer, N, spans, G_N_ELEMENTS(spans));
    read_floats(f, "initial", state_of_layer);

    for (guint step = 0; step < 10; step++) {
        read_floats(f, "gradient", gradient);
        const double sum = rp_optimizer_sum_squares(f->optimizer, gradient, RP_DTYPE_FP32, N);
        const RpClip clip = rp_clip_by_norm(&sum, 1, 1, 1);
        const double norm = read_double(f, "norm"), torch_rate = read_double(f, "rate");
        assert_true(fabs(clip.norm - norm) <= 1e-6 * norm);
        const RpOptimizerStep what = {
            .learning_rate = rp_learning_rate_at(&rate, step),
            .gradient_scale = clip.coefficient,
            .n_parameters = N,
            .gradient = {{gradient}},
        };
        assert_true(fabs(what.learning_rate - torch_rate) <= 1e-15);
        rp_optimizer_layer_apply(f->optimizer, f->layer, &what);
        rp_optimizer_layer_finish(f->layer);
        read_floats(f, "weight", values);
        assert_true(relative_error(rp_optimizer_layer_state(f->layer).weight, values) < 2e-7);
    }
    read_floats(f, "moment1", values);
    assert_true(relative_error(rp_optimizer_layer_state(f->layer).moment1, values) < 5e-7);
    read_floats(f, "moment2", values);
    assert_true(relative_error(rp_optimizer_layer_state(f->layer).moment2, values) < 5e-7);
}

/* Within a run, that is: past its end transformers' cosine rises again, ours stays at 0. */
RP_TEST_OF(learning_rates_equal_transformers, Fixture *f)
{
    guint n_schedules = 0;

    for (char **words; (words = next_words(f, "schedule")) != NULL;
         g_strfreev(words), n_schedules++) {
        RpLearningRate rate = {.kind = g_str_equal(words[1], "constant") ? RP_LEARNING_RATE_CONSTANT
                                       : g_str_equal(words[1], "linear") ? RP_LEARNING_RATE_LINEAR
                                                                         : RP_LEARNING_RATE_COSINE,
                               .peak = 3e-4,
                               .warmup_steps = g_ascii_strtoull(words[2], NULL, 10),
                               .total_steps = g_ascii_strtoull(words[3], NULL, 10)};
        for (guint64 step = 0; words[4 + step] != NULL; step++)
            if (rate.kind != RP_LEARNING_RATE_COSINE || step < rate.total_steps)
                assert_true(fabs(rp_learning_rate_at(&rate, step) -
                                 g_ascii_strtod(words[4 + step], NULL)) <= 1e-18);
    }
    assert_int_equal(n_schedules, 12);
}

RP_TEST_OF(rounding_equals_torch, Fixture *f)
{
    guint n_values = 0;

    for (char **words; (words = next_words(f, "round")) != NULL; g_strfreev(words), n_values++) {
        const float value = rp_float_from_bits((uint32_t)g_ascii_strtoull(words[1], NULL, 16));
        assert_int_equal(rp_bf16_from_float(value), g_ascii_strtoull(words[2], NULL, 16));
        assert_int_equal(rp_fp16_from_float(value), g_ascii_strtoull(words[3], NULL, 16));
    }
    assert_int_equal(n_values, 86);
}

RP_TEST_OF(loss_scale_equals_torch, Fixture *f)
{
    g_auto(GStrv) words = next_words(f, "scaler");
    RpLossScaleOptions options = RP_LOSS_SCALE_OPTIONS_INIT;
    RpLossScale scale = RP_LOSS_SCALE_INIT;

    assert_non_null(words);
    options.growth_interval = (guint)g_ascii_strtoull(words[1], NULL, 10);
    assert_int_equal(g_strv_length(words), 3 + 3 * g_ascii_strtoull(words[2], NULL, 10));
    for (char **word = words + 3; *word != NULL; word += 3) {
        const gboolean good = g_str_equal(word[0], "1");
        assert_int_equal(rp_loss_scale_update(&scale, &options, good), good);
        assert_true(scale.scale == (float)g_ascii_strtod(word[1], NULL));
        assert_int_equal(scale.good_steps, g_ascii_strtoull(word[2], NULL, 10));
    }
}

RP_TEST_STATE(Fixture, set_up, tear_down)
