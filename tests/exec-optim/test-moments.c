/* Moments in 16 and 8 bits: fixtures/moments.txt, written by fixtures/make-moments.py with the maps
 * of bitsandbytes; chances of stochastic rounding; the same bits for any variant, threads and ranges,
 * whatever is kept. */
#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/optimizer.h"
#include "tests/exec-optim/values.h"

#define N 600 /* parameters of the fixture: two blocks, and a short one */
#define STEPS 5
#define SEED 0x123456789abcdef
#define LAYER 3
#define MANY 100003 /* several granules, and a tail */
#define MOST 4.5    /* standard deviations */

#define N_MASTERS 2
#define N_FORMS (RP_N_UPDATES * N_MASTERS * RP_N_MOMENTS)

typedef struct {
    char **lines;
    RpPool *pool;
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
    guint8 *memory;
} Fixture;

static RpStateFormat
nth_form(guint i)
{
    return (RpStateFormat){(RpUpdateRule)(i % RP_N_UPDATES),
                           (RpMoments)(i / RP_N_UPDATES % N_MASTERS),
                           (RpMoments)(i / RP_N_UPDATES / N_MASTERS)};
}

static void
close_layer(Fixture *f)
{
    g_clear_pointer(&f->layer, rp_optimizer_layer_free);
    g_clear_pointer(&f->optimizer, rp_optimizer_free);
    g_clear_pointer(&f->pool, rp_pool_free);
    g_clear_pointer(&f->memory, g_free);
}

static void
set_up(Fixture *f)
{
    g_autofree char *path = rp_test_source_path("tests/exec-optim/fixtures/moments.txt");
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

/* A layer of @n, all zero, in exactly the bytes that the library reports. */
static void
open_layer(Fixture *f, RpStateFormat form, gsize n, const char *variant, guint threads)
{
    const RpAdamwOptions options = {.beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .epsilon = 1e-8,
                                    .weight_decay = 0.1,
                                    .form = form,
                                    .seed = SEED};

    close_layer(f);
    if (threads > 0)
        f->pool = rp_must(rp_pool_new, &(RpPoolOptions){.n_threads = threads});
    f->optimizer = rp_must(rp_optimizer_new, &options,
                           variant != NULL ? rp_adamw_find(variant) : NULL, f->pool);
    f->memory = g_malloc(rp_optimizer_state_bytes(form, n));
    f->layer = rp_optimizer_layer_new(f->optimizer, f->memory, n, NULL, 0);
    rp_optimizer_layer_set_number(f->layer, LAYER, 0);
}

/* Numbers of the line that begins with @tag, as bits where @hex. (transfer full) */
static guint32 *
read_line(const Fixture *f, const char *tag, gboolean hex, gsize n)
{
    g_autofree char *begin = g_strconcat(tag, " ", NULL);
    guint32 *numbers = g_new(guint32, n);

    for (char **line = f->lines; *line != NULL; line++) {
        if (!g_str_has_prefix(*line, begin))
            continue;
        g_auto(GStrv) words = g_strsplit(*line, " ", -1);

        assert_int_equal(g_strv_length(words), n + 1);
        for (gsize i = 0; i < n; i++)
            numbers[i] = (guint32)g_ascii_strtoull(words[i + 1], NULL, hex ? 16 : 10);
        return numbers;
    }
    fail_msg("no %s in the fixture", tag);
    return NULL;
}

static void
apply(Fixture *f, const float *gradient, gsize first, gsize n)
{
    const RpOptimizerStep step = {.learning_rate = 1e-2,
                                  .gradient_scale = 1,
                                  .first = first,
                                  .n_parameters = n,
                                  .gradient = {{gradient + first}}};

    rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
}

/* The fixture's steps, in ranges of @range. */
static void
train(Fixture *f, RpStateFormat form, gsize n, gsize range, const char *variant, guint threads)
{
    g_autofree float *values = g_new(float, n);

    open_layer(f, form, n, variant, threads);
    rp_fill(values, 0, n);
    rp_optimizer_layer_set_weights(f->layer, 0, values, n);
    for (guint step = 1; step <= STEPS; step++) {
        rp_fill(values, step, n);
        for (gsize first = 0; first < n; first += range)
            apply(f, values, first, MIN(range, n - first));
        rp_optimizer_layer_finish(f->layer);
    }
}

static void
assert_weights(const Fixture *f, const char *tag, double tolerance)
{
    const RpOptimizerState state = rp_optimizer_layer_state(f->layer);
    g_autofree guint32 *expected = read_line(f, tag, TRUE, N);
    double difference = 0, size = 0;

    for (gsize i = 0; i < N; i++) {
        const double value = (double)rp_float_from_bits(expected[i]);

        difference += pow((double)((const float *)state.weight)[i] - value, 2);
        size += value * value;
    }
    if (!(sqrt(difference / size) < tolerance))
        fail_msg("%s: relative error %g", tag, sqrt(difference / size));
}

static void
assert_floats(const Fixture *f, const char *tag, const float *found, gsize n)
{
    g_autofree guint32 *expected = read_line(f, tag, TRUE, n);

    for (gsize i = 0; i < n; i++) {
        const float value = rp_float_from_bits(expected[i]);

        if (!(fabsf(found[i] - value) <= 1e-6f * fabsf(value)))
            fail_msg("%s: %zu: %.9g, expected %.9g", tag, i, (double)found[i], (double)value);
    }
}

/* A value that a rounding moves over the border of two quantized values has the next one. */
static void
assert_quantized(const Fixture *f, const char *tag, const void *quantized, gboolean wide,
                 guint most_others)
{
    g_autofree guint32 *expected = read_line(f, tag, FALSE, N);
    guint others = 0;

    for (gsize i = 0; i < N; i++) {
        const gint64 code = wide ? ((const guint16 *)quantized)[i] : ((const guint8 *)quantized)[i];

        if (ABS(code - (gint64)expected[i]) > 1)
            fail_msg("%s: %zu: %d, expected %u", tag, i, (int)code, expected[i]);
        others += code != (gint64)expected[i];
    }
    if (others > most_others)
        fail_msg("%s: %u of %d are others", tag, others, N);
}

RP_TEST_OF(int8_is_the_nearest_of_its_map, Fixture *f)
{
    train(f, (RpStateFormat){.moments = RP_MOMENTS_INT8}, N, N, NULL, 0);
    const RpOptimizerState found = rp_optimizer_layer_state(f->layer);

    assert_quantized(f, "int8-moment1", found.moment1, FALSE, 3);
    assert_quantized(f, "int8-moment2", found.moment2, FALSE, 3);
    assert_floats(f, "int8-scale1", found.scale1, 3);
    assert_floats(f, "int8-scale2", found.scale2, 3);
    assert_weights(f, "int8-weight", 1e-5);
}

RP_TEST_OF(bf16_is_rounded_by_philox, Fixture *f)
{
    train(f, (RpStateFormat){.moments = RP_MOMENTS_BF16}, N, N, NULL, 0);
    const RpOptimizerState found = rp_optimizer_layer_state(f->layer);

    assert_quantized(f, "bf16-moment1", found.moment1, TRUE, 3);
    assert_quantized(f, "bf16-moment2", found.moment2, TRUE, 3);
    assert_null(found.scale1);
    assert_weights(f, "bf16-weight", 1e-5);
}

/* Every entry of both published maps is the nearest to its own value and to the values around it;
 * it stands for that value, but for roundings. */
RP_TEST_OF(every_code_comes_back, Fixture *f)
{
    const RpAdamwOps *ops = rp_adamw_best();

    for (guint moment = 0; moment < 2; moment++) {
        g_autofree guint32 *map = read_line(f, moment == 0 ? "map1" : "map2", TRUE, 256);
        const RpDraw draw = {.moment = moment};
        float values[RP_MOMENT_BLOCK], back[RP_MOMENT_BLOCK], scale;
        guint8 quantized[RP_MOMENT_BLOCK];

        for (guint side = 0; side < 3; side++) {
            for (guint i = 0; i < 256; i++) {
                const float value = rp_float_from_bits(map[i]);
                const float other =
                    rp_float_from_bits(map[side == 1 ? MAX(i, 1) - 1 : MIN(i + 1, 255)]);

                values[i] = side == 0 ? value : value + 0.49f * (other - value);
            }
            values[255] = 1; /* the scale */
            ops->pack(RP_MOMENTS_INT8, &draw, 0, values, quantized, &scale, 256);
            ops->unpack(RP_MOMENTS_INT8, moment == 1, quantized, &scale, back, 256);
            assert_true(scale == 1);
            for (guint i = 0; i < 256; i++) {
                const guint expected = moment == 1 && i == 0 && side == 2 ? 1 : i;

                if (quantized[i] != expected)
                    fail_msg("map %u, side %u: code %u became %u", moment + 1, side, expected,
                             quantized[i]);
                const float published = rp_float_from_bits(map[expected]);

                if (!(fabsf(back[i] - published) <= 4e-7f * fabsf(published)))
                    fail_msg("map %u: code %u is %.9g, published %.9g", moment + 1, expected,
                             (double)back[i], (double)published);
            }
        }
    }
}

/* The mean of many roundings is the value; no bit of the counter is without effect. */
RP_TEST(stochastic_rounding_is_unbiased)
{
    static const float chosen[] = {1.0f, 1.0f + 0x1p-9f, -1.0f - 0x1.8p-8f, 0x1.234566p-20f,
                                   -0x1.fffffep10f};
    const RpAdamwOps *ops = rp_adamw_best();
    const gsize n = 4096, tries = 64;
    g_autofree float *values = g_new(float, n), *back = g_new(float, n);
    g_autofree guint16 *kept = g_new(guint16, n);

    for (gsize c = 0; c < G_N_ELEMENTS(chosen); c++) {
        const float value = chosen[c];
        const float step = ldexpf(1, ilogbf(value) - 7); /* bf16's step there */
        double sum = 0;

        for (gsize i = 0; i < n; i++)
            values[i] = value;
        for (gsize t = 0; t < tries; t++) {
            const RpDraw draw = {SEED + t / 32, 1 + t % 2, (guint32)(t / 4 % 4), t / 2 % 2};

            ops->pack(RP_MOMENTS_BF16, &draw, t << 30, values, kept, NULL, n);
            ops->unpack(RP_MOMENTS_BF16, FALSE, kept, NULL, back, n);
            for (gsize i = 0; i < n; i++) {
                const double error = (double)back[i] - (double)value;

                assert_true(fabs(error) < (double)step);
                sum += error / (double)step;
            }
        }
        /* a try is 0 or 1: its deviation is a half at most */
        if (!(fabs(sum) <= MOST * 0.5 * sqrt((double)(n * tries))))
            fail_msg("%g: %g too much in %zu roundings", (double)value, sum, n * tries);
    }
}

RP_TEST(infinities_and_nans_stay)
{
    const RpAdamwOps *ops = rp_adamw_best();
    const float values[] = {INFINITY, -INFINITY, NAN, -NAN, 0.0f, -0.0f};
    float back[G_N_ELEMENTS(values)];
    guint16 kept[G_N_ELEMENTS(values)];
    const RpDraw draw = {.seed = 5};

    ops->pack(RP_MOMENTS_BF16, &draw, 0, values, kept, NULL, G_N_ELEMENTS(values));
    ops->unpack(RP_MOMENTS_BF16, FALSE, kept, NULL, back, G_N_ELEMENTS(values));
    assert_true(back[0] == INFINITY && back[1] == -INFINITY && isnan(back[2]) && isnan(back[3]));
    assert_true(back[4] == 0 && !signbit(back[4]) && back[5] == 0 && signbit(back[5]));
}

RP_TEST_OF(any_variant_threads_and_ranges_give_the_same_bits, Fixture *f)
{
    for (guint i = 0; i < N_FORMS; i++) {
        const RpStateFormat form = nth_form(i);
        const gsize bytes = rp_optimizer_state_bytes(form, MANY);

        train(f, form, MANY, MANY, "plain", 0);
        g_autofree guint8 *expected = g_memdup2(f->memory, bytes);

        for (const RpAdamwOps *const *ops = rp_adamw_variants(); *ops != NULL; ops++) {
            if (!(*ops)->supported())
                continue;
            train(f, form, MANY, MANY, (*ops)->name, 0);
            assert_memory_equal(f->memory, expected, bytes);
        }
        for (guint threads = 1; threads <= 3; threads++) {
            train(f, form, MANY, threads * 20 * RP_MOMENT_BLOCK, NULL, threads);
            assert_memory_equal(f->memory, expected, bytes);
        }
    }
}

/* @n values of a kind; @middles: 255 numbers between two of a map. */
static void
fill_hostile(GRand *rand, guint kind, const float *middles, float *values, gsize n)
{
    const float scale =
        ldexpf(1.0f + (float)g_rand_double(rand), g_rand_int_range(rand, -100, 100));

    for (gsize i = 0; i < n; i++) {
        const float middle = middles[g_rand_int_range(rand, 0, 255)];
        const guint32 near = rp_float_bits(middle) + (guint32)g_rand_int_range(rand, -2, 3);
        const float any[] = {
            rp_float_from_bits(g_rand_int(rand)),              /* NaNs and infinities too */
            rp_float_from_bits(g_rand_int(rand) & 0x807fffff), /* subnormal */
            rp_float_from_bits(near & (kind % 2 != 0 ? 0xffffffff : 0x7fffffff)),
            middle * scale,
            rp_float_from_bits(0x80000000 & g_rand_int(rand)),
        };

        values[i] = any[kind];
    }
    if (kind == 2)
        values[g_rand_int_range(rand, 0, (gint)n)] = 1;
}

RP_TEST_OF(any_variant_rounds_hostile_values_alike, Fixture *f)
{
    const RpAdamwOps *plain = rp_adamw_find("plain");
    g_autofree guint32 *map = read_line(f, "map1", TRUE, 256),
                       *map2 = read_line(f, "map2", TRUE, 256);
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);
    float middles[2][255], values[N];

    for (guint i = 0; i < 255; i++) {
        middles[0][i] = (rp_float_from_bits(map[i]) + rp_float_from_bits(map[i + 1])) / 2;
        middles[1][i] = (rp_float_from_bits(map2[i]) + rp_float_from_bits(map2[i + 1])) / 2;
    }
    for (guint i = 0; i < 1000; i++) {
        const RpMoments moments = i / 2 % 2 == 0 ? RP_MOMENTS_BF16 : RP_MOMENTS_INT8;
        const RpDraw draw = {(guint64)g_rand_int(rand) << 32 | g_rand_int(rand),
                             (guint64)g_rand_int(rand) << 24, g_rand_int(rand), i % 2};
        const guint64 block = (guint64)g_rand_int(rand) << (i % 32);
        const gsize n = (gsize)g_rand_int_range(rand, 1, N + 1);
        guint16 expected[N] = {0}, found[N] = {0};
        float expected_scales[3] = {0}, scales[3] = {0};

        fill_hostile(rand, i / 4 % 5, middles[i % 2], values, n);
        plain->pack(moments, &draw, block, values, expected, expected_scales, n);
        for (const RpAdamwOps *const *ops = rp_adamw_variants(); *ops != NULL; ops++) {
            if (!(*ops)->supported())
                continue;
            (*ops)->pack(moments, &draw, block, values, found, scales, n);
            assert_memory_equal(found, expected, sizeof found);
            assert_memory_equal(scales, expected_scales, sizeof scales);
        }
    }
}

RP_TEST_OF(a_state_that_is_restored_goes_on_as_it_was, Fixture *f)
{
    for (guint i = 0; i < N_FORMS; i++) {
        const RpStateFormat form = nth_form(i);
        const gsize bytes = rp_optimizer_state_bytes(form, N);
        float gradient[N];
        GError *error = NULL;

        train(f, form, N, N, NULL, 0);
        g_autofree guint8 *saved = g_memdup2(f->memory, bytes);
        RpOptimizerState kept = rp_optimizer_layer_state(f->layer);
        const gsize moment1 = (gsize)((const guint8 *)kept.moment1 - f->memory);
        const gsize moment2 =
            kept.moment2 != NULL ? (gsize)((const guint8 *)kept.moment2 - f->memory) : 0;
        const gsize weight = (gsize)((const guint8 *)kept.weight - f->memory);

        rp_fill(gradient, 9, N);
        apply(f, gradient, 0, N);
        rp_optimizer_layer_finish(f->layer);
        g_autofree guint8 *expected = g_memdup2(f->memory, bytes);

        kept.weight = saved + weight;
        kept.moment1 = saved + moment1;
        kept.moment2 = saved + moment2;
        if (kept.scale1 != NULL) {
            kept.scale1 = (const float *)(const void *)saved;
            kept.scale2 = kept.scale1 + rp_moment_scales(form.moments, 0, N);
        }
        assert_true(rp_optimizer_layer_restore(f->optimizer, f->layer, &kept, &error));
        assert_memory_equal(f->memory, saved, bytes);
        apply(f, gradient, 0, N);
        rp_optimizer_layer_finish(f->layer);
        assert_memory_equal(f->memory, expected, bytes);
    }
}

RP_TEST(bytes_are_exact)
{
    static const struct {
        RpStateFormat form;
        gsize n, bytes;
    } cases[] = {
        {{RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_FP32}, 1000, 12000},
        {{RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_BF16}, 1000, 8000},
        {{RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_INT8}, 1000, 6000 + 8 * 4},
        {{RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_INT8}, 0, 0},
        {{RP_UPDATE_ADAMW, RP_MOMENTS_FP32, RP_MOMENTS_INT8}, 256, 6 * 256 + 8},
        {{RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_BF16}, 1000, 6000},
        {{RP_UPDATE_ADAMW, RP_MOMENTS_BF16, RP_MOMENTS_INT8}, 256, 4 * 256 + 8},
        {{RP_UPDATE_LION, RP_MOMENTS_FP32, RP_MOMENTS_FP32}, 1000, 8000},
        {{RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_FP32}, 1001, 6006},
        {{RP_UPDATE_LION, RP_MOMENTS_BF16, RP_MOMENTS_INT8}, 256, 3 * 256 + 4},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(cases); i++)
        assert_int_equal(rp_optimizer_state_bytes(cases[i].form, cases[i].n), cases[i].bytes);
    assert_int_equal(rp_moment_scales(RP_MOMENTS_INT8, 255, 2), 2);
    assert_int_equal(rp_moment_scales(RP_MOMENTS_INT8, 256, 256), 1);
    assert_int_equal(rp_moment_scales(RP_MOMENTS_BF16, 0, 256), 0);
}

RP_TEST_STATE(Fixture, set_up, tear_down)
