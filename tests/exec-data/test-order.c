#include "tests/rp-test.h"

#include "exec/data/pack.h"

#define MAX_SIZE 2000

RP_TEST(has_each_sample_once_for_every_size)
{
    for (guint n = 1; n <= MAX_SIZE; n++) {
        guint8 seen[MAX_SIZE] = {0};
        RpOrder order;

        rp_order_init(&order, n, TRUE, 42, n % 5);
        for (guint i = 0; i < n; i++) {
            guint64 sample = rp_order_sample(&order, i);
            assert_true(sample < n);
            assert_int_equal(seen[sample]++, 0);
        }
    }
}

RP_TEST(keeps_the_order_of_the_file_unshuffled)
{
    RpOrder order;

    rp_order_init(&order, 1000, FALSE, 42, 3);
    for (guint i = 0; i < 1000; i++)
        assert_int_equal(rp_order_sample(&order, i), i);
}

/* The bytes of a release are those of the next: resuming depends on it. */
RP_TEST(gives_these_orders)
{
    static const guint64 expected[2][10] = {{5, 1, 6, 7, 4, 0, 3, 8, 9, 2},
                                            {8, 3, 1, 9, 7, 5, 2, 4, 0, 6}};
    RpOrder order;

    for (guint epoch = 0; epoch < 2; epoch++) {
        rp_order_init(&order, 10, TRUE, 1, epoch);
        for (guint i = 0; i < 10; i++)
            assert_int_equal(rp_order_sample(&order, i), expected[epoch][i]);
    }
}

RP_TEST(differs_by_seed_and_by_epoch)
{
    static const guint64 keys[][2] = {{1, 0}, {0, 1}, {1, 1}, {2, 1}, {1, 2}, {G_MAXUINT64, 0}};
    RpOrder first, other;

    rp_order_init(&first, 1000, TRUE, 0, 0);
    for (gsize k = 0; k < G_N_ELEMENTS(keys); k++) {
        guint same = 0;
        rp_order_init(&other, 1000, TRUE, keys[k][0], keys[k][1]);
        for (guint i = 0; i < 1000; i++)
            same += rp_order_sample(&first, i) == rp_order_sample(&other, i);
        assert_true(same < 8); /* one is expected, Poisson */
        first = other;
    }
}

/* Σ (observed - expected)² / expected */
static double
chi_square(const guint *counts, gsize n, double expected)
{
    double sum = 0;

    for (gsize i = 0; i < n; i++)
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    return sum;
}

/* Every permutation of 2, 3 and 4 comes about equally often. Bounds: 99.99 % of chi square. */
RP_TEST(gives_all_small_permutations)
{
    static const struct {
        guint n;
        guint permutations;
        double bound;
    } cases[] = {{2, 2, 15.1}, {3, 6, 25.7}, {4, 24, 58.6}};

    for (gsize c = 0; c < G_N_ELEMENTS(cases); c++) {
        guint n = cases[c].n;
        guint counts[256] = {0};
        guint used[24];
        gsize n_used = 0;

        for (guint epoch = 0; epoch < cases[c].permutations * 500; epoch++) {
            RpOrder order;
            guint code = 0;
            rp_order_init(&order, n, TRUE, 7, epoch);
            for (guint i = 0; i < n; i++)
                code = code * 4 + (guint)rp_order_sample(&order, i);
            counts[code]++;
        }
        for (guint code = 0; code < 256; code++) {
            if (counts[code] > 0) {
                assert_true(n_used < cases[c].permutations);
                used[n_used++] = counts[code];
            }
        }
        assert_int_equal(n_used, cases[c].permutations);
        double value = chi_square(used, n_used, 500);
        if (value > cases[c].bound)
            fail_msg("size %u: chi square %g", n, value);
    }
}

/* Each sample is equally often at each position. (n - 1)² degrees of freedom; within 4.5 sigma. */
RP_TEST(puts_every_sample_everywhere)
{
    static const guint sizes[] = {5, 16, 37, 64};
    guint counts[64 * 64];

    for (gsize c = 0; c < G_N_ELEMENTS(sizes); c++) {
        guint n = sizes[c];
        memset(counts, 0, sizeof counts);
        for (guint epoch = 0; epoch < 100 * n; epoch++) {
            RpOrder order;
            rp_order_init(&order, n, TRUE, 11, epoch);
            for (guint i = 0; i < n; i++)
                counts[i * n + rp_order_sample(&order, i)]++;
        }
        double value = chi_square(counts, (gsize)n * n, 100);
        double freedom = (n - 1.0) * (n - 1.0);
        double bound = 4.5 * 4.5 * 2 * freedom; /* (value - freedom)² is below this */
        if ((value - freedom) * (value - freedom) > bound)
            fail_msg("size %u: chi square %g of %g", n, value, freedom);
    }
}

/* Neighbours in the file are no neighbours in the order: on average one pair an epoch goes up by
 * one and one goes down by one, as in random permutations. */
RP_TEST(separates_neighbours)
{
    guint up = 0, down = 0, ascents = 0;

    for (guint epoch = 0; epoch < 1000; epoch++) {
        RpOrder order;
        rp_order_init(&order, 1000, TRUE, 5, epoch);
        guint64 last = rp_order_sample(&order, 0);
        for (guint i = 1; i < 1000; i++) {
            guint64 next = rp_order_sample(&order, i);
            up += next == last + 1;
            down += last == next + 1;
            ascents += next > last;
            last = next;
        }
    }
    assert_in_range(up, 860, 1140); /* 1000 +- 4.4 sigma */
    assert_in_range(down, 860, 1140);
    /* 499500; the variance of one epoch's ascents is (n + 1) / 12 */
    assert_in_range(ascents, 499500 - 1300, 499500 + 1300);
}

RP_TEST(reaches_far_in_large_sets)
{
    static const guint64 sizes[] = {G_GUINT64_CONSTANT(1) << 32, G_GUINT64_CONSTANT(1000000000007),
                                    RP_ORDER_MAX_SAMPLES};

    for (gsize c = 0; c < G_N_ELEMENTS(sizes); c++) {
        RpOrder order;
        guint quarters[4] = {0};
        rp_order_init(&order, sizes[c], TRUE, 9, 0);
        g_autoptr(GHashTable) seen = g_hash_table_new(g_int64_hash, g_int64_equal);
        guint64 samples[1000];
        for (guint i = 0; i < 1000; i++) {
            samples[i] = rp_order_sample(&order, i);
            assert_true(samples[i] < sizes[c]);
            assert_true(g_hash_table_add(seen, &samples[i]));
            quarters[MIN(samples[i] / (sizes[c] / 4), 3)]++;
        }
        for (guint q = 0; q < 4; q++)
            assert_in_range(quarters[q], 190, 310); /* 250 +- 4.4 sigma */
    }
}
