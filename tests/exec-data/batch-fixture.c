#include "tests/exec-data/batch-fixture.h"

int
rp_batch_fixture_setup(void **state)
{
    *state = g_new0(RpBatchFixture, 1);
    return 0;
}

void
rp_batch_fixture_clear(RpBatchFixture *f)
{
    g_clear_pointer(&f->batch, rp_token_batch_free);
    g_clear_pointer(&f->batcher, rp_batcher_free);
    g_clear_pointer(&f->dataset, rp_dataset_free);
    g_clear_error(&f->error);
}

int
rp_batch_fixture_teardown(void **state)
{
    rp_batch_fixture_clear(*state);
    g_free(*state);
    return 0;
}

void
rp_batch_fixture_next(RpBatchFixture *f)
{
    gboolean good = rp_batcher_next(f->batcher, f->batch, &f->error);

    rp_assert_no_error(f->error);
    assert_true(good);
}

void
rp_assert_row(const gint32 *row, gsize n, const gint32 *expected)
{
    for (gsize i = 0; i < n; i++)
        assert_int_equal(row[i], expected[i]);
}
