#include "tests/exec-data/batch-fixture.h"

#include <glib/gstdio.h>

void
rp_sample_fixture_setup(RpSampleFixture *f)
{
    f->sample = (RpSample){f->input_ids, f->labels, RP_SAMPLE_CAPACITY, 0};
}

void
rp_sample_fixture_clear(RpSampleFixture *f)
{
    g_clear_pointer(&f->dataset, rp_dataset_free);
    g_clear_pointer(&f->bytes, g_bytes_unref);
    g_clear_pointer(&f->text, g_free);
    g_clear_error(&f->error);
}

void
rp_sample_fixture_teardown(RpSampleFixture *f)
{
    rp_sample_fixture_clear(f);
    if (f->path != NULL)
        g_remove(f->path);
    g_free(f->path);
}

void
rp_sample_fixture_open(RpSampleFixture *f, const char *text, gsize length)
{
    rp_sample_fixture_clear(f);
    f->bytes = g_bytes_new(text, length);
    f->dataset = rp_must(rp_dataset_new_jsonl, "FILE", f->bytes, 100);
}

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
    gboolean good = rp_must(rp_batcher_next, f->batcher, f->batch);

    assert_true(good);
}

void
rp_assert_row(const gint32 *row, gsize n, const gint32 *expected)
{
    for (gsize i = 0; i < n; i++)
        assert_int_equal(row[i], expected[i]);
}
