#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/optimizer.h"
#include "exec/optim/rules.h"

#define N 200003 /* several granules, and a tail */
#define STEPS 4

typedef struct {
    RpPool *pool;
    RpOptimizer *optimizer;
    RpOptimizerLayer *layer;
    float *initial;
    uint16_t *gradients[STEPS]; /* bf16 */
    uint16_t *published;        /* bf16 */
    float *expected;            /* weights, first moments, second moments */
    uint16_t *expected_published;
    float *memory; /* memory of a layer's state; one value more on either side */
} Fixture;

/* The middle does not decay. */
static const RpParameterSpan spans[] = {
    {1000, TRUE}, {50000, TRUE}, {77, FALSE}, {3, FALSE}, {N - 51080, TRUE}};

static void
close_layer(Fixture *f)
{
    g_clear_pointer(&f->layer, rp_optimizer_layer_free);
    g_clear_pointer(&f->memory, g_free);
    g_clear_pointer(&f->optimizer, rp_optimizer_free);
    g_clear_pointer(&f->pool, rp_pool_free);
}

/* A new layer with the initial weights, of an optimizer with @n_threads (0: without a pool). */
static void
open_layer(Fixture *f, guint n_threads, const char *variant)
{
    const RpAdamwOptions options = RP_ADAMW_OPTIONS_INIT;

    close_layer(f);
    if (n_threads > 0)
        f->pool = rp_must(rp_pool_new, &(RpPoolOptions){.n_threads = n_threads});
    f->optimizer = rp_must(rp_optimizer_new, &options,
                           variant != NULL ? rp_adamw_find(variant) : NULL, f->pool);
    f->memory = g_new(float, 3 * N);
    f->layer = rp_optimizer_layer_new(f->optimizer, f->memory, N, spans, G_N_ELEMENTS(spans));
    memcpy(f->memory, f->initial, N * sizeof(float));
}

static RpOptimizerStep
step_of(const Fixture *f, guint step, gsize first, gsize n, gboolean fused)
{
    return (RpOptimizerStep){
        .learning_rate = 1e-3 * (step + 1),
        .gradient_scale = 0.5,
        .first = first,
        .n_parameters = n,
        .gradient = {{f->gradients[step] + first}},
        .published = fused ? f->published + first : NULL,
        .gradient_dtype = RP_DTYPE_BF16,
        .published_dtype = RP_DTYPE_BF16,
    };
}

static void
apply(Fixture *f, guint step, gsize first, gsize n, gboolean fused)
{
    const RpOptimizerStep what = step_of(f, step, first, n, fused);

    rp_optimizer_layer_apply(f->optimizer, f->layer, &what);
}

/* Steps from @from to @to in ranges of @range parameters. */
static void
run_steps(Fixture *f, guint from, guint to, gsize range)
{
    for (guint step = from; step < to; step++) {
        for (gsize first = 0; first < N; first += range)
            apply(f, step, first, MIN(range, N - first), TRUE);
        rp_optimizer_layer_finish(f->layer);
    }
}

static void
assert_state(Fixture *f, guint64 n_steps)
{
    const RpOptimizerState found = rp_optimizer_layer_state(f->layer);
    assert_int_equal(found.n_steps, n_steps);
    assert_int_equal(found.n_parameters, N);
    assert_memory_equal(found.weight, f->expected, N * sizeof(float));
    assert_memory_equal(found.moment1, f->expected + N, N * sizeof(float));
    assert_memory_equal(found.moment2, f->expected + 2 * N, N * sizeof(float));
    assert_memory_equal(f->published, f->expected_published, N * sizeof(uint16_t));
}

/* STEPS steps by the plain variant, span by span, without a layer. */
static void
make_expected(Fixture *f)
{
    float *weight = f->expected, *moment1 = weight + N, *moment2 = moment1 + N;

    memcpy(weight, f->initial, N * sizeof(float));
    for (guint step = 0; step < STEPS; step++) {
        gsize first = 0;
        for (gsize i = 0; i < G_N_ELEMENTS(spans); i++) {
            const RpAdamwOptions options = {.beta1 = 0.9,
                                            .beta2 = 0.999,
                                            .epsilon = 1e-8,
                                            .weight_decay = spans[i].decays ? 0.01 : 0};
            const RpAdamwFactors factors =
                rp_adamw_prepare(&options, 1e-3 * (step + 1), 0.5, step + 1);
            const RpAdamwArrays arrays = {
                .weight = weight + first,
                .moment1 = moment1 + first,
                .moment2 = moment2 + first,
                .gradient = f->gradients[step] + first,
                .published = f->expected_published + first,
                .gradient_dtype = RP_DTYPE_BF16,
                .published_dtype = RP_DTYPE_BF16,
            };
            rp_adamw_find("plain")->step(&factors, &arrays, spans[i].n_parameters);
            first += spans[i].n_parameters;
        }
        assert_int_equal(first, N);
    }
}

static void
set_up(Fixture *f)
{
    GRand *rand = g_rand_new_with_seed(9);

    f->initial = g_new(float, N);
    f->published = g_new0(uint16_t, N);
    f->expected = g_new0(float, 3 * N);
    f->expected_published = g_new0(uint16_t, N);
    for (gsize i = 0; i < N; i++)
        f->initial[i] = (float)g_rand_double_range(rand, -1, 1);
    for (guint step = 0; step < STEPS; step++) {
        f->gradients[step] = g_new(uint16_t, N);
        for (gsize i = 0; i < N; i++)
            f->gradients[step][i] = rp_bf16_from_float((float)g_rand_double_range(rand, -1, 1));
    }
    g_rand_free(rand);
    make_expected(f);
}

static void
tear_down(Fixture *f)
{
    close_layer(f);
    g_free(f->memory);
    for (guint step = 0; step < STEPS; step++)
        g_free(f->gradients[step]);
    g_free(f->expected_published);
    g_free(f->expected);
    g_free(f->published);
    g_free(f->initial);
}

RP_TEST_OF(bits_do_not_depend_on_threads_or_variant, Fixture *f)
{
    for (guint n_threads = 0; n_threads <= 4; n_threads++)
        for (const RpAdamwOps *const *v = rp_adamw_variants(); *v != NULL; v++) {
            if (!(*v)->supported())
                continue;
            open_layer(f, n_threads, (*v)->name);
            assert_ptr_equal(rp_optimizer_ops(f->optimizer), *v);
            run_steps(f, 0, STEPS, N);
            assert_state(f, STEPS);
        }
}

RP_TEST_OF(bits_do_not_depend_on_ranges, Fixture *f)
{
    for (gsize range = 997; range < N; range = range * 5 + 1) {
        open_layer(f, 2, NULL);
        run_steps(f, 0, STEPS, range);
        assert_state(f, STEPS);
    }
}

RP_TEST_OF(lean_and_fused_publish_the_same_weights, Fixture *f)
{
    open_layer(f, 2, NULL);
    for (guint step = 0; step < STEPS; step++) {
        apply(f, step, 0, N, FALSE);
        rp_optimizer_layer_finish(f->layer);
    }
    memset(f->published, 0, N * sizeof(uint16_t));
    rp_optimizer_layer_publish(f->optimizer, f->layer, 0, 70001, f->published, RP_DTYPE_BF16);
    rp_optimizer_layer_publish(f->optimizer, f->layer, 70001, N - 70001, f->published + 70001,
                               RP_DTYPE_BF16);
    assert_state(f, STEPS);
}

RP_TEST_OF(keeps_its_state_in_memory_of_the_callers, Fixture *f)
{
    open_layer(f, 2, NULL);
    f->memory = g_renew(float, f->memory, 3 * N + 2);
    memset(f->memory, 0x77, (3 * N + 2) * sizeof(float));
    const float guard = f->memory[0];
    rp_optimizer_layer_free(f->layer);
    f->layer = rp_optimizer_layer_new(f->optimizer, f->memory + 1, N, spans, G_N_ELEMENTS(spans));
    for (gsize i = 0; i < 3 * N; i++)
        assert_true(f->memory[1 + i] == 0);
    memcpy(f->memory + 1, f->initial, N * sizeof(float));
    run_steps(f, 0, STEPS, 70001);
    assert_state(f, STEPS);
    assert_memory_equal(f->memory + 1, f->expected, 3 * N * sizeof(float));
    assert_true(f->memory[0] == guard && f->memory[3 * N + 1] == guard);
}

/* A gradient in fp32 that is the sum, against two in bf16. */
RP_TEST_OF(adds_a_second_gradient_in_fp32, Fixture *f)
{
    g_autofree float *sum = g_new(float, N);
    g_autofree float *expected = g_new(float, N);

    for (gsize i = 0; i < N; i++)
        sum[i] = rp_float_from_bf16(f->gradients[0][i]) + rp_float_from_bf16(f->gradients[1][i]);
    for (guint n_threads = 0; n_threads <= 3; n_threads++) {
        RpOptimizerStep step = {.learning_rate = 1e-3,
                                .gradient_scale = 0.25,
                                .n_parameters = N,
                                .gradient = {{sum}},
                                .gradient_dtype = RP_DTYPE_FP32,
                                .published_dtype = RP_DTYPE_BF16};
        open_layer(f, n_threads, NULL);
        rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
        rp_optimizer_layer_finish(f->layer);
        memcpy(expected, rp_optimizer_layer_state(f->layer).weight, N * sizeof(float));
        open_layer(f, n_threads, NULL);
        step.gradient_dtype = RP_DTYPE_BF16;
        step.published = f->published;
        for (gsize first = 0; first < N; first += 60000) {
            step.first = first;
            step.n_parameters = MIN(60000, N - first);
            step.gradient.rounds[0] = f->gradients[0] + first;
            step.added.rounds[0] = f->gradients[1] + first;
            step.published = f->published + first;
            rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
        }
        rp_optimizer_layer_finish(f->layer);
        assert_memory_equal(rp_optimizer_layer_state(f->layer).weight, expected, N * sizeof(float));
        for (gsize i = 0; i < N; i++)
            assert_int_equal(f->published[i], rp_bf16_from_float(expected[i]));
    }
}

RP_TEST_OF(goes_on_from_a_saved_state, Fixture *f)
{
    g_autofree float *saved = g_new(float, 3 * N);
    RpOptimizerState view;
    GError *error = NULL;

    open_layer(f, 2, NULL);
    run_steps(f, 0, 2, N);
    view = rp_optimizer_layer_state(f->layer);
    memcpy(saved, view.weight, N * sizeof(float));
    memcpy(saved + N, view.moment1, N * sizeof(float));
    memcpy(saved + 2 * N, view.moment2, N * sizeof(float));
    open_layer(f, 3, NULL);
    view = (RpOptimizerState){.n_steps = 2,
                              .n_parameters = N,
                              .weight = saved,
                              .moment1 = saved + N,
                              .moment2 = saved + 2 * N};
    assert_true(rp_optimizer_layer_restore(f->optimizer, f->layer, &view, &error));
    rp_assert_no_error(error);
    run_steps(f, 2, STEPS, N);
    assert_state(f, STEPS);

    view.n_parameters = N - 1;
    assert_false(rp_optimizer_layer_restore(f->optimizer, f->layer, &view, &error));
    assert_true(g_error_matches(error, RP_OPTIMIZER_ERROR, RP_OPTIMIZER_ERROR_STATE));
    g_clear_error(&error);
    assert_state(f, STEPS);
}

/* As in a run, an infinite gradient in fp16 is found before anything is applied. */
RP_TEST_OF(a_skipped_step_changes_nothing, Fixture *f)
{
    const RpLossScaleOptions options = RP_LOSS_SCALE_OPTIONS_INIT;
    RpLossScale scale = RP_LOSS_SCALE_INIT;

    open_layer(f, 2, NULL);
    for (guint step = 0, tries = 0; step < STEPS; tries++) {
        const uint16_t before = f->gradients[step][777];
        if (tries % 2 == 0)
            f->gradients[step][777] = tries % 4 ? 0x7f80 : 0x7fc0; /* infinite or NaN */
        const double sum =
            rp_optimizer_sum_squares(f->optimizer, f->gradients[step], RP_DTYPE_BF16, N);
        const RpClip clip = rp_clip_by_norm(&sum, 1, 0.5, 0);
        f->gradients[step][777] = before;
        if (!rp_loss_scale_update(&scale, &options, clip.finite))
            continue;
        apply(f, step, 0, N, TRUE);
        rp_optimizer_layer_finish(f->layer);
        step++;
    }
    assert_state(f, STEPS);
    assert_true(scale.scale == 65536.0f / 16);
}

RP_TEST_OF(a_preview_is_what_the_step_will_publish_and_changes_nothing, Fixture *f)
{
    g_autofree float *before = g_new(float, 3 * N);
    g_autofree uint16_t *seen = g_new(uint16_t, N);

    for (guint n_threads = 0; n_threads <= 3; n_threads++)
        for (const RpAdamwOps *const *v = rp_adamw_variants(); *v != NULL; v++) {
            if (!(*v)->supported())
                continue;
            open_layer(f, n_threads, (*v)->name);
            for (guint step = 0; step < STEPS; step++) {
                const RpOptimizerState now = rp_optimizer_layer_state(f->layer);
                const RpOptimizerStep what = step_of(f, step, 0, N, TRUE);

                memcpy(before, now.weight, 3 * N * sizeof(float));
                memset(f->published, 0xff, N * sizeof(uint16_t));
                rp_optimizer_layer_preview(f->optimizer, f->layer, &what);
                memcpy(seen, f->published, N * sizeof(uint16_t));
                assert_memory_equal(now.weight, before, 3 * N * sizeof(float));
                assert_int_equal(rp_optimizer_layer_state(f->layer).n_steps, step);
                apply(f, step, 0, N, TRUE);
                rp_optimizer_layer_finish(f->layer);
                assert_memory_equal(seen, f->published, N * sizeof(uint16_t));
            }
            assert_state(f, STEPS);
        }
}

RP_TEST_OF(sums_of_squares_do_not_depend_on_threads_or_variant, Fixture *f)
{
    const gsize lengths[] = {0, 1, 65535, 65536, 65537, 131072, N};

    for (guint n_threads = 0; n_threads <= 4; n_threads++)
        for (const RpAdamwOps *const *v = rp_adamw_variants(); *v != NULL; v++) {
            if (!(*v)->supported())
                continue;
            open_layer(f, n_threads, (*v)->name);
            for (gsize i = 0; i < G_N_ELEMENTS(lengths); i++) {
                const double expected = rp_adamw_sum_squares(
                    rp_adamw_find("plain"), f->gradients[0], RP_DTYPE_BF16, lengths[i]);
                const double found = rp_optimizer_sum_squares(f->optimizer, f->gradients[0],
                                                              RP_DTYPE_BF16, lengths[i]);
                assert_memory_equal(&found, &expected, sizeof found);
            }
        }
}

RP_TEST_OF(sums_the_squares_of_a_sum, Fixture *f)
{
    double first = 0;

    for (guint n_threads = 0; n_threads <= 3; n_threads++) {
        double expected = 0;
        open_layer(f, n_threads, NULL);
        const double found =
            rp_optimizer_sum_squares_of_sum(f->optimizer, (RpGradient){{f->gradients[0]}},
                                            (RpGradient){{f->gradients[1]}}, RP_DTYPE_BF16, N);
        for (gsize i = 0; i < N; i++) {
            const double sum = (double)(rp_float_from_bf16(f->gradients[0][i]) +
                                        rp_float_from_bf16(f->gradients[1][i]));
            expected += sum * sum;
        }
        assert_true(fabs(found / expected - 1) < 1e-12);
        if (n_threads == 0)
            first = found;
        assert_memory_equal(&found, &first, sizeof found);
    }
    const uint16_t before = f->gradients[1][N - 1];
    f->gradients[1][N - 1] = 0x7f80;
    assert_false(isfinite(
        rp_optimizer_sum_squares_of_sum(f->optimizer, (RpGradient){{f->gradients[0]}},
                                        (RpGradient){{f->gradients[1]}}, RP_DTYPE_BF16, N)));
    f->gradients[1][N - 1] = before;
}

/* Rounds of one and, with it, of a tied gradient, against their sums in fp32: all bits alike. */
RP_TEST_OF(rounds_have_the_bits_of_their_sum, Fixture *f)
{
    g_autofree float *sum = g_new(float, N);
    g_autofree float *expected = g_new(float, N);

    for (guint i = 0; i < 4 * 3 * 2; i++) {
        const guint n_threads = i % 4, n_rounds = 2 + i / 4 % 3;
        const gboolean tied = i >= 12;
        const RpGradient wide = {{sum}}, none = {{NULL}};
        RpGradient rounds = none;

        for (guint k = 0; k < n_rounds; k++)
            rounds.rounds[k] = f->gradients[k];
        for (gsize j = 0; j < N; j++) {
            sum[j] = rp_float_from_bf16(f->gradients[0][j]);
            for (guint k = 1; k < n_rounds; k++)
                sum[j] += rp_float_from_bf16(f->gradients[k][j]);
        }
        RpOptimizerStep step = {.learning_rate = 1e-3,
                                .gradient_scale = 0.25,
                                .n_parameters = N,
                                .gradient = wide,
                                .added = tied ? wide : none,
                                .gradient_dtype = RP_DTYPE_FP32};
        open_layer(f, n_threads, NULL);
        const double norm = rp_optimizer_sum_squares_of_sum(f->optimizer, step.gradient, step.added,
                                                            RP_DTYPE_FP32, N);
        rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
        rp_optimizer_layer_finish(f->layer);
        memcpy(expected, rp_optimizer_layer_state(f->layer).weight, N * sizeof(float));
        open_layer(f, n_threads, NULL);
        step.gradient = rounds;
        step.added = tied ? rounds : none;
        step.gradient_dtype = RP_DTYPE_BF16;
        const double found = rp_optimizer_sum_squares_of_sum(f->optimizer, step.gradient,
                                                             step.added, RP_DTYPE_BF16, N);
        assert_memory_equal(&found, &norm, sizeof norm);
        rp_optimizer_layer_apply(f->optimizer, f->layer, &step);
        rp_optimizer_layer_finish(f->layer);
        assert_memory_equal(rp_optimizer_layer_state(f->layer).weight, expected, N * sizeof(float));
    }
}

/* With @ops, at an odd place of the arrays and of odd length. */
static void
check_sums(const Fixture *f, const RpAdamwOps *ops, RpDtype dtype)
{
    const gsize n = N - 3, size = rp_dtype_size(dtype);
    g_autofree char *a = g_malloc(N * 4);
    g_autofree char *b = g_malloc(N * 4);
    g_autofree float *sum = g_new(float, N);
    g_autofree float *wide = g_new(float, N);

    for (gsize i = 0; i < n; i++) {
        rp_dtype_set(dtype, a + size, i, f->initial[i]);
        rp_dtype_set(dtype, b + size, i, f->initial[n - 1 - i] * 100);
    }
    ops->widen(a + size, dtype, wide + 1, n);
    for (gsize i = 0; i < n; i++)
        assert_true(wide[i + 1] == rp_dtype_get(dtype, a + size, i));
    ops->add(a + size, b + size, dtype, wide + 1, n);
    for (gsize i = 0; i < n; i++) {
        const float expected = rp_dtype_get(dtype, a + size, i) + rp_dtype_get(dtype, b + size, i);
        assert_true(wide[i + 1] == expected);
    }
    memcpy(sum, wide + 1, n * sizeof(float));
    ops->accumulate(wide + 1, b + size, dtype, n);
    for (gsize i = 0; i < n; i++) {
        const float expected = sum[i] + rp_dtype_get(dtype, b + size, i);
        assert_memory_equal(&wide[i + 1], &expected, sizeof expected);
    }
}

/* More values than three shares of the smallest size; the last share is short. */
RP_TEST(threads_share_sums_and_copies)
{
    const gsize n = 200003;
    const RpAdamwOps *ops = rp_adamw_best();
    g_autoptr(RpPool) pool = rp_pool_new(&(RpPoolOptions){.n_threads = 3}, NULL);
    g_autofree uint16_t *a = g_new(uint16_t, n);
    g_autofree uint16_t *b = g_new(uint16_t, n);
    g_autofree float *wide = g_new0(float, n);

    assert_non_null(pool);
    for (gsize i = 0; i < n; i++) {
        a[i] = rp_bf16_from_float((float)i);
        b[i] = rp_bf16_from_float(-3.0f * (float)(i % 1009));
    }
    rp_sums_widen(pool, ops, a, RP_DTYPE_BF16, wide, n);
    for (gsize i = 0; i < n; i++)
        assert_true(wide[i] == rp_float_from_bf16(a[i]));
    rp_sums_accumulate(pool, ops, wide, &(const void *){b}, 1, RP_DTYPE_BF16, FALSE, n);
    for (gsize i = 0; i < n; i++)
        assert_true(wide[i] == rp_float_from_bf16(a[i]) + rp_float_from_bf16(b[i]));
}

#define MOST_ADDED 5

/* One pass over @n values with @n_added arrays gives the same as a pass for each, which is the same
 * as adding them one by one. */
static void
check_passes(RpPool *pool, const RpAdamwOps *ops, RpDtype dtype, guint n_added, gboolean begin,
             gsize n)
{
    const gsize bytes = n * rp_dtype_size(dtype);
    g_autofree float *once = g_new(float, n);
    g_autofree float *again = g_new(float, n);
    g_autofree float *expected = g_new(float, n);
    g_autofree char *values = g_malloc(MOST_ADDED * bytes);
    const void *added[MOST_ADDED];

    for (gsize i = 0; i < n; i++)
        once[i] = again[i] = expected[i] = 1.0f + (float)(i % 7919) / 64;
    for (guint k = 0; k < n_added; k++) {
        char *of = values + k * bytes;

        for (gsize i = 0; i < n; i++) { /* a sum of these in another order has other bits */
            rp_dtype_set(dtype, of, i, (k % 2 == 0 ? 37.3f : -36.9f) / (float)(1 + i % (3 + k)));
            expected[i] = rp_dtype_get(dtype, of, i) + (begin && k == 0 ? 0.0f : expected[i]);
        }
        added[k] = of;
        rp_sums_accumulate(NULL, ops, again, &added[k], 1, dtype, begin && k == 0, n);
    }
    rp_sums_accumulate(pool, ops, once, added, n_added, dtype, begin, n);
    assert_memory_equal(once, again, n * sizeof *once);
    assert_memory_equal(once, expected, n * sizeof *once);
}

RP_TEST(several_sums_in_one_pass_have_the_bits_of_one_after_the_other)
{
    static const gsize sizes[] = {1, 33, 1023, 1025, 16383, 16385, 3 * 16384, 100003};
    const RpAdamwOps *const *variants = rp_adamw_variants();
    g_autoptr(RpPool) pool = rp_pool_new(&(RpPoolOptions){.n_threads = 3}, NULL);

    assert_non_null(pool);
    for (guint v = 0; variants[v] != NULL; v++)
        for (int dtype = 0; dtype < 3 && variants[v]->supported(); dtype++)
            for (guint i = 0; i < G_N_ELEMENTS(sizes); i++)
                for (guint k = 1; k <= MOST_ADDED; k++) {
                    check_passes(pool, variants[v], (RpDtype)dtype, k, k % 2 == 0, sizes[i]);
                    check_passes(NULL, variants[v], (RpDtype)dtype, k, k % 2 == 1, sizes[i]);
                }
}

RP_TEST(every_variant_adds_and_widens_values_of_any_number)
{
    const RpAdamwOps *const *variants = rp_adamw_variants();

    for (guint v = 0; variants[v] != NULL; v++)
        for (int dtype = 0; dtype < 3 && variants[v]->supported(); dtype++)
            check_sums(*state, variants[v], (RpDtype)dtype);
}

RP_TEST(refuses_options_out_of_range)
{
    const struct {
        RpAdamwOptions options;
        const char *message;
    } bad[] = {
        {{1, 0.9, 1e-8, 0}, "beta1 is 1, not [0, 1)"},
        {{-0.1, 0.9, 1e-8, 0}, "beta1 is -0.1"},
        {{0.9, NAN, 1e-8, 0}, "beta2 is nan"},
        {{0.9, 0.9, 0, 0}, "epsilon is 0, not above 0"},
        {{0.9, 0.9, 1e-60, 0}, "epsilon is 1e-60"},
        {{0.9, 0.9, 1e-8, -1}, "weight decay is -1, not 0 or more"},
        {{0.9, 0.9, 1e-8, INFINITY}, "weight decay is inf"},
    };

    for (gsize i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_autoptr(GError) error = NULL;
        assert_null(rp_optimizer_new(&bad[i].options, NULL, NULL, &error));
        assert_true(g_error_matches(error, RP_OPTIMIZER_ERROR, RP_OPTIMIZER_ERROR_VALUE));
        rp_assert_error_message_contains(error, bad[i].message);
    }
}

RP_TEST_STATE(Fixture, set_up, tear_down)
