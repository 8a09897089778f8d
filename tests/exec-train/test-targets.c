/* Tests which targets a head is left with. */
#include "tests/rp-test.h"

#include "exec/device/batch-feed.h"
#include "exec/kernels/kernels.h"

#define N 64
#define STEP 4 /* a sixteenth of them */

/* @masked: every N-th target from the first on; 0: none */
static guint
pack(guint masked, gint32 *targets, gint32 *packed, gint32 *rows)
{
    for (gint32 i = 0; i < N; i++)
        targets[i] = masked > 0 && (guint)i % masked == 0 ? RP_LABEL_MASKED : 100 + i;
    return rp_targets_pack(targets, N, packed, rows);
}

RP_TEST(keeps_what_is_not_masked_in_its_order)
{
    gint32 targets[N], packed[N], rows[N];

    for (guint masked = 1; masked <= 16; masked++) {
        const guint n = pack(masked, targets, packed, rows);
        const guint n_ids = N - (N + masked - 1) / masked;

        assert_int_equal(n, (n_ids + STEP - 1) / STEP * STEP);
        for (guint i = 0; i < n; i++) {
            assert_int_equal(packed[i], targets[rows[i]]);
            assert_int_equal(packed[i] == RP_LABEL_MASKED, i >= n_ids);
            assert_true(i == 0 || i == n_ids || rows[i] > rows[i - 1]);
        }
    }
}

/* @n targets, about @share of them masked. Returns: how many */
static guint
mask_at_random(GRand *random, double share, guint n, gint32 *targets)
{
    guint n_masked = 0;

    for (guint i = 0; i < n; i++) {
        const gboolean masked = g_rand_double(random) < share;

        targets[i] = masked ? RP_LABEL_MASKED : (gint32)i;
        n_masked += masked;
    }
    return n_masked;
}

RP_TEST(names_no_row_twice_and_has_room_for_all)
{
    static const guint sizes[] = {1, 2, 15, 16, 33, 64, 500, 1000, 2047, 2048, 5000};
    g_autoptr(GRand) random = g_rand_new_with_seed(1);

    for (guint s = 0; s < G_N_ELEMENTS(sizes); s++) {
        const guint n = sizes[s];
        g_autofree gint32 *targets = g_new(gint32, n), *packed = g_new(gint32, n + 1),
                          *rows = g_new(gint32, n + 1);
        g_autofree guint8 *named = g_new(guint8, n);

        for (guint try = 0; try < 60; try++) {
            const guint n_ids = n - mask_at_random(random, try / 50.0, n, targets);
            guint n_packed;

            packed[n] = rows[n] = 12345;
            n_packed = rp_targets_pack(targets, n, packed, rows);
            assert_true(packed[n] == 12345 && rows[n] == 12345);
            if (n_packed == RP_TARGETS_ALL) {
                assert_true(n_ids == n || n - n_ids < n / 16);
                continue;
            }
            assert_in_range(n_packed, n_ids, n);
            assert_true(n_packed < n_ids + MAX(n / 16, 1));
            memset(named, 0, n);
            for (guint i = 0; i < n_packed; i++) {
                assert_in_range(rows[i], 0, n - 1);
                assert_int_equal(named[rows[i]]++, 0);
                assert_int_equal(packed[i], targets[rows[i]]);
                assert_int_equal(packed[i] == RP_LABEL_MASKED, i >= n_ids);
            }
        }
    }
}

RP_TEST(leaves_a_head_with_few_sizes)
{
    enum { TOKENS = 4096 };
    g_autoptr(GRand) random = g_rand_new_with_seed(2);
    g_autofree gint32 *targets = g_new(gint32, TOKENS), *packed = g_new(gint32, TOKENS),
                      *rows = g_new(gint32, TOKENS);
    guint8 seen[TOKENS + 1] = {0};
    guint n_sizes = 0, n_tries = 0;

    for (double share = 0.07; share < 1; share += 0.001, n_tries++) {
        (void)mask_at_random(random, share, TOKENS, targets);
        const guint n = rp_targets_pack(targets, TOKENS, packed, rows);

        assert_int_not_equal(n, RP_TARGETS_ALL);
        assert_int_equal(n % 128, 0);
        n_sizes += !seen[n];
        seen[n] = TRUE;
    }
    assert_true(n_tries > 900);
    assert_in_range(n_sizes, 25, TOKENS / 128);
}

RP_TEST(leaves_all_where_few_are_masked)
{
    gint32 targets[N], packed[N], rows[N];

    assert_int_equal(pack(0, targets, packed, rows), RP_TARGETS_ALL);
    assert_int_equal(pack(32, targets, packed, rows), RP_TARGETS_ALL);
    assert_int_equal(pack(22, targets, packed, rows), RP_TARGETS_ALL); /* 3 of 64 */
    assert_int_equal(pack(21, targets, packed, rows), N - 4);
}
