/*
 * Every variant against the plain one, bit for bit, and the plain one against AdamW in double.
 */
#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/adamw/adamw.h"

#define SCRATCH 4096 /* values in each array */
#define GUARD 0x5a   /* fills arrays where nothing may be written */

typedef struct {
    float weight[SCRATCH];
    float moment1[SCRATCH];
    float moment2[SCRATCH];
    float gradient[SCRATCH];  /* also read as 16-bit numbers */
    float published[SCRATCH]; /* also written as 16-bit numbers */
} Arrays;

typedef struct {
    Arrays initial, expected, found;
} Fixture;

static int
set_up(void **state)
{
    *state = g_new(Fixture, 1);
    return 0;
}

static int
tear_down(void **state)
{
    g_free(*state);
    return 0;
}

/* Any bits, so subnormals, infinities and huge numbers too, but no NaN; or values like real ones.
 */
static float
random_value(GRand *rand, gboolean wild)
{
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x00000001, 0x807fffff, 0x00800000,
                                       0x7f7fffff, 0x7f800000, 0xff800000, 0x3f808000, 0x33000000};
    if (!wild)
        return (float)g_rand_double_range(rand, -1, 1);
    if (g_rand_int_range(rand, 0, 4) == 0)
        return rp_float_from_bits(special[g_rand_int_range(rand, 0, G_N_ELEMENTS(special))]);
    const float value = rp_float_from_bits(g_rand_int(rand));
    return isnan(value) ? 0 : value;
}

static void
fill(Arrays *arrays, guint32 seed, RpDtype gradient_dtype, gboolean wild)
{
    GRand *rand = g_rand_new_with_seed(seed);

    memset(arrays, GUARD, sizeof *arrays);
    for (gsize i = 0; i < SCRATCH; i++) {
        arrays->weight[i] = random_value(rand, wild);
        arrays->moment1[i] = random_value(rand, wild);
        arrays->moment2[i] = fabsf(random_value(rand, wild));
        rp_dtype_set(gradient_dtype, arrays->gradient, i, random_value(rand, wild));
    }
    g_rand_free(rand);
}

static RpAdamwFactors
some_factors(double gradient_scale)
{
    const RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    return rp_adamw_prepare(&options, 1e-3, gradient_scale, 7);
}

/* Steps [@at, @at + @n) of @arrays, published @shift values further on. */
static void
step(const RpAdamwOps *ops, const RpAdamwFactors *factors, Arrays *arrays, gsize at, gsize n,
     RpDtype gradient_dtype, int published_dtype, gsize shift)
{
    const gsize gradient_bytes = rp_dtype_size(gradient_dtype);
    const gsize published_bytes = rp_dtype_size((RpDtype)MAX(published_dtype, 0));
    const RpAdamwArrays part = {
        .weight = arrays->weight + at,
        .moment1 = arrays->moment1 + at,
        .moment2 = arrays->moment2 + at,
        .gradient = (const char *)arrays->gradient + at * gradient_bytes,
        .published =
            published_dtype < 0 ? NULL : (char *)arrays->published + (at + shift) * published_bytes,
        .gradient_dtype = gradient_dtype,
        .published_dtype = (RpDtype)MAX(published_dtype, 0),
    };
    ops->step(factors, &part, n);
}

/* Each variant but the last, plain, that this processor has, in turn; then NULL. */
static const RpAdamwOps *
next_variant(const RpAdamwOps *const **variants)
{
    while (**variants != NULL && (*variants)[1] != NULL) {
        const RpAdamwOps *variant = *(*variants)++;
        if (variant->supported())
            return variant;
    }
    return NULL;
}

static void
compare_step(Fixture *f, const RpAdamwOps *variant, const RpAdamwFactors *factors, gsize at,
             gsize n, RpDtype gradient_dtype, int published_dtype, gsize shift)
{
    f->expected = f->initial;
    f->found = f->initial;
    step(rp_adamw_find("plain"), factors, &f->expected, at, n, gradient_dtype, published_dtype,
         shift);
    step(variant, factors, &f->found, at, n, gradient_dtype, published_dtype, shift);
    if (memcmp(&f->expected, &f->found, sizeof f->found) != 0)
        fail_msg("%s differs from plain: at %zu, %zu values, gradients %d, published %d, shift %zu",
                 variant->name, at, n, (int)gradient_dtype, published_dtype, shift);
}

RP_TEST(has_the_variants_of_this_processor)
{
    assert_non_null(rp_adamw_find("plain"));
    assert_null(rp_adamw_find("abacus"));
    assert_true(rp_adamw_best()->supported());
    for (const RpAdamwOps *const *v = rp_adamw_variants(); *v != NULL; v++)
        assert_ptr_equal(rp_adamw_find((*v)->name), (*v)->supported() ? *v : NULL);
}

RP_TEST_OF(variants_give_the_same_bits_at_every_length, Fixture *f)
{
    const RpAdamwFactors factors = some_factors(0.37);

    for (int gradient = 0; gradient < 3; gradient++) {
        fill(&f->initial, (guint32)gradient, (RpDtype)gradient, FALSE);
        for (int published = -1; published < 3; published++) {
            const RpAdamwOps *const *variants = rp_adamw_variants();
            for (const RpAdamwOps *v; (v = next_variant(&variants)) != NULL;)
                for (gsize n = 0; n <= 200; n++)
                    compare_step(f, v, &factors, 0, n, (RpDtype)gradient, published, 0);
        }
    }
}

RP_TEST_OF(variants_give_the_same_bits_at_every_alignment, Fixture *f)
{
    const RpAdamwFactors factors = some_factors(1);

    for (int gradient = 0; gradient < 3; gradient++) {
        fill(&f->initial, (guint32)(10 + gradient), (RpDtype)gradient, FALSE);
        for (int published = -1; published < 3; published++) {
            const RpAdamwOps *const *variants = rp_adamw_variants();
            for (const RpAdamwOps *v; (v = next_variant(&variants)) != NULL;)
                for (gsize at = 0; at < 33; at++)
                    for (gsize shift = 0; shift < 33; shift += 4)
                        compare_step(f, v, &factors, at, 150 + at % 7, (RpDtype)gradient, published,
                                     shift);
        }
    }
}

RP_TEST_OF(variants_give_the_same_bits_for_wild_numbers, Fixture *f)
{
    const double scales[] = {1, 0x1p-16, 0x1p40, 1e-38};

    for (guint i = 0; i < 40; i++)
        for (int gradient = 0; gradient < 3; gradient++) {
            const RpAdamwFactors factors = some_factors(scales[i % G_N_ELEMENTS(scales)]);
            const RpAdamwOps *const *variants = rp_adamw_variants();
            fill(&f->initial, 100 + i, (RpDtype)gradient, TRUE);
            for (const RpAdamwOps *v; (v = next_variant(&variants)) != NULL;)
                for (int published = -1; published < 3; published++)
                    compare_step(f, v, &factors, 1, SCRATCH - 3, (RpDtype)gradient, published, 0);
        }
}

RP_TEST_OF(any_split_gives_the_same_bits, Fixture *f)
{
    const RpAdamwFactors factors = some_factors(1);

    fill(&f->initial, 77, RP_DTYPE_BF16, FALSE);
    for (const RpAdamwOps *const *v = rp_adamw_variants(); *v != NULL; v++) {
        if (!(*v)->supported())
            continue;
        f->expected = f->initial;
        step(*v, &factors, &f->expected, 0, SCRATCH, RP_DTYPE_BF16, RP_DTYPE_BF16, 0);
        f->found = f->initial;
        for (gsize at = 0, n = 1; at < SCRATCH; at += n, n = n * 7 % 97 + 1)
            step(*v, &factors, &f->found, at, MIN(n, SCRATCH - at), RP_DTYPE_BF16, RP_DTYPE_BF16,
                 0);
        assert_memory_equal(&f->found, &f->expected, sizeof f->found);
    }
}

/* AdamW as the paper has it, in double, from the same initial values. */
RP_TEST_OF(follows_adamw_in_double_over_many_steps, Fixture *f)
{
    const RpAdamwOptions options = {
        .beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-8, .weight_decay = 0.1};
    const double rate = 1e-2, scale = 0.25;
    double largest = 0;

    fill(&f->initial, 5, RP_DTYPE_FP32, FALSE);
    memset(f->initial.moment1, 0, sizeof f->initial.moment1);
    memset(f->initial.moment2, 0, sizeof f->initial.moment2);
    f->found = f->initial;
    for (guint t = 1; t <= 50; t++) {
        const RpAdamwFactors factors = rp_adamw_prepare(&options, rate, scale, t);
        step(rp_adamw_best(), &factors, &f->found, 0, SCRATCH, RP_DTYPE_FP32, RP_DTYPE_BF16, 0);
    }
    for (gsize i = 0; i < SCRATCH; i++) {
        const double g = (double)f->initial.gradient[i] * scale;
        double w = f->initial.weight[i], m = 0, v = 0;
        for (guint t = 1; t <= 50; t++) {
            m = options.beta1 * m + (1 - options.beta1) * g;
            v = options.beta2 * v + (1 - options.beta2) * g * g;
            w -= rate * options.weight_decay * w;
            w -= rate * (m / (1 - pow(options.beta1, t))) /
                 (sqrt(v / (1 - pow(options.beta2, t))) + options.epsilon);
        }
        largest = fmax(largest, fabs(w - (double)f->found.weight[i]));
    }
    /* 50 steps, each rounding a weight below 2 and a change below 0.01: half a ulp of each */
    assert_true(largest < 50 * (0x1p-24 + 0.012 * 0x1p-20));
}

RP_TEST_OF(a_step_without_rate_and_gradient_keeps_the_weights, Fixture *f)
{
    const RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;
    const RpAdamwFactors factors = rp_adamw_prepare(&options, 0, 1, 1);

    fill(&f->initial, 5, RP_DTYPE_FP32, FALSE);
    f->found = f->initial;
    step(rp_adamw_best(), &factors, &f->found, 0, SCRATCH, RP_DTYPE_FP32, -1, 0);
    assert_memory_equal(f->found.weight, f->initial.weight, sizeof f->found.weight);
}

RP_TEST_OF(publishing_later_equals_publishing_at_once, Fixture *f)
{
    const RpAdamwFactors factors = some_factors(1);

    for (guint seed = 0; seed < 8; seed++)
        for (int dtype = 0; dtype < 3; dtype++) {
            fill(&f->initial, seed, RP_DTYPE_BF16, seed % 2 == 1);
            f->expected = f->initial;
            step(rp_adamw_find("plain"), &factors, &f->expected, 0, SCRATCH, RP_DTYPE_BF16, dtype,
                 0);
            for (const RpAdamwOps *const *v = rp_adamw_variants(); *v != NULL; v++) {
                if (!(*v)->supported())
                    continue;
                f->found = f->initial;
                step(*v, &factors, &f->found, 0, SCRATCH, RP_DTYPE_BF16, -1, 0);
                for (gsize at = 0, n = 1; at < SCRATCH; at += n, n = n * 7 % 97 + 1)
                    (*v)->publish(f->found.weight + at,
                                  (char *)f->found.published + at * rp_dtype_size((RpDtype)dtype),
                                  (RpDtype)dtype, MIN(n, SCRATCH - at));
                assert_memory_equal(&f->found, &f->expected, sizeof f->found);
            }
        }
}

RP_TEST_OF(variants_publish_all_values_as_one_is_rounded, Fixture *f)
{
    GRand *rand = g_rand_new_with_seed(1);

    for (gsize i = 0; i < SCRATCH; i++) /* every other a NaN, quiet or not */
        f->initial.weight[i] =
            rp_float_from_bits(g_rand_int(rand) | (i % 2 ? 0x7f800000 | 1u << i / 2 % 23 : 0));
    g_rand_free(rand);
    for (const RpAdamwOps *const *v = rp_adamw_variants(); *v != NULL; v++)
        for (guint dtype = RP_DTYPE_BF16; dtype <= RP_DTYPE_FP16 && (*v)->supported(); dtype++) {
            guint16 *found = (guint16 *)(void *)f->found.published;

            (*v)->publish(f->initial.weight, found, (RpDtype)dtype, SCRATCH);
            for (gsize i = 0; i < SCRATCH; i++) {
                guint16 one[1];

                rp_dtype_set((RpDtype)dtype, one, 0, f->initial.weight[i]);
                if (found[i] != one[0])
                    fail_msg("%s, %s of %08x: %04x, not %04x", (*v)->name,
                             dtype == RP_DTYPE_BF16 ? "bf16" : "fp16",
                             rp_float_bits(f->initial.weight[i]), found[i], one[0]);
            }
        }
}

RP_TEST_OF(variants_sum_squares_to_the_same_bits, Fixture *f)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        fill(&f->initial, (guint32)dtype, (RpDtype)dtype, FALSE);
        for (gsize n = 0; n <= 200; n++)
            for (gsize at = 0; at < 3; at++) {
                const void *values =
                    (char *)f->initial.gradient + at * rp_dtype_size((RpDtype)dtype);
                const double expected =
                    rp_adamw_sum_squares(rp_adamw_find("plain"), values, (RpDtype)dtype, n);
                const RpAdamwOps *const *variants = rp_adamw_variants();
                double naive = 0;

                for (gsize i = 0; i < n; i++)
                    naive += pow((double)rp_dtype_get((RpDtype)dtype, values, i), 2);
                assert_true(fabs(naive - expected) <= 1e-13 * naive);
                for (const RpAdamwOps *v; (v = next_variant(&variants)) != NULL;) {
                    const double found = rp_adamw_sum_squares(v, values, (RpDtype)dtype, n);
                    assert_memory_equal(&found, &expected, sizeof found);
                    /* in two parts */
                    const gsize half = n / 2 / RP_SUM_LANES * RP_SUM_LANES;
                    double lanes[RP_SUM_LANES] = {0};
                    v->add_squares(lanes, values, (RpDtype)dtype, half);
                    v->add_squares(lanes,
                                   (const char *)values + half * rp_dtype_size((RpDtype)dtype),
                                   (RpDtype)dtype, n - half);
                    const double parts = rp_adamw_add_lanes(lanes);
                    assert_memory_equal(&parts, &expected, sizeof parts);
                }
            }
    }
}

RP_TEST_OF(a_sum_of_squares_is_finite_if_all_values_are, Fixture *f)
{
    for (gsize i = 0; i < SCRATCH; i++)
        f->initial.gradient[i] = i % 2 ? 3.4e38f : -3.4e38f;
    for (const RpAdamwOps *const *v = rp_adamw_variants(); *v != NULL; v++) {
        if (!(*v)->supported())
            continue;
        assert_true(
            isfinite(rp_adamw_sum_squares(*v, f->initial.gradient, RP_DTYPE_FP32, SCRATCH)));
        for (gsize bad = 0; bad < 100; bad++) {
            const float before = f->initial.gradient[bad];
            f->initial.gradient[bad] = bad % 2 ? INFINITY : NAN;
            assert_false(
                isfinite(rp_adamw_sum_squares(*v, f->initial.gradient, RP_DTYPE_FP32, 100)));
            f->initial.gradient[bad] = before;
        }
    }
}

RP_TEST_FIXTURE(set_up, tear_down)
