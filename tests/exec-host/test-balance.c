/* The routers' auxiliary loss, against the same formulas in double. */
#include "tests/exec-host/host-fixture.h"

#include <math.h>

typedef struct {
    size_t tokens, experts, choices;
} Shape;

static const Shape shapes[] = {{1, 1, 1}, {7, 2, 1}, {9, 5, 5}, {31, 8, 3}, {67, 16, 4}};

static int32_t *
integers(size_t n)
{
    return host_bytes(n * sizeof(int32_t));
}

/* Neighbours, from a random one on: experts of low numbers more often. */
static int32_t *
random_choices(Shape shape)
{
    int32_t *chosen = integers(shape.tokens * shape.choices);

    for (size_t t = 0; t < shape.tokens; t++) {
        const gint32 first = host_random_below(1 + host_random_below((gint32)shape.experts));

        for (size_t j = 0; j < shape.choices; j++)
            chosen[t * shape.choices + j] = (gint32)((first + j) % shape.experts);
    }
    return chosen;
}

#define LAYERS 2
#define LONGEST 8 /* tokens of a sequence; the last is shorter */

/* Loss of tokens that are no padding, their probabilities being softmax(logits + @step at one). */
static double
reference_loss(Shape shape, const double *logits, const gint32 *lengths, const double *counts,
               size_t at, double step)
{
    const size_t T = shape.tokens, E = shape.experts;
    double *sums = host_doubles(E);
    double n = 0, loss = 0;

    memset(sums, 0, E * sizeof *sums);
    for (size_t t = 0; t < T; t++) {
        double sum = 0;

        if (t % LONGEST >= (size_t)lengths[t / LONGEST])
            continue;
        n += LAYERS;
        for (size_t e = 0; e < E; e++)
            sum += exp(logits[t * E + e] + (t * E + e == at ? step : 0));
        for (size_t e = 0; e < E; e++)
            sums[e] += exp(logits[t * E + e] + (t * E + e == at ? step : 0)) / sum;
    }
    for (size_t e = 0; e < E && n > 0; e++)
        loss += (double)E * counts[e] / n * LAYERS * sums[e] / n;
    return loss;
}

/* Two layers with the same logits, the second on top of the first. */
static void
check_balance(RpDtype dtype, Shape shape)
{
    const size_t T = shape.tokens, E = shape.experts, k = shape.choices;
    const size_t sequences = (T + LONGEST - 1) / LONGEST;
    const Array logits = host_random(dtype, T * E, 2);
    const Array sums = host_output(RP_DTYPE_FP32, E);
    const Array d_sums = host_output(RP_DTYPE_FP32, E);
    float *zeros = host_bytes(T * MAX(E, k) * sizeof *zeros);
    double *want = host_doubles(T * E), *counts = host_doubles(E), loss;
    gint32 *lengths = integers(sequences);
    RpBalanceArgs args = {.dtype = dtype,
                          .tokens = T,
                          .experts = E,
                          .choices = k,
                          .sequence = LONGEST,
                          .lengths = lengths,
                          .logits = logits.data,
                          .chosen = random_choices(shape),
                          .counts_before = (const int32_t *)(const void *)zeros,
                          .sums_before = zeros,
                          .counts = integers(E),
                          .sums = host_bytes(E * sizeof(float))};

    memset(zeros, 0, T * MAX(E, k) * sizeof *zeros);
    memset(counts, 0, E * sizeof *counts);
    for (size_t b = 0; b < sequences; b++)
        lengths[b] = b == 1 ? 0 : (gint32)MIN(T - b * LONGEST, LONGEST - b % 3);
    for (size_t a = 0; a < T * k; a++)
        counts[args.chosen[a]] += a / k % LONGEST < (size_t)lengths[a / k / LONGEST] ? LAYERS : 0;
    rp_host_kernels()->balance_forward(NULL, &args);
    args.counts_before = args.counts;
    args.sums_before = args.sums;
    args.counts = integers(E);
    args.sums = (float *)sums.data;
    rp_host_kernels()->balance_forward(NULL, &args);
    for (size_t e = 0; e < E; e++)
        assert_int_equal(args.counts[e], counts[e]);
    rp_host_kernels()->balance_loss(NULL, &(RpBalanceLossArgs){.experts = E,
                                                               .layers = LAYERS,
                                                               .sequences = sequences,
                                                               .lengths = lengths,
                                                               .counts = args.counts,
                                                               .sums = args.sums,
                                                               .scale = (float)(LAYERS * T),
                                                               .loss = &loss,
                                                               .d_sums = (float *)d_sums.data});
    assert_true(fabs(loss - reference_loss(shape, logits.values, lengths, counts, T * E, 0)) <
                1e-5 * loss);
    /* one layer's logits vary: the other's probabilities are constants */
    for (size_t i = 0; i < T * E; i++)
        want[i] = (double)T *
                  (reference_loss(shape, logits.values, lengths, counts, i, 1e-4) -
                   reference_loss(shape, logits.values, lengths, counts, i, -1e-4)) /
                  2e-4;
    rp_host_kernels()->route_backward(NULL, &(RpRouteArgs){.dtype = dtype,
                                                           .tokens = T,
                                                           .experts = E,
                                                           .choices = k,
                                                           .logits = logits.data,
                                                           .chosen = (int32_t *)args.chosen,
                                                           .d_weights = zeros,
                                                           .d_logits = logits.data,
                                                           .d_sums = (float *)d_sums.data,
                                                           .sequence = LONGEST,
                                                           .lengths = lengths});
    host_assert_close(logits, want, E, 0);
}

RP_TEST(balances_tokens_that_are_no_padding)
{
    for (guint dtype = 0; dtype < RP_N_DTYPES; dtype++)
        for (gsize s = 0; s < G_N_ELEMENTS(shapes); s++)
            check_balance((RpDtype)dtype, shapes[s]);
}

/* All tokens are padding: no loss, no gradient, and no 0 / 0. */
RP_TEST(has_no_loss_of_padding_alone)
{
    const int32_t counts[3] = {0}, lengths[2] = {0};
    const float sums[3] = {0};
    float d_sums[3] = {NAN, NAN, NAN};
    double loss = NAN;

    rp_host_kernels()->balance_loss(NULL, &(RpBalanceLossArgs){.experts = 3,
                                                               .layers = 1,
                                                               .sequences = 2,
                                                               .lengths = lengths,
                                                               .counts = counts,
                                                               .sums = sums,
                                                               .scale = 1,
                                                               .loss = &loss,
                                                               .d_sums = d_sums});
    assert_true(loss == 0);
    for (guint e = 0; e < 3; e++)
        assert_true(d_sums[e] == 0);
}

RP_TEST_FIXTURE(host_setup, host_teardown)
