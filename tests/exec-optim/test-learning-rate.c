#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/learning-rate.h"

static void
assert_rate(RpLearningRateKind kind, guint64 warmup, guint64 total, guint64 step, double expected)
{
    const RpLearningRate rate = {
        .kind = kind, .peak = 8, .warmup_steps = warmup, .total_steps = total};
    const double found = rp_learning_rate_at(&rate, step);
    if (fabs(found - expected) > 1e-12)
        fail_msg("kind %d, warm-up %d, total %d, step %d: %.17g, not %.17g", (int)kind, (int)warmup,
                 (int)total, (int)step, found, expected);
}

static void
warms_up_from_zero(void **state)
{
    for (int kind = 0; kind < 3; kind++)
        for (guint64 step = 0; step < 4; step++)
            assert_rate((RpLearningRateKind)kind, 4, 20, step, (double)step * 2);
    for (int kind = 0; kind < 3; kind++)
        assert_rate((RpLearningRateKind)kind, 4, 20, 4, 8);
}

static void
constant_stays(void **state)
{
    assert_rate(RP_LEARNING_RATE_CONSTANT, 0, 0, 0, 8);
    assert_rate(RP_LEARNING_RATE_CONSTANT, 4, 0, 1000000, 8);
}

static void
linear_falls_evenly_to_zero(void **state)
{
    assert_rate(RP_LEARNING_RATE_LINEAR, 0, 8, 0, 8);
    assert_rate(RP_LEARNING_RATE_LINEAR, 0, 8, 1, 7);
    assert_rate(RP_LEARNING_RATE_LINEAR, 4, 20, 8, 6);
    assert_rate(RP_LEARNING_RATE_LINEAR, 4, 20, 19, 0.5);
    assert_rate(RP_LEARNING_RATE_LINEAR, 4, 20, 20, 0);
    assert_rate(RP_LEARNING_RATE_LINEAR, 4, 20, 21, 0);
}

static void
cosine_falls_along_half_a_wave(void **state)
{
    assert_rate(RP_LEARNING_RATE_COSINE, 0, 12, 0, 8);
    assert_rate(RP_LEARNING_RATE_COSINE, 0, 12, 4, 6); /* cos 60 degrees = 1/2 */
    assert_rate(RP_LEARNING_RATE_COSINE, 0, 12, 6, 4);
    assert_rate(RP_LEARNING_RATE_COSINE, 0, 12, 8, 2);
    assert_rate(RP_LEARNING_RATE_COSINE, 6, 18, 9, 4 + 2 * sqrt(2)); /* 45 degrees */
    assert_rate(RP_LEARNING_RATE_COSINE, 6, 18, 18, 0);
    assert_rate(RP_LEARNING_RATE_COSINE, 6, 18, 24, 0); /* and does not rise again */
}

static void
a_warm_up_may_outlast_the_run(void **state)
{
    for (int kind = 0; kind < 3; kind++)
        assert_rate((RpLearningRateKind)kind, 8, 4, 6, 6);
    assert_rate(RP_LEARNING_RATE_LINEAR, 8, 4, 8, 0);
    assert_rate(RP_LEARNING_RATE_COSINE, 8, 8, 8, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warms_up_from_zero),
        cmocka_unit_test(constant_stays),
        cmocka_unit_test(linear_falls_evenly_to_zero),
        cmocka_unit_test(cosine_falls_along_half_a_wave),
        cmocka_unit_test(a_warm_up_may_outlast_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
