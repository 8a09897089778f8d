/* Which targets a head is left with. */
#include "tests/rp-test.h"

#include "exec/model/kernels.h"
#include "exec/train/targets.h"

#define N 64

/* @masked: every so many-th target from the first on; 0: none */
static guint
pack(guint masked, gint32 *targets, gint32 *packed, gint32 *rows)
{
    for (gint32 i = 0; i < N; i++)
        targets[i] = masked > 0 && (guint)i % masked == 0 ? RP_LABEL_MASKED : 100 + i;
    return rp_targets_pack(targets, N, packed, rows);
}

static void
keeps_what_is_not_masked_in_its_order(void **state)
{
    gint32 targets[N], packed[N], rows[N];

    for (guint masked = 1; masked <= 16; masked++) {
        const guint n = pack(masked, targets, packed, rows);

        assert_int_equal(n, N - (N + masked - 1) / masked);
        for (guint i = 0; i < n; i++) {
            assert_int_equal(packed[i], targets[rows[i]]);
            assert_int_not_equal(packed[i], RP_LABEL_MASKED);
            assert_true(i == 0 || rows[i] > rows[i - 1]);
        }
    }
}

static void
leaves_all_where_few_are_masked(void **state)
{
    gint32 targets[N], packed[N], rows[N];

    assert_int_equal(pack(0, targets, packed, rows), RP_TARGETS_ALL);
    assert_int_equal(pack(32, targets, packed, rows), RP_TARGETS_ALL);
    assert_int_equal(pack(22, targets, packed, rows), RP_TARGETS_ALL); /* 3 of 64 */
    assert_int_equal(pack(21, targets, packed, rows), N - 4);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_what_is_not_masked_in_its_order),
        cmocka_unit_test(leaves_all_where_few_are_masked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
