/* Lion, and weights in bf16: fixtures/forms.txt, written by fixtures/make-forms.py. Devices read the kept weights,
 * rounded. All variants widen quantized moments alike. */
#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/optimizer.h"
#include "tests/exec-optim/values.h"

#define N 600 /* parameters of the fixture: two blocks, and a short one */
#define STEPS 5
#define SEED 0x123456789abcdef
#define LAYER 3
#define MANY 100003
#define MOST 4.5 /* standard deviations */

typedef struct {
    char **lines;
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
    guint8 *memory;
    gsize bytes;
} Fixture;

static void
close_layer(Fixture *f)
{
    g_clear_pointer(&f->layer, rp_optimizer_layer_free);
    g_clear_pointer(&f->optimizer, rp_optimizer_free);
    g_clear_pointer(&f->memory, g_free);
}

static void
set_up(Fixture *f)
{
    g_autofree char *path = rp_test_source_path("tests/exec-optim/fixtures/forms.txt");
    g_autofree char *text = NULL;

    if (!g_file_get_contents(path, &text, NULL, NULL))
        fail();
    f->lines = g_strsplit(g_strchomp(text), "\n", -1);
}

static void
tear_down(Fixture *f)
{
    close_layer(f);
    g_strfreev(f->lines);
}

static void
open_layer(Fixture *f, RpStateFormat form, gsize n, double weight_decay, void *shared)
{
    const RpAdamwOptions options = {.beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .epsilon = 1e-8,
                                    .weight_decay = weight_decay,
                                    .form = form,
                                    .seed = SEED};
    g_autofree float *values = g_new(float, n);

    close_layer(f);
    f->optimizer = rp_must(rp_optimizer_new, &options, NULL, NULL);
    f->bytes = rp_optimizer_state_bytes(form, n);
    f->memory = g_malloc(f->bytes);
    f->layer = rp_optimizer_layer_new(f->optimizer, f->memory, n, NULL, 0);
    rp_optimizer_layer_set_number(f->layer, LAYER, 0);
    if (form.shared)
        rp_optimizer_layer_share(f->layer, shared);
    rp_fill(values, 0, n);
    rp_optimizer_layer_set_weights(f->layer, 0, values, n);
}

static void
train(Fixture *f, RpStateFormat form)
{
    float values[N];
    const RpOptimizerStep step = {
        .learning_rate = 1e-2, .gradient_scale = 1, .n_parameters = N, .gradient = {{values}}};

    open_layer(f, form, N, 0.1, NULL);
    for (guint i = 1; i <= STEPS; i++) {
        rp_fill(values, i, N);
        rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
        rp_optimizer_layer_finish(f->layer);
    }
}

/* The numbers of the line that begins with @tag. (transfer full) */
static guint32 *
read_line(const Fixture *f, const char *tag, gboolean hex)
{
    g_autofree char *begin = g_strconcat(tag, " ", NULL);
    guint32 *numbers = g_new(guint32, N);

    for (char **line = f->lines; *line != NULL; line++) {
        if (!g_str_has_prefix(*line, begin))
            continue;
        g_auto(GStrv) words = g_strsplit(*line, " ", -1);

        assert_int_equal(g_strv_length(words), N + 1);
        for (gsize i = 0; i < N; i++)
            numbers[i] = (guint32)g_ascii_strtoull(words[i + 1], NULL, hex ? 16 : 10);
        return numbers;
    }
    fail_msg("no %s in the fixture", tag);
    return NULL;
}

static void
assert_floats(const Fixture *f, const char *tag, const float *found, double tolerance)
{
    g_autofree guint32 *expected = read_line(f, tag, TRUE);
    double difference = 0, size = 0;

    for (gsize i = 0; i < N; i++) {
        const double value = (double)rp_float_from_bits(expected[i]);

        difference += pow((double)found[i] - value, 2);
        size += value * value;
    }
    if (!(sqrt(difference / size) < tolerance))
        fail_msg("%s: relative error %g", tag, sqrt(difference / size));
}

/* A value at the border of two quantized values may have the other one. */
static void
assert_quantized(const Fixture *f, const char *tag, const guint16 *found)
{
    g_autofree guint32 *expected = read_line(f, tag, FALSE);
    guint others = 0;

    for (gsize i = 0; i < N; i++) {
        if (ABS((gint64)found[i] - (gint64)expected[i]) > 1)
            fail_msg("%s: %zu: %u, expected %u", tag, i, found[i], expected[i]);
        others += found[i] != expected[i];
    }
    if (others > 3)
        fail_msg("%s: %u of %d are others", tag, others, N);
}

RP_TEST_OF(lion_is_that_of_its_paper, Fixture *f)
{
    train(f, (RpStateFormat){.rule = RP_UPDATE_LION});
    const RpOptimizerState found = rp_optimizer_layer_state(f->layer);

    assert_floats(f, "lion-weight", found.weight, 2e-7);
    assert_floats(f, "lion-moment", found.moment1, 2e-7);
    assert_null(found.moment2);
}

RP_TEST_OF(weights_are_rounded_by_philox, Fixture *f)
{
    train(f, (RpStateFormat){.master = RP_MOMENTS_BF16});
    RpOptimizerState found = rp_optimizer_layer_state(f->layer);
    assert_quantized(f, "adamw-bf16-weight", found.weight);
    assert_floats(f, "adamw-bf16-moment", found.moment1, 2e-7);

    train(f, (RpStateFormat){RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_BF16});
    found = rp_optimizer_layer_state(f->layer);
    assert_quantized(f, "lion-bf16-weight", found.weight);
    assert_quantized(f, "lion-bf16-moment", found.moment1);
}

/* Steps that are a fortieth of a unit of bf16: to the nearest, no weight would ever move. */
RP_TEST_OF(small_steps_add_up, Fixture *f)
{
    const double rate = 1e-4, unit = 0x1p-8, steps = 20;
    g_autofree float *values = g_new(float, MANY);
    const RpOptimizerStep step = {
        .learning_rate = rate, .gradient_scale = 1, .n_parameters = MANY, .gradient = {{values}}};
    double sum = 0;

    for (gsize i = 0; i < MANY; i++)
        values[i] = 1;
    open_layer(f, (RpStateFormat){RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_INT8}, MANY, 0, NULL);
    rp_optimizer_layer_set_weights(f->layer, 0, values, MANY);
    for (guint i = 0; i < (guint)steps; i++) {
        rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
        rp_optimizer_layer_finish(f->layer);
    }
    const guint16 *kept = rp_optimizer_layer_state(f->layer).weight;
    for (gsize i = 0; i < MANY; i++)
        sum += 1 - (double)rp_float_from_bf16(kept[i]);
    /* each step is a unit, in rate / unit of all cases */
    const double deviation = unit * sqrt(steps * rate / unit * MANY);
    if (!(fabs(sum - steps * rate * MANY) < MOST * deviation))
        fail_msg("weights moved by %g, expected %g", sum / MANY, steps * rate);
}

/* Fused and lean, before the step and in it. */
static void
check_published(Fixture *f, RpStateFormat form, RpDtype dtype)
{
    const gsize size = rp_dtype_size(dtype), bytes = MANY * size;
    g_autofree float *values = g_new(float, MANY);
    g_autofree guint8 *foreseen = g_malloc0(bytes), *fused = g_malloc0(bytes),
                      *copied = g_malloc0(bytes);
    RpOptimizerStep step = {.learning_rate = 1e-2,
                            .gradient_scale = 1,
                            .n_parameters = MANY,
                            .gradient = {{values}},
                            .published = foreseen,
                            .published_dtype = dtype};

    open_layer(f, form, MANY, 0.1, NULL);
    for (guint i = 1; i <= 2; i++) {
        rp_fill(values, i, MANY);
        g_autofree guint8 *before = g_memdup2(f->memory, f->bytes);
        step.published = foreseen;
        rp_optimizer_layer_preview(f->optimizer, f->layer, &step);
        assert_memory_equal(f->memory, before, f->bytes);
        step.published = fused;
        rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
        rp_optimizer_layer_finish(f->layer);
        rp_optimizer_layer_publish(f->optimizer, f->layer, 0, MANY, copied, dtype);
        assert_memory_equal(foreseen, fused, bytes);
        assert_memory_equal(copied, fused, bytes);
    }
    if (form.master == RP_MOMENTS_BF16 && dtype == RP_DTYPE_BF16)
        assert_memory_equal(rp_optimizer_layer_state(f->layer).weight, fused, bytes);
}

RP_TEST_OF(devices_read_what_is_kept, Fixture *f)
{
    static const RpDtype dtypes[] = {RP_DTYPE_FP32, RP_DTYPE_BF16, RP_DTYPE_FP16};

    for (guint rule = 0; rule < RP_N_UPDATES; rule++)
        for (guint master = RP_MOMENTS_FP32; master <= RP_MOMENTS_BF16; master++)
            for (guint moments = 0; moments < RP_N_MOMENTS; moments++)
                for (guint d = 0; d < G_N_ELEMENTS(dtypes); d++)
                    check_published(
                        f,
                        (RpStateFormat){(RpUpdateRule)rule, (RpMoments)master, (RpMoments)moments},
                        dtypes[d]);
}

/* Trains two versions in alternation and in ranges, as asynchronous steps do; or one version. */
static void
train_shared(Fixture *f, RpStateFormat form, guint n_versions, gsize range, guint16 *newest)
{
    g_autofree float *values = g_new(float, MANY);
    g_autofree guint16 *versions = g_new(guint16, n_versions * MANY);

    form.shared = TRUE;
    open_layer(f, form, MANY, 0.1, versions);
    for (guint i = 1; i <= STEPS; i++) {
        guint16 *published = versions + i % n_versions * MANY;

        rp_fill(values, i, MANY);
        for (gsize first = 0; first < MANY; first += range) {
            const RpOptimizerStep step = {.learning_rate = 1e-2,
                                          .gradient_scale = 1,
                                          .first = first,
                                          .n_parameters = MIN(range, MANY - first),
                                          .gradient = {{values + first}},
                                          .published = published + first,
                                          .published_dtype = RP_DTYPE_BF16};

            rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
        }
        rp_optimizer_layer_finish(f->layer);
        assert_ptr_equal(rp_optimizer_layer_state(f->layer).weight, published);
    }
    memcpy(newest, rp_optimizer_layer_state(f->layer).weight, MANY * sizeof *newest);
}

RP_TEST_OF(shared_weights_have_the_same_bits, Fixture *f)
{
    g_autofree guint16 *expected = g_new(guint16, MANY), *found = g_new(guint16, MANY);

    for (guint m = 0; m < RP_N_MOMENTS; m++) {
        const RpStateFormat form = {m % 2 == 0 ? RP_UPDATE_ADAMW : RP_UPDATE_LION, RP_MOMENTS_BF16,
                                    (RpMoments)m};
        g_autofree float *values = g_new(float, MANY);
        const RpOptimizerStep step = {.learning_rate = 1e-2,
                                      .gradient_scale = 1,
                                      .n_parameters = MANY,
                                      .gradient = {{values}}};

        open_layer(f, form, MANY, 0.1, NULL);
        for (guint i = 1; i <= STEPS; i++) {
            rp_fill(values, i, MANY);
            rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
            rp_optimizer_layer_finish(f->layer);
        }
        memcpy(expected, rp_optimizer_layer_state(f->layer).weight, MANY * sizeof *expected);
        for (guint n_versions = 1; n_versions <= 2; n_versions++) {
            train_shared(f, form, n_versions, n_versions == 1 ? MANY : 20 * RP_MOMENT_BLOCK, found);
            assert_memory_equal(found, expected, MANY * sizeof *expected);
        }
    }
}

RP_TEST(any_variant_widens_quantized_alike)
{
    const RpAdamwOps *plain = rp_adamw_find("plain");
    const float scales[] = {1, 0, 3.4e38f, 0x1p-126f, 0x1.8p-149f, 0x1.234566p-20f};
    guint8 quantized[RP_MOMENT_BLOCK];
    float expected[RP_MOMENT_BLOCK], found[RP_MOMENT_BLOCK];

    for (guint i = 0; i < RP_MOMENT_BLOCK; i++)
        quantized[i] = (guint8)(i * 77);
    for (guint i = 0; i < 2 * G_N_ELEMENTS(scales); i++) {
        const float *scale = &scales[i / 2];

        plain->unpack(RP_MOMENTS_INT8, i % 2 == 1, quantized, scale, expected, RP_MOMENT_BLOCK);
        for (const RpAdamwOps *const *ops = rp_adamw_variants(); *ops != NULL; ops++) {
            if (!(*ops)->supported())
                continue;
            (*ops)->unpack(RP_MOMENTS_INT8, i % 2 == 1, quantized, scale, found, RP_MOMENT_BLOCK);
            assert_memory_equal(found, expected, sizeof found);
        }
    }
}

RP_TEST_STATE(Fixture, set_up, tear_down)
