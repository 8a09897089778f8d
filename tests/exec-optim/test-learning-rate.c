#include "tests/rp-test.h"

#include <math.h>

#include "exec/optim/rules.h"

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

RP_TEST(warms_up_from_zero)
{
    for (int kind = 0; kind < 3; kind++)
        for (guint64 step = 0; step < 4; step++)
            assert_rate((RpLearningRateKind)kind, 4, 20, step, (double)step * 2);
    for (int kind = 0; kind < 3; kind++)
        assert_rate((RpLearningRateKind)kind, 4, 20, 4, 8);
}

RP_TEST(constant_stays)
{
    assert_rate(RP_LEARNING_RATE_CONSTANT, 0, 0, 0, 8);
    assert_rate(RP_LEARNING_RATE_CONSTANT, 4, 0, 1000000, 8);
}

RP_TEST(linear_falls_evenly_to_zero)
{
    assert_rate(RP_LEARNING_RATE_LINEAR, 0, 8, 0, 8);
    assert_rate(RP_LEARNING_RATE_LINEAR, 0, 8, 1, 7);
    assert_rate(RP_LEARNING_RATE_LINEAR, 4, 20, 8, 6);
    assert_rate(RP_LEARNING_RATE_LINEAR, 4, 20, 19, 0.5);
    assert_rate(RP_LEARNING_RATE_LINEAR, 4, 20, 20, 0);
    assert_rate(RP_LEARNING_RATE_LINEAR, 4, 20, 21, 0);
}

RP_TEST(cosine_falls_along_half_a_wave)
{
    assert_rate(RP_LEARNING_RATE_COSINE, 0, 12, 0, 8);
    assert_rate(RP_LEARNING_RATE_COSINE, 0, 12, 4, 6); /* cos 60 degrees = 1/2 */
    assert_rate(RP_LEARNING_RATE_COSINE, 0, 12, 6, 4);
    assert_rate(RP_LEARNING_RATE_COSINE, 0, 12, 8, 2);
    assert_rate(RP_LEARNING_RATE_COSINE, 6, 18, 9, 4 + 2 * sqrt(2)); /* 45 degrees */
    assert_rate(RP_LEARNING_RATE_COSINE, 6, 18, 18, 0);
    assert_rate(RP_LEARNING_RATE_COSINE, 6, 18, 24, 0); /* and does not rise again */
}

RP_TEST(a_warm_up_may_outlast_the_run)
{
    for (int kind = 0; kind < 3; kind++)
        assert_rate((RpLearningRateKind)kind, 8, 4, 6, 6);
    assert_rate(RP_LEARNING_RATE_LINEAR, 8, 4, 8, 0);
    assert_rate(RP_LEARNING_RATE_COSINE, 8, 8, 8, 0);
}

static RpLearningRateKind
kind_of(const char *name)
{
    return g_str_equal(name, "cosine")     ? RP_LEARNING_RATE_COSINE
           : g_str_equal(name, "linear")   ? RP_LEARNING_RATE_LINEAR
           : g_str_equal(name, "1-sqrt")   ? RP_LEARNING_RATE_ROOT
           : g_str_equal(name, "constant") ? RP_LEARNING_RATE_CONSTANT
                                           : RP_LEARNING_RATE_STABLE;
}

/* fixtures/make-rates.py made theirs. */
RP_TEST(rates_are_those_of_transformers)
{
    g_autofree char *path = rp_test_source_path("tests/exec-optim/fixtures/rates.txt");
    g_autofree char *text = NULL;
    guint n = 0;

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line != NULL; line++) {
        g_auto(GStrv) words = g_strsplit(*line, " ", -1);

        if (**line == '#' || **line == '\0')
            continue;
        assert_int_equal(g_strv_length(words), 8);
        const RpLearningRate rate = {.kind = kind_of(words[0]),
                                     .decay = kind_of(words[1]),
                                     .peak = 1,
                                     .warmup_steps = g_ascii_strtoull(words[2], NULL, 10),
                                     .total_steps = g_ascii_strtoull(words[3], NULL, 10),
                                     .decay_steps = g_ascii_strtoull(words[4], NULL, 10),
                                     .min_ratio = g_ascii_strtod(words[5], NULL)};
        const double found = rp_learning_rate_at(&rate, g_ascii_strtoull(words[6], NULL, 10));

        if (fabs(found - g_ascii_strtod(words[7], NULL)) > 1e-12)
            fail_msg("%s: found %.17g", *line, found);
        n++;
    }
    assert_true(n > 250);
}
